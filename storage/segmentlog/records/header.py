"""One batch header as a tuple, for planning and look-ups, where batches are read one at a time.

Scans read headers by the thousand in `segmentlog.kernels.scan`; this module needs no compiler.
"""

import struct
from typing import NamedTuple

from segmentlog.kernels import layout
from segmentlog.model import TimestampType

__all__ = ["BatchHeader", "parse_header"]

_HEADER = struct.Struct(">qiibIhiqqqhii")


class BatchHeader(NamedTuple):
    """The 61 bytes before the records of a batch, in the order they stand in the file."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record the producer put in, compacted away or not."""
        return self.base_offset + self.last_offset_delta

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + layout.LOG_OVERHEAD

    @property
    def codec(self) -> int:
        """Number of the compression codec; only 0 to 4 have a meaning."""
        return self.attributes & layout.CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the broker set the timestamps."""
        return TimestampType(int(bool(self.attributes & layout.TIMESTAMP_TYPE_MASK)))

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & layout.TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a marker for brokers instead of records for applications."""
        return bool(self.attributes & layout.CONTROL_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which compaction may drop the batch's tombstones (KIP-534), if it is set."""
        return self.base_timestamp if self.attributes & layout.DELETE_HORIZON_MASK else None


def parse_header(buf: bytes | bytearray | memoryview, at: int = 0) -> BatchHeader:
    """Header of the batch at byte `at`; the fields are not judged.

    Raises
    ------
    struct.error
        If fewer than 61 bytes follow `at`.
    """
    return BatchHeader._make(_HEADER.unpack_from(buf, at))
