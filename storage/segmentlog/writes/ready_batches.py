"""Record batches that are made already, checked as a leader checks those of a client.

Rules: ``LogValidator.validateBatch``, and ``ProduceRequest.validateRecords``.  A leader accepts
transactions from producers that their coordinator knows; there is no coordinator here to end one.
A leader sets the newest time and the type of timestamps in a header.  Here, a batch whose header
has others is refused, because its bytes stay as they are.
"""

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from segmentlog.errors import CorruptLogError, OptionError, UnsupportedFormatError
from segmentlog.format.kernels import layout, output, sequences, status
from segmentlog.format.kernels.encode import N_BATCH_COLUMNS
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.kernels.scan import measure_batches
from segmentlog.format.kernels.sequences import read_sequences, renumber_batches
from segmentlog.format.kernels.transactions import walk_headers
from segmentlog.format.records.columns import Output, record_schema
from segmentlog.format.records.decoder import BatchScanner, RecordFiller
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.format.records.header import ScannedBatches, batch_error
from segmentlog.model import LEAST_LONG, TimestampType, TopicPartition
from segmentlog.writes.config import ProducerConfig

_TABLE_ROWS = 1 << 14
#: Columns that hold positions in the buffer.
_POSITIONS = [layout.POSITION, layout.RECORDS_START, layout.RECORDS_END]
_PLACE_AND_TIMES = [layout.POSITION, layout.MAX_TIMESTAMP, layout.ATTRIBUTES]
_TIMESTAMPS = record_schema(["timestamp"])
_MOST_ROWS = 10_000
_CLOCKS_APART_MS = 3_600_000  #: a leader of another machine may have given the append time
_ACCEPTED = "give whole record batches of magic 2, as a producer sends them"


def ready_batches(
    data: memoryview, topic_partition: TopicPartition, config: ProducerConfig
) -> Iterator[EncodedBatches]:
    """The batches with offsets from 0 on, some thousands at a time.

    `data`: batches one after the other; their offsets do not matter.  `config`: its timestamp type
    and its limit of a batch's size count.  Raises `OptionError` if a leader would refuse a batch:
    its place and the reason.
    """
    whole: Bytes = np.frombuffer(data, np.uint8)
    position = n_before = 0
    filler = RecordFiller()
    while position < len(whole):
        headers: Int64s = np.zeros((_TABLE_ROWS, N_BATCH_COLUMNS), np.int64)
        chunk = _Chunk(whole, position, n_before, headers)
        chunk.check(filler, config)
        yield EncodedBatches(chunk.buf[:-COPY_SLACK], chunk.headers)
        position += len(chunk.buf) - COPY_SLACK
        n_before += len(chunk.headers)


class _Chunk:
    """Some of the batches.

    `position`, `n_before`: bytes and batches before these.  `table`: int64 array, shape (n_rows,
    `N_BATCH_COLUMNS`); takes their headers.  `buf`: a copy of their bytes, and `COPY_SLACK` more.
    `headers`: rows of `table`; positions are those in `buf`.
    """

    def __init__(self, whole: Bytes, position: int, n_before: int, table: Int64s) -> None:
        self._position = position
        self._n_before = n_before
        code, end, n_batches = walk_headers(whole, position, len(whole), table)
        self.headers = table[:n_batches]
        self.headers[:, _POSITIONS] -= position
        if code >= status.BAD_LENGTH and not n_batches:
            error = batch_error(ScannedBatches("", whole, table[:0], 0), end, len(whole), code)
            raise self._refusal(0, position, _reason(error))
        if end > len(whole) or not n_batches:
            raise self._refusal(max(n_batches - 1, 0), self._at(-1), "it is cut short")
        self.buf: Bytes = np.empty(end - position + COPY_SLACK, np.uint8)
        self.buf[:-COPY_SLACK] = whole[position:end]

    def _at(self, row: int) -> int:
        """Byte at which a batch begins."""
        if not len(self.headers):
            return self._position
        return self._position + int(self.headers[row, layout.POSITION])

    def check(self, filler: RecordFiller, config: ProducerConfig) -> None:
        """Refuse what a leader would refuse; the offsets count from 0 on afterwards."""
        headers = self.headers
        attributes = headers[:, layout.ATTRIBUTES]
        sizes = headers[:, layout.SIZE]
        deltas = headers[:, layout.LAST_OFFSET] - headers[:, layout.BASE_OFFSET]
        self._refuse(attributes & layout.LEGACY_MASK != 0, "its magic is not 2")
        in_transaction = layout.CONTROL_MASK | layout.TRANSACTIONAL_MASK
        reason = (
            "it belongs to a transaction, and only a broker's coordinator could end that "
            "transaction"
        )
        self._refuse(attributes & in_transaction != 0, reason)
        most = config.most_batch_bytes
        reason = f"it is larger than {most} bytes: the least of max.message.bytes, segment.bytes"
        self._refuse(sizes > most, f"{reason} and max_request_size")
        reason = "its record count differs from the number of its offsets"
        self._refuse(headers[:, layout.RECORDS_COUNT] != deltas + 1, reason)
        kind = config.topic_config.message_timestamp_type
        has_append_time = attributes & layout.TIMESTAMP_TYPE_MASK != 0
        if kind == TimestampType.LOG_APPEND_TIME:
            reason = (
                "the topic has message.timestamp.type=LogAppendTime, but the batch has CreateTime"
            )
            self._refuse(~has_append_time, reason)
            reason = "its append time is in the future"
            now_ms = time.time_ns() // 10**6
            self._refuse(headers[:, layout.MAX_TIMESTAMP] > now_ms + _CLOCKS_APART_MS, reason)
        else:
            reason = (
                "the topic has message.timestamp.type=CreateTime, but the batch has LogAppendTime"
            )
            self._refuse(has_append_time, reason)
        fields: Int64s = np.empty((len(headers), sequences.BATCH_COLUMNS), np.int64)
        read_sequences(self.buf, headers, fields)
        has_producer = fields[:, sequences.PRODUCER_ID] >= 0
        reason = "it has a producer id, but no sequence or no epoch"
        without = (fields[:, sequences.FIRST_SEQUENCE] < 0) | (fields[:, sequences.EPOCH] < 0)
        self._refuse(has_producer & without, reason)
        renumber_batches(self.buf, headers)
        self._check_bytes(filler)

    def _check_bytes(self, filler: RecordFiller) -> None:
        """Refuse wrong checksums, records that cannot be read, and times that are not theirs."""
        scanner, begin, end = BatchScanner("", 0), 0, len(self.buf) - COPY_SLACK
        while begin < end:
            try:
                batches = scanner.scan(self.buf, begin, end, self._position)
            except (CorruptLogError, UnsupportedFormatError) as error:
                raise self._refusal_at(begin, error) from error
            for row in range(len(batches.headers)):
                one = batches.only(slice(row, row + 1))
                at, claimed, attributes = one.headers[0, _PLACE_AND_TIMES].tolist()
                try:
                    newest = _newest_timestamp(filler, one)
                except (CorruptLogError, UnsupportedFormatError) as fault:
                    raise self._refusal_at(at, fault) from fault
                if not attributes & layout.TIMESTAMP_TYPE_MASK and newest != claimed:
                    index = int(np.searchsorted(self.headers[:, layout.POSITION], at))
                    reason = f"its header has the time {claimed}, but its newest record {newest}"
                    raise self._refusal(index, self._position + at, reason)
            begin = batches.end

    def _refuse(self, is_wrong: NDArray[np.bool_], reason: str) -> None:
        """Refuse the first batch that is wrong, if one is."""
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            raise self._refusal(row, self._at(row), reason)

    def _refusal_at(self, position: int, error: Exception) -> OptionError:
        row = int(np.searchsorted(self.headers[:, layout.POSITION], position))
        return self._refusal(row, self._position + position, _reason(error))

    def _refusal(self, row: int, position: int, reason: str) -> OptionError:
        place = f"batch {self._n_before + row} at byte {position}: {reason}"
        return OptionError("batches", place, _ACCEPTED)


def _newest_timestamp(filler: RecordFiller, batch: ScannedBatches) -> int:
    """The newest timestamp of the records of one batch, in milliseconds, as they are stored."""
    if batch.headers[0, layout.ATTRIBUTES] & layout.CODEC_MASK:
        filler.inflate(batch)
    n_records, most = measure_batches(batch.headers)
    n_rows = max(1, min(_MOST_ROWS, n_records, most))

    def make_room(_: Int64s, n_bytes: int, n_headers: int) -> Output:
        return Output(_TIMESTAMPS, n_rows, max(n_bytes, most), max(n_headers, most // 2))

    newest = LEAST_LONG
    for filled in filler.fill(batch, make_room):
        times = filled.arrays.timestamps[: filler.state[output.N_ROWS]]
        newest = max(newest, int(times.max()))
    return newest


def _reason(error: Exception) -> str:
    """The words of an error about a file, without file, place and remedy."""
    if isinstance(error, UnsupportedFormatError):
        return f"it has {error.what} {error.found}"
    finding = str(getattr(error, "finding", error))
    return finding.rpartition(") ")[2].removeprefix(": ").strip() or finding
