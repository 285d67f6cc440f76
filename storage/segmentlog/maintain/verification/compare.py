"""Compare two log directories by the records of their partitions, and not by their files.

Files of equal logs may differ: brokers roll segments at other times, and codecs and batches may be
others.  Records are equal if their offsets, times, keys, values and headers are.

A digest is the evidence of a comparison.  It is a SHA-256 of all records, in windows of offsets
that begin at multiples of `WINDOW`.  So equal records have equal digests in any batches.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple, Unpack

import numpy as np
import pyarrow as pa

from segmentlog.arguments import takes, topic_names
from segmentlog.errors import SegmentLogError
from segmentlog.model import (
    INTERNAL_TOPICS,
    OffsetRange,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TopicPartition,
)
from segmentlog.operation_options import BytesOptions, CorruptOptions
from segmentlog.reads.choose import partitions_of
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.system_errors import storage_errors

#: Offsets that are digested together.
WINDOW = 1 << 16

#: The columns that are compared, in their order in a digest.
COMPARED = ("offset", "timestamp", "timestampType", "key", "value", "headers")

#: The rules of a read whose records are compared.
AS_STORED = ScanPolicy(in_milliseconds=True, header_names_as_bytes=True)

_MOST_MS = (2**63 - 1) // 1000  #: milliseconds that an int64 holds in microseconds


class Comparison(StrEnum):
    """The result for a partition.  Of the offsets, only those that both logs cover count."""

    EQUAL = "equal"  #: the same records, up to the same end
    PREFIX = "prefix"  #: the same records, and one log has more at its end
    DIVERGING = "diverging"  #: other records from an offset on
    DISJOINT = "disjoint"  #: no offset is in both logs, so that nothing was compared
    UNREADABLE = "unreadable"  #: a log cannot be read; `ComparedPartition.error` has the reason
    MISSING = "missing"  #: one of the directories lacks the partition


class Side(NamedTuple):
    """A log that was compared.

    Attributes
    ----------
    path : of the partition directory.
    log_start_offset, log_end_offset : half-open range of its offsets.
    n_records : number of its records.
    sha256 : the digest of all of them, in hex.
    """

    path: str
    log_start_offset: int
    log_end_offset: int
    n_records: int
    sha256: str


class ComparedPartition(NamedTuple):
    """A partition of two directories.

    Attributes
    ----------
    topic, partition : its name and number.
    comparison : the result.
    left, right : the log in each directory; None if the directory lacks it.
    diverges_at : the first offset with another record, or with a record on one side alone; None if
        the logs do not diverge.
    error : why a log cannot be read; its side is None then.  Of a missing partition: the renamed
        directory that still holds its log.
    differs_in : the fields in which the records at `diverges_at` differ, of `COMPARED`; empty if
        only one side has a record there.
    """

    topic: str
    partition: int
    comparison: Comparison
    left: Side | None
    right: Side | None
    diverges_at: int | None = None
    error: str | None = None
    differs_in: tuple[str, ...] = ()

    @property
    def has_problem(self) -> bool:
        """Whether the logs are not known to be equal."""
        return self.comparison != Comparison.EQUAL


class CompareOptions(CorruptOptions, BytesOptions, total=False):
    """Those of `segmentlog.compare`.

    Parameters
    ----------
    on_corrupt_batch : ``skip`` leaves out corrupt batches, and logs their offsets: a copy without
        them is equal.
    on_partition : called with each result once it is found.
    """

    on_partition: Callable[[ComparedPartition], object]


@takes(CompareOptions)
@storage_errors()
def compare(
    left: str | os.PathLike[str] | LogDirectory,
    right: str | os.PathLike[str] | LogDirectory,
    *,
    topics: str | Collection[str] = (),
    **options: Unpack[CompareOptions],
) -> list[ComparedPartition]:
    """Compare the records of two log directories: a copy with its original.

    Both are read up to the ends of their logs.  Nothing is changed.  A partition that cannot be
    read is `Comparison.UNREADABLE`, and the other partitions are compared.

    Parameters
    ----------
    left, right : as `open_log_dir` takes them, or `LogDirectory` objects, such as that of several
        brokers (`open_replicas`).
    topics : one or several; by default all but brokers' own.
    **options : those of `CompareOptions`.

    Returns
    -------
    list of ComparedPartition
        Sorted by topic and partition.

    Raises
    ------
    UnknownTopicOrPartitionError
        If neither directory has one of `topics`.
    OptionError
        If an argument is not accepted.
    LogDirectoryError, StorageError
        If a directory cannot be read.
    """
    names = topic_names("topics", topics)
    on_corrupt = OnCorruptBatch(options["on_corrupt_batch"])
    sides = [
        each if isinstance(each, LogDirectory) else open_log_dir(each) for each in (left, right)
    ]
    known = [{*each.topic_partitions()} for each in sides]
    there = {each.topic for each in known[0] | known[1]}
    for name in names:
        if name not in there:
            side = next((each for each in sides if each.where_renamed(name)), sides[0])
            partitions_of(side, [name])  # raises, and names the nearest topic
    chosen = [
        each
        for each in sorted(known[0] | known[1])
        if (each.topic in names if names else each.topic not in INTERNAL_TOPICS)
    ]
    found = []
    for each in chosen:
        n_bytes = 0
        try:
            logs = [
                side.log(*each) if each in held else None
                for side, held in zip(sides, known, strict=True)
            ]
            n_bytes = sum(log.size_bytes for log in logs if log is not None)
            left_log, right_log = logs
            with storage_errors():
                if left_log is not None and right_log is not None:
                    found.append(_Both(each, left_log, right_log, on_corrupt).result())
                else:
                    one, other = (None if log is None else _alone(log, on_corrupt) for log in logs)
                    renamed = sides[logs.index(None)].where_renamed(*each) or None
                    found.append(
                        ComparedPartition(*each, Comparison.MISSING, one, other, error=renamed)
                    )
        except SegmentLogError as error:
            unread = ComparedPartition(*each, Comparison.UNREADABLE, None, None, None, str(error))
            found.append(unread)
        options["on_partition"](found[-1])
        options["on_bytes"](n_bytes)
    return found


def _alone(log: Log, on_corrupt_batch: OnCorruptBatch) -> Side:
    """A log that only one of the directories has."""
    with _scan(log, on_corrupt_batch) as batches:
        return Side(log.path, log.log_start_offset, log.log_end_offset, *digest_of(batches))


def digest_of(batches: Iterable[pa.RecordBatch]) -> tuple[int, str]:
    """The number of records, and the digest that `Side` has of them.

    `batches`: with the columns `COMPARED`, in the order of their offsets.
    """
    digest = _Digest()
    for _, rows in _windows(batches):
        digest.add(rows)
    return digest.n_records, digest.sha256.hexdigest()


class _Digest:
    """The digest of a log, as its windows come."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()
        self.n_records = 0

    def add(self, rows: pa.Table) -> bytes:
        """Take a window, and return its own digest."""
        found = _digest(rows)
        self.sha256.update(found)
        self.n_records += len(rows)
        return found


class _Both:
    """Two logs of a partition, read side by side."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        left: Log,
        right: Log,
        on_corrupt_batch: OnCorruptBatch,
    ) -> None:
        self._topic_partition, self._on_corrupt_batch = topic_partition, on_corrupt_batch
        self._logs = (left, right)
        self._digests = (_Digest(), _Digest())
        self._common = OffsetRange(
            max(each.log_start_offset for each in self._logs),
            min(each.log_end_offset for each in self._logs),
        )

    def result(self) -> ComparedPartition:
        """Read both to their ends."""
        diverges_at: int | None = None
        differs_in: tuple[str, ...] = ()
        reads = [_windows(_scan(each, self._on_corrupt_batch)) for each in self._logs]
        heads = [next(each, None) for each in reads]
        while any(head is not None for head in heads):
            first = min(head[0] for head in heads if head is not None)
            rows: list[tuple[pa.Table | None, bytes]] = []
            for i, head in enumerate(heads):
                if head is None or head[0] != first:
                    rows.append((None, b""))
                    continue
                rows.append((head[1], self._digests[i].add(head[1])))
                heads[i] = next(reads[i], None)
            (left, left_digest), (right, right_digest) = rows
            if diverges_at is None and left_digest != right_digest:
                diverges_at, differs_in = self._difference(left, right)
        ranges = {(each.log_start_offset, each.log_end_offset) for each in self._logs}
        same = Comparison.EQUAL if len({end for _, end in ranges}) == 1 else Comparison.PREFIX
        if self._common.start_offset >= self._common.end_offset and len(ranges) > 1:
            same = Comparison.DISJOINT
        left_side, right_side = (
            Side(
                log.path,
                log.log_start_offset,
                log.log_end_offset,
                digest.n_records,
                digest.sha256.hexdigest(),
            )
            for log, digest in zip(self._logs, self._digests, strict=True)
        )
        comparison = same if diverges_at is None else Comparison.DIVERGING
        return ComparedPartition(
            *self._topic_partition,
            comparison,
            left_side,
            right_side,
            diverges_at,
            differs_in=differs_in,
        )

    def _difference(
        self, left: pa.Table | None, right: pa.Table | None
    ) -> tuple[int | None, tuple[str, ...]]:
        """The first offset of a window at which the rows differ, of those that both logs cover.

        With it, the fields in which they differ.
        """
        sides = []
        for each in (left, right):
            rows = pa.table({"offset": pa.array([], pa.int64())}) if each is None else each
            start, end = np.searchsorted(rows["offset"].to_numpy(), self._common)
            sides.append(rows.slice(start, end - start))
        # The number of rows that are equal, from the first one on, is found by halving.
        low, high = 0, min(map(len, sides))
        while low < high:
            middle = (low + high + 1) // 2
            one, other = (each.slice(low, middle - low) for each in sides)
            low, high = (middle, high) if one.equals(other) else (low, middle - 1)
        found = [each.slice(low, 1) for each in sides if len(each) > low]
        offsets = [each["offset"][0].as_py() for each in found]
        if len({*offsets}) == 1 < len(offsets):
            one, other = found
            differing = (name for name in COMPARED if not one[name].equals(other[name]))
            return offsets[0], tuple(differing)
        return min(offsets, default=None), ()


def _scan(log: Log, on_corrupt_batch: OnCorruptBatch) -> pa.RecordBatchReader:
    offsets = log.bounds(log.log_start_offset, log.log_end_offset, read_up_to=ReadUpTo.LOG_END)
    return log.scan_offsets(
        offsets, COMPARED, AS_STORED._replace(on_corrupt_batch=on_corrupt_batch)
    )


def _windows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """The number and the rows of each window of offsets that has rows."""
    number, held = -1, list[pa.RecordBatch]()
    for batch in batches:
        windows = batch.column(0).to_numpy() // WINDOW
        cuts = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(windows)]
        for start, end in itertools.pairwise(cuts):
            if start == end:
                continue
            if held and windows[start] != number:
                yield number, pa.Table.from_batches(held).combine_chunks()
                held = []
            number = int(windows[start])
            held.append(batch.slice(start, end - start))
    if held:
        yield number, pa.Table.from_batches(held).combine_chunks()


def _digest(rows: pa.Table) -> bytes:
    """SHA-256 of the columns: numbers in little-endian, then the lengths and the bytes of others.

    A null has the length -1.
    """
    import pyarrow.compute as pc  # takes long

    found = hashlib.sha256()
    numbers = {"offset": "<i8", "timestamp": "<i8", "timestampType": "<i4"}
    for name, dtype in numbers.items():
        column = _one(rows[name])
        is_in_ms = name == "timestamp" and column.type == pa.int64()
        values = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        if is_in_ms:  # digested in microseconds, which do not hold every time
            if not (np.abs(values) <= _MOST_MS).all():
                found.update(values.astype(dtype).tobytes())
            values = values * 1000
        found.update(values.astype(dtype).tobytes())
    for name in ("key", "value"):
        _add_binary(found, _one(rows[name]), pc.binary_length)
    headers = _one(rows["headers"])
    found.update(_lengths(pc.list_value_length(headers)))
    pairs = headers.flatten()
    for name in ("key", "value"):
        _add_binary(found, pc.struct_field(pairs, name), pc.binary_length)
    return found.digest()


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _lengths(lengths: pa.Array) -> bytes:
    values = lengths.fill_null(-1).to_numpy(zero_copy_only=False)
    return bytes(values.astype("<i4"))


def _add_binary(
    found: "hashlib._Hash", column: pa.Array, length: Callable[[pa.Array], pa.Array]
) -> None:
    found.update(_lengths(length(column)))
    column = column.fill_null("" if pa.types.is_string(column.type) else b"")
    if not len(column):
        return
    _, offsets, data = column.buffers()
    if data is None:
        return
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    found.update(memoryview(data)[bounds[0] : bounds[-1]])
