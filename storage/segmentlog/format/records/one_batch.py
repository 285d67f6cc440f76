"""Every record of one batch, including control records, with stored timestamps in milliseconds.

A scan yields neither records that no consumer sees nor timestamps that Spark cannot hold.  Tools
that show the contents of a file leave nothing out.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from segmentlog.errors import MalformedBatchError
from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.kernels.scan import measure_batches
from segmentlog.format.records.columns import Constants, Output
from segmentlog.format.records.decoder import BatchScanner, RecordFiller
from segmentlog.format.records.header import parse_header
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.format.records.schema import record_schema
from segmentlog.model import ALL_OFFSETS, MAX_INFLATED_BATCH_BYTES, TimestampType, TopicPartition

#: Schema of the batches of `BatchReader`; the timestamp is epoch milliseconds of any size, and
#: the name of a header has any bytes.
RECORDS_SCHEMA: pa.Schema = record_schema(
    ["offset", "timestamp", "key", "value", "headers"],
    in_milliseconds=True,
    header_names_as_bytes=True,
)

_TIMESTAMPS = record_schema(["offset", "timestamp"], in_milliseconds=True)
_NOWHERE = TopicPartition("", 0)  # of columns that were not requested
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
    """Reads batches one by one."""

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
        self._filler.inflate(batches)
        n_records, most = measure_batches(batches.headers)
        n_rows = max(1, min(_MOST_ROWS, n_records, most))

        def make_room(_: Int64s, n_bytes: int, n_headers: int) -> Output:
            n_bytes = max(n_bytes, min(_MOST_BYTES, most))
            n_headers = max(n_headers, min(4 * n_rows, most // 2))
            return Output(RECORDS_SCHEMA, n_rows, n_bytes, n_headers)

        for room in self._filler.fill(batches, make_room):
            yield room.to_arrow(self._filler.state, self._constants, TimestampType.CREATE_TIME)


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
