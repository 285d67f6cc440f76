"""The time index: Kafka's own test cases, and malformed files."""

import random
import struct
from bisect import bisect_right
from pathlib import Path

import pytest

from segmentlog.log.indexes import TimeIndex

WALK_THROUGH = "0000000000000069 00000001 000000000000006e 00000004 0000000000000078 00000008"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a test's index."""
    return tmp_path / "00000000000000000040.timeindex"


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("tail", [b"", bytes(960), b"\1", bytes(7), bytes(960 + 11)])
def test_the_walk_through_has_three_entries_whatever_follows_them(
    path: Path, tail: bytes, *, mapped: bool
) -> None:
    """The file is preallocated to 996 bytes, trimmed, or not a multiple of 12 bytes long."""
    path.write_bytes(bytes.fromhex(WALK_THROUGH) + tail)
    with TimeIndex(str(path), 40, mapped=mapped) as index:
        entries = [index.entry(slot) for slot in range(index.n_entries)]
        found = [index.lookup(ms) for ms in (0, 104, 105, 109, 110, 111, 119, 120, 121)]
        last = index.last()

    none = (-1, 40)
    assert [(105, 41), (110, 44), (120, 48)] == entries
    assert [none, none, *(entries[i] for i in (0, 0, 1, 1, 1, 2, 2))] == found
    assert (120, 48) == last


@pytest.mark.parametrize("mapped", [True, False])
def test_kafkas_entries_at_base_45_are_found_by_time(path: Path, *, mapped: bool) -> None:
    """An exact time finds its entry.

    A time before the first entry finds the start of the segment.
    """
    entries = [(10 * i, 45 + 10 * i) for i in range(1, 30)]
    path.write_bytes(b"".join(struct.pack(">qi", ms, offset - 45) for ms, offset in entries))
    with TimeIndex(str(path), 45, mapped=mapped) as index:
        found = [index.lookup(ms) for ms in (-1, 9, 10, 25, 30, 290, 2**62)]

    assert [(-1, 45), (-1, 45), (10, 55), (20, 65), (30, 75), (290, 335), (290, 335)] == found


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("content", [None, b"", b"\1" * 11, bytes(12), bytes(996)])
def test_an_index_without_entries_knows_no_time(
    path: Path, content: bytes | None, *, mapped: bool
) -> None:
    """The index is missing, empty, shorter than an entry, or only preallocated."""
    if content is not None:
        path.write_bytes(content)
    with TimeIndex(str(path), 45, mapped=mapped) as index:
        n_entries = index.n_entries
        found = index.lookup(2**62), index.last()

    assert 0 == n_entries
    assert ((-1, 45), (-1, 45)) == found


@pytest.mark.parametrize("mapped", [True, False])
def test_the_warm_section_finds_what_a_plain_bisection_finds(path: Path, *, mapped: bool) -> None:
    """Every time around 3000 entries is looked up. The last 682 entries are searched first."""
    draw = random.Random(0)
    times = sorted(draw.sample(range(10, 12_000), 3000))
    entries = [(ms, 46 + i) for i, ms in enumerate(times)]
    packed = b"".join(struct.pack(">qi", ms, offset - 45) for ms, offset in entries)
    path.write_bytes(packed + bytes(12 * 500))
    with TimeIndex(str(path), 45, mapped=mapped) as index:
        found = [index.lookup(ms) for ms in range(12_010)]

    slots = [bisect_right(times, ms) - 1 for ms in range(12_010)]
    assert [entries[slot] if slot >= 0 else (-1, 45) for slot in slots] == found
