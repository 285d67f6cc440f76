"""Topics that come back from the directories that a broker has renamed."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broker_lock import as_broker
from crashing import Crash, crash_at, cut_loop
from preserved_rows import rows
from producer_batches import batch, plant
from soundness import assert_settled

import segmentlog
from segmentlog import (
    LogDirectoryError,
    LogLockedError,
    OptionError,
    StorageError,
    UnknownTopicOrPartitionError,
    UsageKind,
)
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.maintain.restoration import restore as restore_module
from segmentlog.maintain.restoration import undelete as module
from segmentlog.txn import effects
from segmentlog.txn.change import Change
from segmentlog.txn.topics import take_out
from segmentlog.writes import commit, job

TOPIC = "or.de-rs-1"  # dots and dashes, and a number at the end


def fill(directory: Path, first: int = 40, topic: str = TOPIC, n_partitions: int = 3) -> pa.Table:
    """Twenty records with offsets from `first` in each partition; returns what a read returns."""
    with segmentlog.open_writer(
        directory, topic, num_partitions=n_partitions, preserve=True
    ) as writer:
        for partition in range(n_partitions):
            table = rows(first, 20).drop_columns("partition")
            writer.append(table.append_column("partition", pa.array([partition] * 20, pa.int32())))
    return read(directory, topic)


def read(directory: Path, topic: str = TOPIC) -> pa.Table:
    """Everything of the records of a topic but its name."""
    found = segmentlog.read(directory, topic, include_headers=True)
    by = [("partition", "ascending"), ("offset", "ascending")]
    return found.drop_columns("topic").sort_by(by)


@pytest.fixture
def deleted(tmp_path: Path) -> tuple[Path, pa.Table]:
    """A directory with a topic that a broker has just deleted, and its records."""
    directory = tmp_path / "logs"
    records = fill(directory)
    take_out(str(directory), TOPIC)
    return directory, records


def renamed(directory: Path) -> list[Path]:
    """The renamed directories."""
    return sorted(directory.glob("*-delete"))


def files(directory: Path) -> dict[Path, bytes]:
    """All files below a directory, without its lock."""
    return {
        each: each.read_bytes()
        for each in directory.rglob("*")
        if each.is_file() and each.name != ".lock"
    }


def test_a_topic_comes_back_into_another_directory(deleted: tuple[Path, pa.Table]) -> None:
    """Offsets, times and headers are those of before; the source stays as it is."""
    directory, records = deleted
    before = files(directory)
    to = directory.parent / "saved"
    found = segmentlog.undelete(directory, TOPIC, to=to)

    assert [20, 20, 20] == [each.n_records for each in found.partitions]
    assert [str(each) for each in renamed(directory)] == [each.source for each in found.partitions]
    assert records.equals(read(to))
    assert before == files(directory)
    assert [] == [each.message for each in segmentlog.verify(to)]


def test_a_directory_is_not_made_for_a_topic_that_lacks_a_partition(
    deleted: tuple[Path, pa.Table],
) -> None:
    """The error says what is missing: the broker has removed all segments of a partition."""
    directory, _ = deleted
    for each in renamed(directory)[0].iterdir():
        each.unlink()
    with pytest.raises(LogDirectoryError, match=r"cannot take the records: .*-0 is not in the"):
        segmentlog.undelete(directory, TOPIC, to=directory.parent / "saved")

    assert not (directory.parent / "saved").exists()


def test_a_topic_comes_back_beside_its_directories(deleted: tuple[Path, pa.Table]) -> None:
    """Also under another name; a second run has nothing to do, until there are other records."""
    directory, records = deleted
    segmentlog.undelete(directory, TOPIC)
    segmentlog.undelete(directory, TOPIC, as_topic="other")

    assert records.equals(read(directory))
    assert records.equals(read(directory, "other"))
    assert 3 == len(renamed(directory))
    before = files(directory)
    for dry_run in (True, False):
        again = segmentlog.undelete(directory, TOPIC, dry_run=dry_run)
        assert {(str(directory),)} == {each.restored_before for each in again.partitions}
    assert before == files(directory)
    with segmentlog.open_writer(directory, TOPIC) as writer:
        writer.append(pa.table({"value": ["later"]}))
    with pytest.raises(LogDirectoryError, match=r"has offsets up to 61, .*\(as_topic, --as\)"):
        segmentlog.undelete(directory, TOPIC)


def test_a_topic_that_was_made_again_and_is_empty_takes_the_records(
    deleted: tuple[Path, pa.Table],
) -> None:
    """With as many partitions, and no other number."""
    directory, records = deleted
    for topic, number in ((TOPIC, 3), ("four", 4)):
        with segmentlog.open_writer(directory, topic, num_partitions=number):
            pass
    segmentlog.undelete(directory, TOPIC)
    with pytest.raises(LogDirectoryError, match="exists there with 4 partitions"):
        segmentlog.undelete(directory, TOPIC, as_topic="four")

    assert records.equals(read(directory))


def test_records_of_a_topic_that_was_made_again_stay_and_take_the_old_ones(
    deleted: tuple[Path, pa.Table],
) -> None:
    """The old offsets belong to other records now: a writer appends with new ones."""
    directory, records = deleted
    fill(directory, 7)
    with pytest.raises(LogDirectoryError, match="has offsets up to 27"):
        segmentlog.undelete(directory, TOPIC)
    segmentlog.undelete(directory, TOPIC, as_topic="before")
    columns = ["key", "value", "partition", "timestamp", "headers"]
    old = segmentlog.dataset(directory, "before", include_headers=True).scanner(columns)
    config = segmentlog.ProducerConfig(use_timestamps=True)
    with segmentlog.open_writer(directory, TOPIC, config=config) as writer:
        for batch in old.to_batches():
            writer.append(batch)

    found = read(directory)
    assert [*range(7, 47)] * 3 == found["offset"].to_pylist()
    assert records.select(columns).equals(
        found.filter(pa.compute.field("offset") >= 27).select(columns)
    )


def test_each_directory_can_be_read_by_its_path(deleted: tuple[Path, pa.Table]) -> None:
    """The bounds of a topic that was made again are not those of the deleted one."""
    directory, records = deleted
    with segmentlog.open_writer(directory, TOPIC, num_partitions=3) as writer:
        writer.append(pa.table({"value": [b"new"], "partition": pa.array([0], pa.int32())}))
    found = segmentlog.read(renamed(directory)[0], include_headers=True)

    assert found["offset"].to_pylist() == [*range(40, 60)]
    assert records.filter(pa.compute.field("partition") == 0).equals(found.drop_columns("topic"))


def test_the_list_says_what_is_known(
    deleted: tuple[Path, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running broker removes a deleted directory at a time, and a stray one never."""
    directory, _ = deleted
    stray = renamed(directory)[2]
    stray.rename(str(stray).replace("-delete", "-stray"))
    (directory / "meta.properties").write_text("version=1\nnode.id=1\n")
    properties = directory.parent / "server.properties"
    properties.write_text("log.segment.delete.delay.ms=7000\n")
    stopped = segmentlog.renamed_partitions(directory, server_properties=properties)
    with as_broker(directory):
        running = segmentlog.renamed_partitions(directory)

    assert [UsageKind.DELETE, UsageKind.DELETE, UsageKind.STRAY] == [each.kind for each in running]
    assert [TOPIC] * 3 == [each.topic for each in running]
    assert [(40, 60)] * 3 == [(each.log_start_offset, each.log_end_offset) for each in running]
    assert [60_000, 60_000, None] == [
        each.removed_ms and each.removed_ms - each.renamed_ms for each in running
    ]
    assert "Kafka's default, or server.properties" in running[0].removal
    with as_broker(directory):
        sooner = segmentlog.renamed_partitions(directory, server_properties=properties)[0]
    assert 7000 == (sooner.removed_ms or 0) - sooner.renamed_ms
    assert stopped[0].removed_ms is None
    assert stopped[0].removal.startswith(
        "a broker, 37 s after its next start, by log.segment.delete.delay.ms=7000 (server.prop"
    )
    assert "a broker leaves them" in stopped[2].removal
    monkeypatch.setattr(
        DirectorySettings,
        "read",
        lambda *_, **__: (_ for _ in ()).throw(LogDirectoryError("/m", "is damaged")),
    )
    assert "cannot be read: /m: is damaged" in segmentlog.renamed_partitions(directory)[0].removal


def test_a_directory_that_cannot_be_read_is_listed(deleted: tuple[Path, pa.Table]) -> None:
    """With the reason, and without offsets."""
    directory, _ = deleted
    first, second, _ = renamed(directory)
    (first / "partition.metadata").write_text("x")
    shutil.rmtree(second)
    second.mkdir()
    found = segmentlog.renamed_partitions(directory)

    assert "expected 'version: 0'" in found[0].problem
    assert (None, 40) == (found[0].topic_id, found[0].log_start_offset)
    assert found[1].problem


def test_what_a_broker_removes_while_the_list_is_made_is_left_out(
    deleted: tuple[Path, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with such a name is no partition, either."""
    directory, _ = deleted
    first = renamed(directory)[0]
    first.with_name(first.name.replace("-1-0.", "-1-3.")).touch()
    status_of = module.status_of

    def removed(path: str) -> Any:
        if path == str(first):
            shutil.rmtree(first)
        return status_of(path)

    monkeypatch.setattr(module, "status_of", removed)
    assert [1, 2] == [each.partition for each in segmentlog.renamed_partitions(directory)]


def test_a_directory_that_a_broker_has_half_removed_is_no_candidate(
    deleted: tuple[Path, pa.Table],
) -> None:
    """A broker removes the segments first, and may be killed then."""
    directory, records = deleted
    (directory / f"{TOPIC}-0.{'0' * 32}-delete").mkdir()
    segmentlog.undelete(directory, TOPIC)

    assert records.equals(read(directory))


def test_corrupt_batches_are_left_out_when_asked(tmp_path: Path) -> None:
    """Each partition has two batches of twenty records."""
    directory = tmp_path / "logs"
    fill(directory)
    records = fill(directory, 60)
    take_out(str(directory), TOPIC)
    (log,) = renamed(directory)[1].glob("*.log")
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    with pytest.raises(segmentlog.CorruptLogError, match=str(log)):
        segmentlog.undelete(directory, TOPIC)
    found = segmentlog.undelete(directory, TOPIC, on_corrupt_batch="skip")

    assert [40, 20, 40] == [each.n_records for each in found.partitions]
    is_there = (pa.compute.field("partition") != 1) | (pa.compute.field("offset") >= 60)
    assert records.filter(is_there).equals(read(directory))


def test_a_topic_whose_name_is_cut_in_the_directories(tmp_path: Path) -> None:
    """The full name is given, and becomes the name of the topic."""
    topic = "x" * 249
    records = fill(tmp_path / "logs", topic=topic)
    take_out(str(tmp_path / "logs"), topic)
    segmentlog.undelete(tmp_path / "logs", topic, to=tmp_path / "saved")

    assert records.equals(read(tmp_path / "saved", topic))


@pytest.fixture
def twice(tmp_path: Path) -> tuple[Path, list[pa.Table], list[str]]:
    """A topic that was deleted twice, with records and topic ids of each time."""
    directory = tmp_path / "logs"
    records, ids = [], []
    for first in (40, 700):
        records.append(fill(directory, first))
        ids.append(segmentlog.open_log_dir(directory).log(TOPIC, 0).topic_id)
        take_out(str(directory), TOPIC)
    return directory, records, ids


def test_several_topics_of_one_name_are_told_apart_by_id(
    twice: tuple[Path, list[pa.Table], list[str]],
) -> None:
    """The error lists them; an id that is not there is refused."""
    directory, records, ids = twice
    with pytest.raises(
        LogDirectoryError, match=r"2 topics that had the name .* \(ids, --id\)"
    ) as e:
        segmentlog.undelete(directory, TOPIC)
    assert all(each in str(e.value) for each in ids)
    for number in (0, 1):
        to = directory.parent / f"saved{number}"
        segmentlog.undelete(directory, TOPIC, ids=ids[number], to=to)
        assert records[number].equals(read(to))
    with pytest.raises(OptionError, match="no directory has this id"):
        segmentlog.undelete(directory, TOPIC, ids="nothing")
    with pytest.raises(OptionError, match="not both"):
        segmentlog.undelete(directory, TOPIC, ids=ids[0], deleted_before="1h")


def test_several_topics_of_one_name_are_told_apart_by_time(
    twice: tuple[Path, list[pa.Table], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last deletion before a time, at which all its partitions had been renamed."""
    directory, records, ids = twice
    look = module._look

    def at(*arguments: Any, **options: Any) -> Any:
        found = look(*arguments, **options)
        at_ms = (1 + ids.index(found.topic_id)) * 10**12
        return found._replace(renamed_ms=at_ms + found.partition)

    monkeypatch.setattr(module, "_look", at)
    for number, before_ms in enumerate((2 * 10**12 + 1, 2 * 10**12 + 3)):
        to = directory.parent / f"saved{number}"
        segmentlog.undelete(directory, TOPIC, deleted_before=before_ms, to=to)
        assert records[number].equals(read(to))
    with pytest.raises(OptionError, match="nothing was deleted before it"):
        segmentlog.undelete(directory, TOPIC, deleted_before=10**12 + 2)


def test_a_topic_without_records_is_no_candidate(deleted: tuple[Path, pa.Table]) -> None:
    """A client may have made it for a moment, and somebody deleted it as well."""
    directory, records = deleted
    with segmentlog.open_writer(directory, TOPIC, num_partitions=3):
        pass
    take_out(str(directory), TOPIC)
    assert 6 == len(renamed(directory))
    segmentlog.undelete(directory, TOPIC)

    assert records.equals(read(directory))


def test_directories_without_topic_ids(deleted: tuple[Path, pa.Table]) -> None:
    """They belong together unless a partition comes twice; then each is named by its own id."""
    directory, records = deleted
    fill(directory, 700)
    take_out(str(directory), TOPIC)
    wanted = [each for each in renamed(directory) if list(each.glob("*40.log"))]
    for each in renamed(directory):
        (each / "partition.metadata").unlink()
    with pytest.raises(LogDirectoryError, match="have partition 0 of"):
        segmentlog.undelete(directory, TOPIC)
    ids = [each.name.rpartition(".")[2].removesuffix("-delete") for each in wanted]
    assert 3 == len(ids)
    segmentlog.undelete(directory, TOPIC, ids=ids)

    assert records.equals(read(directory))


@pytest.mark.parametrize("gone", [0, 2])
def test_partitions_that_are_gone_are_left_out_when_asked(
    deleted: tuple[Path, pa.Table], gone: int
) -> None:
    """The last one shows only where the topic was made again."""
    directory, records = deleted
    shutil.rmtree(renamed(directory)[gone])
    with segmentlog.open_writer(directory, TOPIC, num_partitions=3):
        pass
    reason = "-0 is not in the sources" if not gone else "exists there with 3 partitions"
    with pytest.raises(LogDirectoryError, match=reason):
        segmentlog.undelete(directory, TOPIC)
    assert 0 == read(directory).num_rows
    found = segmentlog.undelete(directory, TOPIC, leave_out_partitions=True)

    assert [each for each in range(3) if each != gone] == [
        each.partition for each in found.partitions
    ]
    assert records.filter(pa.compute.field("partition") != gone).equals(read(directory))


def test_what_is_not_deleted_is_refused(deleted: tuple[Path, pa.Table]) -> None:
    """A name that no directory has, and a directory that is being moved."""
    directory, _ = deleted
    with pytest.raises(UnknownTopicOrPartitionError, match=f"there are directories of {TOPIC}"):
        segmentlog.undelete(directory, "or.de-rs")
    for each in renamed(directory):
        each.rename(str(each).replace("-delete", "-future"))
    with pytest.raises(OptionError, match="are -future or empty"):
        segmentlog.undelete(directory, TOPIC)
    with pytest.raises(OptionError, match="give a log directory"):
        segmentlog.undelete([], TOPIC)
    with pytest.raises(OptionError, match="reserved for brokers"):
        segmentlog.undelete(directory, TOPIC, as_topic="__consumer_offsets")


def fill_other(directory: Path) -> Path:
    """The directory of a partition of another topic."""
    fill(directory, topic="u", n_partitions=1)
    return directory / "u-0"


def test_targets_that_are_refused(deleted: tuple[Path, pa.Table], tmp_path: Path) -> None:
    """Within the source; several that belong to no broker; one that holds no logs."""
    directory, _ = deleted
    with pytest.raises(LogDirectoryError, match="lies in the source"):
        segmentlog.undelete(directory, TOPIC, to=directory / "in")
    with pytest.raises(OptionError, match="give one directory that belongs to no broker"):
        segmentlog.undelete(directory, TOPIC, to=[tmp_path / "a", tmp_path / "b"])
    with pytest.raises(LogDirectoryError, match="is a partition directory"):
        segmentlog.undelete(directory, TOPIC, to=fill_other(tmp_path / "other"))
    (tmp_path / "file").touch()
    with pytest.raises(LogDirectoryError, match="is a file"):
        segmentlog.undelete(directory, TOPIC, to=tmp_path / "file")


def test_a_high_watermark_that_a_killed_broker_has_left(tmp_path: Path) -> None:
    """A dry run says so, too, and no message tells to delete what is to be restored."""
    directory = tmp_path / "logs"
    records = fill(directory, n_partitions=1)
    (directory / f"{TOPIC}-0").rename(directory / f"{TOPIC}-0.{'a' * 32}-delete")
    (problem,) = segmentlog.undelete(directory, TOPIC, dry_run=True).problems
    with pytest.raises(LogDirectoryError, match="another directory") as caught:
        segmentlog.undelete(directory, TOPIC)

    assert f"still has {TOPIC}-0 at 60" in problem
    assert problem in str(caught.value)
    segmentlog.undelete(directory, TOPIC, to=tmp_path / "saved")
    assert records == read(tmp_path / "saved")


def test_a_dry_run_changes_nothing(deleted: tuple[Path, pa.Table]) -> None:
    """It has the plan and the problems, and makes no directory."""
    directory, _ = deleted
    before, to = files(directory.parent), directory.parent / "saved"
    plan = segmentlog.undelete(directory, TOPIC, to=to, dry_run=True)
    assert ([(40, 60)] * 3, ()) == ([each[4:6] for each in plan.partitions], plan.problems)
    shutil.rmtree(renamed(directory)[0])
    before = files(directory.parent)
    (problem,) = segmentlog.undelete(directory, TOPIC, to=to, dry_run=True).problems

    assert "-0 is not in the sources" in problem
    assert before == files(directory.parent)
    assert not to.exists()


def test_a_running_broker_keeps_its_directory(deleted: tuple[Path, pa.Table]) -> None:
    """Its deleted topics can be copied out meanwhile."""
    directory, records = deleted
    with as_broker(directory):
        with pytest.raises(LogLockedError):
            segmentlog.undelete(directory, TOPIC, lock_timeout_seconds=0)
        segmentlog.undelete(directory, TOPIC, to=directory.parent / "saved")

    assert records.equals(read(directory.parent / "saved"))


def test_a_broker_that_removes_a_directory_meanwhile(
    deleted: tuple[Path, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is restored, and the error names the file."""
    directory, _ = deleted
    last, to = renamed(directory)[2], directory.parent / "saved"
    real = restore_module.append_to

    def remove(*arguments: Any) -> Any:
        shutil.rmtree(last, ignore_errors=True)
        return real(*arguments)

    monkeypatch.setattr(module, "append_to", remove)
    with pytest.raises(segmentlog.SegmentLogError, match=last.name):
        segmentlog.undelete(directory, TOPIC, to=to)
    assert TOPIC not in segmentlog.open_log_dir(to).topics()


def test_a_full_disk_leaves_the_renamed_directories(
    deleted: tuple[Path, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitions that the job has made are removed, and nothing else of that name."""
    directory, records = deleted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segmentlog.writes.commit.Change.begin", full)
        with pytest.raises(StorageError):
            segmentlog.undelete(directory, TOPIC)
    assert 3 == len(renamed(directory))
    assert [] == list(directory.glob(f"{TOPIC}-[0-9]"))
    monkeypatch.setattr(module, "lacks_of_room", lambda _: iter(["the disk is too small"]))
    with pytest.raises(LogDirectoryError, match="the disk is too small"):
        segmentlog.undelete(directory, TOPIC)
    monkeypatch.undo()
    segmentlog.undelete(directory, TOPIC)
    assert records.equals(read(directory))


def full(*_: Any, **__: Any) -> Any:
    """Fail as a full disk fails."""
    raise OSError(28, os.strerror(28))


def crash(*_: Any, **__: Any) -> Any:
    """End as a process that is killed."""
    raise Crash


@pytest.mark.parametrize("place", ["the first record", "the topic is made", "the decision"])
def test_a_run_that_was_killed_is_repeated(
    deleted: tuple[Path, pa.Table], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers find nothing or all of the topic."""
    directory, records = deleted
    # A killed process does not remove what it has made.
    monkeypatch.setattr(job.DirectoryJob, "_remove_new", lambda *_: None)
    owner, name = {
        "the first record": (module, "append_to"),
        "the topic is made": (commit, "commit_staged"),
        "the decision": (Change, "_follow_decision"),
    }[place]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, crash)
        with pytest.raises(Crash):
            segmentlog.undelete(directory, TOPIC)
    there = segmentlog.open_log_dir(directory).topics()
    n_rows = read(directory).num_rows if TOPIC in there else 0
    assert n_rows == (60 if place == "the decision" else 0)
    again = segmentlog.undelete(directory, TOPIC)
    assert [20, 20, 20] == [each.n_records for each in again.partitions]
    had = (str(directory),) if place == "the decision" else ()
    assert {had} == {each.restored_before for each in again.partitions}
    assert records.equals(read(directory))


@pytest.mark.parametrize("to", ["logs", "saved"])
@cut_loop
def test_a_run_that_is_cut_at_any_call_is_repeated(
    deleted: tuple[Path, pa.Table], tmp_path: Path, to: str, every: int
) -> None:
    """Also if the repetition is cut: a broker removes the directories soon after its start."""
    directory, records = deleted
    shutil.move(directory, tmp_path / "base")
    n_cut = 0
    for number in range(0, 10_000, every):
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "base", root / "logs")
        made: list[str] = []
        for again in (number, *([] if number % 2 else [number // 2 + 3]), 0):
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Crash):
                found = crash_at(patch, again if again else 10_000)
                made = made or found
                segmentlog.undelete(root / "logs", TOPIC, to=root / to)
        assert records.equals(read(root / to)), number
        assert 3 == len(renamed(root / "logs"))
        segmentlog.recover(root / to)
        assert_settled(root / to)
        shutil.rmtree(root)
        n_cut += len(made) >= number
        if len(made) < number:
            break
    assert n_cut > 30 // every


def test_a_deletion_that_is_not_finished(tmp_path: Path) -> None:
    """The next writer of the directory would remove what is to be restored."""
    directory = tmp_path / "logs"
    records = fill(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effects, "renew_stamp", crash)
        with pytest.raises(Crash):
            segmentlog.delete_topic(directory, TOPIC)
    assert 3 == len(renamed(directory))
    with pytest.raises(LogDirectoryError, match="is not finished"):
        segmentlog.undelete(directory, TOPIC)
    segmentlog.undelete(directory, TOPIC, to=tmp_path / "saved")

    assert records.equals(read(tmp_path / "saved"))


def test_our_own_deletion_leaves_nothing(tmp_path: Path) -> None:
    """It removes the directories at once."""
    directory = tmp_path / "logs"
    fill(directory)
    segmentlog.delete_topic(directory, TOPIC)

    assert [] == segmentlog.renamed_partitions(directory)


def test_records_of_aborted_and_open_transactions_are_left_out(tmp_path: Path) -> None:
    """No coordinator will ever end these transactions; damaged batches are left out on request."""
    directory = tmp_path / "logs"
    with segmentlog.open_writer(directory, "t", num_partitions=1):
        pass
    plant(
        directory,
        batch(-1, -1, -1, 2),
        batch(7, 0, 0, 3, base_offset=2, is_transactional=True),
    )
    take_out(str(directory), "t")
    (found,) = segmentlog.undelete(directory, "t", to=tmp_path / "saved").partitions

    assert (2, 1) == (found.n_records, found.n_ended)
    assert [0, 1] == segmentlog.read(tmp_path / "saved", "t")["offset"].to_pylist()


@pytest.fixture
def several(deleted: tuple[Path, pa.Table]) -> tuple[list[Path], pa.Table]:
    """The partitions of a topic in two log directories of one broker."""
    directory, records = deleted
    other = directory.parent / "disk2"
    other.mkdir()
    shutil.move(renamed(directory)[1], other)
    return [directory, other], records


def test_partitions_in_several_directories(several: tuple[list[Path], pa.Table]) -> None:
    """They are restored together into one directory that belongs to no broker."""
    directories, records = several
    segmentlog.undelete(directories, TOPIC, to=directories[0])

    assert records.equals(read(directories[0]))
    shutil.copytree(renamed(directories[1])[0], directories[0] / renamed(directories[1])[0].name)
    with pytest.raises(LogDirectoryError, match="more than once"):
        segmentlog.undelete(directories, TOPIC, as_topic="x", to=directories[0])
