"""Compare every entry of a segment's offset and time index with its batch.

An offset entry points to the first byte of an append, and names an offset at or after the last
offset of the batch there.  A time entry names an offset, and the largest timestamp up to the end
of the batch that holds the offset (``LogSegment.append``).
"""

import contextlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from segmentlog.log.segment import Segment
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding, Severity
from segmentlog.store.paths import is_bucket
from segmentlog.store.readable import after_zeros, exists, open_file, status_of


def index_remedy(segment: Segment) -> str:
    """How a broker comes to rebuild all indexes of a segment: only if its offset index is missing.

    ``LogLoader.loadSegmentFiles``.
    """
    if exists(segment.offset_index_path):
        return (
            "delete the segment's .index file: a broker that starts then rebuilds all of its "
            "indexes"
        )
    return "a broker that starts rebuilds all indexes of the segment, as it has no .index file"


_PIECE_ENTRIES = 1 << 16


class _Entries:
    """Entries of one index file, taken in their order.

    Entries end before a long run of zeros, as Kafka preallocates them, and before more entries
    than the segment can have batches.  `stray` is the first byte after that end that is not zero,
    or -1 if there is none.
    """

    def __init__(self, path: str, dtype: np.dtype[np.void], segment: Segment) -> None:
        self.path = path
        self.entry_bytes = dtype.itemsize
        self.n_bytes, self.stray = 0, -1
        read = bytearray()
        try:
            with open_file(path) as file:
                self.n_bytes = file.status().size
                most = dtype.itemsize * (segment.size // layout.SMALLEST_BATCH_BYTES + 2)
                n_bytes = dtype.itemsize * _PIECE_ENTRIES
                while len(read) < min(most, self.n_bytes):
                    piece = file.read(len(read), n_bytes)
                    if not piece.strip(b"\0"):
                        break
                    read += piece
                rest = after_zeros(file, len(read), self.n_bytes)
                self.stray = rest if rest < self.n_bytes else -1
        except FileNotFoundError:
            pass
        data = np.frombuffer(read, np.uint8)
        rows = data[: len(data) // dtype.itemsize * dtype.itemsize].view(dtype)
        used = np.flatnonzero(rows.view((np.uint8, dtype.itemsize)).any(axis=1))
        rows = rows[: int(used[-1]) + 1 if len(used) else 0]  # preallocated after the last entry
        self.offsets: Int64s = rows["offset"].astype(np.int64) + segment.base_offset
        second = "position" if "position" in (dtype.names or ()) else "timestamp"
        self.others: Int64s = rows[second].astype(np.int64)
        self.done = 0

    def take(self, keys: Int64s, until: int) -> slice:
        """The next entries whose key is below `until`."""
        begin = self.done
        self.done = begin + int(np.searchsorted(keys[begin:], until))
        return slice(begin, self.done)


class IndexCheck:
    """Checks the indexes of one segment while its batches are read.

    `is_leaving`: whether the segment lies below the log start: its indexes may be deleted already.
    """

    def __init__(self, segment: Segment, finding: MakeFinding, *, is_leaving: bool) -> None:
        self._segment = segment
        self._finding = finding
        self._is_leaving = is_leaving
        self._by_offset = _Entries(segment.offset_index_path, OFFSET_ENTRY, segment)
        self._by_time = _Entries(segment.time_index_path, TIME_ENTRY, segment)
        self._largest = -1
        self._is_largest_known = True

    def follow(self, batches: ScannedBatches) -> Iterator[Finding]:
        """Check the entries that point to these batches."""
        headers = batches.headers
        positions = headers[:, layout.POSITION] + batches.file_position
        last = headers[:, layout.LAST_OFFSET]
        yield from self._offset_entries(positions, last, positions[-1] + headers[-1, layout.SIZE])
        yield from self._time_entries(headers, last)

    def unreadable(self, end: int, next_offset: int) -> None:
        """Leave out the entries of damaged bytes, up to byte `end` and below `next_offset`.

        They may be correct, and then lead around the damage.
        """
        self._by_offset.take(self._by_offset.others, end)
        self._by_time.take(self._by_time.offsets, next_offset)
        self._is_largest_known = False  # the largest timestamp may be among these bytes

    def _offset_entries(self, positions: Int64s, last: Int64s, end: int) -> Iterator[Finding]:
        entries = self._by_offset
        part = entries.take(entries.others, end)
        at = np.searchsorted(positions, entries.others[part])
        nearest = np.minimum(at, len(positions) - 1)
        is_good = (positions[nearest] == entries.others[part]) & (
            last[nearest] <= entries.offsets[part]
        )
        message = "byte {other} is not where an append with offset {offset} begins"
        yield from self._report(FindingKind.OFFSET_INDEX, entries, part, is_good, message)

    def _time_entries(self, headers: Int64s, last: Int64s) -> Iterator[Finding]:
        entries = self._by_time
        times, before = headers[:, layout.MAX_TIMESTAMP], self._largest
        self._largest = max(before, int(times.max()))
        part = entries.take(entries.offsets, int(last[-1]) + 1)
        if part.start == part.stop:
            return
        largest = np.maximum.accumulate(np.maximum(times, before))
        at = np.minimum(np.searchsorted(last, entries.offsets[part]), len(last) - 1)
        # Brokers index the time at which they append messages that have no timestamps themselves.
        has_none = headers[at, layout.ATTRIBUTES] & layout.NO_TIMESTAMP_MASK != 0
        is_good = (largest[at] == entries.others[part]) | has_none
        if not self._is_largest_known:
            is_good |= largest[at] < entries.others[part]
        message = "{other} is not the largest timestamp up to offset {offset}"
        yield from self._report(FindingKind.TIME_INDEX, entries, part, is_good, message)

    def _report(
        self,
        kind: FindingKind,
        entries: _Entries,
        part: slice,
        is_good: NDArray[np.bool_],
        message: str,
    ) -> Iterator[Finding]:
        bad = (np.flatnonzero(~is_good) + part.start).tolist()
        remedy = index_remedy(self._segment) if bad else ""
        for slot in bad:
            offset, other = int(entries.offsets[slot]), int(entries.others[slot])
            yield self._finding(
                kind, entries.path,
                f"entry {slot}: {message.format(offset=offset, other=other)}; {remedy}",
                position=slot * entries.entry_bytes, offset=offset,
            )  # fmt: skip

    def at_the_end(self) -> Iterator[Finding]:
        """Entries without a batch, and files that are missing or cut short."""
        yield from self._cut_short()
        remedy = index_remedy(self._segment)
        has_grown = self._segment.is_active
        if has_grown:
            with contextlib.suppress(FileNotFoundError):  # rolled, and retained or compacted
                has_grown = status_of(self._segment.path).size > self._segment.size
        for kind, entries in (
            (FindingKind.OFFSET_INDEX, self._by_offset),
            (FindingKind.TIME_INDEX, self._by_time),
        ):
            rest = slice(entries.done, len(entries.offsets))
            if has_grown:
                # A writer has appended since the log was listed, or has not decided yet.
                rest = slice(rest.start, rest.start)
            nothing = np.zeros(rest.stop - rest.start, np.bool_)
            yield from self._report(kind, entries, rest, nothing, "{other}, {offset} is not there")
            if entries.stray >= 0:
                yield self._finding(
                    kind, entries.path,
                    f"its entries end at entry {len(entries.offsets)}, and the bytes from "
                    f"{entries.stray} on cannot be entries; {remedy}",
                    position=entries.stray,
                )  # fmt: skip
            if entries.n_bytes % entries.entry_bytes:
                yield self._finding(
                    kind, entries.path,
                    f"its size of {entries.n_bytes} bytes is not a multiple of "
                    f"{entries.entry_bytes}; {remedy}",
                    position=entries.n_bytes, severity=Severity.WARNING,
                )  # fmt: skip
            elif self._segment.size and not exists(entries.path) and not is_bucket(entries.path):
                severity, reason = Severity.WARNING, remedy
                if self._is_leaving:
                    severity, reason = Severity.NOTE, "the segment lies below the log start"
                yield self._finding(
                    kind, entries.path, f"the file is missing; {reason}",
                    offset=self._segment.base_offset, severity=severity,
                )  # fmt: skip

    def _cut_short(self) -> Iterator[Finding]:
        """A time index whose last entry is older than the newest record of a closed segment.

        A broker adds that entry when it closes the segment, and later finds the segment by it
        (``LogSegment.onBecomeInactiveSegment``).  segmentlog also searches the batches after it.
        """
        entries, largest = self._by_time, self._largest
        last = int(entries.others[-1]) if len(entries.others) else -1
        if self._segment.is_active or last >= largest or not exists(entries.path):
            return
        yield self._finding(
            FindingKind.TIME_INDEX, entries.path,
            f"its last entry has timestamp {last}, and the segment has {largest}: a broker does "
            f"not find newer records by time; {index_remedy(self._segment)}",
            position=entries.n_bytes, severity=Severity.WARNING,
        )  # fmt: skip
