"""Two log directories, compared by their records."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plain_writes import write
from preserved_rows import make, rows

import segmentlog
from segmentlog import Codec, ComparedPartition, Comparison
from segmentlog.errors import UnknownTopicOrPartitionError
from segmentlog.maintain.verification import compare as module


def only(left: Path, right: Path) -> ComparedPartition:
    """The one partition."""
    (found,) = segmentlog.compare(left, right)
    return found


def test_equal_records_in_other_batches_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest depends on the records alone."""
    monkeypatch.setattr(module, "WINDOW", 16)
    left = make(tmp_path / "a", rows(0, 100))
    right = make(tmp_path / "b", rows(0, 30), rows(30, 70), codec=Codec.ZSTD, batch_size=200)
    found = only(left, right)
    assert (Comparison.EQUAL, None) == (found.comparison, found.diverges_at)
    assert (100, found.left.sha256) == (found.right.n_records, found.right.sha256)
    assert 64 == len(found.left.sha256)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timestamp", 7),
        ("key", b"other"),
        ("key", None),
        ("value", b""),
        ("value", b"v62"),
        ("headers", []),
        ("headers", [("h", b"61"), ("h", b"")]),
        ("headers", [("h", b"61")]),
    ],
)
def test_another_value_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    """Its offset is that of the first difference; null, empty and missing are three things."""
    monkeypatch.setattr(module, "WINDOW", 16)
    changed = rows(0, 100, **{name: (61, value)})
    left, right = make(tmp_path / "a", rows(0, 100)), make(tmp_path / "b", changed)
    found = only(left, right)
    assert (Comparison.DIVERGING, 61) == (found.comparison, found.diverges_at)
    assert (name,) == found.differs_in
    assert found.left.sha256 != found.right.sha256


def test_names_of_headers_are_compared_as_bytes(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 differ, although a consumer shows both as U+FFFD."""
    left, right = (
        make(tmp_path / name.hex(), rows(0, 9, headers=(4, [(name, b"v"), (b"\xc3\xa4", None)])))
        for name in (b"h\xff", b"h\xfe")
    )
    shown = [segmentlog.read(each, "t", include_headers=True) for each in (left, right)]
    assert shown[0].equals(shown[1])
    assert "h\ufffd" == shown[0]["headers"][4][0]["key"].as_py()
    found = only(left, right)
    assert (Comparison.DIVERGING, 4, ("headers",)) == (
        found.comparison,
        found.diverges_at,
        found.differs_in,
    )
    assert Comparison.EQUAL == only(left, left).comparison


def test_all_fields_that_differ_are_named(tmp_path: Path) -> None:
    """They come in the order of a digest."""
    left = make(tmp_path / "a", rows(0, 9))
    right = make(tmp_path / "b", rows(0, 9, value=(4, b"x"), timestamp=(4, 5), key=(6, b"y")))
    assert (4, ("timestamp", "value")) == only(left, right)[5:8:2]


@pytest.mark.parametrize("gone", [0, 15, 16, 61, 98])
def test_a_missing_record_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    """The borders of windows are no exception."""
    monkeypatch.setattr(module, "WINDOW", 16)
    table = rows(0, 100)
    lacks = pa.concat_tables([table.slice(0, gone), table.slice(gone + 1)])
    # A restored log begins at its first record.
    left, right = make(tmp_path / "a", table), make(tmp_path / "b", lacks)
    found = only(left, right)
    expected = (Comparison.DIVERGING, gone) if gone else (Comparison.EQUAL, None)
    assert expected == (found.comparison, found.diverges_at)
    assert () == found.differs_in
    assert found == only(right, left)._replace(left=found.left, right=found.right)


def test_a_shorter_log_is_a_prefix(tmp_path: Path) -> None:
    """Its records are the first ones of the other log."""
    left, right = make(tmp_path / "a", rows(0, 100)), make(tmp_path / "b", rows(0, 60))
    found = only(left, right)
    assert (Comparison.PREFIX, None) == (found.comparison, found.diverges_at)
    assert (100, 60) == (found.left.log_end_offset, found.right.log_end_offset)


def test_records_that_retention_removed_are_not_compared(tmp_path: Path) -> None:
    """The logs are equal in the offsets that both have."""
    left, right = make(tmp_path / "a", rows(0, 100)), make(tmp_path / "b", rows(0, 100))
    segmentlog.delete_records(right, "t", 0, offset=40)
    found = only(left, right)
    assert (Comparison.EQUAL, 40) == (found.comparison, found.right.log_start_offset)


def test_logs_without_a_common_offset_are_not_equal(tmp_path: Path) -> None:
    """No record of one was compared with a record of the other."""
    left, right = make(tmp_path / "a", rows(0, 40)), make(tmp_path / "b", rows(40, 20))
    found = only(left, right)
    assert (Comparison.DISJOINT, None) == (found.comparison, found.diverges_at)
    segmentlog.delete_records(right, "t", 0, offset=60)
    whole = make(tmp_path / "c", rows(0, 60))
    assert Comparison.DISJOINT == only(whole, right).comparison
    assert Comparison.EQUAL == only(right, right).comparison


def test_a_partition_on_one_side_alone(tmp_path: Path) -> None:
    """It is missing on the other side, and its digest is still computed."""
    left = make(tmp_path / "a", rows(0, 10))
    write(tmp_path / "b", pa.table({"value": [b"x"]}), topic="u")
    first, second = segmentlog.compare(left, tmp_path / "b")
    assert (Comparison.MISSING, "t", None) == (first.comparison, first.topic, first.right)
    assert (Comparison.MISSING, "u", None) == (second.comparison, second.topic, second.left)
    assert 10 == first.left.n_records
    assert [first] == segmentlog.compare(left, tmp_path / "b", topics="t")
    with pytest.raises(UnknownTopicOrPartitionError, match="'v'"):
        segmentlog.compare(left, tmp_path / "b", topics=["v"])


def test_damage_ends_no_other_comparison(write_log: Callable[..., Path], tmp_path: Path) -> None:
    """The partition that cannot be read is named, and without its damaged batch it is compared."""
    left, right = tmp_path, tmp_path / "copy"
    write_log([[(0, 5), (1, 6), (2, 7)]])
    write_log([[(0, 5)]], name="u-0")
    right.mkdir()
    for name in ("t-0", "u-0"):
        shutil.copytree(left / name, right / name)
    log = left / "t-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    seen: list[ComparedPartition] = []
    bad, good = segmentlog.compare(left, right, on_partition=seen.append)

    assert [bad, good] == seen
    assert ("t", Comparison.UNREADABLE, None) == (bad.topic, bad.comparison, bad.left)
    assert str(log) in (bad.error or "")
    assert ("u", Comparison.EQUAL, None) == (good.topic, good.comparison, good.error)
    skipped, _ = segmentlog.compare(left, right, on_corrupt_batch="skip")
    assert (Comparison.DIVERGING, 1) == (skipped.comparison, skipped.diverges_at)
    segmentlog.recover(left, on_corrupt_batch="skip")
    assert Comparison.EQUAL is segmentlog.compare(left, left)[0].comparison
