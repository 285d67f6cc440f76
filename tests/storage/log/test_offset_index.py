"""The offset index: Kafka's own test cases, and malformed files."""

import random
import struct
from bisect import bisect_right
from pathlib import Path

import pytest

from segmentlog.log.indexes import SMALL_BYTES, OffsetIndex

WALK_THROUGH = "0000000200000094 0000000400000128 00000006000001bc 0000000800000250"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a test's index."""
    return tmp_path / "00000000000000000040.index"


def pack(base: int, entries: list[tuple[int, int]]) -> bytes:
    """Entries in the format of a broker."""
    return b"".join(struct.pack(">ii", offset - base, at) for offset, at in entries)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("tail", [b"", bytes(968), b"\1", bytes(5), bytes(968 + 3)])
def test_the_walk_through_has_four_entries_whatever_follows_them(
    path: Path, tail: bytes, *, mapped: bool
) -> None:
    """The file is preallocated to 1000 bytes, trimmed, or not a multiple of 8 bytes long."""
    path.write_bytes(bytes.fromhex(WALK_THROUGH) + tail)
    with OffsetIndex(str(path), 40, mapped=mapped) as index:
        entries = [index.entry(slot) for slot in range(index.n_entries)]
        found = [index.lookup(offset) for offset in range(39, 51)]

    begin = (40, 0)
    assert [(42, 148), (44, 296), (46, 444), (48, 592)] == entries
    assert [begin] * 3 + [entries[i // 2] for i in range(8)] + [entries[3]] == found


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("zeros", [0, 80])
def test_kafkas_entries_at_base_45_are_found_by_offset_and_position(
    path: Path, zeros: int, *, mapped: bool
) -> None:
    """The first entry consists of eight zero bytes, and is an entry nevertheless."""
    entries = [(45, 0), (46, 10), (47, 23), (48, 37)]
    path.write_bytes(pack(45, entries) + bytes(zeros))
    with OffsetIndex(str(path), 45, mapped=mapped) as index:
        by_offset = [index.lookup(offset) for offset in (44, 45, 46, 47, 48, 49)]
        by_position = [index.last_at_or_before_position(at) for at in (0, 9, 10, 22, 23, 37, 200)]

    assert [entries[i] for i in (0, 0, 1, 2, 3, 3)] == by_offset
    assert [entries[i] for i in (0, 0, 1, 1, 2, 3, 3)] == by_position


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("content", [None, b"", b"\1" * 7, bytes(8), bytes(1000)])
def test_an_index_without_entries_points_at_the_start_of_the_segment(
    path: Path, content: bytes | None, *, mapped: bool
) -> None:
    """The index is missing, empty, shorter than an entry, or only preallocated."""
    if content is not None:
        path.write_bytes(content)
    with OffsetIndex(str(path), 45, mapped=mapped) as index:
        n_entries = index.n_entries
        found = index.lookup(10**6), index.lookup(0), index.last_at_or_before_position(10**6)

    assert 0 == n_entries
    assert ((45, 0), (45, 0), (45, 0)) == found


@pytest.mark.parametrize("mapped", [True, False])
def test_the_warm_section_finds_what_a_plain_bisection_finds(path: Path, *, mapped: bool) -> None:
    """Every offset around 3000 entries is looked up.

    The last thousand entries are searched first.
    """
    draw = random.Random(0)
    offsets = sorted(draw.sample(range(50, 12_000), 3000))
    entries = [(offset, 70 * i) for i, offset in enumerate(offsets, start=1)]
    path.write_bytes(pack(45, entries) + bytes(8 * 500))
    with OffsetIndex(str(path), 45, mapped=mapped) as index:
        n_entries = index.n_entries
        found = [index.lookup(offset) for offset in range(40, 12_010)]

    slots = [bisect_right(offsets, offset) - 1 for offset in range(40, 12_010)]
    assert 3000 == n_entries
    assert [entries[slot] if slot >= 0 else (45, 0) for slot in slots] == found


@pytest.mark.parametrize("n_entries", [1, 2, 1023, 1024, 1025, 1026])
def test_the_edge_of_the_warm_section_is_found_from_both_sides(path: Path, n_entries: int) -> None:
    """The index has as many entries as the warm section, one more or one fewer."""
    entries = [(45 + 2 * i, 10 * i) for i in range(1, n_entries + 1)]
    path.write_bytes(pack(45, entries))
    with OffsetIndex(str(path), 45, mapped=False) as index:
        exact = [index.lookup(offset) for offset, _ in entries]
        above = [index.lookup(offset + 1) for offset, _ in entries]
        below = index.lookup(entries[0][0] - 1)

    assert entries == exact
    assert entries == above
    assert (45, 0) == below


def test_a_file_that_shrinks_under_the_reader_gives_zeros(path: Path) -> None:
    """A broker trims the active index in place. A look-up without a mapping survives that."""
    path.write_bytes(pack(40, [(50 + i, 10 * i + 1) for i in range(3000)]))
    assert path.stat().st_size > SMALL_BYTES  # a smaller index would be read when it is opened
    with OffsetIndex(str(path), 40, mapped=False) as index:
        path.write_bytes(b"")
        found = index.lookup(60)

    assert (40, 0) == found


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("n_entries", [0, 1, 2, 700, 1024, 1025, 3000])
@pytest.mark.parametrize("zeros", [0, 8, 80_000, 5])
def test_look_ups_are_a_plain_binary_search(
    path: Path, n_entries: int, zeros: int, *, mapped: bool
) -> None:
    """The warm section changes which pages are touched, never the answer.

    Zeros are not entries.
    """
    rng = random.Random(n_entries)
    offsets = sorted(rng.sample(range(101, 10_000), n_entries))
    entries = [(offset, 50 * (i + 1)) for i, offset in enumerate(offsets)]
    path.write_bytes(pack(100, entries) + bytes(zeros))
    with OffsetIndex(str(path), 100, mapped=mapped) as index:
        assert n_entries == index.n_entries
        for target in (0, 100, 101, 5_000, 9_999, 20_000, *rng.sample(range(101, 10_000), 200)):
            slot = bisect_right(offsets, target) - 1
            expected = entries[slot] if slot >= 0 else (100, 0)
            assert expected == index.lookup(target)
        for position in (0, 49, 50, 51, 50 * n_entries, 10**9):
            slot = min(position // 50, n_entries) - 1
            expected = entries[slot] if slot >= 0 else (100, 0)
            assert expected == index.last_at_or_before_position(position)


@pytest.mark.parametrize("position", [-1, -(2**31)])
def test_a_negative_position_is_not_a_place_in_the_log(path: Path, position: int) -> None:
    """A flipped bit made a read ask the system for bytes before the file."""
    path.write_bytes(pack(40, [(42, position), (44, 296)]))
    with OffsetIndex(str(path), 40, mapped=True) as index:
        found = [index.last_at_or_before_position(at) for at in (0, 295, 296)]

    assert [(40, 0), (40, 0), (44, 296)] == found
