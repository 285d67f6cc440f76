"""The transaction index: a file of a broker, and malformed files."""

from pathlib import Path

import pytest

from segmentlog.errors import CorruptIndexError
from segmentlog.log.indexes import (
    AbortedTransaction,
    encode_transactions,
    read_transaction_index,
)

BROKERS = Path(__file__).parents[2] / "golden" / "kafka-4.3.1" / "transactions-0"
ENTRIES = [AbortedTransaction(3, 5, 9, 7), AbortedTransaction(2**40, 2**41, 2**62, -1)]


def test_a_brokers_file_is_read_and_written_byte_for_byte() -> None:
    """Two aborted transactions end in the segment, at offsets 13 and 25."""
    path = BROKERS / "00000000000000000013.txnindex"
    found = list(read_transaction_index(str(path)))

    assert [13, 25] == [each.last_offset for each in found]
    assert path.read_bytes() == encode_transactions(found)


def test_the_fields_stand_in_kafkas_order(tmp_path: Path) -> None:
    """An entry has a version, a producer id, two offsets, and the last stable offset."""
    expected = "0000" + "0000000000000003" + "0000000000000005" + "0000000000000009"
    assert bytes.fromhex(expected + "0000000000000007") == encode_transactions(ENTRIES[:1])

    path = tmp_path / "i"
    path.write_bytes(encode_transactions(ENTRIES))
    assert ENTRIES == list(read_transaction_index(str(path)))


def test_a_segment_without_aborts_has_no_file(tmp_path: Path) -> None:
    """A missing file and an empty file both mean no aborts."""
    (tmp_path / "empty").touch()

    assert [] == list(read_transaction_index(str(tmp_path / "missing")))
    assert [] == list(read_transaction_index(str(tmp_path / "empty")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-1], "67 bytes is not a multiple of 34"),
        (lambda data: data[:34] + b"\0\1" + data[36:], "version 0, found 1"),
        (lambda data: data[:34] * 2, "entry 1 has last offset"),
        (lambda data: data[:34] + bytes(1 << 20), "entry 1 has last offset 0"),
    ],
)
def test_damage_is_reported_after_the_entries_before_it(tmp_path: Path, change, said: str) -> None:
    """The entries before the damage are returned first."""
    path = tmp_path / "i"
    path.write_bytes(change(encode_transactions(ENTRIES)))
    entries = read_transaction_index(str(path))

    assert ENTRIES[0] == next(entries)
    with pytest.raises(CorruptIndexError, match=said) as caught:
        next(entries)
    assert str(path) == caught.value.path
