"""A directory that is looked at again: what is found, what is kept, and which calls that takes."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import ONE, write
from stores_here import serve, store_of

import segmentlog
from segmentlog.errors import (
    CorruptCheckpointError,
    LogChangedError,
    LogDirectoryError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from segmentlog.log.checkpoint import write_offsets
from segmentlog.model import ReadUpTo, TopicPartition
from segmentlog.reads import snapshot
from segmentlog.store import fingerprint as look
from segmentlog.store import readable
from segmentlog.testing.reference import Record, encode_batch

#: One record for each of two partitions.
ROWS = pa.table({"value": [b"0", b"1"], "partition": pa.array([0, 1], pa.int32())})
N_PARTITIONS = 20


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two topics of two partitions each, with one record in each partition."""
    for topic in ("a", "b"):
        write(tmp_path / "logs", ROWS, topic=topic, num_partitions=2)
    return tmp_path / "logs"


def looked_up(path: Path) -> segmentlog.LogDirectory:
    """The directory with all of its logs opened."""
    directory = segmentlog.open_log_dir(path)
    directory.end_offsets(directory.topic_partitions())
    return directory


def batch(offset: int, n_bytes: int = 1) -> bytes:
    """A batch of one record."""
    return encode_batch([Record(offset, 1, None, bytes(n_bytes))])


def put_checkpoint(directory: Path, ends: dict[TopicPartition, int]) -> None:
    """Replace the high watermarks as a broker does it."""
    lines = [f"{each.topic} {each.partition} {end}" for each, end in ends.items()]
    (directory / "new.tmp").write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    (directory / "new.tmp").replace(directory / HIGH_WATERMARK_CHECKPOINT)


def test_nothing_new_is_the_same_object(log_dir: Path) -> None:
    """A refresh returns the same object while nothing changes, however often it is called."""
    directory = looked_up(log_dir)

    assert all(directory.refresh() is directory for _ in range(3))
    assert all(directory.refresh(log_ends=True) is directory for _ in range(3))


def test_a_commit_is_found_and_other_logs_are_kept(log_dir: Path) -> None:
    """The earlier object shows the earlier moment."""
    directory = segmentlog.open_log_dir(log_dir)
    segments = {each: directory.log(*each).segments for each in directory.topic_partitions()}
    write(log_dir, ONE, topic="a", num_partitions=2)
    newer = directory.refresh()

    assert newer is not directory
    assert [3, 2] == [
        sum(log.end_offset() for log in newer if log.topic_partition.topic == topic)
        for topic in ("a", "b")
    ]
    assert newer.log("b", 0).segments is segments[TopicPartition("b", 0)]
    assert [1, 1] == [directory.log("a", partition).end_offset() for partition in (0, 1)]


def test_a_log_is_kept_over_views_that_did_not_open_it(log_dir: Path) -> None:
    """A poll that reads one partition does not make the next one list all others again."""
    directory = looked_up(log_dir)
    kept = directory.log("b", 1).segments
    for _ in range(3):
        write(log_dir, ONE, topic="a", num_partitions=2)
        directory = directory.refresh()

    assert kept is directory.log("b", 1).segments


def test_a_log_keeps_its_end_when_a_broker_starts(log_dir: Path) -> None:
    """Without the mark of a clean stop, indexes are no longer mapped."""
    directory = looked_up(log_dir)
    write(log_dir, ONE, topic="a", num_partitions=2)  # one end more, and a closed segment
    directory = directory.refresh()
    end = directory.log("b", 0).end
    (log_dir / ".kafka_cleanshutdown").unlink()
    newer = directory.refresh()

    assert end is newer.log("b", 0).end
    assert newer.log("b", 0).segments is not directory.log("b", 0).segments


@pytest.mark.parametrize("name", [HIGH_WATERMARK_CHECKPOINT, "recovery-point-offset-checkpoint"])
def test_a_checkpoint_with_the_same_bytes_is_nothing_new(log_dir: Path, name: str) -> None:
    """A broker replaces its checkpoints every few seconds, mostly with the same bytes."""
    directory = looked_up(log_dir)
    data = (log_dir / name).read_bytes()
    for _ in range(3):
        (log_dir / "new.tmp").write_bytes(data)
        (log_dir / "new.tmp").replace(log_dir / name)

        assert directory.refresh() is directory


def test_a_job_that_has_not_committed_is_nothing_new(log_dir: Path) -> None:
    """No reader reads the files of the job."""
    directory = looked_up(log_dir)
    with segmentlog.open_writer(log_dir, "a", num_partitions=2) as writer:
        writer.append(ROWS)

        assert directory.refresh() is directory


def test_a_directory_that_is_gone_is_the_error_of_an_opening(log_dir: Path) -> None:
    """Another file in its place is such an error, too."""
    directory = looked_up(log_dir)
    shutil.rmtree(log_dir)
    with pytest.raises(LogDirectoryError) as caught:
        directory.refresh()
    with pytest.raises(LogDirectoryError) as expected:
        segmentlog.open_log_dir(log_dir)
    log_dir.touch()
    with pytest.raises(LogDirectoryError, match="is a file"):
        directory.refresh()

    assert str(expected.value) == str(caught.value)


def test_a_damaged_checkpoint_is_found_and_so_is_its_repair(log_dir: Path) -> None:
    """The error comes with the reads that need the checkpoint."""
    directory = looked_up(log_dir)
    path = log_dir / HIGH_WATERMARK_CHECKPOINT
    data = path.read_bytes()
    path.write_bytes(b"?" * len(data))
    damaged = directory.refresh()
    with pytest.raises(CorruptCheckpointError):
        damaged.log("a", 0).end_offset()
    assert damaged.refresh() is damaged
    path.write_bytes(data)

    assert 1 == damaged.refresh().log("a", 0).end_offset()


def test_a_partition_that_is_lost_and_put_back(log_dir: Path) -> None:
    """The partition is missing between the two moves."""
    directory = looked_up(log_dir)
    (log_dir / "a-0").rename(log_dir.parent / "a-0")
    lost = directory.refresh()
    assert [TopicPartition("a", 0)] == [each.topic_partition for each in lost.missing_partitions()]
    (log_dir.parent / "a-0").rename(log_dir / "a-0")
    found = lost.refresh()

    with pytest.raises(UnknownTopicOrPartitionError):
        lost.log("a", 0)
    assert [] == found.missing_partitions()
    assert 1 == found.log("a", 0).end_offset()


def test_another_topic_of_the_name_is_not_taken_for_the_first(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an equal high watermark, and its directories may have the same inodes."""
    names = snapshot.list_inodes
    monkeypatch.setattr(snapshot, "list_inodes", lambda path: dict.fromkeys(names(path), 7))
    directory = looked_up(log_dir)
    first = directory.log("a", 0).known_topic_id
    segmentlog.delete_topic(log_dir, "a")
    write(log_dir, ROWS, topic="a", num_partitions=2)
    log = directory.refresh().log("a", 0)

    assert first != log.known_topic_id == log.topic_id
    assert 1 == log.scan().read_all().num_rows


def test_a_compacted_log_is_listed_again(tmp_path: Path) -> None:
    """The bounds stay the same; the cleaner's checkpoint shows the compaction."""
    rows = pa.table({"key": [b"k", b"k"], "value": [b"1", b"2"]})
    with segmentlog.open_writer(tmp_path, "a") as writer:
        writer.append(rows)
        writer.roll()
        writer.append(rows)
    write(tmp_path, ONE, topic="b")
    directory = looked_up(tmp_path)
    segments = directory.log("b", 0).segments
    how = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    segmentlog.compact(tmp_path, "a", settings=how)
    newer = directory.refresh()

    assert (tmp_path / CLEANER_OFFSET_CHECKPOINT).exists()
    assert newer.log("a", 0).size_bytes < directory.log("a", 0).size_bytes
    assert newer.log("b", 0).segments is segments


@pytest.mark.parametrize("log_ends", [False, True])
def test_a_brokers_append_is_found_by_a_look_at_log_ends(log_dir: Path, log_ends: bool) -> None:
    """It lies beyond the high watermark, which a read to the high watermark does not pass."""
    directory = looked_up(log_dir)
    with (log_dir / "a-0" / f"{0:020}.log").open("ab") as file:
        file.write(batch(1))
    newer = directory.refresh(log_ends=log_ends)

    assert 1 == newer.log("a", 0).end_offset()
    assert 1 + log_ends == newer.log("a", 0).end_offset(ReadUpTo.LOG_END)
    assert (newer is directory) == (not log_ends)


def test_a_new_segment_is_found_by_a_look_at_log_ends(log_dir: Path) -> None:
    """The earlier active segment is unchanged; the time of the directory shows the new one."""
    directory = looked_up(log_dir)
    (log_dir / "a-0" / f"{1:020}.log").write_bytes(batch(1))
    newer = directory.refresh(log_ends=True)

    assert 2 == newer.log("a", 0).end_offset(ReadUpTo.LOG_END)
    assert newer.log("b", 0).segments is directory.log("b", 0).segments


@pytest.mark.parametrize("promised", [None, 3])
def test_a_log_that_ends_by_its_files_is_looked_at_in_any_case(
    log_dir: Path, promised: int | None
) -> None:
    """It has no high watermark, or the copy of its files has not reached the high watermark."""
    ends = {TopicPartition("a", 0): promised} if promised else {}
    put_checkpoint(log_dir, ends)
    (log_dir / ".kafka_cleanshutdown").unlink()
    directory = looked_up(log_dir)
    for end in (2, 3):
        with (log_dir / "a-0" / f"{0:020}.log").open("ab") as file:
            file.write(batch(end - 1))
        directory = directory.refresh()

        assert end == directory.log("a", 0).end_offset()
    assert directory.refresh() is directory


def test_a_log_that_nobody_has_opened_is_listed_when_it_grows(log_dir: Path) -> None:
    """The opening has listed it, because no high watermark shows its end."""
    (log_dir / HIGH_WATERMARK_CHECKPOINT).unlink()
    directory = segmentlog.open_log_dir(log_dir)
    with (log_dir / "a-0" / f"{0:020}.log").open("ab") as file:
        file.write(batch(1))

    assert 2 == directory.refresh().log("a", 0).end_offset()


def test_a_kept_log_that_grows_is_listed_as_it_is_now(log_dir: Path) -> None:
    """An older listing, from the moment at which the log was kept, is not used."""
    (log_dir / HIGH_WATERMARK_CHECKPOINT).unlink()
    directory = looked_up(log_dir)
    for topic in ("a", "b"):
        with (log_dir / f"{topic}-0" / f"{0:020}.log").open("ab") as file:
            file.write(batch(1))
        directory = directory.refresh()

        assert 2 == directory.log(topic, 0).end_offset()


def test_a_removed_segment_of_a_kept_log_is_changed_and_not_missed(log_dir: Path) -> None:
    """A broker's retention moves no checkpoint.  The look at log ends finds it before the read."""
    (log_dir / "a-0" / f"{1:020}.log").write_bytes(batch(1))
    put_checkpoint(log_dir, {TopicPartition("a", 0): 2})
    directory = looked_up(log_dir)
    (log_dir / "a-0" / f"{0:020}.log").unlink()
    kept = directory.refresh()
    with pytest.raises(LogChangedError):
        kept.log("a", 0).scan(0, 2).read_all()

    assert kept is directory
    assert 1 == directory.refresh(log_ends=True).log("a", 0).scan().read_all().num_rows


def test_each_of_several_directories_is_looked_at(log_dir: Path, tmp_path: Path) -> None:
    """A change in one of them keeps the logs of the other."""
    other = tmp_path / "other"
    write(other, ONE, topic="c")
    directory = segmentlog.open_log_dir(log_dir, other)
    directory.end_offsets(directory.topic_partitions())
    segments = {each: directory.log(*each).segments for each in directory.topic_partitions()}
    write(other, ONE, topic="c")
    newer = directory.refresh()
    (other / "a-0").mkdir()
    doubled = newer.refresh()

    assert 2 == newer.log("c", 0).end_offset()
    assert newer.log("a", 0).segments is segments[TopicPartition("a", 0)]
    with pytest.raises(LogDirectoryError, match="leave out one of the two"):
        doubled.log("a", 0)
    assert doubled.log("b", 0).segments is segments[TopicPartition("b", 0)]


def test_a_partition_alone_and_a_file_alone_are_looked_at(log_dir: Path) -> None:
    """Both end by their high watermark, or by their bytes."""
    file = log_dir / "a-0" / f"{0:020}.log"
    (log_dir / HIGH_WATERMARK_CHECKPOINT).unlink()
    opened = [segmentlog.open_log_dir(path) for path in (file.parent, file)]
    assert [1, 1] == [each.log("a", 0).end_offset() for each in opened]
    assert opened == [each.refresh() for each in opened]
    with file.open("ab") as appended:
        appended.write(batch(1))
    newer = [each.refresh() for each in opened]

    assert [2, 2] == [each.log("a", 0).end_offset() for each in newer]
    shutil.rmtree(file.parent)
    for each in newer:
        with pytest.raises(LogDirectoryError):
            each.refresh()


def test_a_log_directory_that_becomes_a_partition_is_noticed(tmp_path: Path) -> None:
    """Its name has the form of a partition's."""
    path = tmp_path / "logs-1"
    write(path, ONE)
    directory = looked_up(path)
    (path / f"{0:020}.log").write_bytes(batch(0))

    assert [TopicPartition("logs", 1)] == directory.refresh().topic_partitions()


def test_a_store_is_asked_for_everything_again(
    log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times and inodes of a store prove nothing."""
    path = serve(monkeypatch, store_of(tmp_path), "bucket") + "/logs"
    directory = segmentlog.open_log_dir(path)
    write(log_dir, ONE, topic="a", num_partitions=2)
    newer = directory.refresh()

    assert 3 == sum(newer.log("a", each).end_offset() for each in (0, 1))
    assert newer.refresh() is not newer


class Coarse:
    """A file system whose clock stands still."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        real, now = readable._status, time.time_ns()
        patch.setattr(
            readable,
            "_status",
            lambda found, **how: real(found, **how)._replace(modified_ns=now, changed_ns=now),
        )


def test_a_checkpoint_that_changes_in_the_step_of_the_look_is_found(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its inode, its size and its time."""
    Coarse(monkeypatch)
    directory = looked_up(log_dir)
    path = log_dir / HIGH_WATERMARK_CHECKPOINT
    for end in (b"0", b"1", b"0"):
        with path.open("r+b") as file:
            data = file.read()
            file.seek(data.index(b"a 0 "))
            file.write(b"a 0 " + end)
        directory = directory.refresh()

        assert int(end) == directory.log("a", 0).end_offset()


def test_a_segment_that_changes_in_the_step_of_the_look_is_found(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length is the same: another batch has replaced the last batch."""
    Coarse(monkeypatch)
    path = log_dir / "a-0" / f"{0:020}.log"
    with path.open("ab") as file:
        file.write(batch(1))
    directory = looked_up(log_dir)
    with path.open("r+b") as file:
        file.seek(-len(batch(1)), os.SEEK_END)
        file.write(batch(6))
    newer = directory.refresh(log_ends=True)

    assert 7 == newer.log("a", 0).end_offset(ReadUpTo.LOG_END)
    assert newer.refresh(log_ends=True) is newer


class Calls:
    """Paths with which a process looks at files, opens them and lists directories."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.looks: list[str] = []
        self.opened: list[str] = []
        self.listed: list[str] = []
        for name, made in (
            ("stat", self.looks),
            ("lstat", self.looks),
            ("open", self.opened),
            ("scandir", self.listed),
            ("listdir", self.listed),
        ):
            patch.setattr(os, name, self._noting(getattr(os, name), made))

    def _noting(self, real: Callable[..., object], made: list[str]) -> Callable[..., object]:
        def call(path: str, *arguments: object, **keywords: object) -> object:
            made.append(os.fspath(path))
            return real(path, *arguments, **keywords)

        return call

    def clear(self) -> None:
        """Forget them."""
        for made in (self.looks, self.opened, self.listed):
            made.clear()

    def partitions(self) -> set[str]:
        """Names of the partitions that were touched."""
        made = {*self.looks, *self.opened, *self.listed}
        return {part for path in made for part in Path(path).parts if part.startswith("many-")}


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A broker's directory of twenty partitions of two segments each."""
    for partition in range(N_PARTITIONS):
        place = tmp_path / f"many-{partition}"
        place.mkdir()
        for base in (0, 1):
            (place / f"{base:020}.log").write_bytes(batch(base))
    put_checkpoint(tmp_path, ends_of(2))
    return tmp_path


def ends_of(end: int, n_moved: int = 0) -> dict[TopicPartition, int]:
    """High watermarks; those of some partitions are one less."""
    return {TopicPartition("many", n): end - (n < n_moved) for n in range(N_PARTITIONS)}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Calls of the system, where the clock of the file system is as fine as ours."""
    monkeypatch.setattr(look, "_STEP_NS", 0)
    monkeypatch.setattr(look, "_SERVERS_DIFFER_NS", 0)
    with pytest.MonkeyPatch.context() as patch:
        yield Calls(patch)


def test_a_refresh_without_a_change_takes_six_looks(many: Path, calls: Calls) -> None:
    """The looks are at the directory, the state, and four checkpoints."""
    directory = looked_up(many)
    directory.refresh()
    calls.clear()

    assert directory.refresh() is directory
    assert 6 == len(calls.looks)
    assert {many, many / HIGH_WATERMARK_CHECKPOINT} <= {*map(Path, calls.looks)}
    assert [] == calls.listed
    assert len(calls.opened) in {0, 2}  # a network client asks its server at an open


def test_the_same_bytes_of_a_checkpoint_take_one_listing(many: Path, calls: Calls) -> None:
    """Only names at the top of the directory are listed, and no partition is touched."""
    directory = looked_up(many)
    put_checkpoint(many, ends_of(2))
    calls.clear()

    assert directory.refresh() is directory
    assert [str(many)] == calls.listed
    assert set() == calls.partitions()


def test_only_partitions_that_have_moved_are_opened(many: Path, calls: Calls) -> None:
    """The refresh opens none of them, and the look-up of all ends only those that have moved."""
    directory = looked_up(many)
    put_checkpoint(many, ends_of(2, n_moved=3))
    calls.clear()
    newer = directory.refresh()
    assert set() == calls.partitions()
    ends = newer.end_offsets(newer.topic_partitions())

    assert ends_of(2, n_moved=3) == ends
    assert {f"many-{n}" for n in range(3)} == calls.partitions()


def test_a_look_at_log_ends_takes_two_looks_a_partition(many: Path, calls: Calls) -> None:
    """The looks are at its directory and at its active segment."""
    directory = looked_up(many)
    directory.refresh(log_ends=True)
    calls.clear()

    assert directory.refresh(log_ends=True) is directory
    active = [many / f"many-{n}" / f"{1:020}.log" for n in range(N_PARTITIONS)]
    expected = {*active, *(each.parent for each in active)}
    assert expected == {Path(each) for each in calls.looks if "many-" in each}
    assert 6 + 2 * N_PARTITIONS == len(calls.looks)
    assert [] == calls.listed


def test_a_recovery_point_beyond_the_log_end_is_a_loss_for_the_later_directory_alone(
    log_dir: Path,
) -> None:
    """It shows that segments are lost; the earlier directory keeps the end of its moment."""
    (log_dir / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
    known = segmentlog.open_log_dir(log_dir).topic_partitions()[0]
    end = segmentlog.open_log_dir(log_dir).log(*known).log_end_offset
    write_offsets(str(log_dir), RECOVERY_POINT_CHECKPOINT, {known: 0})
    put_checkpoint(log_dir, {known: end + 20})
    for is_asked in (True, False):
        write_offsets(str(log_dir), RECOVERY_POINT_CHECKPOINT, {known: 0})
        first = segmentlog.open_log_dir(log_dir)
        log = first.log(*known)
        assert log.log_end_offset == end
        if is_asked:
            assert log.end_offset() == end
        write_offsets(str(log_dir), RECOVERY_POINT_CHECKPOINT, {known: end + 10})
        later, fresh = first.refresh(), segmentlog.open_log_dir(log_dir)
        assert fresh.log(*known).lost_offsets == later.log(*known).lost_offsets is not None
        assert fresh.log(*known).end_offset() == later.log(*known).end_offset()
        assert log.end_offset() == end
