"""Offset and time index: Kafka's own cases, preallocated tails, both ways of reading."""

import random
import struct
from bisect import bisect_right
from pathlib import Path

import pytest

from segmentlog.index.offset import OffsetIndex
from segmentlog.index.time import TimeIndex

pytestmark = pytest.mark.parametrize("mapped", [True, False])


def offset_index(
    path: Path, entries: list[tuple[int, int]], base: int, mapped: bool, zeros: int = 0
) -> OffsetIndex:
    """An index file of absolute offsets, opened."""
    packed = [struct.pack(">ii", offset - base, position) for offset, position in entries]
    path.write_bytes(b"".join(packed) + bytes(zeros))
    return OffsetIndex(str(path), base, mapped=mapped)


def test_the_walk_through_of_a_segment(tmp_path: Path, mapped: bool) -> None:
    """Entries of ten 74-byte batches at base 40, as Kafka writes them, byte for byte."""
    data = "0000000200000094 0000000400000128 00000006000001bc 0000000800000250"
    (tmp_path / "i").write_bytes(bytes.fromhex(data))
    with OffsetIndex(str(tmp_path / "i"), 40, mapped=mapped) as index:
        entries = [index.entry(slot) for slot in range(index.n_entries)]
        found = [index.lookup(offset) for offset in (40, 41, 42, 43, 49)]

    assert entries == [(42, 148), (44, 296), (46, 444), (48, 592)]
    assert found == [(40, 0), (40, 0), (42, 148), (42, 148), (48, 592)]


def test_time_entries_of_the_same_segment(tmp_path: Path, mapped: bool) -> None:
    """The greatest entry not above the time, or (-1, base offset)."""
    data = "000000000000006900000001 000000000000006e00000004 000000000000007800000008"
    (tmp_path / "t").write_bytes(bytes.fromhex(data))
    with TimeIndex(str(tmp_path / "t"), 40, mapped=mapped) as index:
        found = [index.lookup(time) for time in (104, 105, 109, 110, 119, 120, 999)]
        last = index.last()

    expected = [(-1, 40), (105, 41), (105, 41), (110, 44), (110, 44), (120, 48), (120, 48)]
    assert expected == found
    assert last == (120, 48)


@pytest.mark.parametrize("n_entries", [0, 1, 2, 700, 1024, 1025, 3000])
@pytest.mark.parametrize("zeros", [0, 8, 80_000, 5])
def test_look_ups_are_a_plain_binary_search(
    tmp_path: Path, mapped: bool, n_entries: int, zeros: int
) -> None:
    """The warm section changes which pages are touched, never the answer; zeros are no entries."""
    rng = random.Random(n_entries)
    offsets = sorted(rng.sample(range(101, 10_000), n_entries))
    entries = [(offset, 50 * (i + 1)) for i, offset in enumerate(offsets)]
    with offset_index(tmp_path / "i", entries, 100, mapped, zeros) as index:
        assert n_entries == index.n_entries
        for target in (0, 100, 101, 5_000, 9_999, 20_000, *rng.sample(range(101, 10_000), 200)):
            slot = bisect_right(offsets, target) - 1
            expected = entries[slot] if slot >= 0 else (100, 0)
            assert expected == index.lookup(target)
        for position in (0, 49, 50, 51, 50 * n_entries, 10**9):
            slot = min(position // 50, n_entries) - 1
            expected = entries[slot] if slot >= 0 else (100, 0)
            assert expected == index.last_at_or_before_position(position)


def test_a_missing_index_is_an_empty_one(tmp_path: Path, mapped: bool) -> None:
    """Look-ups answer the start of the segment."""
    with OffsetIndex(str(tmp_path / "gone"), 45, mapped=mapped) as offsets:
        assert (0, (45, 0)) == (offsets.n_entries, offsets.lookup(99))
    with TimeIndex(str(tmp_path / "gone"), 45, mapped=mapped) as times:
        assert (0, (-1, 45)) == (times.n_entries, times.lookup(99))
