"""Walk the batch headers of a log from an offset on, many in a call, across segment boundaries.

Bodies of large batches are not read, and no body is checked: headers and end markers answer
questions about transactions and producers.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.kernels.transactions import N_MARKER_COLUMNS, collect_markers, walk_headers
from segmentlog.format.records.scanned_batches import ScannedBatches, batch_error
from segmentlog.log.damage import position_of
from segmentlog.log.segment import Segment
from segmentlog.store.readable import ReadableFile, open_file

_WINDOW_BYTES = 1 << 20
_TABLE_ROWS = 1 << 14

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
    segments: Sequence[Segment], start_offset: int, *, passes_damage: bool = False
) -> Iterator[WalkedBatches]:
    """Batches from the one that holds `start_offset`, or follows it, to the end of `segments`.

    With `passes_damage`, damage that lies wholly below `start_offset` is left out.  A batch that
    is cut short by the end of its segment ends the walk through that segment.

    Raises `CorruptLogError` or `UnsupportedFormatError` if a header cannot be true, or an end
    marker cannot be read; `FileNotFoundError` if a file is gone.
    """
    headers: Int64s = np.empty((_TABLE_ROWS, layout.N_HEADER_COLUMNS), np.int64)
    for i, segment in enumerate(segments):
        if i + 1 < len(segments) and segments[i + 1].base_offset <= start_offset:
            continue
        is_cut = segment.base_offset < start_offset
        position = 0
        if is_cut:
            with segment.opened() as opened:
                position = position_of(opened, start_offset, passes_damage=passes_damage)
        with open_file(segment.path) as file:
            yield from walk_file(segment.path, file, position, segment.size, start_offset, headers)


def walk_file(
    path: str,
    file: ReadableFile,
    position: int,
    end: int,
    start_offset: int = 0,
    headers: Int64s | None = None,
) -> Iterator[WalkedBatches]:
    """The batches of one file between two bytes; see `walk_batches`.

    `end`: byte after the last batch.  `start_offset`: batches that lie wholly below it are left
    out.  `headers`: table to use for all batches; read and written.
    """
    if headers is None:
        headers = np.empty((_TABLE_ROWS, layout.N_HEADER_COLUMNS), np.int64)
    wanted = _WINDOW_BYTES
    while position < end:
        n_bytes = min(wanted, end - position)
        buf: Bytes = np.empty(n_bytes, np.uint8)
        buf = buf[: file.read_into(buf.data, position)]
        code, after, n_batches = walk_headers(buf, 0, len(buf), headers)
        scanned = ScannedBatches(path, buf, headers[:n_batches], position)
        if code >= status.BAD_LENGTH and not n_batches:
            raise batch_error(scanned, after, len(buf), code)
        if not n_batches:
            if len(buf) < wanted:
                return
            wanted = 2 * wanted  # a control batch is larger than the window: read on
            continue
        first = int(np.searchsorted(scanned.headers[:, layout.LAST_OFFSET], start_offset))
        if first < n_batches:
            found = scanned.only(slice(first, None))
            yield WalkedBatches(found, markers_among(found), found.next_offset)
        position += after
        is_large = after > n_batches * _LARGE_BATCH_BYTES
        wanted = _SMALL_WINDOW_BYTES if is_large else _WINDOW_BYTES


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
