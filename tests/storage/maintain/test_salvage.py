"""A salvage leaves out bad bytes alone, and the good batches after them stay in the log."""

import shutil
import struct
from pathlib import Path

import pytest
from crashing import Crash, crash_at, cut_loop

import segmentlog
from segmentlog import RecoveryKind, RecoveryStep
from segmentlog.maintain.recover_directory import DirectoryRecovery
from segmentlog.maintain.verification.findings import Severity
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.txn.change import HeldDirectory

pytestmark = pytest.mark.linux

BASES = (0, 20, 40)
END = 60
SIZE = len(encode_batch([Record(o, 1000 + o, b"k", b"%02d" % o * 9) for o in (20, 21)]))


def damaged(directory: Path, *damage: tuple[int, int, bytes]) -> Path:
    """Three segments of ten batches of two records, with bytes replaced in some of them."""
    partition = directory / "t-0"
    partition.mkdir(parents=True)
    for base in BASES:
        batches = [
            encode_batch([Record(o, 1000 + o, b"k", b"%02d" % o * 9) for o in (first, first + 1)])
            for first in range(base, base + 20, 2)
        ]
        (partition / f"{base:020d}.log").write_bytes(b"".join(batches))
    segmentlog.reindex(partition)
    (directory / "replication-offset-checkpoint").write_text(f"0\n1\nt 0 {END}\n")
    for base, at, data in damage:
        with (partition / f"{base:020d}.log").open("r+b") as file:
            file.seek(at)
            file.write(data)
    return partition


def salvaged(directory: Path) -> list[RecoveryStep]:
    """The steps of a recovery that keeps good batches."""
    return segmentlog.recover(directory, on_corrupt_batch="skip")


def offsets(directory: Path) -> list[int]:
    """The offsets that a read returns."""
    return segmentlog.read(directory, "t", columns=["offset"])["offset"].to_pylist()


def tree(directory: Path) -> dict[str, bytes]:
    """Every file except the lock."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


ZEROS = bytes(SIZE)
TOO_HIGH = struct.pack(">q", 19 << 20)

CASES = {
    "first batch": ([(0, 0, ZEROS)], {0, 1}),
    "middle": ([(0, SIZE + 100, b"damaged")], {2, 3}),
    "across two batches": ([(20, SIZE - 5, b"damaged...")], {20, 21, 22, 23}),
    "several": (
        [(0, 90, b"x"), (20, 90, b"x"), (40, 5 * SIZE + 90, b"x")],
        {0, 1, 20, 21, 50, 51},
    ),
    "end of a closed segment": ([(20, 9 * SIZE + 90, b"x")], {38, 39}),
    "a whole closed segment": ([(20, 0, ZEROS * 10)], set(range(20, 40))),
    "a length that jumps": ([(0, 8, struct.pack(">i", 3 * SIZE - 12))], {0, 1}),
    "a base offset": ([(0, 4 * SIZE, TOO_HIGH)], {8, 9}),
}


@pytest.mark.parametrize(("damage", "lost"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("is_clean", [False, True])
def test_only_damaged_batches_are_lost(
    tmp_path: Path, damage: list[tuple[int, int, bytes]], lost: set[int], *, is_clean: bool
) -> None:
    """All other records stay at their offsets, up to the same end, and a verification is clean."""
    damaged(tmp_path, *damage)
    if is_clean:
        (tmp_path / ".kafka_cleanshutdown").touch()
    before = tree(tmp_path)
    would = segmentlog.recover(tmp_path, dry_run=True, on_corrupt_batch="skip")
    assert before == tree(tmp_path)
    steps = salvaged(tmp_path)

    (planned,) = (step for step in would if step.kind is RecoveryKind.LOG_SALVAGED)
    (done,) = (step for step in steps if step.kind is RecoveryKind.LOG_SALVAGED)
    assert planned.n_bytes == done.n_bytes
    assert {RecoveryKind.LOG_CUT, RecoveryKind.HIGH_WATERMARK_LOWERED}.isdisjoint(
        step.kind for step in steps
    )
    assert [o for o in range(END) if o not in lost] == offsets(tmp_path)
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    assert (END, END) == (log.log_end_offset, log.high_watermark)
    assert [] == [
        each for each in segmentlog.verify(tmp_path) if each.severity is not Severity.NOTE
    ]
    n_kept = sum((tmp_path / "t-0" / name).stat().st_size for name in done.kept)
    is_zeros = any(len(data) % SIZE == 0 for _, _, data in damage)
    assert is_zeros or n_kept == done.n_bytes
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert [] == salvaged(tmp_path)


def batch_of(first: int, value: bytes = b"foreign") -> bytes:
    """A batch of two records as large as the others, as another place of the disk may hold it."""
    value = (value * 9)[:18]
    return encode_batch([Record(o, 1000 + o, b"k", value) for o in (first, first + 1)])


def own(first: int) -> bytes:
    """A batch of the log."""
    return encode_batch([Record(o, 1000 + o, b"k", b"%02d" % o * 9) for o in (first, first + 1)])


MISPLACED = {
    "a later batch": ([(0, 2 * SIZE, own(16))], {4, 5}),
    "an early batch": ([(0, 7 * SIZE, own(2))], {14, 15}),
    "of another log, above the segment": ([(20, 2 * SIZE, batch_of(900))], {24, 25}),
    "of another log, within the segment": ([(20, 2 * SIZE, batch_of(33))], {24, 25}),
    "of another log, below": ([(20, 2 * SIZE, batch_of(3))], {24, 25}),
    "of another log, in the last place": (
        [(20, 9 * SIZE, batch_of(900)), (20, 2 * SIZE, own(30))],
        {24, 25, 38, 39},
    ),
    "of another log, beside a gap": (
        [(0, 9 * SIZE, batch_of(19)), (0, 2 * SIZE, own(2))],
        {4, 5, 18, 19},
    ),
    "two batches": ([(0, 2 * SIZE, own(12)), (0, 3 * SIZE, own(14))], {4, 5, 6, 7}),
    "two batches exchanged": ([(0, 2 * SIZE, own(12)), (0, 6 * SIZE, own(4))], {4, 5, 12, 13}),
    "misplaced and damaged": ([(40, 2 * SIZE, own(56)), (40, 5 * SIZE, ZEROS)], {44, 45, 50, 51}),
}


@pytest.mark.parametrize(("damage", "lost"), MISPLACED.values(), ids=MISPLACED)
def test_a_misplaced_batch_costs_only_what_lay_in_its_place(
    tmp_path: Path, damage: list[tuple[int, int, bytes]], lost: set[int]
) -> None:
    """The longest chain of good batches stays, and no record of another log becomes visible."""
    damaged(tmp_path, *damage)
    salvaged(tmp_path)
    rows = segmentlog.read(tmp_path, "t", columns=["offset", "value"])
    assert [o for o in range(END) if o not in lost] == rows["offset"].to_pylist()
    assert [b"%02d" % o * 9 for o in range(END) if o not in lost] == rows["value"].to_pylist()
    assert [] == [
        each for each in segmentlog.verify(tmp_path) if each.severity is not Severity.NOTE
    ]


def test_a_compacted_segment_keeps_its_lone_batches(tmp_path: Path) -> None:
    """Gaps are normal there: a batch beside one is no stranger."""
    partition = damaged(tmp_path)
    log = partition / f"{0:020d}.log"
    log.write_bytes(b"".join(own(first) for first in (0, 2, 6, 12, 18)))
    data = bytearray(log.read_bytes())
    data[SIZE + 90] ^= 1
    log.write_bytes(data)
    salvaged(tmp_path)
    assert [0, 1, 6, 7, 12, 13, 18, 19, *range(20, END)] == offsets(tmp_path)


def test_a_torn_tail_after_damage_is_cut_off(tmp_path: Path) -> None:
    """The damage is left out, and the tail goes where every recovery puts it."""
    partition = damaged(tmp_path, (40, 90, b"x"), (40, 10 * SIZE, b"\0torn, with a strange magic"))
    steps = salvaged(tmp_path)

    assert [o for o in range(END) if o not in {40, 41}] == offsets(tmp_path)
    assert {RecoveryKind.LOG_SALVAGED, RecoveryKind.LOG_CUT} <= {step.kind for step in steps}
    assert 9 * SIZE == (partition / f"{40:020d}.log").stat().st_size


def test_a_whole_batch_of_a_newer_format_is_not_left_out(tmp_path: Path) -> None:
    """The log stays as it is, with its damage."""
    damaged(tmp_path, (0, 90, b"x"), (0, 2 * SIZE + 16, b"\x03"))
    steps = salvaged(tmp_path)

    assert RecoveryKind.LOG_FAILED in {step.kind for step in steps}
    assert not list((tmp_path / "t-0").glob("*.broken"))


def test_a_recovery_without_the_choice_cuts_as_a_broker(tmp_path: Path) -> None:
    """The default is a broker's, and other words are refused."""
    damaged(tmp_path, (0, SIZE + 90, b"x"))
    segmentlog.recover(tmp_path)
    assert [0, 1] == offsets(tmp_path)
    with pytest.raises(segmentlog.errors.OptionError, match="on_corrupt_batch"):
        segmentlog.recover(tmp_path, on_corrupt_batch="keep")


@cut_loop
def test_a_salvage_that_crashes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """The recovery crashes after any step. In the end the directory is the same."""
    damage = CASES["several"][0]

    def recover(directory: Path) -> None:
        list(DirectoryRecovery(HeldDirectory(str(directory)), 200, salvages=True).run())

    damaged(tmp_path / "whole", *damage)
    recover(tmp_path / "whole")
    expected = tree(tmp_path / "whole")
    for number in range(0, 1000, every):
        directory = tmp_path / str(number)
        damaged(directory, *damage)
        with monkeypatch.context() as patch:
            made = crash_at(patch, number)
            try:
                recover(directory)
                break
            except Crash:
                pass
        recover(directory)
        assert expected == tree(directory), (number, made)
        shutil.rmtree(directory)
    assert number > 30


FAR = 2**31 + 100


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_damaged_segment_that_no_index_can_hold_is_salvaged_and_split(
    tmp_path: Path, *, is_clean: bool
) -> None:
    """Only the damaged batch is lost, and each part has indexes of its own."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    bases = [0, 2, 4, FAR, FAR + 2, FAR + 4]
    data = [
        encode_batch([Record(o, 1000, b"k", b"v"), Record(o + 1, 1000, b"k", b"v")]) for o in bases
    ]
    for i in (1, 4):
        data[i] = data[i][:-3] + b"bad"
    (partition / f"{0:020d}.log").write_bytes(b"".join(data))
    (tmp_path / "replication-offset-checkpoint").write_text(f"0\n1\nt 0 {FAR + 6}\n")
    if is_clean:
        (tmp_path / ".kafka_cleanshutdown").touch()
    kinds = {step.kind for step in salvaged(tmp_path)}

    assert {RecoveryKind.LOG_SALVAGED, RecoveryKind.SEGMENT_SPLIT} <= kinds
    assert [0, 1, 4, 5, FAR, FAR + 1, FAR + 4, FAR + 5] == offsets(tmp_path)
    assert [0, FAR] == sorted(int(path.stem) for path in partition.glob("*.log"))
    assert [0, FAR] == sorted(int(path.stem) for path in partition.glob("*.index"))
    assert not [each for each in segmentlog.verify(tmp_path) if each.severity == Severity.ERROR]
