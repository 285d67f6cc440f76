"""Numbered writes and batches of streams whose records are lost count as not done."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.model import TopicPartition
from segmentlog.txn.state import NumberedWrite, State, decode_spans, encode_spans

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def write(directory: Path, version: int, *, flush: bool = False, app: str = "app") -> None:
    """A numbered write of two records."""
    config = segmentlog.ProducerConfig(flush=flush)
    with segmentlog.open_writer(
        directory, "t", num_partitions=1, config=config, txn_app_id=app, txn_version=version
    ) as writer:
        writer.append(pa.table({"value": [f"{app} {version} {i}" for i in range(2)]}))


def values(directory: Path) -> list[str]:
    """All values, in their order."""
    return [each.decode() for each in segmentlog.read(directory, "t")["value"].to_pylist()]


def lose(directory: Path, size: int) -> None:
    """A power cut loses the bytes of a log after the first ones."""
    (path,) = (directory / "t-0").glob("*.log")
    with path.open("rb+") as file:
        file.truncate(size)
    (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)


@pytest.mark.parametrize("recover", [segmentlog.recover, lambda _: None])
def test_a_write_whose_records_are_cut_off_is_written_again(
    tmp_path: Path, recover: Callable[[Path], object]
) -> None:
    """By the command, or by the next writer, who may be the repeated write itself."""
    write(tmp_path, 1, flush=True)
    (path,) = (tmp_path / "t-0").glob("*.log")
    size = path.stat().st_size
    write(tmp_path, 2)
    lose(tmp_path, size)
    recover(tmp_path)
    write(tmp_path, 2)
    write(tmp_path, 2)
    write(tmp_path, 1)
    assert ["app 1 0", "app 1 1", "app 2 0", "app 2 1"] == values(tmp_path)


def test_records_that_take_the_offsets_of_lost_ones_do_not_count_as_those(tmp_path: Path) -> None:
    """Another write recovers the log, and is as long as the one that is lost."""
    write(tmp_path, 1, flush=True)
    (path,) = (tmp_path / "t-0").glob("*.log")
    size = path.stat().st_size
    write(tmp_path, 2)
    lose(tmp_path, size)
    write(tmp_path, 7, app="another")
    write(tmp_path, 2)
    assert ["app 1 0", "app 1 1", "another 7 0", "another 7 1", "app 2 0", "app 2 1"] == values(
        tmp_path
    )


def test_only_writes_with_lost_records_count_as_not_done() -> None:
    """The version before a lost one counts again, unless its records may be lost, too."""
    state = State(token="x", time_ms=5)
    state = state.with_version(NumberedWrite("early", 3), ["t"], {P0: (0, 4)})
    state = state.with_version(NumberedWrite("late", 9), ["t"], {P0: (4, 8), P1: (0, 2)})
    state = state.with_version(
        NumberedWrite("elsewhere", 1), ["u"], {TopicPartition("u", 0): (0, 9)}
    )
    assert {"early": 3, "late": 9, "elsewhere": 1} == versions(state.cut({P0: 8}))
    assert {"early": 3, "late": 8, "elsewhere": 1} == versions(state.cut({P0: 6}))
    assert {"early": 3, "late": 8, "elsewhere": 1} == versions(state.cut({P0: 4}))
    assert {"early": 3, "late": 8, "elsewhere": 1} == versions(state.cut({P1: 1}))
    assert {"early": 2, "elsewhere": 1} == versions(state.cut({P0: 3}))
    assert state.spans == decode_spans(encode_spans(state.spans))


def test_a_write_of_unknown_span_counts_unless_a_cut_may_have_met_it() -> None:
    """An earlier version of segmentlog has noted no spans; a later span shows what is whole."""
    state = State(token="x", versions={("old", "t"): (4, 1), ("old", "u"): (4, 1)})
    assert {("old", "u"): (4, 1)} == state.cut({P0: 5}).versions
    state = state.with_version(NumberedWrite("new", 1), ["t"], {P0: (5, 6)})
    assert {("old", "t"): (4, 1), ("old", "u"): (4, 1), ("new", "t"): (0, 0)} == {
        key: found if key[0] == "old" else (0, 0)
        for key, found in state.cut({P0: 5}).versions.items()
    }


def versions(state: State) -> dict[str, int]:
    """Versions by their names."""
    return {app_id: version for (app_id, _), (version, _) in state.versions.items()}
