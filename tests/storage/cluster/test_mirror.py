"""Partitions that are copied byte by byte, and go on as a follower does."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broker_copies import IDS, T0, broker, killed_in_sequence
from crashing import Crash, Forward, around_calls, copy_states, crash_at, cut_loop

import segmentlog
from segmentlog import LogDirectoryError, LogLockedError, MirroredPartition, StorageError
from segmentlog.cluster import follower
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE
from segmentlog.log import swaps
from segmentlog.store import copy
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn.state import State

#: Files of a partition that a mirror copies.
KINDS = {".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".metadata", ""}


def files(directory: Path) -> dict[str, bytes]:
    """The live files of the partition."""
    found = sorted((directory / "t-0").iterdir())
    return {each.name: each.read_bytes() for each in found if each.suffix in KINDS}


def filled(directory: Path, n_jobs: int = 4, segment_bytes: int = 200) -> Path:
    """A log directory of several segments, cleanly shut down."""
    config = segmentlog.ProducerConfig(segmentlog.TopicConfig(segment_bytes=segment_bytes))
    for i in range(n_jobs):
        with segmentlog.open_writer(directory, "t", num_partitions=1, config=config) as writer:
            writer.append(pa.table({"value": [f"{i} {'v' * 100}"]}))
    (directory / CLEAN_SHUTDOWN_FILE).touch()
    return directory


def everything(directory: Path) -> dict[Path, bytes]:
    """All files below a directory."""
    return {each: each.read_bytes() for each in directory.rglob("*") if each.is_file()}


def only(sources: Sequence[Path], to: Path) -> MirroredPartition:
    """Mirror the one partition, as a dry run has shown it before."""
    before = everything(to)
    (shown,) = segmentlog.mirror(*sources, to=to, dry_run=True)
    assert before == everything(to)
    (found,) = segmentlog.mirror(*sources, to=to)
    assert shown == found._replace(kept=(), sha256="")
    return found


def test_partitions_of_two_topics_of_one_name_are_not_joined(tmp_path: Path) -> None:
    """Also if the destination lacks the partition."""
    rows = pa.table({"value": ["a", "b"], "partition": pa.array([0, 1], pa.int32())})
    for name in ("one", "another"):
        with segmentlog.open_writer(tmp_path / name, "t", num_partitions=2) as writer:
            writer.append(rows)
    for first in (0, 1):
        to = tmp_path / f"to{first}"
        segmentlog.mirror(tmp_path / "one", to=to, partitions=[first])
        with pytest.raises(LogDirectoryError, match=r"t-\d: belongs to a topic with the id"):
            segmentlog.mirror(tmp_path / "another", to=to, partitions=[1 - first])
        assert {"t": [first]} == segmentlog.open_log_dir(to).topics()


def test_a_write_does_not_count_once_a_partition_comes_without_its_records(tmp_path: Path) -> None:
    """It has counted without the partition, which the directory did not have."""
    source, older, to = tmp_path / "source", tmp_path / "older", tmp_path / "to"
    rows = pa.table({"value": ["a", "b"], "partition": pa.array([0, 1], pa.int32())})
    with segmentlog.open_writer(source, "t", num_partitions=2) as writer:
        writer.append(rows)
    shutil.copytree(source, older)
    with segmentlog.open_writer(source, "t", txn_app_id="app", txn_version=0) as writer:
        writer.append(rows)
    segmentlog.mirror(source, to=to, partitions=[0])
    assert State.read(str(to)).versions
    segmentlog.mirror(older, to=to, partitions=[1])
    assert not State.read(str(to)).versions
    segmentlog.mirror(source, to=to)
    assert State.read(str(to)).versions


def test_all_files_are_byte_for_byte_those_of_the_source(tmp_path: Path) -> None:
    """Indexes, snapshots and epochs, too; a broker finds its checkpoints."""
    source, to = filled(tmp_path / "a"), tmp_path / "b"
    found = only([source], to)
    assert files(source) == files(to)
    assert len([name for name in files(to) if name.endswith(".log")]) > 2
    assert (found.n_bytes, None, ()) == (found.n_copied, found.cut_at, found.kept)
    log = segmentlog.open_log_dir(to).log(*T0)
    assert (4, 4) == (log.log_end_offset, log.high_watermark)
    (equal,) = segmentlog.compare(source, to)
    assert "equal" == equal.comparison


def test_a_second_run_copies_only_new_bytes(tmp_path: Path) -> None:
    """The last segment grows, and new ones come after it."""
    source, to = filled(tmp_path / "a", segment_bytes=1000), tmp_path / "b"
    first = only([source], to)
    again = only([source], to)
    assert (0, first.sha256) == (again.n_copied, again.sha256)
    filled(source, segment_bytes=1000)
    later = only([source], to)
    assert later.n_bytes - first.n_bytes == later.n_copied > 0
    assert files(source) == files(to)


def test_a_running_source_lacks_the_indexes_of_its_active_segment(tmp_path: Path) -> None:
    """A broker writes into them, and its preallocated bytes are not entries."""
    source, to = filled(tmp_path / "a"), tmp_path / "b"
    (source / CLEAN_SHUTDOWN_FILE).unlink()
    only([source], to)
    missing = sorted({*files(source)} - {*files(to)})
    assert [".index", ".timeindex"] == [Path(each).suffix for each in missing]
    assert 4 == len(segmentlog.open_log_dir(to).log(*T0).scan().read_all())


def test_a_torn_tail_is_not_copied(tmp_path: Path) -> None:
    """The copy ends after the last whole batch."""
    source, to = filled(tmp_path / "a"), tmp_path / "b"
    (source / CLEAN_SHUTDOWN_FILE).unlink()
    active = max((source / "t-0").glob("*.log"))
    whole = active.read_bytes()
    active.write_bytes(whole + whole[:70])
    only([source], to)
    assert whole == (to / "t-0" / active.name).read_bytes()


def test_a_destination_that_diverges_is_cut_where_a_broker_cuts_it(tmp_path: Path) -> None:
    """It follows another log from then on, and its bytes are kept."""
    killed = killed_in_sequence(tmp_path)
    to = tmp_path / "to"
    only([killed[0]], to)
    before = next((to / "t-0").glob("*.log")).read_bytes()
    found = only(killed, to)
    assert 3 == found.cut_at
    (kept,) = map(Path, found.kept)
    assert before.endswith(kept.read_bytes())
    assert kept.name.endswith(".broken")
    (expected,) = segmentlog.compare(killed[2], to)
    assert "equal" == expected.comparison
    assert None is only(killed, to).cut_at


def test_readers_of_an_exchange_that_was_cut_off_take_no_old_segment_for_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new segments have another record at the offset at which an old segment begins."""
    source, to = tmp_path / "a", tmp_path / "b"
    values = pa.table({"value": [b"1", b"2"]})
    with segmentlog.open_writer(source, "t", num_partitions=1) as writer:
        writer.append(values)
    segmentlog.mirror(source, to=to)
    with segmentlog.open_writer(to, "t") as writer:
        writer.roll()
        writer.append(pa.table({"value": [b"of the destination"] * 2}))
    with segmentlog.open_writer(source, "t") as writer:
        writer.append(pa.table({"value": [b"3"]}))

    def dies(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(swaps, "_remove_end", dies)
        with pytest.raises(Crash):
            segmentlog.mirror(source, to=to)
    assert [*(to / "t-0").glob("*.swap")]
    assert values["value"].to_pylist() == segmentlog.read(to, "t")["value"].to_pylist()

    segmentlog.mirror(source, to=to)
    assert [b"1", b"2", b"3"] == segmentlog.read(to, "t")["value"].to_pylist()


def test_a_destination_without_anything_in_common_begins_again(tmp_path: Path) -> None:
    """Its first batch is of another leader than that of the log."""
    one = broker(tmp_path, 1, [(0, "ab")])
    other = broker(tmp_path, 2, [(3, "xyz")])
    to = tmp_path / "to"
    only([one], to)
    found = only([other], to)
    assert (0, 1) == (found.cut_at, len(found.kept))
    assert files(other)["00000000000000000000.log"] == files(to)["00000000000000000000.log"]


def test_compacted_segments_of_the_source_replace_those_of_the_destination(tmp_path: Path) -> None:
    """They have fewer records in other bytes; the old ones are put aside."""
    source, to = keyed(tmp_path / "a"), tmp_path / "b"
    (source / CLEAN_SHUTDOWN_FILE).touch()
    only([source], to)
    n_segments = len([*(to / "t-0").glob("*.log")])
    segmentlog.erase(source, "a")
    found = only([source], to)
    assert (None, n_segments) == (found.cut_at, found.n_put_aside)
    assert files(source) == files(to)
    assert n_segments == len([*(to / "t-0").glob("*.log.deleted")]) > 2
    assert not [*(to / "t-0").glob("*.broken")]


def keyed(directory: Path) -> Path:
    """A log directory of several segments with keys, and with entries in their indexes."""
    config = segmentlog.ProducerConfig(
        segmentlog.TopicConfig(segment_bytes=2000, index_interval_bytes=200)
    )
    for i in range(3):
        with segmentlog.open_writer(directory, "t", num_partitions=1, config=config) as writer:
            for _ in range(3):
                values = [f"{i} {'v' * 90}"] * 4
                writer.append(pa.table({"key": ["a", "b", "c", "d"], "value": values}))
                writer.flush()
    return directory


def killed_erasure(directory: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Erase two keys, but for the steps from one on."""

    def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(swaps, step, die)
        with pytest.raises(Crash):
            segmentlog.erase(directory, ["a", "b"])
    assert [*(directory / "t-0").glob("*.index.swap")]


@pytest.mark.parametrize("step", ["put_file_aside", "_take_places"])
def test_an_unfinished_compaction_is_copied_with_its_own_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The old segments, and their indexes, may still have the names of the new ones."""
    source, to = keyed(tmp_path / "a"), tmp_path / "b"
    killed_erasure(source, step, monkeypatch)
    only([source], to)
    assert segmentlog.read(source, "t").equals(segmentlog.read(to, "t"))
    assert [] == [each.message for each in segmentlog.verify(to)]


@pytest.mark.parametrize("step", ["put_file_aside", "_take_places"])
def test_an_unfinished_compaction_of_the_destination_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A broker that starts would otherwise put its files in the place of copied ones."""
    source, to = keyed(tmp_path / "a"), tmp_path / "b"
    only([source], to)
    killed_erasure(to, step, monkeypatch)
    only([source], to)
    assert not [*(to / "t-0").glob("*.swap")]
    assert segmentlog.read(source, "t").equals(segmentlog.read(to, "t"))
    assert [] == [each.message for each in segmentlog.verify(to)]


def test_indexes_of_another_file_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker puts a compacted segment in the place of one that is being copied."""
    source, to = filled(tmp_path / "a"), tmp_path / "b"
    (source / CLEAN_SHUTDOWN_FILE).unlink()
    path = min((source / "t-0").glob("*.log"))

    replaced = path.with_suffix(".log.deleted")

    def compact(descriptor: int, end: int) -> bytes:
        if os.fstat(descriptor).st_ino == path.stat().st_ino and not replaced.exists():
            path.rename(replaced)
            path.write_bytes(replaced.read_bytes())
            path.with_suffix(".index").write_bytes(bytes(8))
        return copy.digest_of(descriptor, end)

    monkeypatch.setattr(follower, "digest_of", compact)
    segmentlog.mirror(source, to=to)
    assert replaced.exists()
    names = files(to)
    assert path.name in names
    assert path.with_suffix(".index").name not in names
    assert 4 == segmentlog.read(to, "t").num_rows


def test_a_segment_that_another_file_replaces_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was compacted, after it was listed."""
    source, to = filled(tmp_path / "a"), tmp_path / "b"
    path = min((source / "t-0").glob("*.log"))
    begin = follower.Follower.begin

    def compact(follower: Any) -> None:
        path.rename(path.with_suffix(".log.deleted"))
        path.write_bytes(path.with_suffix(".log.deleted").read_bytes() * 2)
        begin(follower)

    monkeypatch.setattr(follower.Follower, "begin", compact)
    with pytest.raises(StorageError, match=r"another file has taken its place .* try again"):
        segmentlog.mirror(source, to=to)
    assert not [*(to / "t-0").glob("*.log")]


@pytest.mark.parametrize("partitions", ["0", ["0"], [True], [-1], b"a"])
def test_numbers_of_partitions_are_checked(tmp_path: Path, partitions: Any) -> None:
    """Otherwise, nothing would be copied, without an error."""
    with pytest.raises(segmentlog.OptionError, match="partitions"):
        segmentlog.mirror(filled(tmp_path / "a", 1), to=tmp_path / "b", partitions=partitions)


def test_removed_segments_of_the_source_leave_the_destination(tmp_path: Path) -> None:
    """Retention has moved the log start."""
    source, to = filled(tmp_path / "a"), tmp_path / "b"
    only([source], to)
    for each in (source / "t-0").glob(f"{0:020}.*"):
        each.unlink()
    found = only([source], to)
    assert (1, 0) == (found.log_start_offset, found.n_copied)
    assert 1 == segmentlog.open_log_dir(to).log(*T0).log_start_offset


def test_a_dry_run_makes_no_directory(tmp_path: Path) -> None:
    """A mirror makes it."""
    source, to = filled(tmp_path / "a"), tmp_path / "b"
    segmentlog.mirror(source, to=to, dry_run=True)
    assert not to.exists()


def test_refused_destinations(tmp_path: Path) -> None:
    """A source, a directory of another cluster, another topic, a held directory."""
    source = broker(tmp_path, 1, [(0, "ab")])
    with pytest.raises(LogDirectoryError, match="is a source"):
        segmentlog.mirror(source, to=source)
    elsewhere = broker(tmp_path / "other", 1, [(0, "ab")], cluster="c2")
    with pytest.raises(LogDirectoryError, match="cluster c2, and the sources to cluster c1"):
        segmentlog.mirror(source, to=elsewhere)
    again = broker(tmp_path / "again", 1, [(0, "ab")], topic_id=IDS[1])
    with pytest.raises(LogDirectoryError, match="created again"):
        segmentlog.mirror(source, to=again)
    to = tmp_path / "to"
    only([source], to)
    with DirectoryLock(str(to), 0), pytest.raises(LogLockedError):
        segmentlog.mirror(source, to=to, lock_timeout_seconds=0)


def test_a_destination_that_does_not_lie_apart_from_its_sources_is_refused(tmp_path: Path) -> None:
    """A broker does not start on a log directory with another directory in it."""
    source = broker(tmp_path, 1, [(0, "ab")])
    before = everything(tmp_path)
    (tmp_path / "link").symlink_to(source)
    for to in (source / "backup", source / "t-0" / "backup", tmp_path / "link" / "backup"):
        with pytest.raises(LogDirectoryError, match="lies in the source"):
            segmentlog.mirror(source, to=to)
    with pytest.raises(LogDirectoryError, match="is a source"):
        segmentlog.mirror(source, to=tmp_path / "link")
    with pytest.raises(LogDirectoryError, match="holds the source"):
        segmentlog.mirror(source, to=tmp_path)
    assert before == everything(tmp_path)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path, dry_run: bool) -> None:
    """The error says what is there."""
    source = broker(tmp_path, 1, [(0, "ab")])
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    for name, message in (
        ("file", "is a file"),
        ("link", "is a link to a directory that does not exist"),
        ("absent/to", "lies in a directory that does not exist"),
    ):
        with pytest.raises(LogDirectoryError, match=message):
            segmentlog.mirror(source, to=tmp_path / name, dry_run=dry_run)


def test_a_partition_of_the_destination_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """It may lead to a source, which the cut of a diverging copy would change."""
    killed, to = killed_in_sequence(tmp_path), tmp_path / "to"
    to.mkdir()
    (to / "t-0").symlink_to(killed[0] / "t-0")
    before = everything(killed[0])
    for dry_run in (True, False):
        with pytest.raises(LogDirectoryError, match="is a symbolic link"):
            segmentlog.mirror(*killed, to=to, dry_run=dry_run)
    assert before == everything(killed[0])


def test_hard_links_of_a_destination_keep_their_bytes(tmp_path: Path) -> None:
    """A source of which the destination was made, and snapshots of the destination."""
    killed, to = killed_in_sequence(tmp_path), tmp_path / "to"
    shutil.copytree(killed[0], to, copy_function=os.link)
    before = everything(killed[0] / "t-0")
    assert 3 == only(killed, to).cut_at
    assert before == everything(killed[0] / "t-0")
    shutil.copytree(to, tmp_path / "snapshot", copy_function=os.link)
    before = everything(tmp_path / "snapshot" / "t-0")
    with segmentlog.open_writer(killed[2], "t") as writer:
        writer.append(pa.table({"value": ["more"]}))
    assert only(killed, to).n_copied
    assert before == everything(tmp_path / "snapshot" / "t-0")
    (expected,) = segmentlog.compare(killed[2], to)
    assert "equal" == expected.comparison


def test_another_topic_of_the_same_name_is_refused_alone(tmp_path: Path) -> None:
    """Its partition stays as it was, and the other topic comes."""
    source, to = broker(tmp_path, 1, [(0, "ab")]), tmp_path / "to"
    with segmentlog.open_writer(source, "s", auto_create_topics=True) as writer:
        writer.append(pa.table({"value": ["x"]}))
    to.mkdir()
    shutil.copytree(source / "t-0", to / "t-0")
    (to / "t-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {IDS[1]}")
    with pytest.raises(LogDirectoryError, match="created again"):
        segmentlog.mirror(source, to=to)
    assert 1 == segmentlog.read(to, "s").num_rows
    assert (to / "t-0" / "partition.metadata").read_text().endswith(IDS[1])


def test_offsets_that_only_a_tier_has_keep_the_log_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are named, and not copied. A leader deletes remote segments below its log start."""
    example, to = Path(__file__).parents[3] / "examples" / "tier" / "logs", tmp_path / "to"
    for dry_run in (True, False):
        caplog.clear()
        (found,) = segmentlog.mirror(example, to=to, topics="visits", dry_run=dry_run)
        assert (400, 600) == (found.log_start_offset, found.log_end_offset)
        assert "visits-0: offsets [0, 400) are only in its tier" in caplog.text
    name = "log-start-offset-checkpoint"
    assert (example / name).read_text() == (to / name).read_text()
    tier = example.parent / "bucket"
    assert 600 == segmentlog.read(to, "visits", remote_storage=tier).num_rows


def test_bytes_that_read_back_as_others_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may lie; the file does not get its name."""
    source, to = filled(tmp_path / "a"), tmp_path / "b"
    real = os.copy_file_range

    def lying(source: int, target: int, count: int, at: int, to: int) -> int:
        copied = real(source, target, count, at, to)
        os.pwrite(target, b"\xff", to)
        return copied

    monkeypatch.setattr(os, "copy_file_range", lying)
    with pytest.raises(StorageError, match="read back as other bytes"):
        segmentlog.mirror(source, to=to)
    assert not [*(to / "t-0").glob("*.log")]


def test_holes_stay_holes_also_without_the_help_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preallocated indexes take no space; some file systems cannot copy by themselves."""

    def refused(*_: object) -> int:
        raise OSError(18, "another file system")

    for is_refused in (False, True):
        source, target = tmp_path / "source", tmp_path / f"target{is_refused}"
        with source.open("wb") as file:
            file.write(b"a" * 4096)
            file.seek(8 << 20)
            file.write(b"z")
            file.truncate(16 << 20)
        if is_refused:
            monkeypatch.setattr(os, "copy_file_range", refused)
        with source.open("rb") as read, target.open("wb") as written:
            copy.copy_range(
                read.fileno(), written.fileno(), written.name, 0, 16 << 20, lambda _: None
            )
        assert source.read_bytes() == target.read_bytes()
        assert target.stat().st_blocks <= source.stat().st_blocks + 16


def test_a_file_that_is_shorter_than_listed_is_an_error(tmp_path: Path) -> None:
    """The bytes that it lacks would become zeros, as those of a hole do."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"a" * 5000)
    n_copied: list[int] = []
    with (
        source.open("rb") as read,
        target.open("wb") as written,
        pytest.raises(OSError, match="shorter than it was listed") as caught,
    ):
        copy.copy_range(read.fileno(), written.fileno(), written.name, 0, 9000, n_copied.append)
    assert str(source) == caught.value.filename
    assert 5000 == sum(n_copied)


def repeated_after_kills(tmp_path: Path, before: Path, sources: Sequence[Path], every: int) -> int:
    """Kill a mirror at each call that changes the disk; it is whole when it is repeated.

    After each kill, the destination is readable, and has a log without a hole.
    """
    number, is_whole = 0, False
    log = segmentlog.open_replicas(*sources).log(*T0)
    logs = [read_values(log), read_values(segmentlog.open_log_dir(before).log(*T0))]
    while not is_whole:
        to = tmp_path / f"to{number}"
        shutil.copytree(before, to)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                only(sources, to)
                is_whole = True
            except Crash:
                pass
        if [*(to / "t-0").glob("*.log")]:
            for end in ("highWatermark", "logEnd"):
                read = read_values(segmentlog.open_log_dir(to).log(*T0), end)
                assert any(set(read.items()) <= set(each.items()) for each in logs), number
                assert [*read] == [*range(min(read, default=0), max(read, default=-1) + 1)], number
        segmentlog.mirror(*sources, to=to)
        assert files(Path(log.path).parent) == files(to), number
        assert not [*to.glob("*.unfinished.*"), *to.rglob("*.cleaned"), *to.rglob("*.tmp")]
        shutil.rmtree(to)
        number += every
    return number


def read_values(log: segmentlog.Log, end: str = "logEnd") -> dict[int, bytes]:
    """Values by their offsets."""
    table = log.scan(columns=["offset", "value"], read_up_to=end).read_all()
    return dict(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_a_broker_can_start_after_a_killed_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker reads an offset from the name of each `.cleaned` file, and stops without one."""
    temporary: list[str] = []

    def note(_: str, forward: Forward) -> object:
        temporary.append(Path(str(forward.args[0])).name)
        return forward()

    around_calls(monkeypatch, ["replace", "rename"], note)
    segmentlog.mirror(filled(tmp_path / "a"), to=tmp_path / "b")
    assert {"partition.metadata.tmp", "leader-epoch-checkpoint.tmp"} < {*temporary}
    cleaned = [each for each in temporary if each.endswith(".cleaned")]
    assert cleaned
    assert all(each[:20].isdigit() for each in cleaned)


def test_a_killed_mirror_leaves_no_mark_of_a_clean_stop(tmp_path: Path) -> None:
    """A broker that finds the mark trusts a batch that is half copied."""
    source, to = filled(tmp_path / "a"), tmp_path / "to"
    only([source], to)
    mark = '{"version":0,"brokerEpoch":7}'
    (to / CLEAN_SHUTDOWN_FILE).write_text(mark)
    filled(source)
    states = copy_states(to, lambda: segmentlog.mirror(source, to=to), tmp_path / "states")
    ends = [files(states[0]), files(states[-1])]
    marked = [each for each in states if (each / CLEAN_SHUTDOWN_FILE).exists()]
    assert all(files(each) in ends for each in marked)
    assert {mark} == {(each / CLEAN_SHUTDOWN_FILE).read_text() for each in (marked[0], to)}
    assert 2 <= len(marked) < len(states) - 10


@cut_loop
def test_a_cut_that_is_killed_can_be_repeated(tmp_path: Path, every: int) -> None:
    """The destination follows the log of another leader."""
    killed, before = killed_in_sequence(tmp_path), tmp_path / "before"
    only([killed[0]], before)
    assert repeated_after_kills(tmp_path, before, killed, every) > 40


@cut_loop
def test_a_mirror_that_is_killed_can_be_repeated(tmp_path: Path, every: int) -> None:
    """The source has removed a segment, has compacted another one, and has new ones."""
    source, before = filled(tmp_path / "a", 6), tmp_path / "before"
    only([source], before)
    filled(source, 2)
    logs = sorted((source / "t-0").glob("*.log"))
    for each in (source / "t-0").glob(f"{logs[0].stem}.*"):
        each.unlink()
    logs[3].write_bytes((filled(tmp_path / "c", 6) / "t-0" / logs[3].name).read_bytes())
    assert repeated_after_kills(tmp_path, before, [source], every) > 60
