"""Logs that are decoded in one pass as far as possible, or in two passes from the start."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from segmentlog.format.kernels.memory import COPY_SLACK, Bytes
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.one_pass import OnePassDecoder, Stop
from segmentlog.testing.reference import BadBatchError


def with_slack(data: bytes) -> Bytes:
    """The bytes, followed by the slack that one pass needs."""
    buf = np.zeros(len(data) + COPY_SLACK, np.uint8)
    buf[: len(data)] = np.frombuffer(data, np.uint8)
    return buf


def decode_log(
    buf: Bytes,
    n_bytes: int,
    scanner: BatchScanner,
    decoder: RecordDecoder,
    one_pass: OnePassDecoder | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of the first `n_bytes`; an error comes as in scans, after the rows before it.

    Raises `BadBatchError` if the last batch is not whole.
    """
    at = 0
    while at < n_bytes:
        if one_pass is not None:
            yield from one_pass.decode(buf, at, n_bytes, scanner.next_offset)
            yield from one_pass.flush()
            at, scanner.next_offset = one_pass.position, one_pass.next_offset
            if one_pass.stop == Stop.END:
                return
            if one_pass.stop == Stop.CUT_SHORT:
                raise BadBatchError
        batches = scanner.scan(buf, at, n_bytes, 0, 1 if one_pass else 1 << 10)
        if not len(batches.headers):
            raise BadBatchError
        at = batches.end
        yield from decoder.decode(batches)
