"""Records are decoded into outputs that may be too small for them."""

import numpy as np

from segmentlog.format.kernels import layout, output, status
from segmentlog.format.kernels.decode import fill_records
from segmentlog.format.kernels.scan import scan_batches
from segmentlog.format.records.columns import Output, record_schema
from segmentlog.testing.reference import Record, encode_batch


def test_a_full_output_is_resumed_where_it_stopped() -> None:
    """Rows and bytes run out in the middle of a batch. No record is lost or repeated."""
    records = [Record(i, i, b"key", bytes(i % 50)) for i in range(100)]
    buf = np.frombuffer(encode_batch(records), np.uint8)
    headers = np.empty((4, layout.N_HEADER_COLUMNS), np.int64)
    assert (status.OK, len(buf), 1) == scan_batches(buf, 0, len(buf), 0, headers)
    state = np.zeros(output.N_STATE, np.int64)
    state[output.RECORD] = -1
    seen, calls = [], 0
    while state[output.BATCH] < 1:
        room = Output(record_schema(["offset", "value"]), 7, 200, 0)
        room.begin(state)
        code = fill_records(
            buf, np.empty(0, np.uint8), headers[:1], 0, 99, 1000, room.arrays, state
        )
        assert code in (status.OK, status.OUTPUT_FULL)
        seen += room.arrays.offsets[: state[output.N_ROWS]].tolist()
        calls += 1

    assert list(range(99)) == seen
    assert calls > 10
