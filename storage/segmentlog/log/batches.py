"""The batches of a log, many in a call: headers alone, and the end markers among them.

`walk_batches` walks headers from an offset on, across segment boundaries.  Bodies of large batches
are not read, and no body is checked: headers and end markers answer questions about transactions
and producers.  `segmentlog.log.windows` reads whole batches.

`EndMarkers` finds the batches of aborted transactions.  The log itself decides.  A broker keeps
aborted transactions in ``.txnindex`` files (``CleanedTransactionMetadata``, ``TransactionIndex``).
A missing file looks like a file without aborts, and a broker that starts cleanly does not rebuild
it.  Batches are asked for in the order of the log.  If the marker of a batch has not been seen
yet, the log is walked ahead until it is found.  A log without transactions costs nothing.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from segmentlog.errors import TruncatedBatchError
from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.kernels.transactions import (
    COMMIT,
    FILE_DESCRIPTOR,
    FILE_FLAGS,
    FILE_POSITION,
    FILE_PREADV2,
    MARKER_OFFSET,
    MARKER_PRODUCER_ID,
    N_FILE_COLUMNS,
    N_MARKER_COLUMNS,
    collect_markers,
    flag_aborted,
    walk_file_headers,
    walk_headers,
)
from segmentlog.format.records.header import ScannedBatches, batch_error, parse_header
from segmentlog.log.damage import position_of
from segmentlog.log.segment import Segment, file_of, from_offset
from segmentlog.model import LARGEST_LONG, LEAST_LONG
from segmentlog.native import address_of
from segmentlog.store.readable import ReadableFile

_WINDOW_BYTES = 1 << 20
_TABLE_ROWS = 1 << 14

_SPARSE_BYTES = 8 << 20

#: Batches of at least this size are not read as a whole.
_LARGE_BATCH_BYTES = 128 << 10
_SMALL_WINDOW_BYTES = 4 << 10


class WalkedBatches(NamedTuple):
    """Some batches of one segment, in order."""

    #: the batches, valid until the next step; their headers lie in its buffer, and control batches
    #: to their end
    scanned: ScannedBatches
    #: int64 array, shape (n_markers, `N_MARKER_COLUMNS`); the end markers among them
    markers: Int64s
    next_offset: int  # the offset after them


def walk_batches(
    segments: Sequence[Segment],
    start_offset: int,
    *,
    passes_damage: bool = False,
    is_whole: bool = False,
) -> Iterator[WalkedBatches]:
    """Batches from the one that holds `start_offset`, or follows it, to the end of `segments`.

    With `passes_damage`, damage that lies wholly below `start_offset` is left out.  A batch that
    is cut short by the end of its segment ends the walk through that segment.  If each segment
    `is_whole`, such a batch is an error: its length is wrong, and batches may hide behind it.

    Raises `CorruptLogError` or `UnsupportedFormatError` if a header cannot be true, or an end
    marker cannot be read; `FileNotFoundError` if a file is gone.
    """
    headers: Int64s = np.empty((_TABLE_ROWS, layout.N_HEADER_COLUMNS), np.int64)
    for segment in from_offset(segments, start_offset):
        position, least_offset = 0, LEAST_LONG
        if segment.base_offset < start_offset:
            least_offset = start_offset
            with segment.opened() as opened:
                position = position_of(opened, start_offset, passes_damage=passes_damage)
        with file_of(segment) as file:
            at = position
            for walked in walk_file(
                segment.path, file, position, segment.size, least_offset, headers
            ):
                yield walked
                at = walked.scanned.position_of(-1)
                position = walked.scanned.file_end
        if is_whole and position != segment.size:
            at = at if position > segment.size else position
            left = segment.size - at
            raise TruncatedBatchError(segment.path, at, -1, max(position - at, left + 1), left)


def walk_file(
    path: str,
    file: ReadableFile,
    position: int,
    end: int,
    start_offset: int = LEAST_LONG,
    headers: Int64s | None = None,
) -> Iterator[WalkedBatches]:
    """The batches of one file between two bytes; see `walk_batches`.

    `end`: byte after the last batch.  `start_offset`: batches that lie wholly below it are left
    out; by default none, as no checksum covers offsets.  `headers`: table to use for all batches;
    read and written.
    """
    if headers is None:
        headers = np.empty((_TABLE_ROWS, layout.N_HEADER_COLUMNS), np.int64)
    wanted, in_memory = _WINDOW_BYTES, HeadersInMemory(file.descriptor, end - position)
    while position < end:
        buf, code, after, n_batches = in_memory.walk(position, end, headers)
        if not n_batches:
            buf = np.empty(min(wanted, end - position), np.uint8)
            buf = buf[: file.read_into(buf.data, position)]
            code, after, n_batches = walk_headers(buf, 0, len(buf), headers)
        scanned = ScannedBatches(path, buf, headers[:n_batches], position)
        if code >= status.BAD_LENGTH and not n_batches:
            raise batch_error(scanned, after, len(buf), code)
        if not n_batches:
            if len(buf) < wanted or parse_header(buf.data).size_in_bytes > end - position:
                return
            wanted = 2 * wanted  # a control batch is larger than the window: read on
            continue
        # No search: offsets rise in a sound log only, and a damaged one must hide no other batch.
        reaching = np.flatnonzero(scanned.headers[:, layout.LAST_OFFSET] >= start_offset)
        if len(reaching):
            found = scanned.only(slice(int(reaching[0]), None))
            yield WalkedBatches(found, markers_among(found), found.next_offset)
        position += after
        is_large = after > n_batches * _LARGE_BATCH_BYTES
        wanted = _SMALL_WINDOW_BYTES if is_large else _WINDOW_BYTES


class HeadersInMemory:
    """Walks the headers of a local file that the system has in memory, and copies them alone.

    A header that has to come from a disk is left to the caller: a read of it alone would wait for
    the disk each time, and a large read lets the system read ahead.

    `n_bytes`: of the file, that are walked in all.
    """

    def __init__(self, descriptor: int | None, n_bytes: int) -> None:
        self._buf: Bytes = np.empty(0, np.uint8)
        self._file: Int64s = np.zeros(N_FILE_COLUMNS, np.int64)
        preadv2 = 0 if descriptor is None else _address_of_preadv2()
        if preadv2 and descriptor is not None:
            # Between headers, its pages are never touched, and take no memory.
            self._buf = np.empty(min(_SPARSE_BYTES, max(n_bytes, 0)), np.uint8)
            self._file[FILE_DESCRIPTOR], self._file[FILE_PREADV2] = descriptor, preadv2
            self._file[FILE_FLAGS] = os.RWF_NOWAIT

    def walk(self, position: int, end: int, headers: Int64s) -> tuple[Bytes, int, int, int]:
        """The next batches, whose first begins at byte `position` of the file; none at `end`.

        Returns a buffer that holds their headers, each at its place after `position`, and control
        batches to their end, valid until the next call; and what `walk_headers` returns.
        """
        buf = self._buf[: end - position]
        if not len(buf):
            return buf, status.NEED_MORE, 0, 0
        self._file[FILE_POSITION] = position
        return buf, *walk_file_headers(buf, headers, self._file)


def _address_of_preadv2() -> int:
    return address_of("preadv2") if hasattr(os, "RWF_NOWAIT") else 0


def markers_among(batches: ScannedBatches) -> Int64s:
    """End markers among batches that lie whole in their buffer, if they are control batches.

    Returns an int64 array, shape (n_markers, `N_MARKER_COLUMNS`).  Raises `MalformedBatchError` if
    a transactional control batch is neither a commit nor an abort marker.
    """
    headers = batches.headers
    is_control = headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0
    markers: Int64s = np.empty((int(is_control.sum()), N_MARKER_COLUMNS), np.int64)
    if not len(markers):
        return markers
    n_markers, bad_row = collect_markers(batches.buf, headers, markers)
    if bad_row >= 0:
        raise batches.malformed(bad_row, status.REASONS[status.BAD_MARKER])
    return markers[:n_markers]


#: Called for the first batch of a transaction that never ends, with the batches and its row.  It
#: raises an error, or returns `COMMIT` or `ABORT`, by which the whole transaction counts.
TornTransactions = Callable[[ScannedBatches, int], int]


def as_committed(batches: ScannedBatches, row: int) -> int:
    """Count a transaction without an end marker as committed: its records stay."""
    return COMMIT


class EndMarkers:
    """The transactions of one log, whose batches are asked for in the order of the log.

    `walk`: the batches from an offset to the end of the log, to look ahead in.  `torn`: decides
    about transactions that have no end marker in the log.  `least_records`: a batch with fewer
    records needs no marker.  Compaction has to decide about batches that it has emptied earlier,
    too; to a reader they do not matter.
    """

    def __init__(
        self,
        walk: Callable[[int], Iterator[WalkedBatches]],
        torn: TornTransactions = as_committed,
        *,
        least_records: int = 0,
    ) -> None:
        self._walk, self._torn, self._least_records = walk, torn, least_records
        self._markers: Int64s = np.empty((0, N_MARKER_COLUMNS), np.int64)  # by producer and offset
        self._seen_to = -1  # offset up to which markers are known

    def find_aborted(self, batches: ScannedBatches, next_offset: int) -> Bytes:
        """Flag aborted ones of the next batches of the log: uint8 array, shape (n_batches,).

        `next_offset`: offset after the last batch that was read; `batches` may lack that batch.
        Raises `MalformedBatchError` if an end marker cannot be read.
        """
        headers = batches.headers
        is_aborted: Bytes = np.zeros(len(headers), np.uint8)
        seen_to, self._seen_to = self._seen_to, max(self._seen_to, next_offset)
        if not np.bitwise_or.reduce(headers[:, layout.ATTRIBUTES]) & layout.TRANSACTIONAL_MASK:
            return is_aborted
        self._add(markers_among(batches.only(headers[:, layout.BASE_OFFSET] >= seen_to)))
        is_needed = self._markers[:, MARKER_OFFSET] >= headers[0, layout.BASE_OFFSET]
        self._markers = self._markers[is_needed]
        undecided = self._decide(headers, 0, is_aborted)
        if undecided < len(headers):
            self._look_ahead(batches, undecided, is_aborted)
        return is_aborted

    def _look_ahead(self, batches: ScannedBatches, undecided: int, is_aborted: Bytes) -> None:
        """Walk on until each batch is decided, or the log ends."""
        headers = batches.headers
        for walked in self._walk(self._seen_to):
            self._add(walked.markers)
            self._seen_to = max(self._seen_to, walked.next_offset)
            undecided = self._decide(headers, undecided, is_aborted)
            if undecided == len(headers):
                return
        while undecided < len(headers):
            counts_as = self._torn(batches, undecided)
            producer_id = headers[undecided, layout.PRODUCER_ID]
            self._add(np.array([[producer_id, LARGEST_LONG, counts_as]], np.int64))
            undecided = self._decide(headers, undecided, is_aborted)

    def _decide(self, headers: Int64s, begin: int, is_aborted: Bytes) -> int:
        return flag_aborted(headers, begin, self._markers, is_aborted, self._least_records)

    def _add(self, markers: Int64s) -> None:
        if len(markers):
            joined = np.concatenate([self._markers, markers])
            order = np.lexsort((joined[:, MARKER_OFFSET], joined[:, MARKER_PRODUCER_ID]))
            self._markers = joined[order]
