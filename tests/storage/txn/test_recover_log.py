"""A log after an unclean stop: which parts stay, go, are kept aside, or are built again."""

import contextlib
import errno
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from crash_disk.image import write_tree
from crash_disk.recorder import Recorder
from crash_disk.states import crash_states
from crashing import Crash, crash_at, cut_loop
from plain_writes import write

import segmentlog
from segmentlog.errors import (
    LogDirectoryError,
    MalformedBatchError,
    StorageError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_offsets, write_leader_epochs, write_offsets
from segmentlog.log.indexes import AbortedTransaction, read_transaction_index
from segmentlog.log.producer_snapshot import ProducerSnapshot, read_snapshot, snapshot_path
from segmentlog.maintain.health.mend import RecoveryKind
from segmentlog.maintain.recover_directory import DirectoryRecovery
from segmentlog.maintain.verification.findings import Severity
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.model import TopicPartition
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.txn import recover_log as recover_log_module
from segmentlog.txn.change import HeldDirectory
from segmentlog.txn.recover_log import RecoveryPlan, plan_recovery, recover_log
from segmentlog.writes import prepare
from segmentlog.writes.prepare import ready_to_append

DATA, ABORT, COMMIT = -1, 0, 1
T = TopicPartition("t", 0)
INTERVAL = 200


def batch(
    offset: int,
    n_records: int = 2,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = 0,
    attributes: int = 0,
    kind: int = DATA,
) -> bytes:
    """Records whose values are their offsets, or an end marker with coordinator epoch 7."""
    records = [Record(o, 1000 + o, b"k", b"%d" % o * 9) for o in range(offset, offset + n_records)]
    if kind != DATA:
        value = struct.pack(">hi", 0, 7)
        records = [Record(offset, 1000 + offset, struct.pack(">hh", 0, kind), value)]
        attributes = 0x30
    return encode_batch(
        records, attributes=attributes, leader_epoch=leader_epoch, producer=producer
    )


def write_log(directory: Path, *segments: list[bytes]) -> Path:
    """A partition of these segments, without indexes."""
    partition = directory / "t-0"
    partition.mkdir(parents=True)
    for batches in segments:
        base = int.from_bytes(batches[0][:8], "big")
        (partition / f"{base:020d}.log").write_bytes(b"".join(batches))
    return partition


def three_segments(directory: Path) -> Path:
    """Offsets 0 to 59 in segments of 20, batches of two."""
    parts = [[batch(o) for o in range(base, base + 20, 2)] for base in (0, 20, 40)]
    return write_log(directory, *parts)


def recover(partition: Path, recovery_point: int = 0, log_start: int = 0) -> list[str]:
    """Recover one log."""
    return recover_log(plan_recovery(str(partition), recovery_point, log_start), INTERVAL)


def offsets(partition: Path) -> list[int]:
    """The offsets that a reader finds."""
    log = segmentlog.open_log_dir(partition).log("t", 0)
    return log.scan(columns=["offset"]).read_all()["offset"].to_pylist()


def errors(partition: Path) -> list[object]:
    """Findings of a verification, without notes."""
    log = segmentlog.open_log_dir(partition).log("t", 0)
    return [each for each in LogCheck(log).findings() if each.severity != Severity.NOTE]


def tree(partition: Path) -> dict[str, bytes]:
    """Everything in the directory."""
    return {path.name: path.read_bytes() for path in partition.iterdir()}


def test_a_log_is_cut_after_its_last_whole_batch_at_every_byte(tmp_path: Path) -> None:
    """The cut bytes are kept, the indexes fit, and a second recovery changes nothing."""
    whole = [batch(o) for o in range(0, 20, 2)]
    size = sum(map(len, whole))
    for n_bytes in range(size - len(whole[-1]) - len(whole[-2]), size):
        partition = write_log(tmp_path / str(n_bytes), whole)
        log = partition / f"{0:020d}.log"
        os.truncate(log, n_bytes)
        torn = log.read_bytes()
        kept = recover(partition)

        n_whole = 9 if n_bytes >= size - len(whole[-1]) else 8
        assert list(range(2 * n_whole)) == offsets(partition)
        assert b"".join(whole[:n_whole]) == log.read_bytes()
        cut = torn.removeprefix(log.read_bytes())
        assert [cut] * bool(cut.strip(b"\0")) == [Path(each).read_bytes() for each in kept]
        assert [] == errors(partition)
        after = tree(partition)
        assert [] == recover(partition)
        assert after == tree(partition)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("n_zeros", [1, 11, 12, 16, 17, 4096])
def test_zeros_of_preallocation_are_cut_and_not_kept(tmp_path: Path, n_zeros: int) -> None:
    """Zeros are cut without a `.broken` file."""
    partition = write_log(tmp_path, [batch(0), bytes(n_zeros)])
    assert Severity.ERROR not in {each.severity for each in errors(partition)}

    assert [] == recover(partition)
    assert len(batch(0)) == (partition / f"{0:020d}.log").stat().st_size


@pytest.mark.timeout(60)
def test_a_torn_tail_in_a_hole_is_kept_as_a_hole(tmp_path: Path) -> None:
    """The copy of a preallocated segment takes no more space than the bytes that were written."""
    partition = write_log(tmp_path, [batch(0), batch(2)[:-9]])
    os.truncate(partition / f"{0:020d}.log", 1 << 40)
    (kept,) = recover(partition)

    assert (1 << 40) - len(batch(0)) == Path(kept).stat().st_size
    assert Path(kept).stat().st_blocks * 512 < 1 << 20
    with Path(kept).open("rb") as file:
        assert batch(2)[:-9] == file.read(len(batch(2)) - 9)


def test_a_bad_batch_ends_the_log_and_later_segments_go(tmp_path: Path) -> None:
    """Everything from the first bad batch on is kept beside the log, to the byte."""
    partition = three_segments(tmp_path)
    before = tree(partition)
    middle = partition / f"{20:020d}.log"
    data = bytearray(middle.read_bytes())
    at = sum(len(batch(o)) for o in (20, 22, 24))
    data[at + 70] ^= 1
    middle.write_bytes(data)
    plan = plan_recovery(str(partition), 0, 0)
    assert (26, 60) == (plan.end_offset, plan.lost_to)
    assert "offsets [26, 60) are cut off" in plan.loss
    assert "checksum" in plan.loss
    kept = recover_log(plan, INTERVAL)

    assert list(range(26)) == offsets(partition)
    assert [] == errors(partition)
    assert {
        f"segmentlog.{20:020d}.log.{at}.broken": bytes(data[at:]),
        f"segmentlog.{40:020d}.log.0.broken": before[f"{40:020d}.log"],
    } == {Path(each).name: Path(each).read_bytes() for each in kept}


@pytest.mark.parametrize("n_copied", [1, 3])
def test_a_copy_of_a_segment_under_a_later_name_is_put_aside(
    tmp_path: Path, n_copied: int
) -> None:
    """A broker serves the log up to its end; nothing of it is cut off."""
    batches = [batch(o, 10) for o in (0, 10, 20)]
    partition = write_log(tmp_path, batches, [batch(30, 10)])
    copy = partition / f"{8:020d}.log"
    copy.write_bytes(b"".join(batches[:n_copied]))
    assert [f"segmentlog.{copy.name}.0.broken"] == [Path(each).name for each in recover(partition)]
    assert [*range(40)] == offsets(partition)
    assert [] == errors(partition)


@pytest.mark.parametrize("data", [b"\xff" * 70, bytes(70), b"\0" * 8 + b"\x7f" * 70, b"x", b""])
def test_a_last_segment_of_garbage_is_no_copy(tmp_path: Path, data: bytes) -> None:
    """It is cut, and the log before it stays."""
    partition = write_log(tmp_path, [batch(0, 10), batch(10, 10)])
    (partition / f"{20:020d}.log").write_bytes(data)
    recover(partition)
    assert [*range(20)] == offsets(partition)


def test_a_segment_that_overlaps_the_one_before_it_is_no_copy_and_not_cut(tmp_path: Path) -> None:
    """A broker serves both; which of them is right cannot be decided here."""
    partition = write_log(tmp_path, [batch(0, 10), batch(10, 10)])
    (partition / f"{8:020d}.log").write_bytes(batch(0, 20))
    before = tree(partition)
    with pytest.raises(LogDirectoryError, match="below its name, and the segment before it"):
        recover(partition)
    assert before == tree(partition)


def test_damage_below_the_recovery_point_is_not_looked_for(tmp_path: Path) -> None:
    """Bytes below the recovery point are not read again, as with a broker."""
    partition = three_segments(tmp_path)
    recover(partition)
    before = tree(partition)
    log = partition / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)

    assert [] == recover(partition, recovery_point=47)
    assert before | {log.name: bytes(data)} == tree(partition)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(os.urandom(1001)),
        lambda path: path.write_bytes(path.read_bytes() + bytes(10 << 20)),
    ],
    ids=["missing", "empty", "garbage", "preallocated"],
)
@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex"])
def test_indexes_are_built_again(
    tmp_path: Path, harm: Callable[[Path], None], suffix: str
) -> None:
    """Indexes of recovered segments are built again, whatever was left of them."""
    producer = (5, 0, 0)
    partition = write_log(
        tmp_path,
        [batch(o, producer=(5, 0, o), attributes=0x10) for o in range(0, 20, 2)],
        [batch(20, kind=ABORT, producer=(5, 0, -1)), *(batch(o) for o in range(21, 40, 2))],
        [batch(41, producer=producer, attributes=0x10), batch(43, kind=ABORT, producer=producer)],
    )
    recover(partition)
    expected = tree(partition)
    assert 2 == sum(name.endswith(".txnindex") for name in expected)
    for path in partition.glob(f"*.{suffix}"):
        harm(path)
    recover(partition)

    assert expected == tree(partition)


def test_a_missing_index_below_the_recovery_point_is_built_again(tmp_path: Path) -> None:
    """A broker would recover a segment without an index.

    The other indexes there are not changed.
    """
    partition = three_segments(tmp_path)
    recover(partition)
    expected = tree(partition)
    (partition / f"{0:020d}.index").unlink()
    (partition / f"{20:020d}.timeindex").unlink()
    recover(partition, recovery_point=60)

    assert expected == tree(partition)


def test_producers_are_followed_to_the_end(tmp_path: Path) -> None:
    """Sequences, epochs, open transactions and coordinator epochs are those of a broker."""
    largest = 2**31 - 1
    partition = write_log(
        tmp_path,
        [
            batch(0, producer=(1, 0, largest)),  # its second sequence is 0 again
            batch(2, producer=(2, 3, 8), attributes=0x10),
            batch(4, producer=(3, 0, 0), attributes=0x10),
            batch(6, producer=(3, 0, 2), attributes=0x10),
            batch(8, kind=ABORT, producer=(3, 1, -1)),  # its epoch is bumped: no batch is known
            batch(9),
        ],
        [
            batch(11, producer=(4, 0, 0), attributes=0x10),
            batch(13, kind=COMMIT, producer=(4, 0, -1)),
            batch(14, kind=ABORT, producer=(2, 3, -1)),
            batch(15, producer=(1, 1, 0)),
            batch(17, producer=(6, 0, 5), attributes=0x10),
        ],
    )
    recover(partition)

    known = [
        ProducerSnapshot(1, 0, 0, 1, 1, 1001, -1, -1),
        ProducerSnapshot(2, 3, 9, 3, 1, 1003, -1, 2),
        ProducerSnapshot(3, 1, -1, -1, 0, 1008, 7, -1),
    ]
    assert known == read_snapshot(snapshot_path(str(partition), 11))
    assert [
        ProducerSnapshot(1, 1, 1, 16, 1, 1016, -1, -1),
        ProducerSnapshot(2, 3, 9, 3, 1, 1014, 7, -1),
        known[2],
        ProducerSnapshot(4, 0, 1, 12, 1, 1013, 7, -1),
        ProducerSnapshot(6, 0, 6, 18, 1, 1018, -1, 17),
    ] == read_snapshot(snapshot_path(str(partition), 19))
    assert [AbortedTransaction(3, 4, 8, 2)] == list(
        read_transaction_index(str(partition / f"{0:020d}.txnindex"))
    )
    assert [AbortedTransaction(2, 2, 14, 15)] == list(
        read_transaction_index(str(partition / f"{11:020d}.txnindex"))
    )


def test_snapshots_beyond_the_end_and_strays_go(tmp_path: Path) -> None:
    """Snapshots at the bases of segments and at the log end stay.

    A damaged one is written again.
    """
    partition = three_segments(tmp_path)
    for offset in (0, 7, 20, 33, 40, 60, 99):
        Path(snapshot_path(str(partition), offset)).write_bytes(b"no snapshot")
    recover(partition, recovery_point=20)

    found = {int(path.stem): path for path in partition.glob("*.snapshot")}
    assert {20, 40, 60} == set(found)
    assert [[]] * 3 == [read_snapshot(str(path)) for path in found.values()]


def test_leader_epochs_end_with_the_log(tmp_path: Path) -> None:
    """Epochs at or beyond the log end are removed. Epochs of recovered batches are added."""
    partition = write_log(
        tmp_path,
        [batch(0), batch(2, leader_epoch=1)],
        [batch(4, leader_epoch=1), batch(6, leader_epoch=4), batch(8, leader_epoch=4)],
    )
    checkpoint = partition / "leader-epoch-checkpoint"
    write_leader_epochs(str(checkpoint), [(0, 0), (1, 2), (5, 10), (6, 12)])
    recover(partition, recovery_point=4)
    assert "0\n3\n0 0\n1 2\n4 6\n" == checkpoint.read_text()

    checkpoint.write_text("damaged")
    recover(partition, log_start=3)
    assert "0\n2\n1 3\n4 6\n" == checkpoint.read_text()


def test_a_log_that_ends_below_its_start_begins_again(tmp_path: Path) -> None:
    """DeleteRecords had moved the log start, and the records after the log start are lost."""
    partition = three_segments(tmp_path)
    kept = recover(partition, log_start=70)

    assert 3 == len(kept)
    assert [f"{70:020d}.log"] == [path.name for path in partition.glob("*.log")]
    assert [] == recover(partition, log_start=70)
    assert 70 == plan_recovery(str(partition), 0, 70).end_offset


def test_a_power_cut_makes_no_segment_good_again_that_a_bad_batch_has_condemned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log start may lie beyond the bad batch, so that its segment is removed as well."""
    before = damaged_before_the_log_start(tmp_path / "before" / "t-0")
    root = tmp_path / "recovered"
    shutil.copytree(before, root / "t-0")
    with monkeypatch.context() as patch:
        recorder = Recorder(root, patch)
        recover(root / "t-0", log_start=50)
    whole = tree(root / "t-0")
    assert [f"{50:020d}.log"] == [name for name in whole if name.endswith(".log")]

    seen = set()
    for state in crash_states(recorder.image, recorder.steps):
        files = frozenset(state.tree.items())
        if files in seen:
            continue
        seen.add(files)
        left = tmp_path / str(len(seen))
        write_tree(state.tree, left)
        recover(left / "t-0", log_start=50)
        found = {name: data for name, data in tree(left / "t-0").items() if ".tmp" not in name}
        assert whole == found, (state.n_steps, recorder.calls[: state.n_steps], state.others)
        shutil.rmtree(left)
    assert len(seen) > 40


def damaged_before_the_log_start(partition: Path) -> Path:
    """Offsets 0 to 79, bad from 26 on; DeleteRecords had moved the log start to 50."""
    parts = [[batch(o) for o in range(base, base + 20, 2)] for base in (0, 20, 40, 60)]
    write_log(partition.parent, *parts)
    recover(partition)
    log = partition / f"{20:020d}.log"
    data = bytearray(log.read_bytes())
    data[3 * len(batch(20)) + 70] ^= 1
    log.write_bytes(data)
    return partition


@pytest.mark.parametrize("field", ["offset too low", "offset too high", "length", "magic"])
def test_fields_without_a_checksum_end_the_log_too(tmp_path: Path, field: str) -> None:
    """Base offsets that fall or are too large, and impossible lengths and formats, end the log."""
    third = bytearray(batch(4))
    if field.startswith("offset"):
        struct.pack_into(">q", third, 0, 1 if field.endswith("low") else 2**33)
    elif field == "length":
        struct.pack_into(">i", third, 8, 7)
    else:
        third[8:17] = struct.pack(">iib", 1 << 20, 0, 9)
    partition = write_log(tmp_path, [batch(0), batch(2), bytes(third), batch(6)])
    recover(partition)

    assert list(range(4)) == offsets(partition)


def test_a_newer_format_is_not_cut(tmp_path: Path) -> None:
    """A batch of a newer format may be good, so the log is not changed."""
    newer = bytearray(batch(2))
    newer[layout.MAGIC_AT] = 3
    partition = write_log(tmp_path, [batch(0), bytes(newer)])
    before = tree(partition)

    with pytest.raises(UnsupportedFormatError):
        recover(partition)
    assert before == tree(partition)


def test_a_batch_larger_than_a_window_is_read_whole(tmp_path: Path) -> None:
    """A batch of 4 MiB is kept; if it is cut short, the log ends before it."""
    large = encode_batch([Record(2, 5, b"k", bytes(5 << 20))])
    partition = write_log(tmp_path / "whole", [batch(0), large, batch(3)])
    assert [] == recover(partition)
    assert list(range(5)) == offsets(partition)

    partition = write_log(tmp_path / "torn", [batch(0), large[:-1]])
    (kept,) = recover(partition)
    assert large[:-1] == Path(kept).read_bytes()
    assert [0, 1] == offsets(partition)


def harmed(directory: Path) -> Path:
    """A log directory with everything that recovery can mend."""
    partition = three_segments(directory)
    with (partition / f"{20:020d}.log").open("r+b") as file:
        file.seek(200)
        file.write(b"damaged")
    for offset in (30, 60):
        Path(snapshot_path(str(partition), offset)).write_bytes(b"no snapshot")
    write_leader_epochs(str(partition / "leader-epoch-checkpoint"), [(0, 0), (1, 50)])
    write_offsets(str(directory), "replication-offset-checkpoint", {T: 60})
    return partition


FAR = 2**31 + 100


def far_log(directory: Path, *extra: bytes) -> Path:
    """A segment from 0 with batches at 5 and 7, and then at two places more than 2^31 apart."""
    far = [batch(o) for base in (FAR, 3 * FAR) for o in (base, base + 2)]
    partition = write_log(directory, [batch(0)])
    log = partition / f"{0:020d}.log"
    log.write_bytes(b"".join([batch(5), batch(7), *far, *extra]))
    write_offsets(str(directory), "replication-offset-checkpoint", {T: 3 * FAR + 4})
    return partition


FAR_OFFSETS = [5, 6, 7, 8, *range(FAR, FAR + 4), *range(3 * FAR, 3 * FAR + 4)]


@pytest.mark.parametrize("tail", [b"", b"torn", bytes(5000)], ids=["whole", "torn", "zeros"])
def test_a_segment_whose_offsets_no_index_can_hold_is_split(tmp_path: Path, tail: bytes) -> None:
    """It is read whole before; each new segment has the name of its first offset."""
    partition = far_log(tmp_path, tail)
    assert FAR_OFFSETS == offsets(partition)
    steps = list(DirectoryRecovery(HeldDirectory(str(tmp_path)), INTERVAL).run())
    (split,) = [step for step in steps if step.kind is RecoveryKind.SEGMENT_SPLIT]

    assert f"at the offsets 5, {FAR}, {3 * FAR}:" in split.message
    assert [5, FAR, 3 * FAR] == [int(path.stem) for path in sorted(partition.glob("*.log"))]
    assert RecoveryKind.HIGH_WATERMARK_LOWERED not in {step.kind for step in steps}
    assert (FAR_OFFSETS, []) == (offsets(partition), errors(partition))


def test_a_far_batch_counts_only_if_something_after_it_agrees(tmp_path: Path) -> None:
    """A wrong base offset looks the same: the next batch, segment or high watermark decides.

    Where nothing decides, a batch with a right checksum is one, as for a broker.
    """
    alone = write_log(tmp_path / "alone", [batch(0), batch(FAR)])
    torn = write_log(tmp_path / "torn", [batch(0), batch(FAR), b"torn"])
    beyond = write_log(tmp_path / "beyond", [batch(0), batch(FAR)])
    write_offsets(str(beyond.parent), "replication-offset-checkpoint", {T: 2})
    low = write_log(tmp_path / "low", [batch(0), batch(FAR), batch(2)])
    promised = write_log(tmp_path / "promised", [batch(0), batch(FAR)])
    write_offsets(str(promised.parent), "replication-offset-checkpoint", {T: FAR + 2})
    followed = write_log(tmp_path / "followed", [batch(0), batch(FAR)], [batch(3 * FAR)])
    fooled = write_log(tmp_path / "fooled", [batch(0), batch(FAR)], [batch(20)])
    expected = {
        alone: [0, 1, FAR, FAR + 1],
        torn: [0, 1, FAR, FAR + 1],
        beyond: [0, 1],
        low: [0, 1],
        promised: [0, 1, FAR, FAR + 1],
        followed: [0, 1, FAR, FAR + 1, 3 * FAR, 3 * FAR + 1],
        fooled: [0, 1],
    }
    for each in (alone, torn, beyond, promised, followed):
        assert expected[each] == offsets(each)
    for each in (low, fooled):
        with pytest.raises(MalformedBatchError):
            offsets(each)
    found = {}
    for each in expected:
        list(DirectoryRecovery(HeldDirectory(str(each.parent)), INTERVAL).run())
        found[each] = offsets(each)
    assert expected == found


def test_reindex_says_how_a_far_segment_gets_its_indexes(tmp_path: Path) -> None:
    """It builds no index for it; the two steps that it names do."""
    partition = far_log(tmp_path)
    (found,) = segmentlog.reindex(tmp_path)
    index = partition / f"{0:020d}.index"
    assert isinstance(found.error, MalformedBatchError)
    assert (
        "its offset is too far from the segment's base offset for an index; a recovery splits the "
        f"segment: rm {index.name}, if it is there, and segmentlog recover"
    ) == found.error.reason

    index.unlink(missing_ok=True)
    list(DirectoryRecovery(HeldDirectory(str(tmp_path)), INTERVAL).run())
    assert (FAR_OFFSETS, []) == (offsets(partition), errors(partition))


def test_a_far_segment_is_split_before_an_append(tmp_path: Path) -> None:
    """A writer recovers as the command does, and appends after the last offset."""
    partition = far_log(tmp_path)
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(pa.table({"value": [b"x"]}))
    assert [*FAR_OFFSETS, 3 * FAR + 4] == offsets(partition)


def test_a_split_on_a_full_disk_leaves_the_segment_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No half-written file is left, and all records can be read."""
    partition = far_log(tmp_path)

    def fill(path: str, to: str, begin: int, end: int) -> None:
        Path(to).write_bytes(b"half")
        if begin:
            raise OSError(errno.ENOSPC, "No space left on device", to)

    with monkeypatch.context() as patch:
        patch.setattr(recover_log_module, "copy_bytes", fill)
        with pytest.raises(StorageError, match="No space left on device"):
            list(DirectoryRecovery(HeldDirectory(str(tmp_path)), INTERVAL).run())
    assert [f"{0:020d}.log"] == [path.name for path in partition.iterdir()]
    assert FAR_OFFSETS == offsets(partition)


@cut_loop
def test_a_split_that_crashes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """A reader finds all records after any step, and the next recovery ends as the first would."""
    whole = far_log(tmp_path / "whole")
    list(DirectoryRecovery(HeldDirectory(str(whole.parent)), INTERVAL).run())
    expected = {name for name in tree(whole) if not name.endswith(".deleted")}
    for number in range(0, 1000, every):
        partition = far_log(tmp_path / str(number))
        with monkeypatch.context() as patch:
            crash_at(patch, number)
            try:
                list(DirectoryRecovery(HeldDirectory(str(partition.parent)), INTERVAL).run())
                break
            except Crash:
                assert FAR_OFFSETS == offsets(partition), number
        list(DirectoryRecovery(HeldDirectory(str(partition.parent)), INTERVAL).run())
        found = {name for name in tree(partition) if not name.endswith(".deleted")}
        assert (expected, FAR_OFFSETS) == (
            {name for name in found if ".tmp" not in name},
            offsets(partition),
        ), number
        shutil.rmtree(partition.parent)
    assert number > 30


@pytest.mark.parametrize("recovers", [True, False])
def test_the_only_segment_of_a_log_is_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recovers: bool
) -> None:
    """A crash may leave no ``.log`` file: readers find the log, and no writer makes it anew."""
    for number in range(12, 40):
        partition = far_log(tmp_path / str(number))
        with monkeypatch.context() as patch, contextlib.suppress(Crash):
            crash_at(patch, number)
            list(DirectoryRecovery(HeldDirectory(str(partition.parent)), INTERVAL).run())
        if not [*partition.glob("*.log")]:
            break
    assert FAR_OFFSETS == offsets(partition)
    with pytest.raises(LogDirectoryError, match="is a partition directory"):
        segmentlog.alter_settings(partition, "t", {"retention.ms": "1"})
    if recovers:
        segmentlog.recover(partition.parent)
    write(partition.parent, pa.table({"value": [b"next"]}))
    assert [*FAR_OFFSETS, FAR_OFFSETS[-1] + 1] == offsets(partition)


@cut_loop
def test_a_recovery_that_crashes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """The recovery crashes after any step.

    In the end the directory is the same, and nothing is kept twice.
    """
    whole = harmed(tmp_path / "whole")
    steps = list(DirectoryRecovery(HeldDirectory(str(whole.parent)), INTERVAL).run())
    assert "offsets [22, 60) are cut off" in " ".join(step.message for step in steps)
    expected, top = tree(whole), (whole.parent / "replication-offset-checkpoint").read_bytes()
    assert b"t 0 22" in top

    for number in range(0, 1000, every):
        partition = harmed(tmp_path / str(number))
        with monkeypatch.context() as patch:
            made = crash_at(patch, number)
            try:
                list(DirectoryRecovery(HeldDirectory(str(partition.parent)), INTERVAL).run())
                break
            except Crash:
                assert not (partition.parent / ".kafka_cleanshutdown").exists() or (
                    made[-1] == "fsync"
                )
        steps = list(DirectoryRecovery(HeldDirectory(str(partition.parent)), INTERVAL).run())
        assert RecoveryKind.LOG_FAILED not in {step.kind for step in steps}
        found = {name: data for name, data in tree(partition).items() if ".tmp" not in name}
        assert expected == found, (number, made)
        assert top == (partition.parent / "replication-offset-checkpoint").read_bytes()
        shutil.rmtree(partition.parent)
    assert number > 30


@cut_loop
def test_the_mark_of_a_clean_stop_vouches_for_no_half_recovered_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """While the mark exists, a log is either as before the crash or fully recovered."""
    seen = {"before": 0, "between": 0}
    for number in range(0, 1000, every):
        directory = tmp_path / str(number)
        partition = write_log(directory, [batch(0), batch(2), batch(4)[:-1]])
        mark = directory / ".kafka_cleanshutdown"
        mark.touch()
        before = tree(partition)
        with monkeypatch.context() as patch:
            crash_at(patch, number)
            try:
                list(DirectoryRecovery(HeldDirectory(str(directory)), INTERVAL).run())
                break
            except Crash:
                pass
        if not mark.exists():
            seen["between"] += 1
        elif tree(partition) == before:
            seen["before"] += 1
        else:
            assert [] == errors(partition)
            assert {4} == {int(path.stem) for path in partition.glob("*.snapshot")}
    assert min(seen.values()) > 0, seen
    assert mark.exists()


def plan_of(directory: Path, *, is_clean: bool) -> tuple[object, int]:
    """The plan of a writer that begins to append."""
    held = HeldDirectory(str(directory), lambda _: TopicConfig(index_interval_bytes=INTERVAL))
    mark = directory / CLEAN_SHUTDOWN_FILE
    if is_clean:
        mark.touch()
    else:
        mark.unlink(missing_ok=True)
    ready = ready_to_append(held, [T], flush=True)
    held.checkpoints.write()
    return ready[T]


def test_a_writer_recovers_what_was_never_synced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The writer reports and keeps the bytes that it cuts. It advances the checkpoint."""
    partition = harmed(tmp_path)
    write_offsets(str(tmp_path), "replication-offset-checkpoint", {T: 24})
    sizes, end = plan_of(tmp_path, is_clean=False)

    assert (22, 20) == (end, sizes.base_offset)
    assert "offsets [22, 60) are cut off" in caplog.text
    assert 2 == len(list(partition.glob("*.broken")))
    assert "t 0 22" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert "t 0 22" in (tmp_path / "replication-offset-checkpoint").read_text()
    assert (sizes, 22) == plan_of(tmp_path, is_clean=False)


def test_a_writer_does_not_take_an_index_that_was_not_rebuilt_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An undo would cut the index of the log to 0 bytes."""
    write(tmp_path, pa.table({"value": [b"a"]}))
    (index,) = (tmp_path / "t-0").glob("*.timeindex")
    index.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "rebuild_indexes", lambda *_: None)
        with pytest.raises(FileNotFoundError, match=index.name):
            plan_of(tmp_path, is_clean=True)
    plan_of(tmp_path, is_clean=True)
    assert index.exists()


def recover_all(directory: Path) -> None:
    """Run `segmentlog recover`."""
    assert list(DirectoryRecovery(HeldDirectory(str(directory)), INTERVAL).run())


def append(directory: Path) -> None:
    """Append with a writer."""
    with segmentlog.open_writer(directory, "t") as writer:
        writer.append(pa.table({"value": [b"x"]}))


def compact(directory: Path) -> None:
    """Compact the log."""
    segmentlog.compact(directory, settings={"cleanup.policy": "compact"})


@pytest.mark.parametrize("mend", [recover_all, append, compact], ids=lambda each: each.__name__)
def test_a_log_that_is_cut_is_clean_up_to_its_new_end_only(
    tmp_path: Path, mend: Callable[[Path], None]
) -> None:
    """Otherwise later records would count as compacted.

    A tombstone among them would remove nothing.
    """
    partition = three_segments(tmp_path)
    log = partition / f"{40:020d}.log"
    os.truncate(log, log.stat().st_size - 3)
    other = TopicPartition("other", 3)
    write_offsets(str(tmp_path), CLEANER_OFFSET_CHECKPOINT, {T: 60, other: 7})
    mend(tmp_path)

    cleaned = read_offsets(str(tmp_path), CLEANER_OFFSET_CHECKPOINT)
    assert cleaned[T] <= 58
    assert cleaned[other] == 7


def test_a_deleted_key_stays_deleted_after_a_recovery(tmp_path: Path) -> None:
    """The tombstone lies beyond the cut, at offsets that were clean before."""
    config = segmentlog.ProducerConfig(batch_size=1, topic_config=TopicConfig(segment_bytes=100))

    def write(keys: list[bytes], values: list[bytes | None]) -> None:
        with segmentlog.open_writer(tmp_path, "t", config=config) as writer:
            writer.append(pa.table({"key": keys, "value": pa.array(values, pa.binary())}))

    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "0",
        "file.delete.delay.ms": "0",
    }
    write([b"%d" % number for number in range(10)], [b"value"] * 10)
    segmentlog.compact(tmp_path, settings=settings)
    log = sorted((tmp_path / "t-0").glob("*.log"))[0]
    os.truncate(log, log.stat().st_size - 1)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / RECOVERY_POINT_CHECKPOINT).unlink()
    list(DirectoryRecovery(HeldDirectory(str(tmp_path)), INTERVAL).run())

    write([b"1", b"1", b"end"], [b"old", None, b""])
    for _ in range(3):
        segmentlog.compact(tmp_path, settings=settings, now_ms=2**41)
    scanned = segmentlog.open_log_dir(tmp_path).log("t", 0).scan()
    assert b"old" not in [value for each in scanned for value in each["value"].to_pylist()]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_writer_loses_nothing_that_had_been_synced(tmp_path: Path, *, is_clean: bool) -> None:
    """The writer refuses to cut below the recovery point, and names the commands to use."""
    partition = three_segments(tmp_path)
    last = partition / f"{40:020d}.log"
    os.truncate(last, last.stat().st_size - 3)
    write_offsets(str(tmp_path), "recovery-point-offset-checkpoint", {T: 60})
    before = tree(partition)

    with pytest.raises(
        LogDirectoryError, match=r"lost its records from offset 58 on, .* segmentlog recover"
    ):
        plan_of(tmp_path, is_clean=is_clean)
    assert before == tree(partition)


def test_damage_before_good_batches_of_a_clean_log_is_refused(tmp_path: Path) -> None:
    """The broker that stopped the log cleanly had synced these batches."""
    partition = write_log(tmp_path, [batch(0), b"x" * 90, batch(2)])
    before = tree(partition)

    with pytest.raises(
        LogDirectoryError, match=r"from offset 2 on; .* without .kafka_cleanshutdown, .* recover"
    ):
        plan_of(tmp_path, is_clean=True)
    assert before == tree(partition)


def test_a_newer_format_in_a_clean_log_is_named(tmp_path: Path) -> None:
    """No cut makes such a log writable, so the error proposes none."""
    newer = bytearray(batch(2))
    newer[layout.MAGIC_AT] = 3
    write_log(tmp_path, [batch(0), bytes(newer)])

    with pytest.raises(UnsupportedFormatError, match="magic 3"):
        plan_of(tmp_path, is_clean=True)


def test_recovery_cuts_a_clean_log_at_damage_once_its_mark_is_removed(tmp_path: Path) -> None:
    """The refusal of a writer names this way."""
    partition = write_log(tmp_path, [batch(0), b"x" * 90, batch(2)])
    write_offsets(str(tmp_path), "recovery-point-offset-checkpoint", {T: 4})
    mark = tmp_path / CLEAN_SHUTDOWN_FILE
    mark.touch()
    before = tree(partition)
    segmentlog.recover(tmp_path)
    assert before == tree(partition)

    mark.unlink()
    segmentlog.recover(tmp_path)
    assert [*partition.glob("*.broken")]
    assert mark.exists()
    _, end = plan_of(tmp_path, is_clean=True)
    assert 2 == end


def test_an_empty_partition_gets_its_segment(tmp_path: Path) -> None:
    """The log of a directory without segments begins at the log start, as with a broker."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    plan: RecoveryPlan = plan_recovery(str(partition), 0, 5)

    assert "" == plan.loss
    assert [] == recover_log(plan, INTERVAL)
    assert {f"{5:020d}.{kind}" for kind in ("log", "index", "timeindex")} <= set(tree(partition))


@cut_loop
def test_a_recovery_that_crashes_leaves_no_index_in_the_way_of_a_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """The indexes of a segment that is cut off are removed first.

    No later recovery would remove them.
    """
    for number in range(0, 1000, every):
        partition = indexed_with_damage(tmp_path / str(number))
        with monkeypatch.context() as patch:
            made = crash_at(patch, number)
            try:
                recover(partition)
                break
            except Crash:
                pass
        logs = {int(path.stem) for path in partition.glob("*.log")}
        indexes = {int(path.stem) for path in partition.glob("*index")}
        assert indexes <= logs, (number, made)
        recover(partition)
        assert [] == errors(partition)
        assert {0, 20} == {int(path.stem) for path in partition.glob("*index")}
    assert number > 10


def indexed_with_damage(directory: Path) -> Path:
    """Three segments with indexes, one of a transaction; the second segment has a bad batch."""
    partition = three_segments(directory)
    recover(partition)
    (partition / f"{40:020d}.txnindex").touch()
    data = bytearray((partition / f"{20:020d}.log").read_bytes())
    data[-70] ^= 1
    (partition / f"{20:020d}.log").write_bytes(data)
    return partition


@pytest.mark.parametrize("is_clean", [True, False])
def test_indexes_without_a_log_do_not_stay_in_the_way_of_an_append(
    tmp_path: Path, is_clean: bool
) -> None:
    """An earlier recovery has left the indexes.

    A writer removes them, as a starting broker does.
    """
    partition = three_segments(tmp_path)
    recover(partition)
    write_offsets(str(tmp_path), "recovery-point-offset-checkpoint", {T: 60})
    orphans = [partition / f"{60:020d}.{kind}" for kind in ("index", "timeindex", "txnindex")]
    for orphan in orphans:
        orphan.touch()
    assert [(Severity.WARNING, "index-without-log", str(orphan), 60) for orphan in orphans] == [
        (each.severity, each.kind, each.path, each.offset) for each in errors(partition)
    ]
    (partition / f"{80:020d}.index.deleted").touch()  # a broker is writing it
    if is_clean:
        (tmp_path / ".kafka_cleanshutdown").touch()
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.roll()
        writer.append(pa.table({"value": [b"after"]}))

    assert list(range(61)) == offsets(partition)
    assert (partition / f"{60:020d}.log").stat().st_size
    assert not orphans[2].exists()
    assert (partition / f"{80:020d}.index.deleted").exists()
    assert [] == errors(partition)


def test_recovering_a_directory_removes_indexes_without_a_log(tmp_path: Path) -> None:
    """They are removed in a cleanly stopped directory, too.

    The next segment begins at their offset.
    """
    partition = three_segments(tmp_path)
    list(DirectoryRecovery(HeldDirectory(str(tmp_path)), INTERVAL).run())
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    orphan = partition / f"{60:020d}.index"
    orphan.touch()
    would = list(DirectoryRecovery(HeldDirectory(str(tmp_path), dry_run=True), INTERVAL).run())
    assert orphan.exists()
    did = list(DirectoryRecovery(HeldDirectory(str(tmp_path)), INTERVAL).run())

    assert ["t-0: would remove 1 index file without a log"] == [each.message for each in would]
    assert ["t-0: removed 1 index file without a log"] == [each.message for each in did]
    assert not orphan.exists()
    assert [] == list(DirectoryRecovery(HeldDirectory(str(tmp_path)), INTERVAL).run())
