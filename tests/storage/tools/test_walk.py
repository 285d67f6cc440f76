"""A walk finds every batch of a file, also good batches after bad ones."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from segmentlog.format.checksum import crc32c
from segmentlog.format.records.header import BatchHeader
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment
from segmentlog.store.readable import open_file
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools.walk import FoundBytes, walk

BATCHES = [
    encode_batch([Record(10 * i + j, i, b"k", b"value" * 9) for j in range(10)]) for i in range(5)
]
POSITIONS = [sum(map(len, BATCHES[:i])) for i in range(5)]


def found_in(
    directory: Path, data: bytes, is_wanted: Callable[[BatchHeader], bool] = lambda _: True
) -> list[FoundBytes]:
    """The findings of a walk over `data`."""
    path = directory / f"{0:020d}.log"
    path.write_bytes(data)
    segment = Segment(SegmentFiles(0, str(path), len(data)), is_sealed=False)
    with open_file(str(path)) as file:
        return [each for each in walk(segment, file, 0, is_wanted) if isinstance(each, FoundBytes)]


def good_positions(found: list[FoundBytes]) -> list[int]:
    """Positions of batches without a problem."""
    return [each.position for each in found if each.header and not each.problem]


def changed(at: int, to: bytes) -> bytes:
    """All batches; in the third, other bytes are written `at` this place."""
    data = bytearray(b"".join(BATCHES))
    data[POSITIONS[2] + at : POSITIONS[2] + at + len(to)] = to
    return bytes(data)


def test_good_batches_are_all_there_is(tmp_path: Path) -> None:
    """The walk returns positions and sizes of an undamaged file."""
    found = found_in(tmp_path, b"".join(BATCHES))

    assert POSITIONS == good_positions(found)
    assert list(map(len, BATCHES)) == [each.n_bytes for each in found]


@pytest.mark.parametrize(
    ("at", "to", "reason"),
    [
        (80, b"x", "its crc32c is 0x"),
        (0, b"\x7f", "its crc32c is 0x"),
        (8, b"\x7f\xff\xff\xff", "it needs 2147483659 bytes"),
        (8, struct.pack(">i", -5), "its length field contains -5"),
        (8, struct.pack(">i", 60), "its crc32c is 0x"),
        (16, b"\x09", "its magic is 9"),
        (16, b"\xff", "its magic is"),
        (0, b"\xff" * 61, "its length field contains -1"),
        (0, b"x" * 200, "its magic is 120"),
    ],
)
def test_the_walk_continues_after_damage(tmp_path: Path, at: int, to: bytes, reason: str) -> None:
    """The changed batch is bad, with a reason, and all other batches are found."""
    found = found_in(tmp_path, changed(at, to))
    (bad,) = [each for each in found if each.problem]
    expected = [each for each in POSITIONS if each != POSITIONS[2]]

    if to == b"\x7f":  # no checksum covers the base offset
        assert "base offset is not above" in bad.problem
        assert len(found) == 5
    else:
        assert expected == good_positions(found)
        assert POSITIONS[2] == bad.position
        assert bad.problem.startswith(reason)


@pytest.mark.parametrize("cut", [8, 30, 61, 100])
def test_a_file_that_ends_inside_a_batch_says_so(tmp_path: Path, cut: int) -> None:
    """The remaining bytes are shown as a partial batch."""
    found = found_in(tmp_path, b"".join(BATCHES) + BATCHES[1][:cut])

    assert POSITIONS == good_positions(found)
    assert cut == found[-1].n_bytes
    assert ("needs" if cut >= 61 else "ends inside a batch header") in found[-1].problem


def test_zeros_at_the_end_are_no_damage(tmp_path: Path) -> None:
    """A preallocated file ends in zeros. Zeros before more batches are damage."""
    at_end = found_in(tmp_path, b"".join(BATCHES) + bytes(5000))
    between = found_in(tmp_path, BATCHES[0] + bytes(5000) + BATCHES[1])

    assert (5000, None, "") == at_end[-1][1:]
    assert [0, len(BATCHES[0]) + 5000] == good_positions(between)
    assert "the next good batch is at byte" in between[1].problem


def test_offsets_that_go_back_are_damage(tmp_path: Path) -> None:
    """If a batch is in the file twice, only the first copy is good."""
    found = found_in(tmp_path, BATCHES[0] + BATCHES[1] + BATCHES[0] + BATCHES[2])
    flags = [bool(each.problem) for each in found]

    assert [False, False, True, False] == flags


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [(23, -1, "last offset delta"), (57, -1, "record count"), (57, 11, "record count")],
)
def test_headers_that_contradict_themselves_are_damage(
    tmp_path: Path, field: int, value: int, reason: str
) -> None:
    """The header is damage even if its checksum is right."""
    batch = bytearray(BATCHES[2])
    struct.pack_into(">i", batch, field, value)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    (found,) = found_in(tmp_path, bytes(batch))

    assert reason in found.problem


def test_batches_that_are_not_wanted_cost_no_checksum(tmp_path: Path) -> None:
    """Only the headers of other batches are read."""
    found = found_in(tmp_path, changed(80, b"x"), lambda header: header.base_offset >= 30)

    assert POSITIONS[3:] == good_positions(found)
    assert len(found) == 2


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_hides_no_other_batch(tmp_path: Path, seed: int) -> None:
    """Batches without a changed byte are found, wherever bytes are overwritten."""
    draw = random.Random(seed)
    data = bytearray(b"".join(BATCHES))
    begin = draw.randrange(len(data))
    junk = draw.randbytes(draw.choice([1, 4, 20, 500]))
    data[begin : begin + len(junk)] = junk
    end = begin + len(junk)
    untouched = [
        position
        for position, batch in zip(POSITIONS, BATCHES, strict=True)
        if end <= position or position + len(batch) <= begin
    ]
    found = found_in(tmp_path, bytes(data))
    is_base_offset = any(0 <= begin - position < 8 for position in POSITIONS)

    if not is_base_offset:  # a wrong one may make the next batch look wrong instead
        assert set(untouched) <= set(good_positions(found))
    assert sum(each.n_bytes for each in found if not each.problem) <= len(data)
