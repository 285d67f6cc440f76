"""Every record of one batch, control records too, with timestamps in milliseconds as stored.

A scan leaves out what no consumer sees and what Spark cannot hold.  Tools that show what a file
holds leave nothing out.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from segmentlog.errors import MalformedBatchError
from segmentlog.kernels import layout, output, status
from segmentlog.kernels.decode import fill_records
from segmentlog.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.model import MAX_INFLATED_BATCH_BYTES, LogSlice, TimestampType
from segmentlog.records.columns import Output, record_schema
from segmentlog.records.decoder import BatchScanner, RecordDecoder
from segmentlog.records.header import parse_header

__all__ = ["RECORDS_SCHEMA", "BatchReader", "ControlRecord", "parse_control"]

_WANTED = record_schema(["offset", "timestamp", "key", "value", "headers"])

#: What `BatchReader` yields; the timestamp is epoch milliseconds, however large.
RECORDS_SCHEMA: pa.Schema = _WANTED.set(1, pa.field("timestamp", pa.int64()))

_MOST_ROWS = 10_000
_MOST_BYTES = 8 << 20

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
    """What a record of a control batch says; only ends of transactions have an epoch."""

    type: str
    coordinator_epoch: int | None = None


def parse_control(key: bytes | None, value: bytes | None) -> ControlRecord:
    """Meaning of a control record; type ``UNKNOWN`` where the bytes are none that Kafka writes."""
    if key is None or len(key) < 4:
        return ControlRecord("UNKNOWN")
    version, number = struct.unpack_from(">hh", key)
    kind = _CONTROL_TYPES.get(number)
    if version < 0 or kind is None:
        return ControlRecord(f"UNKNOWN({number})")
    if kind in _END_OF_TRANSACTION and value is not None and len(value) >= 6:
        return ControlRecord(kind, int.from_bytes(value[2:6], "big", signed=True))
    return ControlRecord(kind)


class BatchReader(RecordDecoder):
    """Reads batches one by one.

    Parameters
    ----------
    path : the file, for errors.
    max_inflated_batch_bytes : what one batch may inflate to at the most.
    """

    def __init__(
        self, path: str, max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES
    ) -> None:
        everything = LogSlice("", 0, -(2**63), 2**63 - 1, ())
        super().__init__(everything, RECORDS_SCHEMA, max_inflated_batch_bytes)
        self._path = path
        self._window: Bytes = np.empty(0, np.uint8)

    def records(self, batch: bytes, position: int) -> Iterator[pa.RecordBatch]:
        """Records of `batch`, the whole of what stands at byte `position` of the file.

        Yields
        ------
        pyarrow.RecordBatch
            Of `RECORDS_SCHEMA`, at most 10,000 rows and about 8 MiB; each valid until it is let
            go, as any other.

        Raises
        ------
        CorruptLogError, UnsupportedFormatError
            At the first call if the batch is not good, later if a record is not.
        """
        if self._window.size < len(batch) + COPY_SLACK:
            self._window = np.empty(len(batch) + COPY_SLACK, np.uint8)
        self._window[: len(batch)] = np.frombuffer(batch, np.uint8)
        scanner = BatchScanner(self._path, -(2**63))
        headers, _ = scanner.scan(self._window, 0, len(batch), position)
        if not len(headers):
            reason = status.REASONS[status.RECORD_TOO_LONG]
            base_offset = parse_header(batch).base_offset
            raise MalformedBatchError(self._path, position, base_offset, reason)
        headers = headers[:1].copy()
        if headers[0, layout.SIZE] == layout.HEADER_BYTES:  # compaction has emptied it
            return
        self._inflater.clear()
        if headers[0, layout.ATTRIBUTES] & layout.CODEC_MASK:
            self._inflate(self._path, self._window, headers, position)
        yield from self._pieces(headers, position)

    def _pieces(self, headers: Int64s, position: int) -> Iterator[pa.RecordBatch]:
        """Arrow batches of the one batch in `headers`, whose records are inflated."""
        state = self._state
        state[output.BATCH], state[output.RECORD] = 0, -1
        n_records = int(headers[0, layout.RECORDS_COUNT])
        most = int(headers[0, layout.RECORDS_END] - headers[0, layout.RECORDS_START])
        n_rows = max(1, min(_MOST_ROWS, n_records, most))
        n_bytes = n_headers = 0
        while state[output.BATCH] < 1:
            n_bytes = max(n_bytes, min(_MOST_BYTES, most))
            n_headers = max(n_headers, min(4 * n_rows, most // 2))
            room = Output(RECORDS_SCHEMA, n_rows, n_bytes, n_headers)
            room.begin(state)
            code = fill_records(
                self._window, self._inflater.buffer, headers,
                -(2**63), 2**63 - 1, 1, room.arrays, state,
            )  # fmt: skip
            if code not in (status.OK, status.OUTPUT_FULL):
                raise self._error(self._path, headers[0], position, code)
            n_bytes = n_headers = 0
            if code == status.OUTPUT_FULL:  # what did not fit gets room of its own
                n_bytes, n_headers = int(state[output.DETAIL]), int(state[output.DETAIL_2])
            if state[output.N_ROWS]:
                yield room.to_arrow(state, self._constants, TimestampType.CREATE_TIME)
