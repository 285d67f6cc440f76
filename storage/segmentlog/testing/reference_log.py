"""Whole ``.log`` files in plain Python, in any mixture of formats."""

from collections.abc import Iterator
from typing import NamedTuple

from segmentlog.testing.legacy import read_message
from segmentlog.testing.reference import (
    BadBatchError,
    Record,
    UnknownFormatError,
    read_batch,
)


class ReadBatch(NamedTuple):
    """The records of one batch."""

    timestamp_type: int  #: -1 none, 0 by the producer, 1 by the broker
    records: list[Record]


def split_batches(data: bytes, next_offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """The batches of a file by their lengths, each with the least offset that it may have.

    Raises `BadBatchError` if a length is too small for its magic, or the file ends inside a batch;
    `UnknownFormatError` if a batch has a magic above 2, and an offset that is possible at its
    place.
    """
    at = 0
    while at < len(data):
        if at + 17 > len(data):
            raise BadBatchError("cut short")
        offset = int.from_bytes(data[at : at + 8], "big", signed=True)
        length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        magic, end = data[at + 16], at + 12 + length
        if length < (14, 14, 49)[min(magic, 2)]:
            raise BadBatchError("length")
        if magic > 2 and 0 <= offset - next_offset < 2**31:
            raise UnknownFormatError(f"magic {magic}")
        if magic > 2 or end > len(data):
            raise BadBatchError("not a batch, or cut short")
        yield data[at:end], next_offset
        delta = int.from_bytes(data[at + 23 : at + 27], "big", signed=True) if magic == 2 else 0
        at, next_offset = end, offset + delta + 1


def read_log(data: bytes, bound: int, next_offset: int = 0) -> Iterator[ReadBatch]:
    """The contents of a log, batch by batch, up to the first bad batch.

    `bound`: most bytes that one batch may inflate to.  `next_offset`: the least offset that the
    first batch may have.  Raises `BadBatchError` or `UnknownFormatError` at the first bad batch.
    """
    for batch, least in split_batches(data, next_offset):
        if batch[16] < 2:
            kind, records = read_message(batch, least, bound)
        else:
            kind, records = batch[22] >> 3 & 1, read_batch(batch, least, bound)
        yield ReadBatch(kind, records)
