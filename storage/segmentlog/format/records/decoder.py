"""Bytes of a log to Arrow batches: scan, check, inflate, fill.

A `BatchScanner` finds the batches of a buffer and turns a kernel's status into an error with
file, byte and offset.  A `RecordDecoder` turns these batches into Arrow batches of bounded size.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.kernels.scan import measure_batches, scan_batches, select_batches
from segmentlog.format.records.batch_error import batch_error
from segmentlog.format.records.columns import Constants, Output
from segmentlog.format.records.filler import RecordFiller
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.format.records.schema import CONSTANT_COLUMNS, is_in_milliseconds
from segmentlog.model import (
    ALL_OFFSETS,
    MAX_INFLATED_BATCH_BYTES,
    OffsetRange,
    TimestampType,
    TopicPartition,
)

# The size of an Arrow batch.
FIRST_ROWS = 1_000  #: so that ``show()`` does not wait for a full batch
MOST_ROWS = 50_000  #: the size that Spark's transport takes quickest
MOST_BYTES = 32 << 20

_MOST_HEADERS = 4 * MOST_ROWS
_TABLE_ROWS = 1 << 15
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
        self._headers: Int64s = np.empty((_TABLE_ROWS, layout.N_HEADER_COLUMNS), np.int64)

    def scan(
        self, buf: Bytes, start: int, end: int, file_position: int, most: int = _TABLE_ROWS
    ) -> ScannedBatches:
        """The whole batches in ``buf[start:end]``, as many as the table takes, and at most `most`.

        The last of them is followed by an incomplete batch, by a batch that did not fit the table,
        by a bad batch, or by nothing.

        `buf`: uint8 array, shape (n_bytes,); read only.  `start`, `end`: half-open byte range that
        begins at a batch.  `file_position`: byte of the file that ``buf[0]`` is.  The result may
        be empty, and is valid until the next call.  Raises `CorruptLogError` or
        `UnsupportedFormatError` if the first batch is bad.  If good batches come before a bad one,
        they are returned, and the next call raises.
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
    """Turns scanned batches of one partition into Arrow batches.

    `schema`: the requested columns, of `segmentlog.format.records.schema`.
    `max_inflated_batch_bytes`: most bytes that one batch may inflate to.  `most_bytes`: of an
    Arrow batch, unless one record has more.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        schema: pa.Schema,
        offsets: OffsetRange = ALL_OFFSETS,
        max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._most_bytes = min(most_bytes, MOST_BYTES)
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
        """Rows of `batches`, whose headers are changed; control batches are left out.

        Columns that have one value for all rows need only headers: then records are not parsed,
        and compressed batches not inflated.

        Raises `MalformedBatchError` if records contradict their header or themselves;
        `TimestampOverflowError` if a record's timestamp is requested and does not fit
        microseconds.
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
        """Rows whose columns all have one value: the headers contain their number.

        The records are parsed where the range of offsets cuts a batch, and where a header lacks
        the number: of a wrapper.
        """
        headers = batches.headers
        start, end = self._offsets
        is_counted = (headers[:, layout.BASE_OFFSET] >= start) & (
            headers[:, layout.LAST_OFFSET] < end
        )
        is_counted &= headers[:, layout.RECORDS_COUNT] > 0
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
        """`n_rows` whose columns all have one value."""
        while n_rows:
            n_next = min(n_rows, self._n_rows)
            yield self._constants.record_batch(self._schema, n_next, timestamp_type)
            self._n_rows = MOST_ROWS
            n_rows -= n_next

    def _fill_runs(self, batches: ScannedBatches) -> Iterator[pa.RecordBatch]:
        """Arrow batches of `batches`, which may be compressed, and of several timestamp types."""
        begin = 0
        while begin < len(batches.headers):
            until = self._run(batches, begin)
            yield from self._fill(batches.only(slice(begin, until)))
            begin = until

    def find_unreadable(
        self, batches: ScannedBatches
    ) -> Iterator[tuple[int, CorruptLogError | UnsupportedFormatError]]:
        """Rows of `batches` whose records cannot be decoded, and why; nothing is written.

        Decodes without output, a batch at a time: only reads that skip damage pay for this pass.
        """
        header: Int64s = np.empty((1, layout.N_HEADER_COLUMNS), np.int64)
        one = batches._replace(headers=header)
        for row in range(len(batches.headers)):
            header[0] = batches.headers[row]
            try:
                if header[0, layout.ATTRIBUTES] & layout.CODEC_MASK:
                    self._filler.inflate(one)
                for _ in self._filler.fill(one, self._make_dry_room):
                    pass
            except (CorruptLogError, UnsupportedFormatError) as error:
                yield row, error

    def _run(self, batches: ScannedBatches, begin: int) -> int:
        """Choose the batches to fill together, from `begin` on, and inflate the compressed ones.

        All batches of a run have the same timestamp type.
        """
        types = batches.headers[begin:, layout.ATTRIBUTES] & _TIMESTAMP_MASKS
        until = begin + _length_of_first_run(types)
        return begin + self._filler.inflate(batches.only(slice(begin, until)))

    def _fill(self, batches: ScannedBatches) -> Iterator[pa.RecordBatch]:
        """Arrow batches of `batches`, whose records are all inflated and of one timestamp type."""
        if not len(batches.headers):
            return
        timestamp_type = _timestamp_type(int(batches.headers[0, layout.ATTRIBUTES]))
        for room in self._filler.fill(batches, self._make_room):
            self._n_rows = MOST_ROWS
            yield room.to_arrow(self._filler.state, self._constants, timestamp_type)

    def _make_room(self, headers: Int64s, n_bytes: int, n_headers: int) -> Output:
        return self._room_for(self._schema, headers, n_bytes, n_headers)

    def _make_dry_room(self, headers: Int64s, n_bytes: int, n_headers: int) -> Output:
        """Without columns: every record is checked, and nothing written."""
        return self._room_for(_NO_COLUMNS, headers, n_bytes, n_headers)

    def _room_for(
        self, schema: pa.Schema, headers: Int64s, n_bytes: int, n_headers: int
    ) -> Output:
        """Memory for the next rows: no more than `headers` can fill, and at least one record."""
        n_records, most = measure_batches(headers)
        n_rows = min(self._n_rows, n_records)
        n_bytes = max(n_bytes, min(self._most_bytes, most))
        n_headers = max(n_headers, min(_MOST_HEADERS, most // 2))
        return Output(schema, n_rows, n_bytes, n_headers)


def _timestamp_type(attributes: int) -> TimestampType:
    """Timestamp type of a row of the table of headers."""
    if attributes & layout.NO_TIMESTAMP_MASK:
        return TimestampType.NO_TIMESTAMP_TYPE
    return TimestampType(int(bool(attributes & layout.TIMESTAMP_TYPE_MASK)))


def _length_of_first_run(values: Int64s) -> int:
    """The number of `values`, from the first on, that are equal."""
    changes = np.flatnonzero(values != values[0])
    return int(changes[0]) if len(changes) else len(values)
