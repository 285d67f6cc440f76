"""Disks that are full or fail: no job is visible in part, and the next writer succeeds."""

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from crashing import act_at, cut_loop, fail_at
from namespaces import mounted
from soundness import assert_settled

import segmentlog
from segmentlog.errors import CommitInDoubtError, SegmentLogError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import BATCH_SIZE
from segmentlog.txn.guard import list_guards
from segmentlog.writes import commit
from segmentlog.writes.config import ProducerConfig

N_PARTITIONS = 2


def rows_of_job(job: int, n_rows: int, n_bytes: int) -> pa.Table:
    """The rows of a job, which contain its number, distributed to the partitions in turn."""
    values = [b"%d" % job + b" " * n_bytes] * n_rows
    partitions = pa.array([i % N_PARTITIONS for i in range(n_rows)], pa.int32())
    return pa.table({"value": pa.array(values, pa.binary()), "partition": partitions})


class Kind(NamedTuple):
    """A way to write jobs, with sizes in bytes. Each job has some batches."""

    segment_bytes: int
    batch_size: int
    n_bytes: int  # of a value
    buffer_memory: int = 1 << 20

    @property
    def config(self) -> ProducerConfig:
        """Settings of the writer."""
        return ProducerConfig(
            TopicConfig(segment_bytes=self.segment_bytes),
            batch_size=self.batch_size,
            buffer_memory=self.buffer_memory,
        )


KINDS = {
    "rolled": Kind(600, 300, 10),
    "held": Kind(1 << 20, 300, 10),
    "copied": Kind(1 << 20, 300, 10, buffer_memory=1000),
    "moved": Kind(60_000, 17_000, 2000, buffer_memory=60_000),
}


def write_job(directory: Path, job: int, kind: Kind, n_rows: int = 40) -> None:
    """Write one job."""
    with segmentlog.open_writer(
        directory, "t", num_partitions=N_PARTITIONS, config=kind.config
    ) as writer:
        writer.append(rows_of_job(job, n_rows, kind.n_bytes))


def jobs(directory: Path) -> list[int]:
    """Jobs that a reader sees. Each has all of its rows in all partitions."""
    opened = segmentlog.open_log_dir(directory)
    found = []
    for partition in range(N_PARTITIONS):
        values = opened.log("t", partition).scan(columns=["value"]).read_all()["value"]
        found.append(Counter(map(int, values.to_pylist())))

    assert all(each == found[0] for each in found)
    return list(found[0])


def names_a_path(error: BaseException, directory: Path) -> bool:
    """Whether the error is typed, and its message contains the path of the directory."""
    return isinstance(error, OSError | SegmentLogError) and str(directory) in str(error)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    """Each kind of job. The fixture checks that segments are moved only for the kind `moved`."""
    n_moved, real = 0, commit.move_segment

    def counted(*arguments: Any) -> object:
        nonlocal n_moved
        n_moved += 1
        return real(*arguments)

    monkeypatch.setattr(commit, "move_segment", counted)
    yield KINDS[request.param]
    assert (n_moved > 10) == (request.param == "moved")


@pytest.mark.parametrize("is_final", [False, True], ids=["once", "from then on"])
@cut_loop
def test_every_call_that_fails_leaves_the_job_whole_or_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, every: int, *, is_final: bool
) -> None:
    """Each call in turn fails with EIO, alone or with all calls after it.

    Then the disk works again.
    """
    outcomes: Counter[str] = Counter()
    caught: BaseException | None = OSError()
    for number in range(0, 1000, every):
        directory = tmp_path / str(number)
        write_job(directory, 1, kind)
        with monkeypatch.context() as patch:
            made = fail_at(patch, number, errno.EIO, is_final=is_final)
            caught = None
            try:
                write_job(directory, 2, kind)
            except (OSError, SegmentLogError) as error:
                caught = error
        visible = jobs(directory)
        outcome = "refused" if caught else "committed"
        if isinstance(caught, CommitInDoubtError):
            outcome = "in doubt"
        outcomes[outcome] += 1
        where = (number, made[-1:], caught)
        assert caught is None or names_a_path(caught, directory), where
        assert visible in {"refused": [[1]], "committed": [[1, 2]]}.get(outcome, [[1], [1, 2]]), (
            where
        )
        write_job(directory, 3, kind)
        assert [*visible, 3] == jobs(directory), where
        assert_settled(directory)
        shutil.rmtree(directory)
        if len(made) < number:
            break

    print(dict(outcomes))
    assert caught is None
    assert min(outcomes["refused"], outcomes["committed"]) > 0
    assert outcomes["in doubt"] > 0 or every > 1  # one call is the decision


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    with mounted(place, "-t", "tmpfs", "-o", "size=2m", "tmpfs"):
        yield place


def fill(disk: Path) -> None:
    """Use all free pages of the disk."""
    stat = os.statvfs(disk)
    with (disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, stat.f_bfree * stat.f_bsize)


def test_a_disk_that_is_full_while_tasks_stage(disk: Path) -> None:
    """The error names the full disk.

    No row is visible and no file is left, and a smaller job succeeds.
    """
    directory, kind = disk / "logs", Kind(1 << 30, BATCH_SIZE, 1000, buffer_memory=100_000)
    write_job(directory, 1, kind)
    with pytest.raises(OSError, match="No space left on device: ") as caught:
        write_job(directory, 2, kind, n_rows=4000)

    assert names_a_path(caught.value, directory)
    assert [1] == jobs(directory)
    assert ["segmentlog.state"] == [path.name for path in directory.glob("segmentlog.*")]
    write_job(directory, 3, kind)
    assert [1, 3] == jobs(directory)
    assert_settled(directory)


@cut_loop
def test_a_disk_that_fills_up_at_any_step(
    disk: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, every: int
) -> None:
    """The disk becomes full during staging, during a commit, or while checkpoints are written."""
    outcomes: Counter[str] = Counter()
    for number in range(0, 1000, every):
        directory = disk / "logs"
        write_job(directory, 1, kind)
        caught = None
        with monkeypatch.context() as patch:
            made = act_at(patch, number, lambda: fill(disk))
            try:
                write_job(directory, 2, kind)
            except (OSError, SegmentLogError) as error:
                caught = error
        visible, is_guarded = jobs(directory), bool(list_guards(str(directory)))
        where = (number, made[-1:], caught)
        outcomes["refused" if caught else "unfinished" if is_guarded else "committed"] += 1
        if caught:
            assert errno.ENOSPC == getattr(caught, "errno", None), where
            assert names_a_path(caught, directory), where
            assert not is_guarded, where
        assert visible == ([1] if caught else [1, 2]), where
        (disk / "ballast").unlink(missing_ok=True)
        write_job(directory, 3, kind)
        assert [*visible, 3] == jobs(directory), where
        assert_settled(directory)
        shutil.rmtree(directory)
        if len(made) < number:
            break

    print(dict(outcomes))
    assert min(outcomes["refused"], outcomes["committed"]) > 1
    assert outcomes["unfinished"] > 1 or every > 1  # few calls lie between decision and guard
