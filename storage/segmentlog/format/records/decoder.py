"""Bytes of a log to Arrow batches: scan, check, inflate, fill.

A `BatchScanner` finds the batches of a buffer and turns a kernel's status into an error with
file, byte and offset.  A `RecordFiller` fills columns with their records; each reader has its own
limits for the size of an Arrow batch.  A `RecordDecoder` makes Arrow batches of bounded size.

A scan yields neither records that no consumer sees nor timestamps that Spark cannot hold.  Tools
that show the contents of a file leave nothing out: a `BatchReader` reads every record of one
batch, including control records, with stored timestamps in milliseconds.
"""

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentlog.errors import (
    CorruptLogError,
    MalformedBatchError,
    SegmentLogError,
    TimestampOverflowError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout, output, status
from segmentlog.format.kernels.decode import fill_records
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.kernels.record import resolve_wrappers
from segmentlog.format.kernels.scan import (
    SMALLEST_RECORD_BYTES,
    measure_batches,
    scan_batches,
    select_batches,
)
from segmentlog.format.records.columns import (
    CONSTANT_COLUMNS,
    Constants,
    Output,
    is_in_milliseconds,
    record_schema,
)
from segmentlog.format.records.compression import InflateError, Inflater
from segmentlog.format.records.header import ScannedBatches, batch_error, parse_header
from segmentlog.model import (
    ALL_OFFSETS,
    MAX_INFLATED_BATCH_BYTES,
    Codec,
    OffsetRange,
    TimestampType,
    TopicPartition,
)

_INFLATE_BYTES = 4 << 20  # inflated before filling: small enough for the processor's caches

#: Makes an `Output` for the rest of some batches, for at least this many bytes and headers.
MakeRoom = Callable[[Int64s, int, int], Output]


class RecordFiller:
    """Fills columns with the records of batches, as `format.kernels.output` counts in `state`.

    `in_microseconds`: partition whose timestamps are requested in microseconds, which may
    overflow; None for milliseconds as they are stored.
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
                if codecs[0] > Codec.ZSTD:
                    path, at = batches.path, batches.position_of(0)
                    raise UnsupportedFormatError(path, at, "codec", codecs[0]) from error
                raise batches.malformed(0, str(error)) from error
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

        The records before a bad batch are returned before its `MalformedBatchError` is raised, or
        its `TimestampOverflowError` if a timestamp is requested that does not fit microseconds.
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
                batches.buf,
                self._inflater.buffer,
                headers,
                *self._offsets,
                scale,
                room.arrays,
                state,
            )
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


# The size of an Arrow batch of a scan; `BatchReader` has smaller ones.
FIRST_ROWS = 1_000  #: so that ``show()`` does not wait for a full batch
MOST_ROWS = 50_000  #: the size that Spark's transport takes quickest
MOST_BYTES = 32 << 20

_MOST_HEADERS = 4 * MOST_ROWS
TABLE_ROWS = 1 << 15
_NO_COLUMNS = pa.schema([])
_TIMESTAMP_MASKS = layout.TIMESTAMP_TYPE_MASK | layout.NO_TIMESTAMP_MASK


class BatchScanner:
    """Finds batches in buffers of one file, and checks them.

    `path`: the file, for errors.  `next_offset`: the least base offset that the next batch may
    have.
    """

    def __init__(self, path: str, next_offset: int) -> None:
        self.path = path
        self.next_offset = next_offset
        self._code = status.OK  # of the last scan
        self._headers: Int64s = np.empty((TABLE_ROWS, layout.N_HEADER_COLUMNS), np.int64)

    def scan(
        self, buf: Bytes, start: int, end: int, file_position: int, most: int = TABLE_ROWS
    ) -> ScannedBatches:
        """The whole batches in ``buf[start:end]``, as many as the table takes, and at most `most`.

        The range begins at a batch.  `file_position`: byte of the file that ``buf[0]`` is.  The
        result may be empty, and is valid until the next call.  Raises `CorruptLogError` or
        `UnsupportedFormatError` if the first batch is bad; the call after good batches does.
        """
        code, position, n_batches = scan_batches(
            buf, start, end, self.next_offset, self._headers[:most]
        )
        self._code = code
        batches = ScannedBatches(self.path, buf, self._headers[:n_batches], file_position)
        if n_batches:
            self.next_offset = batches.next_offset
        elif code >= status.BAD_LENGTH:
            raise batch_error(batches, position, end, code)
        return batches

    @property
    def offsets_went_back(self) -> bool:
        """Whether the batch that ended the last scan begins below the batch before it."""
        return self._code == status.OFFSETS_GO_BACK


class RecordDecoder:
    """Turns scanned batches of one partition into Arrow batches of about `most_bytes`."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        schema: pa.Schema,
        offsets: OffsetRange = ALL_OFFSETS,
        max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._most_bytes = min(most_bytes, MOST_BYTES)
        self._max_inflated_batch_bytes = max_inflated_batch_bytes
        self._offsets = offsets
        self._schema = schema
        self._is_constant = CONSTANT_COLUMNS.issuperset(schema.names)
        self._constants = Constants.of(topic_partition)
        in_microseconds = None if is_in_milliseconds(schema) else topic_partition
        self._filler = RecordFiller(
            offsets, max_inflated_batch_bytes, in_microseconds=in_microseconds
        )
        self._n_rows = FIRST_ROWS

    def decode(self, batches: ScannedBatches) -> Iterator[pa.RecordBatch]:
        """Rows of `batches`, whose headers are changed, without control batches; errors of `fill`.

        Columns that have one value for all rows need only headers: then records are not parsed,
        and compressed batches not inflated.
        """
        n_batches, any_attributes, all_attributes = select_batches(batches.headers, *self._offsets)
        batches = batches.only(slice(n_batches))
        if self._is_constant:
            yield from self._count(batches)
            return
        # Nearly always there is nothing to inflate, and one timestamp type: then no loop over the
        # batches is needed.
        varied = any_attributes & layout.CODEC_MASK or (
            (any_attributes ^ all_attributes) & _TIMESTAMP_MASKS
        )
        yield from self._fill_runs(batches) if varied else self._fill(batches)

    def _count(self, batches: ScannedBatches) -> Iterator[pa.RecordBatch]:
        """Rows whose columns all have one value: the headers contain their number."""
        headers = batches.headers
        start, end = self._offsets
        # The records are parsed where the range of offsets cuts a batch, and where a header lacks
        # the number, of a wrapper, or cannot be true.
        is_counted = tell_their_rows(headers, self._max_inflated_batch_bytes)
        is_counted &= headers[:, layout.BASE_OFFSET] >= start
        is_counted &= headers[:, layout.LAST_OFFSET] < end
        types = headers[:, layout.ATTRIBUTES] & _TIMESTAMP_MASKS
        kinds: Int64s = np.where(is_counted, types, -1)
        begin = 0
        while begin < len(headers):
            until = begin + _length_of_first_run(kinds[begin:])
            if kinds[begin] < 0:
                yield from self._fill_runs(batches.only(slice(begin, until)))
            else:
                n_rows = int(headers[begin:until, layout.RECORDS_COUNT].sum())
                yield from self._rows(n_rows, _timestamp_type(int(kinds[begin])))
            begin = until

    def _rows(self, n_rows: int, timestamp_type: TimestampType) -> Iterator[pa.RecordBatch]:
        while n_rows:
            n_next = min(n_rows, self._n_rows)
            yield self._constants.record_batch(self._schema, n_next, timestamp_type)
            self._n_rows = MOST_ROWS
            n_rows -= n_next

    def _fill_runs(self, batches: ScannedBatches) -> Iterator[pa.RecordBatch]:
        """Arrow batches of `batches`, which may be compressed, and of several timestamp types."""
        begin = 0
        while begin < len(batches.headers):
            types = batches.headers[begin:, layout.ATTRIBUTES] & _TIMESTAMP_MASKS
            until = begin + _length_of_first_run(types)
            until = begin + self._filler.inflate(batches.only(slice(begin, until)))
            yield from self._fill(batches.only(slice(begin, until)))
            begin = until

    def find_unreadable(
        self, batches: ScannedBatches
    ) -> Iterator[tuple[int, CorruptLogError | UnsupportedFormatError]]:
        """Rows of `batches` whose records cannot be decoded, and why; nothing is written."""
        # Decodes without output, a batch at a time: only reads that skip damage pay for this pass.
        header: Int64s = np.empty((1, layout.N_HEADER_COLUMNS), np.int64)
        one = batches._replace(headers=header)
        for row in range(len(batches.headers)):
            header[0] = batches.headers[row]
            attributes, size = header[0, layout.ATTRIBUTES], header[0, layout.SIZE]
            if size == layout.HEADER_BYTES and not attributes & layout.LEGACY_MASK:
                continue  # compaction has emptied it: it may name a codec, and has no bytes of it
            try:
                if attributes & layout.CODEC_MASK:
                    self._filler.inflate(one)
                # Without columns, every record is checked, and nothing written.
                for _ in self._filler.fill(one, partial(self._room_for, _NO_COLUMNS)):
                    pass
            except (CorruptLogError, UnsupportedFormatError) as error:
                yield row, error

    def _fill(self, batches: ScannedBatches) -> Iterator[pa.RecordBatch]:
        """Arrow batches of `batches`, whose records are all inflated and of one timestamp type."""
        if not len(batches.headers):
            return
        timestamp_type = _timestamp_type(int(batches.headers[0, layout.ATTRIBUTES]))
        for room in self._filler.fill(batches, partial(self._room_for, self._schema)):
            self._n_rows = MOST_ROWS
            yield room.to_arrow(self._filler.state, self._constants, timestamp_type)

    def _room_for(
        self, schema: pa.Schema, headers: Int64s, n_bytes: int, n_headers: int
    ) -> Output:
        """Memory for the next rows: no more than `headers` can fill, and at least one record."""
        n_records, most = measure_batches(headers)
        n_rows = min(self._n_rows, n_records)
        n_bytes = max(n_bytes, min(self._most_bytes, most))
        n_headers = max(n_headers, min(_MOST_HEADERS, most // 2))
        return Output(schema, n_rows, n_bytes, n_headers)


def tell_their_rows(headers: Int64s, max_inflated_batch_bytes: int) -> NDArray[np.bool_]:
    """Whether each header can be true, and tells how many rows its batch has.

    `headers`: int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read only.  Wrappers do
    not tell it.  Of control batches, which have no rows, only the number of offsets is checked.
    """
    base, last = headers[:, layout.BASE_OFFSET], headers[:, layout.LAST_OFFSET]
    count, attributes = headers[:, layout.RECORDS_COUNT], headers[:, layout.ATTRIBUTES]
    codec, n_bytes = attributes & layout.CODEC_MASK, headers[:, layout.SIZE] - layout.HEADER_BYTES
    room = np.where(codec == Codec.NONE, n_bytes, max_inflated_batch_bytes)
    told = (codec <= Codec.ZSTD) & (count * SMALLEST_RECORD_BYTES <= room)
    told &= (count > 0) == (n_bytes > 0)  # a batch that compaction has emptied has no bytes
    told |= attributes & layout.CONTROL_MASK != 0
    told &= (count >= 0) & (count <= last - base + 1)
    return np.where(attributes & layout.LEGACY_MASK == 0, told, count > 0)


def _timestamp_type(attributes: int) -> TimestampType:
    if attributes & layout.NO_TIMESTAMP_MASK:
        return TimestampType.NO_TIMESTAMP_TYPE
    return TimestampType(int(bool(attributes & layout.TIMESTAMP_TYPE_MASK)))


def _length_of_first_run(values: Int64s) -> int:
    """The number of `values`, from the first on, that are equal."""
    changes = np.flatnonzero(values != values[0])
    return int(changes[0]) if len(changes) else len(values)


#: Schema of the batches of `BatchReader`; the timestamp is epoch milliseconds of any size, and
#: the name of a header has any bytes.
RECORDS_SCHEMA: pa.Schema = record_schema(
    ["offset", "timestamp", "key", "value", "headers"],
    in_milliseconds=True,
    header_names_as_bytes=True,
)

_TIMESTAMPS = record_schema(["offset", "timestamp"], in_milliseconds=True)
_READER_ROWS, _READER_BYTES = 10_000, 8 << 20  # of an Arrow batch of `BatchReader`

#: Names of control records by their type (``org.apache.kafka.common.record.ControlRecordType``).
_CONTROL_TYPES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}
_END_OF_TRANSACTION = ("ABORT", "COMMIT")


class ControlRecord(NamedTuple):
    """The content of a control record; only ends of transactions have an epoch."""

    type: str
    coordinator_epoch: int | None = None


def parse_control(key: bytes | None, value: bytes | None) -> ControlRecord:
    """Content of a control record; an unknown type is ``UNKNOWN``, or ``UNKNOWN(7)``."""
    if key is None or len(key) < 4:
        return ControlRecord("UNKNOWN")
    version, number = struct.unpack_from(">hh", key)
    kind = _CONTROL_TYPES.get(number)
    if version < 0 or kind is None:
        return ControlRecord(f"UNKNOWN({number})")
    if kind in _END_OF_TRANSACTION and value is not None and len(value) >= 6:
        return ControlRecord(kind, int.from_bytes(value[2:6], "big", signed=True))
    return ControlRecord(kind)


class BatchReader:
    """Reads all records of batches, one by one or many at once."""

    def __init__(
        self, path: str, max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES
    ) -> None:
        self._path = path
        self._filler = RecordFiller(max_inflated_batch_bytes=max_inflated_batch_bytes)
        self._constants = Constants()
        self._window: Bytes = np.empty(0, np.uint8)

    def records(self, batch: bytes, position: int) -> Iterator[pa.RecordBatch]:
        """Records of `batch`, a whole batch from byte `position` of the file.

        Yields batches with the schema `RECORDS_SCHEMA`, of at most 10,000 rows and about 8 MiB; it
        stays valid after the next step.  Raises `CorruptLogError` or `UnsupportedFormatError` at
        the first step if the batch is bad, at a later step if a record is bad.
        """
        if self._window.size < len(batch) + COPY_SLACK:
            self._window = np.empty(len(batch) + COPY_SLACK, np.uint8)
        self._window[: len(batch)] = np.frombuffer(batch, np.uint8)
        batches = _scan_one(self._path, self._window, len(batch), position)
        if batches.headers[0, layout.SIZE] == layout.HEADER_BYTES:  # compaction has emptied it
            return
        yield from self.records_of(batches)

    def records_of(self, batches: ScannedBatches) -> Iterator[pa.RecordBatch]:
        """As `records`, of batches that have records and are checked; their headers are changed.

        The records before a bad one's batch are yielded before its error is raised.
        """
        begin = 0
        while begin < len(batches.headers):
            until = begin + self._filler.inflate(batches.only(slice(begin, None)))
            for room in self._filler.fill(batches.only(slice(begin, until)), _room_of_reader):
                yield room.to_arrow(self._filler.state, self._constants, TimestampType.CREATE_TIME)
            begin = until


def _room_of_reader(headers: Int64s, n_bytes: int, n_headers: int) -> Output:
    n_records, most = measure_batches(headers)
    n_rows = max(1, min(_READER_ROWS, n_records, most))
    n_bytes = max(n_bytes, min(_READER_BYTES, most))
    n_headers = max(n_headers, min(4 * n_rows, most // 2))
    return Output(RECORDS_SCHEMA, n_rows, n_bytes, n_headers)


def read_timestamps(batch: bytes, path: str, position: int) -> tuple[Int64s, Int64s]:
    """Offsets and timestamps of the records of one batch, to look a record up by time."""
    # Timestamps stay in the milliseconds of the file: a look-up by time needs no microseconds.
    buf: Bytes = np.empty(len(batch) + COPY_SLACK, np.uint8)
    buf[: len(batch)] = np.frombuffer(batch, np.uint8)
    batches = _scan_one(path, buf, len(batch), position)
    filler = RecordFiller()
    filler.inflate(batches)
    n_rows, n_bytes = measure_batches(batches.headers)
    if n_rows > n_bytes:
        raise batches.malformed(0, status.REASONS[status.BAD_RECORDS_COUNT])
    room = Output(_TIMESTAMPS, n_rows, n_bytes, 0)
    for _ in filler.fill(batches, lambda *_: room):
        pass
    return room.arrays.offsets, room.arrays.timestamps


def _scan_one(path: str, buf: Bytes, n_bytes: int, position: int) -> ScannedBatches:
    batches = BatchScanner(path, ALL_OFFSETS.start_offset).scan(buf, 0, n_bytes, position)
    if not len(batches.headers):
        base_offset = parse_header(buf[: min(n_bytes, layout.HEADER_BYTES)].tobytes()).base_offset
        reason = status.REASONS[status.RECORD_TOO_LONG]
        raise MalformedBatchError(path, position, base_offset, reason)
    return batches.only(slice(1))
