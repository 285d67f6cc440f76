"""What is kept of the records of a part of a log: a few arrays of a fixed size.

A `RecordSketch` takes Arrow batches; a kernel does the work.  Sketches of parts that follow each
other are merged, also when they come from other processes, and give what one sketch of all records
would give.  Only the counts of the heaviest keys depend on the parts, within their stated error.
"""

import base64
import math
import zlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentlog.format.kernels import sketches as kernels
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.records.interleaved import binary_arrays

#: Columns that a sketch takes, with timestamps as they are stored.
COLUMNS = ("key", "value", "offset", "timestamp")

#: Twice the standard error of HyperLogLog: 95 of 100 counts of distinct keys are nearer.
DISTINCT_ERROR = 2 * 1.04 / math.sqrt(kernels.N_REGISTERS)

EARLIEST_MS = 946_684_800_000  #: the year 2000, when there was no Kafka

_PLACES = 512  #: of records, in the first cache

#: Counters that are summed up, those of which the larger one counts, and those of times.
_SUMS = [
    kernels.N_RECORDS,
    kernels.NULL_KEYS,
    kernels.KEY_BYTES,
    kernels.NULL_VALUES,
    kernels.TOMBSTONES,
    kernels.VALUE_BYTES,
    kernels.OTHER_IDS,
    kernels.HEAVY_ERROR,
    kernels.NO_TIME,
    kernels.N_BACK,
    kernels.BEFORE,
    kernels.AFTER,
]
_LARGEST = [kernels.LARGEST_KEY, kernels.LARGEST_VALUE, kernels.MOST_BACK_MS]
_TIMES = slice(kernels.FIRST_MS, kernels.LARGEST_MS + 1)


class FoundKey(NamedTuple):
    """One of the heaviest keys.

    `hashed`: the key's hash.  `n_records`: that have it, at least.  `length`: its bytes.
    `partition`, `offset`: of a record that has it.
    """

    hashed: int
    n_records: int
    length: int
    partition: int
    offset: int


class RecordSketch:
    """Counters and sketches of records.

    `now_ms`: later timestamps are in the future (epoch).
    """

    def __init__(self, now_ms: int) -> None:
        self._registers: Bytes = np.zeros(kernels.N_REGISTERS, np.uint8)
        self._heavy: Int64s = np.zeros(kernels.HEAVY_SIZE, np.int64)
        self._ids: Int64s = np.zeros((kernels.ID_ROWS, kernels.ID_COLUMNS), np.int64)
        self._sizes: Int64s = np.zeros(2 * kernels.SIZE_COLUMNS, np.int64)
        #: int64 array, shape (`N_COUNTERS`,); see `segmentlog.format.kernels.sketches`
        self.counters: Int64s = np.zeros(kernels.N_COUNTERS, np.int64)
        self.counters[kernels.EARLIEST_MS] = EARLIEST_MS
        self.counters[kernels.NOW_MS] = now_ms

    @cached_property
    def arrays(self) -> kernels.SketchArrays:
        """All of it for a kernel, which changes it."""
        return kernels.SketchArrays(
            self._registers,
            self._heavy,
            np.empty_like(self._heavy),
            np.zeros(kernels.SEEN_BYTES, np.uint8),
            self._ids,
            self._sizes,
            self.counters,
        )

    @cached_property
    def _places(self) -> Int64s:
        return np.empty(_PLACES * kernels.PLACE_SIZE, np.int64)

    def add(self, batch: pa.RecordBatch, partition: int) -> None:
        """Add records of one partition, which follow those before; they have `COLUMNS`."""
        kernels.sketch_records(
            binary_arrays(batch.column("key")),
            binary_arrays(batch.column("value")),
            _numbers(batch.column("timestamp")),
            _numbers(batch.column("offset")),
            partition,
            self._places,
            self.arrays,
        )

    def merge(self, other: "RecordSketch") -> None:
        """Add the records of another sketch, which follow those of this one."""
        kernels.merge_sketches(self.arrays, other._registers, other._heavy, other._ids)
        self._sizes += other._sizes
        mine, its = self.counters, other.counters
        if its[kernels.N_RECORDS] > its[kernels.NO_TIME]:
            if mine[kernels.N_RECORDS] == mine[kernels.NO_TIME]:
                mine[_TIMES] = its[_TIMES]
            else:
                mine[kernels.N_BACK] += its[kernels.FIRST_MS] < mine[kernels.LAST_MS]
                back = mine[kernels.LARGEST_MS] - its[kernels.LEAST_MS]
                mine[kernels.MOST_BACK_MS] = max(mine[kernels.MOST_BACK_MS], back)
                mine[kernels.LAST_MS] = its[kernels.LAST_MS]
                mine[kernels.LEAST_MS] = min(mine[kernels.LEAST_MS], its[kernels.LEAST_MS])
                mine[kernels.LARGEST_MS] = max(mine[kernels.LARGEST_MS], its[kernels.LARGEST_MS])
        mine[_LARGEST] = np.maximum(mine[_LARGEST], its[_LARGEST])
        mine[_SUMS] += its[_SUMS]

    def __getitem__(self, counter: int) -> int:
        """A counter of `segmentlog.format.kernels.sketches`."""
        return int(self.counters[counter])

    @property
    def key_sizes(self) -> Int64s:
        """Keys by the number of bits of their lengths: 0 for no byte, 1 for one byte."""
        return self._sizes[: kernels.SIZE_COLUMNS]

    @property
    def value_sizes(self) -> Int64s:
        """Values in the same way."""
        return self._sizes[kernels.VALUE_SIZES :]

    @property
    def distinct(self) -> tuple[int, float]:
        """The number of distinct keys, and its relative error; 0 if it is exact."""
        if not self[kernels.HEAVY_ERROR]:  # then the table has all keys
            return self[kernels.N_HEAVY], 0.0
        return round(_estimate(self._registers)), DISTINCT_ERROR

    @property
    def heaviest_error(self) -> int:
        """The number of records by which the count of a key may be too small, at most."""
        return self[kernels.HEAVY_ERROR]

    def heaviest(self, most: int) -> list[FoundKey]:
        """The keys with the most records, the heaviest first."""
        rows = self._heavy[: kernels.PLACES].reshape(-1, kernels.ROW_SIZE)
        places = self._heavy[kernels.PLACES :].reshape(-1, kernels.HEAVY_PLACE_SIZE)
        order = np.lexsort((rows[:, kernels.HASH], -rows[:, kernels.COUNT]))
        order = order[: min(most, self[kernels.N_HEAVY])]
        return [
            FoundKey(hashed % 2**64, count, length, partition, offset)
            for (hashed, count), (length, partition, offset, _) in zip(
                rows[order].tolist(), places[order].tolist(), strict=True
            )
        ]

    def schema_ids(self) -> list[tuple[int, int]]:
        """Ids of schemas that values begin with, and how often; the most frequent first."""
        found = self._ids[self._ids[:, kernels.ID_COUNT] > 0].tolist()
        # Registries give ids from 1 on: four zeros are the beginning of a long, or of its id.
        return sorted(
            (tuple(each) for each in found if each[0]), key=lambda each: (-each[1], each[0])
        )

    def to_json(self) -> dict[str, Any]:
        """All of it, for another process; `from_json` is the inverse."""
        return {name: packed(getattr(self, name)) for name in _ARRAYS}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "RecordSketch":
        """The inverse of `to_json`."""
        sketch = cls(0)
        for name in _ARRAYS:
            unpack(found[name], getattr(sketch, name))
        sketch.counters[kernels.N_SEEN] = 0  # of the filter that `arrays` makes
        return sketch


_ARRAYS = ("_registers", "_heavy", "_ids", "_sizes", "counters")


def packed(array: NDArray[Any]) -> str:
    """The bytes of an array, as text."""
    return base64.b64encode(zlib.compress(array.tobytes(), 1)).decode("ascii")


def unpack(text: str, array: NDArray[Any]) -> None:
    """Fill an array from what `packed` has made of one with its shape.

    Raises `ValueError` if the text was made of another array.
    """
    inflate = zlib.decompressobj()
    data = inflate.decompress(base64.b64decode(text), array.nbytes + 1)
    array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)


def _estimate(registers: Bytes) -> float:
    """Distinct hashes, by the improved estimator of Ertl (2017), which needs no corrections."""
    n_ranks = 64 - kernels.REGISTER_BITS + 1
    n = kernels.N_REGISTERS
    counts = np.bincount(registers, minlength=n_ranks + 1).tolist()
    total = n * _tau(1 - counts[n_ranks] / n)
    for rank in range(n_ranks - 1, 0, -1):
        total = 0.5 * (total + counts[rank])
    total += n * _sigma(counts[0] / n)
    return n * n / (2 * math.log(2) * total)


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    total, before, factor = x, -1.0, 1.0
    while total != before:
        x *= x
        before = total
        total += x * factor
        factor += factor
    return total


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    total, before, factor = 1 - x, -1.0, 1.0
    while total != before:
        x = math.sqrt(x)
        before = total
        factor *= 0.5
        total -= (1 - x) ** 2 * factor
    return total / 3


def _numbers(array: pa.Array) -> Int64s:
    """A column of numbers for a kernel."""
    if array.null_count:
        array = array.fill_null(kernels.NO_TIMESTAMP)
    found: Int64s = np.frombuffer(array.buffers()[1], np.int64)
    return found[array.offset : array.offset + len(array)]
