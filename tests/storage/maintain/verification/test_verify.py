"""`segmentlog.verify`: its findings, and the calls that it refuses."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog import Finding, FindingKind, Severity
from segmentlog.errors import LogDirectoryError, OptionError, UnknownTopicOrPartitionError
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE, HIGH_WATERMARK_CHECKPOINT


@pytest.fixture
def directory(example_data: str, tmp_path: Path) -> Path:
    """A copy of a broker's directory."""
    copy = tmp_path / "kafka"
    shutil.copytree(example_data, copy)
    return copy


def flip(path: Path, at: int) -> None:
    """Change a bit of one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_brokers_directory_has_a_note_only(example_data: str) -> None:
    """The note has the range of offsets that compaction has removed."""
    done: list[int] = []
    (note,) = segmentlog.verify(example_data, records=True, producers=True, on_bytes=done.append)
    n_bytes = sum(path.stat().st_size for path in Path(example_data).glob("*/*.log"))

    assert (Severity.NOTE, FindingKind.OFFSET_GAP) == (note.severity, note.kind)
    assert ("customers", 0, 0, 71) == (note.topic, note.partition, note.offset, note.end_offset)
    assert n_bytes == sum(done)


def test_what_a_writer_appends_after_the_listing_is_no_fault_of_an_index(tmp_path: Path) -> None:
    """The batches are read up to the listed end, and the indexes are read as they are now."""

    def append() -> None:
        with segmentlog.open_writer(tmp_path, "t") as writer:
            writer.append(pa.table({"value": [bytes(3000)] * 40}))

    append()
    opened = segmentlog.open_log_dir(tmp_path)
    assert opened.log("t", 0).log_end_offset == 40
    append()
    assert [] == segmentlog.verify(opened)
    assert [] == segmentlog.verify(tmp_path)


def test_records_that_are_replaced_meanwhile_end_the_check_of_their_log_alone(
    tmp_path: Path,
) -> None:
    """A note names the log; the other logs are verified."""
    for topic in ("a", "b"):
        with segmentlog.open_writer(tmp_path, topic) as writer:
            writer.append(pa.table({"value": ["v"]}))
    opened = segmentlog.open_log_dir(tmp_path)
    with segmentlog.open_writer(tmp_path, "a", overwrite=True) as writer:
        writer.append(pa.table({"value": ["w"]}))
    flip(tmp_path / "b-0" / f"{0:020d}.log", 65)
    note, *others = segmentlog.verify(opened)

    assert (Severity.NOTE, "a") == (note.severity, note.topic)
    assert ("b", FindingKind.CORRUPT_BATCH) in [(each.topic, each.kind) for each in others]


@pytest.mark.parametrize(
    ("is_promised", "is_clean", "expected"),
    [
        (True, True, (Severity.ERROR, FindingKind.CORRUPT_BATCH)),
        (False, True, (Severity.WARNING, FindingKind.TORN_TAIL)),
        (True, False, (Severity.WARNING, FindingKind.TORN_TAIL)),
    ],
)
def test_a_bad_last_batch_was_whole_if_a_clean_stop_followed_its_acknowledgement(
    tmp_path: Path, expected: object, *, is_promised: bool, is_clean: bool
) -> None:
    """Otherwise, a crash may have cut the write short."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(pa.table({"value": ["v"]}))
    if not is_promised:
        (tmp_path / HIGH_WATERMARK_CHECKPOINT).write_text("0\n1\nt 0 0\n")
    if not is_clean:
        (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    flip(tmp_path / "t-0" / f"{0:020d}.log", 65)
    kinds = {FindingKind.CORRUPT_BATCH, FindingKind.TORN_TAIL}
    found = [each for each in segmentlog.verify(tmp_path) if each.kind in kinds]

    assert [expected] == [(each.severity, each.kind) for each in found]


def test_damage_is_found_in_the_chosen_partitions_alone(directory: Path) -> None:
    """Topics and partitions are chosen by one name or number, or by several."""
    flip(directory / "orders-1" / f"{0:020d}.log", 100)
    seen: list[Finding] = []
    found = segmentlog.verify(directory, on_finding=seen.append)

    assert seen == found
    (damage,) = [each for each in found if each.severity is Severity.ERROR]
    assert (FindingKind.CORRUPT_BATCH, "orders", 1, 0) == (
        damage.kind,
        damage.topic,
        damage.partition,
        damage.offset,
    )
    for chosen in ({"topics": "orders"}, {"topics": ["orders", "payments"], "partitions": (0, 1)}):
        assert [damage] == segmentlog.verify(directory, **chosen)
    opened = segmentlog.open_log_dir(directory)
    assert [] == segmentlog.verify(opened, topics="orders", partitions=[0, 2])


def test_the_offsets_that_a_recovery_would_cut_are_a_finding(directory: Path) -> None:
    """A broker that starts without a clean stop cuts the log at the damaged batch."""
    (directory / ".kafka_cleanshutdown").unlink()
    flip(directory / "orders-1" / f"{0:020d}.log", 100)
    *_, cut = segmentlog.verify(directory, topics="orders")

    assert (Severity.WARNING, FindingKind.RECOVERY_CUT) == (cut.severity, cut.kind)
    assert ("orders", 1, 0, 317) == (cut.topic, cut.partition, cut.offset, cut.end_offset)


def test_a_partition_and_a_commit_that_are_lost_come_first(directory: Path) -> None:
    """They concern the directory, and not one log that is there."""
    directory = directory.rename(directory.with_name("a $disk"))
    shutil.rmtree(directory / "orders-1")
    (directory / "segmentlog.unfinished.x").mkdir()
    found = segmentlog.verify(directory)
    kinds = [each.kind for each in found]

    assert [FindingKind.UNFINISHED_COMMIT, FindingKind.MISSING_PARTITION] == kinds[:2]
    assert f"segmentlog recover '{directory}', finishes" in found[0].message


def test_calls_that_are_refused(directory: Path, tmp_path: Path) -> None:
    """The error names what is not there."""
    with pytest.raises(LogDirectoryError):
        segmentlog.verify(tmp_path / "nothing")
    for chosen in ({"topics": "none"}, {"topics": "orders", "partitions": 7}):
        with pytest.raises(UnknownTopicOrPartitionError):
            segmentlog.verify(directory, **chosen)
    for wrong in ({"topics": [1]}, {"partitions": "0"}, {"partitions": -1}):
        with pytest.raises(OptionError):
            segmentlog.verify(directory, **wrong)
