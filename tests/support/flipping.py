"""Small logs in every format, a plain model of their rows, and many ways to read them."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from producer_batches import ABORT, COMMIT, batch, marker

import segmentlog
from segmentlog.arrow_dataset.log_dataset import LogDataset
from segmentlog.errors import SegmentLogError
from segmentlog.log.index_builder import rebuild_indexes
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment
from segmentlog.model import OnCorruptBatch, ScanPolicy
from segmentlog.reads.scan import scan_slice
from segmentlog.testing.codecs import NONE, ZSTD
from segmentlog.testing.legacy import encode_message, encode_wrapper
from segmentlog.testing.reference import Record, encode_batch

T0 = 1_700_000_000_000
_INTERVAL_BYTES = 250  # between index entries: two or three batches

Rows = list[tuple[int, int, bytes | None]]


class Batch(NamedTuple):
    """A batch of a log, and the rows that a consumer sees of it."""

    data: bytes
    rows: Rows
    base_offset: int
    last_offset: int

    @property
    def is_wrapper(self) -> bool:
        """Whether it is a compressed message of magic 0 or 1."""
        return self.data[16] < 2 and bool(self.data[17] & 7)


class FlippedLog(NamedTuple):
    """An undamaged log on disk, with its model."""

    directory: Path  # the log directory; its partition is ``t-0``
    segments: dict[int, list[Batch]]  # batches by the base offset of their segment
    end: int  # the log end offset
    has_checkpoints: bool  # whether that is also the high watermark; otherwise there is none
    has_times: bool  # whether its timestamps rise from record to record

    @property
    def partition(self) -> Path:
        """The partition's directory."""
        return self.directory / "t-0"

    @property
    def has_gaps(self) -> bool:
        """Whether compaction has removed batches."""
        ordered = [each for batches in self.segments.values() for each in batches]
        return any(b.base_offset > a.last_offset + 1 for a, b in pairwise(ordered))

    @property
    def rows(self) -> Rows:
        """All rows."""
        return [row for batches in self.segments.values() for each in batches for row in each.rows]


class Flip(NamedTuple):
    """One bit of one file.

    `path`, `byte`, `bit`: the place.
    """

    path: Path
    byte: int
    bit: int
    # the batch that the byte belongs to, or None outside of ``.log`` files
    batch: Batch | None = None
    at: int = 0  # the byte of the batch


def flips_of(log: FlippedLog) -> list[list[Flip]]:
    """All flips of a log, by kinds; tests should meet each kind equally often."""
    prefixes: list[Flip] = []
    headers: list[Flip] = []
    rest: list[Flip] = []
    others: list[Flip] = []
    for path in sorted(log.partition.iterdir()):
        if path.suffix != ".log":
            n_bits = 8 * path.stat().st_size
            others += [Flip(path, number // 8, number % 8) for number in range(n_bits)]
            continue
        begin = 0
        for each in log.segments[int(path.stem)]:
            for number in range(8 * len(each.data)):
                at = number // 8
                kind = prefixes if at < 17 else headers if at < 61 else rest
                kind.append(Flip(path, begin + at, number % 8, each, at))
            begin += len(each.data)
    return [each for each in (prefixes, headers, rest, others) if each]


def is_hidden(log: FlippedLog, flip: Flip) -> bool:
    """Whether nothing on disk can show a flip, or shows it too late.

    - A damaged last batch is a torn tail unless a high watermark promises it; a base offset that
      is too high is the end of the log then.
    - Compaction leaves gaps, and a base offset may move inside a gap.
    """
    batch = flip.batch
    if batch is None:
        return False
    ordered = [each for batches in log.segments.values() for each in batches]
    i = ordered.index(batch)
    if not log.has_checkpoints and i + 1 == len(ordered):
        return True
    if flip.at >= 8 or batch.data[16] < 2:
        return False
    base = batch.base_offset ^ 1 << (8 * (7 - flip.at) + flip.bit)
    last = base + batch.last_offset - batch.base_offset
    segment = max(each for each in log.segments if each <= batch.base_offset)
    least = max(segment, ordered[i - 1].last_offset + 1 if i else 0)
    limit = ordered[i + 1].base_offset if i + 1 < len(ordered) else log.end
    return least <= base and last < limit


def wrong_reads(
    log: FlippedLog,
    flip: Flip,
    rng: random.Random,
    n_reads: int,
    ways: Mapping[str, Callable[[FlippedLog, str], Rows]] | None = None,
) -> list[str]:
    """Reads of a flipped log that give neither all rows nor an error.

    With ``skip``, a read may also give all rows but those of the damaged batch, and no error.

    `log`: whole, and whole again afterwards. `flip`: the bit to flip. `rng`: chooses the reads.
    `n_reads`: how many of the ways to read to try. `ways`: to read all rows, by name; by default
    the engine's, and reads by time.
    """
    data = _damage(flip)
    lost = set(flip.batch.rows) if flip.batch else set()
    # Where compaction has left gaps, either of two batches that overlap may be the wrong one.  A
    # compressed message of magic 0 or 1 does not store its first offset.
    is_clear = not log.has_gaps and not (flip.batch is not None and flip.batch.is_wrapper)
    skips = flip.batch is None or flip.at >= 8 or is_clear
    reads = {name: (read, log.rows) for name, read in (ways or READS).items()}
    if log.has_times and ways is None:
        since = middle_ms(log)
        newer = [row for row in log.rows if row[1] >= since]
        reads["filtered by time"] = partial(filtered_by_time, from_ms=since), newer
        reads["started by time"] = partial(started_by_time, from_ms=since), newer
    wrong = []
    for name in rng.sample(sorted(reads), n_reads):
        read, rows = reads[name]
        failing = outcome(read, log, "fail")
        if not isinstance(failing, str) and failing != rows:
            wrong.append(f"{name}: {_difference(rows, failing)}")
        kept = [row for row in rows if row not in lost]
        skipping = outcome(read, log, "skip") if skips else kept
        if skipping not in (rows, kept, "UnsupportedFormatError"):
            wrong.append(f"{name} with skip: {_difference(kept, skipping)}")
    flip.path.write_bytes(data)
    return wrong


def _damage(flip: Flip) -> bytes:
    """Flip a bit; returns the whole bytes."""
    data = flip.path.read_bytes()
    damaged = bytearray(data)
    damaged[flip.byte] ^= 1 << flip.bit
    flip.path.write_bytes(damaged)
    return data


def wrong_look_ups(log: FlippedLog, flip: Flip) -> list[str]:
    """Reads that begin or end inside of a log with a flipped index, and do not give all rows.

    `log`: whole, with indexes, and whole again afterwards. `flip`: a bit of an index.
    """
    rows, wrong = log.rows, []
    data = _damage(flip)
    try:
        opened, dataset = _open(log), _dataset(log, "fail")
    except SegmentLogError:
        pass
    else:
        for start in range(0, log.end, 4):
            end = min(start + 9, log.end)
            found = outcome(_scan_of, opened, "fail", start, end)
            wrong += _wrong(f"from offset {start}", rows[start:end], found)
        wrong += _wrong("small slices", rows, outcome(_sliced(300), log, "fail"))
        times = sorted({time for _, time, _ in rows})
        for from_ms in {*times[:: max(len(times) // 20, 1)], *(each + 1 for each in times[::6])}:
            first = next((offset for offset, time, _ in rows if time >= from_ms), log.end)
            end = min(first + 9, log.end)
            found = outcome(partial(_scan_of, opened, "fail", end_offset=end, since=from_ms))
            wrong += _wrong(f"since {from_ms - T0}", rows[first:end], found)
        for from_ms in times[:: max(len(times) // 4, 1)]:
            found = outcome(_filtered, dataset, from_ms)
            newer = [row for row in rows if row[1] >= from_ms]
            wrong += _wrong(f"filtered at {from_ms - T0}", newer, found)
    flip.path.write_bytes(data)
    return wrong


def _wrong(name: str, expected: Rows, found: Rows | str) -> list[str]:
    is_right = isinstance(found, str) or found == expected
    return [] if is_right else [f"{name}: {_difference(expected, found)}"]


def _difference(expected: Rows, found: Rows | str) -> str:
    if isinstance(found, str):
        return found
    missing = [row[0] for row in expected if row not in found]
    return f"missing {missing}, more {[row[0] for row in found if row not in expected]}"


def _record(offset: int) -> Record:
    return Record(offset, T0 + 10 * offset, b"k%d" % (offset % 3), b"value %d" % offset)


def _rows(records: Sequence[Record], *, has_times: bool = True) -> Rows:
    return [(each.offset, each.timestamp_ms if has_times else -1, each.value) for each in records]


def modern_batch(
    base: int,
    n: int,
    codec: int = NONE,
    kept: Sequence[int] | None = None,
    time_of: Callable[[int], int] | None = None,
) -> Batch:
    records = [_record(base + i) for i in (range(n) if kept is None else kept)]
    if time_of is not None:
        records = [each._replace(timestamp_ms=T0 + time_of(each.offset)) for each in records]
    last = base + n - 1
    data = encode_batch(records, base_offset=base, last_offset=last, codec=codec)
    return Batch(data, _rows(records), base, last)


def _message(offset: int, magic: int) -> Batch:
    record = _record(offset)
    data = encode_message(record, magic=magic)
    return Batch(data, _rows([record], has_times=magic > 0), offset, offset)


def _wrapper(base: int, n: int, codec: int, magic: int) -> Batch:
    records = [_record(base + i) for i in range(n)]
    data = encode_wrapper(records, codec, magic=magic)
    return Batch(data, _rows(records, has_times=magic > 0), base, base + n - 1)


def _dense(
    make: Callable[[int], Batch], n_batches: int, n_segments: int
) -> dict[int, list[Batch]]:
    """Segments of `n_batches`, without gaps in the offsets."""
    segments, offset = {}, 0
    for _ in range(n_segments):
        batches = []
        begin = offset
        for _ in range(n_batches):
            batches.append(make(offset))
            offset = batches[-1].last_offset + 1
        segments[begin] = batches
    return segments


def _compacted() -> dict[int, list[Batch]]:
    """Some batches are gone, and some records of others; one batch without records is left."""
    return {
        0: [
            modern_batch(3, 4, kept=[1]),
            modern_batch(7, 4, kept=[0, 3]),
            modern_batch(19, 4, kept=[2]),
        ],
        32: [
            modern_batch(32, 5, kept=[]),
            modern_batch(40, 2),
            modern_batch(42, 6, kept=[1, 2, 3]),
        ],
        60: [modern_batch(60, 2), modern_batch(62, 3), modern_batch(65, 2)],
    }


def _transactions() -> dict[int, list[Batch]]:
    """Producer 7 commits and producer 8 aborts, across segments."""
    made: list[Batch] = []

    def add(producer: int) -> None:
        base = made[-1].last_offset + 1 if made else 0
        data = batch(producer, 0, base, 3, base_offset=base, is_transactional=True)
        rows: Rows = [(base + i, T0 + i, b"%d:%d" % (producer, base + i)) for i in range(3)]
        made.append(Batch(data, rows, base, base + 2))

    def end(producer: int, kind: int) -> None:
        base = made[-1].last_offset + 1
        made.append(Batch(marker(producer, 0, base_offset=base, kind=kind), [], base, base))

    add(7)
    add(8)
    end(7, COMMIT)
    n_first = len(made)
    add(8)
    end(8, ABORT)
    made.append(modern_batch(made[-1].last_offset + 1, 4))
    add(7)
    end(7, COMMIT)
    return {0: made[:n_first], made[n_first].base_offset: made[n_first:]}


def _make_logs() -> Iterator[tuple[str, dict[int, list[Batch]]]]:
    """Name and segments of each kind of log."""
    for codec, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        yield f"v2 {name}", _dense(partial(modern_batch, n=4, codec=codec), 5, 3)
        for magic in () if codec == ZSTD else (0, 1):
            make = partial(_wrapper, n=4, codec=codec, magic=magic)
            if codec == NONE:
                make = partial(_message, magic=magic)
            yield f"v{magic} {name}", _dense(make, 5, 2)
    yield "compacted", _compacted()
    yield "transactions", _transactions()


LOGS = dict(_make_logs())

#: Segments with many index entries, by the timestamps of their records.
INDEXED = {
    name: _dense(partial(modern_batch, n=4, time_of=time_of), 14, 2)
    for name, time_of in {
        "rising": lambda offset: 10 * offset,
        "equal": lambda _: 0,
        "rising and falling": lambda offset: 10 * (offset if offset // 4 % 3 else offset - 40),
        "rising now and then": lambda offset: 1000 * (offset // 20),
    }.items()
}
_PLANTED = LOGS | INDEXED | {"four segments": _dense(partial(modern_batch, n=3), 6, 4)}


def plant(directory: Path, name: str, *, has_indexes: bool, has_checkpoints: bool) -> FlippedLog:
    """A log of `LOGS` or `INDEXED`, or one of four segments, on disk."""
    segments = _PLANTED[name]
    end = [*segments.values()][-1][-1].last_offset + 1
    partition = directory / "t-0"
    partition.mkdir(parents=True)
    for base, batches in segments.items():
        path = partition / f"{base:020d}.log"
        path.write_bytes(b"".join(each.data for each in batches))
    if has_indexes:
        for each in list_segments(str(partition)):
            rebuild_indexes(Segment(each, is_sealed=False), _INTERVAL_BYTES)
    if has_checkpoints:
        for kind, offset in {"replication": end, "recovery-point": end, "log-start": 0}.items():
            path = directory / f"{kind}-offset-checkpoint"
            path.write_text(f"0\n1\nt 0 {offset}\n")
    has_times = name[:2] != "v0" and name != "transactions"
    return FlippedLog(directory, segments, end, has_checkpoints, has_times)


COLUMNS = ["offset", "timestamp", "value"]


def taken(batches: Iterator[pa.RecordBatch]) -> Rows:
    rows: Rows = []
    for each in batches:
        offsets, times, values = (each.column(name) for name in COLUMNS)
        rows += zip(
            offsets.to_pylist(),
            (ms // 1000 for ms in times.cast(pa.int64()).to_pylist()),
            values.to_pylist(),
            strict=True,
        )
    return rows


def _open(log: FlippedLog) -> segmentlog.Log:
    return segmentlog.open_log_dir(log.directory).log("t", 0)


def _scan_of(opened: segmentlog.Log, on_corrupt: str, *bounds: int, **how: Any) -> Rows:
    scan = opened.scan(
        *bounds, columns=COLUMNS, on_corrupt_batch=on_corrupt, use_threads=False, **how
    )
    return taken(scan)


def _scan(log: FlippedLog, on_corrupt: str, **how: Any) -> Rows:
    return _scan_of(_open(log), on_corrupt, **how)


def _sliced(n_bytes: int) -> Callable[[FlippedLog, str], Rows]:
    """Slices that are as small as possible, each read by itself."""

    def read(log: FlippedLog, on_corrupt: str) -> Rows:
        opened = _open(log)
        policy = ScanPolicy(on_corrupt_batch=OnCorruptBatch(on_corrupt))
        end = opened.end_offset()
        rows: Rows = []
        for each in opened.slices(0, end, n_bytes):
            rows += taken(scan_slice(each, columns=COLUMNS, policy=policy))
        return rows

    return read


def _ranges(log: FlippedLog, on_corrupt: str) -> Rows:
    """Ranges of a few offsets, one after the other, up to the end."""
    opened = _open(log)
    end = opened.end_offset()
    rows: Rows = []
    for start in range(0, end, 7):
        rows += _scan(log, on_corrupt, start_offset=start, end_offset=min(start + 7, end))
        if start > 4 * log.end:
            break
    return rows


def _dataset(log: FlippedLog, on_corrupt: str) -> LogDataset:
    return segmentlog.dataset(log.directory, on_corrupt_batch=on_corrupt)


READS: dict[str, Callable[[FlippedLog, str], Rows]] = {
    "scan": _scan,
    "slices of one batch": _sliced(1),
    "slices of some batches": _sliced(300),
    "ranges": _ranges,
    "dataset": lambda log, on_corrupt: taken(
        _dataset(log, on_corrupt).to_batches(COLUMNS, use_threads=False)
    ),
}


def middle_ms(log: FlippedLog) -> int:
    """A time in the middle of the log."""
    times = sorted(time for _, time, _ in log.rows)
    return times[len(times) // 2]


def filtered_by_time(log: FlippedLog, on_corrupt: str, from_ms: int) -> Rows:
    """The rows of a dataset at or after a time."""
    return _filtered(_dataset(log, on_corrupt), from_ms)


def _filtered(dataset: LogDataset, from_ms: int) -> Rows:
    condition = pc.field("timestamp") >= pa.scalar(1000 * from_ms, pa.timestamp("us", "UTC"))
    return taken(dataset.to_batches(COLUMNS, filter=condition, use_threads=False))


def started_by_time(log: FlippedLog, on_corrupt: str, from_ms: int) -> Rows:
    """The rows of a log from the first record at or after a time."""
    return _scan(log, on_corrupt, since=from_ms)


def outcome(read: Callable[..., Rows], *args: object) -> Rows | str:
    """The rows, or the name of the typed error."""
    try:
        return read(*args)
    except SegmentLogError as error:
        return type(error).__name__
