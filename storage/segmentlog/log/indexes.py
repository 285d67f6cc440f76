"""The indexes of a segment: of offsets, of times, and of aborted transactions.

The first two are sparse, and share everything but the entry: entries are appended, both fields
grow, a file may be preallocated with zeros after its last entry, and there is no checksum.  So an
index is a hint, and its users check each entry against the log.

The offset index leads from an offset to a byte position (``org.apache.kafka…log.OffsetIndex``)::

     0                 4                 8
    +-----------------+-----------------+
    | relative offset | position        |   big-endian, one entry for every few KiB of log
    +-----------------+-----------------+

An entry means: the batch at `position` and those before it in the same append end at or before
``base offset + relative offset``.  The offset is the last offset of the append, the position is
its first byte.  So a record with a lower offset may still stand after `position`; a record with
an equal or higher offset cannot stand before it.

The time index leads from a timestamp to an offset (``org.apache.kafka…log.TimeIndex``)::

     0                        8                12
    +------------------------+-----------------+
    | timestamp (epoch ms)   | relative offset |   big-endian
    +------------------------+-----------------+

An entry means: `timestamp` is the largest up to and including the batch that ends at ``base offset
+ relative offset``.  So every record with a larger timestamp stands after this batch.

The transaction index lists the aborted transactions (``org.apache.kafka…TransactionIndex``)::

     0         2             10             18            26                   34
    +---------+-------------+--------------+-------------+--------------------+
    | version | producer id | first offset | last offset | last stable offset |
    | 0       |             |              |             | after it           |
    +---------+-------------+--------------+-------------+--------------------+

It has an entry for each abort marker of the segment; the last offset is the marker's.  A segment
without aborts has no such file, so a missing file proves nothing: reads use the markers in the
log.
"""

import logging
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from mmap import mmap
from typing import NamedTuple

import numpy as np

from segmentlog.errors import CorruptIndexError, RemoteSegmentError
from segmentlog.model import LEAST_LONG, TimestampAndOffset
from segmentlog.store.readable import Closing, FileType, ReadableFile, open_file, read_whole

logger = logging.getLogger(__name__)

#: Up to this size, one read of the whole file takes less than a map or a few reads of entries.
SMALL_BYTES = 16 << 10

#: Bytes of a block of a large index at a URL: whole entries of 8 and of 12 bytes.  A block is
#: large, because a request takes longer than its bytes.
BLOCK_BYTES = 24 * 10_000

#: Bytes at the end of an index in which look-ups for recent data stay, so that they do not touch
#: the pages before (``AbstractIndex.warmEntries``).
_WARM_BYTES = 8192


class IndexFile(Closing):
    """The bytes of an index: a small one is read whole, a large one mapped if that is safe.

    A missing index counts as empty.  A broker trims the index of its active segment in place, and
    a process that has the file mapped then dies of SIGBUS at the next touch.  So only indexes of
    closed segments in a directory that was cleanly shut down may be `mapped`; all others are read
    with ``pread``, an entry at a time, and a file that shrinks under the reader gives a short
    answer instead of a signal.  An index at a URL is one read, if it is not large; a search in a
    larger one reads some blocks.
    """

    def __init__(self, path: str, *, mapped: bool, file: ReadableFile | None = None) -> None:
        self.size = 0
        self.path = path
        self._map: mmap | bytes | None = None
        self._file: ReadableFile | None = None
        self._block: tuple[int, bytes] | None = None  # the last one, and its first byte
        try:
            file = file or open_file(path)
        except OSError:  # an index that cannot be opened costs a scan, not the read
            return
        status = file.status()
        if status.type is not FileType.FILE:
            file.close()
            return
        self._file, self.size = file, status.size
        try:
            if 0 < self.size <= SMALL_BYTES:
                self._map = file.read(0, self.size)
            elif mapped or file.never_cut:
                self._map = file.map()
        except (OSError, RemoteSegmentError) as error:
            self._fail(error)
            self.size = 0
            return
        if self._map is not None:
            file.close()
            self._file = None

    def read(self, at: int, n_bytes: int) -> bytes:
        """`n_bytes` from byte `at`; zeros, as in a preallocated tail, where the file ends."""
        piece = b""
        if self._map is not None:
            piece = self._map[at : at + n_bytes]
        elif self._file is not None:
            begin = at - at % BLOCK_BYTES
            try:
                # Of a file at a URL, the block that holds the bytes is read and kept.
                if not self._file.never_cut or at + n_bytes > begin + BLOCK_BYTES:
                    piece = self._file.read(at, n_bytes)
                else:
                    if self._block is None or self._block[0] != begin:
                        self._block = begin, self._file.read(begin, BLOCK_BYTES)
                    piece = self._block[1][at - begin : at - begin + n_bytes]
            except (OSError, RemoteSegmentError) as error:
                self._fail(error)
        return piece if len(piece) == n_bytes else piece.ljust(n_bytes, b"\0")

    def _fail(self, error: Exception) -> None:
        """Go on without the index: it costs a scan, not the read."""
        logger.warning("%s cannot be read, and the log is scanned instead: %s", self.path, error)
        self.close()

    @property
    def is_mapped(self) -> bool:
        """Whether the file is memory-mapped."""
        return self._map is not None and not isinstance(self._map, bytes)

    def close(self) -> None:
        """Close the file; later reads give zeros."""
        if self._map is not None and not isinstance(self._map, bytes):
            self._map.close()
        self._map = None
        if self._file is not None:
            self._file.close()
            self._file = None


class SparseIndex(IndexFile):
    """Entries of one index file, opened for a few look-ups.

    A missing, empty or damaged file merely holds fewer entries.  `base_offset`: of the segment;
    entries hold offsets relative to it.
    """

    entry_bytes: int  # bytes of an entry
    key_bytes: int  # bytes of the number by which it is sorted, which comes first

    def __init__(
        self, path: str, base_offset: int, *, mapped: bool, file: ReadableFile | None = None
    ) -> None:
        super().__init__(path, mapped=mapped, file=file)
        self.base_offset = base_offset
        self.n_entries = self._count_entries()

    @property
    def ends_in_zeros(self) -> bool:
        """Whether zeros take the place of the last entry, as a broker counts entries."""
        return self.n_entries < self.size // self.entry_bytes

    def _raw(self, slot: int) -> bytes:
        return self.read(slot * self.entry_bytes, self.entry_bytes)

    def _count_entries(self) -> int:
        """Entries before the zeros of preallocation; fields grow, so zeros are only at the end."""
        n_slots, zeros = self.size // self.entry_bytes, bytes(self.entry_bytes)
        if n_slots and self._raw(n_slots - 1) != zeros:
            return n_slots  # trimmed, as every closed segment's index is
        return bisect_left(range(n_slots), True, key=lambda slot: self._raw(slot) == zeros)

    def _stored(self, slot: int) -> int:
        key = self.read(slot * self.entry_bytes, self.key_bytes)
        return int.from_bytes(key, "big", signed=True)

    def _floor(self, target: int) -> int:
        """Slot of the greatest stored key not above `target`, or -1 (``indexSlotRangeFor``)."""
        if not self.n_entries:
            return -1
        last = self.n_entries - 1
        first_warm = max(0, last - _WARM_BYTES // self.entry_bytes)
        if self._stored(first_warm) < target:
            return _last_slot(first_warm, last, lambda slot: self._stored(slot) <= target)
        if self._stored(0) > target:
            return -1
        return _last_slot(0, first_warm, lambda slot: self._stored(slot) <= target)


def _last_slot(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The last slot after `low`, up to `high`, that fits, or `low`: Kafka's binary search."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


#: An entry as in the file, for many at a time; `_OFFSET_ENTRY` is for one.
OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_OFFSET_ENTRY = struct.Struct(">ii")


class OffsetPosition(NamedTuple):
    """An offset, and the byte of the log from which to look for it."""

    offset: int
    position: int


class OffsetIndex(SparseIndex):
    """Entries of an ``.index`` file."""

    entry_bytes = _OFFSET_ENTRY.size
    key_bytes = 4

    def entry(self, slot: int) -> OffsetPosition:
        """Entry `slot`, from 0."""
        relative_offset, position = _OFFSET_ENTRY.unpack(self._raw(slot))
        return OffsetPosition(self.base_offset + relative_offset, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """Entry with the greatest offset not above `offset`, or the start of the segment."""
        slot = self._floor(offset - self.base_offset)
        return self.entry(slot) if slot >= 0 else OffsetPosition(self.base_offset, 0)

    def lookup_before(self, offset: int) -> OffsetPosition:
        """The entry before the one that `lookup` finds, or the start of the segment."""
        slot = self._floor(offset - self.base_offset) - 1
        return self.entry(slot) if slot >= 0 else OffsetPosition(self.base_offset, 0)

    def entries_from(self, offset: int) -> Iterator[OffsetPosition]:
        """Entries from the one with the least offset that is not below `offset`."""
        for slot in range(self._floor(offset - 1 - self.base_offset) + 1, self.n_entries):
            yield self.entry(slot)

    def last_at_or_before_position(self, position: int) -> OffsetPosition:
        """Entry with the greatest position not above `position`, or the start of the segment."""
        # The position of a damaged entry may be negative, and no byte of the log is there.
        slot = self.slot_at_or_before_position(position)
        found = self.entry(slot) if slot >= 0 else None
        if found is None or found.position < 0:
            return OffsetPosition(self.base_offset, 0)
        return found

    def slot_at_or_before_position(self, position: int) -> int:
        """Slot of the entry with the greatest position not above `position`, or -1."""
        last = self.n_entries - 1
        return _last_slot(-1, last, lambda slot: self.entry(slot).position <= position)


#: An entry as in the file, for many at a time; `_TIME_ENTRY` is for one.
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_TIME_ENTRY = struct.Struct(">qi")


class TimeIndex(SparseIndex):
    """Entries of a ``.timeindex`` file."""

    entry_bytes = _TIME_ENTRY.size
    key_bytes = 8

    def entry(self, slot: int) -> TimestampAndOffset:
        """Entry `slot`, from 0."""
        timestamp_ms, relative_offset = _TIME_ENTRY.unpack(self._raw(slot))
        return TimestampAndOffset(timestamp_ms, self.base_offset + relative_offset)

    def lookup(self, timestamp_ms: int) -> TimestampAndOffset:
        """Entry with the greatest timestamp not above `timestamp_ms`, or (-1, base offset)."""
        slot = self._floor(timestamp_ms)
        return self.entry(slot) if slot >= 0 else TimestampAndOffset(-1, self.base_offset)

    def lookup_before(self, timestamp_ms: int) -> TimestampAndOffset:
        """The last entry but one below `timestamp_ms`, or (-1, base offset)."""
        slot = self._floor(timestamp_ms - 1)
        # Nothing in the log contradicts a wrong offset in an entry if many batches have the
        # entry's timestamp. But the offset is too high only if it is not below the offset of the
        # next entry as well, or if that entry still shows that all records up to there are older.
        if slot > 0:
            found, after = self.entry(slot - 1), self.entry(slot)
            if found.timestamp_ms <= after.timestamp_ms and found.offset <= after.offset:
                return found
        return TimestampAndOffset(-1, self.base_offset)

    def last(self) -> TimestampAndOffset:
        """The last entry, which has a closed segment's largest timestamp, or (-1, base offset)."""
        return self.entry(self.n_entries - 1) if self.n_entries else self.lookup(LEAST_LONG)


_TRANSACTION = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """An entry of a ``.txnindex`` file."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def read_transaction_index(path: str) -> Iterator[AbortedTransaction]:
    """Every entry of the file, in its order; no entries if the file is missing.

    Raises `CorruptIndexError` if its length is not a whole number of entries, an entry has another
    version than 0, or its last offset is not above that of the entry before; it is raised after
    the entries before.
    """
    try:
        data = read_whole(path, lambda reason: CorruptIndexError(path, f"it {reason}"))
    except FileNotFoundError:
        return
    left, before = len(data) % _TRANSACTION.size, -1
    entries = _TRANSACTION.iter_unpack(data[: len(data) - left])
    for number, (version, *fields) in enumerate(entries):
        if version:
            raise CorruptIndexError(path, f"expected entries of version 0, found {version}")
        entry = AbortedTransaction(*fields)
        if entry.last_offset <= before:
            reason = (
                f"entry {number} has last offset {entry.last_offset}, and the one before has "
                f"{before}: expected offsets that rise"
            )
            raise CorruptIndexError(path, reason)
        before = entry.last_offset
        yield entry
    if left:
        raise CorruptIndexError(
            path, f"its size of {len(data)} bytes is not a multiple of 34, the size of an entry"
        )


def encode_transactions(entries: Iterable[AbortedTransaction]) -> bytes:
    """Bytes of a file with these entries."""
    return b"".join(_TRANSACTION.pack(0, *each) for each in entries)
