"""Logs whose last segments are gone, although a high watermark promises their records."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import write
from typer.testing import CliRunner

import segmentlog
from segmentlog import IsolationLevel, ReadUpTo
from segmentlog.errors import LogDirectoryError, UnsupportedFormatError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.tools.cli import app
from segmentlog.writes.config import ProducerConfig

pytestmark = pytest.mark.linux

SMALL = ProducerConfig(TopicConfig(segment_bytes=300), batch_size=200)
N = 40


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A topic with a log of several segments, and a small one."""
    rows = pa.table(
        {
            "value": [b"%d" % i * 20 for i in range(N)] + [b"x"],
            "partition": pa.array([0] * N + [1], pa.int32()),
        }
    )
    write(tmp_path, rows, config=SMALL, num_partitions=2)
    return tmp_path


def lose_last_segment(directory: Path, *, keeps_indexes: bool = True) -> int:
    """Remove the last ``.log`` file of partition 0; the offset at which the log ends then."""
    last = max((directory / "t-0").glob("*.log"))
    last.unlink()
    if not keeps_indexes:
        for path in (directory / "t-0").glob(f"{last.stem}.*"):
            path.unlink()
    return int(last.stem)


def lose_cleanly(directory: Path) -> int:
    """The mark of a clean stop vouches for the lost segment."""
    return lose_last_segment(directory, keeps_indexes=False)


def lose_with_index(directory: Path) -> int:
    """Only the index files of the lost segment are left."""
    (directory / ".kafka_cleanshutdown").unlink()
    (directory / "recovery-point-offset-checkpoint").unlink()
    return lose_last_segment(directory)


def lose_synced(directory: Path) -> int:
    """Only the recovery point shows that the lost segment was on the disk."""
    (directory / ".kafka_cleanshutdown").unlink()
    return lose_last_segment(directory, keeps_indexes=False)


Lose = Callable[[Path], int]
WAYS = pytest.mark.parametrize("lose", [lose_cleanly, lose_with_index, lose_synced])


def read_log(directory: Path, **how: object) -> int:
    """Number of rows of the log."""
    return segmentlog.open_log_dir(directory).log("t", 0).scan(**how).read_all().num_rows  # type: ignore[arg-type]


def read_dataset(directory: Path, **how: object) -> int:
    """Number of rows of a dataset of the log; the other log has one row."""
    return segmentlog.dataset(directory, topics="t", **how).count_rows() - 1  # type: ignore[arg-type]


def read_table(directory: Path, **how: object) -> int:
    """Number of rows of the log in a table."""
    return segmentlog.read(directory, "t", **how).num_rows - 1  # type: ignore[arg-type]


READS = [read_log, read_dataset, read_table]


@WAYS
@pytest.mark.parametrize("read", READS)
def test_a_read_fails_and_names_the_offsets(
    log_dir: Path, lose: Lose, read: Callable[..., int]
) -> None:
    """Records that were acknowledged must not be left out in silence."""
    end = lose(log_dir)

    for how in ({}, {"isolation_level": IsolationLevel.READ_COMMITTED}):
        with pytest.raises(
            LogDirectoryError, match=rf"offsets \[{end}, {N}\) are missing"
        ) as told:
            read(log_dir, **how)
        assert "fail_on_data_loss=False" in str(told.value)
    assert end == read(log_dir, read_up_to=ReadUpTo.LOG_END)


@WAYS
@pytest.mark.parametrize("read", READS)
def test_a_read_that_allows_data_loss_returns_the_rest_and_warns(
    log_dir: Path, lose: Lose, read: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    """One warning names the offsets."""
    end = lose(log_dir)

    for how in ({}, {"isolation_level": IsolationLevel.READ_COMMITTED}):
        caplog.clear()
        assert end == read(log_dir, fail_on_data_loss=False, **how)
        (warning,) = caplog.messages
        assert f"[{end}, {N})" in warning


def test_bounds_of_a_read_that_allows_data_loss(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Offsets are counted from the last record that is there, and there is no row after it."""
    end = lose_cleanly(log_dir)
    log = segmentlog.open_log_dir(log_dir).log("t", 0)

    assert (end - 3, end) == log.bounds(last=3, fail_on_data_loss=False)
    assert (5, end) == log.bounds(5, N, fail_on_data_loss=False)
    assert (end, end) == log.bounds(N - 1, N, fail_on_data_loss=False)
    assert 3 == len(caplog.messages)
    assert (5, end) == log.bounds(5, end, fail_on_data_loss=False)
    assert (5, end - 1) == log.bounds(5, end - 1, fail_on_data_loss=False)
    assert 3 == len(caplog.messages)
    assert end == log.scan(0, end).read_all().num_rows


def test_records_that_were_never_synced_may_be_missing_after_a_crash(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No file shows that they were on the disk: the read ends before them with a warning."""
    (log_dir / "recovery-point-offset-checkpoint").unlink()
    (log_dir / ".kafka_cleanshutdown").unlink()
    end = lose_last_segment(log_dir, keeps_indexes=False)

    assert end == read_log(log_dir)
    (warning,) = caplog.messages
    assert f"the high watermark is {N}, but the log ends at {end}" in warning


def test_a_segment_that_is_read_alone_lacks_nothing(log_dir: Path) -> None:
    """The segments after it belong to the same log, and are not part of the read."""
    for is_clean in (True, False):
        if not is_clean:
            (log_dir / ".kafka_cleanshutdown").unlink()
        first, second, *_ = sorted((log_dir / "t-0").glob("*.log"))
        log = segmentlog.open_log_dir(first).log("t", 0)

        assert log.lost_offsets is None
        assert int(second.stem) == log.scan().read_all().num_rows


@WAYS
def test_the_tools_report_the_offsets(log_dir: Path, lose: Lose) -> None:
    """`verify` and `describe` end with status 1; the rows of `describe` are complete."""
    end = lose(log_dir)
    verified = CliRunner().invoke(app, ["verify", str(log_dir), "--json"])
    described = CliRunner().invoke(app, ["describe", str(log_dir), "--json"])
    findings = [json.loads(line) for line in verified.stdout.splitlines()[:-1]]
    (found,) = [each for each in findings if each["kind"] == "high-watermark"]
    rows = [json.loads(line) for line in described.stdout.splitlines()]

    assert (1, 1) == (verified.exit_code, described.exit_code)
    assert ("error", "t", 0, end) == tuple(
        found[name] for name in ("severity", "topic", "partition", "offset")
    )
    assert f"offsets [{end}, {N}) are missing" in found["message"]
    assert [end, 1] == [row["logEndOffset"] for row in rows]
    assert f"offsets [{end}, {N}) are missing" in rows[0]["problem"]
    assert rows[1]["problem"] is None


def test_a_writer_says_that_it_gives_lost_offsets_again(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that starts on such a log lowers its high watermark in silence."""
    end = lose_cleanly(log_dir)
    write(log_dir, pa.table({"value": [b"new"], "partition": pa.array([0], pa.int32())}))

    (warning,) = caplog.messages
    assert f"offsets [{end}, {N}) were below the high watermark" in warning
    assert end + 1 == segmentlog.open_log_dir(log_dir).log("t", 0).log_end_offset


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_damaged_last_batch_is_damage_and_no_lost_segment(
    log_dir: Path, *, is_clean: bool
) -> None:
    """A flipped bit in its magic hides how many records it has. The read reports the batch."""
    if not is_clean:
        (log_dir / ".kafka_cleanshutdown").unlink()
    last = max((log_dir / "t-0").glob("*.log"))
    damaged = bytearray(last.read_bytes())
    damaged[16] ^= 32
    last.write_bytes(damaged)
    log = segmentlog.open_log_dir(log_dir).log("t", 0)

    assert log.lost_offsets is None
    with pytest.raises(UnsupportedFormatError, match="magic"):
        log.scan().read_all()
