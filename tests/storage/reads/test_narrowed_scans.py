"""Narrowed scans: rows counted from headers alone, and batches of other times skipped."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.errors import CorruptLogError
from segmentlog.format.records.decoder import RecordDecoder
from segmentlog.format.records.one_pass import OnePassDecoder
from segmentlog.model import IsolationLevel, OnCorruptBatch, ScanPolicy, TimestampRange
from segmentlog.reads.scan import scan_slice
from segmentlog.testing import codecs
from segmentlog.testing.damage import flip_bit, garble_records
from segmentlog.testing.legacy import encode_message, encode_wrapper
from segmentlog.testing.reference import Record, encode_batch

GOLDEN = Path(__file__).parents[2] / "golden"
APPEND_TIME = 0x08
CONSTANT = ["partition", "timestampType", "topic"]
LOGS = [
    pytest.param(directory, topic, partition, id=f"{directory.name}-{topic}-{partition}")
    for directory in sorted(GOLDEN.glob("kafka-*"))
    if directory.is_dir()
    for topic, partitions in segmentlog.open_log_dir(directory).topics().items()
    for partition in partitions
]


def written(tmp_path: Path, *batches: bytes) -> segmentlog.Log:
    """A log of one segment without indexes."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    return segmentlog.open_log_dir(tmp_path).log("t", 0)


def mixed(tmp_path: Path) -> segmentlog.Log:
    """Messages of magic 0 and 1, wrappers, and batches of both timestamp types and two codecs."""
    records = [Record(i, 1000 + i, b"k", b"v" * i) for i in range(60)]
    return written(
        tmp_path,
        encode_message(records[0], magic=0),
        encode_message(records[1]),
        encode_message(records[2], attributes=APPEND_TIME),
        encode_wrapper(records[3:9], codecs.GZIP, magic=0),
        encode_wrapper(records[9:20], codecs.GZIP),
        encode_wrapper(records[20:25], codecs.GZIP, append_time_ms=5000),
        encode_batch([*records[25:30], *records[33:35]]),
        encode_batch(records[35:40], attributes=APPEND_TIME, last_offset=41),
        encode_batch(records[42:50], codec=codecs.ZSTD),
        encode_batch(records[50:60], codec=codecs.ZSTD, attributes=APPEND_TIME),
    )


def assert_counted_alike(log: segmentlog.Log, start: int, end: int, level: IsolationLevel) -> None:
    """A scan of constant columns returns the rows that a scan of all columns returns."""
    full = log.scan(start, end, isolation_level=level).read_all()
    for columns in (CONSTANT, CONSTANT[:1], CONSTANT[1:], []):
        found = log.scan(start, end, columns=columns, isolation_level=level)
        batches = list(found)
        assert full.num_rows == sum(batch.num_rows for batch in batches)
        for batch in batches:
            batch.validate(full=True)
        assert full.select(columns) == pa.Table.from_batches(batches, found.schema) or not columns


@pytest.mark.parametrize("level", IsolationLevel)
@pytest.mark.parametrize(("directory", "topic", "partition"), LOGS)
def test_rows_of_a_brokers_log_are_counted(
    directory: Path, topic: str, partition: int, level: IsolationLevel
) -> None:
    """Compacted, transactional, compressed and emptied batches are counted.

    Some ranges cut batches.
    """
    log = segmentlog.open_log_dir(directory).log(topic, partition)
    first, last = log.log_start_offset, log.end_offset(isolation_level=level)
    draw = random.Random(f"{topic}-{partition}")

    assert_counted_alike(log, first, last, level)
    for _ in range(6):
        start, end = sorted(draw.choices(range(first, last + 1), k=2))
        assert_counted_alike(log, start, end, level)


def test_rows_of_every_format_are_counted(tmp_path: Path) -> None:
    """A wrapper's header lacks the number of its records, so the records inside are counted."""
    log = mixed(tmp_path)

    for start in range(0, 60, 3):
        for end in (start, start + 1, start + 7, 60):
            assert_counted_alike(log, start, min(end, 60), IsolationLevel.READ_UNCOMMITTED)


def test_a_batch_is_counted_without_a_look_at_its_records(tmp_path: Path) -> None:
    """The checksum is verified: a damaged batch fails a count as it fails any read."""
    records = [Record(i, 1000 + i, b"k", b"value") for i in range(20)]
    path = tmp_path / "t-0" / f"{0:020d}.log"
    log = written(tmp_path, *(encode_batch(records[i : i + 10]) for i in (0, 10)))
    garble_records(0)(path)

    assert 20 == sum(batch.num_rows for batch in log.scan(columns=["partition"]))
    with pytest.raises(CorruptLogError):
        log.scan(columns=["offset"]).read_all()
    for columns in (["partition"], ["offset"]):
        assert 10 == log.scan(columns=columns, on_corrupt_batch="skip").read_all().num_rows
    flip_bit(1, "body")(path)
    with pytest.raises(CorruptLogError):
        log.scan(columns=["partition"]).read_all()


def of_times(log: segmentlog.Log, start_ms: int, end_ms: int, skips: bool = False) -> list[tuple]:
    """Offsets and times, in milliseconds, of the rows that a scan of these times returns."""
    policy = ScanPolicy(
        on_corrupt_batch=OnCorruptBatch.SKIP if skips else OnCorruptBatch.FAIL,
        timestamps=TimestampRange(start_ms, end_ms),
    )
    found = []
    for each in log.slices(0, log.log_end_offset):
        for batch in scan_slice(each, columns=["offset", "timestamp"], policy=policy):
            times = batch.column("timestamp").cast(pa.int64()).to_pylist()
            offsets = batch.column("offset").to_pylist()
            found += zip(offsets, (time // 1000 for time in times), strict=True)
    return found


@pytest.mark.parametrize("skips", [False, True])
def test_no_record_of_the_wanted_times_is_left_out(tmp_path: Path, skips: bool) -> None:
    """All records of the wanted times are returned, in every format.

    Records of other times may come, too.
    """
    log = mixed(tmp_path)
    everything = of_times(log, -(2**63), 2**63)
    bounds = sorted({ms + by for _, ms in everything for by in (0, 1)})

    assert 55 == len(everything)
    for start_ms in bounds:
        for end_ms in bounds:
            found = of_times(log, start_ms, end_ms, skips)
            wanted = [each for each in everything if start_ms <= each[1] < end_ms]
            assert wanted == [each for each in found if start_ms <= each[1] < end_ms]


@pytest.mark.parametrize("in_one_pass", [False, True])
def test_batches_of_other_times_are_left_out(
    tmp_path: Path, in_one_pass: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older batches are skipped.

    Newer batches are skipped if all their records have the time of appending.
    """
    if in_one_pass:
        monkeypatch.setattr(RecordDecoder, "decode", None)  # the careful decoder is not needed
    else:
        monkeypatch.setattr(OnePassDecoder, "suits", lambda _: False)
    log = written(
        tmp_path,
        encode_batch([Record(0, 500, None, b""), Record(1, 100, None, b"")]),
        encode_batch([Record(2, 700, None, b""), Record(3, 100, None, b"")]),
        encode_batch([Record(4, 800, None, b"")], attributes=APPEND_TIME),
    )

    assert [2, 3, 4] == [offset for offset, _ in of_times(log, 501, 2**63)]
    assert [0, 1, 2, 3] == [offset for offset, _ in of_times(log, 100, 101)]
    assert [] == of_times(log, 801, 2**63)
    assert [0, 1, 2, 3, 4] == [offset for offset, _ in of_times(log, -(2**70), 2**70)]
    garble_records(0)(tmp_path / "t-0" / f"{0:020d}.log")
    assert [2, 3, 4] == [offset for offset, _ in of_times(log, 501, 2**63)]
    flip_bit(1, "body")(tmp_path / "t-0" / f"{0:020d}.log")
    with pytest.raises(CorruptLogError):  # a batch that is left out is verified, too
        of_times(log, 2**62, 2**63)


def test_an_emptied_batch_does_not_hide_newer_records(tmp_path: Path) -> None:
    """Compaction keeps the largest timestamp of an emptied batch.

    A broker's search stops at that batch, and finds nothing.
    """
    directory = tmp_path / "t-0"
    directory.mkdir()
    emptied = encode_batch([], base_offset=1, last_offset=1, max_timestamp_ms=2000)
    (directory / f"{0:020d}.log").write_bytes(encode_batch([Record(0, 500, b"k", b"")]) + emptied)
    (directory / f"{2:020d}.log").write_bytes(encode_batch([Record(2, 1500, b"k", b"")]))
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)

    assert log.offset_for_timestamp(1000, one_segment=True) is None
    assert (1500, 2) == log.offset_for_timestamp(1000)
