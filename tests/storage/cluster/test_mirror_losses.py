"""Mirrors lose nothing: not at a failover, not beside writers and compactions, not at a kill."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from broker_copies import T0
from crashing import Crash, Forward, around_calls, crash_at, cut_loop
from preserved_rows import make, rows

import segmentlog
from segmentlog.cluster import follower
from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from segmentlog.log.checkpoint import read_offsets
from segmentlog.store import fingerprint as look
from segmentlog.txn.change import hold
from segmentlog.txn.state import State

ROLLING = segmentlog.ProducerConfig(segmentlog.TopicConfig(segment_bytes=200))
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def write(directory: Path, *values: str, topic: str = "t", n: int = 1, **how: object) -> None:
    """Append values, each with its first letter as its key."""
    with segmentlog.open_writer(directory, topic, num_partitions=n, **how) as writer:  # type: ignore[arg-type]
        writer.append(pa.table({"key": [each[0] for each in values], "value": [*values]}))


def values(directory: Path, topic: str = "t") -> list[str]:
    """All values of a topic, in their order."""
    return [each.decode() for each in segmentlog.read(directory, topic)["value"].to_pylist()]


def test_records_written_after_a_failover_are_kept_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The source has as many records since, so that only the records show the difference."""
    source, to = tmp_path / "source", tmp_path / "to"
    write(source, "a1")
    segmentlog.mirror(source, to=to)
    write(to, "b2", "b3")
    write(source, "c2", "c3")
    (shown,) = segmentlog.mirror(source, to=to, dry_run=True)
    (found,) = segmentlog.mirror(source, to=to)
    assert (1, 1) == (shown.cut_at, found.cut_at)
    assert ["a1", "c2", "c3"] == values(to)
    (kept,) = map(Path, found.kept)
    assert b"b2" in kept.read_bytes()
    assert b"b3" in kept.read_bytes()
    assert f"were cut off; kept in {kept}" in caplog.text


def test_names_of_headers_are_compared_as_bytes(tmp_path: Path) -> None:
    """A record whose header has another name is not a record of the source."""
    source, to = (
        make(tmp_path / name.hex(), rows(0, 9, headers=(4, [(name, b"v")])))
        for name in (b"h\xff", b"h\xfe")
    )
    (to / "t-0" / "partition.metadata").unlink()  # each has its own topic id
    (found,) = segmentlog.mirror(source, to=to)
    assert 4 == found.cut_at
    (compared,) = segmentlog.compare(source, to)
    assert "equal" == compared.comparison


@cut_loop
def test_a_deletion_that_was_killed_is_mirrored_as_readers_see_it(
    tmp_path: Path, every: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Deleted records do not come back, and are not taken for records of a tier."""
    number, is_done, starts = 0, False, set[int]()
    while not is_done:
        source, to = tmp_path / f"source-{number}", tmp_path / f"to-{number}"
        write(source, *"abcdef")
        segmentlog.delete_records(source, "t", 0, offset=1)
        segmentlog.mirror(source, to=to)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            with contextlib.suppress(Crash):
                segmentlog.delete_records(source, "t", 0, offset=4)
                is_done = True
        segmentlog.mirror(source, to=to)
        start, there = (segmentlog.open_log_dir(each).log(*T0) for each in (source, to))
        assert start.log_start_offset == there.log_start_offset, number
        starts.add(there.log_start_offset)
        number += every
    assert {1, 4} == starts
    assert "only in its tier" not in caplog.text


def test_records_of_a_failover_at_offsets_that_the_source_has_lost_are_kept(
    tmp_path: Path,
) -> None:
    """The source has been compacted: only the last mirror shows that it never had them."""
    source, to = tmp_path / "source", tmp_path / "to"
    write(source, "a1", config=ROLLING)
    segmentlog.mirror(source, to=to)
    write(to, "b2")
    write(source, "c2", config=ROLLING)
    write(source, "c3" * 30, config=ROLLING)
    write(source, "d4" * 30, config=ROLLING)
    segmentlog.compact(source, settings=COMPACT | {"segment.bytes": "200"})
    assert 3 == len(values(source))
    (found,) = segmentlog.mirror(source, to=to)
    assert 1 == found.cut_at
    assert b"b2" in b"".join(Path(each).read_bytes() for each in found.kept)
    assert values(source) == values(to)


def test_a_copy_that_is_replaced_is_as_dirty_as_the_source(tmp_path: Path) -> None:
    """A compaction that took it for clean would drop a tombstone before its key's records."""
    source, to = tmp_path / "source", tmp_path / "to"
    for each in ("a1", "b1", "a2"):
        write(source, each * 60, config=ROLLING)
    segmentlog.mirror(source, to=to)
    segmentlog.compact(to, settings=COMPACT | {"segment.bytes": "200"})
    assert 2 == read_offsets(str(to), CLEANER_OFFSET_CHECKPOINT)[T0]
    write(source, "c1" * 60, config=ROLLING)
    segmentlog.mirror(source, to=to)
    assert T0 not in read_offsets(str(to), CLEANER_OFFSET_CHECKPOINT)
    segmentlog.compact(source, settings=COMPACT | {"segment.bytes": "200"})
    segmentlog.mirror(source, to=to)
    ends = [read_offsets(str(each), CLEANER_OFFSET_CHECKPOINT)[T0] for each in (source, to)]
    assert [3, 3] == ends


def test_indexes_are_those_of_the_copied_bytes_beside_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that finds the mark of a clean stop trusts the indexes for the log end."""
    source, to = tmp_path / "source", tmp_path / "to"
    config = segmentlog.ProducerConfig(segmentlog.TopicConfig(index_interval_bytes=1))
    write(source, "a1", config=config)
    (source / CLEAN_SHUTDOWN_FILE).touch()
    to.mkdir()
    (to / CLEAN_SHUTDOWN_FILE).touch()
    stage = follower.Follower.stage_segments

    def write_before(one: follower.Follower) -> None:
        for i in range(5):
            write(source, f"b{i}", config=config)
        stage(one)

    monkeypatch.setattr(follower.Follower, "stage_segments", write_before)
    (found,) = segmentlog.mirror(source, to=to)
    assert 1 == found.log_end_offset
    assert ["a1"] == values(to)
    assert (to / CLEAN_SHUTDOWN_FILE).exists()
    assert not [*(to / "t-0").glob("*index")]
    monkeypatch.undo()
    segmentlog.mirror(source, to=to)
    assert values(source) == values(to)


def test_bytes_that_another_process_left_are_synced_before_they_count_as_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer without syncs, or a mirror of an earlier version, was killed after it appended."""
    source, to = tmp_path / "source", tmp_path / "to"
    write(source, "a1")
    segmentlog.mirror(source, to=to)
    write(source, "a2")
    log = to / "t-0" / f"{0:020d}.log"
    log.write_bytes((source / "t-0" / log.name).read_bytes())
    calls: list[str] = []

    def note(name: str, forward: Forward) -> object:
        if name == "fsync" and os.fstat(forward.args[0]).st_ino == log.stat().st_ino:
            calls.append("sync")
        if name == "rename" and RECOVERY_POINT_CHECKPOINT in str(forward.args[1]):
            calls.append("point")
        return forward()

    around_calls(monkeypatch, ["fsync", "rename"], note)
    segmentlog.mirror(source, to=to)
    assert ["sync", "point"] == calls
    assert {T0: 2} == read_offsets(str(to), RECOVERY_POINT_CHECKPOINT)


def test_replaced_segments_are_removed_once_they_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next mirror; their disk would fill up otherwise."""
    source, to = tmp_path / "source", tmp_path / "to"
    write(source, "a1", "b1")
    segmentlog.mirror(source, to=to)
    segmentlog.erase(source, "a", purge=True)
    segmentlog.mirror(source, to=to)
    assert [*to.rglob("*.log.deleted")]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    segmentlog.mirror(source, to=to)
    assert not [*to.rglob("*.deleted")]


def test_an_unchanged_partition_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither side; the digest is that of the first run. A changed file is read and found."""
    source, to = tmp_path / "source", tmp_path / "to"
    for i in range(3):
        write(source, f"{i}" * 60, config=ROLLING)
    monkeypatch.setattr(look, "_STEP_NS", 0)  # the files were not written just now
    (first,) = segmentlog.mirror(source, to=to)
    state = (to / "segmentlog.state").read_bytes()
    read: list[Path] = []
    names = {each.stat().st_ino: each for side in (source, to) for each in side.rglob("*.log")}

    def note(_: str, forward: Forward) -> object:
        inode = os.fstat(forward.args[0]).st_ino
        if inode in names:
            read.append(names[inode])
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, ["pread"], note)
        (again,) = segmentlog.mirror(source, to=to)
    ends = {max(side.rglob("*.log")) for side in (source, to)}
    assert {*read} <= ends  # the end of the log is looked up, also for what the source lacks
    assert len(read) < 10
    assert (first.sha256, 0) == (again.sha256, again.n_copied)
    assert state == (to / "segmentlog.state").read_bytes()
    damaged = min(to.rglob("*.log"))
    damaged.write_bytes(damaged.read_bytes().replace(b"0", b"1"))
    (found,) = segmentlog.mirror(source, to=to)
    assert 3 == found.n_put_aside
    assert (first.sha256, values(source)) == (found.sha256, values(to))


def numbered(directory: Path, version: int) -> None:
    """A numbered write of two partitions."""
    values = [f"{key}{version}" for key in "abcdef"]
    write(directory, *values, n=2, txn_app_id="app", txn_version=version)


def test_a_failover_repeats_no_write_and_a_cut_write_is_repeated(tmp_path: Path) -> None:
    """The state goes with the records, in both directions."""
    source, to = tmp_path / "source", tmp_path / "to"
    numbered(source, 1)
    segmentlog.mirror(source, to=to)
    numbered(to, 1)
    assert values(source) == values(to)
    numbered(to, 2)
    assert 12 == len(values(to))
    segmentlog.mirror(source, to=to)  # the source has not died after all
    assert values(source) == values(to)
    numbered(to, 2)
    assert 12 == len(values(to))
    segmentlog.mirror(source, to=to)
    numbered(source, 2)
    segmentlog.mirror(source, to=to)
    numbered(to, 2)
    assert sorted(values(source)) == sorted(values(to))


def test_partitions_that_are_mirrored_one_after_the_other_count_a_write_once_it_is_whole(
    tmp_path: Path,
) -> None:
    """A write of two partitions is not done while one of them lacks its records."""
    source, to = tmp_path / "source", tmp_path / "to"
    numbered(source, 1)
    segmentlog.mirror(source, to=to)
    numbered(source, 2)
    for partition, version in ((0, 1), (1, 2)):
        segmentlog.mirror(source, to=to, partitions=[partition])
        assert (version,) == tuple(at for at, _ in State.read(str(to)).versions.values())


@cut_loop
def test_a_mirror_that_is_killed_moves_all_partitions_and_the_state_or_none(
    tmp_path: Path, every: int
) -> None:
    """Versions are written at the destination exactly once, at whichever call the mirror dies."""
    source, before = tmp_path / "source", tmp_path / "before"
    numbered(source, 1)
    segmentlog.mirror(source, to=before)
    seen = {*values(before)}
    write(before, "x", n=2)  # a failover: it diverges
    numbered(source, 2)
    number, is_whole, outcomes = 0, False, set[bool]()
    while not is_whole:
        to = tmp_path / f"to{number}"
        shutil.copytree(before, to)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                segmentlog.mirror(source, to=to)
                is_whole = True
            except Crash:
                pass
        read = {*values(to)}
        assert read in (seen, seen | {"x"}, {*values(source)}), number
        with hold(str(to), 0):
            pass
        is_new = {*values(source)} == {*values(to)}
        assert is_new or seen | {"x"} == {*values(to)}, number
        outcomes.add(is_new)
        numbered(to, 2)
        assert sorted(values(source)) == sorted(each for each in values(to) if each != "x")
        shutil.rmtree(to)
        number += every
    assert {True, False} == outcomes


def empty(path: Path) -> None:
    """Leave a file without its bytes."""
    path.write_bytes(b"")


@pytest.mark.parametrize("lose", [Path.unlink, empty])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_copy_keeps_what_its_source_has_lost(
    tmp_path: Path, place: int, lose: Callable[[Path], object]
) -> None:
    """A segment is gone from the beginning, the middle or the end of the source, or is empty."""
    source, to = tmp_path / "source", tmp_path / "to"
    write(source, "a1", config=ROLLING)
    write(source, "b2" * 30, config=ROLLING)
    write(source, "c3" * 30, config=ROLLING)
    write(source, "d4", topic="u")
    segmentlog.mirror(source, to=to)
    whole = values(to)
    write(source, "e5", topic="u")
    (log,) = [source / "t-0" / f"{place:020d}.log"]
    lose(log)
    told: list[str] = []
    found = segmentlog.mirror(source, to=to, on_failure=lambda name, _: told.append(name))

    assert ["t-0"] == told
    assert ["u"] == [each.topic for each in found]
    assert whole == values(to)
    assert ["d4", "e5"] == values(to, "u")
    with pytest.raises(LogDirectoryError, match="stays as it is"):
        segmentlog.mirror(source, to=to)


@pytest.mark.parametrize("lose", [Path.unlink, empty])
def test_a_copy_of_a_log_with_a_loss_can_be_repeated(
    tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    """The copy has never had the records."""
    source, to = tmp_path / "source", tmp_path / "to"
    for each in ("a1", "b2" * 30, "c3" * 30):
        write(source, each, config=ROLLING)
    lose(source / "t-0" / f"{1:020d}.log")
    segmentlog.mirror(source, to=to)
    (found,) = segmentlog.mirror(source, to=to)

    assert 0 == found.n_copied


@pytest.mark.parametrize("kind", ["directory", "store"])
def test_one_partition_that_cannot_be_mirrored_stops_itself_alone(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its topic was created again; the others come, and Python is told what the source lacks."""
    source, to = tmp_path / "source", tmp_path / "to"
    place = str(to) if kind == "directory" else f"bucket+file://{to}"
    for topic in ("a", "b", "c"):
        write(source, "x1", topic=topic)
    segmentlog.mirror(source, to=place)
    segmentlog.delete_topic(source, "b")
    write(source, "y1", topic="b")
    write(source, "x2", topic="a")
    write(source, "x2", topic="c")
    # As after a crash that has lost the last record of a directory that was cleanly stopped.
    checkpoint = source / "replication-offset-checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace("c 0 2", "c 0 3"))

    failed: dict[str, Exception] = {}
    for on_failure in (failed.__setitem__, None):
        with contextlib.ExitStack() as stack:
            if on_failure is None:
                stack.enter_context(pytest.raises(LogDirectoryError, match="was created again"))
            found = segmentlog.mirror(source, to=place, on_failure=on_failure)
    assert ["b-0"] == [*failed]
    assert ["a", "c"] == [each.topic for each in found]
    (missing,) = found[1].missing
    assert (found[0].missing, missing in caplog.text) == ((), True)
    assert "[2, 3)" in missing
    rows = {topic: segmentlog.read(place, topic)["value"].to_pylist() for topic in "ab"}
    assert {"a": [b"x1", b"x2"], "b": [b"x1"]} == rows


@pytest.mark.parametrize("kind", ["directory", "store"])
def test_what_no_mirror_copies_is_named(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata of a cluster, and settings; not if only some topics are asked for."""
    source, to = tmp_path / "source", tmp_path / "to"
    place = str(to) if kind == "directory" else f"bucket+file://{to}"
    write(source, "x1")
    segmentlog.alter_settings(source, "t", {"retention.ms": "-1"})
    metadata = source / "__cluster_metadata-0"
    metadata.mkdir()
    (metadata / f"{0:020d}.log").touch()
    segmentlog.mirror(source, to=place, topics="t")
    assert "is not copied" not in caplog.text
    segmentlog.mirror(source, to=place)
    assert f"{metadata} is not copied" in caplog.text
    assert f"{source / 'segmentlog.settings'} is not copied" in caplog.text
