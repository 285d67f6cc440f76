"""Jobs whose rows contain the job's number, and the jobs that a look at a directory finds.

Each row of job `n` begins with ``n``, the job's rows in a partition, and the number of partitions
that it writes to.  It writes the same count of rows to each of them, so whether a job is there
whole can be seen from rows alone.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import segmentlog
from segmentlog.model import IsolationLevel, LogSlice, ReadUpTo, ScanPolicy, TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.scan import scan_slice


class RowsError(AssertionError):
    """Rows that a healthy log cannot have at any moment."""


@dataclass(frozen=True)
class Job:
    """`n_rows` rows of about `n_bytes` in each partition of `topics`.

    `first_ms` is the timestamp of the first one, in epoch milliseconds; each row is one later.
    """

    number: int
    topics: Mapping[str, int]
    n_rows: int = 10
    n_bytes: int = 20
    first_ms: int = field(default=1_700_000_000_000)

    @property
    def n_partitions(self) -> int:
        """The number of partitions that it writes to."""
        return sum(self.topics.values())

    def rows(self) -> pa.Table:
        """All rows of the job."""
        value = b"%d %d %d " % (self.number, self.n_rows, self.n_partitions)
        where = [(topic, each) for topic, n in self.topics.items() for each in range(n)]
        every = [(topic, each, row) for topic, each in where for row in range(self.n_rows)]
        times = [self.first_ms + row for *_, row in every]
        return pa.table(
            {
                "topic": [topic for topic, *_ in every],
                "partition": pa.array([each for _, each, _ in every], pa.int32()),
                "timestamp": pa.array(times, pa.timestamp("ms")),
                "value": pa.array([value.ljust(self.n_bytes, b".")] * len(every), pa.binary()),
            }
        )


class Level(NamedTuple):
    """The level that a reader asks for."""

    read_up_to: ReadUpTo
    isolation_level: IsolationLevel


LEVELS = {
    "default": Level(ReadUpTo.HIGH_WATERMARK, IsolationLevel.READ_UNCOMMITTED),
    "logEnd": Level(ReadUpTo.LOG_END, IsolationLevel.READ_UNCOMMITTED),
    "committed": Level(ReadUpTo.HIGH_WATERMARK, IsolationLevel.READ_COMMITTED),
}


class Found(NamedTuple):
    """One partition as it was read: the first offset (-1 without rows), and jobs in order."""

    start_offset: int
    jobs: tuple[int, ...]


#: Partitions that were listed, each with what was found there.
Look = dict[TopicPartition, Found]


def found_in(topic_partition: TopicPartition, batches: Iterable[pa.RecordBatch]) -> Found:
    """The jobs in the rows of one partition, with the columns ``offset`` and ``value``.

    Raises `RowsError` if offsets have gaps or repeats, or a job has not all of its rows here.
    """
    batches = list(batches)
    if not sum(each.num_rows for each in batches):
        return Found(-1, ())
    rows = pa.Table.from_batches(batches)
    offsets = rows["offset"].to_numpy()
    wrong = np.flatnonzero(np.diff(offsets) != 1)
    if len(wrong):
        at = int(wrong[0])
        what = f"offset {offsets[at + 1]} comes after {offsets[at]}"
        raise RowsError(f"{topic_partition}: {what}; read are {offsets[0]} to {offsets[-1]}")
    jobs: list[int] = []
    row = 0
    for head, group in itertools.groupby(
        value.split(b".")[0] for value in rows["value"].to_pylist()
    ):
        number, n_rows, _ = map(int, head.split())
        n_found = len(list(group))
        if n_found != n_rows or number in jobs:
            where = f"at offset {offsets[row]} of {offsets[0]} to {offsets[-1]}"
            what = f"job {number} has {n_found} rows {where}, and wrote {n_rows}"
            raise RowsError(f"{topic_partition}: {what}; jobs before it: {jobs[-5:]}")
        jobs.append(number)
        row += n_found
    return Found(int(offsets[0]), tuple(jobs))


def look(opened: segmentlog.LogDirectory, level: str = "default") -> Look:
    """All partitions of `opened`, read by scans."""
    return {each: scan_log(opened.log(*each), level) for each in opened.topic_partitions()}


def scan_log(log: Log, level: str) -> Found:
    """One partition, read by a scan."""
    scan = log.scan(columns=["offset", "value"], **LEVELS[level]._asdict())
    return found_in(log.topic_partition, scan)


def options_of(directory: object, level: str, max_bytes: int) -> dict[str, str]:
    """Options of the connector for a read of all topics."""
    read_up_to, isolation_level = LEVELS[level]
    return {
        "path": str(directory),
        "readUpTo": read_up_to.value,
        "maxBytesPerPartition": str(max_bytes),
        "kafka.isolation.level": isolation_level.value,
    }


def read_slices(slices: Sequence[LogSlice], level: str = "default") -> Look:
    """The partitions of these slices, read as tasks read them.

    Raises `RowsError` also if a task has other rows than its slice was planned for.
    """
    groups = itertools.groupby(slices, lambda each: TopicPartition(*each[:2]))
    return {key: read_partition(key, list(group), level) for key, group in groups}


def read_partition(
    topic_partition: TopicPartition, slices: Iterable[LogSlice], level: str
) -> Found:
    """One partition, read as tasks read it."""
    policy = ScanPolicy(LEVELS[level].isolation_level)
    batches: list[pa.RecordBatch] = []
    for each in slices:
        rows = list(scan_slice(each, columns=["offset", "value"], policy=policy))
        n_rows, start, end = sum(batch.num_rows for batch in rows), *each[2:4]
        if n_rows != end - start:  # these logs are not compacted
            what = f"{n_rows} rows of the {end - start} of [{start}, {end}) were read"
            raise RowsError(f"{topic_partition}: {what}")
        batches += rows
    return found_in(topic_partition, batches)


def whole_jobs(seen: Look, jobs: Iterable[Job]) -> set[int]:
    """Numbers of the jobs that a look finds.

    Raises `RowsError` if a job is not in all of its partitions, or the partitions have different
    jobs or orders.
    """
    found = {number for each in seen.values() for number in each.jobs}
    known = {job.number: job for job in jobs}
    for number in sorted(found):
        where = {each for each, found in seen.items() if number in found.jobs}
        if number not in known or len(where) != known[number].n_partitions:
            what = f"job {number} is in {sorted(map(str, where))} only"
            raise RowsError(f"{what}: {known.get(number, 'no such job')}")
    return found
