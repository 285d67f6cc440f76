"""Operations on a recorded log directory, and the promises at each moment of them."""

import itertools
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import segmentlog
from crash_disk.recorder import Recorder
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.swaps import finish_swaps, has_swaps
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn.guard import recover_commits
from segmentlog.writes.config import ProducerConfig

TOPIC, N_PARTITIONS = "t", 2
INDEX_INTERVAL_BYTES = 100

#: Bytes of a value from which jobs have large files, which are moved into the log.
_LARGE_BYTES = 9000


class Job(NamedTuple):
    """One write."""

    number: int  # of the job; its rows contain it
    rows: Mapping[int, int]  # how many of them each of its partitions gets
    value_bytes: int = 9  # of each row
    overwrites: bool = False  # whether all earlier records go
    flush: bool = True  # whether it is synced
    # by partition, the number of the first job whose rows are left of the earlier ones
    first_left: Mapping[int, int] = MappingProxyType({})
    n_keys: int = 0  # number of different keys of its rows; 0 for rows without a key
    # by partition, the values that it leaves of the earlier jobs
    leaves: Mapping[int, Sequence[int]] = MappingProxyType({})
    is_idempotent: bool = False  # whether its number is the id of an idempotent producer
    # whether it exchanges files after its decision: readers may see the files before
    is_exchanged: bool = False
    is_staged: bool = False  # whether its batches are staged in files, and not kept in memory

    def values(self, partition: int) -> list[int]:
        """The rows that it writes to one partition; no two are equal."""
        first = 10_000 * self.number + 1000 * partition
        return [*range(first, first + self.rows.get(partition, 0))]

    def table(self) -> pa.Table:
        """All of its rows."""
        rows = [(partition, value) for partition in self.rows for value in self.values(partition)]
        width = self.value_bytes
        columns = {
            "value": pa.array([b"%0*d" % (width, value) for _, value in rows], pa.binary()),
            "partition": pa.array([partition for partition, _ in rows], pa.int32()),
            "timestamp": pa.array([value for _, value in rows], pa.timestamp("ms", "UTC")),
        }
        if self.n_keys:
            keys = [b"%d" % (value % self.n_keys) for _, value in rows]
            columns["key"] = pa.array(keys, pa.binary())
        return pa.table(columns)

    @property
    def config(self) -> ProducerConfig:
        """Small batches and segments; with large rows, staged files that become segments."""
        is_large = self.value_bytes >= _LARGE_BYTES
        memory = 40_000 if is_large else 20_000
        return ProducerConfig(
            topic_config=TopicConfig(
                segment_bytes=100_000 if is_large else 1000,
                index_interval_bytes=INDEX_INTERVAL_BYTES,
            ),
            batch_size=100,
            buffer_memory=200 if self.is_staged else memory,
            use_timestamps=True,
            flush=self.flush,
        )


class Promise(NamedTuple):
    """The contents that a log must have at one moment."""

    acknowledged: Sequence[Job]  # jobs, in their order; all of them
    undecided: Job | None = None  # a job that may follow them, as a whole
    is_at_rest: bool = False  # whether no write is going on, so that no guard may stand
    # whether the directory had the mark of a clean stop, and each job was synced
    was_clean: bool = True

    @property
    def is_synced(self) -> bool:
        """Whether a power cut also keeps every acknowledged job."""
        return all(job.flush for jobs in self.outcomes for job in jobs)

    @property
    def outcomes(self) -> list[list[Job]]:
        """The contents that the log may have."""
        known = [*self.acknowledged]
        return [known] if self.undecided is None else [known, [*known, self.undecided]]


def values_of(jobs: Sequence[Job]) -> dict[int, list[int]]:
    """The values that a reader sees of these jobs, by partition."""
    begin = max((i for i, job in enumerate(jobs) if job.overwrites), default=0)
    first = {
        partition: max((job.first_left.get(partition, 0) for job in jobs), default=0)
        for partition in range(N_PARTITIONS)
    }
    found: dict[int, list[int]] = {partition: [] for partition in first}
    for job in jobs[begin:]:
        for partition, earlier in found.items():
            new = job.values(partition) if job.number >= first[partition] else []
            found[partition] = [*job.leaves.get(partition, earlier), *new]
    return found


def outcome(promise: Promise, seen: Mapping[int, Sequence[int]]) -> list[Job]:
    """The jobs that a reader has seen, if the promise allows that."""
    for jobs in promise.outcomes:
        if values_of(jobs) == seen:
            return jobs
    message = f"sees {seen}, not one of {[*map(values_of, promise.outcomes)]}"
    raise AssertionError(message)


def recover_as_a_writer(directory: Path) -> None:
    """Recover as every writer does first, and as every compaction does then."""
    if directory.exists():
        with DirectoryLock(str(directory)):
            recover_commits(str(directory))
            for path in directory.glob(f"{TOPIC}-*"):
                if has_swaps(str(path)):
                    finish_swaps(str(path))


def has_topic(directory: Path) -> bool:
    """Whether a reader could open a topic."""
    return any(directory.glob(f"{TOPIC}-*"))


def read(directory: Path, **how: Any) -> dict[int, list[int]]:
    """The values that a reader sees, by partition; a missing topic is empty."""
    found: dict[int, list[int]] = {partition: [] for partition in range(N_PARTITIONS)}
    if not has_topic(directory):
        return found
    opened = segmentlog.open_log_dir(directory)
    for partition in opened.topics().get(TOPIC, ()):
        rows = opened.log(TOPIC, partition).scan(columns=["value"], **how).read_all()
        found[partition] = [int(value[-9:]) for value in rows["value"].to_pylist()]
    return found


def write_job(directory: Path, job: Job) -> None:
    """Write a job, a few rows at a time."""
    with segmentlog.open_writer(
        directory,
        TOPIC,
        num_partitions=N_PARTITIONS,
        config=job.config,
        overwrite=job.overwrites,
        producer=segmentlog.Producer(job.number, 0, 0) if job.is_idempotent else None,
    ) as writer:
        for batch in job.table().to_batches(max_chunksize=5):
            writer.append(batch)


class Run:
    """One or more operations on a directory that is recorded meanwhile.

    `root`: holds the log directory, or will hold it. `patch`: undone when the recording is to end.
    `acknowledged`: jobs that are in the log in the beginning. `is_at_rest`: whether no write is
    unfinished there. `is_disturbed`: whether a process has died, or a call has failed.
    """

    def __init__(
        self,
        root: Path,
        patch: pytest.MonkeyPatch,
        acknowledged: Sequence[Job] = (),
        *,
        is_at_rest: bool = True,
    ) -> None:
        self.directory = root / "new" / "logs"
        self.jobs = list(acknowledged)
        self.recorder = Recorder(root, patch)
        self.promises: list[tuple[int, Promise]] = []
        self.is_disturbed = False
        self._was_clean = (
            not self.directory.exists() or (self.directory / CLEAN_SHUTDOWN_FILE).exists()
        )
        self._n_begun = max((job.number for job in self.jobs), default=0)
        self._promise(Promise((*self.jobs,), is_at_rest=is_at_rest))

    def begin(self, rows: Mapping[int, int], **how: Any) -> Job:
        """Note a job that may become visible from now on."""
        self._n_begun += 1
        job = Job(self._n_begun, rows, **how)
        self._promise(Promise((*self.jobs,), job))
        return job

    def end(self, job: Job, *, is_committed: bool, is_at_rest: bool = False) -> None:
        """Note that the job is visible for good, or never will be."""
        if is_committed:
            self.jobs.append(job)
        self._promise(Promise((*self.jobs,), is_at_rest=is_at_rest))

    def begin_recovery(self) -> None:
        """Note that all records stay, and that the mark may be missing."""
        self._promise(Promise((*self.jobs,)))

    def end_recovery(self) -> None:
        """Note that the directory is as after a clean stop, and that everything is on the disk."""
        self.jobs = [job._replace(flush=True) for job in self.jobs]
        self._was_clean = True
        self._promise(Promise((*self.jobs,), is_at_rest=True))

    def _promise(self, promise: Promise) -> None:
        was_clean = self._was_clean and promise.is_synced
        promise = promise._replace(was_clean=was_clean)
        self.promises.append((len(self.recorder.steps), promise))

    def promises_at(self, n_steps: int) -> Iterator[Promise]:
        """The promises after this number of steps; at the step between two, both are returned."""
        ends = [*(begin for begin, _ in self.promises[1:]), len(self.recorder.steps)]
        for (begin, promise), end in zip(self.promises, ends, strict=True):
            if begin <= n_steps <= end:
                yield promise


def same_names_again(patch: pytest.MonkeyPatch, first: int = 1) -> None:
    """Let the engine's random names and clocks be the same in each run.

    So the same operations leave the same bytes, and a state that was looked at once need not be
    looked at again.
    """
    numbers = itertools.count(first)
    patch.setattr(secrets, "token_hex", lambda n_bytes: f"{next(numbers):0{2 * n_bytes}x}")
    patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers)))
    patch.setattr(time, "time", lambda: 1_000_000_000.0)
