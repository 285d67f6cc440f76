"""The search for the next good batch after damage."""

import struct
import time
from pathlib import Path

import pytest

from segmentlog.log.damage import GoodBatch, find_good_batch, good_batch_after
from segmentlog.store.readable import open_file
from segmentlog.testing.legacy import encode_message
from segmentlog.testing.reference import Record, encode_batch


def batch(first: int, n_records: int = 3, value: bytes = b"value") -> bytes:
    """A batch of magic 2."""
    return encode_batch(
        [Record(first + i, 1_700_000_000_000, b"k", value) for i in range(n_records)]
    )


def next_good(path: Path, data: bytes, position: int, next_offset: int) -> GoodBatch | None:
    """The good batch that is found after the bad batch at `position` of these bytes."""
    path.write_bytes(data)
    with open_file(str(path)) as file:
        return good_batch_after(file, position, len(data), next_offset)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.log"


def spoilt(data: bytes) -> bytes:
    """The batch with its last byte changed."""
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_copy_of_a_batch_in_a_record_is_not_taken_for_one_of_the_log(path: Path) -> None:
    """Records of the damaged topic contain batches of another topic.

    The bad batch's own end is tried first.
    """
    bad = spoilt(batch(10, 1, batch(40)))
    assert GoodBatch(len(bad), 11) == next_good(path, bad + batch(11), 0, 10)


def test_batches_that_a_length_jumps_over_are_found(path: Path) -> None:
    """A batch begins at the stated end of the bad batch.

    Missing offsets are in a batch before that end.
    """
    first, second, third = batch(10), batch(13), batch(16)
    length = len(first) + len(second) - 12
    bad = first[:8] + struct.pack(">i", length) + first[12:]
    assert GoodBatch(len(first), 13) == next_good(path, bad + second + third, 0, 10)


def test_a_message_that_a_compressor_left_as_it_was_is_passed_over(path: Path) -> None:
    """Snappy keeps bytes that it cannot compress.

    Other bytes are in the place of the message's offset.
    """
    message = encode_message(Record(0, 5, None, bytes(range(256))))
    payload = b"\1" * 8 + message[8:]
    bad = struct.pack(">qi", 10, 5) + bytes(20) + payload
    assert GoodBatch(len(bad), 11) == next_good(path, bad + batch(11), 0, 10)


def test_a_batch_below_the_offset_is_passed_over(path: Path) -> None:
    """Such batches are stale bytes after the end of the latest write."""
    bad = spoilt(batch(10))
    data = bad + batch(4) + batch(13)
    assert GoodBatch(len(bad) + len(batch(4)), 13) == next_good(path, data, 0, 10)


def test_nothing_is_found_in_zeros_and_noise(path: Path) -> None:
    """No batch is found, whatever the length field contains."""
    assert next_good(path, spoilt(batch(10)) + bytes(500), 0, 10) is None
    assert next_good(path, b"\xff" * 500, 0, 10) is None
    assert next_good(path, bytes(5), 0, 0) is None


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_bytes_full_of_headers_do_not_cost_the_square_of_their_number(magic: int) -> None:
    """The search stops after checksums of a gigabyte. Here it would compute half a terabyte."""
    header = struct.pack(">qiibI", 5, 1 << 20, 0, magic, 0) + bytes(5)
    data = header * (16 * (1 << 20) // len(header))
    begin = time.process_time()
    assert find_good_batch(data, 0, 0) is None
    assert time.process_time() - begin < 10
