"""The start of a broker, predicted from its directories; the outcomes are those of Kafka 4.3.1."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from damaged_starts import (
    CLOSED,
    DAMAGES,
    FILES,
    FUTURE,
    FUTURES,
    Case,
    close,
    damage,
    predicted,
    recorded,
    second_disk,
    writable_copy,
)
from typer.testing import CliRunner

import segmentlog
from segmentlog import FindingKind, OptionError, RecoveryKind, Severity, StartAction, StartStep
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools.cli import app

CLUSTER = Path(__file__).parents[4] / "examples" / "cluster"
METADATA = "__cluster_metadata-0"
LOG = "00000000000000000000.log"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A copy of a directory that a broker has cleanly stopped."""
    return writable_copy(CLUSTER, tmp_path / "logs")


def harm(steps: list[StartStep]) -> list[tuple[StartAction, str, str]]:
    """Action, log and file of the steps that end a start, or lose a log."""
    return [
        (each.action, f"{each.topic}-{each.partition}" if each.topic else "", Path(each.path).name)
        for each in steps
        if each.has_harm
    ]


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(each, marks=[pytest.mark.slow] if i % 5 else [])
        for i, each in enumerate(FILES)
    ],
)
def test_each_damaged_file_has_the_outcome_that_a_broker_gave_it(
    tmp_path: Path, file: str
) -> None:
    """Refused, stray, emptied or started: after a clean stop and after a kill."""
    found, expected = {}, {}
    for kind in DAMAGES:
        for is_clean in (True, False):
            case = Case(file, kind, is_clean)
            copy = writable_copy(CLUSTER, tmp_path / kind / str(is_clean))
            damage(copy, case)
            found[case.name] = predicted(segmentlog.preflight(copy))
            expected[case.name] = recorded(case)
    assert expected == found


def test_a_sound_directory_only_has_things_that_its_disks_do_not_tell(directory: Path) -> None:
    """A truncation to the leader, an election and newer metadata; nothing in a cluster of one."""
    assert [] == segmentlog.preflight(directory, topics="invoices")
    (directory / METADATA).rename(directory.parent / METADATA)
    steps = segmentlog.preflight(directory, topics="invoices")
    assert [StartAction.UNKNOWN] * 5 == [each.action for each in steps]
    (directory.parent / METADATA).rename(directory / METADATA)
    assert not [each for each in segmentlog.verify(directory) if each.severity != Severity.NOTE]


def change(name: str, old: str, new: str) -> Callable[[Path], object]:
    """Replace text in a file of the directory."""
    return lambda to: (to / name).write_text(re.sub(old, new, (to / name).read_text()))


def write(name: str, data: bytes) -> Callable[[Path], object]:
    """Write a file of the directory."""
    return lambda to: (to / name).write_bytes(data)


def append(name: str, data: bytes) -> Callable[[Path], object]:
    """Append to a file of the directory."""
    return lambda to: (to / name).write_bytes((to / name).read_bytes() + data)


def in_turn(*changes: Callable[[Path], object]) -> Callable[[Path], object]:
    """Make several changes of the directory."""
    return lambda to: [each(to) for each in changes]


REFUSE, OFFLINE, UNSERVED = StartAction.REFUSE, StartAction.OFFLINE, StartAction.UNSERVED
ORDERS_1 = f"orders-1/{LOG}"

#: Changes of the directory, and the action of Kafka 4.3.1; None if it starts.
CHANGES: dict[str, tuple[Callable[[Path], object], StartAction | None]] = {
    "lost+found": (lambda to: (to / "lost+found").mkdir(), REFUSE),
    "a hidden directory": (lambda to: (to / ".snapshot").mkdir(), REFUSE),
    "a directory without a number": (lambda to: (to / "my-backup").mkdir(), REFUSE),
    "a link to a directory": (lambda to: (to / "linked").symlink_to(to.parent), REFUSE),
    "the cache of a tier": (lambda to: (to / "remote-log-index-cache").mkdir(), None),
    "a file": (write("notes.txt", b"x"), None),
    "one partition twice": (lambda to: shutil.copytree(to / "orders-0", to / "orders-00"), REFUSE),
    "a version of meta.properties": (change("meta.properties", "version=1", "version=2"), REFUSE),
    "no cluster.id": (change("meta.properties", "cluster.id=.*", ""), REFUSE),
    "a malformed directory.id": (
        change("meta.properties", "directory.id=.*", "directory.id=xyz"),
        REFUSE,
    ),
    "a reserved directory.id": (
        change("meta.properties", "directory.id=.*", "directory.id=AAAAAAAAAAAAAAAAAAAAAQ"),
        REFUSE,
    ),
    "broker.id of version 0": (change("meta.properties", "node.id=1(.*)version=1", ""), None),
    "a blank line in a checkpoint": (
        write("recovery-point-offset-checkpoint", b"0\n0\n\n"),
        REFUSE,
    ),
    "words in recovery points": (
        write("recovery-point-offset-checkpoint", b"0\n1\norders x y\n"),
        None,
    ),
    "words in high watermarks": (
        write("replication-offset-checkpoint", b"0\n1\norders x y\n"),
        UNSERVED,
    ),
    "words in leader epochs": (write("orders-1/leader-epoch-checkpoint", b"0\n1\nx y\n"), REFUSE),
    "an offset below 0 in leader epochs": (
        write("orders-1/leader-epoch-checkpoint", b"0\n1\n0 -5\n"),
        REFUSE,
    ),
    "more lines beside a topic id": (append("orders-1/partition.metadata", b"\nmore: x\n"), None),
    "a blank after a topic id": (append("orders-1/partition.metadata", b" \n"), REFUSE),
    "the topic id of another topic": (
        lambda to: shutil.copy(to / "invoices-1" / "partition.metadata", to / "orders-1"),
        UNSERVED,
    ),
    "a segment without an offset": (write("orders-1/abc.log", b"x"), REFUSE),
    "an index without an offset": (write("orders-1/abc.index", b"x"), REFUSE),
    "a snapshot without an offset": (write("orders-1/abc.snapshot", b"x"), REFUSE),
    "a snapshot of the metadata without an offset": (
        write(f"{METADATA}/abc.checkpoint", b"x"),
        REFUSE,
    ),
    "a segment below 0": (write("orders-1/-0000000000000000005.log", b"x"), None),
    "an index below 0": (write("orders-1/-0000000000000000005.index", b"x"), None),
    "a mark that is a directory": (
        in_turn(
            lambda to: (to / ".kafka_cleanshutdown").unlink(),
            lambda to: (to / ".kafka_cleanshutdown").mkdir(),
        ),
        None,
    ),
    "a mark that is a directory with files": (
        in_turn(
            lambda to: (to / ".kafka_cleanshutdown").unlink(),
            lambda to: (to / ".kafka_cleanshutdown" / "x").mkdir(parents=True),
        ),
        OFFLINE,
    ),
    "a note in a partition": (write("orders-1/note.txt", b"x"), None),
    "zeros at the end of a log": (append(ORDERS_1, bytes(400)), REFUSE),
    "ten zeros at the end of a log": (append(ORDERS_1, bytes(10)), None),
    "garbage at the end of a log": (append(ORDERS_1, b"\x01\x02" * 40), None),
}


@pytest.mark.parametrize(
    ("base_offset", "is_clean"), [(0, False), (7, False), (7, True)], ids=["end", "name", "clean"]
)
def test_a_batch_below_its_base_offset_ends_a_start_that_reads_its_segment(
    directory: Path, base_offset: int, *, is_clean: bool
) -> None:
    """`recover` cuts the log off there; a cleanly stopped log is read only without its index."""
    log = directory / "orders-1" / f"{base_offset + 100:020d}.log"
    above = encode_batch([Record(base_offset + 100, 0, b"k", b"v")]) if not base_offset else b""
    log.write_bytes(above + encode_batch([Record(50, 0, b"k", b"v")]))
    if not is_clean:
        (directory / ".kafka_cleanshutdown").unlink()
        log.with_suffix(".index").write_bytes(b"")
    refusals = [each for each in segmentlog.preflight(directory) if each.action == REFUSE]
    assert [(str(log), 50)] == [(each.path, each.offset) for each in refusals]
    kinds = {each.kind for each in segmentlog.verify(directory) if each.path == str(log)}
    assert FindingKind.START_REFUSED in kinds
    (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
    segmentlog.recover(directory)
    assert not [each for each in segmentlog.preflight(directory) if each.has_harm]


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("name", ["orders-1", f"orders-1/{LOG}", "orders-1/900.log"])
def test_a_log_that_only_a_broker_reads_is_an_error_and_gets_no_mark(
    directory: Path, name: str, *, is_clean: bool
) -> None:
    """Links, and names of other lengths: readers leave them out, and say so in a log alone."""
    path, mark = directory / name, directory / ".kafka_cleanshutdown"
    if path.exists():
        path.rename(directory.parent / "elsewhere")
        path.symlink_to(directory.parent / "elsewhere")
    else:
        path.write_bytes(b"")
    if not is_clean:
        mark.unlink()
        (directory / "recovery-point-offset-checkpoint").unlink()
    errors = [each for each in segmentlog.verify(directory) if each.severity == Severity.ERROR]
    assert {("orders", 1)} == {(each.topic, each.partition) for each in errors}
    assert any(str(path) in each.path + each.message for each in errors)
    assert StartAction.MISSING not in {each.action for each in segmentlog.preflight(directory)}
    failed = [
        each for each in segmentlog.recover(directory) if each.kind == RecoveryKind.LOG_FAILED
    ]
    assert [("orders", 1)] == [(each.topic, each.partition) for each in failed]
    assert is_clean == mark.exists()


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_a_batch_that_begins_below_the_name_of_its_segment_is_not_cut_off(
    directory: Path, *, is_first: bool, is_clean: bool
) -> None:
    """The broker serves its records; with its right name, the segment is read."""
    log = directory / "orders-1"
    right = f"{0 if is_first else 20:020d}"
    if is_first:
        for each in log.glob("0*"):
            each.unlink()
    batch = encode_batch([Record(int(right) + i, 0, b"k", b"v") for i in range(20)])
    path = log / f"{int(right) + 5:020d}.log"
    path.write_bytes(batch)
    if not is_clean:
        (directory / ".kafka_cleanshutdown").unlink()
        (directory / "recovery-point-offset-checkpoint").unlink()
    steps = segmentlog.preflight(directory)
    assert StartAction.TRUNCATE not in {each.action for each in steps}
    assert any(
        each.path == str(path) and f"rename the file to {right}.log" in each.message
        for each in segmentlog.verify(directory)
        if each.severity == Severity.ERROR
    )
    (failed,) = [
        each for each in segmentlog.recover(directory) if each.kind == RecoveryKind.LOG_FAILED
    ]
    assert f"{path}: begins with offset {int(right)}" in failed.message
    assert batch == path.read_bytes()
    for each in log.glob(f"{path.stem}.*"):
        each.rename(each.with_name(each.name.replace(path.stem, right)))
    segmentlog.recover(directory)
    assert int(right) + 20 == segmentlog.open_log_dir(directory).log("orders", 1).log_end_offset


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("what", CLOSED)
def test_a_file_that_cannot_be_opened_takes_the_directory_offline(
    directory: Path, what: str, *, is_clean: bool
) -> None:
    """`verify` and `recover` name it, too; without it, the broker starts."""
    log = (directory / "orders-0" / LOG).read_bytes()
    path = close(directory, what)
    if not is_clean:
        (directory / ".kafka_cleanshutdown").unlink()
        (directory / "recovery-point-offset-checkpoint").unlink()
    is_opened = what == ".txnindex, dangling"
    expected = [] if is_opened else [(OFFLINE, "orders-0", path.name)]
    steps = segmentlog.preflight(directory)
    assert expected == harm(steps)
    found = [each.kind for each in segmentlog.verify(directory) if each.path == str(path)]
    assert is_opened != (FindingKind.START_OFFLINE in found)
    assert StartAction.MISSING not in {each.action for each in steps}
    failed = [
        each for each in segmentlog.recover(directory) if each.kind == RecoveryKind.LOG_FAILED
    ]
    assert is_opened or str(path) in failed[0].message
    (path.unlink if path.is_symlink() else path.rmdir)()
    (directory / "orders-0" / LOG).write_bytes(log)
    segmentlog.reindex(directory)
    assert not harm(segmentlog.preflight(directory))


def test_a_link_to_a_segment_that_a_broker_can_make_begins_an_empty_log(directory: Path) -> None:
    """The broker makes the file, and serves no record."""
    log = directory / "orders-1" / LOG
    log.rename(directory.parent / "elsewhere")
    log.symlink_to(directory.parent / "nowhere")
    steps = segmentlog.preflight(directory)
    assert [("orders", 1)] == [
        (each.topic, each.partition) for each in steps if each.action == StartAction.MISSING
    ]


@pytest.mark.parametrize("entries", ["5 0\n3 10", "0 10\n3 5", "0 0\n0 10"])
def test_leader_epochs_that_do_not_rise_are_dropped(directory: Path, entries: str) -> None:
    """A broker keeps the later line; `recover` builds the file again."""
    path = directory / "orders-1" / "leader-epoch-checkpoint"
    path.write_text(f"0\n2\n{entries}\n")
    found = [each for each in segmentlog.verify(directory) if each.path == str(path)]
    assert [FindingKind.START_DROPS] == [each.kind for each in found]
    segmentlog.recover(directory)
    assert path.read_text() == (CLUSTER / "orders-1" / path.name).read_text()


def test_reads_and_writers_take_a_high_watermark_below_0_for_none(directory: Path) -> None:
    """The broker starts, and serves the log to its end."""
    change("replication-offset-checkpoint", "orders 1 20", "orders 1 -5")(directory)
    assert not harm(segmentlog.preflight(directory))
    log = segmentlog.open_log_dir(directory).log("orders", 1)
    assert (None, 20) == (log.high_watermark, log.end_offset())
    with segmentlog.open_writer(directory, "orders") as writer:
        writer.append(pa.table({"value": [b"x"], "partition": pa.array([1], pa.int32())}))
    assert 21 == segmentlog.open_log_dir(directory).log("orders", 1).high_watermark


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_of_a_directory_has_the_action_that_a_broker_took(
    directory: Path, name: str
) -> None:
    """`verify` has an error for each change that ends a start, and `preflight` the action."""
    make, action = CHANGES[name]
    make(directory)
    found = {each.action for each in segmentlog.preflight(directory) if each.has_harm}
    assert ({action} if action else set()) == found
    kinds = {FindingKind.START_REFUSED, FindingKind.START_OFFLINE}
    assert bool(action) == any(each.kind in kinds for each in segmentlog.verify(directory))


#: Changes of the second of two log directories, and the action of Kafka 4.3.1.
OF_TWO: dict[str, tuple[Callable[[Path], object], StartAction | None]] = {
    "nothing": (lambda to: None, None),
    "no ids": (lambda to: (to / "meta.properties").unlink(), REFUSE),
    "no node id": (write("meta.properties", bytes(3)), REFUSE),
    "another version": (change("meta.properties", "version=1", "version=2"), OFFLINE),
    "another cluster": (change("meta.properties", "cluster.id=.*", "cluster.id=other"), REFUSE),
    "another node": (change("meta.properties", "node.id=1", "node.id=7"), REFUSE),
    "the same directory": (
        lambda to: shutil.copy(to.parent / "logs" / "meta.properties", to),
        REFUSE,
    ),
    "recovery points": (write("recovery-point-offset-checkpoint", bytes(50)), OFFLINE),
    "log starts": (write("log-start-offset-checkpoint", bytes(50)), OFFLINE),
    "high watermarks": (write("replication-offset-checkpoint", bytes(50)), OFFLINE),
    "ends of compacted parts": (write("cleaner-offset-checkpoint", bytes(50)), OFFLINE),
    "a topic id": (write("orders-1/partition.metadata", bytes(50)), OFFLINE),
    "an empty topic id": (write("orders-1/partition.metadata", b""), REFUSE),
    "leader epochs": (write("orders-1/leader-epoch-checkpoint", bytes(50)), OFFLINE),
    "a copy of a partition": (
        lambda to: shutil.copytree(to.parent / "logs" / "orders-0", to / "orders-0"),
        REFUSE,
    ),
    "two copies of the metadata": (
        lambda to: shutil.copytree(to.parent / "logs" / METADATA, to / METADATA),
        REFUSE,
    ),
    "the first metadata of a cluster": (write("bootstrap.checkpoint", bytes(50)), None),
}


@pytest.mark.parametrize("name", OF_TWO)
def test_a_fault_in_one_of_two_log_directories_is_not_always_the_end(
    directory: Path, name: str
) -> None:
    """Kafka continues without a directory in some cases, and ends in others."""
    second = second_disk(directory, "orders-1", "orders-2")
    make, action = OF_TWO[name]
    make(second)
    steps = segmentlog.preflight(directory, second)
    assert ({action} if action else set()) == {each.action for each in steps if each.has_harm}
    assert not [each for each in steps if each.action == StartAction.STRAY]


@pytest.mark.parametrize("name", FUTURES)
def test_a_copy_in_its_log_directory_becomes_the_log(directory: Path, name: str) -> None:
    """A copy where the metadata has the partition is renamed, and the log elsewhere is deleted."""
    second = second_disk(directory, "orders-1", "orders-2")
    make, expected = FUTURES[name]
    make(directory, second)
    ordered = [
        each
        for each in segmentlog.preflight(directory, second)
        if each.has_harm or (each.action == StartAction.DELETE and "retention" not in each.reason)
    ]
    assert expected == sorted((each.action, Path(each.path).name) for each in ordered)
    assert all(each.remedy for each in ordered if each.has_harm)


def test_logs_of_a_directory_that_only_has_the_metadata_are_not_missing(directory: Path) -> None:
    """A copy is still on its way to the second directory, which alone is recovered."""
    second = second_disk(directory, "orders-1", "orders-2")
    shutil.copytree(directory / "orders-0", second / FUTURE)
    actions = {each.action for each in segmentlog.preflight(second, metadata=directory)}
    assert not {StartAction.MISSING, StartAction.EMPTY} & actions
    (second / ".kafka_cleanshutdown").unlink()
    steps = segmentlog.recover(second, metadata=directory)
    assert RecoveryKind.MARKED_CLEAN == steps[-1].kind


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_a_shorter_copy_beside_its_log_does_not_lower_the_high_watermark(
    directory: Path, *, is_clean: bool
) -> None:
    """Both have one entry in each checkpoint, which is that of the log."""
    shutil.copytree(directory / "orders-0", directory / FUTURE)
    for each in (directory / FUTURE).glob("0*"):
        each.unlink()
    (directory / FUTURE / LOG).write_bytes(encode_batch([Record(0, 0, b"k", b"v")]))
    if not is_clean:
        (directory / ".kafka_cleanshutdown").unlink()
        (directory / "recovery-point-offset-checkpoint").unlink()
    kinds = {each.kind for each in segmentlog.recover(directory)}
    assert RecoveryKind.HIGH_WATERMARK_LOWERED not in kinds
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        assert "orders 0 20\n" in (directory / name).read_text()
    assert 20 == segmentlog.open_log_dir(directory).log("orders", 0).end_offset()


def test_without_metadata_a_copy_beside_its_log_ends_the_start(directory: Path) -> None:
    """All three commands say so, and the remedy is one that a user can follow."""
    shutil.rmtree(directory / METADATA)
    shutil.copytree(directory / "orders-0", directory / FUTURE)
    (step,) = [each for each in segmentlog.preflight(directory) if each.has_harm]
    assert (REFUSE, str(directory / FUTURE)) == (step.action, step.path)
    found = {each.path: each.kind for each in segmentlog.verify(directory)}
    assert FindingKind.START_REFUSED == found[step.path]
    assert [RecoveryKind.NOT_MARKED] == [each.kind for each in segmentlog.recover(directory)]
    shutil.move(directory / FUTURE, directory.parent)
    assert not [each for each in segmentlog.preflight(directory) if each.has_harm]


def test_a_zeroed_block_of_the_metadata_makes_strays_and_no_clean_mark(directory: Path) -> None:
    """Each partition is named; `recover` leaves the directory without the mark, and exits with 1.

    The broker came up and renamed all partitions.
    """
    for path in (directory / METADATA).glob("*.checkpoint"):
        path.unlink()
    log = directory / METADATA / LOG
    data = bytearray(log.read_bytes())
    data[2048:2560] = bytes(512)
    log.write_bytes(data)
    (directory / ".kafka_cleanshutdown").unlink()

    steps = segmentlog.preflight(directory)
    assert [StartAction.TRUNCATE] == [
        each.action for each in steps if each.topic == "__cluster_metadata"
    ]
    strays = sorted(each.topic for each in steps if each.action == StartAction.STRAY)
    expected = sorted(
        each.name.rpartition("-")[0]
        for each in directory.iterdir()
        if each.is_dir() and each.name != METADATA
    )
    assert expected == strays
    found = segmentlog.recover(directory)
    kinds = [each.kind for each in found]
    assert RecoveryKind.MARKED_CLEAN not in kinds
    assert 14 == kinds.count(RecoveryKind.NOT_MARKED)
    assert not (directory / ".kafka_cleanshutdown").exists()


def test_one_of_several_controllers_fetches_damaged_metadata_again(directory: Path) -> None:
    """Its strays are not known, because the other controllers have the rest of the metadata."""
    for path in (directory / METADATA).glob("*.checkpoint"):
        path.unlink()
    log = directory / METADATA / LOG
    log.write_bytes(log.read_bytes()[:2000])
    assert 14 == sum(each.action == StartAction.STRAY for each in segmentlog.preflight(directory))
    change(f"{METADATA}/quorum-state", '{"voterId":1}', '{"voterId":1},{"voterId":2}')(directory)
    steps = segmentlog.preflight(directory)
    assert not harm(steps)
    unknown = [each for each in steps if each.action == StartAction.UNKNOWN and each.topic]
    assert 14 == len(unknown)


def test_a_sound_directory_gets_the_clean_mark(directory: Path) -> None:
    """The check of the start does not keep the mark from a directory that a broker would load."""
    (directory / ".kafka_cleanshutdown").unlink()
    (note,) = [
        each
        for each in segmentlog.verify(directory)
        if each.kind == FindingKind.NOT_CLEANLY_STOPPED
    ]
    assert (Severity.NOTE, str(directory)) == (note.severity, note.path)
    assert segmentlog.recover(directory)[-1].kind == RecoveryKind.MARKED_CLEAN


def test_a_separate_metadata_directory_decides_about_strays(directory: Path) -> None:
    """Without it, the strays are listed as unknown."""
    elsewhere = directory.parent / "metadata"
    elsewhere.mkdir()
    shutil.move(directory / METADATA, elsewhere / METADATA)
    ids = directory / "meta.properties"
    own = re.sub("directory.id=.*", "directory.id=er5aWuEISeKNH6Jd5_NPlA", ids.read_text())
    (elsewhere / "meta.properties").write_text(own)
    (directory / "invoices-1" / "partition.metadata").write_bytes(
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAABkA"
    )
    steps = segmentlog.preflight(directory)
    assert not harm(steps)
    assert any("which partitions" in each.reason for each in steps)

    expected = [(StartAction.STRAY, "invoices-1", "partition.metadata")]
    properties = directory.parent / "server.properties"
    named = "".join(each if each.isascii() else f"\\u{ord(each):04x}" for each in str(elsewhere))
    properties.write_text(f"node.id=1\nmetadata.log.dir={named}\n")  # Java takes it for Latin-1
    assert expected == harm(segmentlog.preflight(directory, metadata=elsewhere))
    assert expected == harm(segmentlog.preflight(directory, server_properties=properties))


def test_a_broker_that_is_older_than_the_metadata_ends(directory: Path) -> None:
    """The metadata of the example is of Kafka 4.3."""
    found = harm(segmentlog.preflight(directory, kafka_version="3.9.1"))
    assert {(StartAction.REFUSE, "", "logs")} == {*found}
    assert harm(segmentlog.preflight(directory, kafka_version="4.2"))
    for version in ("4.3", "4.4.0"):
        assert not harm(segmentlog.preflight(directory, kafka_version=version))
    with pytest.raises(OptionError, match="kafka_version"):
        segmentlog.preflight(directory, kafka_version="four")


def test_a_killed_log_is_read_and_cut(directory: Path) -> None:
    """The bytes from the recovery point on are counted, and the offsets after the damage named."""
    (directory / ".kafka_cleanshutdown").unlink()
    (directory / "recovery-point-offset-checkpoint").write_text("0\n1\norders 1 0\n")
    path = directory / ORDERS_1
    path.write_bytes(path.read_bytes()[:-1])
    steps = [
        each
        for each in segmentlog.preflight(directory, topics="orders")
        if (each.topic, each.partition) == ("orders", 1)
    ]
    read, cut = (
        next(each for each in steps if each.action == action)
        for action in (StartAction.RECOVER, StartAction.TRUNCATE)
    )
    assert path.stat().st_size == read.n_bytes
    assert (0, path.stat().st_size) == (cut.offset, cut.n_bytes)


def test_things_that_earlier_stops_have_left_are_notes(directory: Path) -> None:
    """A broker removes deleted partitions and files, and leaves strays and `.broken` files."""
    names = {
        state: f"orders-7.{'0' * 31}{i}-{state}" for i, state in enumerate(("delete", "stray"))
    }
    for name in names.values():
        shutil.copytree(directory / "orders-0", directory / name)
    (directory / "orders-0" / f"segmentlog.{LOG}.5.broken").write_bytes(b"x")
    (directory / "orders-2" / f"{LOG}.deleted").write_bytes(b"x")
    found = [each for each in segmentlog.verify(directory) if each.kind == FindingKind.LEFTOVERS]
    assert {Severity.NOTE} == {each.severity for each in found}
    assert sorted(["orders-0", "orders-2", *names.values()]) == sorted(
        Path(each.path).name for each in found
    )
    actions = [each.action for each in segmentlog.preflight(directory, topics="orders")]
    assert (2, 2) == (
        actions.count(StartAction.KEEP),
        sum(
            each.action == StartAction.DELETE and not each.end_offset > 0
            for each in segmentlog.preflight(directory, topics="orders")
        ),
    )


def test_a_directory_without_a_broker_is_not_judged_by_ids(tmp_path: Path) -> None:
    """Only the files that any directory may have are checked: nothing is stray or refused."""
    copy = writable_copy(CLUSTER, tmp_path / "logs")
    shutil.rmtree(copy / METADATA)
    for name in ("meta.properties", "bootstrap.checkpoint", "orders-1/partition.metadata"):
        (copy / name).unlink()
    (copy / "lost+found").mkdir()
    assert not harm(segmentlog.preflight(copy))
    (copy / "recovery-point-offset-checkpoint").write_bytes(bytes(30))
    assert [(REFUSE, "", "recovery-point-offset-checkpoint")] == harm(segmentlog.preflight(copy))


def test_json_steps_have_names(directory: Path) -> None:
    """Steps are tuples of plain values, so that programs can store them."""
    (directory / "orders-1" / "partition.metadata").unlink()
    (step,) = [each for each in segmentlog.preflight(directory) if each.has_harm]
    fields = json.loads(json.dumps(step._asdict()))
    assert ("stray", "orders", 1) == (fields["action"], fields["topic"], fields["partition"])
    assert "topic_id: er5aWuEISeKNH6Jd5_NPlQ" in step.remedy
    assert step.n_bytes == (directory / ORDERS_1).stat().st_size


FAR = 2**31 + 100


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_segment_that_no_index_can_hold_is_split(
    tmp_path: Path, *, is_clean: bool, has_index: bool
) -> None:
    """A broker reads it after an unclean stop, or to build its index, and then divides it."""
    log = tmp_path / "t-0"
    log.mkdir()
    batches = [encode_batch([Record(o, 0, b"k", b"v")]) for o in (0, 1, FAR, FAR + 1)]
    (log / LOG).write_bytes(b"".join(batches))
    if has_index:
        (log / LOG).with_suffix(".index").touch()
        (log / LOG).with_suffix(".timeindex").touch()
    if is_clean:
        (tmp_path / ".kafka_cleanshutdown").touch()
    steps = [each for each in segmentlog.preflight(tmp_path) if each.action == StartAction.SPLIT]
    assert (not (is_clean and has_index)) == bool(steps)
    for step in steps:
        assert ("t", 0, str(log / LOG)) == (step.topic, step.partition, step.path)
        assert f"divides the segment at the offsets 0, {FAR}" in step.reason


@pytest.mark.parametrize("is_clean", [True, False])
def test_zeros_at_the_end_of_an_index_of_times_let_retention_delete(
    tmp_path: Path, *, is_clean: bool
) -> None:
    """Unless the start builds the index again: that of an active segment that was preallocated."""
    directory = writable_copy(CLUSTER.parent / "data", tmp_path / "logs")
    closed, active = sorted((directory / "payments-0").glob("*.timeindex"))
    before = [each.read_bytes() for each in (closed, active)]
    for each, data in zip((closed, active), before, strict=True):
        each.write_bytes(data + bytes(24))
    if not is_clean:
        (directory / ".kafka_cleanshutdown").unlink()
    expected = [(closed, 0, 60), (active, 60, 122)][: 2 if is_clean else 1]

    steps = segmentlog.preflight(directory, topics="payments")
    cuts = [each for each in steps if each.action == StartAction.TRUNCATE]
    assert expected == [(Path(each.path), each.offset, each.end_offset) for each in cuts]
    assert all("retention deletes the segment" in each.reason for each in cuts)
    found = segmentlog.verify(directory, topics="payments")
    named = [each for each in found if each.kind == FindingKind.START_TRUNCATES]
    assert expected == [(Path(each.path), each.offset, each.end_offset) for each in named]
    assert {Severity.ERROR} == {each.severity for each in named}

    for dry_run in (True, False):
        done = segmentlog.recover(directory, dry_run=dry_run)
        (built,) = [each for each in done if each.kind == RecoveryKind.INDEXES_BUILT]
        assert ("payments", 0) == (built.topic, built.partition)
        assert dry_run == closed.read_bytes().endswith(bytes(24))
    steps = segmentlog.preflight(directory, topics="payments")
    assert StartAction.TRUNCATE not in {each.action for each in steps}
    assert before == [each.read_bytes() for each in (closed, active)]


@pytest.mark.parametrize("is_clean", [True, False])
def test_recover_builds_an_index_of_times_that_a_start_would_leave_out(
    tmp_path: Path, *, is_clean: bool
) -> None:
    """Beside an index of offsets; without one, the start builds that of transactions, too."""
    directory = writable_copy(CLUSTER.parent / "data", tmp_path / "logs")
    closed, other = (directory / f"{each}-0" / f"{0:020d}" for each in ("payments", "customers"))
    times = closed.with_suffix(".timeindex")
    before = times.read_bytes()
    for lost in (times, other.with_suffix(".index"), other.with_suffix(".timeindex")):
        lost.unlink()
    if not is_clean:
        (directory / ".kafka_cleanshutdown").unlink()

    segmentlog.recover(directory)

    assert before == times.read_bytes()
    assert is_clean != other.with_suffix(".index").exists()


def test_an_entry_of_zeros_is_right_for_a_record_of_1970(tmp_path: Path) -> None:
    log = tmp_path / "t-0" / LOG
    log.parent.mkdir()
    log.write_bytes(encode_batch([Record(0, 0, b"k", b"v")]))
    log.with_suffix(".index").touch()
    times = log.with_suffix(".timeindex")
    times.write_bytes(bytes(12))  # as a broker closes the segment
    (tmp_path / ".kafka_cleanshutdown").touch()

    assert StartAction.TRUNCATE not in {each.action for each in segmentlog.preflight(tmp_path)}
    assert RecoveryKind.INDEXES_BUILT not in {each.kind for each in segmentlog.recover(tmp_path)}
    assert bytes(12) == times.read_bytes()


def test_a_cut_below_the_high_watermark_is_a_loss(directory: Path) -> None:
    """The offsets up to the high watermark are named, although no whole batch is cut off."""
    (directory / ".kafka_cleanshutdown").unlink()
    (directory / "recovery-point-offset-checkpoint").unlink()
    path = directory / ORDERS_1
    path.write_bytes(path.read_bytes()[:-1])
    (cut,) = [
        each
        for each in segmentlog.preflight(directory, topics="orders")
        if each.action == StartAction.TRUNCATE
    ]
    assert (0, 20) == (cut.offset, cut.end_offset)
    assert "below its high watermark 20: acknowledged records go" in cut.reason


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("data", [b"", b"older"])
def test_a_log_that_ends_below_its_high_watermark_is_a_loss(
    directory: Path, data: bytes, *, is_clean: bool
) -> None:
    """Its files are sound: a log of no bytes after a power cut, or an older copy of it."""
    if not is_clean:
        (directory / ".kafka_cleanshutdown").unlink()
        (directory / "recovery-point-offset-checkpoint").unlink()
    path = directory / "orders-1" / LOG
    path.write_bytes(data and encode_batch([Record(0, 0, b"k", b"v")]))
    (step,) = [
        each
        for each in segmentlog.preflight(directory, topics="orders")
        if each.action == StartAction.TRUNCATE
    ]
    assert (1 if data else 0, 20) == (step.offset, step.end_offset)
    assert 1 == CliRunner().invoke(app, ["preflight", str(directory)]).exit_code


def test_without_metadata_the_other_partitions_of_a_topic_decide(directory: Path) -> None:
    """A topic has one id: the partition with another one becomes stray."""
    shutil.rmtree(directory / METADATA)
    path = directory / "orders-1" / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAABkA")
    steps = segmentlog.preflight(directory)
    assert [(StartAction.STRAY, "orders-1", "partition.metadata")] == harm(steps)


def test_the_only_controller_without_metadata_begins_a_new_cluster(directory: Path) -> None:
    """All partitions become stray; the static settings say that it is the only one."""
    shutil.rmtree(directory / METADATA)
    properties = directory.parent / "server.properties"
    text = f"process.roles=broker,controller\nnode.id=1\nlog.dirs={directory}\n"
    properties.write_text(f"{text}controller.quorum.voters=1@localhost:9093\n")
    found = harm(segmentlog.preflight(directory, server_properties=properties))
    assert [StartAction.STRAY] * 14 == [action for action, *_ in found]
    properties.write_text(f"{text}controller.quorum.voters=1@a:9093,2@b:9093\n")
    assert not harm(segmentlog.preflight(directory, server_properties=properties))


@pytest.mark.parametrize("n_bytes", [18, 26, 27, 60])
def test_a_tail_that_is_shorter_than_a_header_is_a_step(directory: Path, n_bytes: int) -> None:
    """Its length and its magic are those of a batch."""
    log = directory / "orders-0" / LOG
    tail = (10**6).to_bytes(8, "big") + (n_bytes - 12).to_bytes(4, "big") + b"\0\0\0\0\2"
    log.write_bytes(log.read_bytes() + tail.ljust(n_bytes, b"\0"))
    found = {each.action for each in segmentlog.preflight(directory) if each.path == str(log)}
    assert {StartAction.REFUSE} & found
    assert str(log) in {each.path for each in segmentlog.verify(directory)}
