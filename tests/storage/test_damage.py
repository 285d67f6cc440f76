"""Damage to a real broker's files: the effect on reads, and the findings of `verify`."""

import logging
import resource
import shutil
import struct
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pytest
from flipping import plant
from reads import slice_offsets

import segmentlog
from segmentlog.errors import (
    ChecksumMismatchError,
    CorruptCheckpointError,
    CorruptLogError,
    MalformedBatchError,
    SegmentLogError,
    TruncatedBatchError,
    UnsupportedFormatError,
)
from segmentlog.maintain.verification.findings import FindingKind, Severity
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.model import OnCorruptBatch, ScanPolicy
from segmentlog.reads.scan import scan_slice
from segmentlog.testing import damage
from segmentlog.testing.codecs import GZIP, LZ4, SNAPPY
from segmentlog.testing.damage import FIELDS, Damage
from segmentlog.testing.legacy import encode_wrapper
from segmentlog.testing.reference import Record, crc32c, encode_batch

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1"
CLOSED, LAST = "00000000000000000016.log", "00000000000000000032.log"
ALL = range(48)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Three segments of four batches of four records, offsets 0 to 47, and checkpoints."""
    partition = shutil.copytree(GOLDEN / "segments-0", tmp_path / "segments-0")
    for path in partition.glob("00000000000000000048.*"):
        path.unlink()
    checkpoint = "0\n1\nsegments 0 48\n"
    (tmp_path / "replication-offset-checkpoint").write_text(checkpoint)
    (tmp_path / ".kafka_cleanshutdown").touch()
    return partition


def open_log(partition: Path) -> segmentlog.Log:
    return segmentlog.open_log_dir(partition.parent).log("segments", 0)


def offsets(log: segmentlog.Log, **how: Any) -> list[int]:
    return log.scan(columns=["offset"], **how).read_all()["offset"].to_pylist()


def batch_at(partition: Path, name: str, batch: int) -> tuple[int, int]:
    """The byte and the first offset of a batch."""
    segments = {Path(each.path).name: each for each in open_log(partition).segments}
    placed = list(segments[name].headers(0))[batch]
    return placed.position, placed.header.base_offset


class Case(NamedTuple):
    """A damage to the second batch of the closed segment, and its expected effect."""

    damage: Damage
    error: type[SegmentLogError]
    says: str = ""
    at_batch: int = 1  # where the error is
    before: Sequence[int] = range(20)  # rows that come before the error
    kind: FindingKind = FindingKind.CORRUPT_BATCH
    lost: range = range(20, 24)  # with onCorruptBatch=skip


#: The checksum covers these header fields, so a changed bit there is noticed.
FLIPPED = {
    f"{field} flipped": Case(damage.flip_bit(1, field), ChecksumMismatchError, "checksum")
    for field in (*FIELDS, "body")
    if field not in {"base_offset", "leader_epoch", "magic"}
}

CASES: dict[str, Case] = FLIPPED | {
    "base offset too high": Case(
        damage.flip_bit(1, "base_offset", 1), MalformedBatchError, "not above the last",
        at_batch=2,
        before=[*range(20), *range(22, 26)],  # the rows of that batch are moved
    ),
    "base offset too low": Case(
        damage.flip_bit(1, "base_offset", 4), MalformedBatchError, "not above the last"
    ),
    "base offset negative": Case(
        damage.flip_bit(1, "base_offset", 63), MalformedBatchError, "not above the last"
    ),
    "magic 3": Case(
        damage.flip_bit(1, "magic"), UnsupportedFormatError, "magic 3",
        kind=FindingKind.UNSUPPORTED_BATCH,
    ),
    "magic 0": Case(damage.flip_bit(1, "magic", 1), ChecksumMismatchError, "checksum"),
    "length of gigabytes": Case(
        damage.set_field(1, "batch_length", 2**31 - 1), TruncatedBatchError, "needs 2147483659"
    ),
    "length zero": Case(damage.set_field(1, "batch_length", 0), MalformedBatchError, "length"),
    "length negative": Case(
        damage.set_field(1, "batch_length", -5), MalformedBatchError, "length"
    ),
    "length of two batches": Case(
        damage.set_field(1, "batch_length", 678), ChecksumMismatchError, "checksum",
    ),
    "unknown codec": Case(
        damage.set_field(1, "attributes", 7, repair=True), UnsupportedFormatError, "codec 7",
        kind=FindingKind.UNSUPPORTED_BATCH,
    ),
    "another codec": Case(
        damage.set_field(1, "attributes", 4, repair=True), MalformedBatchError, "zstd",
        kind=FindingKind.CORRUPT_RECORDS,
    ),
    "one record too many": Case(
        damage.add_to_field(1, "records_count", 1, repair=True), MalformedBatchError, "count"
    ),
    "one record too few": Case(
        damage.add_to_field(1, "records_count", -1, repair=True), MalformedBatchError,
        "left over", kind=FindingKind.CORRUPT_RECORDS,
    ),
    "billions of records": Case(
        damage.set_field(1, "records_count", 2**31 - 1, repair=True), MalformedBatchError, "count"
    ),
    "negative offset delta": Case(
        damage.set_field(1, "last_offset_delta", -1, repair=True), MalformedBatchError, "delta"
    ),
    "garbled records": Case(
        damage.garble_records(1), MalformedBatchError, kind=FindingKind.CORRUPT_RECORDS,
    ),
    "bomb": Case(
        damage.bomb(1, 200 << 20), MalformedBatchError, "inflate beyond 1048576 bytes",
        kind=FindingKind.CORRUPT_RECORDS,
    ),
    "zeros": Case(damage.zero_batch(1), MalformedBatchError, "length"),
    "garbage before it": Case(damage.insert_garbage(1, 33), CorruptLogError, lost=range(0)),
    "a cut segment": Case(
        damage.cut_tail(10), TruncatedBatchError, "has", at_batch=3, before=range(28),
        lost=range(28, 32),
    ),
    "garbage after the segment": Case(
        damage.append_garbage(100), CorruptLogError, at_batch=4, before=range(32), lost=range(0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("column", ["topic", "value", "headers"])
@pytest.mark.parametrize("name", CASES)
def test_damage_in_a_closed_segment_is_an_error_with_its_place(
    partition: Path, name: str, column: str
) -> None:
    """The error has path and byte, and comes after the earlier rows, for each way to decode."""
    case = CASES[name]
    places = [batch_at(partition, CLOSED, i) for i in range(4)]
    places.append(((partition / CLOSED).stat().st_size, 32))
    case.damage(partition / CLOSED)
    log = open_log(partition)
    seen: list[int] = []
    batches = log.scan(columns=["offset", column], max_inflated_batch_bytes=1 << 20)
    with pytest.raises(case.error) as caught:
        seen.extend(offset for batch in batches for offset in batch.column(0).to_pylist())

    assert case.says in str(caught.value)
    assert str(partition / CLOSED) == caught.value.path
    assert places[case.at_batch][0] == caught.value.position
    assert [*case.before] == seen


@pytest.mark.parametrize("name", CASES)
def test_a_read_that_skips_continues_after_the_damage(
    partition: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All records are read except those of the corrupt batch, and a warning names that batch."""
    case = CASES[name]
    case.damage(partition / CLOSED)
    how = {"on_corrupt_batch": "skip", "max_inflated_batch_bytes": 1 << 20}
    if case.error is UnsupportedFormatError:
        with pytest.raises(UnsupportedFormatError):
            offsets(open_log(partition), **how)
        return
    with caplog.at_level(logging.WARNING):
        found = offsets(open_log(partition), **how)

    assert [offset for offset in ALL if offset not in case.lost] == found
    assert any("left out" in message for message in caplog.messages)


@pytest.mark.parametrize("name", CASES)
def test_verify_names_the_damage(partition: Path, name: str) -> None:
    """`verify` reports one error of the kind at the byte, and verifies the bytes after it."""
    case = CASES[name]
    position = (*(batch_at(partition, CLOSED, i)[0] for i in range(4)), 1380)[case.at_batch]
    case.damage(partition / CLOSED)
    findings = list(LogCheck(open_log(partition), with_records=True).findings())
    in_log = [each for each in findings if each.path.endswith(".log")]
    errors = [each for each in in_log if each.severity == Severity.ERROR]

    if name == "bomb":  # verify takes the default bound, and these are no records either
        assert FindingKind.CORRUPT_RECORDS == errors[0].kind
        return
    assert case.kind == errors[0].kind
    assert position == errors[0].position
    assert 1 == len(errors)


@pytest.mark.parametrize("segment", [CLOSED, LAST])
@pytest.mark.parametrize("name", CASES)
def test_damage_outside_a_range_is_nobodys_loss(partition: Path, name: str, segment: str) -> None:
    """Any range returns right rows or an error, whatever the index contains.

    An error comes only if the damage is in the range, or may be.
    """
    CASES[name].damage(partition / segment)
    log = open_log(partition)
    base, end = int(Path(segment).stem), log.log_end_offset
    bounds = [(base + begin, min(base + begin + 6, end)) for begin in range(16)]
    for start, stop in [*bounds, (base + 9, end), (0, base + 14)]:
        expected = [offset for offset in ALL if start <= offset < stop]
        found = rows_or_error(log, start, stop, on_corrupt_batch="fail")
        kept = rows_or_error(log, start, stop, on_corrupt_batch="skip")
        lost = [offset - 16 + base for offset in CASES[name].lost]

        assert found in (expected, "error"), (start, stop)
        if CASES[name].error is not UnsupportedFormatError:
            assert [offset for offset in expected if offset not in lost] == kept, (start, stop)


@pytest.mark.parametrize("bit", range(0, 64, 3))
@pytest.mark.parametrize("max_bytes", [0, 300, 700])
@pytest.mark.parametrize("name", ["00000000000000000000.log", CLOSED, LAST])
def test_a_wrong_base_offset_at_the_end_of_a_segment_hides_no_other_rows(
    partition: Path, name: str, max_bytes: int, bit: int
) -> None:
    """The next segment or the high watermark reveals it. `skip` loses only its batch."""
    damage.flip_bit(3, "base_offset", bit)(partition / name)
    log = open_log(partition)
    end, first = log.end_offset(), int(Path(name).stem) + 12
    slices = log.slices(0, end, max_bytes)
    skips = ScanPolicy(on_corrupt_batch=OnCorruptBatch.SKIP)
    kept = [
        offset
        for each in slices
        for batch in scan_slice(each, columns=["offset"], policy=skips)
        for offset in batch["offset"].to_pylist()
    ]

    assert 48 == end
    assert [offset for offset in ALL if not first <= offset < first + 4] == kept
    with pytest.raises(CorruptLogError, match=name):
        [slice_offsets(each) for each in slices]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("batch", [0, 1])
def test_a_damaged_wrapper_before_another_is_an_error(
    tmp_path: Path, codec: int, batch: int
) -> None:
    """The header of the next wrapper has only its last offset.

    So the first missing offset is not known.
    """
    wrappers = [
        encode_wrapper([Record(base + i, 0, None, b"%d" % i) for i in range(10)], codec)
        for base in range(0, 50, 10)
    ]
    damaged = bytearray(wrappers[batch])
    damaged[-1] ^= 1
    wrappers[batch] = bytes(damaged)
    partition = tmp_path / "t-0"
    partition.mkdir()
    (partition / f"{0:020d}.log").write_bytes(b"".join(wrappers))
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    start = 10 * batch

    with pytest.raises(ChecksumMismatchError):
        offsets(log, start_offset=start)
    assert [*range(start + 10, 50)] == offsets(log, start_offset=start, on_corrupt_batch="skip")
    assert [*range(start + 10, 50)] == offsets(log, start_offset=start + 10)


@pytest.mark.parametrize("has_indexes", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "length of gigabytes",
        "length zero",
        "length of two batches",
        "magic 0",
        "zeros",
        "max_timestamp flipped",
        "base offset too high",
        "base offset too low",
    ],
)
def test_a_read_by_time_that_skips_loses_only_the_damaged_batch(
    partition: Path, name: str, *, has_indexes: bool
) -> None:
    """A filter does not narrow a read at damage. A start by time is found after the damage."""
    rows = open_log(partition).scan(columns=["offset", "timestamp"]).read_all()
    times = rows["timestamp"].to_pylist()
    CASES[name].damage(partition / CLOSED)
    for path in [] if has_indexes else partition.glob("*index"):
        path.unlink()
    lost = CASES[name].lost
    for first in (0, 18, 22, 26, 40):
        expected = [each for each in range(first, 48) if each not in lost]
        dataset = segmentlog.dataset(partition.parent, on_corrupt_batch="skip")
        condition = pc.field("timestamp") >= times[first]
        filtered = dataset.to_table(["offset"], filter=condition)["offset"].to_pylist()
        log = open_log(partition)
        started = offsets(log, since=times[first], on_corrupt_batch="skip")

        assert expected == filtered
        assert expected == started


@pytest.mark.parametrize("codec", segmentlog.Codec)
def test_an_emptied_batch_that_names_a_codec_is_not_damaged(
    tmp_path: Path, codec: segmentlog.Codec, caplog: pytest.LogCaptureFixture
) -> None:
    """A read that skips damage says nothing about it."""
    kept = [encode_batch([Record(i, i, b"k", b"v")], codec=codec) for i in (0, 2)]
    emptied = bytearray(encode_batch([Record(1, 1, b"k", b"v")], attributes=codec)[:61])
    emptied[8:12], emptied[57:61] = struct.pack(">i", 49), bytes(4)
    emptied[17:21] = struct.pack(">I", crc32c(bytes(emptied[21:])))
    (tmp_path / "t-0").mkdir()
    (tmp_path / f"t-0/{0:020d}.log").write_bytes(kept[0] + emptied + kept[1])

    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    assert [0, 2] == offsets(log) == offsets(log, on_corrupt_batch="skip")
    assert not caplog.messages


def rows_or_error(log: segmentlog.Log, start: int, stop: int, **how: Any) -> list[int] | str:
    """Offsets of a range, or "error" for an error that damage causes."""
    try:
        how["max_inflated_batch_bytes"] = 1 << 20
        return offsets(log, start_offset=start, end_offset=stop, **how)
    except (CorruptLogError, UnsupportedFormatError):
        return "error"


def test_the_leader_epoch_may_change(partition: Path) -> None:
    """Brokers set the epoch in place, no checksum covers it, and no row contains it."""
    damage.flip_bit(1, "leader_epoch")(partition / CLOSED)

    assert [*ALL] == offsets(open_log(partition))


TAILS = {
    "the last byte is missing": (damage.cut_tail(1), range(44)),
    "half of the last batch is missing": (damage.cut_tail(150), range(44)),
    "the last header is cut": (damage.cut_tail(300), range(44)),
    "a bit in the last batch": (damage.flip_bit(3, "body"), range(44)),
    "the last batch is zeros": (damage.zero_batch(3), range(44)),
    "zeros after it": (damage.append_zeros(4096), ALL),
    "garbage after it": (damage.append_garbage(100), ALL),
}


@pytest.mark.parametrize("name", TAILS)
def test_a_torn_tail_ends_the_read_before_it(
    partition: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No high watermark covers the tail.

    The records before it are read, with a warning unless it is zeros.
    """
    tear, survivors = TAILS[name]
    tear(partition / LAST)
    (partition.parent / "replication-offset-checkpoint").unlink()
    with caplog.at_level(logging.WARNING):
        found = offsets(open_log(partition))
    kinds = {each.kind for each in LogCheck(open_log(partition)).findings()}

    assert [*survivors] == found
    is_silent = "zeros" in name
    assert is_silent == (not caplog.messages)
    assert (FindingKind.ZEROS_AT_THE_END if is_silent else FindingKind.TORN_TAIL) in kinds


@pytest.mark.parametrize("name", [name for name, (_, kept) in TAILS.items() if kept != ALL])
def test_a_torn_tail_that_was_promised_is_an_error(partition: Path, name: str) -> None:
    """The high watermark shows that the records of the tail were acknowledged."""
    tear, survivors = TAILS[name]
    tear(partition / LAST)
    log = open_log(partition)

    with pytest.raises(CorruptLogError, match=LAST):
        offsets(log)
    assert [*survivors] == offsets(log, read_up_to=segmentlog.ReadUpTo.LOG_END)


def empty(path: Path) -> None:
    """A file that was created and never written."""
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    """A file of the same length whose bytes were never written."""
    path.write_bytes(bytes(path.stat().st_size))


def shifted_positions(path: Path) -> None:
    """Each entry of eight bytes has a position that is seven bytes too high."""
    entries = struct.iter_unpack(">ii", path.read_bytes()[: path.stat().st_size // 8 * 8])
    path.write_bytes(b"".join(struct.pack(">iI", a, (b + 7) & 0xFFFFFFFF) for a, b in entries))


@pytest.mark.parametrize("suffix", ["index", "timeindex", "snapshot"])
@pytest.mark.parametrize(
    "spoil",
    [
        damage.delete(),
        damage.fill_with_garbage(),
        damage.cut_tail(1),
        damage.append_zeros(800),
        empty,
        zeros,
        shifted_positions,
    ],
    ids=["deleted", "garbage", "cut", "zeros after", "empty", "zeros", "positions shifted"],
)
@pytest.mark.parametrize("is_clean", [True, False])
def test_no_index_changes_what_is_read(
    partition: Path, suffix: str, spoil: Damage, *, is_clean: bool
) -> None:
    """A bad index changes no rows, slices, look-ups by time or last stable offset."""

    def answers() -> tuple[object, ...]:
        log = open_log(partition)
        times = [time + 5 for time in range(1_700_000_000_000, 1_700_000_000_060, 7)]
        return (
            [offset for each in log.slices(12, 45, 300) for offset in slice_offsets(each)],
            offsets(log, start_offset=21, end_offset=39),
            [log.offset_for_timestamp(time) for time in times],
            log.last_stable_offset(),
            offsets(log, isolation_level="read_committed"),
        )

    expected = answers()
    if not is_clean:
        (partition.parent / ".kafka_cleanshutdown").unlink()
    paths = sorted(partition.glob(f"*.{suffix}"))
    for path in paths:
        spoil(path)

    assert paths
    assert [*range(12, 45)] == expected[0]
    assert [*range(21, 39)] == expected[1]
    assert expected == answers()


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize(
    ("spoil", "severity"),
    [(damage.delete(), Severity.WARNING), (damage.fill_with_garbage(), Severity.ERROR)],
)
def test_verify_reports_a_bad_index(
    partition: Path, suffix: str, spoil: Damage, severity: Severity
) -> None:
    """`verify` reports a bad index because a broker trusts indexes of closed segments."""
    path = (partition / CLOSED).with_suffix(f".{suffix}")
    spoil(path)
    found = [each for each in LogCheck(open_log(partition)).findings() if each.path == str(path)]

    assert severity in {each.severity for each in found}


def test_a_missing_segment_is_an_error_if_its_indexes_are_left(partition: Path) -> None:
    """A read leaves its offsets out; `verify` names them, and no finding has its indexes go."""
    (partition / CLOSED).unlink()
    log = open_log(partition)
    found = [each for each in LogCheck(log).findings() if each.severity != Severity.NOTE]

    assert [*range(16), *range(32, 48)] == offsets(log)
    assert [(FindingKind.MISSING_SEGMENT, Severity.ERROR, 16, 32)] == [
        (each.kind, each.severity, each.offset, each.end_offset) for each in found
    ]
    assert [(16, 32)] == [each[:2] for each in log.lost_segments]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_an_emptied_segment_is_a_loss_if_its_indexes_have_entries(
    partition: Path, caplog: pytest.LogCaptureFixture, is_compacted: bool
) -> None:
    """Compaction may empty a segment, and then also its indexes."""
    (partition / CLOSED).write_bytes(b"")
    if is_compacted:
        for suffix in (".index", ".timeindex"):
            (partition / CLOSED).with_suffix(suffix).write_bytes(b"")
    log = open_log(partition)
    found = {(each.kind, each.offset, each.end_offset) for each in LogCheck(log).findings()}

    assert [*range(16), *range(32, 48)] == offsets(log)
    assert ([] if is_compacted else [(16, 32)]) == [each[:2] for each in log.lost_segments]
    assert ((FindingKind.MISSING_SEGMENT, 16, 32) in found) is not is_compacted
    assert ("has entries, and its segment is empty" in caplog.text) is not is_compacted


def test_a_missing_first_segment_is_named(
    partition: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A read from the beginning says so, and no other read; `verify` and `recover` name it."""
    (partition / f"{0:020d}.log").unlink()
    log = open_log(partition)

    assert [*range(16, 48)] == offsets(log)
    lost = "offsets [0, 16) are missing: 00000000000000000000.index is there"
    assert lost in caplog.text
    caplog.clear()
    log.scan(16).read_all()
    assert "" == caplog.text
    directory = segmentlog.open_log_dir(partition.parent)
    directory.end_offsets(directory.topic_partitions())
    assert "or before the first, are not read (segments-0: [0, 16))" in caplog.text
    found = [each for each in LogCheck(log).findings() if each.severity != Severity.NOTE]
    assert [(FindingKind.MISSING_SEGMENT, Severity.ERROR, 0, 16)] == [
        (each.kind, each.severity, each.offset, each.end_offset) for each in found
    ]
    (start,) = (each for each in segmentlog.preflight(partition.parent) if each.end_offset == 16)
    assert lost in start.message
    for dry_run in (True, False):
        steps = segmentlog.recover(partition.parent, dry_run=dry_run)
        (step,) = (each for each in steps if each.has_lost_records)
        assert (0, 16) == (step.end_offset, step.cut_to)
        assert lost in step.message
    assert not [*partition.glob(f"{0:020d}.*")]


def test_retention_that_was_interrupted_is_no_loss(
    partition: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that was killed has renamed the segment, and not yet its indexes."""
    path = partition / f"{0:020d}.log"
    path.rename(f"{path}.deleted")
    log = open_log(partition)

    assert [*range(16, 48)] == offsets(log)
    assert () == log.lost_segments
    assert "" == caplog.text
    kinds = {each.kind for each in LogCheck(log).findings() if each.severity != Severity.NOTE}
    assert {FindingKind.INDEX_WITHOUT_LOG} == kinds
    assert not any(each.has_lost_records for each in segmentlog.recover(partition.parent))


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_gap_without_a_sign_of_a_loss_is_a_note(partition: Path, is_compacted: bool) -> None:
    """Compaction leaves gaps, and a crash in it leaves indexes without a log."""
    for path in partition.glob(f"{Path(CLOSED).stem}.*"):
        if not is_compacted or path.suffix == ".log":
            path.unlink()
    if is_compacted:
        checkpoint = partition.parent / "cleaner-offset-checkpoint"
        checkpoint.write_text("0\n1\nsegments 0 32\n")
    log = open_log(partition)
    gaps = [each for each in LogCheck(log).findings() if each.kind == FindingKind.OFFSET_GAP]

    assert () == log.lost_segments
    assert [(16, LAST)] == [(each.offset, Path(each.path).name) for each in gaps]


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "log-start-offset-checkpoint"])
def test_a_garbage_checkpoint_is_an_error(partition: Path, name: str) -> None:
    """Without the checkpoint, the records that may be read are not known."""
    path = partition.parent / name
    path.write_bytes(b"0\n1\nsegments 0 x\n")

    with pytest.raises(CorruptCheckpointError, match="line 3") as caught:
        open_log(partition).end_offset()
    assert str(path) == caught.value.path


def test_overlapping_segments_are_read_once(partition: Path) -> None:
    """A copy from during a compaction has the merged segment and the replaced ones."""
    first = partition / "00000000000000000000.log"
    first.write_bytes(first.read_bytes() + (partition / CLOSED).read_bytes())
    log = open_log(partition)
    kinds = {each.kind for each in LogCheck(log).findings()}

    assert [*ALL] == offsets(log)
    assert FindingKind.OVERLAPPING_SEGMENT in kinds


def test_a_segment_that_overlaps_across_a_batch_is_damage(partition: Path) -> None:
    """Compaction keeps the bounds of batches, so the cause is a base offset that is too high."""
    damage.flip_bit(3, "base_offset", 1)(partition / "00000000000000000000.log")

    with pytest.raises(MalformedBatchError, match="reach 16, where the next") as caught:
        offsets(open_log(partition))
    assert str(partition / "00000000000000000000.log") == caught.value.path


def test_a_bomb_takes_no_more_memory_than_its_bound(partition: Path) -> None:
    """250 KB would inflate to 256 MB of zeros. The bound holds while inflating."""
    damage.bomb(1, 1 << 28)(partition / CLOSED)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MalformedBatchError, match="inflate beyond 8388608 bytes"):
        offsets(open_log(partition), max_inflated_batch_bytes=8 << 20)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("n_bytes", [1 << 40, 250 << 20], ids=["terabyte", "250 MiB"])
@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000000.txnindex",
        "00000000000000000019.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "../replication-offset-checkpoint",
        "../log-start-offset-checkpoint",
        "../recovery-point-offset-checkpoint",
        "../cleaner-offset-checkpoint",
        "../meta.properties",
    ],
)
def test_a_large_sparse_file_is_an_error_or_no_matter(
    tmp_path: Path, name: str, n_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No read, and no verification, takes memory in proportion to such a size."""
    log = plant(tmp_path, "transactions", has_indexes=True, has_checkpoints=True)
    with (log.partition / name).open("ab") as file:
        file.truncate(n_bytes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()

    for isolation_level in ("read_uncommitted", "read_committed"):
        try:
            found = segmentlog.dataset(tmp_path, isolation_level=isolation_level).to_table()
        except SegmentLogError:
            continue
        assert (16 if isolation_level == "read_uncommitted" else 10) == found.num_rows
    named = set[str]()
    for check in (segmentlog.verify, segmentlog.preflight):
        with suppress(SegmentLogError):
            named.update(Path(each.path).name for each in check(tmp_path))
    is_named = name in named or f"{name}: it has {n_bytes} bytes" in caplog.text
    assert is_named or not name.endswith(("txnindex", "snapshot"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 32 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
