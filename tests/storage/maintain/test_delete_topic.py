"""A topic is deleted whole or not at all, also after a crash and beside readers."""

import contextlib
import errno
import os
import pickle
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broker_lock import as_broker
from crashing import CALLS, Crash, Forward, around_calls, crash_at, cut_loop
from namespaces import mounted
from plain_writes import write

import segmentlog
from segmentlog.errors import (
    CorruptCheckpointError,
    LogChangedError,
    LogDirectoryError,
    LogLockedError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import deleted_directory_name, is_deleted_directory
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.model import TopicPartition
from segmentlog.reads import snapshot as snapshots
from segmentlog.reads.scan import scan_slice
from segmentlog.store.lock import DirectoryLock
from segmentlog.store.readable import Entry, list_names
from segmentlog.txn import change, effects, topics
from segmentlog.txn.effects import TakeOut
from segmentlog.txn.guard import Guard, Intent, list_guards, recover_commits
from segmentlog.txn.state import State
from segmentlog.txn.topics import CHECKPOINTS

ROWS = pa.table({"value": [b"a", b"b", b"c"], "partition": [0, 1, 2]})
GONE: Mapping[int, list[bytes]] = {}
WHOLE = {0: [b"a"], 1: [b"b"], 2: [b"c"]}


def write_three(directory: Path, topic: str = "t", rows: pa.Table = ROWS, **how: Any) -> None:
    """Write to three partitions."""
    write(directory, rows, topic=topic, num_partitions=3, **how)


def seen(directory: Path, topic: str = "t") -> dict[int, list[bytes]]:
    """Values of each partition that a reader finds now."""
    opened = segmentlog.open_log_dir(directory)
    return {
        partition: opened.log(topic, partition).scan().read_all()["value"].to_pylist()
        for partition in opened.topics().get(topic, ())
    }


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two topics, with an entry in each checkpoint of a broker."""
    write_three(tmp_path)
    write_three(tmp_path, "t-1")
    for name in CHECKPOINTS:
        offsets = dict(read_offsets(str(tmp_path), name))
        for topic in ("t", "t-1"):
            partitions = [TopicPartition(topic, p) for p in range(3)]
            offsets |= {each: offsets.get(each, 0) for each in partitions}
        write_offsets(str(tmp_path), name, offsets)
    return tmp_path


def test_nothing_of_it_is_left(directory: Path) -> None:
    """Directories and entries are gone. The other topic and the mark are not changed."""
    size = sum(path.stat().st_size for path in directory.glob("t-[0-9]/*.log"))
    done = segmentlog.delete_topic(directory, "t")

    assert segmentlog.DeletedTopic("t", partitions=3, segments=3, n_bytes=size) == done
    assert ["t-1-0", "t-1-1", "t-1-2"] == sorted(each.name for each in directory.glob("t-*"))
    for name in CHECKPOINTS:
        assert {"t-1"} == {each.topic for each in read_offsets(str(directory), name)}
    assert (directory / ".kafka_cleanshutdown").exists()
    assert [] == list_guards(str(directory))
    assert (GONE, WHOLE) == (seen(directory), seen(directory, "t-1"))


def test_a_first_write_with_the_wrong_number_of_partitions_is_mended(tmp_path: Path) -> None:
    """The refusal of the next write names a command, which works."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(pa.table({"value": [b"a"]}))
    with pytest.raises(OptionError, match="segmentlog delete-topic"):
        write_three(tmp_path)
    segmentlog.delete_topic(tmp_path, "t")
    write_three(tmp_path)

    assert WHOLE == seen(tmp_path)


def test_a_dry_run_changes_nothing(directory: Path) -> None:
    """The directory has a lock file or has none."""
    (directory / ".lock").unlink()
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    told = segmentlog.delete_topic(directory, "t", dry_run=True)
    assert before == {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    (directory / ".lock").touch()

    assert told == segmentlog.delete_topic(directory, "t", dry_run=True)
    assert WHOLE == seen(directory)
    assert told == segmentlog.delete_topic(directory, "t")


def test_names_are_those_that_a_broker_gives() -> None:
    """A name has at most 255 characters, as by ``LocalLog.logDeleteDirName``.

    The topic's name is cut.
    """
    short = deleted_directory_name(TopicPartition("orders", 12))
    long = deleted_directory_name(TopicPartition("x" * 249, 12))

    assert re.fullmatch(r"orders-12\.[0-9a-f]{32}-delete", short)
    assert re.fullmatch(r"x{212}-12\.[0-9a-f]{32}-delete", long)
    assert 255 == len(long)
    assert is_deleted_directory(short, "orders")
    assert is_deleted_directory(long, "x" * 249)
    assert not is_deleted_directory(short, "orders-eu")
    assert not is_deleted_directory(short, "order")
    assert not is_deleted_directory("orders-12", "orders")


def test_a_topic_with_the_longest_name(tmp_path: Path) -> None:
    """The name has the greatest length that a file system accepts."""
    name = "x" * 249
    write_three(tmp_path, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effects, "remove_taken_out", _crash)
        with pytest.raises(Crash):
            segmentlog.delete_topic(tmp_path, name)
    assert 3 == len(list(tmp_path.glob("x*-delete")))

    assert 3 == segmentlog.delete_topic(tmp_path, name).partitions
    assert [] == list(tmp_path.glob("x*"))


def _crash(*_: Any) -> None:
    raise Crash


@pytest.mark.parametrize(
    ("topic", "kind", "message"),
    [
        ("tt", UnknownTopicOrPartitionError, "did you mean 't'"),
        ("__consumer_offsets", OptionError, "this topic is reserved for brokers"),
        ("__cluster_metadata", OptionError, "this topic is reserved for brokers"),
        ("../t", OptionError, "a topic is 1 to 249"),
    ],
)
def test_topics_that_are_refused(
    directory: Path, topic: str, kind: type[Exception], message: str
) -> None:
    """Nothing is changed."""
    for dry_run in (False, True):
        with pytest.raises(kind, match=re.escape(message)):
            segmentlog.delete_topic(directory, topic, dry_run=dry_run)
    assert WHOLE == seen(directory)


def test_places_that_are_refused(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A partition, another directory, a link and an unreadable checkpoint are refused."""
    other = tmp_path_factory.mktemp("other")
    with pytest.raises(LogDirectoryError, match="name the log directory that holds it"):
        segmentlog.delete_topic(directory / "t-0", "t")
    with pytest.raises(LogDirectoryError, match="holds neither"):
        segmentlog.delete_topic(other, "t")
    assert [] == list(other.iterdir())
    (directory / "t-0").rename(other / "t-0")
    (directory / "t-0").symlink_to(other / "t-0")
    with pytest.raises(LogDirectoryError, match="is a symbolic link"):
        segmentlog.delete_topic(directory, "t")
    (directory / "t-0").unlink()
    (other / "t-0").rename(directory / "t-0")
    (directory / "cleaner-offset-checkpoint").write_text("0\nthree\n")
    with pytest.raises(CorruptCheckpointError, match="line 2"):
        segmentlog.delete_topic(directory, "t")

    assert WHOLE == seen(directory)
    assert [] == list_guards(str(directory))


def test_a_directory_that_is_in_use(directory: Path) -> None:
    """The command does not change a directory that a broker or a writer uses."""
    with as_broker(directory), pytest.raises(LogLockedError):
        segmentlog.delete_topic(directory, "t")
    assert WHOLE == seen(directory)


def test_a_numbered_write_begins_again(directory: Path) -> None:
    """The version of the deleted topic is forgotten; versions of other topics stay."""
    for topic in ("t", "t-1"):
        write_three(directory, topic, txn_app_id="app", txn_version=7)
    segmentlog.delete_topic(directory, "t")
    for topic in ("t", "t-1"):
        write_three(directory, topic, txn_app_id="app", txn_version=7)

    assert WHOLE == seen(directory)
    assert [b"a", b"a"] == seen(directory, "t-1")[0]


def test_overwritten_records_of_a_deleted_topic_are_forgotten(directory: Path) -> None:
    """Their offsets belong to a log that no longer exists."""
    write_three(directory, overwrite=True)
    segmentlog.delete_topic(directory, "t")

    assert [] == [*State.read(str(directory)).aside]


@cut_loop
def test_every_cut_leaves_all_or_nothing(tmp_path: Path, every: int) -> None:
    """The process dies before each call. Readers, the next writer and a second deletion follow."""
    number, outcomes = 0, []
    while True:
        directory = tmp_path / str(number)
        write_three(directory)
        write_three(directory, "other")
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                segmentlog.delete_topic(directory, "t")
            except Crash:
                is_cut = True
            else:
                is_cut = False
        found = seen(directory)
        assert found in (GONE, WHOLE), number
        with DirectoryLock(str(directory)):
            recover_commits(str(directory))
        assert found == seen(directory), number
        if found:
            assert 3 == segmentlog.delete_topic(directory, "t").partitions
        elif any(directory.glob("t-*")):
            segmentlog.delete_topic(directory, "t")
        assert (GONE, WHOLE) == (seen(directory), seen(directory, "other")), number
        assert [] == [*directory.glob("t-*"), *list_guards(str(directory))], number
        outcomes.append(bool(found))
        write_three(directory)
        assert WHOLE == seen(directory)
        if not is_cut:
            break
        number += every

    assert sorted(outcomes, reverse=True) == outcomes
    assert outcomes.count(True) * every > 5
    assert outcomes.count(False) * every > 20


def test_readers_see_all_of_it_or_nothing(directory: Path) -> None:
    """Readers open the directory before each step. Earlier readers continue, or get an error."""
    found = []
    held = []

    def around(_: str, forward: Forward) -> object:
        opened = segmentlog.open_log_dir(directory)
        topics = opened.topics()
        assert topics.get("t") in (None, [0, 1, 2])
        found.append("t" in topics)
        if "t" in topics:
            held.append(opened)
            early = segmentlog.open_log_dir(directory)
            for partition in range(3):
                assert early.log("t", partition).segments
            held.append(early)
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        segmentlog.delete_topic(directory, "t")

    assert sorted(found, reverse=True) == found
    assert {True, False} == set(found)
    assert held
    for opened in held:
        for partition in range(3):
            with pytest.raises(LogChangedError):
                opened.log("t", partition).scan().read_all()
        assert [b"a"] == opened.log("t-1", 0).scan().read_all()["value"].to_pylist()


def test_a_scan_that_has_begun_fails(directory: Path) -> None:
    """The reader needs files that it has not opened yet."""
    with segmentlog.open_writer(directory, "u") as writer:
        for number in range(3):
            writer.append(pa.table({"value": [b"%d" % number]}))
            writer.roll()
    scan = segmentlog.open_log_dir(directory).log("u", 0).scan()
    assert [b"0"] == scan.read_next_batch()["value"].to_pylist()
    segmentlog.delete_topic(directory, "u")

    with pytest.raises(LogChangedError, match="load the path again"):
        scan.read_all()


def test_a_topic_that_is_made_again_is_another_one(directory: Path) -> None:
    """A reader of the old topic reads nothing of the new one, whatever its size."""
    opened = segmentlog.open_log_dir(directory)
    segmentlog.delete_topic(directory, "t")
    for _ in range(3):
        write_three(
            directory, rows=pa.table({"value": [b"x", b"y", b"z"], "partition": [0, 1, 2]})
        )
    with pytest.raises(LogChangedError, match="its topic was deleted"):
        opened.log("t", 0).scan().read_all()

    assert [b"x", b"x", b"x"] == seen(directory)[0]


def test_names_that_are_listed_while_partitions_are_renamed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is listed again, also if bounds are read after the guard is gone."""
    is_halfway, is_listed = threading.Event(), threading.Event()

    def deletes() -> None:
        n_renamed = 0

        def around(_: str, forward: Forward) -> object:
            nonlocal n_renamed
            if str(forward.args[1]).endswith("-delete"):
                n_renamed += 1
                if n_renamed == 2:
                    is_halfway.set()
                    assert is_listed.wait(60)
            return forward()

        with pytest.MonkeyPatch.context() as patch:
            around_calls(patch, ["rename"], around)
            segmentlog.delete_topic(directory, "t")

    thread = threading.Thread(target=deletes)
    thread.start()
    assert is_halfway.wait(60)
    listings, real = [], snapshots.list_entries

    def lists(path: str) -> list[Entry]:
        entries = [*real(path)]
        listings.append([each.name for each in entries if re.fullmatch("t-[0-9]", each.name)])
        is_listed.set()
        thread.join()
        return entries

    monkeypatch.setattr(snapshots, "list_entries", lists)
    snapshot = snapshots.DirectorySnapshot(str(directory))

    assert 2 == len(listings[0])
    assert {"t-1"} == {each.topic for each in snapshot.partitions}


def test_a_failed_removal_is_a_warning_and_is_repeated_the_next_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic is deleted anyway, and a broker may start."""
    with monkeypatch.context() as patch:

        def refused(*_: Any, **__: Any) -> None:
            raise OSError(5, "Input/output error", str(directory / "t-0"))

        patch.setattr("os.rmdir", _but_for_guards(refused))
        segmentlog.delete_topic(directory, "t")
    assert "Input/output error" in caplog.text
    assert GONE == seen(directory)
    assert [] == list_guards(str(directory))
    assert list(directory.glob("*-delete"))
    segmentlog.delete_topic(directory, "t")

    assert [] == list(directory.glob("*-delete"))
    with pytest.raises(UnknownTopicOrPartitionError):
        segmentlog.delete_topic(directory, "t")


def _but_for_guards(refused: Callable[[str], None]) -> Callable[..., None]:
    real = os.rmdir

    def rmdir(path: str, **how: Any) -> None:
        if "segmentlog." in str(path) or path == "state":
            return real(path, **how)
        return refused(path)

    return rmdir


@pytest.mark.parametrize("n_rows", [1, 3])
def test_a_slice_of_a_deleted_topic_reads_nothing_of_the_next(
    directory: Path, n_rows: int
) -> None:
    """A task that was planned before the deletion runs later, without an open directory."""
    opened = segmentlog.open_log_dir(directory)
    log = opened.log("t", 0)
    slices = pickle.loads(pickle.dumps(log.slices(0, log.log_end_offset)))
    segmentlog.delete_topic(directory, "t")
    rows = pa.table({"value": [b"x"] * n_rows, "partition": [0] * n_rows})
    write_three(directory, rows=rows)

    with pytest.raises(LogChangedError, match="its topic was deleted, and another was created"):
        list(scan_slice(slices[0]))


def test_a_slice_is_read_where_nothing_shows_the_topic(directory: Path) -> None:
    """The file with the topic id is missing or unreadable."""
    log = segmentlog.open_log_dir(directory).log("t", 0)
    (planned,) = log.slices(0, log.log_end_offset)
    n_rows = sum(each.num_rows for each in scan_slice(planned))
    metadata = directory / "t-0" / "partition.metadata"
    metadata.write_text("none")

    assert n_rows == sum(each.num_rows for each in scan_slice(planned))
    metadata.unlink()
    assert n_rows == sum(each.num_rows for each in scan_slice(planned)) > 0


def kept(directory: Path, topic: str = "t") -> str | None:
    """The source of a setting that was configured."""
    return segmentlog.topic_settings(directory, topic)["retention.ms"].source


@cut_loop
def test_every_cut_forgets_settings_with_their_topic(tmp_path: Path, every: int) -> None:
    """Otherwise the next topic of that name would inherit the settings.

    Retention would use them.
    """
    number, outcomes = 0, []
    while True:
        directory = tmp_path / str(number)
        write_three(directory)
        for topic in ("t", "u"):
            segmentlog.alter_settings(directory, topic, {"retention.ms": "1"})
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                segmentlog.delete_topic(directory, "t")
            except Crash:
                is_cut = True
            else:
                is_cut = False
        is_there = bool(seen(directory))
        expected = "segmentlog.settings" if is_there else "Kafka's default"
        assert expected == kept(directory), number  # like its rows, before any recovery
        # The next writer begins with a topic that has not been made yet.
        with segmentlog.open_writer(directory, "t", num_partitions=3) as writer:
            writer.append(pa.table({"value": [b"new"]}))
        assert expected == kept(directory), number
        assert "segmentlog.settings" == kept(directory, "u"), number
        outcomes.append(is_there)
        if not is_cut:
            break
        number += every

    assert sorted(outcomes, reverse=True) == outcomes
    assert outcomes.count(False) * every > 13


def test_a_job_after_a_crash_does_not_go_by_settings_of_the_deleted_topic(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job finishes the deletion, and reads the settings after that."""
    segmentlog.alter_settings(directory, "t", {"segment.bytes": "100"})
    with monkeypatch.context() as patch:
        patch.setattr(change, "finish", _crash)
        with pytest.raises(Crash):
            segmentlog.delete_topic(directory, "t")
    write_three(directory, rows=pa.table({"value": [b"x" * 60] * 9, "partition": [0] * 9}))

    assert 1 == len(segmentlog.open_log_dir(directory).log("t", 0).segments)


def test_settings_that_are_kept_after_a_deletion_stay(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They apply to the next topic of that name, whatever is left of the deleted one."""
    with monkeypatch.context() as patch:
        patch.setattr(change, "finish", _crash)
        with pytest.raises(Crash):
            segmentlog.delete_topic(directory, "t")
    segmentlog.alter_settings(directory, "t", {"retention.ms": "5"})
    write_three(directory)

    assert "segmentlog.settings" == kept(directory)


def test_a_decided_deletion_reports_no_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic is gone for readers, and the next writer finishes the deletion."""
    with monkeypatch.context() as patch:

        def refused(*_: Any) -> None:
            raise OSError(28, "No space left on device", str(directory / "t-0"))

        patch.setattr("segmentlog.txn.effects.take_out", refused)
        assert 3 == segmentlog.delete_topic(directory, "t").partitions
    assert "No space left on device" in caplog.text
    assert GONE == seen(directory)
    write_three(directory, "u")

    assert [] == [*directory.glob("t-[0-9]"), *list_guards(str(directory))]


def test_settings_that_cannot_be_read_are_met_before_the_decision(directory: Path) -> None:
    """After the decision, the settings could not be removed."""
    (directory / "segmentlog.settings").write_text("{}")
    with pytest.raises(CorruptCheckpointError, match=r"segmentlog\.settings"):
        segmentlog.delete_topic(directory, "t")

    assert WHOLE == seen(directory)
    assert [] == list_guards(str(directory))


def test_a_full_disk_is_emptied_before_checkpoints_are_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the guard of the deletion would stay, and keep out commands that free space."""

    def full(path: str, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        if any(is_deleted_directory(each, "t") for each in list_names(path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        write_offsets(path, name, offsets)

    monkeypatch.setattr(topics, "write_offsets", full)
    segmentlog.delete_topic(directory, "t")

    assert GONE == seen(directory)
    assert WHOLE == seen(directory, "t-1")
    assert not list_guards(str(directory))
    assert not [each for each in read_offsets(str(directory), CHECKPOINTS[0]) if each.topic == "t"]


def test_a_topic_whose_directories_were_removed_by_hand(directory: Path) -> None:
    """Its entries in checkpoints would refuse every later write to that name."""
    segmentlog.alter_settings(directory, "t", {"retention.ms": "1"})
    for partition in range(3):
        write_offsets(
            str(directory),
            CHECKPOINTS[-1],
            {**read_offsets(str(directory), CHECKPOINTS[-1]), TopicPartition("t", partition): 1},
        )
        shutil.rmtree(directory / f"t-{partition}")

    assert (0, 0, 0) == segmentlog.delete_topic(directory, "t")[1:]
    write_three(directory)

    assert WHOLE == seen(directory)
    assert "-1" != segmentlog.topic_settings(directory, "t")["retention.ms"].value != "1"


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """A log directory whose topics come from the lower layer of an overlay, as in an image."""
    place, there = tmp_path / "layers", tmp_path / "there"
    place.mkdir()
    there.mkdir()
    with mounted(place, "-t", "tmpfs", "-o", "size=32m", "tmpfs"):
        layers = [place / name for name in ("lower", "upper", "work")]
        for each in layers:
            each.mkdir()
        for topic in ("t", "u"):
            write_three(layers[0], topic)
        path = str(layers[0])
        guard = Guard.of_job(path, "0a0b")  # of a change that was cut off when the image was made
        Path(guard.path).mkdir()
        intent = Intent("0a0b", State.read(path).token, True, True, [], [TakeOut("u")])
        Path(guard.intent_path).write_bytes(intent.encode())
        given = "lowerdir={},upperdir={},workdir={}".format(*layers)
        with mounted(there, "-t", "overlay", "-o", given, "overlay"):
            yield there


def test_directories_that_an_overlay_cannot_rename(overlay: Path) -> None:
    """The guard is taken over, the topic goes, and the directory can be changed afterwards."""
    segmentlog.delete_topic(overlay, "u")
    assert ([], ["t"]) == (list_guards(str(overlay)), [*segmentlog.open_log_dir(overlay).topics()])
    assert not [*overlay.glob("u-*")]
    write_three(overlay)
    write_three(overlay, "u")
    assert {**WHOLE, 0: [b"a"] * 2, 1: [b"b"] * 2, 2: [b"c"] * 2} == seen(overlay)
    assert WHOLE == seen(overlay, "u")
    segmentlog.recover(overlay)


@cut_loop
def test_every_cut_of_a_deletion_without_renames(tmp_path: Path, every: int) -> None:
    """Of directories that cannot be renamed: the next writer finishes what was decided."""

    def around(name: str, forward: Forward) -> object:
        is_partition = name == "rename" and Path(str(forward.args[0])).name.startswith("t-")
        if is_partition and Path(str(forward.args[0])).is_dir():
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return forward()

    write_three(tmp_path / "before")
    for number in range(0, 1000, every):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "before", directory)
        with pytest.MonkeyPatch.context() as patch:
            around_calls(patch, ("rename",), around)
            made = crash_at(patch, number)
            with contextlib.suppress(Crash):
                segmentlog.delete_topic(directory, "t")
        is_there = bool(seen(directory))
        assert seen(directory) in ({}, WHOLE)
        with pytest.MonkeyPatch.context() as patch:
            around_calls(patch, ("rename",), around)
            write_three(directory, "other")
        assert is_there == bool(seen(directory))
        assert is_there == bool([*directory.glob("t-*")])
        if len(made) < number:
            break
    assert not is_there
