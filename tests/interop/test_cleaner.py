"""Kafka's cleaner and ours compact equal random logs at the same time of day, with equal results.

`KafkaLogs` runs a broker's classes without the broker. `test_compaction` has a few whole logs of
real producers, and a running broker.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from dirty_logs import Kind, dirty_log, write_segments
from kafka_here import Broker, kafka_jars
from kafka_here.gateway import Gateway, gateway
from kafka_here.log_classes import KafkaLogs
from kept_records import batches_of, files_of, index_entries, kept

import segmentlog
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE
from segmentlog.log.checkpoint import read_offsets
from segmentlog.maintain.verification.findings import Severity
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.testing.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD

pytestmark = pytest.mark.interop

NOW_MS = 1_800_000_000_000
DELETE_RETENTION_MS = 60_000
LATER_MS = NOW_MS + DELETE_RETENTION_MS
METADATA = "__cluster_metadata-0"
CHECKPOINT = "cleaner-offset-checkpoint"
NEVER_MS = 2**31 - 1

KINDS: Mapping[str, Kind] = {
    "plain": Kind(),
    "few-keys": Kind(n_keys=2, n_records=3),
    "unkeyed": Kind(unkeyed=0.3),
    "tombstones": Kind(tombstones=0.9),
    "append-time": Kind(is_append_time=True, codecs=(NONE, LZ4)),
    "producers": Kind(producers=3),
    "busy": Kind(producers=2, n_keys=3, n_batches=120, n_records=3),
    "codecs": Kind(codecs=(NONE, GZIP, SNAPPY, LZ4, ZSTD), producers=2),
    "legacy": Kind(magics=(0, 1), codecs=(NONE, GZIP, SNAPPY, LZ4), n_keys=30),
    "mixed": Kind(magics=(0, 1, 2), codecs=(NONE, GZIP, LZ4), producers=1),
}
#: Two libraries compress to different sizes, and sizes decide which segments are joined.
WITHOUT_PRODUCERS = {
    name: kind for name, kind in KINDS.items() if not kind.producers and kind.codecs == (NONE,)
}
SETTINGS: Mapping[str, object] = {
    "cleanup.policy": "compact",
    "index.interval.bytes": 150,
    "delete.retention.ms": DELETE_RETENTION_MS,
    "min.cleanable.dirty.ratio": 0.0,
}
SEGMENT_BYTES = 2000
FEW = range(1)
MANY = range(100, 160)
seeds = pytest.mark.parametrize(
    "seeds", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)


class Logs:
    """Log directories with a topic for each kind and seed, and both cleaners.

    Parameters
    ----------
    java : the JVM with Kafka's classes.
    directory : below which the log directories are.
    seeds : of the random logs.
    kinds : of the random logs.
    map_slots : of the offset map.
    metadata : a directory with the metadata of a cluster, which tells our cleaner the version.
    """

    def __init__(
        self,
        java: Gateway,
        directory: Path,
        seeds: Sequence[int],
        kinds: Mapping[str, Kind] = KINDS,
        map_slots: int = 1 << 17,
        metadata: Path | None = None,
    ) -> None:
        self.java, self.root, self.map_bytes = java, directory, map_slots * 24
        self.segments = {
            f"{name}-{seed}": dirty_log(seed, kind, NOW_MS)
            for name, kind in kinds.items()
            for seed in seeds
        }
        self.made = self.root / "made"
        if metadata is not None:
            shutil.copytree(metadata, self.made / METADATA)
        self.append(self.made, 0, 0.6)

    @property
    def topics(self) -> list[str]:
        return [*self.segments]

    def append(self, directory: Path, begin: float, end: float) -> None:
        """Write segments from one share of each log to another; the last segment is active."""
        for topic, segments in self.segments.items():
            first, last = (
                max(int(len(segments) * each), 2) if each else 0 for each in (begin, end)
            )
            write_segments(directory / f"{topic}-0", segments[first:last], NOW_MS)
            # The stop before has left an index without entries as long as segment.index.bytes.
            # Kafka counts these bytes, and only one of the cleaners cuts them.
            for index in (directory / f"{topic}-0").glob("*index"):
                if index.stat().st_size > SEGMENT_BYTES:
                    index.unlink()
        (directory / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
        for _ in range(2):  # missing indexes are made; then superfluous snapshots are removed
            with self.opened(directory, NOW_MS):
                pass

    def opened(self, directory: Path, now_ms: int) -> KafkaLogs:
        settings = {**SETTINGS, "internal.segment.bytes": SEGMENT_BYTES}
        return KafkaLogs(self.java, directory, dict.fromkeys(self.topics, settings), now_ms)

    def copy(self, directory: Path, name: str) -> Path:
        return Path(shutil.copytree(directory, self.root / name, copy_function=shutil.copy2))

    def clean_as_kafka(self, directory: Path, now_ms: int) -> dict[str, int]:
        """Compact with Kafka's cleaner; return the number of rounds of each topic."""
        with self.opened(directory, now_ms) as logs:
            done = logs.clean(map_bytes=self.map_bytes)
        return {topic: sum(each.topic == topic for each in done) for topic in self.topics}

    def clean(self, directory: Path, now_ms: int) -> dict[str, int]:
        """Compact with our cleaner; return the number of rounds of each topic."""
        settings = {key: str(value) for key, value in SETTINGS.items()}
        done = segmentlog.compact(
            directory,
            self.topics,
            settings={**settings, "segment.bytes": str(SEGMENT_BYTES)},
            now_ms=now_ms,
            dedupe_buffer_bytes=self.map_bytes,
            producer_expiration_ms=NEVER_MS,
        )
        rounds = {each.topic: each.n_passes for each in done}
        return {topic: rounds.get(topic, 0) for topic in self.topics}

    def assert_same(self, theirs: Path, ours: Path) -> None:
        for topic in self.topics:
            assert_same_partition(theirs / f"{topic}-0", ours / f"{topic}-0")
        assert read_offsets(str(theirs), CHECKPOINT) == read_offsets(str(ours), CHECKPOINT)


def assert_same_partition(theirs: Path, ours: Path) -> None:
    """Both have equal batches in equal segments, and equal bytes except for those of a codec."""
    names = [{path.name for path in each.glob("*.log")} for each in (theirs, ours)]
    assert names[0] == names[1], ours
    for name in sorted(names[0]):
        if (theirs / name).read_bytes() != (ours / name).read_bytes():
            expected, found = [*batches_of(theirs / name)], [*batches_of(ours / name)]
            for each, other in zip(expected, found, strict=False):
                assert each._replace(position=0) == other._replace(position=0), (ours, name)
            assert len(expected) == len(found), (ours, name)
            assert any(each.is_compressed for each in expected), (ours, name)
        index = name.replace(".log", ".txnindex")
        assert index_entries(theirs / index) == index_entries(ours / index), (ours, index)
        modified = [(each / name).stat().st_mtime_ns // 10**6 for each in (theirs, ours)]
        assert modified[0] == modified[1], (ours, name)
    snapshots = [
        {name for name in files_of(each) if "snapshot" in name} for each in (theirs, ours)
    ]
    assert snapshots[0] == snapshots[1], ours


def assert_sound(directory: Path, topics: Sequence[str]) -> None:
    """Our verification of everything finds that indexes fit."""
    opened = segmentlog.open_log_dir(directory)
    for topic in topics:
        found = [
            each
            for each in LogCheck(opened.log(topic, 0)).findings()
            if each.severity is not Severity.NOTE
        ]
        assert [] == [each.message for each in found], topic


@seeds
@pytest.mark.parametrize("map_slots", [1 << 17, pytest.param(9, marks=pytest.mark.slow)])
def test_both_leave_the_same(
    java: Gateway, tmp_path: Path, seeds: Sequence[int], map_slots: int
) -> None:
    """The log also grows, and each cleaner continues where the other one stopped.

    A map of a few keys takes several rounds; the next test has transactions in such rounds.
    """
    kinds = KINDS if map_slots > 9 else WITHOUT_PRODUCERS
    logs = Logs(java, tmp_path, seeds, kinds, map_slots)
    theirs, ours = logs.copy(logs.made, "theirs"), logs.copy(logs.made, "ours")

    assert logs.clean_as_kafka(theirs, NOW_MS) == logs.clean(ours, NOW_MS)
    logs.assert_same(theirs, ours)
    assert_sound(ours, logs.topics)

    for each in (theirs, ours):
        logs.append(each, 0.6, 0.8)
    logs.assert_same(theirs, ours)
    alone = logs.copy(ours, "alone")
    assert logs.clean(theirs, LATER_MS) == logs.clean_as_kafka(ours, LATER_MS)
    logs.assert_same(ours, theirs)
    logs.clean(alone, LATER_MS)
    logs.assert_same(ours, alone)

    for each in (theirs, ours):
        logs.append(each, 0.8, 1)
    assert logs.clean_as_kafka(theirs, 2 * LATER_MS) == logs.clean(ours, 2 * LATER_MS)
    logs.assert_same(theirs, ours)
    assert_sound(ours, logs.topics)


@pytest.mark.slow
@seeds
@pytest.mark.parametrize("map_slots", [1 << 17, 9])
def test_both_leave_the_same_batches_in_kafka_4_4(
    tmp_path: Path, seeds: Sequence[int], map_slots: int
) -> None:
    """An empty batch stays only at the high watermark; the metadata tells the version."""
    java = gateway(kafka_jars("4.4.0"))
    broker = Broker(tmp_path / "kafka", "4.4.0")
    broker.prepare()
    without = {f"no-keys-{n}": Kind(unkeyed=1, n_batches=n) for n in (40, 50, 70, 80)}
    kinds = {**without, **(KINDS if map_slots > 9 else WITHOUT_PRODUCERS)}
    logs = Logs(java, tmp_path, seeds, kinds, map_slots, broker.log_dir / METADATA)
    theirs, ours = logs.copy(logs.made, "theirs"), logs.copy(logs.made, "ours")
    old = logs.copy(logs.made, "old")
    shutil.rmtree(old / METADATA)

    assert logs.clean_as_kafka(theirs, NOW_MS) == logs.clean(ours, NOW_MS)
    logs.assert_same(theirs, ours)
    logs.clean(old, NOW_MS)
    other = [name for name in logs.topics if kept(old / f"{name}-0") != kept(ours / f"{name}-0")]
    assert other  # up to 4.3, the last batch of the pass stays
    for each in (theirs, ours):
        logs.append(each, 0.6, 1)
    assert logs.clean(theirs, LATER_MS) == logs.clean_as_kafka(ours, LATER_MS)
    logs.assert_same(ours, theirs)
    assert_sound(ours, logs.topics)


@pytest.mark.thorough
@seeds
def test_rounds_that_begin_inside_a_segment(
    java: Gateway, tmp_path: Path, seeds: Sequence[int]
) -> None:
    """Our cleaner sometimes leaves one record less, but never removes the last record of a key.

    ``UnifiedLog.collectAbortedTransactions`` also returns aborted transactions that end before the
    given offset. Kafka's offset map then ignores the records that their producer commits next.
    """
    kinds = {name: kind for name, kind in KINDS.items() if kind.producers}
    logs = Logs(java, tmp_path, seeds, kinds, map_slots=9)
    theirs, ours = logs.copy(logs.made, "theirs"), logs.copy(logs.made, "ours")
    before = {topic: newest_committed(ours, topic) for topic in logs.topics}
    rounds = logs.clean_as_kafka(theirs, NOW_MS)
    logs.clean(ours, NOW_MS)

    assert max(rounds.values()) > 2
    assert read_offsets(str(theirs), CHECKPOINT) == read_offsets(str(ours), CHECKPOINT)
    for topic in logs.topics:
        kept_by = [offsets_of(each / f"{topic}-0") for each in (ours, theirs)]
        assert kept_by[0] <= kept_by[1], topic
        assert before[topic] == newest_committed(ours, topic), topic
        assert before[topic] == newest_committed(theirs, topic), topic
    assert_sound(ours, logs.topics)


def offsets_of(partition: Path) -> set[int]:
    return {
        record.offset
        for batches in kept(partition).values()
        for batch in batches
        for record in batch.records
    }


def newest_committed(directory: Path, topic: str) -> dict[bytes, bytes]:
    """The last value of each key that a reader finds, without deleted keys."""
    log = segmentlog.open_log_dir(directory).log(topic, 0)
    rows = log.scan(columns=["key", "value"], isolation_level="read_committed").read_all()
    pairs = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    newest = {key: value for key, value in pairs if key is not None}
    return {key: value for key, value in newest.items() if value is not None}


@pytest.mark.thorough
def test_the_logs_have_what_they_are_for(java: Gateway, tmp_path: Path) -> None:
    """They have horizons, empty batches, markers, old formats and joined segments."""
    logs = Logs(java, tmp_path, FEW)
    before = {topic: kept(logs.made / f"{topic}-0") for topic in logs.topics}
    logs.clean_as_kafka(logs.made, NOW_MS)
    after = {topic: kept(logs.made / f"{topic}-0") for topic in logs.topics}
    seen = [each for logs in after.values() for batches in logs.values() for each in batches]

    assert any(each.delete_horizon_ms is not None for each in seen)
    assert any(not each.records for each in seen)
    assert any(each.is_compressed for each in seen)
    assert any(len(each.fields) == 2 for each in seen)
    assert any(len(each.fields) > 2 and each.fields[1] & 0x20 for each in seen)
    assert all(len(before[topic]) >= len(after[topic]) for topic in logs.topics)
    assert sum(map(len, after.values())) < sum(map(len, before.values()))
