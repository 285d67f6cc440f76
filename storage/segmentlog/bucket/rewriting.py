"""Extents of a log that are written again: small ones as large ones, or what is kept of them.

Their offsets stay, so the commit that exchanges them conflicts with no append.  It is made again
for each state: a partition whose extents have changed since they were read drops out of it, and
its objects are left to a sweep.  Readers that have planned to read old extents find their place by
offset, and the old objects stay for them as those of deleted records do.

Batches are copied byte for byte, but for their base offsets, which are outside of the checksum: in
a new object they are those of the log.
"""

import secrets
import tempfile
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.commits import COMPACTION, Commit
from segmentlog.bucket.data_objects import (
    INTERVAL_BYTES,
    MOST_EXTENT_BYTES,
    MOST_OBJECT_BYTES,
    SMALL_BYTES,
    Upload,
)
from segmentlog.bucket.disk import missing_object, opened_extent
from segmentlog.bucket.extents import PartitionLog, PlacedExtent, StoredSnapshot
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import DATA, PART_BYTES, Objects
from segmentlog.bucket.sequence import sequence_at
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.records.decoder import BatchScanner
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.index_builder import IndexBuilder
from segmentlog.log.indexes import AbortedTransaction, encode_transactions
from segmentlog.log.windows import BatchWindows
from segmentlog.model import TopicPartition
from segmentlog.store.paths import BucketLocation
from segmentlog.store.remote.requests import side_by_side

_IN_MEMORY = 64 << 20
_AT_ONCE = 32  #: small extents that are requested at once


class Exchange(NamedTuple):
    """Extents of a partition that follow each other, and those that take their places."""

    old: tuple[PlacedExtent, ...]
    new: tuple[PlacedExtent, ...]


def is_rewritable(log: PartitionLog) -> bool:
    """Whether extents of a partition may be joined: not those that a mirror compares.

    They are the segments of its source, whose producers, transactions and epochs they have.
    """
    return not (log.epochs or log.snapshot)


def small_runs(
    at: TopicPartition, log: PartitionLog, config: TopicConfig
) -> list[tuple[PlacedExtent, ...]]:
    """Runs of small extents, each of which becomes one extent.

    Retention removes an extent once its newest record has expired.  So those of one run have their
    newest records in the same span of ``segment.ms``: no record stays longer because of a later
    one than in the segments of a broker.
    """
    if not is_rewritable(log):
        return []
    most_bytes = min(MOST_EXTENT_BYTES, config.segment_bytes)
    runs, n_bytes, span = list[list[PlacedExtent]]([[]]), 0, -1
    for each in log.placed(at):
        run = runs[-1]
        mine = each.max_timestamp // config.segment_ms if each.max_timestamp >= 0 else span
        fits = (
            n_bytes + each.size <= most_bytes
            and each.end_offset - (run or [each])[0].base_offset < layout.SEGMENT_OFFSETS
            and mine == span
        )
        if each.size >= SMALL_BYTES or not fits:
            run, n_bytes = [], 0
            runs.append(run)
        if each.size < SMALL_BYTES:
            run.append(each)
            n_bytes += each.size
        span = mine
    return [tuple(run) for run in runs if len(run) > 1]


class ExtentWriter:
    """Writes batches of one partition, with their offsets in the log, into new data objects.

    `job`, `task`: are part of the keys.
    """

    def __init__(self, objects: Objects, job: str, task: int, at: TopicPartition) -> None:
        self._objects, self._job, self._task, self._at = objects, job, task, at
        self._spool = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - see `close`
        self._key, self._n_bytes = "", 0
        self._begin(0)

    def _begin(self, base_offset: int) -> None:
        self._base_offset, self._start = base_offset, self._n_bytes
        self._n_records, self._max_timestamp = 0, -1
        self._indexes = IndexBuilder.unlimited(base_offset, INTERVAL_BYTES)
        self._offset_entries, self._time_entries = list[bytes](), list[bytes]()
        self._digest = blake2b(digest_size=8)

    def begin(self, base_offset: int) -> None:
        """Begin an extent."""
        if not self._key:
            self._key = f"{DATA}{self._job}/{self._task}-{secrets.token_hex(4)}.batches"
        self._begin(base_offset)

    def append(self, data: Bytes, lines: Int64s) -> None:
        """Add batches that lie next to each other; see `CleanedSegment.append`."""
        if not len(lines):
            return
        taken = self._indexes.take(lines)
        self._offset_entries.append(taken.offset_entries)
        self._time_entries.append(taken.time_entries)
        self._spool.write(data.data)
        self._digest.update(data.data)
        self._n_bytes += len(data)
        self._n_records += _records_in(data, lines)
        self._max_timestamp = max(self._max_timestamp, int(lines[:, layout.MAX_TIMESTAMP].max()))

    def end(
        self, end_offset: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> PlacedExtent | None:
        """End the extent; None if it has no batch.  `aborted`: transactions that end in it."""
        size = self._n_bytes - self._start
        if not size:
            return None
        indexes = (
            b"".join(self._offset_entries),
            b"".join([*self._time_entries, self._indexes.last_time()]),
            encode_transactions(aborted),
        )
        for each in indexes:
            self._spool.write(each)
            self._n_bytes += len(each)
        digest = int.from_bytes(self._digest.digest(), "big") >> 1 or 1
        n_records = min(self._n_records, end_offset - self._base_offset)
        offset_index, time_index, transaction_index = map(len, indexes)
        extent = PlacedExtent(
            *self._at, self._key, self._start, size, self._base_offset, end_offset, n_records,
            self._max_timestamp, 0, offset_index, time_index, transaction_index, digest,
        )  # fmt: skip
        if self._n_bytes >= MOST_OBJECT_BYTES:
            self.flush()
        return extent

    def flush(self) -> None:
        """Upload what there is; raises `StorageError` if the store does not take it."""
        if self._n_bytes:
            self._spool.seek(0)
            self._objects.put(self._key, iter(lambda: self._spool.read(PART_BYTES), b""))
            self._spool.seek(0)
            self._spool.truncate()
        self._key, self._n_bytes = "", 0

    def close(self) -> None:
        """Forget what was not uploaded."""
        self._spool.close()


def _records_in(data: Bytes, lines: Int64s) -> int:
    """Records of batches that lie next to each other; a message of magic 0 or 1 counts as one.

    The lines of a compaction do not have these numbers.
    """
    positions = np.cumsum(lines[:, layout.SIZE]) - lines[:, layout.SIZE]
    current = positions[data[positions + layout.MAGIC_AT] >= layout.MAGIC]
    at = current[:, np.newaxis] + layout.RECORDS_COUNT_AT + np.arange(4)
    return len(lines) - len(current) + int(data[at].view(">i4").sum())


def move_out(
    upload: Upload, state: LogState, leaving: set[str], replaced: set[tuple[str, int]]
) -> list[PlacedExtent]:
    """Write what shares an object with extents that are replaced into other objects, as it is.

    `leaving`: these objects.  `replaced`: these extents, by object and start.  Returns the others.
    """
    found = []
    for at, log in state.logs.items() if leaving else ():
        for each in log.placed(at):
            if each.object in leaving and (each.object, each.start) not in replaced:
                upload.add_stored(each)
                found.append(each)
        if log.snapshot and log.snapshot.object in leaving and at not in upload.new_snapshots:
            upload.add_stored_snapshot(at, log.snapshot)
    return found


def merge_runs(
    location: BucketLocation,
    job: str,
    task: int,
    runs: Sequence[tuple[PlacedExtent, ...]],
) -> list[Exchange]:
    """Write runs of extents of one partition as one extent each.

    Raises `CorruptLogError` or `UnsupportedFormatError` at a bad batch; `RemoteSegmentError` if an
    object is missing; `StorageError` if the store fails.
    """
    objects, windows = objects_at(location), BatchWindows(1 << 20)
    writer = ExtentWriter(objects, job, task, TopicPartition(*runs[0][0][:2]))

    def fetch(extent: PlacedExtent) -> bytes:
        try:
            return objects.read(extent.object, extent.start, extent.size)
        except FileNotFoundError:
            raise missing_object(
                location,
                f"{extent.topic}-{extent.partition}",
                extent.object,
                extent.base_offset,
                extent.end_offset,
            ) from None

    found = []
    try:
        for run in runs:
            writer.begin(run[0].base_offset)
            for begin in range(0, len(run), _AT_ONCE):
                part = run[begin : begin + _AT_ONCE]
                for extent, data in zip(part, side_by_side(fetch, part), strict=True):
                    path = f"{location}/{extent.object}"
                    scanner = BatchScanner(path, extent.base_offset)
                    with opened_extent(extent, data, path) as file:
                        for each in windows.batches(file.read_into, scanner, 0, extent.size):
                            writer.append(each.data, each.headers)
            new = writer.end(run[-1].end_offset)
            found.append(Exchange(run, (new,) if new else ()))
        writer.flush()
    finally:
        writer.close()
    return found


class Replacement:
    """The commit that exchanges extents, placed after one state of the log after the other.

    `exchanges`: of each partition, in the order of their offsets.  `cleaned`: the offsets up to
    which partitions are compacted by key.  `snapshots`: of producers, at their old and new places.
    `is_whole`: whether nothing is exchanged if one partition has changed.
    """

    def __init__(
        self,
        location: BucketLocation,
        job: str,
        exchanges: Mapping[TopicPartition, Sequence[Exchange]],
        cleaned: Mapping[TopicPartition, int],
        snapshots: Mapping[
            TopicPartition, tuple[StoredSnapshot, StoredSnapshot]
        ] = MappingProxyType({}),
        *,
        is_whole: bool = False,
    ) -> None:
        self._location, self._job, self._token = location, job, secrets.token_hex(16)
        self._exchanges, self._cleaned, self._snapshots = exchanges, cleaned, snapshots
        self._is_whole = is_whole
        self._begun_ms = int(time.time() * 1000)
        self.done: set[TopicPartition] = set()  # the others have changed meanwhile
        self.has_changed = False  # whether there are others

    def commit(self) -> set[TopicPartition]:
        """Exchange the extents; the partitions in which that was done.

        Raises `CommitInDoubtError` or `StorageError` if the store fails; `LogDirectoryError` if a
        sweep has ended the job; `LogChangedError` if another log is at the place by now.
        """
        sequence_at(self._location).append(self.commit_after)
        return self.done

    def commit_after(self, state: LogState) -> Commit | None:
        """The commit that follows a state; None if all partitions have changed."""
        sequence_at(self._location).refuse_ended(state, self._job, self._begun_ms)
        replaced, extents = dict[TopicPartition, tuple[int, int]](), list[PlacedExtent]()
        for at, exchanges in sorted(self._exchanges.items()):
            found = exchanged(at, state.logs.get(at), exchanges)
            if found is not None:
                replaced[at] = exchanges[0].old[0].base_offset, exchanges[-1].old[-1].end_offset
                extents += found
        snapshots = {
            at: new
            for at, (old, new) in self._snapshots.items()
            if at in state.logs and state.logs[at].snapshot == old
        }
        n_found = len(replaced) + len(snapshots)
        self.has_changed = n_found < len(self._exchanges) + len(self._snapshots)
        if self._is_whole and self.has_changed:
            replaced, snapshots = {}, {}
        self.done = {*replaced}
        cleaned = {at: offset for at, offset in self._cleaned.items() if at in replaced}
        if not (replaced or snapshots):
            return None
        return Commit(
            state.number + 1,
            self._token,
            self._job,
            max(int(time.time() * 1000), 0),
            extents=extents,
            replaced=replaced,
            cleaned=cleaned,
            snapshots=snapshots,
            features=[COMPACTION] if cleaned else [],
        )


def exchanged(
    at: TopicPartition, log: PartitionLog | None, exchanges: Sequence[Exchange]
) -> list[PlacedExtent] | None:
    """The extents from the first to the last exchange, with the new ones; None if some differ."""
    if log is None or not exchanges:
        return None
    found, last = list[PlacedExtent](), -1
    bases, objects = log.extents.columns["base_offset"], log.extents.objects
    starts, sizes = log.extents.columns["start"], log.extents.columns["size"]
    for old, new in exchanges:
        slot, n = bisect_left(bases, old[0].base_offset, 0, log.n_extents), len(old)
        now = zip(
            objects[slot : slot + n], starts[slot : slot + n], sizes[slot : slot + n], strict=True
        )
        if slot + n > log.n_extents or [*now] != [(e.object, e.start, e.size) for e in old]:
            return None
        if last >= 0:
            found += log.placed(at, last, slot)
        found += new
        last = slot + n
    return found
