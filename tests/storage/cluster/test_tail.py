"""The tail of a copy, by the headers of its batches."""

from pathlib import Path

import pytest
from broker_copies import T0
from producer_batches import batch, marker, plant

import segmentlog
from segmentlog.cluster import replicated
from segmentlog.cluster.replicated import tail_of
from segmentlog.testing.legacy import encode_message, encode_wrapper
from segmentlog.testing.reference import Record, encode_batch

APPEND_TIME = 8


def opened(directory: Path, *batches: bytes) -> segmentlog.Log:
    """The log of these batches."""
    plant(directory, *batches)
    return segmentlog.open_log_dir(directory).log(*T0)


def of(first: int, *times: int, attributes: int = 0) -> bytes:
    """A batch of records with these times."""
    records = [Record(first + i, each, None, b"v") for i, each in enumerate(times)]
    return encode_batch(records, attributes=attributes)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no record be read."""
    monkeypatch.setattr(replicated, "_read", None)


@pytest.mark.usefixtures("unread")
def test_headers_have_the_number_and_the_times(tmp_path: Path) -> None:
    """End markers are no records, and batches before the offset do not count."""
    log = opened(
        tmp_path,
        of(0, 5, 6),
        of(2, 300, 200, 400),
        batch(7, 0, 0, 2, base_offset=5),
        marker(7, 0, base_offset=7),
        of(8, 100),
    )
    assert (6, 100, 1_700_000_000_001) == tail_of(log, 2)
    assert (1, 100, 100) == tail_of(log, 8)
    assert (8, 5, 1_700_000_000_001) == tail_of(log, 0)
    assert (0, None, None) == tail_of(log, 9)


@pytest.mark.usefixtures("unread")
def test_records_with_the_time_of_their_append_have_the_last_time(tmp_path: Path) -> None:
    """The first time in the header is a producer's."""
    log = opened(tmp_path, of(0, 5, 900, attributes=APPEND_TIME), of(2, -1))
    assert (3, 900, 900) == tail_of(log, 0)


def test_messages_of_old_formats_are_read(tmp_path: Path) -> None:
    """Headers do not show how many records a compressed message has; magic 0 has no time."""
    records = [Record(2 + i, 70 + i, None, b"v") for i in range(3)]
    log = opened(
        tmp_path,
        encode_message(Record(0, 5, None, b"v"), magic=0),
        encode_message(Record(1, 60, None, b"v")),
        encode_wrapper(records, codec=1),
        of(5, 500),
    )
    assert (6, 60, 500) == tail_of(log, 0)


def test_an_offset_in_a_batch_divides_its_records(tmp_path: Path) -> None:
    """Two leaders may have had other batches for one offset."""
    log = opened(tmp_path, of(0, 5, 6, 7), of(3, 8))
    assert (3, 6, 8) == tail_of(log, 1)


def test_damaged_batches_are_left_out(tmp_path: Path) -> None:
    """The header of the second batch has an impossible length."""
    damaged = bytearray(of(1, 200))
    damaged[8:12] = bytes(4)
    log = opened(tmp_path, of(0, 100), bytes(damaged), of(2, 300))
    assert (2, 100, 300) == tail_of(log, 0)
