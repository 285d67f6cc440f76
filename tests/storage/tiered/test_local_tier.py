"""Logs whose beginning is in a tier of Kafka's own layout, and tiers without a log directory."""

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crashing import Crash, crash_at
from tiers import TOPIC_ID, Listed, announce, copy_segment, remove_local, written

import segmentlog
from segmentlog.errors import (
    LogDirectoryError,
    OptionError,
    RemoteSegmentError,
    SegmentLogError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT
from segmentlog.log.checkpoint import read_leader_epochs, read_offsets, write_offsets
from segmentlog.log.listing import list_segments
from segmentlog.maintain.verification.findings import FindingKind, Severity
from segmentlog.model import TopicPartition
from segmentlog.reads.scan import scan_slice
from segmentlog.store.readable import survey
from segmentlog.tiered import disk
from segmentlog.tiered.layout import LocalTier, RemoteFileKind, RemoteSegment
from segmentlog.txn.guard import list_guards


class Tiered:
    """A log directory with a tier, and the whole log as it was before.

    Parameters
    ----------
    root : a new directory.
    """

    def __init__(self, root: Path) -> None:
        self.local, self.tier = root / "local", root / "tier"
        self.partition = written(self.local)
        self.rows = segmentlog.open_log_dir(self.local).log("t", 0).scan().read_all()

    def copy(self, *base_offsets: int, epochs: tuple[tuple[int, int], ...] = ((0, 0),)) -> None:
        """Copy segments of 100 records."""
        for each in base_offsets:
            copy_segment(self.partition, self.tier, each, each + 100, epochs)

    def move(self, base_offsets: Iterable[int]) -> None:
        """Copy segments, announce the copies, and remove the local files."""
        listed = []
        for each in base_offsets:
            path = copy_segment(self.partition, self.tier, each, each + 100)
            listed.append(Listed(path.name[21:43], each, each + 99, path.stat().st_size))
        announce(self.local, listed)
        remove_local(self.partition, *base_offsets)

    def log(self, **options: Any) -> segmentlog.Log:
        """The log with its tier."""
        opened = segmentlog.open_log_dir(self.local, remote_storage=self.tier, **options)
        return opened.log("t", 0)


@pytest.fixture
def tiered(tmp_path: Path) -> Tiered:
    """Nine segments are in the tier, and the last four are local: three are in both."""
    made = Tiered(tmp_path)
    made.copy(*range(0, 900, 100))
    remove_local(made.partition, *range(0, 600, 100))
    return made


def test_a_log_begins_in_its_tier(tiered: Tiered) -> None:
    """Scans, ranges and look-ups do not show where a segment is."""
    log = tiered.log()
    middle = tiered.rows["timestamp"][350].as_py()

    assert 600 == segmentlog.open_log_dir(tiered.local).log("t", 0).log_start_offset
    assert (0, 1000) == (log.log_start_offset, log.end_offset())
    assert tiered.rows == log.scan().read_all()
    assert tiered.rows.slice(550, 100) == log.scan(550, 650).read_all()
    assert log.offset_for_timestamp(middle).offset <= 350
    slices = log.slices(0, 1000, 3000)
    assert 10 == len(slices)
    rows = [row for each in slices for batch in scan_slice(each) for row in batch.to_pylist()]
    assert tiered.rows.to_pylist() == rows


def test_datasets_and_tables_take_a_tier(tiered: Tiered) -> None:
    """The options have equal names everywhere."""
    options: dict[str, Any] = {"remote_storage": tiered.tier, "remote_storage_layout": "local"}

    assert 1000 == segmentlog.dataset(tiered.local, **options).count_rows()
    assert 10 == segmentlog.read(tiered.local, "t", last=10, **options).num_rows
    assert 900 == segmentlog.read(None, "t", **options).num_rows
    assert 900 == segmentlog.dataset(**options).count_rows()


def test_a_tier_alone(tiered: Tiered) -> None:
    """The log ends with the last segment that was copied."""
    directory = segmentlog.open_log_dir(remote_storage=tiered.tier)
    log = directory.log("t", 0)

    assert {"t": [0]} == directory.topics()
    assert (0, 900) == (log.log_start_offset, log.end_offset())
    assert tiered.rows.slice(0, 900) == log.scan().read_all()
    assert TOPIC_ID == log.topic_id
    epochs = os.path.join(log.partition.path, LEADER_EPOCH_CHECKPOINT)
    assert ((0, 0),) == read_leader_epochs(epochs)


def test_a_topic_that_was_created_again(tiered: Tiered, caplog: pytest.LogCaptureFixture) -> None:
    """The topic that was written last is read, and the other is named."""
    other = tiered.tier / f"t-0-{'A' * 22}"
    shutil.copytree(tiered.tier / f"t-0-{TOPIC_ID}", other)
    for path in other.iterdir():
        if not path.name.startswith("0" * 17 + "0"):
            path.unlink()
    for path in other.iterdir():
        os.utime(path, (1, 1))
    log = segmentlog.open_log_dir(remote_storage=tiered.tier).log("t", 0)

    assert 900 == log.end_offset()
    assert "A" * 22 in caplog.text


def test_partitions_of_two_topics_do_not_mix(
    tiered: Tiered, caplog: pytest.LogCaptureFixture
) -> None:
    """The newer topic has copied no segment of a partition that the older topic has."""
    for number in (0, 1):
        other = tiered.tier / f"t-{number}-{'A' * 22}"
        shutil.copytree(tiered.tier / f"t-0-{TOPIC_ID}", other)
        for path in other.iterdir():
            os.utime(path, (1, 1))

    assert {"t": [0]} == segmentlog.open_log_dir(remote_storage=tiered.tier).topics()
    assert f"with the topic id {TOPIC_ID}, and not {'A' * 22}" in caplog.text


def test_a_partition_without_its_topic_id(
    tiered: Tiered, caplog: pytest.LogCaptureFixture
) -> None:
    """The tier may have the first offsets, so the local log is not returned as the whole log."""
    (tiered.partition / "partition.metadata").unlink()
    with pytest.raises(RemoteSegmentError, match=f"has no topic id, and the tier .*: {TOPIC_ID}"):
        tiered.log().scan()
    found = tiered.log(fail_on_data_loss=False).scan().read_all()

    assert tiered.rows.slice(600) == found
    assert "is read without the tier" in caplog.text
    shutil.rmtree(tiered.tier / f"t-0-{TOPIC_ID}")
    assert tiered.rows.slice(600) == tiered.log().scan().read_all()


def test_the_local_log_wins(tiered: Tiered) -> None:
    """A remote copy of local offsets is not opened, even if it is damaged."""
    for path in (tiered.tier / f"t-0-{TOPIC_ID}").glob("00000000000000000[678]*.log"):
        path.write_bytes(b"damaged")

    assert tiered.rows == tiered.log().scan().read_all()


def test_deleted_records_stay_hidden(tiered: Tiered) -> None:
    """The log start of the checkpoint lies in a remote segment."""
    checkpoint = tiered.local / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 250\n")
    log = tiered.log()

    assert 250 == log.log_start_offset
    assert tiered.rows.slice(250) == log.scan().read_all()


def test_records_of_the_tier_are_deleted(tiered: Tiered) -> None:
    """The log start moves within the tier, by an offset; a time is looked up in local segments."""
    write_offsets(str(tiered.local), "log-start-offset-checkpoint", {TopicPartition("t", 0): 0})

    done = segmentlog.delete_records(tiered.local, "t", 0, offset=250)
    assert (0, 250, 0) == (done.old_start, done.new_start, done.segments)
    assert tiered.rows.slice(250) == tiered.log().scan().read_all()
    segmentlog.delete_records(tiered.local, "t", 0, offset=100)
    segmentlog.delete_records(tiered.local, "t", 0, before=0)
    assert tiered.rows.slice(250) == tiered.log().scan().read_all()
    segmentlog.delete_records(tiered.local, "t", 0, offset=650)
    assert tiered.rows.slice(650) == tiered.log().scan().read_all()


def test_offsets_below_the_log_start_may_be_missing(tiered: Tiered) -> None:
    """Offsets that a deletion has hidden are no error: once it is decided, finished or not."""
    write_offsets(str(tiered.local), "log-start-offset-checkpoint", {TopicPartition("t", 0): 0})
    for path in (tiered.tier / f"t-0-{TOPIC_ID}").glob(f"{500:020d}-*"):
        path.unlink()
    before, entries = tiered.local, list[int]()
    for number in itertools.count():
        tiered.local = before.with_name(f"cut-{number}")
        shutil.copytree(before, tiered.local)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Crash):
            crash_at(patch, number)
            segmentlog.delete_records(tiered.local, "t", 0, offset=650)
        if 650 == segmentlog.open_log_dir(tiered.local).log("t", 0).log_start_offset:
            entries += read_offsets(str(tiered.local), "log-start-offset-checkpoint").values()
            assert tiered.rows.slice(650) == tiered.log().scan().read_all()
            assert [] == [
                each
                for each in segmentlog.verify(tiered.local, remote_storage=tiered.tier)
                if each.kind is FindingKind.OFFSET_GAP and each.severity is not Severity.NOTE
            ]
            if not list_guards(str(tiered.local)):
                break
        else:
            with pytest.raises(RemoteSegmentError, match=r"offsets \[500, 600\) of t-0"):
                tiered.log().scan()
    assert {0, 650} == {*entries}


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("use_threads", [True, False])
def test_retention_moves_segments_to_the_tier_during_a_read(
    tmp_path: Path, *, fail_on_data_loss: bool, use_threads: bool
) -> None:
    """The broker's list is read again, and so is the tier: no offset is left out."""
    made = Tiered(tmp_path)
    made.move(range(0, 300, 100))
    log = made.log(fail_on_data_loss=fail_on_data_loss)
    slices = log.slices(0, 1000)
    assert made.rows == log.scan(use_threads=use_threads).read_all()
    made.move(range(300, 600, 100))

    rows = [row for each in slices for batch in scan_slice(each) for row in batch.to_pylist()]
    assert made.rows.to_pylist() == rows
    assert made.rows == log.scan(use_threads=use_threads).read_all()


def test_a_partition_that_is_looked_at_after_retention(tmp_path: Path) -> None:
    """The tier was listed for another partition before the segments came there."""
    made = Tiered(tmp_path)
    made.move(range(0, 300, 100))
    directory = segmentlog.open_log_dir(made.local, remote_storage=made.tier)
    assert directory.log("__remote_log_metadata", 0).log_end_offset > 0
    made.move(range(300, 600, 100))

    assert made.rows == directory.log("t", 0).scan().read_all()


def test_threads_share_what_is_known_of_a_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen threads ask for partitions: the tier and the broker's list are read once."""
    made = Tiered(tmp_path)
    made.move(range(0, 300, 100))
    for number in range(1, 16):
        shutil.copytree(made.partition, made.local / f"t-{number}")
        shutil.copytree(made.tier / f"t-0-{TOPIC_ID}", made.tier / f"t-{number}-{TOPIC_ID}")
    asked: list[str] = []

    def noting(name: str, function: Any) -> Any:
        def noted(*args: Any) -> Any:
            asked.append(name)
            time.sleep(0.01)  # and the other threads come
            return function(*args)

        return noted

    monkeypatch.setattr(disk, "remote_segments", noting("metadata", disk.remote_segments))
    monkeypatch.setattr(LocalTier, "logs", noting("logs", LocalTier.logs))
    (path,) = segmentlog.open_log_dir(made.local, remote_storage=made.tier).paths
    survey(path)
    asked.clear()
    with ThreadPoolExecutor(16) as threads:
        listed = threads.map(list_segments, [f"{path}/t-{number}" for number in range(16)])

    assert [10] * 16 == [len(each) for each in listed]
    assert ["logs", "metadata"] == sorted(asked)


def test_segments_of_a_lost_lineage_are_left_out(tmp_path: Path) -> None:
    """An unclean election has cut the log at 300: epoch 1 is not in the log."""
    made = Tiered(tmp_path)
    made.copy(0, 100, 200, epochs=((0, 0),))
    made.copy(300, 400, epochs=((0, 0), (1, 300)))  # a leader that has lost
    copied = made.tier / f"t-0-{TOPIC_ID}"
    for path in copied.glob("00000000000000000[34]*.log"):
        path.write_bytes(path.read_bytes()[:-1] + b"!")  # whose records would be an error
    made.copy(300, 400, 500, epochs=((0, 0), (2, 300)))
    (made.partition / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n2 300\n")
    remove_local(made.partition, *range(0, 600, 100))

    assert made.rows == made.log().scan().read_all()
    alone = segmentlog.open_log_dir(remote_storage=made.tier).log("t", 0)
    assert made.rows.slice(0, 600) == alone.scan().read_all()


def test_overlaps_of_two_leaders_are_read_once(tmp_path: Path) -> None:
    """The second leader has copied offsets again, with other borders."""
    made, other = Tiered(tmp_path), tmp_path / "other"
    made.copy(0, 100, 200)
    partition = made.partition
    other.mkdir()
    joined = b"".join((partition / f"{base:020d}.log").read_bytes() for base in (200, 300, 400))
    half = (partition / f"{100:020d}.log").read_bytes()
    (other / f"{100:020d}.log").write_bytes(half + joined)
    copy_segment(other, made.tier, 100, 500, ((0, 0), (1, 250)))
    made.copy(500, epochs=((0, 0), (1, 250)))
    (partition / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 250\n")
    remove_local(partition, *range(0, 600, 100))

    assert made.rows == made.log().scan().read_all()


def test_a_local_log_begins_inside_a_remote_segment(tmp_path: Path) -> None:
    """A remote segment is read up to the first local offset."""
    made, other = Tiered(tmp_path), tmp_path / "other"
    other.mkdir()
    data = [(made.partition / f"{base:020d}.log").read_bytes() for base in range(0, 900, 100)]
    (other / f"{0:020d}.log").write_bytes(b"".join(data))
    copy_segment(other, made.tier, 0, 900)
    remove_local(made.partition, *range(0, 500, 100))
    log = made.log()

    assert made.rows == log.scan().read_all()
    assert sum(map(len, data[:5])) == log.segments[0].size


@pytest.mark.parametrize("gap", [300, 500])
def test_missing_offsets_are_an_error(
    tmp_path: Path, gap: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the offsets; on request, they are left out."""
    made = Tiered(tmp_path)
    made.copy(*(base for base in range(0, 600, 100) if base != gap))
    remove_local(made.partition, *range(0, 600, 100))

    with pytest.raises(RemoteSegmentError, match=rf"offsets \[{gap}, {gap + 100}\) of t-0"):
        made.log().scan()
    found = made.log(fail_on_data_loss=False).scan().read_all()
    assert pa.concat_tables([made.rows.slice(0, gap), made.rows.slice(gap + 100)]) == found
    assert f"offsets [{gap}, {gap + 100})" in caplog.text


def test_a_tier_without_a_segment_of_the_log_is_an_error(
    tiered: Tiered, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint shows that records are elsewhere: the tier is that of another cluster."""
    write_offsets(str(tiered.local), "log-start-offset-checkpoint", {TopicPartition("t", 0): 100})
    other = tmp_path / "other"
    other.mkdir()

    def read(**options: Any) -> pa.Table:
        return segmentlog.read(tiered.local, "t", remote_storage=other, **options)

    with pytest.raises(
        RemoteSegmentError, match=r"\[100, 600\) of t-0 .* the tier of this cluster"
    ):
        read()
    assert 400 == read(fail_on_data_loss=False).num_rows
    assert "[100, 600)" in caplog.text
    # Without remote segments, a log has no such entry, or begins at it.
    for entries in ({}, {TopicPartition("t", 0): 700}):
        write_offsets(str(tiered.local), "log-start-offset-checkpoint", entries)
        assert 300 <= read().num_rows <= 400


def test_a_fault_of_one_log_stops_no_read_of_another(tiered: Tiered) -> None:
    """A tier alone has no checkpoints, so that all its logs are listed when it is opened."""
    other = tiered.tier / f"u-0-{'A' * 22}"
    shutil.copytree(tiered.tier / f"t-0-{TOPIC_ID}", other)
    for path in other.glob(f"{300:020d}-*"):
        path.unlink()
    opened = segmentlog.open_log_dir(remote_storage=tiered.tier)

    assert tiered.rows.slice(0, 900) == opened.log("t", 0).scan().read_all()
    assert opened.refresh().log("t", 0).end_offset() == 900
    with pytest.raises(RemoteSegmentError, match=r"offsets \[300, 400\) of u-0"):
        opened.log("u", 0).scan()


def test_leader_epochs_that_cannot_be_read(tiered: Tiered) -> None:
    """The error names the object; the epochs of a copy of local offsets are not needed."""
    for base, is_read in ((800, True), (200, False)):
        (path,) = (tiered.tier / f"t-0-{TOPIC_ID}").glob(f"{base:020d}-*.leader_epoch_checkpoint")
        path.write_bytes(b"\xff")
        if is_read:
            assert tiered.rows == tiered.log().scan().read_all()
        else:
            with pytest.raises(RemoteSegmentError, match=f"{path.name}: line 1: expected version"):
                tiered.log().scan()


def test_messages_name_the_paths_that_were_given(tiered: Tiered) -> None:
    """They are those of the tier and of the log directory, and of no virtual disk."""
    nowhere = tiered.tier / "nowhere"
    for path in (tiered.local, None):
        with pytest.raises(OptionError, match=f"'{nowhere}'; there is no such directory"):
            segmentlog.verify(path, remote_storage=nowhere)
    with pytest.raises(OptionError, match=f"'{nowhere}'; there is no such directory"):
        segmentlog.open_log_dir(tiered.local, remote_storage=nowhere).log("t", 0).scan()
    with pytest.raises(LogDirectoryError, match=f"^{tiered.partition}: is a partition directory"):
        segmentlog.open_log_dir(tiered.partition, remote_storage=tiered.tier)
    for paths in ((tiered.local,), ()):
        opened = segmentlog.open_log_dir(*paths, remote_storage=tiered.tier)
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            opened.log("x", 0)
        assert "tiered://" not in str(caught.value)
        assert str((*paths, tiered.tier)[0]) in str(caught.value)


def test_a_copy_that_was_interrupted_is_not_read(tiered: Tiered) -> None:
    """Its last object is missing, so a broker has not announced it."""
    copied = copy_segment(tiered.partition, tiered.tier, 600, 700)
    copied.with_suffix(".leader_epoch_checkpoint").unlink()
    copied.write_bytes(b"half")

    alone = segmentlog.open_log_dir(remote_storage=tiered.tier).log("t", 0)
    assert tiered.rows.slice(0, 900) == alone.scan().read_all()


def test_a_missing_object_is_named(tiered: Tiered) -> None:
    """The segment is complete by its other objects."""
    log = tiered.log()
    assert 1000 == log.end_offset()
    (path,) = (tiered.tier / f"t-0-{TOPIC_ID}").glob(f"{'0' * 17}300-*.log")
    path.unlink()

    with pytest.raises(RemoteSegmentError, match=path.name):
        log.scan(350, 360).read_all()


def test_indexes_are_hints(tiered: Tiered) -> None:
    """Without its indexes, a remote segment is scanned."""
    for path in (tiered.tier / f"t-0-{TOPIC_ID}").glob("*index"):
        path.unlink()

    assert tiered.rows.slice(350, 10) == tiered.log().scan(350, 360).read_all()


def test_a_local_segment_that_goes_is_found_in_the_tier(tiered: Tiered) -> None:
    """Local retention removes segments while a read is planned."""
    log = tiered.log()
    slices = log.slices(600, 1000)
    remove_local(tiered.partition, 600, 700)
    rows = [row for each in slices for batch in scan_slice(each) for row in batch.to_pylist()]
    assert tiered.rows.slice(600).to_pylist() == rows


def test_a_local_segment_that_goes_between_two_listings_leaves_no_gap(tiered: Tiered) -> None:
    """The tier has the segment; the first listing was kept."""
    partition = tiered.log().partition
    assert 10 == len(partition.files())
    remove_local(tiered.partition, 600)

    assert list(range(0, 1000, 100)) == [each.base_offset for each in partition.files()]


def test_a_lost_end_is_reported(tiered: Tiered) -> None:
    """The high watermark promises more than the directory and the tier have."""
    remove_local(tiered.partition, 900)
    (tiered.local / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (tiered.local / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 1000\n")

    with pytest.raises(SegmentLogError, match=r"900, 1000"):
        tiered.log().scan().read_all()


def test_the_tier_is_listed_once(tiered: Tiered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand partitions would otherwise list the tier ten thousand times."""
    with segmentlog.open_writer(tiered.local, "other", num_partitions=5):
        pass
    n_listings = 0
    usual = LocalTier.logs

    def counted(self: LocalTier, topics: Sequence[str] = ()) -> object:
        nonlocal n_listings
        n_listings += 1
        return usual(self, topics)

    monkeypatch.setattr(LocalTier, "logs", counted)
    for log in segmentlog.open_log_dir(tiered.local, remote_storage=tiered.tier):
        assert log.end_offset() in (0, 1000)
    assert 1 == n_listings


def test_a_look_up_opens_few_objects(tiered: Tiered, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of ten records opens one log and its offset index, and neither of other segments."""
    log = tiered.log()
    assert 1000 == log.end_offset()  # the listing has looked at the end of each segment
    opened: list[tuple[int, str]] = []
    usual = LocalTier.open

    def noted(self: LocalTier, segment: RemoteSegment, part: RemoteFileKind) -> object:
        opened.append((segment.start_offset, str(part)))
        return usual(self, segment, part)

    monkeypatch.setattr(LocalTier, "open", noted)

    assert 10 == log.scan(350, 360).read_all().num_rows
    assert {(300, "log"), (300, "index")} == set(opened)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({}, "path"),
        ({"remote_storage_layout": "local"}, "remote_storage_layout"),
        ({"remote_storage": "/t", "remote_storage_layout": "aivn"}, "remote_storage_layout"),
        ({"remote_storage_key_file": "/k"}, "remote_storage_key_file"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], option: str) -> None:
    """The error names the option."""
    with pytest.raises(OptionError) as caught:
        segmentlog.open_log_dir(**options)
    assert option == caught.value.option


def test_a_first_segment_without_its_log_is_reported(
    tiered: Tiered, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a checkpoint of log starts, the first leader epoch shows where the log begins."""
    (tiered.local / "log-start-offset-checkpoint").unlink(missing_ok=True)
    (tiered.partition / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (first,) = tiered.tier.glob(f"*/{0:020d}-*.log")
    first.unlink()

    assert tiered.rows.slice(100) == tiered.log().scan().read_all()
    assert any("at offset 100 in the tier, and at offset 0" in each for each in caplog.messages)
