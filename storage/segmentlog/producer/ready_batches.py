"""Record batches that are made already, checked as a leader checks those of a client.

Rules: ``LogValidator.validateBatch``, and ``ProduceRequest.validateRecords``.  A leader accepts
transactions from producers that their coordinator knows; there is no coordinator here to end one.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from segmentlog.errors import CorruptLogError, OptionError, UnsupportedFormatError
from segmentlog.kernels import layout, sequences, status
from segmentlog.kernels.encode import N_BATCH_COLUMNS
from segmentlog.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.kernels.sequences import read_sequences, renumber_batches
from segmentlog.kernels.transactions import walk_headers
from segmentlog.model import TimestampType, TopicPartition
from segmentlog.producer.config import ProducerConfig
from segmentlog.records.batch_error import batch_error
from segmentlog.records.columns import record_schema
from segmentlog.records.decoder import BatchScanner, RecordDecoder
from segmentlog.records.encoder import EncodedBatches
from segmentlog.records.scanned_batches import ScannedBatches

__all__ = ["ready_batches"]

_TABLE_ROWS = 1 << 14
_ACCEPTED = "give whole record batches of magic 2, as a producer sends them"


def ready_batches(
    data: memoryview, topic_partition: TopicPartition, config: ProducerConfig
) -> Iterator[EncodedBatches]:
    """The batches with offsets from 0 on, some thousands at a time.

    Parameters
    ----------
    data : batches one behind the other; their offsets do not matter.
    topic_partition : that they are for.
    config : its timestamp type and its limit of a batch's size count.

    Raises
    ------
    OptionError
        If a leader would refuse a batch: its place and the reason.
    """
    whole: Bytes = np.frombuffer(data, np.uint8)
    position = n_before = 0
    decoder = RecordDecoder(topic_partition, record_schema([]))
    while position < len(whole):
        buf: Bytes = np.empty(len(whole) - position + COPY_SLACK, np.uint8)
        buf[:-COPY_SLACK] = whole[position:]
        n_bytes = len(buf) - COPY_SLACK
        headers: Int64s = np.empty((_TABLE_ROWS, layout.N_HEADER_COLUMNS), np.int64)
        code, end, n_batches = walk_headers(buf, 0, n_bytes, headers)
        chunk = _Chunk(buf, headers[:n_batches], position, n_before, end)
        chunk.check(decoder, config)
        if not n_batches:
            chunk.refuse_rest(code, n_bytes)
        table: Int64s = np.zeros((n_batches, N_BATCH_COLUMNS), np.int64)
        table[:, : layout.N_HEADER_COLUMNS] = chunk.headers
        yield EncodedBatches(buf[:end], table)
        position += end
        n_before += n_batches


class _Chunk:
    """Some of the batches.

    Parameters
    ----------
    buf, headers : as in `ScannedBatches`.
    position, n_before : bytes and batches before them.
    end : byte of `buf` behind the last one.
    """

    def __init__(
        self, buf: Bytes, headers: Int64s, position: int, n_before: int, end: int
    ) -> None:
        self.headers = headers
        self._buf = buf
        self._position = position
        self._n_before = n_before
        self._end = end

    def check(self, decoder: RecordDecoder, config: ProducerConfig) -> None:
        """Refuse what a leader would refuse; the offsets count from 0 on afterwards."""
        headers = self.headers
        if not len(headers):
            return
        attributes = headers[:, layout.ATTRIBUTES]
        sizes = headers[:, layout.SIZE]
        deltas = headers[:, layout.LAST_OFFSET] - headers[:, layout.BASE_OFFSET]
        self._refuse(attributes & layout.LEGACY_MASK != 0, "its magic is not 2")
        in_transaction = layout.CONTROL_MASK | layout.TRANSACTIONAL_MASK
        reason = "it belongs to a transaction, which only a broker's coordinator could end"
        self._refuse(attributes & in_transaction != 0, reason)
        most = config.most_batch_bytes
        reason = f"it is larger than {most} bytes: the least of max.message.bytes, segment.bytes"
        self._refuse(sizes > most, f"{reason} and max_request_size")
        if self._end > len(self._buf) - COPY_SLACK:
            self._refuse(np.arange(len(sizes)) == len(sizes) - 1, "it is cut short")
        reason = "its record count is not that of its offsets"
        self._refuse(headers[:, layout.RECORDS_COUNT] != deltas + 1, reason)
        if config.topic_config.message_timestamp_type == TimestampType.LOG_APPEND_TIME:
            reason = "the topic has message.timestamp.type=LogAppendTime, the batch CreateTime"
            self._refuse(attributes & layout.TIMESTAMP_TYPE_MASK == 0, reason)
        fields: Int64s = np.empty((len(headers), sequences.BATCH_COLUMNS), np.int64)
        read_sequences(self._buf, headers, fields)
        has_producer = fields[:, sequences.PRODUCER_ID] >= 0
        reason = "it has a producer id, and no sequence or no epoch"
        without = (fields[:, sequences.FIRST_SEQUENCE] < 0) | (fields[:, sequences.EPOCH] < 0)
        self._refuse(has_producer & without, reason)
        renumber_batches(self._buf, headers)
        self._check_bytes(decoder)

    def _check_bytes(self, decoder: RecordDecoder) -> None:
        """Refuse wrong checksums, and records that cannot be read."""
        scanner, begin = BatchScanner("", 0), 0
        while begin < self._end:
            try:
                batches = scanner.scan(self._buf, begin, self._end, self._position)
            except (CorruptLogError, UnsupportedFormatError) as error:
                raise self._refusal_at(begin, error) from error
            for row, fault in decoder.find_unreadable(batches):
                at = int(batches.headers[row, layout.POSITION])
                raise self._refusal_at(at, fault) from fault
            begin = batches.end

    def refuse_rest(self, code: int, n_bytes: int) -> None:
        """Refuse bytes at which no batch begins, or a batch that is cut short."""
        reason = "it is cut short"
        if code >= status.BAD_LENGTH:
            batches = ScannedBatches("", self._buf, self.headers, self._position)
            reason = _reason(batch_error(batches, 0, n_bytes, code))
        raise self._refusal(0, self._position, reason)

    def _refuse(self, is_wrong: NDArray[np.bool_], reason: str) -> None:
        """Refuse the first batch that is wrong, if one is."""
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            at = self._position + int(self.headers[row, layout.POSITION])
            raise self._refusal(row, at, reason)

    def _refusal_at(self, position: int, error: Exception) -> OptionError:
        row = int(np.searchsorted(self.headers[:, layout.POSITION], position))
        return self._refusal(row, self._position + position, _reason(error))

    def _refusal(self, row: int, position: int, reason: str) -> OptionError:
        place = f"batch {self._n_before + row} at byte {position}: {reason}"
        return OptionError("batches", place, _ACCEPTED)


def _reason(error: Exception) -> str:
    """The words of an error about a file, without file, place and remedy."""
    finding = str(getattr(error, "finding", error))
    return finding.rpartition(") ")[2].removeprefix(": ").strip() or finding
