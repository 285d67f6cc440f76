"""Limits of the encoder: large batches, and Arrow arrays that lead outside of their buffers."""

import numpy as np
import pyarrow as pa
import pytest
from plain_writes import ONE

from segmentlog.errors import (
    InvalidRecordError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.records import encoder
from segmentlog.format.records.encoder import record_source
from segmentlog.model import Codec, TopicPartition

pytestmark = pytest.mark.linux


def test_no_batch_inflates_to_what_readers_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends at the readers' bound, however well it compresses.

    The test sets a smaller bound.
    """
    monkeypatch.setattr(encoder, "_LARGEST_INFLATED", layout.HEADER_BYTES + 1000)
    source = record_source(ONE.to_batches()[0], np.zeros(1, np.int64))
    big = pa.RecordBatch.from_pydict({"value": [b"v" * 300] * 9 + [bytes(1000)]})
    encode = encoder.RecordEncoder(Codec.ZSTD, batch_size=1 << 20).encode
    where = TopicPartition("t", 0)

    assert [1] == encode(where, source, np.arange(1)).records_counts.tolist()
    source = record_source(big, np.zeros(10, np.int64))
    assert [3, 3, 3] == encode(where, source, np.arange(9)).records_counts.tolist()
    with pytest.raises(InvalidRecordError, match="without a codec"):
        encode(where, source, np.arange(10))


@pytest.mark.parametrize("column", ["value", "headers"])
def test_views_that_lead_outside_their_buffers_are_refused(column: str) -> None:
    """Arrow's cast would read outside the buffers."""
    view = np.array([100, 0, 0, 1 << 30], np.int32).tobytes()
    buffers = [None, pa.py_buffer(view), pa.py_buffer(b"x" * 100)]
    array = pa.Array.from_buffers(pa.binary_view(), 1, buffers)
    if column == "headers":
        pairs = pa.StructArray.from_arrays([array, array], ["key", "value"])
        array = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pairs)
    batch = pa.RecordBatch.from_arrays([array], [column])
    with pytest.raises((pa.ArrowInvalid, pa.ArrowIndexError)):
        record_source(batch, np.zeros(1, np.int64))
