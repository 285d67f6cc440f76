"""The walk over the batches of a file: each stretch of bytes has one verdict."""

import random
import struct
from pathlib import Path

import pytest

from segmentlog.errors import TruncatedBatchError, UnsupportedFormatError
from segmentlog.format.kernels import layout
from segmentlog.log.batches import walk_batches, walk_file
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment
from segmentlog.log.walk import Verdict, find_good_end, walk
from segmentlog.store.readable import open_file
from segmentlog.testing.reference import Record, encode_batch

BATCHES = [
    encode_batch([Record(o, 1000 + o, b"k", b"%03d" % o * 9) for o in range(first, first + 3)])
    for first in range(0, 30, 3)
]
SIZE = len(BATCHES[0])
TAIL = b"\0\0\0\0\0\0\0\x1e\0\0\0\x80 a batch that was not written whole"


def stretches(
    directory: Path, data: bytes, *, goes_on: bool = True, is_ordered: bool = True
) -> list[tuple[Verdict, int, int, int, int]]:
    """Verdict, bytes and offsets of each stretch; good ones that touch are one."""
    path = directory / f"{0:020d}.log"
    path.write_bytes(data)
    found: list[tuple[Verdict, int, int, int, int]] = []
    with open_file(str(path)) as file:
        for each in walk(str(path), file, 0, len(data), 0, goes_on=goes_on, is_ordered=is_ordered):
            assert (each.batches is None) == (each.verdict is not Verdict.GOOD)
            assert (each.error is None) == (each.verdict is Verdict.GOOD)
            found.append(each[:5])
    return found


def segment(directory: Path, data: bytes) -> Segment:
    """The segment at offset 0 with these bytes."""
    path = directory / f"{0:020d}.log"
    path.write_bytes(data)
    return Segment(SegmentFiles(0, str(path), len(data)), is_sealed=False)


def changed(number: int, at: int, data: bytes) -> bytes:
    """The log with some bytes of a batch replaced."""
    begin = number * SIZE + at
    log = b"".join(BATCHES)
    return log[:begin] + data + log[begin + len(data) :]


G, T, Z, N, D, M = (
    Verdict.GOOD,
    Verdict.TORN,
    Verdict.ZEROS,
    Verdict.NEWER,
    Verdict.DAMAGED,
    Verdict.MISPLACED,
)
ALL = 10 * SIZE

CASES = {
    "sound": (b"".join(BATCHES), [(G, 0, ALL, 0, 30)]),
    "a torn tail": (
        b"".join(BATCHES) + TAIL,
        [(G, 0, ALL, 0, 30), (T, ALL, ALL + len(TAIL), 30, 30)],
    ),
    "zeros": (b"".join(BATCHES) + bytes(99), [(G, 0, ALL, 0, 30), (Z, ALL, ALL + 99, 30, 30)]),
    "a checksum": (
        changed(4, 70, b"\xff\xff"),
        [(G, 0, 4 * SIZE, 0, 12), (D, 4 * SIZE, 5 * SIZE, 12, 15), (G, 5 * SIZE, ALL, 15, 30)],
    ),
    "a length": (
        changed(4, 8, struct.pack(">i", 1 << 20)),
        [(G, 0, 4 * SIZE, 0, 12), (D, 4 * SIZE, 5 * SIZE, 12, 15), (G, 5 * SIZE, ALL, 15, 30)],
    ),
    "an early batch in place of a later one": (
        changed(4, 0, BATCHES[1]),
        [(G, 0, 4 * SIZE, 0, 12), (M, 4 * SIZE, 5 * SIZE, 12, 15), (G, 5 * SIZE, ALL, 15, 30)],
    ),
    "a newer format": (
        changed(4, layout.MAGIC_AT, b"\x03"),
        [(G, 0, 4 * SIZE, 0, 12), (N, 4 * SIZE, 5 * SIZE, 12, 15), (G, 5 * SIZE, ALL, 15, 30)],
    ),
    "nothing good": (b"x" * 200, [(T, 0, 200, 0, 0)]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize(("data", "expected"), CASES.values(), ids=CASES)
def test_each_stretch_has_its_verdict(
    tmp_path: Path, data: bytes, expected: list[tuple[Verdict, int, int, int, int]]
) -> None:
    """The stretches cover all bytes; a walk that does not go on ends with the first bad one."""
    assert expected == stretches(tmp_path, data)
    first = stretches(tmp_path, data, goes_on=False)
    n_good = int(bool(expected) and expected[0][0] is G)
    assert expected[:n_good] == first[:n_good]
    assert [each[1] for each in expected[n_good : n_good + 1]] == [
        each[1] for each in first[n_good:]
    ]


def test_a_walk_in_any_order_finds_every_whole_batch(tmp_path: Path) -> None:
    """A shuffled log has no bad bytes, but no batch is above all before it."""
    mixed = BATCHES[:]
    random.Random(5).shuffle(mixed)
    found = stretches(tmp_path, b"".join(mixed), is_ordered=False)
    assert {G} == {each[0] for each in found}
    assert ALL == sum(end - begin for _, begin, end, *_ in found)
    assert {M, G} >= {each[0] for each in stretches(tmp_path, b"".join(mixed))}


def test_the_good_end_is_the_begin_of_the_first_bad_stretch(tmp_path: Path) -> None:
    """A newer format is no damage."""
    for name, (data, expected) in CASES.items():
        if name == "a newer format":
            with pytest.raises(UnsupportedFormatError):
                find_good_end(segment(tmp_path, data))
            continue
        end = find_good_end(segment(tmp_path, data))
        bad = next((each for each in expected if each[0] is not G), None)
        assert (len(data) if bad is None else bad[1]) == end.position, name
        assert (end.error is None) == (bad is None), name


@pytest.mark.parametrize("length", [1 << 20, 3 * SIZE - 12, ALL - 4 * SIZE - 12 - 8])
def test_headers_that_do_not_end_with_their_segment_are_damage(
    tmp_path: Path, length: int
) -> None:
    """A length that leads beyond the end, or to its last bytes, hides the batches after it."""
    damaged = segment(tmp_path, changed(4, 8, struct.pack(">i", length)))
    batches = walk_batches([damaged], 0)
    assert 12 <= max(each.next_offset for each in batches)
    if length == 3 * SIZE - 12:  # it leads to another batch: only a checksum shows that
        assert 4 * SIZE == find_good_end(damaged).position
        return
    with pytest.raises(TruncatedBatchError) as caught:
        list(walk_batches([damaged], 0, is_whole=True))
    assert caught.value.position in {4 * SIZE, ALL - 8}


@pytest.mark.parametrize("number", [1, 4, 5, 9])
def test_a_damaged_offset_hides_no_other_batch(tmp_path: Path, number: int) -> None:
    """A search among offsets that do not rise left out what came before a negative one."""
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(changed(number, 0, b"\x80"))
    with open_file(str(path)) as file:
        found = [
            walked.scanned.position_of(row) // SIZE
            for walked in walk_file(str(path), file, 0, ALL, 0)
            for row in range(len(walked.scanned.headers))
        ]
    assert [*range(10)] == found
