"""Offsets that reads return."""

from collections.abc import Iterable

import pyarrow as pa

from segmentlog.model import LogSlice
from segmentlog.reads.scan import scan_slice


def offsets_of(stream: Iterable[pa.RecordBatch]) -> list[int]:
    """Offsets of the rest of a stream."""
    return [offset for batch in stream for offset in batch.column("offset").to_pylist()]


def slice_offsets(log_slice: LogSlice) -> list[int]:
    """Offsets of one slice."""
    return offsets_of(scan_slice(log_slice, columns=["offset"]))
