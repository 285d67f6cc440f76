"""Pieces are requested before the reader needs them."""

import pytest

from segmentlog.errors import StorageError
from segmentlog.store.remote import object_store
from segmentlog.store.remote.object_store import ReadAhead
from segmentlog.store.remote.requests import Pending

DATA = bytes(range(256)) * 4


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges that are requested: pieces of ten bytes, three at a time."""
    monkeypatch.setattr(object_store, "PIECE_BYTES", 10)
    monkeypatch.setattr(object_store, "_PIECES", 3)
    return []


def ahead(asked: list[tuple[int, int]], start: int, end: int) -> ReadAhead:
    def begin_piece(position: int, n_bytes: int) -> Pending:
        asked.append((position, n_bytes))
        return Pending("s3://b/x", "reading", lambda: DATA[position : position + n_bytes])

    return ReadAhead(begin_piece, start, end)


def read(found: ReadAhead, position: int, n_bytes: int) -> bytes:
    buffer = bytearray(n_bytes)
    return bytes(buffer[: found.read_into(memoryview(buffer), position)])


def test_only_the_range_is_requested_a_few_pieces_ahead(asked: list[tuple[int, int]]) -> None:
    """Memory is bounded: a piece is requested only when an older one is dropped."""
    found = ahead(asked, 5, 48)
    assert [(5, 10), (15, 10), (25, 10)] == asked

    assert DATA[5:9] == read(found, 5, 4)
    assert 3 == len(asked)
    assert DATA[9:27] == read(found, 9, 18)
    assert [(35, 10), (45, 3)] == asked[3:]
    assert DATA[27:48] == read(found, 27, 100)
    assert b"" == read(found, 48, 1)


def test_a_byte_that_was_passed_is_not_there(asked: list[tuple[int, int]]) -> None:
    """The caller has to read such bytes again.

    Bytes of the first piece that is kept can be read again.
    """
    found = ahead(asked, 0, 100)

    assert DATA[2:5] == read(found, 2, 3)
    assert DATA[0:3] == read(found, 0, 3)
    assert DATA[12:15] == read(found, 12, 3)
    assert b"" == read(found, 0, 3)
    assert DATA[40:42] == read(found, 40, 2)


def test_a_piece_that_fails_is_an_error_where_it_is_reached() -> None:
    """The bytes before the failed piece can be read."""

    def begin_piece(position: int, n_bytes: int) -> Pending:
        def work() -> bytes:
            if position:
                raise ValueError("no")
            return DATA[:n_bytes]

        return Pending("s3://b/x", "reading", work)

    found = ReadAhead(begin_piece, 0, object_store.PIECE_BYTES + 1)
    assert DATA[:3] == read(found, 0, 3)
    with pytest.raises(StorageError, match="reading failed: no"):
        read(found, object_store.PIECE_BYTES, 1)


def test_nothing_is_read_once_it_is_closed(asked: list[tuple[int, int]]) -> None:
    """A closed reader makes no more requests."""
    found = ahead(asked, 0, 100)
    found.close()

    assert b"" == read(found, 0, 3)
    assert 3 == len(asked)
