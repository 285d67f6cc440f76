"""Compaction as a Spark job: in the driver's threads, and in executors of a Connect server."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compaction.batches import lay_out, records_of
from pyspark.sql import SparkSession

import pyspark_segmentlog
import segmentlog
from pyspark_segmentlog import compaction
from segmentlog.errors import ChecksumMismatchError, LogLockedError
from segmentlog.files.checkpoint import read_offsets
from segmentlog.files.lock import DirectoryLock
from segmentlog.files.names import CLEANER_OFFSET_CHECKPOINT

pytestmark = pytest.mark.linux

COMPACT = {"cleanup.policy": "compact"}
N = 5


def lay_out_logs(directory: Path) -> None:
    """Logs of some partitions; each has closed segments and an active one."""
    for partition in range(N):
        segments = {
            0: [records_of(0, (b"a", b"1"), (b"b", b"%d" % partition), (b"a", b"2"))],
            3: [records_of(3, (b"a", b"3")), records_of(4, (b"c", b"4"))],
            5: [records_of(5, (b"a", b"5"))],
        }
        lay_out(directory, segments, f"t-{partition}")


def offsets_of(directory: Path, partition: int) -> list[int]:
    """Offsets that a reader finds."""
    log = segmentlog.open_log_dir(directory).log("t", partition)
    return [int(each) for each in log.scan(columns=["offset"]).read_all()["offset"].to_pylist()]


_LOCK = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def is_locked_by_another(directory: Path) -> bool:
    """Whether a process that locks the whole file, as a broker does, is kept out."""
    command = [sys.executable, "-c", _LOCK, str(directory / ".lock")]
    return bool(subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode)


def test_each_task_compacts_a_partition(any_spark: SparkSession, tmp_path: Path) -> None:
    """The same as without Spark; nothing is left, and nothing is due any more."""
    for name in ("here", "spark"):
        (tmp_path / name).mkdir()
        lay_out_logs(tmp_path / name)
    expected = segmentlog.compact(tmp_path / "here", settings=COMPACT)
    found = pyspark_segmentlog.compact(any_spark, tmp_path / "spark", settings=COMPACT)

    assert N == len(found)
    assert expected == found
    for partition in range(N):
        assert [1, 3, 4, 5] == offsets_of(tmp_path / "spark", partition)
    checkpoints = [
        read_offsets(str(tmp_path / name), CLEANER_OFFSET_CHECKPOINT) for name in ("here", "spark")
    ]
    assert N == len(checkpoints[0])
    assert checkpoints[0] == checkpoints[1]
    assert [] == pyspark_segmentlog.compact(any_spark, tmp_path / "spark", settings=COMPACT)


def test_a_damaged_partition_does_not_hold_the_others_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It stays as it was, and the error is that of the engine."""
    lay_out_logs(tmp_path)
    path = tmp_path / "t-1" / f"{0:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ChecksumMismatchError, match="t-1"):
        pyspark_segmentlog.compact(spark, tmp_path, settings=COMPACT)

    assert {0, 2, 3, 4} == {
        each.partition for each in read_offsets(str(tmp_path), CLEANER_OFFSET_CHECKPOINT)
    }
    assert [1, 3, 4, 5] == offsets_of(tmp_path, 2)
    assert [] == list(tmp_path.glob("*/*.cleaned"))


def test_a_directory_that_is_in_use(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before any task runs; the lock is held while tasks run."""
    lay_out_logs(tmp_path)
    with DirectoryLock(str(tmp_path)), pytest.raises(LogLockedError):
        pyspark_segmentlog.compact(spark, tmp_path, settings=COMPACT)

    run, kept_out = compaction._run, []

    def watched(*given: Any) -> Any:
        kept_out.append(is_locked_by_another(tmp_path))
        outcomes = run(*given)
        kept_out.append(is_locked_by_another(tmp_path))
        return outcomes

    monkeypatch.setattr(compaction, "_run", watched)
    pyspark_segmentlog.compact(spark, tmp_path, settings=COMPACT)
    assert [True, True, False] == [*kept_out, is_locked_by_another(tmp_path)]
