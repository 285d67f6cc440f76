"""Directories in the middle of a change: a write, a clean, a copy, a kill, a swap."""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import segmentlog
from segmentlog.errors import CorruptLogError, LogChangedError
from segmentlog.maintain.recover_directory import DirectoryRecovery
from segmentlog.txn.change import HeldDirectory

pytestmark = pytest.mark.interop

_T0 = 1_700_000_000_000
_N_KEYS = 40


def record(number: int) -> Outgoing:
    """The record at offset `number`; the offset determines all of its fields."""
    key = b"key-%02d" % (number % _N_KEYS)
    return Outgoing(key, b"%d " % number * (20 + number % 60), (), _T0 + number)


class Load:
    """Writes to three topics until it is stopped: one grows, one expires, one is compacted."""

    def __init__(self, client: JavaClient, small: str) -> None:
        self._client = client
        self.acknowledged = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        client.create_topic("growing", **{small: 200_000}, index_interval_bytes=1024)
        client.create_topic(
            "expiring", **{small: 60_000}, retention_bytes=200_000, file_delete_delay_ms=200
        )
        client.create_topic(
            "compacted",
            **{small: 60_000},
            cleanup_policy="compact",
            file_delete_delay_ms=200,
            min_cleanable_dirty_ratio=0.01,
            delete_retention_ms=1000,
        )

    def _run(self) -> None:
        producer = self._client.producer(batch_size=4000, linger_ms=1, compression_type="none")
        with contextlib.closing(producer):
            while not self._stop.wait(0.1):  # readers need the processor, too
                records = [record(self.acknowledged + i) for i in range(200)]
                for topic in ("growing", "expiring", "compacted"):
                    self._client.send(producer, topic, records)
                self.acknowledged += len(records)

    def __enter__(self) -> "Load":
        self._thread.start()
        until = time.monotonic() + 60
        while not self.acknowledged and time.monotonic() < until:
            time.sleep(0.05)  # a partition has a directory once it is written to
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def busy(new_version: str, tmp_path: Path) -> Iterator[tuple[Broker, JavaClient, Load]]:
    """A broker under load that rolls, cleans and deletes every few hundred milliseconds."""
    settings = {
        "log.retention.check.interval.ms": 300,
        "log.initial.task.delay.ms": 100,
        "log.cleaner.backoff.ms": 100,
    }
    broker = Broker(tmp_path / "kafka", new_version, settings=settings)
    with broker, JavaClient(broker) as client, Load(client, "internal_segment_bytes") as load:
        yield broker, client, load


def check_rows(topic: str, log: segmentlog.Log, **how: Any) -> int:
    """Read a whole log and compare each row with its offset; return the number of rows."""
    start, end = log.log_start_offset, log.end_offset(segmentlog.ReadUpTo.LOG_END)
    rows = log.scan(start, end, columns=["offset", "key", "value"], **how).read_all()
    offsets = rows["offset"].to_pylist()
    if topic != "compacted":
        assert list(range(start, end)) == offsets
    assert offsets == sorted(set(offsets))
    for offset, key, value in zip(*(rows.column(i).to_pylist() for i in range(3)), strict=True):
        expected = record(offset)
        assert (expected.key, expected.value) == (key, value), offset
    return len(offsets)


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_broker_under_load_is_read_right_or_not_at_all(
    busy: tuple[Broker, JavaClient, Load], seconds: int
) -> None:
    """A read of a changing directory returns right rows, or raises a typed error."""
    broker, _, load = busy
    seen = dict.fromkeys(("growing", "expiring", "compacted"), 0)
    overtaken, starts, segments = 0, set(), set()

    def is_enough() -> bool:
        """Whether enough has happened: a broker on a busy machine takes longer."""
        has_changed = min(len(starts), len(segments)) > 3
        return load.acknowledged > 2000 and has_changed and min(seen.values()) > 1000

    begun = time.monotonic()
    while (lasted := time.monotonic() - begun) < seconds or (lasted < 120 and not is_enough()):
        for topic in seen:
            directory = segmentlog.open_log_dir(broker.log_dir)
            log = directory.log(topic, 0)
            try:
                seen[topic] += check_rows(topic, log)
            except LogChangedError:  # retention or the cleaner was quicker than the read
                overtaken += 1
                continue
            if topic == "expiring":
                starts.add(log.log_start_offset)
            if topic == "compacted":
                segments.add(tuple(segment.base_offset for segment in log.segments))

    assert load.acknowledged > 2000
    assert len(starts) > 3
    assert len(segments) > 3
    assert all(number > 1000 for number in seen.values())
    assert overtaken < lasted


@pytest.mark.slow
@pytest.mark.spark
def test_spark_scans_while_the_broker_writes(
    busy: tuple[Broker, JavaClient, Load], spark: SparkSession
) -> None:
    """A query sees one moment of the log until its last task ends."""
    broker, _, load = busy
    while load.acknowledged < 2000:
        time.sleep(0.1)
    for _ in range(3):
        frame = (
            spark.read.format("segmentlog")
            .option("subscribe", "growing")
            .option("readUpTo", "logEnd")
            .option("maxBytesPerPartition", "100k")
            .load(str(broker.log_dir))
        )
        before = load.acknowledged
        said = F.substring_index(F.col("value").cast("string"), " ", 1).cast("long")
        row = frame.agg(
            F.count("*").alias("n"),
            F.max("offset").alias("last"),
            F.sum((said != F.col("offset")).cast("int")).alias("wrong"),
        ).first()

        assert row.n == row.last + 1
        assert before <= row.n
        assert row.wrong == 0


def copy_as_it_stands(source: Path, target: Path) -> None:
    """Copy one file after the other, as ``cp -r``, without files that vanish meanwhile."""
    target.mkdir(parents=True)
    for directory in [source, *sorted(path for path in source.iterdir() if path.is_dir())]:
        place = target / directory.relative_to(source)
        place.mkdir(exist_ok=True)
        for path in sorted(directory.iterdir()):
            if path.is_file():
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(path, place / path.name)


@pytest.mark.slow
def test_copies_taken_under_load_are_read_right_or_not_at_all(
    busy: tuple[Broker, JavaClient, Load], tmp_path: Path
) -> None:
    """Such a copy ends where its files end, and its checkpoints may be newer."""
    broker, _, load = busy
    refused = 0
    while load.acknowledged < 1000:
        time.sleep(0.1)
    for number in range(6):
        time.sleep(0.4)
        acknowledged = load.acknowledged
        copy = tmp_path / f"copy-{number}"
        copy_as_it_stands(broker.log_dir, copy)
        for topic in ("growing", "compacted"):
            log = segmentlog.open_log_dir(copy).log(topic, 0)
            try:
                assert check_rows(topic, log) >= (acknowledged if topic == "growing" else _N_KEYS)
            except CorruptLogError:
                assert log.end.position < log.segments[-1].size  # torn, below the high watermark
                refused += 1
            scan = log.scan(columns=["offset"], read_up_to=segmentlog.ReadUpTo.LOG_END)
            rows = scan.read_all()["offset"].to_pylist()
            assert rows[-1] == log.log_end_offset - 1
        shutil.rmtree(copy)

    assert refused < 6


@pytest.mark.parametrize(
    "n_kills",
    [
        pytest.param(2, marks=pytest.mark.slow),  # `test_live` has one kill
        pytest.param(25, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_a_killed_broker_leaves_everything_that_it_acknowledged(
    new_version: str, tmp_path: Path, n_kills: int
) -> None:
    """After kill -9 under load, we read the records that the broker finds when it recovers."""
    broker = Broker(tmp_path / "kafka", new_version)
    acknowledged, offsets = 0, []
    for kill in range(n_kills):
        with broker, JavaClient(broker) as client:
            if not kill:
                client.create_topic("killed", internal_segment_bytes=100_000)
            else:
                assert [each.offset for each in client.consume("killed")] == offsets
            producer = client.producer(batch_size=4000, linger_ms=1, compression_type="none")
            start = acknowledged = len(client.consume("killed"))
            for _ in range(20):
                records = [record(acknowledged + i) for i in range(100)]
                client.send(producer, "killed", records)
                acknowledged += len(records)
            broker.kill()
            client.forget(producer)
        log = segmentlog.open_log_dir(broker.log_dir).log("killed", 0)
        columns = ["offset", "value"]
        rows = log.scan(columns=columns, read_up_to=segmentlog.ReadUpTo.LOG_END).read_all()
        offsets = rows["offset"].to_pylist()

        assert acknowledged == start + 2000
        assert list(range(len(offsets))) == offsets
        assert len(offsets) >= acknowledged
        assert rows["value"].to_pylist() == [record(offset).value for offset in offsets]


# The states in which a crash can leave a clean of three segments into one
# (``LogCleanerTest``, recovery after a crash), made of the files before it and after it.
Make = Callable[[Path, Path, Path], None]


def _copy(source: Path, target: Path, suffix: str = "") -> None:
    shutil.copyfile(source, target / (source.name + suffix))


def _before(before: Path, after: Path, place: Path) -> None:
    """All files of the old segments."""
    for path in before.iterdir():
        _copy(path, place)


def _add_cleaned(before: Path, after: Path, place: Path, suffix: str = ".cleaned") -> None:
    for path in _replacing(before, after):
        _copy(path, place, suffix)


def _replacing(before: Path, after: Path) -> list[Path]:
    """Files of segments that the clean has written."""
    return [
        path
        for path in sorted(after.iterdir())
        if path.suffix in {".log", ".index", ".timeindex"}
        and (before / path.name).exists()
        and (before / path.name).read_bytes() != path.read_bytes()
    ]


def _only_cleaned(before: Path, after: Path, place: Path) -> None:
    _before(before, after, place)
    _add_cleaned(before, after, place)


def _swap_and_old(before: Path, after: Path, place: Path) -> None:
    _before(before, after, place)
    _add_cleaned(before, after, place, ".swap")


def _swap_and_deleted(before: Path, after: Path, place: Path) -> None:
    for path in before.iterdir():
        gone = path.suffix == ".log" and not (after / path.name).exists()
        replaced = path in [before / each.name for each in _replacing(before, after)]
        _copy(path, place, ".deleted" if gone or replaced else "")
    _add_cleaned(before, after, place, ".swap")


def _half_renamed(before: Path, after: Path, place: Path) -> None:
    _swap_and_deleted(before, after, place)
    for path in sorted(place.glob("*.swap"))[:1]:
        path.rename(path.with_name(path.name.removesuffix(".swap")))


def _swap_and_cleaned(before: Path, after: Path, place: Path) -> None:
    """Renames to .swap begin with the last segment, and were interrupted."""
    _swap_and_old(before, after, place)
    first = min(place.glob("*.log.swap"))
    for path in list(place.glob(first.name.partition(".")[0] + ".*.swap")):
        path.rename(path.with_name(path.name.removesuffix(".swap") + ".cleaned"))


def _finished(before: Path, after: Path, place: Path) -> None:
    for path in after.iterdir():
        _copy(path, place)
    for path in before.glob("*.log"):
        if not (place / path.name).exists():
            _copy(path, place, ".deleted")


STATES: dict[str, Make] = {
    "only .cleaned files": _only_cleaned,
    "some .swap, some .cleaned": _swap_and_cleaned,
    "all .swap, old segments there": _swap_and_old,
    "all .swap, old segments .deleted": _swap_and_deleted,
    "one .swap renamed": _half_renamed,
    "finished, .deleted left": _finished,
}


@pytest.fixture(scope="module")
def cleaned(
    new_version: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Broker, Path, Path]:
    """A stopped broker, and a partition of it before and after its cleaner ran."""
    directory = tmp_path_factory.mktemp("kafka")
    broker = Broker(directory / "kafka", new_version)
    with broker, JavaClient(broker) as client:
        client.create_topic("swapped", internal_segment_bytes=8000, index_interval_bytes=500)
        producer = client.producer(batch_size=800, compression_type="none")
        client.send(producer, "swapped", [record(number) for number in range(300)])
        producer.close()
    before = directory / "before"
    shutil.copytree(broker.log_dir / "swapped-0", before)
    with broker, JavaClient(broker) as client:
        client.alter_topic("swapped", cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
        deadline = time.monotonic() + 60
        while len(client.consume("swapped")) > 200:
            assert time.monotonic() < deadline, "the cleaner did not run"
            time.sleep(0.2)
        client.wait_until_settled("swapped")
        client.alter_topic("swapped", cleanup_policy="delete")
    after = directory / "after"
    shutil.copytree(
        broker.log_dir / "swapped-0", after, ignore=shutil.ignore_patterns("*.deleted")
    )
    return broker, before, after


#: The swap is half done.
USUAL = {"one .swap renamed"}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(each, marks=pytest.mark.thorough if each in USUAL else pytest.mark.slow)
        for each in STATES
    ],
)
def test_a_clean_that_was_cut_short_is_read_as_the_broker_recovers_it(
    cleaned: tuple[Broker, Path, Path],
    state: str,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """We read the old or the cleaned records, as a starting broker does, and each record once."""
    broker, before, after = cleaned
    place = broker.log_dir / "swapped-0"
    shutil.rmtree(place)
    place.mkdir()
    STATES[state](before, after, place)
    with caplog.at_level(logging.WARNING):
        log = segmentlog.open_log_dir(broker.log_dir).log("swapped", 0)
        found = log.scan(columns=["offset", "value"]).read_all().to_pylist()
    recovered = tmp_path / "recovered"
    shutil.copytree(broker.log_dir, recovered)
    (recovered / ".kafka_cleanshutdown").unlink(missing_ok=True)
    list(DirectoryRecovery(HeldDirectory(str(recovered)), 500).run())
    with broker, JavaClient(broker) as client:
        expected = client.consume("swapped")

    log = segmentlog.open_log_dir(recovered).log("swapped", 0)
    assert found == log.scan(columns=["offset", "value"]).read_all().to_pylist()
    assert not [*recovered.glob("*/*.swap"), *recovered.glob("*/*.cleaned")]
    assert {path.name for path in recovered.glob("swapped-0/*.log")} == {
        path.name for path in place.glob("*.log")
    }
    assert 40 <= len(expected) <= 300
    assert [(each.offset, each.value) for each in expected] == [
        (row["offset"], row["value"]) for row in found
    ]
