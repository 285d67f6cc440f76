"""Large staged files are moved into the log as segments, and reads return the same rows."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crashing import Crash, crash_at, cut_loop
from large_writes import LARGE as CONFIG
from large_writes import pieces
from namespaces import mounted as mounted_on
from plain_writes import numbers, write
from soundness import assert_tidy

import segmentlog
from segmentlog.errors import StagedFileError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn.guard import recover_commits
from segmentlog.writes import commit
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob


@pytest.fixture(params=["tmpfs", "bind"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A log directory with a partition on a separate mount, of this file system or another.

    A bind mount has the device of the directory around it, but no file can be renamed into it.
    """
    place, other = tmp_path / "logs" / "t-0", tmp_path / "other"
    write(place.parent, *pieces(0, 50), *pieces(0, 50, 1), num_partitions=2, config=CONFIG)
    place.rename(other)
    place.mkdir()
    what = ["-t", "tmpfs", "tmpfs"] if request.param == "tmpfs" else ["--bind", str(other)]
    with mounted_on(place, *what):
        if request.param == "tmpfs":
            shutil.copytree(other, place, dirs_exist_ok=True)
        yield place.parent


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Base offsets of the moved segments, in the order of the moves."""
    found: list[int] = []
    real = commit.move_segment

    def seen(*arguments: Any, **keywords: Any) -> object:
        sizes = real(*arguments, **keywords)
        found.append(sizes.base_offset)
        return sizes

    monkeypatch.setattr(commit, "move_segment", seen)
    return found


def test_files_are_moved_and_read_as_if_copied(tmp_path: Path, moved: list[int]) -> None:
    """Moved segments lie between small jobs, in two partitions, with the offsets of copies."""
    write(tmp_path / "a", *pieces(0, 50), num_partitions=2, config=CONFIG)
    write(tmp_path / "a", *pieces(50, 9000), *pieces(0, 9000, 1), num_partitions=2, config=CONFIG)
    write(tmp_path / "a", *pieces(9050, 50), num_partitions=2, config=CONFIG)
    n_moved = len(moved)
    copied = TopicConfig(segment_bytes=1 << 30)
    config = ProducerConfig(copied, batch_size=9_000, buffer_memory=80_000)
    write(tmp_path / "b", *pieces(0, 9100), *pieces(0, 9000, 1), num_partitions=2, config=config)

    assert n_moved > 4
    assert n_moved == len(moved)
    for partition in (0, 1):
        one, other = (
            segmentlog.open_log_dir(tmp_path / name).log("t", partition) for name in "ab"
        )
        columns = ["offset", "value"]
        assert one.scan(columns=columns).read_all() == other.scan(columns=columns).read_all()
        assert all(segment.size <= 400_000 for segment in one.segments)
        assert len(one.segments) > 2
    assert_tidy(tmp_path / "a")
    assert_tidy(tmp_path / "b")


def test_a_partition_on_a_mount_of_its_own_is_copied_to(
    mounted: Path, tmp_path: Path, moved: list[int]
) -> None:
    """Files cannot be renamed from mount to mount. Files of the other partition are moved."""
    write(mounted, *pieces(50, 9000), *pieces(50, 9000, 1), num_partitions=2, config=CONFIG)
    n_moved = len(moved)
    write(mounted, *pieces(9050, 50), *pieces(9050, 50, 1), num_partitions=2, config=CONFIG)
    copied = ProducerConfig(
        TopicConfig(segment_bytes=1 << 30), batch_size=9_000, buffer_memory=80_000
    )
    write(tmp_path / "b", *pieces(0, 9100), num_partitions=2, config=copied)

    assert n_moved > 2
    assert n_moved == len(moved)
    for partition in (0, 1):
        assert [*range(9100)] == numbers(mounted)[partition]
    one, other = (segmentlog.open_log_dir(path).log("t", 0) for path in (mounted, tmp_path / "b"))
    columns = ["offset", "value"]
    assert one.scan(columns=columns).read_all() == other.scan(columns=columns).read_all()
    assert all(segment.size <= 400_000 for segment in one.segments)
    assert ["segmentlog.state"] == [path.name for path in mounted.glob("segmentlog.*")]
    assert_tidy(mounted)


def test_the_first_segment_of_a_new_log_is_moved_into_its_place(
    tmp_path: Path, moved: list[int]
) -> None:
    """The moved segment replaces the empty one. Its batches already have the right offsets."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), CONFIG, topic="t"))
    stager = job.stager(0)
    for batch in pieces(0, 2000):
        stager.add(batch)
    extents = stager.finish()
    long_ago = 1_600_000_000_000_000_000
    os.utime(tmp_path / next(iter(extents)).file.name, ns=(long_ago, long_ago))
    job.commit([extents])

    assert moved == [0]
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    segment = Path(log.segments[0].path)
    assert long_ago == segment.stat().st_mtime_ns  # never written to again
    assert [*range(2000)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


def test_a_file_in_which_a_segment_would_roll_is_copied(tmp_path: Path, moved: list[int]) -> None:
    """The segment would roll by time, because its records are days apart."""
    config = ProducerConfig(
        TopicConfig(segment_bytes=400_000, segment_ms=1_000_000),
        batch_size=9_000,
        buffer_memory=80_000,
        use_timestamps=True,
    )

    def days() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(pieces(0, 7000)):
            micros = pa.array([number * 10**9 * 3] * batch.num_rows, pa.timestamp("us", "UTC"))
            yield batch.append_column("timestamp", micros)

    write(tmp_path, *days(), num_partitions=2, config=config)
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)

    assert [] == moved
    assert len(log.segments) > 5
    assert [*range(7000)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


@pytest.mark.parametrize("damage", ["shorter", "other", "header", "delta", "copied", "magic"])
def test_a_staged_file_that_is_not_what_the_task_wrote(tmp_path: Path, damage: str) -> None:
    """The file is refused, and no row becomes visible."""
    write(tmp_path, *pieces(0, 50), num_partitions=2, config=CONFIG)
    job = WriteJob.begin(WriteRequest(str(tmp_path), CONFIG, topic="t"))
    stager = job.stager(0)
    for batch in pieces(50, 20 if damage in {"copied", "magic"} else 5000):
        stager.add(batch)
    extents = stager.finish()
    own = max(extents, key=lambda extent: extent.end)
    path = tmp_path / own.file.name
    data = bytearray(path.read_bytes())
    if damage == "shorter":
        del data[-1:]
    elif damage == "header":
        data[8] = 0x7F
    elif damage == "copied":  # batches that are copied are all read
        data[-1] ^= 1
    elif damage == "magic":  # a format of a later Kafka
        data[own.start + 16] = 3
    elif damage == "delta":  # of the first of some batches: as if it ended after the second
        data[24] ^= 1
    else:
        data = bytearray(len(data))
    path.write_bytes(data)
    with pytest.raises(StagedFileError, match="run the job again") as caught:
        job.commit([extents])
    assert own.file.name in str(caught.value)
    job.abort()

    assert [*range(50)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


@cut_loop
def test_a_crash_at_every_step_of_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: list[int], every: int
) -> None:
    """The job is whole or absent, and the next writer continues.

    The logs are new, old, or moved to before.
    """
    outcomes, done = set(), set()
    for number in range(0, 1000, every):
        directory, kind = tmp_path / str(number), number % 3
        first = 50 if kind else 0
        write(directory, *pieces(0, first), num_partitions=2, config=CONFIG)
        job = WriteJob.begin(WriteRequest(str(directory), CONFIG, topic="t", num_partitions=2))
        # Another job commits in between, and takes the place for which the batches were staged.
        n_between = 100 if kind == 2 else 0
        stager = job.stager(0)
        for batch in (*pieces(first + n_between, 4000), *pieces(0, 50, 1)):
            stager.add(batch)
        extents = stager.finish()
        if n_between:
            write(directory, *pieces(first, n_between), num_partitions=2, config=CONFIG)
            first += n_between
        with monkeypatch.context() as patch:
            crash_at(patch, number)
            try:
                job.commit([extents])
                done.add(kind)
            except Crash:
                pass
        seen = len(numbers(directory)[0]), len(numbers(directory)[1])
        assert seen in {(first, 0), (first + 4000, 50)}, number
        with DirectoryLock(str(directory)):
            recover_commits(str(directory))
        assert seen == (len(numbers(directory)[0]), len(numbers(directory)[1])), number
        write(directory, *pieces(seen[0], 10), num_partitions=2, config=CONFIG)
        assert [*range(seen[0] + 10)] == numbers(directory)[0], number
        outcomes.add((kind, seen))
        job.abort()
        assert_tidy(directory)
        if len(done) == 3:
            break
    assert len(outcomes) == 6
    assert len(moved) * every > 30


def test_files_belong_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """Otherwise a broker that runs as another user could not open them."""
    if os.geteuid():
        pytest.skip("only root can give files away")
    os.chown(tmp_path, 1234, 2345)
    write(tmp_path, *pieces(0, 3000), num_partitions=2, config=CONFIG)

    made = [*tmp_path.rglob("*")]
    assert len(made) > 10
    assert {(1234, 2345)} == {(path.stat().st_uid, path.stat().st_gid) for path in made}
