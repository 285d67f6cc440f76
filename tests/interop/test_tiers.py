"""A broker with tiered storage: the log directory and its tier are what the broker serves."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiven_plugin import AivenPlugin, KeyPair
from kafka_here import ArtifactsError, Broker, JavaClient, KafkaRecord
from kafka_here.artifacts import tier_jars
from kafka_here.java import Outgoing
from kafka_here.records import rows_of
from kafka_here.tiered import local_start, tiered_settings, wait_for_local_start

import segmentlog
from segmentlog.reads.scan import scan_slice
from segmentlog.tiered.metadata import REMOTE_LOG_METADATA, remote_segments

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

VERSION = "4.3.1"
_LEVELS = ("read_uncommitted", "read_committed")
_FIRST_MS = 1_700_000_000_000


class Served(NamedTuple):
    """The rows that a broker served before it was stopped, and its directories."""

    log_dir: Path
    tier: Path
    rows: dict[str, list[KafkaRecord]]
    times: dict[int, int | None]

    def options(self) -> dict[str, Any]:
        """The options of a tier, which several functions take."""
        return {"remote_storage": self.tier}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Segments of plain, compressed and transactional batches, of which few are local."""
    try:
        jars = tier_jars(VERSION)
    except ArtifactsError as error:
        pytest.skip(str(error))
    root = tmp_path_factory.mktemp("tiers")
    tier = root / "tier"
    broker = Broker(root / "kafka", VERSION, settings=tiered_settings(tier), libraries=[jars])
    with broker, JavaClient(broker) as client:
        for topic in ("t", "times"):
            client.create_topic(
                topic,
                remote_storage_enable="true",
                local_retention_bytes=1,
                retention_ms=-1,
                internal_segment_bytes=16_000,
                index_interval_bytes=500,
            )
        for number, codec in enumerate(["none", "zstd", "lz4"] * 4):
            records = [
                Outgoing(
                    b"%d" % i,
                    bytes([i]) * 40,
                    (("h", b"v"),),
                    _FIRST_MS + 1000 * number + 7 * i,
                )
                for i in range(100)
            ]
            client.produce("t", records, compression_type=codec, batch_size=2000)
            client.produce("times", records, compression_type=codec, batch_size=2000)
            client.produce("t", records[:20], transactions=["commit", "abort"], batch_size=500)
        for topic in ("t", "times"):
            wait_for_local_start(broker, topic, 700)
        client.delete_records("t", 0, 130)
        rows = {level: client.consume("t", isolation=level) for level in _LEVELS}
        wanted = [_FIRST_MS + each for each in (0, 650, 3210, 7777, 11_300, 10**9)]
        times = {each: client.offset_for_timestamp("times", 0, each) for each in wanted}
    return Served(broker.log_dir, tier, rows, times)


def scanned(log: segmentlog.Log, level: str) -> list[KafkaRecord]:
    """All rows of a log, as a consumer's records."""
    return rows_of(
        log.scan(
            isolation_level=level, include_headers=True, read_up_to=segmentlog.ReadUpTo.LOG_END
        ).read_all()
    )


@pytest.mark.parametrize("level", _LEVELS)
@pytest.mark.parametrize("has_metadata", [True, False])
def test_rows_are_those_of_a_consumer(
    served: Served, level: str, has_metadata: bool, tmp_path: Path
) -> None:
    """The broker's list of remote segments is used, or the bucket alone."""
    directory = served.log_dir
    if not has_metadata:
        ignored = shutil.ignore_patterns(f"{REMOTE_LOG_METADATA}-*")
        directory = shutil.copytree(directory, tmp_path / "logs", ignore=ignored)
    log = segmentlog.open_log_dir(directory, **served.options()).log("t", 0)

    assert local_start(served.log_dir / "t-0") > 700
    assert 130 == log.log_start_offset
    assert served.rows[level] == scanned(log, level)


@pytest.fixture(scope="module")
def as_aiven(served: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The options of a tier with the broker's segments in the layout of Aiven's plugin.

    They are compressed and encrypted.
    """
    root = tmp_path_factory.mktemp("aiven")
    keys = KeyPair(root)
    plugin = AivenPlugin(root / "bucket", "", 1500, compresses=True, keys=keys)
    for stored in (served.tier / "kafka-tiered-storage").iterdir():
        name = stored.name[:-23]  # a topic id follows
        if name not in ("t-0", "times-0"):
            continue
        partition = root / name
        shutil.copytree(served.log_dir / name, partition)
        for file in partition.glob("0*"):
            file.unlink()
        for file in stored.glob("0*"):
            base_offset, _, suffix = file.name[:20], file.name[20:43], file.name[43:]
            if suffix in (".log", ".index", ".timeindex", ".txnindex"):
                shutil.copy(file, partition / (base_offset + suffix))
        topic_id = segmentlog.open_log_dir(partition).log(name[:-2], 0).topic_id
        plugin.copy_partition(partition, topic_id, with_last=True)
    return {
        "remote_storage": plugin.root,
        "remote_storage_layout": "aiven",
        "remote_storage_key_file": keys.file,
    }


@pytest.mark.parametrize("level", _LEVELS)
def test_rows_in_the_layout_of_aivens_plugin_are_those_of_a_consumer(
    served: Served, as_aiven: dict[str, Any], level: str, tmp_path: Path
) -> None:
    """The segments are the broker's.  Offsets by time are those that the broker found."""
    ignored = shutil.ignore_patterns(f"{REMOTE_LOG_METADATA}-*")
    directory = shutil.copytree(served.log_dir, tmp_path / "logs", ignore=ignored)
    opened = segmentlog.open_log_dir(directory, **as_aiven)
    times = opened.log("times", 0)

    assert served.rows[level] == scanned(opened.log("t", 0), level)
    found = {each: times.offset_for_timestamp(each) for each in served.times}
    assert served.times == {each: one and one.offset for each, one in found.items()}


def test_slices_hold_the_rows_of_one_scan(served: Served) -> None:
    """Segments in the tier are cut by their own indexes."""
    log = segmentlog.open_log_dir(served.log_dir, **served.options()).log("t", 0)
    end = log.end_offset(segmentlog.ReadUpTo.LOG_END)
    slices = log.slices(log.log_start_offset, end, 3000)
    offsets = [
        offset
        for each in slices
        for batch in scan_slice(each, columns=["offset"])
        for offset in batch["offset"].to_pylist()
    ]
    assert len(slices) > 12
    assert [row.offset for row in served.rows["read_uncommitted"]] == offsets


def test_look_ups_by_time_answer_as_the_broker_did(served: Served) -> None:
    """The time index of a remote segment is used."""
    log = segmentlog.open_log_dir(served.log_dir, **served.options()).log("times", 0)
    found = {each: log.offset_for_timestamp(each) for each in served.times}

    assert served.times == {each: one and one.offset for each, one in found.items()}


def test_a_tier_alone_is_the_beginning_of_the_log(served: Served) -> None:
    """The log ends with the last segment that was copied; deleted records are not known."""
    log = segmentlog.open_log_dir(**served.options()).log("t", 0)
    rows = scanned(log, "read_committed")
    committed = served.rows["read_committed"]

    assert log.log_start_offset <= 130
    later = [row for row in rows if row.offset >= 130]
    assert len(later) > 700
    assert committed[: len(later)] == later


def test_the_brokers_list_has_the_segments_of_the_bucket(served: Served) -> None:
    """Each segment was announced, and its copy has finished."""
    listed = remote_segments(str(served.log_dir))
    assert listed is not None
    (below,) = served.tier.iterdir()
    for log, segments in listed.items():
        directory = below / f"{log.topic}-{log.partition}-{log.topic_id}"
        sizes = {path.stem: path.stat().st_size for path in directory.glob("*.log")}
        assert sizes == {
            f"{each.start_offset:020d}-{each.segment_id}": each.n_bytes for each in segments
        }
    assert {"t", "times"} == {log.topic for log in listed}
    rows = segmentlog.table(served.log_dir, "remote_segments").to_pylist()
    finished = [row for row in rows if row["remote_log_segment_state"] == "COPY_SEGMENT_FINISHED"]
    assert sorted(each.segment_id for segments in listed.values() for each in segments) == sorted(
        row["segment_id"] for row in finished
    )


def test_the_tier_of_a_broker_is_sound(served: Served, tmp_path: Path) -> None:
    """The objects are those of the broker's list, and equal to the local log; a change is found.

    The broker deletes its local copies later than it copies them, so some segments are in both.
    """
    topics = ["t", "times"]

    def problems(tier: Path) -> list[segmentlog.Finding]:
        found = segmentlog.verify(served.log_dir, topics=topics, remote_storage=tier)
        return [each for each in found if each.severity is not segmentlog.Severity.NOTE]

    assert [] == problems(served.tier)
    changed = Path(shutil.copytree(served.tier, tmp_path / "changed"))
    newest = max(changed.rglob("*/t-0-*/*.log"))
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size - 1)

    assert str(newest) in {each.path for each in problems(changed)}
