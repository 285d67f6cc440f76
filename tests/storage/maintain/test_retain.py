"""Retention in a directory: removed segments, readers, and crashes at each step."""

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
import pytest
from broker_lock import as_broker
from crashing import CALLS, Crash, Forward, around_calls, crash_at, cut_loop, fail_at
from namespaces import in_namespace
from plain_writes import write

import segmentlog
from segmentlog.errors import (
    CorruptLogError,
    LogChangedError,
    LogDirectoryError,
    LogLockedError,
    OptionError,
    SegmentLogError,
    UnknownTopicOrPartitionError,
)
from segmentlog.log.checkpoint import (
    read_leader_epochs,
    read_offsets,
    write_leader_epochs,
    write_offsets,
)
from segmentlog.log.producer_snapshot import (
    ProducerSnapshot,
    list_snapshots,
    read_snapshot,
    snapshot_path,
    write_snapshot,
)
from segmentlog.maintain.retain import Hold, KeptSegment, Reason
from segmentlog.model import TopicPartition
from segmentlog.store.lock import DirectoryLock
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.txn import change, effects
from segmentlog.txn.guard import list_guards, recover_commits
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.state import State

DAY_MS = 24 * 3600 * 1000
KEEP = {"retention.ms": "-1"}
AT_ONCE = {"file.delete.delay.ms": "0"}


def rows(n_days: int, partition: int = 0) -> pa.Table:
    """A record of each day, the last one of today; a value is the number of days ago."""
    now_ms = int(time.time() * 1000)
    days = [*reversed(range(n_days))]
    return pa.table(
        {
            "value": [b"%050d" % day for day in days],
            "partition": pa.array([partition] * n_days, pa.int32()),
            "timestamp": pa.array(
                [now_ms - day * DAY_MS for day in days], pa.timestamp("ms", "UTC")
            ),
        }
    )


def write_days(directory: Path, n_days: int = 10, topic: str = "t", **how: Any) -> None:
    """A segment for each day, in each of two partitions."""
    config = segmentlog.ProducerConfig(
        topic_config=segmentlog.TopicConfig(segment_bytes=150), batch_size=1, use_timestamps=True
    )
    both = pa.concat_tables([rows(n_days, 0), rows(n_days, 1)])
    with segmentlog.open_writer(
        directory, topic, num_partitions=2, config=config, **how
    ) as writer:
        writer.append(both)


def days(directory: Path, topic: str = "t") -> dict[int, list[int]]:
    """The days that a reader finds now, by partition."""
    opened = segmentlog.open_log_dir(directory)
    return {
        partition: [
            int(value)
            for value in opened.log(topic, partition).scan().read_all()["value"].to_pylist()
        ]
        for partition in opened.topics().get(topic, ())
    }


def both(n_days: int) -> Mapping[int, list[int]]:
    """The newest days, in both partitions."""
    return {partition: [*reversed(range(n_days))] for partition in (0, 1)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Ten days in each of two partitions."""
    write_days(tmp_path)
    return tmp_path


def names(partition: Path, suffix: str) -> list[int]:
    """Offsets in the names of the files."""
    return sorted(int(path.name[:20]) for path in partition.glob(f"*{suffix}"))


def test_by_time(directory: Path) -> None:
    """Kafka's default is a week. The files stay for a minute under other names."""
    removed = segmentlog.retain(directory, kafka_defaults=True)

    assert [
        ("t", p, i, i + 1, Reason.TIME, "retention.ms=604800000") for p in (0, 1) for i in range(3)
    ] == [
        (each.topic, each.partition, each.base_offset, each.end_offset, each.reason, each.limit)
        for each in removed
    ]
    assert both(7) == days(directory)
    for partition in (0, 1):
        path = directory / f"t-{partition}"
        assert [*range(3, 10)] == names(path, ".log")
        for kind in ("log", "index", "timeindex"):
            assert [0, 1, 2] == names(path, f".{kind}.deleted")
        starts = read_offsets(str(directory), "log-start-offset-checkpoint")
        assert 3 == starts[TopicPartition("t", partition)]
    assert (directory / ".kafka_cleanshutdown").exists()
    assert [] == list_guards(str(directory))
    assert [] == segmentlog.retain(directory, kafka_defaults=True)


def test_by_size(directory: Path) -> None:
    """The oldest segments are removed until the log is small enough."""
    size = (directory / "t-0" / f"{0:020d}.log").stat().st_size
    removed = segmentlog.retain(
        directory, settings={**KEEP, "retention.bytes": str(4 * size), "cleanup.policy": "delete"}
    )

    assert {Reason.SIZE} == {each.reason for each in removed}
    assert both(4) == days(directory)


def test_all_of_it(directory: Path) -> None:
    """The log rolls, and continues at its end. Without a delay, its files are removed at once."""
    assert 20 == len(segmentlog.retain(directory, settings={"retention.ms": "0", **AT_ONCE}))
    assert both(0) == days(directory)
    assert [10] == names(directory / "t-0", ".log")
    assert [] == names(directory / "t-0", ".deleted")
    write_days(directory, 2)

    assert both(2) == days(directory)
    log = segmentlog.open_log_dir(directory).log("t", 0)
    assert (10, 12) == (log.log_start_offset, log.log_end_offset)


def test_a_dry_run_changes_nothing(directory: Path) -> None:
    """The output is that of a run, with a lock file and without one."""
    (directory / ".lock").unlink()
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    told = segmentlog.retain(directory, dry_run=True, kafka_defaults=True)
    assert before == {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    (directory / ".lock").touch()

    assert 6 == len(told)
    assert told == segmentlog.retain(directory, dry_run=True, kafka_defaults=True)
    assert both(10) == days(directory)
    assert told == segmentlog.retain(directory, kafka_defaults=True)


def test_only_some_topics(directory: Path) -> None:
    """Topics are chosen by name. An unknown name changes nothing."""
    write_days(directory, topic="u")
    with pytest.raises(UnknownTopicOrPartitionError, match="did you mean"):
        segmentlog.retain(directory, ["t", "uu"])
    segmentlog.retain(directory, ["u"], kafka_defaults=True)

    assert (both(10), both(7)) == (days(directory), days(directory, "u"))


def test_settings_of_the_directory(directory: Path) -> None:
    """Settings of the topic take precedence over defaults, and settings of the call over both."""
    write_days(directory, topic="u")
    segmentlog.alter_settings(directory, None, {"retention.ms": str(2 * DAY_MS + 10**7)})
    segmentlog.alter_settings(directory, "u", {"retention.ms": str(4 * DAY_MS + 10**7)})
    segmentlog.retain(directory, dry_run=True, settings=KEEP)
    assert (both(10), both(10)) == (days(directory), days(directory, "u"))
    segmentlog.retain(directory)

    assert (both(3), both(5)) == (days(directory), days(directory, "u"))


def test_records_without_a_time_have_that_of_their_file(tmp_path: Path) -> None:
    """The rule is ``LogSegment.largestTimestamp``.

    Empty batches and timestamps of -1 have no time.
    """
    config = segmentlog.ProducerConfig(use_timestamps=True)
    table = rows(1).set_column(2, "timestamp", pa.array([-1], pa.timestamp("ms", "UTC")))
    with segmentlog.open_writer(tmp_path, "t", config=config) as writer:
        writer.append(table)
        writer.roll()
        writer.append(table)
    assert [] == segmentlog.retain(tmp_path, kafka_defaults=True)
    old = time.time() - 8 * DAY_MS / 1000
    os.utime(tmp_path / "t-0" / f"{0:020d}.log", (old, old))

    assert [0] == [each.base_offset for each in segmentlog.retain(tmp_path, kafka_defaults=True)]


def test_never_beyond_the_high_watermark(directory: Path) -> None:
    """The high watermark does not change."""
    offsets = {TopicPartition("t", 0): 1, TopicPartition("t", 1): 0}
    write_offsets(str(directory), "replication-offset-checkpoint", offsets)
    removed = segmentlog.retain(directory, settings={"retention.ms": "0"})

    assert [("t", 0, 0)] == [(each.topic, each.partition, each.base_offset) for each in removed]
    assert offsets == read_offsets(str(directory), "replication-offset-checkpoint")


def test_leader_epochs_are_cut(directory: Path) -> None:
    """The epoch of the log start begins at the log start."""
    path = str(directory / "t-0" / "leader-epoch-checkpoint")
    write_leader_epochs(path, [(0, 0), (2, 1), (4, 2), (5, 8)])
    segmentlog.retain(directory, kafka_defaults=True)

    assert ((4, 3), (5, 8)) == read_leader_epochs(path)


@pytest.mark.parametrize(("limit", "expected"), [(7 * DAY_MS, [10]), (0, [10])])
def test_producers_stay_known(directory: Path, limit: int, expected: list[int]) -> None:
    """Snapshots below the new start are removed after one at the log end has the producers.

    A broker that starts on an empty log ignores that snapshot; our writers do not.
    """
    path = str(directory / "t-0")
    known = ProducerSnapshot(7, 1, 4, 1, 0, 99, -1, -1)
    write_snapshot(snapshot_path(path, 2), [known])
    segmentlog.retain(directory, settings={"retention.ms": str(limit)})

    assert expected == list_snapshots(path)
    for offset in expected:
        assert [known] == read_snapshot(snapshot_path(path, offset))
    assert [2] == names(directory / "t-0", ".snapshot.deleted")
    assert [] == list_snapshots(str(directory / "t-1"))


def test_files_go_when_their_time_has_come(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next retention removes them, or the next job."""
    segmentlog.retain(directory, settings={"file.delete.delay.ms": "600000"}, kafka_defaults=True)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 599)
    segmentlog.retain(directory, settings={**KEEP, "file.delete.delay.ms": "600000"})
    assert [0, 1, 2] == names(directory / "t-0", ".log.deleted")
    monkeypatch.setattr(time, "time", lambda: now + 601)
    segmentlog.retain(directory, settings={**KEEP, "file.delete.delay.ms": "600000"})
    assert [] == names(directory / "t-0", ".deleted")
    monkeypatch.setattr(time, "time", lambda: now)  # a rename has the time of the file system
    segmentlog.retain(directory, settings={"retention.ms": str(4 * DAY_MS)})
    assert [3, 4, 5] == names(directory / "t-0", ".log.deleted")
    monkeypatch.setattr(time, "time", lambda: now + 700)
    write_days(directory, 1)

    assert [] == names(directory / "t-0", ".deleted")


def test_files_that_compaction_has_put_aside_go_too(tmp_path: Path) -> None:
    """The delay is the same, whether or not a segment has expired."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        for value in (b"1", b"2", b"3"):
            writer.append(pa.table({"key": [b"k"], "value": [value]}))
            writer.roll()
        writer.append(pa.table({"key": [b"k"], "value": [b"4"]}))
    segmentlog.compact(tmp_path, settings={"cleanup.policy": "compact"})
    segmentlog.retain(tmp_path, settings=KEEP)
    segmentlog.retain(tmp_path, settings={**KEEP, **AT_ONCE}, dry_run=True)
    assert [0, 1, 2] == names(tmp_path / "t-0", ".log.deleted")

    assert [] == segmentlog.retain(tmp_path, settings={**KEEP, **AT_ONCE})
    assert [] == names(tmp_path / "t-0", ".deleted")
    assert [0, 3] == names(tmp_path / "t-0", ".log")


def test_a_topic_of_a_broker_is_not_guessed_at(directory: Path) -> None:
    """Kafka's defaults could delete records that the broker's cluster keeps."""
    (directory / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    with pytest.raises(OptionError, match="metadata of its cluster is in another log directory"):
        segmentlog.retain(directory)
    with pytest.raises(LogDirectoryError, match="holds no __cluster_metadata-0"):
        segmentlog.retain(directory, metadata=directory)
    assert both(10) == days(directory)
    week = {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)}
    segmentlog.retain(directory, settings=week)

    assert both(7) == days(directory)


def test_brokers_own_topics_stay(directory: Path) -> None:
    """Neither defaults nor settings for all topics apply to committed offsets."""
    shutil.copytree(directory / "t-0", directory / "__consumer_offsets-0")
    old = {"retention.ms": "0", "cleanup.policy": "delete"}
    assert {"t"} == {
        each.topic for each in segmentlog.retain(directory, dry_run=True, kafka_defaults=True)
    }
    assert {"t"} == {each.topic for each in segmentlog.retain(directory, settings=old)}
    named = segmentlog.retain(directory, ["__consumer_offsets"], settings=old, dry_run=True)

    assert 10 == len(named)


def test_places_that_are_refused(directory: Path, tmp_path_factory: Any) -> None:
    """A partition, another directory, a directory in use and wrong settings are refused."""
    other = tmp_path_factory.mktemp("other")
    with pytest.raises(LogDirectoryError, match="name the log directory that holds it"):
        segmentlog.retain(directory / "t-0")
    with pytest.raises(LogDirectoryError, match="holds neither"):
        segmentlog.retain(other)
    assert [] == list(other.iterdir())
    with as_broker(directory), pytest.raises(LogLockedError):
        segmentlog.retain(directory)
    with pytest.raises(OptionError, match=re.escape("did you mean 'retention.ms'")):
        segmentlog.retain(directory, settings={"retention.mss": "1"})

    assert both(10) == days(directory)


def test_a_damaged_log_is_not_cleaned_into_silence(directory: Path) -> None:
    """The error names the batch, nothing of its log is removed, and the other logs are treated."""
    path = directory / "t-0" / f"{9:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:] + data)
    (directory / ".kafka_cleanshutdown").unlink()
    write_offsets(
        str(directory),
        "recovery-point-offset-checkpoint",
        {TopicPartition("t", 0): 10, TopicPartition("t", 1): 10},
    )
    with pytest.raises((LogDirectoryError, CorruptLogError), match="t-0"):
        segmentlog.retain(directory, kafka_defaults=True)

    assert [*range(10)] == names(directory / "t-0", ".log")
    assert [*range(3, 10)] == names(directory / "t-1", ".log")


@cut_loop
def test_every_cut_moves_all_starts_or_none(tmp_path: Path, every: int) -> None:
    """The process dies before each call.

    Readers, the next writer and a second retention follow.
    """
    outcomes = []
    for number in range(0, 200, every):
        directory = tmp_path / str(number)
        write_days(directory, 10)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                segmentlog.retain(directory, kafka_defaults=True)
            except Crash:
                is_cut = True
            else:
                is_cut = False
        found = days(directory)
        assert found in (both(10), both(7)), number
        with DirectoryLock(str(directory)):
            recover_commits(str(directory))
        assert found == days(directory), number
        segmentlog.retain(directory, settings=AT_ONCE, kafka_defaults=True)
        assert both(7) == days(directory), number
        assert [*range(3, 10)] == names(directory / "t-0", ".log"), number
        assert [] == list_guards(str(directory)), number
        outcomes.append(len(found[0]))
        write_days(directory, 1)
        if not is_cut:
            break

    assert {7, 10} == set(outcomes)
    assert sorted(outcomes, reverse=True) == outcomes
    assert not is_cut


@cut_loop
def test_every_call_that_fails_moves_all_starts_or_none(tmp_path: Path, every: int) -> None:
    """The error is reported, and the next retention does the rest."""
    for number in range(0, 200, every):
        directory = tmp_path / str(number)
        write_days(directory, 10)
        with pytest.MonkeyPatch.context() as patch:
            made = fail_at(patch, number, errno.EIO, is_final=False)
            with contextlib.suppress(SegmentLogError, OSError):
                segmentlog.retain(directory, kafka_defaults=True)
        assert days(directory) in (both(10), both(7)), number
        segmentlog.retain(directory, settings=AT_ONCE, kafka_defaults=True)
        assert both(7) == days(directory), number
        assert [*range(3, 10)] == names(directory / "t-1", ".log"), number
        assert [] == list_guards(str(directory)), number
        if len(made) < number:  # all were made
            break

    assert number > 20


def test_readers_find_their_rows_or_fail(directory: Path) -> None:
    """One reader opens the directory before each step; others opened it before the retention."""
    found, held = [], [segmentlog.open_log_dir(directory)]
    scans = [segmentlog.open_log_dir(directory).log("t", 0).scan() for _ in range(2)]
    assert 9 == int(scans[0].read_next_batch()["value"][0].as_py())

    def around(_: str, forward: Forward) -> object:
        seen = days(directory)
        assert seen in (both(10), both(7))
        found.append(len(seen[0]))
        held.append(segmentlog.open_log_dir(directory))
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        segmentlog.retain(directory, settings=AT_ONCE, kafka_defaults=True)

    assert sorted(found, reverse=True) == found
    assert {7, 10} == set(found)
    outcomes = []
    for opened in held:
        try:
            values = opened.log("t", 1).scan().read_all()["value"].to_pylist()
        except LogChangedError as error:
            outcomes.append("changed" if "t-1" in str(error) else str(error))
        else:
            assert [*reversed(range(7))] == [*map(int, values)]
            outcomes.append("new")
    assert {"changed", "new"} == set(outcomes)
    for scan in scans:
        with pytest.raises(LogChangedError):
            scan.read_all()


def test_a_planned_reader_finds_renamed_files(directory: Path) -> None:
    """The reader finds the files for ``file.delete.delay.ms``."""
    log = segmentlog.open_log_dir(directory).log("t", 0)
    slices = log.slices(0, 10)
    segmentlog.retain(directory, kafka_defaults=True)
    from segmentlog.reads.scan import scan_slice

    values = [
        value
        for each in slices
        for batch in scan_slice(each)
        for value in batch["value"].to_pylist()
    ]
    assert [*reversed(range(10))] == [*map(int, values)]


def test_a_second_writer_that_came_in_between_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock was lost. The log starts stay, and so do the other writer's records."""
    real = change.raise_guard

    def stand(*arguments: Any) -> None:
        monkeypatch.setattr(change, "raise_guard", real)
        after = State.read(str(directory)).next("other", 1)
        (directory / "segmentlog.state").write_bytes(after.encode())
        real(*arguments)

    monkeypatch.setattr(change, "raise_guard", stand)
    with pytest.raises(LogLockedError):
        segmentlog.retain(directory, kafka_defaults=True)

    assert both(10) == days(directory)
    assert [] == list_guards(str(directory))


def write_below_the_log_start(directory: Path) -> None:
    """A segment below the log start, as a broker leaves it after `DeleteRecords`."""
    table = pa.table({"value": [b"a", b"b"]})
    config = segmentlog.ProducerConfig(segmentlog.TopicConfig(segment_bytes=100))
    for _ in range(2):
        write(directory, table, topic="t", num_partitions=1, config=config)
    write_offsets(str(directory), "log-start-offset-checkpoint", {TopicPartition("t", 0): 2})


def test_segments_below_the_log_start_go(tmp_path: Path) -> None:
    """They are removed although no limit is exceeded."""
    write_below_the_log_start(tmp_path)
    removed = segmentlog.retain(tmp_path, settings=KEEP)

    assert [(0, 2, Reason.START, "")] == [
        (each.base_offset, each.end_offset, each.reason, each.limit) for each in removed
    ]
    assert [2] == names(tmp_path / "t-0", ".log")


def test_a_brokers_static_settings_that_cannot_be_seen_remove_nothing(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """``server.properties`` alone has the setting of a broker that keeps all records."""
    (directory / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    properties = tmp_path_factory.mktemp("etc") / "server.properties"
    properties.write_text("log.retention.ms=-1\n")
    policy = {"cleanup.policy": "delete"}
    for dry_run in (False, True):
        with pytest.raises(OptionError, match=r"--server-properties.*--kafka-defaults") as raised:
            segmentlog.retain(directory, settings=policy, dry_run=dry_run)
    assert "'retention.ms'" in str(raised.value)
    assert [] == segmentlog.retain(directory, settings=policy, server_properties=properties)
    with pytest.raises(OptionError, match="metadata of its cluster"):
        segmentlog.retain(directory, kafka_defaults=True)
    assert both(10) == days(directory)

    properties.write_text("num.io.threads=8\n")  # the file shows that the default holds
    segmentlog.retain(directory, settings=policy, server_properties=properties)
    assert both(7) == days(directory)


def test_a_cleanup_policy_that_cannot_be_seen_removes_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``log.cleanup.policy=compact`` of ``server.properties`` keeps the newest value of a key."""
    from segmentlog.cluster import directory_settings
    from segmentlog.cluster.directory_settings import ClusterSettings

    (directory / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    cluster = ClusterSettings({"t": {"retention.ms": "0"}})
    monkeypatch.setattr(directory_settings, "metadata_path", lambda _: "somewhere")
    monkeypatch.setattr(directory_settings, "read_cluster_settings", lambda _: cluster)
    with pytest.raises(OptionError, match=r"'cleanup\.policy'.*topic 't'"):
        segmentlog.retain(directory)
    assert both(10) == days(directory)

    segmentlog.retain(directory, kafka_defaults=True)
    assert both(0) == days(directory)


def test_a_restored_backup_without_settings_keeps_its_records(tmp_path: Path) -> None:
    """Kafka's default of a week would remove all records of a backup that is a year old."""
    write_days(tmp_path / "was")
    (tmp_path / "restored").mkdir()
    for name in ("t-0", "t-1"):
        shutil.copytree(tmp_path / "was" / name, tmp_path / "restored" / name)
    with pytest.raises(OptionError, match=r"'retention\.ms'.*6 segments.*--kafka-defaults"):
        segmentlog.retain(tmp_path / "restored")
    assert both(10) == days(tmp_path / "restored")

    segmentlog.retain(tmp_path / "restored", kafka_defaults=True)
    assert both(7) == days(tmp_path / "restored")


def test_each_removal_names_the_source_of_its_limit(directory: Path) -> None:
    """A limit comes from the call, from the directory, or from Kafka's defaults."""
    (of_kafka, *_) = segmentlog.retain(directory, kafka_defaults=True, dry_run=True)
    segmentlog.alter_settings(directory, "t", {"retention.ms": str(5 * DAY_MS)})
    (of_topic, *_) = segmentlog.retain(directory, dry_run=True)
    (of_call, *_) = segmentlog.retain(directory, settings={"retention.ms": "0"}, dry_run=True)

    sources = [each.source for each in (of_kafka, of_topic, of_call)]
    assert ["Kafka's default", "segmentlog.settings", "call"] == sources


def test_segments_below_the_log_start_need_no_setting(tmp_path: Path) -> None:
    """The log start was moved explicitly."""
    write_below_the_log_start(tmp_path)
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")

    removed = segmentlog.retain(tmp_path, settings={"cleanup.policy": "compact"})
    assert [Reason.START] == [each.reason for each in removed]


def test_settings_of_the_call_leave_other_topics_files(directory: Path) -> None:
    """One topic has ``file.delete.delay.ms=0``.

    A reader of the other topic still needs its files.
    """
    write_days(directory, topic="u")
    segmentlog.retain(directory, kafka_defaults=True)
    segmentlog.retain(directory, ["u"], settings={**KEEP, **AT_ONCE})

    assert [] == names(directory / "u-0", ".log.deleted")
    assert [0, 1, 2] == names(directory / "t-0", ".log.deleted")


def test_the_delay_of_a_file_begins_when_it_is_renamed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier removal from the log does not shorten the delay of a later one."""
    segmentlog.retain(directory, kafka_defaults=True)
    aside = directory / "t-0" / f"{1:020d}.log.deleted"
    for path in (directory / "t-0").glob("*.deleted"):
        if path != aside:
            path.unlink()
    now = time.time()
    os.utime(aside)  # a rename sets this time
    monkeypatch.setattr(time, "time", lambda: now + 59)
    write_days(directory, 1)
    assert aside.exists()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    write_days(directory, 1)

    assert not aside.exists()


def test_an_error_after_the_starts_have_moved_is_a_warning(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The records are gone for readers, so the command has succeeded."""
    real = os.unlink

    def refused(path: str, **how: Any) -> None:
        if str(path).endswith(".deleted"):
            raise OSError(errno.EPERM, "Operation not permitted", str(path))
        real(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refused)
        removed = segmentlog.retain(directory, settings=AT_ONCE, kafka_defaults=True)
        done = segmentlog.delete_records(directory, "t", 0, offset=5, settings=AT_ONCE)
    assert (6, 2) == (len(removed), done.segments)
    assert "is not removed: [Errno 1]" in caplog.text
    assert [] == list_guards(str(directory))
    assert (5, 3) == tuple(
        segmentlog.open_log_dir(directory).log("t", each).log_start_offset for each in (0, 1)
    )
    segmentlog.retain(directory, settings={**KEEP, **AT_ONCE})

    assert [] == [*directory.rglob("*.deleted")]


def test_settings_are_read_under_the_lock(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process changes them while the command waits for the lock."""
    segmentlog.alter_settings(directory, "t", {"retention.ms": "1"})
    real = DirectoryLock.__enter__

    def waited(lock: DirectoryLock) -> DirectoryLock:
        entered = real(lock)
        SettingsFile({}, {"t": KEEP}).write(str(directory))
        return entered

    monkeypatch.setattr(DirectoryLock, "__enter__", waited)
    assert [] == segmentlog.retain(directory)

    assert both(10) == days(directory)


FULL_DISK = """
import errno, os, sys
os.system("mount -t tmpfs -o size=1M tmpfs /mnt")
import pyarrow as pa, segmentlog

path, act = "/mnt/logs", sys.argv[1]
segment_bytes = 1_000_000 if act.startswith("only") else 5000
small = segmentlog.TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=0)
config = segmentlog.ProducerConfig(topic_config=small, batch_size=1)
with segmentlog.open_writer(path, "t", config=config) as writer:
    writer.append(pa.table({"value": [os.urandom(4500) for _ in range(20)]}))
if act == "due":
    segmentlog.retain(path, settings={"retention.bytes": "70000", "retention.ms": "-1"})
if act == "no indexes":  # a broker has left snapshots, and the indexes were lost
    from pathlib import Path
    from segmentlog.log.producer_snapshot import snapshot_path, write_snapshot
    for each in Path(path, "t-0").glob("*index"):
        each.unlink()
    for offset in range(1, 21):
        write_snapshot(snapshot_path(f"{path}/t-0", offset), [])
with open("/mnt/filler", "ab", buffering=0) as file:
    try:
        while file.write(b"x" * 512):
            pass
    except OSError as error:
        assert error.errno == errno.ENOSPC
try:
    open("/mnt/one", "wb", buffering=0).write(b"x")
    print("not full")
except OSError:
    os.unlink("/mnt/one")
if act in ("retain", "due", "no indexes"):
    delay = {"file.delete.delay.ms": "0"} if act == "due" else {}
    limits = {"retention.ms": "-1", "retention.bytes": "20000"}
    segmentlog.retain(path, settings={**limits, **delay})
elif act == "only retain":
    segmentlog.retain(path, settings={"retention.ms": "0", "cleanup.policy": "delete"})
elif act == "delete-records":
    segmentlog.delete_records(path, "t", 0, offset=15)
else:
    segmentlog.delete_topic(path, "t")
opened = segmentlog.open_log_dir(path)
print(opened.log("t", 0).log_start_offset if "t" in opened.topics() else "gone")
print(len(opened.unfinished_commits))
"""


@pytest.mark.linux
@pytest.mark.parametrize(
    ("act", "expected"),
    [
        ("retain", "15"),
        ("due", "15"),
        ("no indexes", "15"),
        ("delete-records", "15"),
        ("delete-topic", "gone"),
        ("only retain", "20"),
        ("only delete-topic", "gone"),
    ],
)
def test_a_full_disk_does_not_keep_out_a_command_that_frees_space(act: str, expected: str) -> None:
    """Removing due files, or indexes of expired segments, frees the bytes for guard and state."""
    assert f"{expected}\n0\n" == in_namespace(FULL_DISK, act)


FULL_DISK_AFTER_A_CRASH = """
import errno, os, sys
os.system("mount -t tmpfs -o size=2M tmpfs /mnt")
import pyarrow as pa, segmentlog
from pathlib import Path
from segmentlog.txn import guard

path, kind, act = Path("/mnt/logs"), *sys.argv[1:]
small = segmentlog.TopicConfig(segment_bytes=5000, index_interval_bytes=0)
config = segmentlog.ProducerConfig(topic_config=small, batch_size=1)

def write(topic, n_rows):
    with segmentlog.open_writer(path, topic, config=config) as writer:
        writer.append(pa.table({"value": [os.urandom(4500) for _ in range(n_rows)]}))

def fill():
    with open("/mnt/filler", "ab", buffering=0) as file:
        try:
            while file.write(b"x" * 512):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC

write("t", 20)
write("other", 20)
finish = guard.finish
if kind == "decided":  # the disk is filled between the decision and what follows from it
    def filled(*arguments):
        fill()
        finish(*arguments)

    from segmentlog.txn import change
    change.finish = filled
    write("other", 2)
    change.finish = finish
    assert segmentlog.open_log_dir(path).unfinished_commits
    fill()  # the files of the job are gone
else:  # killed in the middle of a write: indexes are missing, and the tail is torn
    for index in [*path.glob("*-0/*.index"), *path.glob("*-0/*.timeindex")]:
        if int(index.name[:20]) >= 15:
            index.unlink()
    with (path / "t-0" / f"{19:020d}.log").open("ab") as file:
        file.write(b"torn")
    (path / "recovery-point-offset-checkpoint").unlink()
    fill()
try:
    segmentlog.recover(path)
except segmentlog.errors.StorageError as error:
    print(error.errno == errno.ENOSPC)
print([each.name for each in path.rglob("*.tmp")])
if act == "retain":
    limits = {"retention.ms": "-1", "retention.bytes": "20000"}
    segmentlog.retain(path, settings=limits, purge=True)
elif act == "delete-records":
    segmentlog.delete_records(path, "t", 0, offset=15, purge=True)
else:
    segmentlog.delete_topic(path, "t")
opened = segmentlog.open_log_dir(path)
print(opened.log("t", 0).log_start_offset if "t" in opened.topics() else "gone")
print(len(opened.unfinished_commits))
segmentlog.recover(path)
print(opened.log("other", 0).log_end_offset, {each.kind for each in segmentlog.verify(path)})
"""


@pytest.mark.linux
@pytest.mark.parametrize("kind", ["decided", "torn"])
@pytest.mark.parametrize(
    ("act", "expected"), [("retain", "15"), ("delete-records", "15"), ("delete-topic", "gone")]
)
def test_a_disk_that_was_full_at_a_crash_can_be_emptied(
    kind: str, act: str, expected: str
) -> None:
    """An append that cannot be finished, and a log that cannot be recovered, are not in the way.

    The recovery on the full disk is one error, and leaves no temporary file.
    """
    end = 22 if kind == "decided" else 20
    assert f"True\n[]\n{expected}\n0\n{end} set()\n" == in_namespace(
        FULL_DISK_AFTER_A_CRASH, kind, act
    )


def test_a_full_disk_is_emptied_before_checkpoints_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the guard of the retention would stay, and keep out commands that free space."""
    write_days(tmp_path)
    real = write_offsets

    def full(directory: str, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        left = [*tmp_path.glob("t-*/*.log"), *tmp_path.glob("t-*/*.log.deleted")]
        if len(left) > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        real(directory, name, offsets)

    monkeypatch.setattr(effects, "write_offsets", full)
    limit = {"cleanup.policy": "delete", "retention.ms": str(int(3.5 * DAY_MS))}
    segmentlog.retain(tmp_path, settings=limit)

    assert both(4) == days(tmp_path)
    assert not list_guards(str(tmp_path))
    assert "removed at once" in caplog.text


def write_segments(directory: Path, *segments: list[tuple[int, int]]) -> None:
    """A segment for each list of offsets and times; each pair is a record of one batch."""
    (directory / "t-0").mkdir()
    for records in segments:
        data = encode_batch([Record(offset, time_ms, b"k", b"v") for offset, time_ms in records])
        (directory / "t-0" / f"{records[0][0]:020d}.log").write_bytes(data)


def why_kept(directory: Path, **settings: str) -> KeptSegment | None:
    """The segment that holds back retention in the one partition of a directory."""
    found: list[KeptSegment] = []
    given = {name.replace("_", "."): value for name, value in settings.items()}
    segmentlog.retain(directory, settings=given, dry_run=True, on_kept=found.append)
    return found[0] if found else None


def test_the_record_that_holds_back_retention_is_named(tmp_path: Path) -> None:
    """Its offset is that of the record, not of its batch; later segments that wait are counted."""
    now_ms = int(time.time() * 1000)
    old = now_ms - 10 * DAY_MS
    ahead = now_ms + 5 * DAY_MS
    write_segments(
        tmp_path, [(0, old), (1, old)], [(2, old), (3, ahead), (4, old)], [(5, old)], [(6, now_ms)]
    )
    kept = why_kept(tmp_path, cleanup_policy="delete", retention_ms=str(DAY_MS))

    assert kept is not None
    assert (2, 5, Hold.LIMITS) == (kept.base_offset, kept.end_offset, kept.hold)
    assert (ahead, 3, ahead + DAY_MS) == (kept.newest_ms, kept.newest_offset, kept.until_ms)
    assert 1 == kept.n_waiting
    assert kept.n_bytes_waiting == (tmp_path / "t-0" / f"{5:020d}.log").stat().st_size


def test_a_limit_beyond_all_dates_keeps_for_ever(tmp_path: Path) -> None:
    """The largest number of milliseconds, which many topics have, is no time to name."""
    write_segments(tmp_path, [(0, 10**12)], [(1, 10**12)])
    kept = why_kept(tmp_path, cleanup_policy="delete", retention_ms=str(2**63 - 1))

    assert kept is not None
    assert kept.until_ms is None
    assert kept.reason.endswith("keeps it for ever")


@pytest.mark.parametrize(
    ("local", "n_local"),
    [
        ({"local_retention_ms": "60000"}, 2),
        ({"local_retention_ms": "-1"}, 0),
        ({"local_retention_ms": "-1", "local_retention_bytes": "120"}, 1),
        ({"local_retention_bytes": "0"}, 2),
        ({"remote_storage_enable": "false", "local_retention_ms": "60000"}, 0),
        ({}, 0),
    ],
)
def test_what_a_broker_with_a_tier_takes_out_of_its_disk_is_named(
    tmp_path: Path, local: dict[str, str], n_local: int
) -> None:
    """Its limits are those of the disk, or else those of the log; nothing is removed here."""
    now_ms = int(time.time() * 1000)
    old = now_ms - 10 * DAY_MS
    write_segments(tmp_path, [(0, old), (1, old)], [(2, old), (3, old)], [(4, old)])
    tiered = {"remote_storage_enable": "true", "retention_ms": "-1"} | local
    kept = why_kept(tmp_path, **tiered)

    assert kept is not None
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("t-0/*.log"))]
    assert (n_local, sum(sizes[:n_local])) == (kept.n_local, kept.n_bytes_local)
    is_tiered = tiered["remote_storage_enable"] == "true"
    assert is_tiered == (f"removes {n_local} segments" in kept.reason)
    with pytest.raises(OptionError, match="only a broker"):
        segmentlog.alter_settings(tmp_path, "t", {"local.retention.ms": "1"})


@pytest.mark.parametrize(
    ("settings", "hold", "words"),
    [
        (
            {"cleanup_policy": "compact"},
            Hold.POLICY,
            "cleanup.policy=compact (call) has no delete",
        ),
        ({"retention_ms": "-1"}, Hold.NO_LIMIT, "retention.ms=-1 (call) and retention.bytes=-1 "),
        ({"retention_bytes": "99"}, Hold.LIMITS, "the log would have 70 bytes, and retention.byt"),
    ],
)
def test_the_setting_that_holds_back_retention_is_named(
    tmp_path: Path, settings: dict[str, str], hold: Hold, words: str
) -> None:
    """Each rule that may keep the oldest segment has its words."""
    write_segments(tmp_path, [(0, 1000)], [(1, int(time.time() * 1000))])
    kept = why_kept(tmp_path, **{"retention_ms": "-1", **settings})

    assert kept is not None
    assert hold is kept.hold
    assert words in kept.reason


def test_a_high_watermark_and_an_empty_segment_hold_back_retention(tmp_path: Path) -> None:
    """Records that are not replicated stay, and so does the empty active segment."""
    write_segments(tmp_path, [(0, 1000)], [(1, 1000)])
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    beyond = why_kept(tmp_path, retention_ms="1")
    (tmp_path / "t-0" / f"{1:020d}.log").write_bytes(b"")
    empty = why_kept(tmp_path, retention_ms="1")

    assert (Hold.HIGH_WATERMARK, 1) == (beyond and beyond.hold, beyond and beyond.base_offset)
    assert (Hold.EMPTY, 1) == (empty and empty.hold, empty and empty.base_offset)


def test_records_without_times_are_as_old_as_their_file(tmp_path: Path) -> None:
    """The explanation names the time of the file."""
    write_segments(tmp_path, [(0, -1)], [(1, -1)])
    kept = why_kept(tmp_path, retention_ms=str(DAY_MS))

    assert kept is not None
    assert -1 == kept.newest_offset
    assert kept.reason.startswith("its records have no timestamps, and its file was last written")


def test_a_damaged_record_hides_no_explanation(tmp_path: Path) -> None:
    """Retention looks at headers alone; the offset is then that of the batch."""
    write_segments(tmp_path, [(0, 1000), (1, int(time.time() * 1000))], [(2, 1000)])
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[61] = 0xFF
    data[17:21] = crc32c.crc32c(bytes(data[21:])).to_bytes(4, "big")
    path.write_bytes(data)
    kept = why_kept(tmp_path, retention_ms=str(DAY_MS))

    assert kept is not None
    assert 0 == kept.newest_offset
