"""Partitions are chosen as Kafka's producers choose them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentlog.errors import ErrorCode, InvalidRecordError
from segmentlog.format.kernels.partition import murmur2
from segmentlog.format.kernels.source import SourceArrays
from segmentlog.format.records.encoder import record_source
from segmentlog.writes.stager import Partitioner, group_rows

#: Key, ``Utils.murmur2`` of it as Java's int, and its partition of 12.
MURMUR2 = [
    (b"", 275646681, 9),
    (b"a", -1563381124, 4),
    (b"ab", 316155434, 2),
    (b"abc", 479470107, 3),
    (b"abcd", -1323649548, 8),
    (b"21", -973932308, 0),
    (b"foobar", -790332482, 6),
    (b"a-little-bit-long-string", -985981536, 8),
    (b"a-little-bit-longer-string", -1486304829, 11),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971, 5),
]


def source(keys: list[bytes | None], values: list[bytes | None] | None = None) -> SourceArrays:
    """Rows with these keys, and with null values unless values are given."""
    columns = {"key": pa.array(keys, pa.binary())}
    if values is not None:
        columns["value"] = pa.array(values, pa.binary())
    return record_source(pa.RecordBatch.from_pydict(columns), np.zeros(len(keys), np.int64))


@pytest.mark.parametrize(("key", "hashed", "partition"), MURMUR2)
def test_keys_are_hashed_as_in_java(key: bytes, hashed: int, partition: int) -> None:
    """The hashes are those of Kafka's own test, in Python; compiled, they choose partitions."""
    buf = np.frombuffer(b"before" + key + b"after", np.uint8)

    assert hashed & 0xFFFFFFFF == murmur2(buf, 6, 6 + len(key))
    assert [partition] == Partitioner("t", 12, 100).choose(source([key])).tolist()


@given(st.binary(max_size=70))
def test_compiled_hashes_are_those_of_plain_python(key: bytes) -> None:
    """The keys have every length of tail, and every byte in the tail."""
    expected = (murmur2(np.frombuffer(key, np.uint8), 0, len(key)) & 0x7FFFFFFF) % 1_000_003

    assert [expected] == Partitioner("t", 1_000_003, 100).choose(source([key])).tolist()


def test_rows_without_a_key_stay_together_for_about_a_batch() -> None:
    """After a batch's size the next partition follows, also across Arrow batches.

    Rows with keys do not count.
    """
    partitioner = Partitioner("t", 3, 1000, first_partition=4)
    keys: list[bytes | None] = [None, None, b"foobar"] * 20
    rows = source(keys, [bytes(92)] * 60)
    seen = [n for _ in range(3) for n in partitioner.choose(rows).tolist()]
    sticky = [n for n, key in zip(seen, keys * 3, strict=True) if key is None]

    assert seen[2::3] == [0] * 60
    assert sticky == [(1 + i // 10) % 3 for i in range(120)]


def test_a_row_may_name_its_partition() -> None:
    """A named partition takes precedence over the key, also in a slice. Null leaves the choice."""
    explicit = pa.array([9, 5, None, 0, None], pa.int32()).slice(1)
    rows = source([b"a", b"a", None, None])

    assert Partitioner("t", 12, 1).choose(rows, explicit).tolist() == [5, 4, 0, 0]


@pytest.mark.parametrize("named", [-1, 2, 2**31 - 1])
def test_a_partition_that_is_not_there_is_refused(named: int) -> None:
    """The error names the row and the partition."""
    explicit = pa.array([None, 0, named], pa.int32())
    says = f"names partition {named}, but the topic has partitions 0 to 1"
    with pytest.raises(InvalidRecordError, match=says) as caught:
        Partitioner("t", 2, 1).choose(source([b"a"] * 3), explicit)

    assert (caught.value.row, caught.value.partition) == (2, named)
    assert caught.value.code == ErrorCode.INVALID_RECORD


@given(st.lists(st.integers(0, 6)))
def test_grouping_is_a_stable_sort(partitions: list[int]) -> None:
    """Rows of a partition keep their order. Every partition has a range, perhaps an empty one."""
    array = np.array(partitions, np.int32)
    rows, starts = group_rows(array, 7)

    assert np.argsort(array, kind="stable").tolist() == rows.tolist()
    assert [sum(p < n for p in partitions) for n in range(8)] == starts.tolist()


def test_grouping_refuses_partitions_that_are_not_there() -> None:
    """The numbers are checked before the kernel, which does not check them."""
    for wrong in (-1, 7):
        with pytest.raises(IndexError):
            group_rows(np.array([0, wrong], np.int32), 7)
