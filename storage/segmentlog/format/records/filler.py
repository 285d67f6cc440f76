"""Records of scanned batches into columns: inflate compressed batches, parse, fill.

Each reader has its own limits for the size of an Arrow batch; the steps are equal for all readers.
"""

from collections.abc import Callable, Iterator

import numpy as np

from segmentlog.errors import SegmentLogError, TimestampOverflowError, UnsupportedFormatError
from segmentlog.format.kernels import layout, output, status
from segmentlog.format.kernels.decode import fill_records
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.kernels.message import resolve_wrappers
from segmentlog.format.records.columns import Output
from segmentlog.format.records.compression import InflateError, Inflater
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.model import (
    ALL_OFFSETS,
    MAX_INFLATED_BATCH_BYTES,
    Codec,
    OffsetRange,
    TopicPartition,
)

_INFLATE_BYTES = 4 << 20  # inflated before filling: small enough for the processor's caches

#: Makes an `Output` for the rest of some batches, for at least this many bytes and headers.
MakeRoom = Callable[[Int64s, int, int], Output]


class RecordFiller:
    """Fills columns with the records of batches.

    `max_inflated_batch_bytes`: most bytes that one batch may inflate to.  `in_microseconds`:
    partition whose timestamps are requested in microseconds, which may overflow; None for
    milliseconds as they are stored.  `state`: int64 array, the progress of `fill`; see
    `segmentlog.format.kernels.output`.
    """

    def __init__(
        self,
        offsets: OffsetRange = ALL_OFFSETS,
        max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES,
        *,
        in_microseconds: TopicPartition | None = None,
    ) -> None:
        self._offsets = offsets
        self._in_microseconds = in_microseconds
        self._inflater = Inflater(max_inflated_batch_bytes)
        self.state: Int64s = np.zeros(output.N_STATE, np.int64)

    @property
    def inflated(self) -> Bytes:
        """The bytes that headers of inflated batches point at; a later `inflate` replaces them."""
        return self._inflater.buffer

    def inflate(self, batches: ScannedBatches) -> int:
        """Inflate compressed batches and point headers at the result; return the rows ready.

        A call inflates about `_INFLATE_BYTES`, because a window of a few MiB may inflate to
        gigabytes.  It overwrites the result of the previous call.  It ends before a bad batch, so
        that the rows before that batch are returned before its error is raised.

        No other Python loop runs once for each batch, so this loop does as little as possible.

        Raises `MalformedBatchError` or `UnsupportedFormatError` if the first of `batches` cannot
        be inflated.
        """
        self._inflater.clear()
        headers = batches.headers
        attributes = headers[:, layout.ATTRIBUTES]
        rows = np.flatnonzero(attributes & layout.CODEC_MASK)
        if not len(rows):
            return len(headers)
        codecs = (attributes[rows] & layout.CODEC_MASK).tolist()
        are_magic_0 = (attributes[rows] & layout.NO_TIMESTAMP_MASK != 0).tolist()
        begins = headers[rows, layout.RECORDS_START].tolist()
        ends = headers[rows, layout.RECORDS_END].tolist()
        view, append, inflater = batches.buf.data, self._inflater.append, self._inflater
        ranges = []
        try:
            for codec, begin, end, is_magic_0 in zip(
                codecs, begins, ends, are_magic_0, strict=True
            ):
                if inflater.end >= _INFLATE_BYTES:
                    break
                ranges.append(append(codec, view[begin:end], is_magic_0=is_magic_0))
        except (InflateError, ValueError) as error:
            if rows[len(ranges)] == 0:
                raise _inflate_error(batches, 0, error) from error
        done = rows[: len(ranges)]
        headers[done, layout.RECORDS_START] = [begin for begin, _ in ranges]
        headers[done, layout.RECORDS_END] = [end for _, end in ranges]
        n_ready = len(headers) if len(done) == len(rows) else int(rows[len(done)])
        if not (attributes[rows] & layout.LEGACY_MASK).any():
            return n_ready
        code, row = resolve_wrappers(self._inflater.buffer, headers[:n_ready])
        if code == status.OK:
            return n_ready
        if row == 0:
            raise self._error(batches, row, code)
        again = done >= row  # of the next call
        headers[done[again], layout.RECORDS_START] = np.array(begins)[: len(done)][again]
        headers[done[again], layout.RECORDS_END] = np.array(ends)[: len(done)][again]
        return row

    def fill(self, batches: ScannedBatches, make_room: MakeRoom) -> Iterator[Output]:
        """Columns of `batches`, whose records are all inflated; `state` has the number of rows.

        The records of the batches before a bad batch are returned before the error is raised.

        Raises `MalformedBatchError` if records contradict their header or themselves;
        `TimestampOverflowError` if a record's timestamp is requested and does not fit
        microseconds.
        """
        headers, state, error = batches.headers, self.state, None
        scale = 1000 if self._in_microseconds else 1
        state[output.BATCH], state[output.RECORD] = 0, -1
        n_bytes = n_headers = 0
        while state[output.BATCH] < len(headers):
            room = make_room(headers[state[output.BATCH] :], n_bytes, n_headers)
            begun = state.copy()
            room.begin(state)
            code = fill_records(
                batches.buf, self._inflater.buffer, headers, *self._offsets, scale, room.arrays,
                state,
            )  # fmt: skip
            if code not in (status.OK, status.OUTPUT_FULL):
                bad = int(state[output.BATCH])
                error = self._error(batches, bad, code)
                headers, state[:] = headers[:bad], begun
                continue
            n_bytes = n_headers = 0
            if code == status.OUTPUT_FULL:
                # The record that did not fit gets enough room in the next output.
                n_bytes, n_headers = int(state[output.DETAIL]), int(state[output.DETAIL_2])
            if state[output.N_ROWS]:
                yield room
        if error is not None:
            raise error

    def _error(self, batches: ScannedBatches, row: int, code: int) -> SegmentLogError:
        """The error for a status of `fill_records`, with its place."""
        if code == status.TIMESTAMP_OVERFLOW and self._in_microseconds:
            offset, timestamp_ms = self.state[output.DETAIL : output.DETAIL_2 + 1].tolist()
            return TimestampOverflowError(*self._in_microseconds, offset, timestamp_ms)
        return batches.malformed(row, status.REASONS[code])


def _inflate_error(batches: ScannedBatches, row: int, error: Exception) -> SegmentLogError:
    """The error for a batch that could not be inflated."""
    codec = int(batches.headers[row, layout.ATTRIBUTES]) & layout.CODEC_MASK
    if codec > Codec.ZSTD:
        return UnsupportedFormatError(batches.path, batches.position_of(row), "codec", codec)
    return batches.malformed(row, str(error))
