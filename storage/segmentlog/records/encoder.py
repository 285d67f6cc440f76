"""Rows of Arrow columns to record batches of magic 2: cut, fill, perhaps compress, seal.

What Kafka's producer and ``MemoryRecordsBuilder`` do record by record, a call here does for all
rows of a partition.  Base offsets count from 0 and leader epochs are 0 until
`segmentlog.kernels.encode.assign_offsets` gives a log's own, as a broker does on arrival.
"""

from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from segmentlog.errors import InvalidRecordError, RecordTooLargeError
from segmentlog.kernels import layout, status
from segmentlog.kernels.encode import (
    FIRST_ROW,
    MAX_TIMESTAMP_OFFSET,
    N_BATCH_COLUMNS,
    cut_batches,
    fill_batches,
    seal_batches,
)
from segmentlog.kernels.memory import COPY_SLACK, Bytes, Int32s, Int64s
from segmentlog.kernels.source import SourceArrays
from segmentlog.model import Codec, TopicPartition
from segmentlog.records.deflater import Deflater
from segmentlog.records.source import array_view

__all__ = ["BATCH_SIZE", "MAX_MESSAGE_BYTES", "EncodedBatches", "RecordEncoder"]

#: Bytes of a batch before compression.  Kafka's producer takes 16 KiB, for the sake of latency.
BATCH_SIZE = 128 << 10
#: Kafka's default of ``max.message.bytes``.
MAX_MESSAGE_BYTES = (1 << 20) + layout.LOG_OVERHEAD

_LARGEST_BATCH = 2**31 - 1
_DEFLATE_BYTES = 4 << 20  # fill this much, then compress: stays near the processor's caches
_FIRST_TABLE_ROWS = 64
_NO_RECORDS = bytes(layout.HEADER_BYTES)


class EncodedBatches(NamedTuple):
    """Batches one behind the other, and what a log wants to know of each.

    Parameters
    ----------
    buffer : uint8 array, shape (n_bytes,); may be written to, to assign offsets
    table : int64 array, shape (n_batches, `kernels.encode.N_BATCH_COLUMNS`); its first columns
        are those of `kernels.layout`, as `kernels.scan.scan_batches` would fill them
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
        """Offsets of the first records that have them; of the last ones, if all are equal to the
        append time or there are none (``MemoryRecordsBuilder.info``).
        """
        return self.table[:, MAX_TIMESTAMP_OFFSET]


class RecordEncoder:
    """Encodes rows for any number of partitions.

    Parameters
    ----------
    codec, level : the compression; None is Kafka's default level.
    batch_size : bytes, before compression, at which a batch ends.
    max_message_bytes : bytes, after compression, that no batch may be larger than.

    Raises
    ------
    OptionError
        If the codec has no such level.
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
        """Batches of the rows of one partition.

        Parameters
        ----------
        partition : where they go, for errors.
        source : the columns, as `segmentlog.records.source.record_source` gives them.
        rows : int64 array, shape (n,); rows of `source`, in the order of their offsets
        offsets : int64 array, shape (n,), rising; by default 0, 1, 2, …
        append_time_ms : makes the timestamps of all records the time of appending; their own
            stay in the bytes, as they do in a broker

        Raises
        ------
        InvalidRecordError
            If a row cannot be a record: a header without a key, a timestamp below -1.
        RecordTooLargeError
            If a record alone takes more than `max_message_bytes`.
        """
        if offsets is None:
            offsets = self._count_to(len(rows))
        elif offsets.shape != rows.shape:
            message = f"{len(offsets)} offsets for {len(rows)} rows"
            raise ValueError(message)
        call = _Call(partition, source, array_view(rows), array_view(offsets))
        if self._deflater is None:
            batches = self._plain(call)
        else:
            batches = self._compressed(call, self._deflater)
        table = batches.table
        table[:, layout.ATTRIBUTES] = self._codec
        table[:, layout.PRODUCER_ID] = -1
        table[:, layout.OFFSET_SHIFT] = 0
        without = table[:, layout.MAX_TIMESTAMP] < 0
        if append_time_ms is not None:
            table[:, layout.ATTRIBUTES] |= layout.TIMESTAMP_TYPE_MASK
            table[:, layout.MAX_TIMESTAMP] = append_time_ms
            without[:] = True
        table[without, MAX_TIMESTAMP_OFFSET] = table[without, layout.LAST_OFFSET]
        seal_batches(batches.buffer, table)
        return batches

    def _count_to(self, n: int) -> Int64s:
        """0, 1, 2, …, made once."""
        if len(self._counting) < n:
            self._counting = array_view(np.arange(2 * n))
        return self._counting[:n]

    def _plain(self, call: "_Call") -> EncodedBatches:
        most = min(self._max_message_bytes, _LARGEST_BATCH)
        table, sizes = call.cut(self._batch_size, most)
        return EncodedBatches(call.fill(table, sizes), table)

    def _compressed(self, call: "_Call", deflater: Deflater) -> EncodedBatches:
        tables: list[Int64s] = [np.empty((0, N_BATCH_COLUMNS), np.int64)]
        payloads = [b""]
        for table, compressed in self._deflate(call, deflater):
            table[:, layout.SIZE] = [layout.HEADER_BYTES + len(each) for each in compressed]
            tables.append(table)
            payloads += compressed
        # A hole for the header before each: the bytes of a batch are copied once.
        buffer = np.frombuffer(bytearray(_NO_RECORDS).join(payloads), np.uint8)
        table = np.concatenate(tables)
        _place(table)
        return EncodedBatches(buffer, table)

    def _deflate(
        self, call: "_Call", deflater: Deflater
    ) -> Iterator[tuple[Int64s, list[bytes]]]:
        """Runs of batches, and their compressed records; what is too large comes in halves."""
        table, sizes = call.cut(self._batch_size, _LARGEST_BATCH)
        ends = np.cumsum(table[:, layout.SIZE])
        begin = 0
        while begin < len(table):
            filled = ends[begin - 1] if begin else 0
            until = max(begin + 1, int(np.searchsorted(ends, filled + _DEFLATE_BYTES)))
            run = table[begin:until]
            view = call.fill(run, sizes).data
            compressed = [
                deflater.compress(view[start:end])
                for start, end in run[:, layout.RECORDS_START : layout.RECORDS_END + 1].tolist()
            ]
            yield from self._within_limit(call, deflater, run, compressed)
            begin = until

    def _within_limit(
        self, call: "_Call", deflater: Deflater, run: Int64s, compressed: list[bytes]
    ) -> Iterator[tuple[Int64s, list[bytes]]]:
        """The same, divided where a batch is larger than `max_message_bytes`."""
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
                call.refuse_large(first, size, self._max_message_bytes)
            middle = first + count // 2
            yield from self._deflate(call.part(first, middle), deflater)
            yield from self._deflate(call.part(middle, first + count), deflater)
        yield run[begin:], compressed[begin:]


class _Call(NamedTuple):
    """What is to be encoded in one call; arrays as in `RecordEncoder.encode`."""

    partition: TopicPartition
    source: SourceArrays
    rows: Int64s
    offsets: Int64s

    def part(self, begin: int, end: int) -> "_Call":
        """The same with fewer rows."""
        return self._replace(rows=self.rows[begin:end], offsets=self.offsets[begin:end])

    def cut(self, batch_size: int, max_bytes: int) -> tuple[Int64s, Int32s]:
        """Table of batches with their places in memory, and sizes of records."""
        sizes = np.empty(len(self.rows), np.int32)
        tables, at, code = [], 0, status.TABLE_FULL
        n_lines = _FIRST_TABLE_ROWS
        while code == status.TABLE_FULL:
            table = np.empty((n_lines, N_BATCH_COLUMNS), np.int64)
            code, at, n_batches = cut_batches(
                self.source, self.rows, self.offsets, at, batch_size, max_bytes, table, sizes
            )
            tables.append(table[:n_batches])
            n_lines *= 2
        if code == status.RECORD_TOO_LARGE:
            self.refuse_large(at, int(table[n_batches, layout.SIZE]), max_bytes)
        if code != status.OK:
            row = int(self.rows[at])
            raise InvalidRecordError(*self.partition, row, status.ROW_REASONS[code])
        table = np.concatenate(tables)
        _place(table)
        return table, sizes

    def fill(self, table: Int64s, sizes: Int32s) -> Bytes:
        """Records of batches that were cut, with holes for their headers; moves `table` there."""
        _place(table)
        n_bytes = int(table[:, layout.SIZE].sum())
        out = np.frombuffer(pa.allocate_buffer(n_bytes + COPY_SLACK), np.uint8)
        fill_batches(self.source, self.rows, self.offsets, sizes, table, out)
        return out[:n_bytes]

    def refuse_large(self, at: int, size: int, limit: int) -> NoReturn:
        """Raise the error for the row at `at` of `rows`."""
        raise RecordTooLargeError(*self.partition, int(self.rows[at]), size, limit)


def _place(table: Int64s) -> None:
    """Put the batches of a table one behind the other, from byte 0 on."""
    ends = np.cumsum(table[:, layout.SIZE])
    table[:, layout.POSITION] = ends - table[:, layout.SIZE]
    table[:, layout.RECORDS_START] = table[:, layout.POSITION] + layout.HEADER_BYTES
    table[:, layout.RECORDS_END] = ends
