"""The transaction index: which transactions were aborted (``org.apache.kafka…TransactionIndex``).

::

     0         2             10             18            26                   34
    +---------+-------------+--------------+-------------+--------------------+
    | version | producer id | first offset | last offset | last stable offset |
    | 0       |             |              |             | after it           |
    +---------+-------------+--------------+-------------+--------------------+

The file has an entry for each abort marker of the segment; the last offset is the marker's.  A
segment without aborts has no such file, so a missing file proves nothing: reads use the markers in
the log.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from segmentlog.errors import CorruptIndexError
from segmentlog.store.readable import read_whole

_ENTRY = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """An entry of a ``.txnindex`` file."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def read_transaction_index(path: str) -> Iterator[AbortedTransaction]:
    """Every entry of the file, in its order; no entries if the file is missing.

    Raises `CorruptIndexError` if its length is not a whole number of entries, an entry has another
    version than 0, or its last offset is not above that of the entry before; it is raised after
    the entries before.
    """
    try:
        data = read_whole(path, lambda reason: CorruptIndexError(path, f"it {reason}"))
    except FileNotFoundError:
        return
    left, before = len(data) % _ENTRY.size, -1
    entries = _ENTRY.iter_unpack(data[: len(data) - left])
    for number, (version, *fields) in enumerate(entries):
        if version:
            raise CorruptIndexError(path, f"expected entries of version 0, found {version}")
        entry = AbortedTransaction(*fields)
        if entry.last_offset <= before:
            reason = (
                f"entry {number} has last offset {entry.last_offset}, and the one before has "
                f"{before}: expected offsets that rise"
            )
            raise CorruptIndexError(path, reason)
        before = entry.last_offset
        yield entry
    if left:
        raise CorruptIndexError(
            path, f"its size of {len(data)} bytes is not a multiple of 34, the size of an entry"
        )


def encode_transactions(entries: Iterable[AbortedTransaction]) -> bytes:
    """Bytes of a file with these entries."""
    return b"".join(_ENTRY.pack(0, *each) for each in entries)
