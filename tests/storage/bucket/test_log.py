"""Logs in object stores, written and read through the public functions."""

import itertools
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from faulty_store import FaultyClient, MemoryStore, client_at
from moto_here import Moto

import segmentlog
from segmentlog.bucket import commits, directory_objects, sequence, upkeep
from segmentlog.bucket.checkpoints import encode_checkpoint
from segmentlog.bucket.disk import bucket_disk
from segmentlog.bucket.objects import ObstoreObjects
from segmentlog.bucket.sequence import Sequence, sequence_at
from segmentlog.bucket.upkeep import move_starts, remove_topic
from segmentlog.errors import (
    CommitInDoubtError,
    LogChangedError,
    LogDirectoryError,
    OffsetsOutOfOrderError,
    OptionError,
    SyncFailedError,
    UnknownTopicOrPartitionError,
)
from segmentlog.store.paths import bucket_at


def _rows(values: list[str], **columns: list[object]) -> pa.Table:
    return pa.table({"key": values, "value": values, **columns})


def _write(url: str, values: list[str], topic: str = "orders", **options) -> None:
    with segmentlog.open_writer(url, topic, **options) as writer:
        writer.append(_rows(values))


def _values(url: str, topic: str = "orders") -> list[str]:
    found = segmentlog.read(url, topic).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )
    return [each.decode() for each in found["value"].to_pylist()]


def test_rows_of_several_commits_have_the_next_offsets(url: str) -> None:
    for number in range(40):  # more than one checkpoint
        _write(url, [f"{number}-{i}" for i in range(number % 5 + 1)])
    found = segmentlog.read(url, "orders").sort_by("offset")
    assert found["offset"].to_pylist() == [*range(120)]
    assert [each.decode() for each in found["value"].to_pylist()] == [
        f"{number}-{i}" for number in range(40) for i in range(number % 5 + 1)
    ]
    assert segmentlog.open_log_dir(url).log("orders", 0).end_offset() == 120
    findings = [*segmentlog.verify(url)]
    assert findings == []


def test_a_new_process_finds_the_newest_commit(url: str, monkeypatch) -> None:
    for number in range(40):
        _write(url, [str(number)])
    location = bucket_at(url)
    known = sequence_at(location)
    fresh = type(known)(known.objects, location)
    asked: list[str] = []
    real = ObstoreObjects.get

    def get(self: ObstoreObjects, key: str) -> bytes | None:
        asked.append(key)
        return real(self, key)

    monkeypatch.setattr(ObstoreObjects, "get", get)
    assert fresh.refresh().number == 40
    assert len(asked) <= 3 + 2 * 8  # marker, hint, checkpoint; and the commits after it
    # Without the hint, it takes longer, and nothing else.
    known.objects.delete(["segmentlog/newest.json"])
    found = type(known)(known.objects, location).refresh()
    assert encode_checkpoint(found) == encode_checkpoint(known.refresh())


def test_partitions_and_filters(url: str) -> None:
    values = [f"k{i}" for i in range(1000)]
    _write(url, values, num_partitions=3)
    _write(url, values)
    found = segmentlog.read(url, "orders")
    assert sorted(each.decode() for each in found["value"].to_pylist()) == sorted(2 * values)
    for partition in range(3):
        offsets = found.filter(pc.field("partition") == partition)["offset"].to_pylist()
        assert offsets == [*range(len(offsets))]
    log = segmentlog.open_log_dir(url).log("orders", 1)
    end = log.end_offset()
    offset, partition = pc.field("offset"), pc.field("partition")
    wanted = (partition == 1) & (offset >= end - 10) & (offset < end - 5)
    part = segmentlog.dataset(url, "orders").to_table(filter=wanted)
    assert part["offset"].to_pylist() == [*range(end - 10, end - 5)]


def test_large_batches_and_codecs(url: str) -> None:
    values = [f"{i:0100d}" for i in range(20_000)]
    for codec in (segmentlog.Codec.NONE, segmentlog.Codec.ZSTD, segmentlog.Codec.GZIP):
        _write(url, values, config=segmentlog.ProducerConfig(codec=codec))
    assert _values(url) == 3 * values


def test_a_failed_block_writes_nothing(url: str) -> None:
    _write(url, ["a"])
    writer = segmentlog.open_writer(url, "orders")
    writer.append(_rows(["b"]))
    writer.abort()
    assert _values(url) == ["a"]


def test_numbered_writes_are_done_once(url: str) -> None:
    for version in (0, 0, 1, 1, 0):
        _write(url, [str(version)], txn_app_id="app", txn_version=version)
    assert _values(url) == ["0", "1"]


def test_overwrite_and_preserve(url: str, tmp_path: Path) -> None:
    _write(url, ["a", "b"])
    _write(url, ["c"], overwrite=True)
    assert _values(url) == ["c"]
    log = segmentlog.open_log_dir(url).log("orders", 0)
    assert (log.log_start_offset, log.end_offset()) == (2, 3)
    rows = segmentlog.read(url, "orders")
    other = f"bucket+file://{tmp_path}/other"
    with (
        segmentlog.open_writer(other, "orders", preserve=True) as writer,
    ):
        writer.append(rows)
    assert segmentlog.read(other, "orders").equals(rows)
    with (
        pytest.raises(OffsetsOutOfOrderError),
        segmentlog.open_writer(other, "orders", preserve=True) as writer,
    ):
        writer.append(rows)


def test_writers_at_once_lose_nothing(url: str) -> None:
    _write(url, ["begin"])
    threads = [
        threading.Thread(target=lambda i=i: [_write(url, [f"{i}-{j}"]) for j in range(10)])
        for i in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    wanted = ["begin", *(f"{i}-{j}" for i in range(4) for j in range(10))]
    assert sorted(_values(url)) == sorted(wanted)


def test_a_commit_is_three_requests_of_which_two_are_side_by_side(moto: Moto) -> None:
    url = moto.url("requests")
    with segmentlog.open_writer(url, "orders", num_partitions=100) as writer:
        writer.append(_rows([str(i) for i in range(1000)]))
    with segmentlog.open_writer(url, "orders") as writer:
        moto.requests.clear()
        for _ in range(3):
            writer.append(_rows([str(i) for i in range(1000)]))
            writer.flush()
    found = [method for method, _ in moto.requests]
    rounds = [sorted(found[at : at + 2]) + found[at + 2 : at + 3] for at in (0, 3, 6)]
    assert (len(found), rounds) == (9, 3 * [["GET", "PUT", "PUT"]])


def test_a_job_looks_for_commits_that_it_has_not_just_seen(moto: Moto, monkeypatch) -> None:
    url = moto.url("looks")
    _write(url, ["a"])
    monkeypatch.setattr(sequence, "_RECENT_SECONDS", 0.0)
    moto.requests.clear()
    _write(url, ["b"])
    _write(url, ["c"], "other")
    found = [method for method, _ in moto.requests]
    assert found[0] == found[4] == "GET"  # and once more beside the data
    assert (len(found), found.count("PUT")) == (8, 4)


class _Processes:
    """Two processes that share a store; the first one keeps a writer open."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.first, self.second = (client_at(FaultyClient(self.store)).root for _ in range(2))
        self.writer = segmentlog.open_writer(self.first, "orders", num_partitions=2)
        self.flush(["a"])

    def flush(self, values: list[str]) -> list[str]:
        """Write by the first process; the kinds of its requests.

        The look and the data are under way side by side: the look comes first here.
        """
        self.store.requests.clear()
        self.writer.append(_rows(values, partition=pa.array([0] * len(values), pa.int32())))
        self.writer.flush()
        found = [kind for kind, _ in self.store.requests]
        at = found.index("put")
        return [*found[:at], *found[at + 1 : -1], "put", found[-1]]


def test_who_was_slower_reads_what_has_come_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "HOT_SECONDS", 0.0)  # others have not come a moment ago
    found = _Processes()
    assert found.flush(["b"]) == ["list", "put", "create"]
    for value in "cdefg":
        _write(found.second, [value])
    # The look beside the data shows the others' commits, and they are read at once.
    assert found.flush(["h"]) == ["list", *5 * ["get"], "put", "create"]
    assert sorted(_values(found.second)) == list("abcdefgh")
    assert found.flush(["i"]) == ["list", "put", "create"]


def test_who_has_lost_after_minutes_does_not_wait_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of an attempt may have been lost; the writer tries again within seconds."""
    url = f"bucket+file://{tmp_path}/log"
    _write(url, ["a"])
    location = bucket_at(url)
    assert location is not None
    mine = Sequence(sequence_at(location).objects, location)
    number = mine.refresh().number
    _write(url, ["b"])
    waits, clock = list[float](), itertools.count(0.0, 90.0)
    monkeypatch.setattr(sequence.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sequence.time, "sleep", waits.append)
    state = mine.append(upkeep._commit_after)

    assert state.number == number + 2
    assert len(waits) == 1
    assert waits[0] <= 4


def test_rows_are_not_left_out_for_what_was_known_before() -> None:
    """A version counts no more once its topic is gone, and only the newest commit shows that."""
    found = _Processes()
    numbered: dict[str, Any] = {"txn_app_id": "load", "txn_version": 0}
    _write(found.first, ["b"], **numbered)
    segmentlog.delete_topic(found.second, "orders")
    with pytest.raises(LogDirectoryError, match="run the job again"):
        _write(found.first, ["b"], **numbered)
    _write(found.first, ["b"], **numbered)
    assert _values(found.second) == ["b"]


def test_a_topic_that_was_made_again_is_not_written_to_from_memory() -> None:
    found = _Processes()
    segmentlog.delete_topic(found.second, "orders")
    _write(found.second, ["b"], num_partitions=2)
    with pytest.raises(LogDirectoryError, match="run the job again"):
        found.flush(["c"])
    found.flush(["d"])
    assert sorted(_values(found.second)) == ["b", "d"]


def test_a_job_that_began_from_memory_was_ended_by_a_sweep() -> None:
    found = _Processes()
    found.writer.append(_rows(["b"]))
    job, staged = found.writer._job, found.writer._stager.finish()
    assert len(segmentlog.sweep(found.second, longest_job_days=0).retired) == 1
    with pytest.raises(LogDirectoryError, match="has ended"):
        job.commit([staged])
    assert _values(found.second) == ["a"]


def test_one_winner_of_each_key(moto: Moto) -> None:
    objects = sequence_at(bucket_at(moto.url("contention"))).objects
    wins: list[int] = []

    def create(number: int) -> None:
        wins.extend(key for key in range(16) if objects.create(f"{key}", b"%d" % number))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(wins) == [*range(16)]


def test_a_mirror_has_the_same_records(url: str, tmp_path: Path) -> None:
    local = str(tmp_path / "local")
    before = 0
    for number in range(3):
        _write(url, [f"{number}-{i}" for i in range(50)], num_partitions=None if number else 2)
        mirrored = segmentlog.mirror(url, to=local)
        assert sum(each.n_copied for each in mirrored) == (
            sum(each.n_bytes for each in mirrored) - before  # only what is new
        )
        before = sum(each.n_bytes for each in mirrored)
        assert _values(local) == _values(url)
        assert {each.comparison for each in segmentlog.compare(url, local)} == {"equal"}


def test_what_is_not_done_is_refused(url: str) -> None:
    _write(url, ["a"], num_partitions=2)
    with pytest.raises(OptionError, match="has 2 partitions"):
        _write(url, ["a"], num_partitions=3)
    with pytest.raises(OptionError, match="producers"):
        segmentlog.open_writer(url, "orders", producer=segmentlog.Producer(1))
    with segmentlog.open_writer(url, "orders") as writer:
        with pytest.raises(OptionError, match="producers"):
            writer.append_batches(b"", 0)
        writer.abort()
    with pytest.raises(UnknownTopicOrPartitionError):
        _write(url, ["a"], "missing", auto_create_topics=False)
    with pytest.raises(OptionError, match="limit of bytes"):
        _write(url, ["a"], config=segmentlog.ProducerConfig(max_bytes_per_second=1 << 20))
    with pytest.raises(LogDirectoryError, match="at a URL can only be read"):
        segmentlog.recover(url)


def test_other_objects_are_not_covered(tmp_path: Path) -> None:
    (tmp_path / "log/orders-0").mkdir(parents=True)
    (tmp_path / "log/orders-0/00000000000000000000.log").touch()
    with pytest.raises(LogDirectoryError, match="other objects"):
        _write(f"bucket+file://{tmp_path}/log", ["a"])


def test_a_place_without_a_log(url: str, tmp_path: Path) -> None:
    with pytest.raises((LogDirectoryError, segmentlog.StorageError)):
        segmentlog.open_log_dir(url)
    (tmp_path / "plain").mkdir()
    segmentlog.open_writer(f"file://{tmp_path}/plain", "orders").close()  # a log directory
    assert (tmp_path / "plain/orders-0").is_dir()


def test_records_and_topics_are_deleted_and_their_objects_swept(url: str) -> None:
    for number in range(4):
        _write(url, [f"{number}-{i}" for i in range(5)])
    _write(url, ["x"], "other")
    deleted = segmentlog.delete_records(url, "orders", 0, offset=12)
    assert (deleted.old_start, deleted.new_start, deleted.segments) == (0, 12, 2)
    assert _values(url) == [f"{number}-{i}" for number in (2, 3) for i in range(5)][2:]
    assert segmentlog.sweep(url).keys == ()  # readers may still need them
    assert len(segmentlog.sweep(url, longest_read_days=0, dry_run=True).keys) == 2
    assert len(segmentlog.sweep(url, longest_read_days=0).keys) == 2
    assert _values(url) == [f"{number}-{i}" for number in (2, 3) for i in range(5)][2:]
    assert segmentlog.delete_topic(url, "orders").partitions == 1
    assert _values(url, "other") == ["x"]
    with pytest.raises(UnknownTopicOrPartitionError):
        segmentlog.delete_topic(url, "orders")
    _write(url, ["again"])  # another topic of the name, from offset 0
    assert _values(url) == ["again"]
    assert len(segmentlog.sweep(url, longest_read_days=0).keys) == 2
    assert [*segmentlog.verify(url)] == []


def test_a_sweep_ends_jobs_and_takes_their_objects(url: str) -> None:
    _write(url, ["a"])
    writer = segmentlog.open_writer(url, "orders")
    writer.append(_rows(["b"]))
    job, staged = writer._job, writer._stager.finish()
    assert segmentlog.sweep(url).keys == ()  # it may still live
    swept = segmentlog.sweep(url, longest_job_days=0)
    assert (*swept.keys, *swept.retired) == (*staged.files, job.token)
    with pytest.raises(LogDirectoryError, match="has ended"):
        job.commit([staged])
    assert _values(url) == ["a"]
    assert segmentlog.sweep(url, longest_job_days=0).keys == ()


def test_a_sweep_takes_only_what_it_has_made(tmp_path: Path) -> None:
    """A log further below, which older versions allowed, and files of others."""
    outer, others = tmp_path / "outer", tmp_path / "outer/data"
    _write(f"bucket+file://{tmp_path}/inner", ["p"])
    _write(f"bucket+file://{outer}", ["a"])
    shutil.copytree(tmp_path / "inner", others / "payments")
    shutil.copytree(tmp_path / "inner", outer / "segmentlog/clock")
    left_by_job = "abababababababab/0-cdcdcdcd.batches"
    foreign = (
        "reports/2026.csv",
        f"{left_by_job}.bak",
        "abababababababab/notes",
        "abababababababab/cd/0-cdcdcdcd.batches",
        "archive/0-copy.batches",
        left_by_job.upper(),
        left_by_job.replace("0-", "x-"),
    )
    for name in (*foreign, "../segmentlog/clock/now-and-then"):
        (others / name).parent.mkdir(parents=True, exist_ok=True)
        (others / name).write_bytes(b"others'")
    (others / left_by_job).write_bytes(b"of a job that was killed")
    before = {each for each in outer.rglob("*") if each.is_file()}
    swept = segmentlog.sweep(f"bucket+file://{outer}", longest_job_days=0, longest_read_days=0)
    assert swept.keys == (f"data/{left_by_job}",)
    left = {each for each in outer.rglob("*") if each.is_file()}
    assert before - left == {others / left_by_job}
    for inner in (others / "payments", outer / "segmentlog/clock"):
        assert _values(f"bucket+file://{inner}") == ["p"]


def test_a_commit_that_readers_could_not_follow_is_not_made(url: str, monkeypatch) -> None:
    """Once it were there, it would stay, and nobody could read or write the log again."""
    _write(url, ["a"])
    monkeypatch.setattr(commits, "MOST_PARTITIONS", 2)
    with pytest.raises(LogDirectoryError, match="readers could not follow this commit"):
        _write(url, ["b"], "wide", num_partitions=3)
    assert _values(url) == ["a"]
    _write(url, ["c"])
    assert [*segmentlog.verify(url)] == []


@pytest.mark.parametrize("fails", ["bytes", "name"])
def test_a_local_directory_keeps_what_it_has_taken(
    fails: str, tmp_path: Path, monkeypatch
) -> None:
    """Bytes are synced before their name is there, and the name before the commit counts."""
    url, order = f"bucket+file://{tmp_path}/log", []
    real_sync, real_link = directory_objects.sync_file, os.link

    def synced(descriptor: int, path: str) -> None:
        order.append("bytes")
        real_sync(descriptor, path)

    def linked(temporary: str, path: str) -> None:
        order.append("name")
        real_link(temporary, path)

    monkeypatch.setattr(directory_objects, "sync_file", synced)
    monkeypatch.setattr(os, "link", linked)
    _write(url, ["a"])
    assert order[-3:] == ["bytes", "bytes", "name"]  # of the data object, then of the commit
    monkeypatch.undo()

    def refused(*given: object) -> None:
        if "/commits" in str(given[-1]):
            raise SyncFailedError(str(given[-1]), "the disk has gone")

    name = {"bytes": "sync_file", "name": "sync_directory"}[fails]
    monkeypatch.setattr(directory_objects, name, refused)
    expected = {"bytes": SyncFailedError, "name": CommitInDoubtError}[fails]
    with pytest.raises(expected, match="the disk has gone"):
        _write(url, ["b"])
    monkeypatch.undo()
    assert _values(url) == (["a"] if fails == "bytes" else ["a", "b"])
    assert not [*tmp_path.rglob("*#*")]


def test_a_place_inside_another_log_is_refused(url: str) -> None:
    _write(url, ["a"])
    above, question, options = url.partition("?")
    for below in ("below", "data/payments", "x/y/z"):
        with pytest.raises(LogDirectoryError, match="lies in the place of another log"):
            _write(f"{above}/{below}{question}{options}", ["b"])
    _write(f"{above}-beside{question}{options}", ["b"])
    assert _values(url) == ["a"]


def test_a_job_commits_once(url: str) -> None:
    writer = segmentlog.open_writer(url, "orders")
    writer.append(_rows(["b"]))
    job, staged = writer._job, writer._stager.finish()
    job.commit([staged])
    with pytest.raises(LogDirectoryError, match="has ended"):
        job.commit([staged])
    assert _values(url) == ["b"]


def test_a_store_without_conditions_is_refused() -> None:
    store = MemoryStore()
    store.has_conditions = False
    with pytest.raises(LogDirectoryError, match="no conditional writes"):
        _write(client_at(FaultyClient(store)).root, ["a"])
    assert [*store.held] == ["segmentlog.bucket"]


def test_retention_by_time_and_size(url: str) -> None:
    config = segmentlog.ProducerConfig(use_timestamps=True)
    for time_ms in (1_000, 2_000_000_000_000, 2_000_000_000_000):
        with segmentlog.open_writer(url, "orders", config=config) as writer:
            times = pa.array([time_ms], pa.timestamp("ms", "UTC"))
            writer.append(pa.table({"value": ["a" * 100], "timestamp": times}))
    week = {"retention.ms": str(7 * 24 * 3600 * 1000)}
    (planned,) = segmentlog.retain(url, settings=week, dry_run=True)
    assert segmentlog.open_log_dir(url).log("orders", 0).log_start_offset == 0
    kept: list[object] = []
    assert segmentlog.retain(url, settings=week, on_kept=kept.append) == [planned]
    assert (planned.base_offset, planned.end_offset, planned.reason) == (0, 1, "time")
    assert len(kept) == 1
    assert segmentlog.retain(url, settings=week) == []
    (removed,) = segmentlog.retain(url, settings={"retention.bytes": str(planned.n_bytes)})
    assert (removed.base_offset, removed.reason) == (1, "size")
    assert segmentlog.read(url, "orders")["offset"].to_pylist() == [2]
    with segmentlog.open_writer(url, "old", config=config) as writer:
        writer.append(
            pa.table({"value": ["a"], "timestamp": pa.array([1], pa.timestamp("ms", "UTC"))})
        )
    with pytest.raises(OptionError, match="not set"):  # Kafka's default would remove it
        segmentlog.retain(url)


def test_upkeep_never_hits_a_topic_that_was_made_again(url: str) -> None:
    _write(url, ["a"])
    location = bucket_at(url)
    old = segmentlog.open_log_dir(url).log("orders", 0).topic_id
    segmentlog.delete_topic(url, "orders")
    _write(url, ["b"])
    at = segmentlog.TopicPartition("orders", 0)
    with pytest.raises(LogChangedError, match="another was created"):
        move_starts(location, {at: 1}, {at: old})
    with pytest.raises(LogChangedError, match="another was created"):
        remove_topic(location, "orders", old)
    assert _values(url) == ["b"]


def test_a_wrong_path_makes_no_directory(tmp_path: Path) -> None:
    url = f"bucket+file://{tmp_path}/typo/log"
    with pytest.raises(LogDirectoryError, match="no log at this place"):
        segmentlog.open_log_dir(url)
    with pytest.raises(LogDirectoryError, match="no log at this place"):
        segmentlog.sweep(url)
    assert not [*tmp_path.iterdir()]
    _write(url, ["a"])
    assert _values(url) == ["a"]


_LARGE = 60_000  # rows of 100 bytes: some MiB in each partition


def _write_large(url: str, **options: Any) -> None:
    times = pa.array(
        [4_000_000_000_000 + each for each in range(_LARGE)], pa.timestamp("ms", "UTC")
    )
    values = [f"{each:0100d}" for each in range(_LARGE)]
    config = segmentlog.ProducerConfig(
        codec=segmentlog.Codec.NONE, use_timestamps=True, batch_size=16 << 10
    )
    with segmentlog.open_writer(url, "orders", config=config, **options) as writer:
        writer.append(pa.table({"value": values, "timestamp": times}))


def _found(url: str, offset: int) -> tuple[int, bytes, int]:
    """A row by its offset, and the offset that is found by the row's time."""
    log = segmentlog.open_log_dir(url).log("orders", 0)
    (row,) = log.scan(offset, offset + 1).read_all().to_pylist()
    found = log.offset_for_timestamp(row["timestamp"])
    assert found is not None
    return row["offset"], row["value"], found.offset


def test_one_row_of_a_large_extent_takes_few_bytes(tmp_path: Path, monkeypatch) -> None:
    url = f"bucket+file://{tmp_path}/log"
    _write(url, ["a"])  # so that offsets in the object are others
    _write_large(url)
    sizes: list[int] = []
    real = ObstoreObjects.read

    def read(self: ObstoreObjects, key: str, start: int, n_bytes: int) -> bytes:
        sizes.append(n_bytes)
        return real(self, key, start, n_bytes)

    monkeypatch.setattr(ObstoreObjects, "read", read)
    for row in (0, 1, 777, 30_000, _LARGE - 2, _LARGE - 1):
        sizes.clear()
        assert _found(url, row + 1) == (row + 1, f"{row:0100d}".encode(), row + 1)
        assert sum(sizes) < 1_500_000  # of 7 MB, which a scan without an index reads twice
    assert [*segmentlog.verify(url)] == []
    local = tmp_path / "local"
    segmentlog.mirror(url, to=local)
    # The first, small one has none, and a broker makes them.
    assert {Path(each.path).stem for each in segmentlog.verify(local)} == {"0" * 20}
    assert {each.comparison for each in segmentlog.compare(url, local)} == {"equal"}


def test_a_wrong_index_costs_time_only(tmp_path: Path) -> None:
    url = f"bucket+file://{tmp_path}/log"
    _write(url, ["a"])
    _write_large(url)
    location = bucket_at(url)
    assert location is not None
    at = segmentlog.TopicPartition("orders", 0)
    extent = sequence_at(location).refresh().logs[at].placed(at)[-1]
    assert extent.offset_index > 300
    assert extent.time_index > 300
    path = tmp_path / "log" / extent.object
    data, begin = path.read_bytes(), extent.start + extent.size
    sizes = extent.offset_index, extent.time_index
    segment = f"{location.root}/orders-0/{extent.base_offset:020d}.log"
    with bucket_disk(segment).open(segment) as file:
        whole = file.read(0, extent.size)
    entries = np.frombuffer(data[begin : begin + sizes[0]], ">i4").reshape(-1, 2)
    elsewhere = entries + np.array([[0, 8]], ">i4")
    times = data[begin + sizes[0] : extent.end]
    for damaged in (
        elsewhere.astype(">i4").tobytes() + times,
        (entries + 7).astype(">i4").tobytes() + times,
        bytes(sum(sizes)),
        b"\x7f" * sum(sizes),
        b"\xff" * sum(sizes),
        data[begin + 8 : extent.end] + data[begin:][:8],
        b"".join(reversed([data[i : i + 8] for i in range(begin, extent.end, 8)])),
        bytes(each ^ 1 for each in data[begin : extent.end]),
    ):
        path.write_bytes(data[:begin] + damaged + data[extent.end :])
        with bucket_disk(segment).open(segment) as file:  # which has seen nothing before
            for begun in (extent.size - 40_000, extent.size // 2):
                assert file.read(begun, 40_000) == whole[begun : begun + 40_000]
        for row in (5, 30_000, _LARGE - 1):
            log = segmentlog.open_log_dir(url).log("orders", 0)
            (found,) = log.scan(row + 1, row + 2).read_all().to_pylist()
            assert (found["offset"], found["value"]) == (row + 1, f"{row:0100d}".encode())
        offsets = segmentlog.read(url, "orders", columns=["offset", "value"])["offset"]
        assert np.array_equal(offsets.to_numpy(), np.arange(_LARGE + 1))


def test_rows_too_far_apart_for_an_index(tmp_path: Path) -> None:
    url = f"bucket+file://{tmp_path}/log"
    config = segmentlog.ProducerConfig(codec=segmentlog.Codec.NONE, use_offsets=True)
    with segmentlog.open_writer(url, "orders", config=config) as writer:
        for base in (0, 1 << 33):
            values = [f"{each:0200d}" for each in range(8000)]
            offsets = [base + each for each in range(8000)]
            partitions = pa.array([0] * 8000, pa.int32())
            columns = {"value": values, "partition": partitions, "offset": offsets}
            writer.append(pa.table(columns))
    read = segmentlog.read(url, "orders")
    assert read.num_rows == 16_000
    assert read.filter(pc.field("offset") == (1 << 33) + 7999).num_rows == 1
    assert [each.kind for each in segmentlog.verify(url)] == ["offset-gap"]
