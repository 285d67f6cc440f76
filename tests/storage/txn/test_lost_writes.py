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
    state = state.with_version(NumberedWrite("early", 3), {"t": ""}, {P0: (0, 4)})
    state = state.with_version(NumberedWrite("late", 9), {"t": ""}, {P0: (4, 8), P1: (0, 2)})
    state = state.with_version(
        NumberedWrite("elsewhere", 1), {"u": ""}, {TopicPartition("u", 0): (0, 9)}
    )
    assert {"early": 3, "late": 9, "elsewhere": 1} == versions(state.cut({P0: 8}))
    assert {"early": 3, "late": 8, "elsewhere": 1} == versions(state.cut({P0: 6}))
    assert {"early": 3, "late": 8, "elsewhere": 1} == versions(state.cut({P0: 4}))
    assert {"early": 3, "late": 8, "elsewhere": 1} == versions(state.cut({P1: 1}))
    assert {"early": 2, "elsewhere": 1} == versions(state.cut({P0: 3}))
    # A version before the lost one may have records where the last one has none.
    assert {"elsewhere": 1} == versions(state.cut({P0: 3, P1: 2}))
    assert state.spans == decode_spans(encode_spans(state.spans))


def test_a_write_of_unknown_span_counts_unless_a_cut_may_have_met_it() -> None:
    """An earlier version of segmentlog has noted no spans; a later span shows what is whole."""
    state = State(token="x", versions={("old", "t"): (4, 1), ("old", "u"): (4, 1)})
    assert {("old", "u"): (4, 1)} == state.cut({P0: 5}).versions
    state = state.with_version(NumberedWrite("new", 1), {"t": ""}, {P0: (5, 6)})
    assert {("old", "t"): (4, 1), ("old", "u"): (4, 1), ("new", "t"): (0, 0)} == {
        key: found if key[0] == "old" else (0, 0)
        for key, found in state.cut({P0: 5}).versions.items()
    }


def versions(state: State) -> dict[str, int]:
    """Versions by their names."""
    return {app_id: version for (app_id, _), (version, _) in state.versions.items()}


@pytest.mark.parametrize("mode", ["cut", "skip"])
@pytest.mark.parametrize("damage", ["middle", "all"])
@pytest.mark.parametrize("has_high_watermark", [True, False])
def test_a_write_that_a_recovery_loses_is_written_again_in_each_mode(
    tmp_path: Path, mode: str, damage: str, *, has_high_watermark: bool
) -> None:
    """A batch of it is damaged; a write after it stays where the damage alone is left out."""
    config = segmentlog.ProducerConfig(batch_size=1)
    table = pa.table({"value": [f"{i}" for i in range(10)]})
    with segmentlog.open_writer(
        tmp_path, "t", num_partitions=1, config=config, txn_app_id="job", txn_version=1
    ) as writer:
        writer.append(table)
    write(tmp_path, 7, app="other")
    (log,) = (tmp_path / "t-0").glob("*.log")
    data = bytearray(log.read_bytes())
    at, places = 0, []
    while int.from_bytes(data[at : at + 8]) < 10 and at < len(data):
        places.append(at + 65)
        at += 12 + int.from_bytes(data[at + 8 : at + 12])
    for place in places[1:2] if damage == "middle" else places:
        data[place] ^= 0xFF
    log.write_bytes(data)
    (tmp_path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (tmp_path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    if not has_high_watermark:
        (tmp_path / "replication-offset-checkpoint").unlink()
    segmentlog.recover(tmp_path, on_corrupt_batch=mode)
    with segmentlog.open_writer(
        tmp_path, "t", num_partitions=1, config=config, txn_app_id="job", txn_version=1
    ) as writer:
        writer.append(table)
    assert {f"{i}" for i in range(10)} <= {*values(tmp_path)}
    assert (mode == "skip") == ("other 7 0" in values(tmp_path))
    write(tmp_path, 7, app="other")
    assert 1 == values(tmp_path).count("other 7 0")


def test_only_writes_that_may_have_lost_records_are_forgotten() -> None:
    """Of a lost range before all known spans, nobody knows whose it was."""
    state = State(
        versions={("a", "t"): (3, 0), ("b", "t"): (5, 0), ("c", "u"): (2, 0)},
        spans={("a", "t"): {P0: (10, 20)}, ("b", "t"): {P0: (20, 30)}},
    )
    found = {
        lost: {
            key[0]: value[0] for key, value in state.without_offsets({P0: [lost]}).versions.items()
        }
        for lost in ((12, 14), (25, 26), (18, 22), (0, 4))
    }
    assert {
        (12, 14): {"a": 2, "b": 5, "c": 2},
        (25, 26): {"a": 3, "b": 4, "c": 2},
        (18, 22): {"a": 2, "c": 2},
        (0, 4): {"c": 2},
    } == found
