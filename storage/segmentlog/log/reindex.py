"""Build the indexes of a segment again from its batches (``LogSegment.recover``)."""

from collections.abc import Iterator

import numpy as np

from segmentlog.files.durable import replace_file
from segmentlog.kernels import append as columns
from segmentlog.kernels import layout
from segmentlog.kernels.append import take_batches
from segmentlog.kernels.memory import Int64s
from segmentlog.log.entries import encode_offsets, encode_times, last_time, new_state
from segmentlog.log.segment import Segment
from segmentlog.log.walk import walk_batches

__all__ = ["rebuild_indexes"]

_UNLIMITED = 2**62


def rebuild_indexes(segment: Segment, end: int, interval_bytes: int) -> None:
    """Replace ``.index`` and ``.timeindex``.

    Parameters
    ----------
    segment : whose.
    end : byte behind its last good batch.
    interval_bytes : of log from entry to entry (``index.interval.bytes``).
    """
    limits: Int64s = np.full(columns.LIMIT_COLUMNS, _UNLIMITED, np.int64)
    limits[columns.INDEX_INTERVAL_BYTES] = interval_bytes
    state = new_state(segment.base_offset)
    offsets, times = [], []
    for headers in _headers(segment, end):
        entries: Int64s = np.empty((len(headers), columns.ENTRY_COLUMNS), np.int64)
        _, n_entries = take_batches(headers, 0, limits, state, entries)
        offsets.append(encode_offsets(entries[:n_entries]))
        times.append(encode_times(entries[:n_entries]))
    times.append(last_time(state))
    replace_file(segment.offset_index_path, b"".join(offsets))
    replace_file(segment.time_index_path, b"".join(times))


def _headers(segment: Segment, end: int) -> Iterator[Int64s]:
    """Headers of a segment's batches, those behind byte `end` left out."""
    for batches in walk_batches([segment], segment.base_offset):
        is_within = batches.headers[:, layout.POSITION] + batches.file_position < end
        yield batches.headers[is_within]
