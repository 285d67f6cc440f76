"""The search for the end of a log leaves out torn tails, and reports damage."""

import logging
import struct
import zlib
from pathlib import Path

import pytest

import segmentlog
from segmentlog.errors import ChecksumMismatchError, SegmentLogError
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import LogEnd, Segment, find_log_end
from segmentlog.testing.reference import Record, encode_batch

BATCHES = [
    encode_batch([Record(40 + 2 * i + j, 1000 + i, b"key", b"value") for j in range(2)])
    for i in range(5)
]
WHOLE = b"".join(BATCHES)
ENDS = [sum(map(len, BATCHES[:i])) for i in range(6)]
NAME = "00000000000000000040.log"


def old_message(magic: int, offset: int) -> bytes:
    """A message of magic 0 or 1 with a null key."""
    time = struct.pack(">q", 1234) if magic else b""
    covered = bytes([magic, 0]) + time + struct.pack(">ii", -1, 5) + b"value"
    return struct.pack(">qiI", offset, len(covered) + 4, zlib.crc32(covered)) + covered


OLD_MESSAGES = [old_message(magic, 50) for magic in (0, 1)]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """An empty partition directory."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    return directory


def end_of(
    partition: Path, data: bytes, *, index: bytes | None = None, committed_to: int = -1
) -> LogEnd:
    """The end of a segment with these bytes."""
    (partition / NAME).write_bytes(data)
    if index is not None:
        (partition / NAME).with_suffix(".index").write_bytes(index)
    files = SegmentFiles(40, str(partition / NAME), len(data))
    return find_log_end(Segment(files, is_sealed=False), committed_to)


def entry(offset: int, position: int) -> bytes:
    """One entry of the offset index."""
    return (offset - 40).to_bytes(4, "big") + position.to_bytes(4, "big")


def flip(data: bytes, at: int) -> bytes:
    """The bytes with one bit changed."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("n_batches", range(6))
def test_whole_batches_end_at_the_last_byte(partition: Path, n_batches: int) -> None:
    """The log end offset follows the last batch. Without batches, it is the base offset."""
    data = b"".join(BATCHES[:n_batches])

    assert LogEnd(40 + 2 * n_batches, len(data)) == end_of(partition, data)


@pytest.mark.parametrize("has_index", [False, True])
def test_a_torn_tail_is_cut_at_every_byte(
    partition: Path, caplog: pytest.LogCaptureFixture, *, has_index: bool
) -> None:
    """Wherever the last batch is cut, the log ends before it, and a warning is logged."""
    index = entry(43, ENDS[1]) + entry(49, ENDS[4]) if has_index else None
    expected = LogEnd(48, ENDS[4])
    for n_bytes in range(1, len(BATCHES[4])):
        caplog.clear()
        found = end_of(partition, WHOLE[: ENDS[4] + n_bytes], index=index)
        told = f"reading stops at byte {ENDS[4]} (offset 48), and the {n_bytes} bytes after"

        assert expected == found, n_bytes
        assert (n_bytes > 7) == (told in caplog.text), n_bytes  # seven bytes of the offset are 0


@pytest.mark.parametrize("n_zeros", [1, 11, 60, 61, 4096, 100_000])
def test_a_tail_of_zeros_is_left_out_without_a_word(
    partition: Path, caplog: pytest.LogCaptureFixture, n_zeros: int
) -> None:
    """Brokers preallocate segments, so zeros after the last batch are not damage."""
    with caplog.at_level(logging.INFO, logger="segmentlog"):
        found = end_of(partition, WHOLE + bytes(n_zeros))

    assert LogEnd(50, ENDS[5]) == found
    assert "" == caplog.text


def test_a_file_of_zeros_is_an_empty_segment(partition: Path) -> None:
    """The segment is preallocated, and nothing has been written to it."""
    assert LogEnd(40, 0) == end_of(partition, bytes(10_000))


@pytest.mark.parametrize("garbage", [b"\xff" * 300, b"\x02" * 300, bytes(range(1, 251)), b"x"])
def test_a_tail_of_garbage_is_left_out_with_a_warning(
    partition: Path, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    """No good batch follows, so no record there can have been acknowledged."""
    found = end_of(partition, WHOLE + garbage)

    assert LogEnd(50, ENDS[5]) == found
    assert f"the {len(garbage)} bytes after that byte are left out" in caplog.text


@pytest.mark.parametrize("has_index", [False, True])
def test_a_flipped_bit_in_the_last_batch_cuts_that_batch(
    partition: Path, *, has_index: bool
) -> None:
    """A wrong byte tears the batch.

    The magic is an exception: no checksum covers it, and the batch counts as whole.
    """
    index = entry(49, ENDS[4]) if has_index else None
    covered = [*range(8, 12), *range(17, len(BATCHES[4]))]
    for at in covered:
        assert LogEnd(48, ENDS[4]) == end_of(partition, flip(WHOLE, ENDS[4] + at), index=index), at


@pytest.mark.parametrize("batch", range(5))
def test_a_wrong_base_offset_hides_no_other_batch(partition: Path, batch: int) -> None:
    """No checksum covers the offset. The batches around it and the high watermark show the end."""
    indexes = [b"", b"".join(entry(40 + 2 * each + 1, ENDS[each]) for each in range(1, 5))]
    for bit in (*range(7), *range(31, 64)):
        data = bytearray(WHOLE)
        data[ENDS[batch] + 7 - bit // 8] ^= 1 << bit % 8
        for index in indexes:
            found = end_of(partition, bytes(data), index=index, committed_to=50)

            assert found.offset == (48 if batch == 4 else 50), bit
            assert found.position == (ENDS[4] if batch == 4 else ENDS[5]), bit


@pytest.mark.parametrize("batch", [0, 1, 2, 3])
@pytest.mark.parametrize("first_entry", [None, 1, 2])
def test_a_flipped_bit_before_a_good_batch_is_damage(
    partition: Path, batch: int, first_entry: int | None
) -> None:
    """Good batches follow, so the log continues there. A scan fails at the bad batch."""
    entries = [] if first_entry is None else range(first_entry, first_entry + 3)
    index = b"".join(entry(40 + 2 * each + 1, ENDS[each]) for each in entries)
    data = flip(WHOLE, ENDS[batch] + 70)
    found = end_of(partition, data, index=index)
    log = segmentlog.open_log_dir(partition).log("t", 0)

    is_met = first_entry is None or batch >= first_entry  # the search begins three entries back
    assert LogEnd(50, ENDS[5], damaged_from=40 + 2 * batch if is_met else None) == found
    with pytest.raises(ChecksumMismatchError) as caught:
        log.scan().read_all()
    assert (ENDS[batch], 40 + 2 * batch) == (caught.value.position, caught.value.base_offset)


@pytest.mark.parametrize("at", [8, 9, 10, 11, 16])
def test_a_damaged_length_or_magic_before_a_good_batch_is_damage(partition: Path, at: int) -> None:
    """The checksums of the batches after a wrong length show where these batches are."""
    found = end_of(partition, flip(WHOLE, ENDS[2] + at))

    assert LogEnd(50, ENDS[5], damaged_from=44) == found


@pytest.mark.parametrize("between", [b"", b"\1", b"\xff" * 40])
def test_an_old_batch_after_new_ones_is_no_continuation(partition: Path, between: bytes) -> None:
    """Bytes that a truncated log has left over have offsets that were already given."""
    found = end_of(partition, WHOLE + between + BATCHES[1])

    assert LogEnd(50, ENDS[5]) == found


def test_a_leader_epoch_may_change_without_notice(partition: Path) -> None:
    """The checksum does not cover bytes 12 to 15, and brokers set them in place."""
    assert LogEnd(50, ENDS[5]) == end_of(partition, flip(WHOLE, ENDS[4] + 12))


@pytest.mark.parametrize("message", OLD_MESSAGES)
def test_old_messages_are_part_of_the_log(partition: Path, message: bytes) -> None:
    """A message of magic 0 or 1 is a batch, also after batches of magic 2."""
    assert LogEnd(51, len(message)) == end_of(partition, message)
    assert LogEnd(51, ENDS[5] + len(message)) == end_of(partition, WHOLE + message)


@pytest.mark.parametrize("message", OLD_MESSAGES)
def test_a_damaged_old_message_is_torn_and_with_one_after_it_damage(
    partition: Path, message: bytes
) -> None:
    """Old messages are found by their checksums, like new batches."""
    later = old_message(message[16], 52)
    for at in (14, 20, len(message) - 1):
        torn = end_of(partition, WHOLE + flip(message, at))
        damaged = end_of(partition, WHOLE + flip(message, at) + later)

        assert LogEnd(50, ENDS[5]) == torn
        assert LogEnd(53, ENDS[5] + len(message) + len(later), damaged_from=50) == damaged


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_a_whole_batch_of_a_newer_format_is_not_called_torn(partition: Path, magic: int) -> None:
    """No checksum covers the magic. The read reports the unknown format."""
    newer = bytearray(encode_batch([Record(50, 1, b"k", b"v")]))
    newer[16] = magic

    expected = LogEnd(51, ENDS[5] + len(newer), damaged_from=50)
    assert expected == end_of(partition, WHOLE + newer)


@pytest.mark.parametrize("n_bytes", [12, 13, 16])
@pytest.mark.parametrize("before", [b"", WHOLE])
def test_a_header_that_was_half_written_is_torn_and_no_old_message(
    partition: Path, before: bytes, n_bytes: int
) -> None:
    """A page ends after the length, and the next page is zeros, so that the magic looks like 0."""
    torn = encode_batch([Record(50, 1, b"k", b"v" * 50)])
    data = before + torn[:n_bytes] + bytes(len(torn) - n_bytes)

    assert LogEnd(50 if before else 40, len(before)) == end_of(partition, data)


@pytest.mark.parametrize(
    "index",
    [
        entry(49, ENDS[4] + 1),
        entry(49, 10**9),
        entry(41, ENDS[4]),
        entry(2**31, 5),
        b"\xff" * 64,
        b"\x01" * 17,
        b"",
    ],
)
def test_a_lying_index_does_not_move_the_end(partition: Path, index: bytes) -> None:
    """The index gives only the place where the search begins."""
    assert LogEnd(50, ENDS[5]) == end_of(partition, WHOLE, index=index)


@pytest.mark.timeout(60)
def test_damage_is_found_behind_a_hole(partition: Path) -> None:
    """Good batches after a terabyte of lost pages are damage, and no torn tail."""
    hole = 1 << 40
    path = partition / NAME
    path.write_bytes(BATCHES[0])
    with path.open("r+b") as file:
        file.seek(hole)
        file.write(BATCHES[3] + BATCHES[4])
    size = path.stat().st_size
    found = find_log_end(Segment(SegmentFiles(40, str(path), size), is_sealed=False))

    assert LogEnd(50, size, damaged_from=42) == found


def largest(segment: Segment) -> int | str:
    """The largest timestamp of a segment, or the error of the look-up."""
    try:
        return segment.largest_timestamp()
    except SegmentLogError as error:
        return str(error)


TRANSACTIONAL = 0x10  #: bit of a batch's attributes

#: The fields that a kept header lacks.
LACKING = dict.fromkeys(
    ("batch_length", "leader_epoch", "crc", "producer_id", "producer_epoch", "base_sequence"), -1
)


@pytest.mark.parametrize("has_index", [False, True])
def test_what_the_search_for_the_end_keeps_changes_no_look_up(
    partition: Path, *, has_index: bool
) -> None:
    """The largest timestamp is that of a segment whose end nobody has searched, or its error."""
    path = partition / NAME
    if has_index:
        path.with_suffix(".index").write_bytes(entry(43, ENDS[1]) + entry(49, ENDS[4]))
        time_entry = (1001).to_bytes(8, "big") + (3).to_bytes(4, "big")
        path.with_suffix(".timeindex").write_bytes(time_entry)
    changed = [flip(WHOLE, at) for at in range(0, len(WHOLE), 5)]
    cut = [WHOLE[:n_bytes] for n_bytes in range(ENDS[3], len(WHOLE), 5)]
    kept = 0
    for data in [WHOLE, *changed, *cut]:
        path.write_bytes(data)
        files = SegmentFiles(40, str(path), len(data))
        searched, fresh = (Segment(files, is_sealed=False) for _ in range(2))
        end = find_log_end(searched)
        kept += searched.tail is not None

        assert (searched.tail is None) or end.position == len(data)
        assert largest(fresh) == largest(searched), data
    assert kept > len(changed) / 20  # bits that no checksum covers, and a damaged first batch


@pytest.mark.parametrize("has_index", [False, True])
def test_the_newest_time_may_be_of_any_batch(partition: Path, *, has_index: bool) -> None:
    """It may lie before the batches that the search has walked; of these, all bits are kept."""
    times = [5, 9000, 3, 2, 7, 4, 1, 6]
    batches = [
        encode_batch([Record(40 + i, each, None, b"v")], attributes=TRANSACTIONAL * (i % 2))
        for i, each in enumerate(times)
    ]
    starts = [sum(map(len, batches[:i])) for i in range(len(batches))]
    path = partition / NAME
    path.write_bytes(b"".join(batches))
    index = [entry(40 + i, at) for i, at in enumerate(starts)][1:] if has_index else []
    path.with_suffix(".index").write_bytes(b"".join(index))
    files = SegmentFiles(40, str(path), path.stat().st_size)
    searched, fresh = (Segment(files, is_sealed=False) for _ in range(2))
    find_log_end(searched)

    assert searched.tail is not None
    assert has_index == bool(searched.tail.position)
    assert (9000, 9000) == (fresh.largest_timestamp(), searched.largest_timestamp())
    walked = [each.header for each in fresh.headers(searched.tail.position)]
    assert [each._replace(**LACKING) for each in walked] == searched.tail.headers()
    assert {False, True} == {each.is_transactional for each in searched.tail.headers()}
