"""Keys that stand in several partitions, found in bounded memory.

Each key becomes a hash of 128 bits, under a secret of this search: keys with equal hashes do not
occur, and nobody can choose such keys.  The hashes of a partition go through a table, which leaves
out most repetitions, to files by their first bits.  One file at a time is sorted in memory: a hash
with two partitions is a key that stands in both.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from segmentlog.format.kernels import offset_map, status
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s

_TABLE_ROWS = 1 << 20  #: of 24 bytes
_MOST_KEYS = _TABLE_ROWS // 2  #: a fuller table takes longer for each key
_FILE_BYTES = 64 << 20  #: of a file, which is sorted in memory
_MOST_FILES = 256
_ROW_BYTES = 24  #: two numbers of the hash, and the partition
_MOST_EXAMPLES = 3

#: A partition and the keys of some of its rows, binary; and the offsets of these rows.
Keys = tuple[int, pa.Array, Int64s]


class SplitKeys(NamedTuple):
    """What was found: how many keys, and where some of them stand.

    `examples`: for each, two places (partition and offset), and the key.
    """

    n_keys: int
    examples: tuple[tuple[tuple[int, int], tuple[int, int], bytes], ...]


def find_split_keys(
    read: Callable[[], Iterable[Keys]], n_records: int, directory: str | None = None
) -> SplitKeys:
    """Search the keys of all partitions.

    `read`: begins to read them, one partition after the other; called again if something is found.
    `n_records`: how many there may be.  `directory`: for files without a name; by default that of
    the system's temporary files.
    """
    n_files = min(max(n_records * _ROW_BYTES // _FILE_BYTES, 1), _MOST_FILES)
    secret: Bytes = np.array(bytearray(os.urandom(offset_map.SECRET_BYTES)), np.uint8)
    with ExitStack() as stack:
        files = [
            stack.enter_context(tempfile.TemporaryFile(dir=directory)) for _ in range(n_files)
        ]
        _spread(read(), secret, files)
        n_keys, examples = 0, np.empty((0, 2), np.int64)
        for file in files:
            file.seek(0)
            found = _in_several(np.frombuffer(file.read(), np.int64).reshape(-1, 3))
            n_keys += len(found)
            examples = np.concatenate([examples, found[: _MOST_EXAMPLES - len(examples)]])
    if not n_keys:
        return SplitKeys(0, ())
    return SplitKeys(n_keys, tuple(_places(read(), secret, examples)))


class _Table:
    """The hashes of keys, each once.

    `n_rows`: of the table, at least twice as many as keys.
    """

    def __init__(self, n_rows: int, secret: Bytes) -> None:
        self._secret = secret
        self._table: Int64s = np.zeros((n_rows, offset_map.ENTRY_COLUMNS), np.int64)
        self._state: Int64s = np.zeros(offset_map.STATE_COLUMNS, np.int64)
        self._state[offset_map.MOST_KEYS] = n_rows - 1
        self._waiting: Int64s = np.zeros(
            (offset_map.N_WAITING, offset_map.WAITING_COLUMNS), np.int64
        )

    @property
    def n_keys(self) -> int:
        """Number of hashes."""
        return int(self._state[offset_map.N_KEYS])

    def put(self, keys: pa.Array) -> None:
        """Add keys, which are not null; there is room."""
        if not len(keys):
            return
        bounds = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, 4 * keys.offset)
        first, end = int(bounds[0]), int(bounds[-1])
        data: Bytes = np.zeros(end - first + COPY_SLACK, np.uint8)
        if end > first:
            data[: end - first] = np.frombuffer(keys.buffers()[2], np.uint8)[first:end]
        ends: Int64s = bounds[1:].astype(np.int64) - first
        code = offset_map.put_all(
            data, ends, 0, self._table, self._state, self._secret, self._waiting
        )
        assert code == status.OK, code  # noqa: S101 - there was room

    def hashes(self) -> Int64s:
        """All hashes; shape (n_keys, 2)."""
        found: Int64s = self._table[self._table[:, 2] != 0, :2]
        return found

    def clear(self) -> None:
        """Forget all hashes."""
        self._table[:] = 0
        self._state[offset_map.N_KEYS] = 0


def _spread(read: Iterable[Keys], secret: Bytes, files: Sequence[BinaryIO]) -> None:
    """Write the hashes of each partition to the files, by the first number of the hash."""
    table, current = _Table(_TABLE_ROWS, secret), -1

    def flush() -> None:
        hashes = table.hashes()
        rows = np.column_stack([hashes, np.full(len(hashes), current)])
        places = (hashes[:, 0].view(np.uint64) >> np.uint64(32)) % np.uint64(len(files))
        for number, file in enumerate(files):
            file.write(np.ascontiguousarray(rows[places == number]).tobytes())
        table.clear()

    for partition, column, _ in read:
        if partition != current and table.n_keys:
            flush()
        current = partition
        keys = column.drop_null()
        for begin in range(0, len(keys), _MOST_KEYS):
            piece = keys.slice(begin, _MOST_KEYS)
            if table.n_keys + len(piece) > _MOST_KEYS:
                flush()
            table.put(piece)
    if table.n_keys:
        flush()


def _in_several(rows: Int64s) -> Int64s:
    """Hashes with two partitions or more; shape (n_keys, 2)."""
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    is_same = (np.diff(rows[:, :2], axis=0) == 0).all(axis=1)
    found: Int64s = rows[:-1, :2][is_same & (np.diff(rows[:, 2]) != 0)]
    return np.unique(found, axis=0)


def _places(
    read: Iterable[Keys], secret: Bytes, hashes: Int64s
) -> Iterator[tuple[tuple[int, int], tuple[int, int], bytes]]:
    """Two places of each of these keys, and the key."""
    found: list[list[tuple[int, int]]] = [[] for _ in hashes]
    keys_of = [b"" for _ in hashes]
    for partition, column, of_column in read:
        keys = column.drop_null()
        offsets = of_column[column.is_valid().to_numpy(zero_copy_only=False)]
        for number, wanted in enumerate(hashes):
            places = found[number]
            if len(places) == 2 or (places and places[0][0] == partition):
                continue
            at = _row_of(keys, wanted, secret)
            if at >= 0:
                places.append((partition, int(offsets[at])))
                keys_of[number] = keys[at].as_py()
        if all(len(each) == 2 for each in found):
            break
    for places, key in zip(found, keys_of, strict=True):
        if len(places) == 2:  # retention may have overtaken the search
            yield places[0], places[1], key


def _row_of(keys: pa.Array, wanted: Int64s, secret: Bytes) -> int:
    """The first row whose key has a hash, or -1: by halves, because a table forgets the rows."""
    begin, n_rows = 0, len(keys)

    def has(piece: pa.Array) -> bool:
        table = _Table(2 * len(piece) + 64, secret)
        table.put(piece)
        return bool((table.hashes() == wanted).all(axis=1).any())

    if not has(keys):
        return -1
    while n_rows > 1:
        half = n_rows // 2
        if has(keys.slice(begin, half)):
            n_rows = half
        else:
            begin, n_rows = begin + half, n_rows - half
    return begin
