"""The selection of batches and records of a log: ranges of offsets and of times."""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.format.kernels import layout
from segmentlog.format.records.header import BatchHeader

_LEAST, _BEYOND = -(2**63), 2**63


def last_offset(header: BatchHeader) -> int:
    """Last offset of a batch of any format; a message of magic 0 or 1 stores only the last."""
    return header.last_offset if header.magic >= layout.FIRST_BATCH_MAGIC else header.base_offset


class Selection(NamedTuple):
    """Half-open ranges: a record is selected if it lies in both.

    If a `key` is given, the record must also have this key.  `last` is a number of offsets at the
    end of each log to select from, or None for all.
    """

    from_offset: int = _LEAST
    to_offset: int = _BEYOND
    from_ms: int = _LEAST
    to_ms: int = _BEYOND
    last: int | None = None
    key: bytes | None = None

    @classmethod
    def of(
        cls, from_offset: int | None, to_offset: int | None, from_ms: int | None, to_ms: int | None
    ) -> "Selection":
        """A selection from the ends of its ranges; None for an open end."""
        return cls(
            _LEAST if from_offset is None else from_offset,
            _BEYOND if to_offset is None else to_offset,
            _LEAST if from_ms is None else from_ms,
            _BEYOND if to_ms is None else to_ms,
        )

    def of_log(self, end_offset: int) -> "Selection":
        """Bind the selection to a log that ends at `end_offset`."""
        if self.last is None:
            return self
        return self._replace(from_offset=max(self.from_offset, end_offset - self.last))

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()

    def may_hold(self, header: BatchHeader) -> bool:
        """Whether a batch may hold a selected record, by its header alone.

        The smallest timestamp is not in the header, so a batch is left out if it is too old, but
        not if it is too new.  The header of a compressed message of magic 0 or 1 also lacks the
        offsets inside.
        """
        if last_offset(header) < self.from_offset or self.is_after(header):
            return False
        has_times = header.magic > 0
        return not has_times or header.max_timestamp >= self.from_ms

    def is_after(self, header: BatchHeader) -> bool:
        """Whether the batch, and so every later batch, begins at or after the last offset."""
        is_wrapper = header.magic < layout.FIRST_BATCH_MAGIC and header.codec != 0
        return not is_wrapper and header.base_offset >= self.to_offset

    def matches(self, header: BatchHeader) -> bool:
        """Whether a batch is shown if records are not: as `may_hold`, and not too new.

        A batch is too new if its first record is.  If compaction has put another value in the
        place of this record's time, the newest record decides.
        """
        if not self.may_hold(header):
            return False
        is_known = header.delete_horizon_ms is None and header.base_timestamp >= 0
        return (header.base_timestamp if is_known else header.max_timestamp) < self.to_ms

    def matches_empty(self, header: BatchHeader) -> bool:
        """Whether a batch without records, as compaction leaves them, is shown among records."""
        return header.records_count == 0 and self.matches(header)

    def records(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The selected records; the columns ``offset`` and ``timestamp`` decide."""
        if self.is_everything:
            return records
        offsets, times = records.column("offset"), records.column("timestamp")
        bounds = (
            pc.greater_equal(offsets, self.from_offset),
            pc.less_equal(offsets, self.to_offset - 1),
            pc.greater_equal(times, self.from_ms), pc.less_equal(times, self.to_ms - 1),
        )  # fmt: skip
        wanted = bounds[0]
        for bound in bounds[1:]:
            wanted = pc.and_(wanted, bound)
        if self.key is not None:
            has_key = pc.equal(records.column("key"), self.key)
            wanted = pc.and_(wanted, pc.fill_null(has_key, fill_value=False))
        return records.filter(wanted)
