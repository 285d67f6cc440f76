"""An unfinished commit is finished or undone, even if files beside its logs are lost."""

import contextlib
import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from crashing import CALLS, READS, Crash, Forward, around_calls, cut_loop, fail_at
from typer.testing import CliRunner

import segmentlog
from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.tools.cli import app
from segmentlog.txn.guard import list_guards
from segmentlog.txn.state import STATE_FILE

CONFIG = segmentlog.ProducerConfig(
    batch_size=1, topic_config=TopicConfig(segment_bytes=200, index_interval_bytes=1)
)


def write(directory: Path, values: list[bytes]) -> None:
    """Write rows in several segments."""
    with segmentlog.open_writer(directory, "t", config=CONFIG) as writer:
        writer.append(pa.table({"key": values, "value": values}))


def values(directory: Path) -> list[bytes]:
    """The values that a reader finds."""
    table = segmentlog.open_log_dir(directory).log("t", 0).scan().read_all()
    found: list[bytes] = table["value"].to_pylist()
    return found


@pytest.fixture(params=["undecided", "decided"])
def unfinished(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A directory with a commit that a crash has cut short, and the values of its log."""
    before, after = [b"before"] * 5, [b"after"] * 5
    write(tmp_path, before)
    is_dead = False

    def around(name: str, forward: Forward) -> object:
        nonlocal is_dead
        if name == "rename" and str(forward.args[1]).endswith(STATE_FILE):
            if request.param == "decided":
                forward()
            is_dead = True
        if is_dead:
            raise Crash
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        with pytest.raises(Crash):
            write(tmp_path, after)
    assert list_guards(str(tmp_path))
    return tmp_path, before + after if request.param == "decided" else before


def by_append(directory: Path) -> None:
    """An append without rows."""
    write(directory, [])


def by_retention(directory: Path) -> None:
    """`segmentlog.retain`, which removes nothing."""
    segmentlog.retain(directory, settings={"retention.ms": "-1"})


def by_compaction(directory: Path) -> None:
    """`segmentlog.compact`, of a log without anything to clean."""
    segmentlog.compact(directory, settings={"cleanup.policy": "compact", "segment.bytes": "200"})


def by_delete_records(directory: Path) -> None:
    """`segmentlog.delete_records` from the log start."""
    segmentlog.delete_records(directory, "t", 0, offset=0)


def by_recover(directory: Path) -> None:
    """`segmentlog recover`; its status is 3 if a log has lost acknowledged records."""
    result = CliRunner().invoke(app, ["recover", str(directory)])
    assert result.exit_code in {0, 3}, result.output


MENDS = [by_append, by_retention, by_compaction, by_delete_records, by_recover]


@pytest.mark.parametrize(
    "harm", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["missing", "cut"]
)
@pytest.mark.parametrize("lost", ["*.index", "*.timeindex"])
@pytest.mark.parametrize("mend", MENDS, ids=lambda each: each.__name__)
def test_indexes_that_are_lost_meanwhile_do_not_stand_in_the_way(
    unfinished: tuple[Path, list[bytes]],
    mend: Callable[[Path], None],
    lost: str,
    harm: Callable[[Path], object],
) -> None:
    """The indexes are built again, and every later command works."""
    directory, expected = unfinished
    for path in sorted((directory / "t-0").glob(lost)):
        harm(path)
    mend(directory)
    if mend is not by_compaction:  # it keeps the last record of each key
        assert values(directory) == expected
    assert not list_guards(str(directory))
    write(directory, [b"more"])
    assert values(directory)[-1] == b"more"
    result = CliRunner().invoke(app, ["verify", str(directory)])
    assert result.exit_code == 0, result.output


@cut_loop
@pytest.mark.parametrize("mend", [by_append, by_retention])
def test_a_read_that_fails_leaves_the_recovery_to_the_next_writer(
    unfinished: tuple[Path, list[bytes]],
    mend: Callable[[Path], None],
    every: int,
    tmp_path: Path,
) -> None:
    """A failing disk is not taken for a missing file, at any call.

    An undo that left out a partition removed the guard, and the records became part of the log.
    """
    left, expected = unfinished
    for number in range(6, 10_000, every):
        directory = tmp_path / f"copy-{number}"
        shutil.copytree(left, directory, ignore=shutil.ignore_patterns("copy-*"))
        with pytest.MonkeyPatch.context() as patch:
            made = fail_at(patch, number, errno.EIO, is_final=False, calls=READS)
            with contextlib.suppress(OSError, SegmentLogError):
                mend(directory)
        log = segmentlog.open_log_dir(directory).log("t", 0)
        assert values(directory) == expected, number
        assert bool(list_guards(str(directory))) or log.log_end_offset == len(expected), number
        by_append(directory)
        assert values(directory) == expected, number
        shutil.rmtree(directory)
        if len(made) < number:  # no call has failed
            break
    assert number > 20


@pytest.mark.parametrize("unfinished", ["undecided"], indirect=True)
def test_a_log_that_is_lost_meanwhile_is_refused(
    unfinished: tuple[Path, list[bytes]],
) -> None:
    """Synced records are missing.

    Writers name the file, and only `segmentlog recover` continues.
    """
    directory, expected = unfinished
    intent = list_guards(str(directory))[0].intent()
    assert intent
    (directory / "t-0" / f"{intent.partitions[0].sizes.base_offset:020d}.log").unlink()
    with pytest.raises(LogDirectoryError, match=r"is missing, and had \d+ bytes"):
        by_append(directory)
    by_recover(directory)
    assert values(directory) == expected[: len(values(directory))]
    write(directory, [b"more"])
