"""Rows of Arrow columns to record batches of magic 2: cut, write, optionally compress, seal.

Kafka's producer and ``MemoryRecordsBuilder`` work record by record; a call here encodes all rows
of a partition.  Base offsets count from 0 and leader epochs are 0 until
`segmentlog.format.kernels.encode.assign_offsets` sets those of the log, as a broker does on
arrival.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from segmentlog.errors import InvalidRecordError, RecordTooLargeError
from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.encode import (
    FIRST_ROW,
    MAX_TIMESTAMP_OFFSET,
    MOST_OVERHEAD,
    N_BATCH_COLUMNS,
    seal_batches,
    write_batches,
)
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.kernels.source import SourceArrays, most_row_bytes
from segmentlog.format.records.compression import Deflater
from segmentlog.format.records.source import array_view, pooled_array
from segmentlog.model import (
    BATCH_SIZE,
    LARGEST_LONG,
    MAX_INFLATED_BATCH_BYTES,
    MAX_MESSAGE_BYTES,
    Codec,
    TopicPartition,
)

#: Most bytes of a batch before compression: readers refuse a batch that inflates to more.
_LARGEST_INFLATED = layout.HEADER_BYTES + MAX_INFLATED_BATCH_BYTES
_DEFLATE_BYTES = 4 << 20  # written before compression: small enough for the processor's caches
_TABLE_LINES = 1 << 10
_NO_TABLE: Int64s = np.empty((0, N_BATCH_COLUMNS), np.int64)


class EncodedBatches(NamedTuple):
    """Batches one after another, with the fields of each that an append needs.

    `buffer`: uint8 array, shape (n_bytes,); assigning offsets writes to it.  `table`: int64 array,
    shape (n_batches, `kernels.encode.N_BATCH_COLUMNS`); its first columns are those of
    `format.kernels.layout`, as `kernels.scan.scan_batches` would fill them.
    """

    buffer: Bytes
    table: Int64s

    @property
    def positions(self) -> Int64s:
        """Bytes of `buffer` at which the batches begin."""
        return self.table[:, layout.POSITION]

    @property
    def sizes(self) -> Int64s:
        """Bytes of the batches, headers included."""
        return self.table[:, layout.SIZE]

    @property
    def base_offsets(self) -> Int64s:
        """Offsets of the first records."""
        return self.table[:, layout.BASE_OFFSET]

    @property
    def last_offset_deltas(self) -> Int64s:
        """Distances from the first offset of a batch to its last."""
        return self.table[:, layout.LAST_OFFSET] - self.base_offsets

    @property
    def records_counts(self) -> Int64s:
        """Numbers of records."""
        return self.table[:, layout.RECORDS_COUNT]

    @property
    def max_timestamps(self) -> Int64s:
        """The largest timestamps in epoch milliseconds, or the append time; -1 for none."""
        return self.table[:, layout.MAX_TIMESTAMP]

    @property
    def max_timestamp_offsets(self) -> Int64s:
        """Offsets of the first records with the largest timestamps.

        If all records have the append time or no timestamp, the offsets of the last records
        (``MemoryRecordsBuilder.info``).
        """
        return self.table[:, MAX_TIMESTAMP_OFFSET]


class RecordEncoder:
    """Encodes rows for any number of partitions.

    `batch_size`: bytes, before compression, at which a batch ends.  `max_message_bytes`: bytes,
    after compression, that no batch may be larger than.  Raises `OptionError` for a level that the
    codec does not have.
    """

    def __init__(
        self,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        *,
        batch_size: int = BATCH_SIZE,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._codec = codec
        self._deflater = Deflater(codec, level) if codec else None
        self._batch_size = batch_size
        self._max_message_bytes = max_message_bytes
        self._counting: Int64s = array_view(np.arange(0))

    def encode(
        self,
        partition: TopicPartition,
        source: SourceArrays,
        rows: Int64s,
        *,
        offsets: Int64s | None = None,
        append_time_ms: int | None = None,
    ) -> EncodedBatches:
        """Batches of some rows of `source` for one partition, which is named in errors.

        `offsets`: int64 array, shape (n,), rising; by default 0, 1, 2, ….  `append_time_ms`: time
        of appending, as the timestamp of all records; their own timestamps stay in the bytes, as
        in a broker.  Raises `InvalidRecordError` if a row cannot be a record: a header without a
        key, a timestamp below -1, an offset that does not rise; or if `source` has no such
        row.  Raises `RecordTooLargeError` if a record alone takes more than `max_message_bytes`.
        """
        if offsets is None:
            if len(self._counting) < len(rows):  # 0, 1, 2, …, made once
                self._counting = array_view(np.arange(2 * len(rows)))
            offsets = self._counting[: len(rows)]
        elif offsets.shape != rows.shape:
            message = f"{len(offsets)} offsets for {len(rows)} rows"
            raise ValueError(message)
        else:
            _check_offsets(partition, rows, offsets)
        attributes, append_time = int(self._codec), -1
        if append_time_ms is not None:
            attributes, append_time = attributes | layout.TIMESTAMP_TYPE_MASK, append_time_ms
        todo = _Rows(
            partition, source, array_view(rows), array_view(offsets), attributes, append_time
        )
        if self._deflater is None:
            return self._plain(todo)
        return self._compressed(todo, self._deflater)

    def _plain(self, todo: "_Rows") -> EncodedBatches:
        most_bytes, _ = todo.most_bytes(self._batch_size)
        out = pooled_array(most_bytes + COPY_SLACK, np.uint8)
        tables, at, end = [_NO_TABLE], 0, 0
        while at < len(todo.rows):
            table, at = todo.write(at, self._batch_size, self._max_message_bytes, out, end)
            tables.append(table)
            end = int(table[-1, layout.RECORDS_END])
        return EncodedBatches(out[:end], np.concatenate(tables))

    def _compressed(self, todo: "_Rows", deflater: Deflater) -> EncodedBatches:
        tables, payloads = [_NO_TABLE], [b""]
        for table, compressed in self._deflate(todo, deflater):
            table[:, layout.SIZE] = [layout.HEADER_BYTES + len(each) for each in compressed]
            tables.append(table)
            payloads += compressed
        # Each payload follows a gap for its header, so the bytes of a batch are copied once.
        buffer = np.frombuffer(bytearray(layout.HEADER_BYTES).join(payloads), np.uint8)
        table = np.concatenate(tables)
        ends = np.cumsum(table[:, layout.SIZE])
        table[:, layout.POSITION] = ends - table[:, layout.SIZE]
        table[:, layout.RECORDS_START] = table[:, layout.POSITION] + layout.HEADER_BYTES
        table[:, layout.RECORDS_END] = ends
        seal_batches(buffer, table)
        return EncodedBatches(buffer, table)

    def _deflate(self, todo: "_Rows", deflater: Deflater) -> Iterator[tuple[Int64s, list[bytes]]]:
        """Runs of batches, and their compressed records; batches that are too large are halved."""
        most_bytes, most_of_one = todo.most_bytes(self._batch_size)
        n_bytes = min(most_bytes, max(_DEFLATE_BYTES, most_of_one))
        out = pooled_array(n_bytes + COPY_SLACK, np.uint8)
        at = 0
        while at < len(todo.rows):
            try:
                run, at = todo.write(at, self._batch_size, _LARGEST_INFLATED, out, 0)
            except RecordTooLargeError as error:
                reason = f"it takes {error.size} bytes, and readers refuse a batch that inflates "
                reason += f"to more than {MAX_INFLATED_BATCH_BYTES}: write it without a codec"
                raise InvalidRecordError(*todo.partition, error.row, reason) from error
            compressed = [
                deflater.compress(out.data[start:end])
                for start, end in run[:, layout.RECORDS_START : layout.RECORDS_END + 1].tolist()
            ]
            yield from self._within_limit(todo, deflater, run, compressed)

    def _within_limit(
        self, todo: "_Rows", deflater: Deflater, run: Int64s, compressed: list[bytes]
    ) -> Iterator[tuple[Int64s, list[bytes]]]:
        """The run with batches larger than `max_message_bytes` divided."""
        most = self._max_message_bytes - layout.HEADER_BYTES
        begin = 0
        for number, payload in enumerate(compressed):
            if len(payload) <= most:
                continue
            yield run[begin:number], compressed[begin:number]
            begin = number + 1
            first, count = int(run[number, FIRST_ROW]), int(run[number, layout.RECORDS_COUNT])
            if count == 1:
                size = layout.HEADER_BYTES + len(payload)
                row = int(todo.rows[first])
                raise RecordTooLargeError(*todo.partition, row, size, self._max_message_bytes)
            middle = first + count // 2
            yield from self._deflate(todo.part(first, middle), deflater)
            yield from self._deflate(todo.part(middle, first + count), deflater)
        yield run[begin:], compressed[begin:]


class _Rows(NamedTuple):
    """The rows of one call; arrays as in `RecordEncoder.encode`."""

    partition: TopicPartition
    source: SourceArrays
    rows: Int64s
    offsets: Int64s
    attributes: int
    append_time_ms: int

    def part(self, begin: int, end: int) -> "_Rows":
        return self._replace(rows=self.rows[begin:end], offsets=self.offsets[begin:end])

    def most_bytes(self, batch_size: int) -> tuple[int, int]:
        """Most bytes of all batches together, and of any single batch."""
        total, longest = most_row_bytes(self.source, self.rows)
        all_alone = total + len(self.rows) * MOST_OVERHEAD
        return all_alone, max(batch_size, longest + MOST_OVERHEAD)

    def write(
        self, at: int, batch_size: int, max_bytes: int, out: Bytes, to: int
    ) -> tuple[Int64s, int]:
        """Write batches from row `at` on, as many as fit; return their table, and the next row."""
        table = np.empty((min(_TABLE_LINES, len(self.rows) - at), N_BATCH_COLUMNS), np.int64)
        code, at, n_batches = write_batches(
            self.source, self.rows, self.offsets, at, batch_size, max_bytes,
            self.attributes, self.append_time_ms, table, out, to,
        )  # fmt: skip
        if code == status.RECORD_TOO_LARGE:
            size = int(table[n_batches, layout.SIZE])
            raise RecordTooLargeError(*self.partition, int(self.rows[at]), size, max_bytes)
        if code in status.ROW_REASONS:
            row = int(self.rows[at])
            raise InvalidRecordError(*self.partition, row, status.ROW_REASONS[code])
        return table[:n_batches], at


def _check_offsets(partition: TopicPartition, rows: Int64s, offsets: Int64s) -> None:
    """Refuse offsets that are negative, do not rise, or leave no offset for a next row."""
    wrong = (np.diff(offsets, prepend=-1) <= 0) | (offsets == LARGEST_LONG)
    wrong |= offsets < 0  # the difference of negative offsets may wrap
    if wrong.any():
        row = int(rows[np.argmax(wrong)])
        raise InvalidRecordError(*partition, row, status.ROW_REASONS[status.BAD_OFFSET])
