"""Bytes of a log to Arrow batches: scan, check, inflate, fill.

A `BatchScanner` finds the batches of a buffer and turns a kernel's status into an error with
file, byte and offset.  A `RecordDecoder` turns what it found into Arrow batches of bounded size.
"""

import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from segmentlog.errors import (
    CorruptLogError,
    MalformedBatchError,
    SegmentLogError,
    TimestampOverflowError,
    UnsupportedFormatError,
)
from segmentlog.kernels import layout, output, status
from segmentlog.kernels.decode import fill_records
from segmentlog.kernels.memory import Bytes, Int64s
from segmentlog.kernels.message import resolve_wrappers
from segmentlog.kernels.scan import measure_batches, scan_batches, select_batches
from segmentlog.model import MAX_INFLATED_BATCH_BYTES, Codec, LogSlice, TimestampType
from segmentlog.records.batch_error import batch_error
from segmentlog.records.columns import Constants, Output, record_schema
from segmentlog.records.compression import InflateError, Inflater
from segmentlog.records.header import parse_header

__all__ = ["BatchScanner", "RecordDecoder", "read_timestamps"]

logger = logging.getLogger(__name__)

_FIRST_ROWS = 1_000  # so that ``show()`` does not wait for a full batch
_MOST_ROWS = 50_000  # the size that Spark's transport takes quickest
_MOST_BYTES = 32 << 20
_INFLATE_BYTES = 4 << 20  # inflate this much, then fill: stays near the processor's caches
_MOST_HEADERS = 4 * _MOST_ROWS
_TABLE_ROWS = 1 << 15
_NO_COLUMNS = pa.schema([])
_TIMESTAMP_MASKS = layout.TIMESTAMP_TYPE_MASK | layout.NO_TIMESTAMP_MASK


class BatchScanner:
    """Finds batches in buffers of one file, and checks them.

    Parameters
    ----------
    path : the file, for errors.
    next_offset : the least base offset that the next batch may have.
    """

    def __init__(self, path: str, next_offset: int) -> None:
        self.path = path
        self.next_offset = next_offset
        self._least_offset, self._code = next_offset, status.OK  # before, and how, the last scan
        self._headers: Int64s = np.empty((_TABLE_ROWS, layout.N_HEADER_COLUMNS), np.int64)

    def scan(self, buf: Bytes, start: int, end: int, file_position: int) -> tuple[Int64s, int]:
        """Headers of the whole batches in ``buf[start:end]``, as many as the table takes.

        Parameters
        ----------
        buf : uint8 array, shape (n_bytes,); read only
        start, end : half-open byte range that begins at a batch
        file_position : byte of the file that ``buf[0]`` is

        Returns
        -------
        headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); valid until the next
            call
        position : byte of `buf` behind the last of them; the batch there, if there is one, is
            not whole, or did not fit the table.

        Raises
        ------
        CorruptLogError, UnsupportedFormatError
            If the first batch that is not good stands before any good one; otherwise the good
            ones are returned, and the next call raises.
        """
        code, position, n_batches = scan_batches(buf, start, end, self.next_offset, self._headers)
        if code >= status.BAD_LENGTH and n_batches == 0:
            raise batch_error(self.path, buf, position, end, file_position, code)
        headers = self._headers[:n_batches]
        self._least_offset, self._code = self.next_offset, code
        if n_batches:
            self.next_offset = int(headers[-1, layout.LAST_OFFSET]) + 1
        return headers, position

    def without_liar(
        self, headers: Int64s, buf: Bytes, position: int, file_position: int
    ) -> Int64s:
        """`headers` without the last one, if offsets go back behind it and that is its fault.

        No checksum covers a base offset.  When the batch at `position` goes back, but not behind
        what came before the last of `headers`, that one has a base offset that is too high.
        """
        if self._code != status.OFFSETS_GO_BACK or not len(headers):
            return headers
        before = self._least_offset
        if len(headers) > 1:
            before = int(headers[-2, layout.LAST_OFFSET]) + 1
        next_base = parse_header(buf[position : position + layout.HEADER_BYTES].tobytes())
        if next_base.base_offset < before:
            return headers
        liar = headers[-1]
        logger.warning(
            "%s: batch at byte %d has base offset %d, and %d follows it; that batch is left out",
            self.path, file_position + int(liar[layout.POSITION]),
            int(liar[layout.BASE_OFFSET]), next_base.base_offset,
        )  # fmt: skip
        self.next_offset = before
        return headers[:-1]


class RecordDecoder:
    """Turns scanned batches of one partition into Arrow batches.

    Parameters
    ----------
    log_slice : whose topic, partition and range of offsets the rows have.
    schema : the columns wanted, of `segmentlog.records.columns`.
    max_inflated_batch_bytes : what one batch may inflate to at the most.
    """

    def __init__(
        self,
        log_slice: LogSlice,
        schema: pa.Schema,
        max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES,
    ) -> None:
        self._slice = log_slice
        self._schema = schema
        self._constants = Constants(log_slice.topic, log_slice.partition)
        self._inflater = Inflater(max_inflated_batch_bytes)
        self._state: Int64s = np.zeros(output.N_STATE, np.int64)
        self._n_rows = _FIRST_ROWS

    def decode(
        self, path: str, window: Bytes, headers: Int64s, file_position: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the batches in `headers`, control batches left out.

        Parameters
        ----------
        path : the file, for errors.
        window : uint8 array that `headers` point into; read only
        headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); written
        file_position : byte of the file that ``window[0]`` is.

        Raises
        ------
        MalformedBatchError
            If records contradict their header or themselves.
        TimestampOverflowError
            If a record's timestamp is wanted and does not fit microseconds.
        """
        log_slice = self._slice
        n_batches, any_attributes, all_attributes = select_batches(
            headers, log_slice.start_offset, log_slice.end_offset
        )
        headers = headers[:n_batches]
        # Nearly always: nothing to inflate, and one timestamp type.  Then there is nothing to
        # look at batch by batch.
        varied = any_attributes & layout.CODEC_MASK or (
            (any_attributes ^ all_attributes) & _TIMESTAMP_MASKS
        )
        begin = 0
        while begin < len(headers):
            until = len(headers)
            if varied:
                until = self._run(path, window, headers, begin, file_position)
            yield from self._fill(path, window, headers[begin:until], file_position)
            begin = until

    def find_unreadable(
        self, path: str, window: Bytes, headers: Int64s, file_position: int
    ) -> Iterator[tuple[int, CorruptLogError | UnsupportedFormatError]]:
        """Rows of `headers` whose records cannot be decoded, and why; nothing is written.

        Decodes without output, a batch at a time: only who goes on behind damage pays for it.
        """
        for row in range(len(headers)):
            one = headers[row : row + 1].copy()
            try:
                if one[0, layout.ATTRIBUTES] & layout.CODEC_MASK:
                    self._inflater.clear()
                    self._inflate(path, window, one, file_position)
                for _ in self._fill(path, window, one, file_position, is_dry=True):
                    pass
            except (CorruptLogError, UnsupportedFormatError) as error:
                yield row, error

    def _run(
        self, path: str, window: Bytes, headers: Int64s, begin: int, file_position: int
    ) -> int:
        """Choose the batches to fill together, from `begin` on, and inflate the compressed ones.

        One timestamp type, and about `_INFLATE_BYTES` of inflated records: a window of a few
        MiB may inflate to gigabytes.
        """
        types = headers[begin:, layout.ATTRIBUTES] & _TIMESTAMP_MASKS
        until = begin + _length_of_first_run(types)
        self._inflater.clear()
        return begin + self._inflate(path, window, headers[begin:until], file_position)

    def _inflate(self, path: str, window: Bytes, headers: Int64s, file_position: int) -> int:
        """Inflate compressed batches and point `headers` at the result; how many rows are ready.

        This loop is the only one that runs once a batch in Python, so it does little else.
        """
        attributes = headers[:, layout.ATTRIBUTES]
        rows = np.flatnonzero(attributes & layout.CODEC_MASK)
        if not len(rows):
            return len(headers)
        codecs = (attributes[rows] & layout.CODEC_MASK).tolist()
        are_magic_0 = (attributes[rows] & layout.NO_TIMESTAMP_MASK != 0).tolist()
        begins = headers[rows, layout.RECORDS_START].tolist()
        ends = headers[rows, layout.RECORDS_END].tolist()
        view, append, inflater = window.data, self._inflater.append, self._inflater
        ranges = []
        try:
            for codec, begin, end, is_magic_0 in zip(
                codecs, begins, ends, are_magic_0, strict=True
            ):
                if inflater.end >= _INFLATE_BYTES:
                    break
                ranges.append(append(codec, view[begin:end], is_magic_0=is_magic_0))
        except (InflateError, ValueError) as error:
            header = headers[rows[len(ranges)]]
            raise self._inflate_error(path, header, file_position, error) from error
        done = rows[: len(ranges)]
        headers[done, layout.RECORDS_START] = [begin for begin, _ in ranges]
        headers[done, layout.RECORDS_END] = [end for _, end in ranges]
        n_ready = len(headers) if len(done) == len(rows) else int(rows[len(done)])
        code, row = resolve_wrappers(self._inflater.buffer, headers[:n_ready])
        if code != status.OK:
            raise self._error(path, headers[row], file_position, code)
        return n_ready

    def _inflate_error(
        self, path: str, header: Int64s, file_position: int, error: Exception
    ) -> SegmentLogError:
        """What is wrong with a batch that could not be inflated."""
        codec = int(header[layout.ATTRIBUTES]) & layout.CODEC_MASK
        position = file_position + int(header[layout.POSITION])
        if codec > Codec.ZSTD:
            return UnsupportedFormatError(path, position, "codec", codec)
        base_offset = int(header[layout.BASE_OFFSET])
        return MalformedBatchError(path, position, base_offset, str(error))

    def _fill(
        self,
        path: str,
        window: Bytes,
        headers: Int64s,
        file_position: int,
        *,
        is_dry: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Arrow batches of `headers`, whose records are all inflated and of one timestamp type.

        A dry run checks every record, in and out of the slice's range, and yields nothing.
        """
        if not len(headers):
            return
        timestamp_type = _timestamp_type(int(headers[0, layout.ATTRIBUTES]))
        state = self._state
        state[output.BATCH], state[output.RECORD] = 0, -1
        n_bytes = n_headers = 0
        while state[output.BATCH] < len(headers):
            schema = _NO_COLUMNS if is_dry else self._schema
            room = self._room_for(schema, headers[state[output.BATCH] :], n_bytes, n_headers)
            room.begin(state)
            code = fill_records(
                window, self._inflater.buffer, headers,
                self._slice.start_offset, self._slice.end_offset, 1000, room.arrays, state,
            )  # fmt: skip
            if code not in (status.OK, status.OUTPUT_FULL):
                raise self._error(path, headers[state[output.BATCH]], file_position, code)
            n_bytes = n_headers = 0
            if code == status.OUTPUT_FULL:
                # What did not fit is offered room of its own next time.
                n_bytes, n_headers = int(state[output.DETAIL]), int(state[output.DETAIL_2])
            if state[output.N_ROWS] and not is_dry:
                self._n_rows = _MOST_ROWS
                yield room.to_arrow(state, self._constants, timestamp_type)

    def _room_for(
        self, schema: pa.Schema, headers: Int64s, n_bytes: int, n_headers: int
    ) -> Output:
        """Memory for the next rows: no more than `headers` can fill, and at least one record."""
        n_records, most = measure_batches(headers)
        n_rows = min(self._n_rows, n_records)
        n_bytes = max(n_bytes, min(_MOST_BYTES, most))
        n_headers = max(n_headers, min(_MOST_HEADERS, most // 2))
        return Output(schema, n_rows, n_bytes, n_headers)

    def _error(self, path: str, header: Int64s, file_position: int, code: int) -> SegmentLogError:
        """What a status of `fill_records` means, with its place."""
        if code == status.TIMESTAMP_OVERFLOW:
            offset, timestamp_ms = (
                int(n) for n in self._state[output.DETAIL : output.DETAIL_2 + 1]
            )
            topic, partition = self._slice.topic, self._slice.partition
            return TimestampOverflowError(topic, partition, offset, timestamp_ms)
        position = file_position + int(header[layout.POSITION])
        base_offset = int(header[layout.BASE_OFFSET])
        return MalformedBatchError(path, position, base_offset, status.REASONS[code])


def _timestamp_type(attributes: int) -> TimestampType:
    """Of a row of the table of headers."""
    if attributes & layout.NO_TIMESTAMP_MASK:
        return TimestampType.NO_TIMESTAMP_TYPE
    return TimestampType(int(bool(attributes & layout.TIMESTAMP_TYPE_MASK)))


def _length_of_first_run(values: Int64s) -> int:
    """How many of `values`, from the first on, are equal."""
    changes = np.flatnonzero(values != values[0])
    return int(changes[0]) if len(changes) else len(values)


def read_timestamps(batch: bytes, path: str, position: int) -> tuple[Int64s, Int64s]:
    """Offsets and timestamps of the records of one batch, to look a record up by time.

    Parameters
    ----------
    batch : the whole batch.
    path, position : where it stands, for errors.

    Returns
    -------
    offsets, timestamps_ms : int64 arrays, shape (n_records,), in the order of the records

    Raises
    ------
    CorruptLogError, UnsupportedFormatError
    """
    buf = np.frombuffer(batch, np.uint8)
    headers, _ = BatchScanner(path, -(2**63)).scan(buf, 0, len(buf), position)
    if not len(headers):
        header = parse_header(batch)
        reason = status.REASONS[status.RECORD_TOO_LONG]
        raise MalformedBatchError(path, position, header.base_offset, reason)
    whole = LogSlice("", 0, int(headers[0, layout.BASE_OFFSET]), 2**63 - 1, ())
    decoder = _TimestampDecoder(whole, record_schema(["offset", "timestamp"]))
    return decoder.timestamps(path, buf, headers, position)


class _TimestampDecoder(RecordDecoder):
    """Milliseconds as they are stored: a look-up by time does not care about microseconds."""

    def timestamps(
        self, path: str, window: Bytes, headers: Int64s, file_position: int
    ) -> tuple[Int64s, Int64s]:
        """Offsets and milliseconds of the first batch in `headers`."""
        headers = headers[:1].copy()
        if headers[0, layout.ATTRIBUTES] & layout.CODEC_MASK:
            self._inflate(path, window, headers, file_position)
        n_rows = int(headers[0, layout.RECORDS_COUNT])
        n_bytes = int(headers[0, layout.RECORDS_END] - headers[0, layout.RECORDS_START])
        if n_rows > n_bytes:
            reason = status.REASONS[status.BAD_RECORDS_COUNT]
            base_offset = int(headers[0, layout.BASE_OFFSET])
            raise MalformedBatchError(path, file_position, base_offset, reason)
        state = self._state
        state[output.BATCH], state[output.RECORD] = 0, -1
        room = Output(self._schema, n_rows, n_bytes, 0)
        room.begin(state)
        code = fill_records(
            window, self._inflater.buffer, headers, -(2**63), 2**63 - 1, 1, room.arrays, state
        )
        if code != status.OK:
            raise self._error(path, headers[0], file_position, code)
        return room.arrays.offsets, room.arrays.timestamps
