"""Reads of damaged and changing directories give an error, a warning, or the right rows."""

import logging
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from flipping import INDEXED, LOGS, FlippedLog, Rows, modern_batch, plant, taken
from tiers import TOPIC_ID, copy_segment, remove_local

import segmentlog
from segmentlog.errors import SegmentLogError
from segmentlog.testing.legacy import read_log, read_message
from segmentlog.testing.reference import BadBatchError, UnknownFormatError, read_batch

COLUMNS = ["offset", "timestamp", "value"]
N_PLAIN = 60
SECONDS = 30  # that a read may take
GROWN_BYTES = 400 << 20
CHECKPOINTS = ("log-start-offset-checkpoint", "replication-offset-checkpoint")


class Template(NamedTuple):
    """The files of an undamaged directory, by relative paths, and its model."""

    log: FlippedLog
    files: dict[str, bytes]
    has_tier: bool


class Case(NamedTuple):
    """A directory of its own, with what was done to it.

    Attributes
    ----------
    done : words for the report.
    optional : rows that need not come, because a compaction has removed them.
    is_strict : whether the read has to return its rows: nothing is damaged or removed.
    """

    root: Path
    template: Template
    rng: random.Random
    done: list[str]
    optional: set[Any]
    is_strict: bool = True

    @property
    def partition(self) -> Path:
        """The local partition."""
        return self.root / "logs" / "t-0"

    def files(self) -> list[Path]:
        """All files of the log and its tier."""
        return sorted(each for each in self.root.rglob("*") if each.is_file())


@cache
def template(name: str, *, has_indexes: bool, has_checkpoints: bool, has_tier: bool) -> Template:
    """The files of a log of `flipping`, made once."""
    with TemporaryDirectory() as directory:
        root = Path(directory)
        log = plant(root / "logs", name, has_indexes=has_indexes, has_checkpoints=has_checkpoints)
        (log.partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
        if has_tier:
            (log.partition / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
            bases = sorted(log.segments)
            for base, end in pairwise(bases):
                copy_segment(log.partition, root / "tier", base, end)
            remove_local(log.partition, *bases[:-1])
        files = {
            str(each.relative_to(root)): each.read_bytes()
            for each in root.rglob("*")
            if each.is_file()
        }
    return Template(log, files, has_tier)


# ---- what is done to a directory


def flip(case: Case, path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[case.rng.randrange(len(data))] ^= 1 << case.rng.randrange(8)
        path.write_bytes(data)


def cut(case: Case, path: Path) -> None:
    os.truncate(path, case.rng.randrange(path.stat().st_size + 1))


def zero(case: Case, path: Path) -> None:
    data = bytearray(path.read_bytes())
    begin, end = sorted(case.rng.randrange(len(data) + 1) for _ in range(2))
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)


def append(case: Case, path: Path) -> None:
    n_bytes = case.rng.choice([1, 7, 61, 500])
    data = path.read_bytes()
    tail = case.rng.choice([bytes(n_bytes), case.rng.randbytes(n_bytes), data[:n_bytes], data])
    path.write_bytes(data + tail)


def remove(_: Case, path: Path) -> None:
    path.unlink()


def exchange(case: Case, path: Path) -> None:
    other = case.rng.choice([each for each in case.files() if each.suffix == path.suffix])
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


def rename(case: Case, path: Path) -> None:
    suffix = case.rng.choice([".deleted", ".swap", ".cleaned", ".bak", ""])
    name = path.name + suffix
    if not suffix and path.stem.isdigit():
        name = f"{case.rng.randrange(100):020d}{path.suffix}"
    path.rename(path.with_name(name))


DAMAGES: tuple[Callable[[Case, Path], None], ...] = (
    flip,
    flip,
    flip,
    cut,
    zero,
    append,
    remove,
    exchange,
    rename,
)


def checkpoint(case: Case, kind: str, offset: int) -> None:
    path = case.root / "logs" / kind
    if path.exists():
        path.write_text(f"0\n1\nt 0 {offset}\n")


def grow(case: Case) -> None:
    """A producer appends, perhaps to a new segment."""
    end = case.template.log.end + 4 * case.done.count("grow -")
    new = modern_batch(end, 4)
    last = max(case.partition.glob("*.log"))
    if case.rng.random() < 0.5:
        last = last.with_name(f"{end:020d}.log")
    with last.open("ab") as file:
        file.write(new.data)
    checkpoint(case, CHECKPOINTS[1], end + 4)


def retain(case: Case) -> None:
    """Retention deletes the first segment, as a broker does: under another name at first."""
    first, *others = sorted(case.partition.glob("*.log"))
    if not others:
        return
    checkpoint(case, CHECKPOINTS[0], int(others[0].stem))
    for path in case.partition.glob(f"{first.stem}.*"):
        path.rename(path.with_name(path.name + ".deleted"))
        if case.rng.random() < 0.5:
            path.with_name(path.name + ".deleted").unlink()


def compact(case: Case) -> None:
    """A cleaner replaces a closed segment by one without its first batch."""
    first, *others = sorted(case.partition.glob("*.log"))
    batches = case.template.log.segments.get(int(first.stem), [])
    if not others or len(batches) < 2:
        return
    case.optional.update(batches[0].rows)
    cleaned = first.with_name(first.name + ".swap")
    cleaned.write_bytes(b"".join(each.data for each in batches[1:]))
    for path in case.partition.glob(f"{first.stem}.*index"):
        path.unlink()
    cleaned.replace(first)


# ---- what may be read


def intact_rows(case: Case) -> set[Any]:
    """The rows of all batches that the plain reference decodes, anywhere in the files.

    A checksum does not cover the base offset.  So rows are sought at each byte, and a batch may
    lie anywhere.
    """
    found = set()
    for path in case.files():
        if ".log" not in path.name:
            continue
        data = path.read_bytes()
        at = 0
        while at + 17 <= len(data):
            end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
            if not at + 26 <= end <= len(data) or data[at + 16] > 2:
                at += 1
                continue
            piece = data[at:end]
            try:
                records = (
                    read_batch(piece, 0, 1 << 20)
                    if piece[16] == 2
                    else read_message(piece, 0, 1 << 20)[1]
                )
            except (BadBatchError, UnknownFormatError):
                at += 1
                continue
            has_times = piece[16] > 0
            found.update(
                (each.offset, each.timestamp_ms if has_times else -1, each.value)
                for each in records
            )
            at = end
    return found


class Read(NamedTuple):
    """A way to read, and the rows of the undamaged log that it returns."""

    name: str
    rows: Rows
    read: Callable[[], Rows]


def opened(case: Case) -> list[Read]:
    """Some reads, planned now."""
    log, rng = case.template.log, case.rng
    how: dict[str, Any] = {"on_corrupt_batch": rng.choice(["fail", "fail", "skip"])}
    place: dict[str, Any] = {}
    if case.template.has_tier:
        place["remote_storage"] = case.root / "tier"
    rows, is_transactional = log.rows, any(row[2][:2] == b"8:" for row in log.rows if row[2])
    bounds: dict[str, Any] = {}
    start, end = sorted(rng.randrange(log.end + 1) for _ in range(2))
    times = sorted({row[1] for row in rows})
    match rng.randrange(5):
        case 0:
            bounds = {"start_offset": start, "end_offset": end}
            rows = [row for row in rows if start <= row[0] < end]
        case 1 if log.has_times:
            since = rng.choice(times) + rng.randrange(2)
            bounds = {"since": since}
            first = next((i for i, row in enumerate(rows) if row[1] >= since), len(rows))
            rows = rows[first:]
        case 2 if log.has_times:
            until = rng.choice(times) + rng.randrange(2)
            bounds = {"until": until}
            rows = rows[: next((i for i, row in enumerate(rows) if row[1] >= until), len(rows))]
        case 3:
            how["isolation_level"] = "read_committed"
            if is_transactional:
                rows = [row for row in rows if not (row[2] or b"").startswith(b"8:")]
    directory = case.root / "logs"
    one = segmentlog.open_log_dir(directory, **place).log("t", 0)

    def scan() -> Rows:
        return taken(one.scan(columns=COLUMNS, use_threads=False, **bounds, **how))

    in_dataset = dict(bounds)
    for ours, theirs in (("start_offset", "starting"), ("end_offset", "ending")):
        if ours in bounds:
            in_dataset[f"{theirs}_offsets"] = {("t", 0): in_dataset.pop(ours)}
    if rng.random() < 0.2:
        how["fail_on_data_loss"] = False
    dataset = segmentlog.dataset(directory, **in_dataset, **how, **place)

    def whole() -> Rows:
        return taken(dataset.to_batches(COLUMNS, use_threads=rng.random() < 0.1))

    name = f"{bounds} {how}"
    return [Read(f"scan {name}", rows, scan), Read(f"dataset {name}", rows, whole)]


@contextmanager
def warned() -> Iterator[list[str]]:
    """The warnings of the engine."""
    found: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    keeper, logger = Keeper(logging.WARNING), logging.getLogger("segmentlog")
    level, logger.propagate = logger.level, False
    logger.setLevel(logging.WARNING)
    logger.addHandler(keeper)
    try:
        yield found
    finally:
        logger.removeHandler(keeper)
        logger.propagate = True
        logger.setLevel(level)


def wrong(case: Case, read: Read, known: set[Any]) -> str | None:
    """What is wrong with the outcome of a read."""
    with warned() as warnings:
        try:
            rows = read.read()
        except SegmentLogError as error:
            return f"{type(error).__name__}: {error}" if case.is_strict else None
    offsets = [row[0] for row in rows]
    if offsets != sorted(set(offsets)):
        return f"offsets {offsets} do not rise"
    strange = [row for row in rows if row not in known]
    if strange:
        return f"strange rows {strange[:3]}"
    got = set(rows)
    missing = [row for row in read.rows if row not in got and row not in case.optional]
    if not missing or warnings or is_excused(case, missing, read.rows):
        return None
    return f"missing {[row[0] for row in missing]} of {len(read.rows)} without a word"


def is_excused(case: Case, missing: Rows, rows: Rows) -> bool:
    """Whether nothing on disk can show that rows are missing.

    A log begins with its first segment: a broker writes the checkpoint of log starts long after
    it has deleted segments.  Without a high watermark, it ends with its last whole batch.
    """
    if any(each.split()[-1].endswith("checkpoint") for each in case.done):
        return True
    bases = [int(each.stem) for each in case.partition.glob("*.log") if each.stem.isdigit()]
    segments = [*case.template.log.segments, case.template.log.end]
    first = 0 if case.template.has_tier else min(bases, default=case.template.log.end)
    begins = next((each for each in segments if each >= first), first)
    # A closed segment without an index that was removed, or cut between two batches, leaves a gap
    # as compaction does.
    gone = [row[0] for row in missing if row[0] >= begins and not is_bare_gap(case, row[0], bases)]
    if len(case.done) > 1 and set(missing) <= set(
        [*case.template.log.segments.values()][-1][-1].rows
    ):
        return True  # a base offset that was moved beyond a read after it was planned
    if case.template.log.has_checkpoints:
        return not gone
    left = [row[0] for row in rows if row not in missing]
    return not left or all(each > left[-1] for each in gone)


def is_bare_gap(case: Case, offset: int, bases: list[int]) -> bool:
    """Whether an offset is missing between whole batches, and no index shows that it was there.

    A compaction leaves such gaps, and indexes without a log.
    """
    if "compact -" in case.done:
        return True
    segment = max(each for each in case.template.log.segments if each <= offset)
    is_orphan = segment not in bases and any(case.partition.glob(f"{segment:020d}.*index"))
    return not is_orphan and (segment not in bases or are_whole(case))


def are_whole(case: Case) -> bool:
    """Whether all segments consist of whole batches."""
    for path in case.partition.glob("*.log"):
        try:
            for _ in read_log(path.read_bytes(), 1 << 20):
                pass
        except (BadBatchError, UnknownFormatError):
            return False
    return True


def run(number: int, root: Path) -> str | None:
    """One directory; returns what is wrong."""
    rng = random.Random(number)
    has_tier = rng.random() < 0.2
    name = "four segments" if has_tier else rng.choice([*LOGS, *INDEXED, "four segments"])
    made = template(
        name,
        has_indexes=has_tier or rng.random() < 0.6,
        has_checkpoints=rng.random() < 0.7,
        has_tier=has_tier,
    )
    for name_of_file, data in made.files.items():
        target = root / name_of_file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    case = Case(root, made, rng, [], set())
    changes = rng.random() < 0.4
    damages = not changes or rng.random() < 0.4
    is_strict = not damages
    reads: list[Read] = []
    known = intact_rows(case)
    with warned() as early:
        try:
            if changes:
                reads = opened(case)
                for _ in range(rng.randint(1, 2)):
                    change = rng.choice([grow, grow, retain, compact])
                    change(case)
                    case.done.append(f"{change.__name__} -")
                    is_strict &= change is not retain
            for _ in range(rng.randint(1, 3) if damages else 0):
                path = rng.choice(case.files())
                damage = rng.choice(DAMAGES)
                case.done.append(f"{damage.__name__} {path.relative_to(root)}")
                damage(case, path)
            reads = reads or opened(case)
        except SegmentLogError:
            return None
    known |= intact_rows(case)
    case = case._replace(is_strict=is_strict)
    for read in reads:
        signal.alarm(SECONDS)
        found = wrong(case, read, known)
        signal.alarm(0)
        if found and not (early and found.startswith("missing")):
            return f"{number} {name} {made.log.has_checkpoints=} {case.done}, {read.name}: {found}"
    return None


def runs(numbers: range) -> list[str]:
    """What is wrong in the directories of these numbers."""
    found = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in numbers:
        with TemporaryDirectory(dir=os.environ.get("DIRECTORIES_IN")) as directory:
            try:
                result = run(number, Path(directory))
            except Exception as error:  # noqa: BLE001 - any other error is a finding
                result = f"{number}: {error!r}"
        if result:
            found.append(result)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if grown > GROWN_BYTES >> 10:
        found.append(f"memory grew by {grown >> 10} MiB")
    return found


def test_some_directories() -> None:
    """The same ones in each run."""
    assert [] == runs(range(N_PLAIN))


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_many_directories() -> None:
    """20,000 others; `DIRECTORIES` is how many, and `DIRECTORIES_FROM` the first number."""
    first = int(os.environ.get("DIRECTORIES_FROM", "1000"))
    found = runs(range(first, first + int(os.environ.get("DIRECTORIES", "20000"))))
    assert [] == found
