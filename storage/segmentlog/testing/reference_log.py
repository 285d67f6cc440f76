"""Whole ``.log`` files in plain Python, whatever formats they mix."""

from collections.abc import Iterator
from typing import NamedTuple

from segmentlog.testing.legacy import read_message
from segmentlog.testing.reference import (
    BadBatchError,
    Record,
    UnknownFormatError,
    read_batch,
)

__all__ = ["ReadBatch", "read_log", "split_batches"]


class ReadBatch(NamedTuple):
    """What one batch has to show."""

    timestamp_type: int  #: -1 none, 0 by the producer, 1 by the broker
    records: list[Record]


def split_batches(data: bytes) -> Iterator[bytes]:
    """The batches of a file, by nothing but their lengths.

    Raises
    ------
    BadBatchError
        If a length is too small for its magic, or the file ends inside a batch.
    UnknownFormatError
        If there is a magic above 2.
    """
    at = 0
    while at < len(data):
        if at + 17 > len(data):
            raise BadBatchError("cut short")
        length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        magic, end = data[at + 16], at + 12 + length
        if length < 14:
            raise BadBatchError("length")
        if magic > 2:
            raise UnknownFormatError(f"magic {magic}")
        if length < (14, 14, 49)[magic] or end > len(data):
            raise BadBatchError("length, or cut short")
        yield data[at:end]
        at = end


def read_log(data: bytes, bound: int, next_offset: int = 0) -> Iterator[ReadBatch]:
    """What a log's bytes hold, batch by batch, up to the first that is not good.

    Parameters
    ----------
    data : of the whole file.
    bound : what one batch may inflate to.
    next_offset : the least offset that the first batch may have.

    Raises
    ------
    BadBatchError, UnknownFormatError
        At the first batch that is not good.
    """
    for batch in split_batches(data):
        if batch[16] < 2:
            kind, records = read_message(batch, next_offset, bound)
            last = int.from_bytes(batch[:8], "big")
        else:
            kind, records = batch[22] >> 3 & 1, read_batch(batch, next_offset, bound)
            last = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big")
        next_offset = last + 1
        yield ReadBatch(kind, records)
