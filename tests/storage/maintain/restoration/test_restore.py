"""The check before a restoration, and its result, on directories without a broker."""

import base64
import contextlib
import re
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broker_copies import IDS, T0, broker
from coordinator_logs import Coordinator, commit_key, commit_value
from crashing import Crash, crash_at
from other_cluster import format_brokers, image_here, restore_to
from preserved_rows import make, rows
from producer_batches import batch, plant
from soundness import assert_settled

import segmentlog
from segmentlog import (
    GroupOffset,
    LogDirectoryError,
    LogLockedError,
    OptionError,
    Restoration,
    StorageError,
)
from segmentlog.cluster import placement
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.errors import CorruptLogError
from segmentlog.maintain.restoration import plan
from segmentlog.maintain.restoration import restore as module
from segmentlog.maintain.restoration.plan import RestoredRecords
from segmentlog.reads.cluster_image import Image
from segmentlog.store.durable import OutputFile
from segmentlog.store.lock import DirectoryLock
from segmentlog.testing.damage import flip_bit
from segmentlog.testing.reference import Record, encode_batch

KEPT = {"retention.ms": "-1"}

Restore = Callable[..., Restoration]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The log directory of broker 1 of another cluster, with an empty partition."""
    return broker(tmp_path / "target", 1, [(0, "")], cluster="c2", topic_id=IDS[1])


@pytest.fixture
def restore(target: Path, monkeypatch: pytest.MonkeyPatch) -> Restore:
    """Restore into `target`, whose metadata has the given replicas of each partition."""

    def call(
        *sources: Path,
        replicas: Any = ([1],),
        config: Any = None,
        own: Any = None,
        directories: Any = None,
        **options: Any,
    ) -> Any:
        image, topic_id = Image(), uuid.UUID(bytes=base64.urlsafe_b64decode(IDS[1] + "=="))
        for i, each in enumerate(replicas):
            row = {
                "topic": "t",
                "topic_id": topic_id,
                "partition": i,
                "replicas": each,
                "directories": directories,
                "leader_epoch": 3,
            }
            image.tables["partitions"][topic_id, i] = row
        for name, value in (own or {}).items():
            image.tables["configs"][2, "t", name] = {"value": value}
        monkeypatch.setattr(placement, "ClusterMetadata", lambda _: image_here(image))
        monkeypatch.setattr(
            DirectorySettings, "read", lambda *_, **__: DirectorySettings(config or {})
        )
        return segmentlog.restore(*sources, **({"to": target} | options))

    return call


def files(directory: Path) -> dict[str, bytes]:
    """Names and bytes of the files of the partition."""
    return {each.name: each.read_bytes() for each in (directory / "t-0").iterdir()}


def recent(directory: Path) -> Path:
    """A lost directory whose records are of today, at offsets 40 to 59."""
    now = time.time_ns() // 1000
    times = pa.array([now + i for i in range(20)], pa.timestamp("us", "UTC"))
    table = rows(40, 20, headers=(44, [(b"h\xff", b"v")]))
    return make(directory, table.set_column(3, "timestamp", times))


def test_records_keep_their_offsets_times_and_headers(
    restore: Restore, target: Path, tmp_path: Path
) -> None:
    """The topic id is that of the target; names of headers keep bytes that are not UTF-8."""
    source = recent(tmp_path / "lost")
    (found,) = restore(source).partitions
    assert (20, 40, 60) == (found.n_records, found.log_start_offset, found.log_end_offset)
    (compared,) = segmentlog.compare(source, target)
    assert "equal" == compared.comparison
    assert IDS[1] == found.topic_id == segmentlog.open_log_dir(target).log(*T0).topic_id


def test_times_are_restored_that_microseconds_cannot_hold(
    restore: Restore, target: Path, tmp_path: Path
) -> None:
    """A producer has written nanoseconds as milliseconds."""
    source = tmp_path / "lost"
    plant(source, encode_batch([Record(0, time.time_ns(), b"k", b"v")]))
    restore(source)
    (compared,) = segmentlog.compare(source, target)
    assert "equal" == compared.comparison


def test_the_phases_of_a_restoration_are_named(restore: Restore, tmp_path: Path) -> None:
    """Each log is copied, and all become visible at once."""
    phases: list[str] = []
    restore(recent(tmp_path / "lost"), on_phase=phases.append)
    assert ["t-0: copies", "the logs become visible"] == phases


def test_damaged_batches_are_left_out_on_request(
    restore: Restore, target: Path, tmp_path: Path
) -> None:
    """All other records keep their offsets, and without the request nothing is restored."""
    now = time.time_ns() // 1000
    times = pa.array([now + i for i in range(20)], pa.timestamp("us", "UTC"))
    table = rows(40, 20).set_column(3, "timestamp", times)
    source = make(tmp_path / "lost", table, batch_size=1)
    log = source / "t-0" / f"{40:020d}.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    before = segmentlog.read(source, "t", on_corrupt_batch="skip")["offset"].to_pylist()
    assert 0 < 20 - len(before) < 5
    with pytest.raises(CorruptLogError):
        restore(source)
    assert 0 == segmentlog.open_log_dir(target).log(*T0).log_end_offset

    restore(source, on_corrupt_batch="skip")
    assert before == segmentlog.read(target, "t")["offset"].to_pylist()


@pytest.mark.parametrize("on_corrupt_batch", ["fail", "skip"])
def test_damaged_commits_of_groups_end_no_restoration(
    restore: Restore,
    target: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    on_corrupt_batch: str,
) -> None:
    """A warning names what is not known; on request, sound batches are used."""
    source = recent(tmp_path / "lost")
    for number, group in enumerate(("whole", "damaged")):
        log = Coordinator().add((commit_key(group, partition=1), commit_value(1)))
        log.add((commit_key(group), commit_value(50))).write(source, number)
    damage = source / "__consumer_offsets-1" / f"{0:020d}.log"
    flip_bit(batch=0, field="body")(damage)
    found = restore(source, on_corrupt_batch=on_corrupt_batch)

    skips = on_corrupt_batch == "skip"
    groups = ["damaged", "whole"] if skips else ["whole"]
    assert [GroupOffset(each, "t", 0, 50) for each in groups] == [*found.offsets]
    assert ("__consumer_offsets-1",) == found.unread_groups
    assert 20 == found.partitions[0].n_records
    (told,) = [each for each in caplog.messages if "not read whole" in each]
    assert str(damage) in told
    assert ("--on-corrupt-batch skip" in told) is not skips


def test_a_part_between_two_times(
    restore: Restore, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that stood before it stand at its first record, and those after it at its end."""
    source = make(tmp_path / "lost", rows(40, 20))  # a record each second
    ranges = [GroupOffset("g", "t", 0, each) for each in (41, 47, 59)]
    monkeypatch.setattr(module, "_group_offsets", lambda *_: tuple(ranges))
    found = restore(source, since=45_000, until=50_000, config={"retention.ms": "-1"})
    log = segmentlog.open_log_dir(target).log(*T0)
    assert [*range(45, 50)] == log.scan().read_all()["offset"].to_pylist()
    assert [45, 47, 50] == [each.offset for each in found.offsets]
    assert 5 == found.partitions[0].n_records


def test_a_dry_run_changes_nothing(restore: Restore, target: Path, tmp_path: Path) -> None:
    """It returns the plan."""
    (found,) = restore(recent(tmp_path / "lost"), dry_run=True).partitions
    assert ((), 0) == (found.problems, found.n_records)
    assert 0 == segmentlog.open_log_dir(target).log(*T0).log_end_offset


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": ()}, "does not exist at the target; make it with 1"),
        ({"replicas": ([1], [1])}, "has 2 partitions at the target"),
        (
            {"replicas": ([2],)},
            "assigns it to brokers 2, and the targets are directories of brokers 1",
        ),
        ({"replicas": ([1, 2],)}, "add the log directory of broker 2"),
        ({"config": {"retention.bytes": "100"}}, "would delete its first segments"),
        ({"config": {"retention.ms": "0"}}, r"all records are older.*retention.ms=-1"),
        ({"own": {"remote.storage.enable": "true"}}, "would move the restored segments"),
    ],
)
def test_a_problem_of_the_target_is_an_error(
    restore: Restore, target: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    """Nothing is written, and a dry run shows the same problem."""
    source = recent(tmp_path / "lost")
    with pytest.raises(LogDirectoryError, match=message):
        restore(source, **options)
    (found,) = restore(source, dry_run=True, **options).partitions
    assert 1 == len(found.problems)
    assert 0 == segmentlog.open_log_dir(target).log(*T0).log_end_offset


def test_records_that_the_target_would_not_take_are_a_problem(
    restore: Restore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost cluster took larger records than the target does."""
    monkeypatch.setattr(plan.Preflight, "_most_message_bytes", lambda *_: 5_000_000)
    (found,) = restore(recent(tmp_path / "lost"), dry_run=True).partitions
    (problem,) = found.problems
    assert "set max.message.bytes=5000000 for the topic" in problem


def test_settings_of_the_lost_cluster_come_from_its_metadata(
    example_cluster: str, tmp_path: Path
) -> None:
    """The broker compacted one of the topics."""
    to = str(shutil.copytree(example_cluster, tmp_path / "to"))
    source = segmentlog.open_replicas(example_cluster)
    found = plan.Preflight(
        source,
        placement.TargetCluster([to], [to]),
        server_properties=None,
        records=RestoredRecords(source, (None, None), segmentlog.OpenTransactions.END),
        leaves_out_replicas=False,
        leaves_out_partitions=False,
        counts={},
    )
    assert [True, False] == [found._was_compacted(each) for each in ("again", "orders")]
    assert 1_048_588 == found._most_message_bytes("orders")


def test_one_of_two_disks_of_a_broker_has_the_metadata(
    example_cluster: str, tmp_path: Path
) -> None:
    """Its settings of topics count for the other disk, too."""
    disks = [shutil.copytree(example_cluster, tmp_path / each) for each in ("disk1", "disk2")]
    shutil.rmtree(disks[1] / "__cluster_metadata-0")
    properties = disks[1] / "meta.properties"
    properties.write_text(re.sub("(?m)^directory.id=.*$", "", properties.read_text()))
    to = [str(each) for each in disks]
    source = segmentlog.open_replicas(example_cluster)
    found = plan.Preflight(
        source,
        placement.TargetCluster(to, to),
        server_properties=None,
        records=RestoredRecords(source, (None, None), segmentlog.OpenTransactions.END),
        leaves_out_replicas=False,
        leaves_out_partitions=False,
        counts={},
    )
    known = [found._settings[each].config("again").cleanup_policy for each in to]
    assert [frozenset({"compact"})] * 2 == [frozenset(each) for each in known]


@pytest.mark.parametrize(("policy", "n_problems"), [("delete", 1), ("compact", 0)])
def test_records_that_the_target_would_compact_are_a_problem(
    restore: Restore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, n_problems: int
) -> None:
    """The lost cluster kept all records of a key, or it did not."""
    was = policy == "compact"
    monkeypatch.setattr(plan.Preflight, "_was_compacted", lambda *_: was)
    config = {"cleanup.policy": "compact"}
    (found,) = restore(recent(tmp_path / "lost"), dry_run=True, config=config).partitions
    assert n_problems == len(found.problems)
    assert all("set cleanup.policy=delete" in each for each in found.problems)


def test_segments_that_retention_would_delete_are_a_problem(
    restore: Restore, tmp_path: Path
) -> None:
    """The newest records alone are younger than the retention of the target."""
    source = make(tmp_path / "lost", rows(40, 20))  # of 1970
    with segmentlog.open_writer(source, "t", preserve=True) as writer:
        writer.roll()
        times = pa.array([time.time_ns() // 1000] * 20, pa.timestamp("us", "UTC"))
        writer.append(rows(60, 20).set_column(3, "timestamp", times))
    config = {"retention.ms": "3600000"}
    (found,) = restore(source, dry_run=True, config=config).partitions
    (problem,) = found.problems

    assert "records of its first segments are older" in problem
    assert () == restore(source, dry_run=True, config=config, since="1h").partitions[0].problems


def test_a_partition_with_records_takes_no_others(restore: Restore, tmp_path: Path) -> None:
    """The records of another log have their offsets already."""
    source = recent(tmp_path / "lost")
    restore(source)
    other = make(tmp_path / "other", rows(45, 20))
    with pytest.raises(LogDirectoryError, match="has offsets up to 60, and other records"):
        restore(other, config=KEPT)


def test_a_restoration_that_was_finished_changes_nothing(
    restore: Restore, target: Path, tmp_path: Path
) -> None:
    """A second run finds the records of the first one."""
    source = recent(tmp_path / "lost")
    restore(source)
    before = files(target)
    (found,) = restore(source).partitions
    assert (20, (str(target),)) == (found.n_records, found.restored_before)
    assert before == files(target)


def test_metadata_with_fewer_directories_than_replicas_is_refused(
    restore: Restore, tmp_path: Path
) -> None:
    """A broker refuses such metadata, too (``PartitionRegistration``)."""
    source = recent(tmp_path / "lost")
    with pytest.raises(LogDirectoryError, match="1 directories for the 2 replicas of t-0"):
        restore(source, replicas=([1, 2],), directories=[uuid.UUID(int=1000)])


def test_a_disk_without_room_is_a_problem(
    restore: Restore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes of the logs are compared with the free bytes."""
    source = recent(tmp_path / "lost")
    usage = plan.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(LogDirectoryError, match="has 100 free bytes"):
        restore(source)


def test_a_partition_that_the_sources_lack_is_a_problem(restore: Restore, tmp_path: Path) -> None:
    """The topic would look whole, and its records would be gone."""
    source = tmp_path / "lost"
    with segmentlog.open_writer(source, "t", num_partitions=2):
        pass
    (source / "t-0").rename(tmp_path / "t-0")
    with pytest.raises(LogDirectoryError, match="t-0 is not in the sources"):
        restore(source, replicas=([1], [1]))


def test_a_directory_of_the_largest_partition_does_not_name_all_others(
    restore: Restore, tmp_path: Path
) -> None:
    """Two thousand million names would fill the memory."""
    source = tmp_path / "lost"
    with segmentlog.open_writer(source, "t", num_partitions=1):
        pass
    (source / "t-0").rename(source / f"t-{2**31 - 1}")
    found = restore(source, dry_run=True)
    assert "2147483547 more partitions of t are not in the sources" in found.problems
    assert 101 == len([each for each in found.problems if "not in the sources" in each])


def test_a_running_broker_is_refused_also_in_a_dry_run(
    restore: Restore, target: Path, tmp_path: Path
) -> None:
    """It would not notice the records."""
    source = recent(tmp_path / "lost")
    with DirectoryLock(str(target), 0), pytest.raises(LogLockedError):
        restore(source, dry_run=True, lock_timeout_seconds=0)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__remote_log_metadata"])
def test_topics_of_brokers_are_not_restored(restore: Restore, tmp_path: Path, topic: str) -> None:
    """Their contents belong to the lost cluster."""
    source = recent(tmp_path / "lost")
    with pytest.raises(OptionError, match=topic):
        restore(source, topics=topic)
    shutil.copytree(source / "t-0", source / f"{topic}-0")
    assert ["t"] == [each.topic for each in restore(source, dry_run=True).partitions]


def test_a_target_that_does_not_lie_apart_from_its_sources_is_refused(
    tmp_path: Path, target: Path
) -> None:
    """The restoration would change a source."""
    source = recent(tmp_path / "lost")
    with pytest.raises(LogDirectoryError, match="is a source"):
        segmentlog.restore(source, to=source)
    inside = shutil.copytree(target, source / "t-0" / "inside")
    with pytest.raises(LogDirectoryError, match="lies in the source"):
        segmentlog.restore(source, to=inside)


def test_a_target_without_metadata_is_refused(tmp_path: Path, target: Path) -> None:
    """Nothing shows the ids of its topics."""
    with pytest.raises(LogDirectoryError, match="target_metadata"):
        segmentlog.restore(recent(tmp_path / "lost"), to=target)


@pytest.fixture
def undecided(tmp_path: Path) -> Path:
    """Offsets 0 to 14; the transactions of the producers 7 and 8 are open since offset 1."""
    path = tmp_path / "undecided"
    plant(
        path,
        batch(-1, -1, -1, 1),
        batch(7, 0, 0, 4, base_offset=1, is_transactional=True),
        batch(8, 0, 0, 4, base_offset=5, is_transactional=True),
        batch(-1, -1, -1, 2, base_offset=9),
        batch(7, 0, 4, 4, base_offset=11, is_transactional=True),
    )
    return path


@pytest.mark.parametrize(("treatment", "expected"), [("end", [0, 9, 10]), ("leave-out", [0])])
def test_open_transactions_are_ended_or_left_out(
    restore: Restore, target: Path, undecided: Path, treatment: str, expected: list[int]
) -> None:
    """The records between them stay if they are ended."""
    with pytest.raises(LogDirectoryError, match="a transaction is open since offset 1, and 14"):
        restore(undecided, config=KEPT)
    (found,) = restore(undecided, config=KEPT, open_transactions=treatment).partitions
    assert (
        expected
        == segmentlog.open_log_dir(target).log(*T0).scan().read_all()["offset"].to_pylist()
    )
    assert ((2, 0) if treatment == "end" else (0, 14)) == (found.n_ended, found.n_left_out)


def test_a_word_that_is_no_treatment_of_open_transactions(
    restore: Restore, tmp_path: Path
) -> None:
    """The error names the three words."""
    with pytest.raises(OptionError, match="'refuse' or 'end' or 'leave-out'"):
        restore(recent(tmp_path / "lost"), open_transactions="commit")


def test_the_offset_map_has_each_record(
    restore: Restore, target: Path, undecided: Path, tmp_path: Path
) -> None:
    """A row is a run of records; the last row is the end of both logs."""
    file = tmp_path / "map.parquet"
    restore(undecided, config=KEPT, open_transactions="end", offset_map=file)
    rows = pq.read_table(file).to_pylist()
    assert [("t", 0, 0, 1, 0), ("t", 0, 9, 2, 9), ("t", 0, 15, 0, 11)] == [
        tuple(each.values()) for each in rows
    ]
    assert 11 == segmentlog.open_log_dir(target).log(*T0).log_end_offset


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (RestoredRecords, "of"),
        (module._Work, "_make_replicas"),
        (OutputFile, "finish"),
        (segmentlog.LogWriter, "flush"),
    ],
    ids=["a read", "a new partition", "the rows of the map", "a commit"],
)
def test_a_restoration_that_fails_leaves_the_earlier_offset_map(
    restore: Restore,
    target: Path,
    undecided: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
) -> None:
    """The rows of the map are on the disk before the records become visible."""
    file = tmp_path / "map.parquet"
    file.write_text("earlier")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(RuntimeError):
        restore(undecided, config=KEPT, open_transactions="end", offset_map=file)
    assert "earlier" == file.read_text()
    assert [file] == [*tmp_path.glob("*map.parquet*")]
    assert 0 == segmentlog.open_log_dir(target).log(*T0).log_end_offset


def test_an_offset_map_that_cannot_get_its_name_is_written_by_the_next_run(
    restore: Restore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The records are restored before, and a warning says so."""
    source, file = recent(tmp_path / "lost"), tmp_path / "map.parquet"

    def fail(*_: object) -> None:
        raise OSError(5, "failed", str(file))

    with monkeypatch.context() as patched:
        patched.setattr(OutputFile, "publish", fail)
        with pytest.raises(StorageError, match="failed"):
            restore(source, offset_map=file)
    assert "the records are restored, without the offset map" in caplog.text
    assert not file.exists()
    (found,) = restore(source, offset_map=file).partitions
    assert found.restored_before
    assert [(40, 20), (60, 0)] == [
        (each["source_offset"], each["n_records"]) for each in pq.read_table(file).to_pylist()
    ]


def test_an_offset_map_that_cannot_be_a_file_is_refused_before_anything_is_changed(
    restore: Restore, target: Path, tmp_path: Path
) -> None:
    """A path of a directory would be an error only after the last record."""
    source, before = recent(tmp_path / "lost"), files(target)
    with pytest.raises(OptionError, match="is a directory"):
        restore(source, offset_map=tmp_path)
    with pytest.raises(OptionError, match="in a directory that exists"):
        restore(source, offset_map=tmp_path / "absent" / "map.parquet")
    assert before == files(target)


@pytest.mark.parametrize("place", ["the check", "the first record", "the commit"])
def test_the_target_is_held_from_the_check_to_the_commit(
    restore: Restore, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Another writer would append records that the check has not seen."""
    source, tries = recent(tmp_path / "lost"), []

    def write(*_: object) -> None:
        tries.append(place)
        with (
            pytest.raises(LogLockedError),
            segmentlog.open_writer(target, "t", lock_timeout_seconds=0) as writer,
        ):
            writer.append(pa.table({"value": ["x"]}))

    owner, name = {
        "the check": (module._Work, "_make_replicas"),
        "the first record": (module, "append_to"),
        "the commit": (module, "_commit"),
    }[place]
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments: (write(), real(*arguments))[1])
    (found,) = restore(source).partitions
    assert (20, [place]) == (found.n_records, tries)
    assert [*range(40, 60)] == (
        segmentlog.open_log_dir(target).log(*T0).scan().read_all()["offset"].to_pylist()
    )
    with DirectoryLock(str(target), 0):
        pass  # it is given up


def test_the_file_for_the_groups(tmp_path: Path) -> None:
    """A name with a comma is quoted, and the command names each group once."""
    offsets = [GroupOffset("a,b", "t", 0, 5), GroupOffset("c", "t", 0, 7)]
    text, command = segmentlog.offsets_csv(offsets)
    assert '"a,b",t,0,5\nc,t,0,7\n' == text
    assert command.endswith("--from-file FILE --group a,b --group c --execute")


def append(directory: Path, topic: str, *values: str, n_partitions: int = 2) -> None:
    """Append values, one after the other to each partition."""
    numbers = [i % n_partitions for i in range(len(values))]
    table = pa.table({"value": [*values], "partition": pa.array(numbers, pa.int32())})
    with segmentlog.open_writer(directory, topic, num_partitions=n_partitions) as writer:
        writer.append(table)


#: Two brokers, of which the second has a replica of each partition 0.
REPLICAS = {"t": [[1, 2], [1]], "u": [[1, 2], [1]]}


@pytest.fixture
def brokers(tmp_path: Path) -> list[Path]:
    directories = [tmp_path / "b1", tmp_path / "b2"]
    format_brokers(*directories)
    return directories


def assert_restored(source: Path, brokers: list[Path], *topics: str) -> None:
    """The brokers have these topics, and no record of another one; replicas are identical."""
    for topic in topics:
        for number, each in enumerate(brokers):
            found = {
                row.partition: row.comparison
                for row in segmentlog.compare(source, each, topics=topic)
            }
            assert found == {0: "equal", 1: "missing" if number else "equal"}
        logs = [(each / f"{topic}-0" / f"{0:020d}.log").read_bytes() for each in brokers]
        assert logs[0] == logs[1]
    files = [each for to in brokers for each in to.glob("*-*/*.log") if each.stat().st_size]
    assert {each.parent.name.rpartition("-")[0] for each in files} == {*topics}


def test_a_restoration_goes_on_where_an_earlier_one_has_ended(
    brokers: list[Path], tmp_path: Path
) -> None:
    """The later records of each log follow, also if retention has removed the first ones since."""
    source, path = tmp_path / "lost", tmp_path / "map.parquet"
    append(source, "t", *"abcdef")
    restore_to(source, brokers, {"t": REPLICAS["t"]})
    append(source, "t", *"ghi")
    planned = restore_to(source, brokers, {"t": REPLICAS["t"]}, dry_run=True)
    found = restore_to(source, brokers, {"t": REPLICAS["t"]}, offset_map=path)
    assert [(3, 3), (3,)] == [each.continued_at for each in planned.partitions]
    assert [2, 1] == [each.n_records for each in found.partitions]
    assert_restored(source, brokers, "t")
    rows = pq.read_table(path).to_pylist()
    assert [5, 0, 4, 0] == [row["n_records"] for row in rows]
    again = restore_to(source, brokers, {"t": REPLICAS["t"]})
    shown = [(each.n_records, len(each.restored_before)) for each in again.partitions]
    assert [(5, 2), (4, 1)] == shown

    before = segmentlog.read(brokers[0], "t")
    segmentlog.delete_records(source, "t", 0, offset=4)
    append(source, "t", *"jk")
    restore_to(source, brokers, {"t": REPLICAS["t"]})
    assert before.num_rows + 2 == segmentlog.read(brokers[0], "t").num_rows


def test_what_is_no_earlier_restoration_of_the_log_is_not_continued(
    brokers: list[Path], tmp_path: Path
) -> None:
    """Other records, no record in common, and earlier ones that could not follow any more."""
    for name, values in (("lost", "abcdef"), ("other", "abcxef")):
        append(tmp_path / name, "t", *values)
    restore_to(tmp_path / "other", brokers, {"t": REPLICAS["t"]})
    with pytest.raises(LogDirectoryError, match=r"t-1: .*has offsets up to 3, and other records"):
        restore_to(tmp_path / "lost", brokers, {"t": REPLICAS["t"]})
    append(tmp_path / "other", "t", *"gh")
    for partition in (0, 1):
        segmentlog.delete_records(tmp_path / "other", "t", partition, offset=3)
    with pytest.raises(LogDirectoryError, match=r"to 3, and no record in common .* begin at 3"):
        restore_to(tmp_path / "other", brokers, {"t": REPLICAS["t"]})

    format_brokers(*(late := [tmp_path / "late1", tmp_path / "late2"]))
    restore_to(tmp_path / "other", late, {"t": REPLICAS["t"]})
    append(tmp_path / "whole", "t", *"abcxefgh")
    with pytest.raises(LogDirectoryError, match="begins at 3, after the first record to restore"):
        restore_to(tmp_path / "whole", late, {"t": REPLICAS["t"]})


@pytest.mark.parametrize("where", ["log", "target"])
def test_a_compaction_or_an_erasure_after_a_restoration_is_named(
    brokers: list[Path], tmp_path: Path, where: str
) -> None:
    """The records that are left keep their offsets, so the logs only differ by their numbers."""
    source = tmp_path / "lost"
    numbers = pa.array([0, 0, 0, 1], pa.int32())
    rows = pa.table({"key": [*"abcd"], "value": [*"abcd"], "partition": numbers})
    with segmentlog.open_writer(source, "t", num_partitions=2) as writer:
        writer.append(rows)
    restore_to(source, brokers, {"t": REPLICAS["t"]})
    for each in [source] if where == "log" else brokers:
        segmentlog.erase(each, "a")
    n_there, n_log = (3, 2) if where == "log" else (2, 3)
    said = (
        rf"other records: of the same offsets, the target has {n_there} records, and the log "
        rf"{n_log}: if the target is an earlier restoration, the {where} was compacted, or "
        r"records were erased there, .* delete the topic at the target and make it again"
    )
    with pytest.raises(LogDirectoryError, match=said):
        restore_to(source, brokers, {"t": REPLICAS["t"]})


@pytest.mark.parametrize("kind", ["damaged", "other records", "a partition is gone"])
def test_one_topic_never_stops_the_others(
    brokers: list[Path], tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named, by a callback or at the end, and the other one is restored, with its map."""
    source, path = tmp_path / "lost", tmp_path / "map.parquet"
    append(source, "u", *"uvwx")
    if kind == "other records":
        append(tmp_path / "other", "t", *"xyz")
        restore_to(tmp_path / "other", brokers, {"t": REPLICAS["t"]})
    append(source, "t", *"abcdef")
    if kind == "damaged":
        append(source, "t", *"gh")
        log = next(source.glob("t-1/*.log"))
        data = bytearray(log.read_bytes())
        data[70] ^= 1
        log.write_bytes(data)
    if kind == "a partition is gone":
        shutil.rmtree(source / "t-1")
    failed: dict[str, Exception] = {}
    found = restore_to(source, brokers, REPLICAS, on_failure=failed.__setitem__, offset_map=path)
    assert (["t"], ["u", "u"]) == ([*failed], [each.topic for each in found.partitions])
    assert {"u"} == {*pq.read_table(path)["topic"].to_pylist()}
    seen = {each.parent.name for each in brokers[0].glob("u-*/*.log") if each.stat().st_size}
    assert {"u-0", "u-1"} == seen
    with pytest.raises(type(failed["t"])) as caught:
        restore_to(source, brokers, REPLICAS)
    assert str(failed["t"]) == str(caught.value)
    assert "u: restored, although other topics have failed" in caplog.text
    if kind == "a partition is gone":
        found = restore_to(source, brokers, REPLICAS, leave_out_partitions=True)
        assert [0, 0, 1] == [each.partition for each in found.partitions]


def test_a_topic_without_room_stops_no_smaller_one(
    brokers: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replicas of all topics count: the disk is that of both brokers."""
    source = tmp_path / "lost"
    append(source, "t", *map(str, range(300)))
    append(source, "u", "a", "b")
    free = 4 * sum(each.stat().st_size for each in source.glob("u-*/*.log"))
    usage = plan.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda _: usage._replace(free=free))
    failed: dict[str, Exception] = {}
    found = restore_to(source, brokers, REPLICAS, on_failure=failed.__setitem__)
    assert (["t"], ["u", "u"]) == ([*failed], [each.topic for each in found.partitions])
    assert f"has {free} free bytes" in str(failed["t"])


def test_no_advice_names_fewer_partitions_than_the_log_had(
    restore: Restore, tmp_path: Path
) -> None:
    """A checkpoint names the last partition; with another number, keys would go elsewhere."""
    source = tmp_path / "lost"
    append(source, "t", *"abc", n_partitions=3)
    shutil.rmtree(source / "t-2")
    found = restore(source, replicas=(), dry_run=True)
    assert "t-2 is not in the sources" in found.problems[0]
    for each in found.partitions:
        assert "make it with 3 (kafka-topics.sh" in each.problems[0]
        assert "--create --topic t --partitions 3;" in each.problems[0]
    with pytest.raises(LogDirectoryError, match="leave_out_partitions"):
        restore(source, replicas=([1],) * 3, config=KEPT)
    found = restore(source, replicas=([1],) * 3, config=KEPT, leave_out_partitions=True)
    assert [1, 1] == [each.n_records for each in found.partitions]


@pytest.mark.parametrize("every", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_a_restoration_that_is_cut_at_any_call_is_repeated(
    brokers: list[Path], tmp_path: Path, every: int
) -> None:
    """One that goes on, of two topics on two brokers; the source grows before the next run."""
    source = tmp_path / "lost"
    append(source, "t", *"abcdef")
    restore_to(source, brokers, {"t": REPLICAS["t"]})
    append(source, "t", *"ghi")
    append(source, "u", *"uvw")
    shutil.copytree(source, tmp_path / "grown")
    append(tmp_path / "grown", "t", *"jk")
    n_cut = 0
    for number in range(0, 10_000, every):
        to = [shutil.copytree(each, tmp_path / f"{number}" / each.name) for each in brokers]
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Crash):
            made = crash_at(patch, number)
            restore_to(source, to, REPLICAS)
        for each in to:  # readers see nothing but beginnings of the logs
            seen = {row.comparison for row in segmentlog.compare(source, each)}
            assert seen <= {"equal", "prefix", "missing", "disjoint"}, number
        restore_to(tmp_path / "grown", to, REPLICAS)
        for partition in (0, 1):
            for topic in "tu":
                for each in to[: 2 - partition]:
                    rows = [
                        segmentlog.open_log_dir(side).log(topic, partition).scan().read_all()
                        for side in (tmp_path / "grown", each)
                    ]
                    assert rows[0]["offset"].equals(rows[1]["offset"]), number
                    assert rows[0]["value"].equals(rows[1]["value"]), number
        for each in to:
            segmentlog.recover(each)
            assert_settled(each)
        shutil.rmtree(tmp_path / f"{number}")
        n_cut += len(made) >= number
        if len(made) < number:
            break
    assert n_cut > 40 // every
