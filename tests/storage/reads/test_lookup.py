"""Look-ups by time: the bytes that they read, and the offsets that they find."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from reads import offsets_of

import segmentlog
from segmentlog.format.topic_config import TopicConfig
from segmentlog.store import readable
from segmentlog.store.readable import LocalDisk, ReadableFile
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.writes.config import ProducerConfig

N_RECORDS = 60_000
INTERVAL_BYTES = 4096  # between two index entries
BATCH_BYTES = 1000
INTERVAL = INTERVAL_BYTES + 2 * BATCH_BYTES  # and the batches at its ends


class CountingFile:
    """An open file that adds up the bytes that are read from it."""

    def __init__(self, file: ReadableFile, read: Counter[str]) -> None:
        self._file = file
        self._read = read

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def __enter__(self) -> "CountingFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, position: int, n_bytes: int) -> bytes:
        found = self._file.read(position, n_bytes)
        self._read[Path(self._file.path).suffix] += len(found)
        return found

    def read_into(self, buffer: memoryview, position: int) -> int:
        n_bytes = self._file.read_into(buffer, position)
        self._read[Path(self._file.path).suffix] += n_bytes
        return n_bytes


class CountingDisk(LocalDisk):
    """The local disk; `read` counts the bytes that are read, by the ending of the file's name."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()

    def open(self, path: str, *, follow: bool = True) -> CountingFile:  # type: ignore[override]
        return CountingFile(super().open(path, follow=follow), self.read)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingDisk:
    """A counting disk takes the place of the disk for all reads."""
    disk = CountingDisk()
    monkeypatch.setattr(readable, "_LOCAL", disk)
    return disk


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments of small batches, whose records are a second apart."""
    directory = tmp_path_factory.mktemp("times")
    config = ProducerConfig(
        topic_config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=INTERVAL_BYTES),
        batch_size=BATCH_BYTES,
        use_timestamps=True,
    )
    table = pa.table(
        {
            "value": [b"v" * 50] * N_RECORDS,
            "timestamp": pa.array(
                [1_000_000 * i for i in range(N_RECORDS)], pa.timestamp("us", "UTC")
            ),
        }
    )
    with segmentlog.open_writer(directory, "t", config=config) as writer:
        writer.append(table)
    return directory


@pytest.mark.parametrize("second", [0, 1, 777, 29_999, N_RECORDS - 1])
def test_a_look_up_reads_an_interval_of_log_where_it_finds_its_record(
    directory: Path, counting: CountingDisk, second: int
) -> None:
    """A look-up reads an index interval of the record's segment.

    Of an earlier segment it reads only the end, which shows the newest time.
    """
    log = segmentlog.open_log_dir(directory).log("t", 0)
    assert len(log.segments) > 3
    before = [each for each in log.segments if each.base_offset <= second]
    _ = log.end_offset()
    counting.read.clear()

    assert (1000 * second, second) == log.offset_for_timestamp(1000 * second)
    # One interval checks the entry of the time index.  The others are read with their checksums up
    # to the batch, from the entry before the last one.
    assert counting.read[".log"] <= (len(before) + 5) * INTERVAL
    counting.read.clear()
    assert (1000 * second, second) == log.offset_for_timestamp(max(1000 * second - 999, 0))
    assert counting.read[".log"] <= 5 * INTERVAL


@pytest.mark.parametrize("has_time_index", [False, True])
def test_zeros_after_the_last_batch_do_not_stop_a_look_up_by_time(
    tmp_path: Path, *, has_time_index: bool
) -> None:
    """A file system may fill a file with zeros after a crash.

    Look-ups ignore the zeros, as scans do.
    """
    times = pa.array([1000, 2000, 3000], pa.timestamp("ms", "UTC"))
    rows = pa.table({"value": pa.array([b"a", b"b", b"c"]), "timestamp": times})
    config = ProducerConfig(use_timestamps=True)
    with segmentlog.open_writer(tmp_path, "t", num_partitions=1, config=config) as writer:
        writer.append(rows)
    with (tmp_path / "t-0" / f"{0:020d}.log").open("ab") as file:
        file.write(bytes(100))
    if not has_time_index:
        (tmp_path / "t-0" / f"{0:020d}.timeindex").unlink()
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)

    assert log.offset_for_timestamp(1500) == (2000, 1)
    assert log.offset_for_timestamp(9000) is None
    newer = segmentlog.dataset(tmp_path).to_table(filter=pc.field("timestamp") >= times[1])
    assert newer["value"].to_pylist() == [b"b", b"c"]
    counted = segmentlog.dataset(tmp_path).count_by_time(timedelta(hours=1))
    assert pc.sum(counted["count"]).as_py() == 3


def test_zeros_after_the_last_batch_do_not_stop_reads_of_committed_records(tmp_path: Path) -> None:
    """The last stable offset, the producers and a compaction use the batches before the zeros."""
    producer = segmentlog.Producer(7)
    rows = pa.table({"key": pa.array([b"k", b"k"]), "value": pa.array([b"a", b"b"])})
    for _ in range(2):
        with segmentlog.open_writer(tmp_path, "t", num_partitions=1, producer=producer) as writer:
            writer.roll()
            writer.append(rows)
    with (tmp_path / "t-0" / f"{2:020d}.log").open("ab") as file:
        file.write(bytes(100))
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)

    assert log.last_stable_offset() == 4
    assert log.scan(isolation_level="read_committed").read_all().num_rows == 4
    assert log.producers().num_rows == 1
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    assert len(segmentlog.compact(tmp_path, settings=settings)) == 1
    assert segmentlog.open_log_dir(tmp_path).log("t", 0).scan().read_all().num_rows == 3


def test_a_promised_tail_of_zeros_is_damage_to_a_look_up_by_time(tmp_path: Path) -> None:
    """If the high watermark lies beyond the zeros, records are missing, and a look-up fails."""
    with segmentlog.open_writer(tmp_path, "t", num_partitions=1) as writer:
        writer.append(pa.table({"value": pa.array([b"a"])}))
    with (tmp_path / "t-0" / f"{0:020d}.log").open("ab") as file:
        file.write(bytes(100))
    (tmp_path / "t-0" / f"{0:020d}.timeindex").unlink()
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 5\n")
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)

    with pytest.raises(segmentlog.CorruptLogError):
        log.offset_for_timestamp(2**50)


@pytest.fixture
def half_deleted(tmp_path: Path) -> Path:
    """A log start in the first segment, whose newest record lies below the log start."""
    directory = tmp_path / "half"
    partition = directory / "t-0"
    partition.mkdir(parents=True)
    segments = [[1000, 9000, 1001, 1002], [2000, 2001, 2002], [1500, 3000, 2500]]
    base = 0
    for times in segments:
        records = [Record(base + i, time, b"k", b"v") for i, time in enumerate(times)]
        data = b"".join(encode_batch([each]) for each in records)
        (partition / f"{base:020d}.log").write_bytes(data)
        base += len(times)
    (directory / "log-start-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    (directory / "replication-offset-checkpoint").write_text("0\n1\nt 0 10\n")
    return directory


@pytest.mark.parametrize(
    ("timestamp_ms", "offset"),
    [(0, 2), (1002, 3), (1003, 4), (2002, 6), (2003, 8), (3000, 8), (3001, None)],
)
def test_deleted_newer_records_do_not_hide_those_of_later_segments(
    half_deleted: Path, timestamp_ms: int, offset: int | None
) -> None:
    """A broker searches only the first segment that reaches the time.

    Our look-up searches later segments, too.
    """
    log = segmentlog.open_log_dir(half_deleted).log("t", 0)
    found = log.offset_for_timestamp(timestamp_ms)
    as_broker = log.offset_for_timestamp(timestamp_ms, one_segment=True)

    assert offset == (None if found is None else found.offset)
    assert (offset if timestamp_ms <= 1002 else None) == (as_broker and as_broker.offset)
    expected = [] if offset is None else list(range(offset, 10))
    scanned = log.scan(since=timestamp_ms, columns=["offset"])
    dataset = segmentlog.dataset(half_deleted, since=timestamp_ms)
    assert expected == offsets_of(scanned)
    assert expected == dataset.to_table(["offset"])["offset"].to_pylist()
    before = log.scan(until=timestamp_ms, columns=["offset"])
    assert [each for each in range(2, 10) if each not in expected] == offsets_of(before)
    time = pa.scalar(1000 * timestamp_ms, pa.timestamp("us", "UTC"))
    newer = segmentlog.dataset(half_deleted).count_rows(pc.field("timestamp") >= time)
    all_times = [1001, 1002, 2000, 2001, 2002, 1500, 3000, 2500]
    assert newer == sum(each >= timestamp_ms for each in all_times)
