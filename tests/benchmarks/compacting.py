"""Bytes compacted a second beside Kafka's own cleaner, and the time to read the compacted log.

Both clean copies of one log, at one time of day, with maps of equal size, and leave equal records.
Kafka's cleaner has one thread, and leaves the sync of its files to the system; ours syncs them.
"""

import gc
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from kafka_here import kafka_jars
from kafka_here.gateway import Gateway
from kafka_here.log_classes import KafkaLogs
from measure import Result, Row
from planning import run_program

import segmentlog
from segmentlog.model import Codec

__all__ = ["memory", "rows"]

_SEGMENT_BYTES = 32 << 20
_SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
_ROWS, _ROW_BYTES = 100_000, 130
_MAP_BYTES = 128 << 20
_SMALL_MAP_BYTES = 32 << 20  #: less than the table for either log is without a bound
_BOUNDS = {
    Codec.NONE: "the processor: parsing each record and hashing its key, twice; and the disk",
    Codec.LZ4: "the processor: inflating, parsing and hashing, twice; and the disk",
    Codec.ZSTD: "the processor: inflating twice, and compressing what stays",
}


def fill(directory: Path, n_bytes: int, codec: Codec) -> None:
    """A log in which about one record of five is the last of its key; and an active segment."""
    rng = np.random.default_rng(1)
    n_jobs = max(n_bytes // (_ROWS * _ROW_BYTES), 1)
    config = segmentlog.ProducerConfig(
        codec=codec, topic_config=segmentlog.TopicConfig(segment_bytes=_SEGMENT_BYTES)
    )
    with segmentlog.open_writer(directory, "t", config=config) as writer:
        for _ in range(n_jobs):
            keys = rng.integers(0, n_jobs * _ROWS // 5, _ROWS)
            values = [rng.bytes(50) + bytes(50) for _ in range(_ROWS)]
            writer.append(
                pa.table({"key": [b"%016d" % key for key in keys.tolist()], "value": values})
            )
        writer.roll()
        writer.append(pa.table({"key": [b"last"], "value": [b""]}))


def _kafka_seconds(java: Gateway, directory: Path, now_ms: int) -> float:
    """Seconds of Kafka's cleaner; the log is open already."""
    settings = {"t": {**_SETTINGS, "segment.bytes": _SEGMENT_BYTES}}
    with KafkaLogs(java, directory, settings, now_ms) as logs:
        begin = time.perf_counter()
        done = logs.clean(map_bytes=_MAP_BYTES)
        seconds = time.perf_counter() - begin
    gc.collect()  # the JVM keeps each map for as long as Python refers to it
    if len(done) != 1:
        message = f"{done}: one round was to clean all of it"
        raise SystemExit(message)
    return seconds


def _our_seconds(directory: Path, now_ms: int) -> float:
    """Seconds of our compaction, with all of its planning."""
    settings = {**_SETTINGS, "segment.bytes": str(_SEGMENT_BYTES)}
    begin = time.perf_counter()
    segmentlog.compact(directory, settings=settings, now_ms=now_ms, dedupe_buffer_bytes=_MAP_BYTES)
    return time.perf_counter() - begin


class _Read(NamedTuple):
    """Rows of a log, the sum of their offsets, and the seconds that it took to read them."""

    n_rows: int
    offsets: int
    seconds: float

    @classmethod
    def quickest_of(cls, directory: Path) -> "_Read":
        """The quickest of three reads: the first read warms the caches after the compaction."""
        return min((cls._all_of(directory) for _ in range(3)), key=lambda read: read.seconds)

    @classmethod
    def _all_of(cls, directory: Path) -> "_Read":
        begin = time.perf_counter()
        n_rows = offsets = 0
        for batch in segmentlog.open_log_dir(directory).log("t", 0).scan(use_threads=False):
            n_rows += batch.num_rows
            offsets += int(batch.column("offset").to_numpy().sum())
        return cls(n_rows, offsets, time.perf_counter() - begin)

    @property
    def rate(self) -> float:
        return self.n_rows / self.seconds / 1e6


def rows(scratch: Path, n_bytes: int, rounds: int, version: str) -> list[Row]:
    """A row for no codec and for the most used codecs; the log of the first is read back, too."""
    java = Gateway(kafka_jars(version), is_measured=True)
    found = []
    for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
        found += _rows_of(java, scratch, n_bytes, codec, rounds)
    return found


def _rows_of(java: Gateway, scratch: Path, n_bytes: int, codec: Codec, rounds: int) -> list[Row]:
    """Rounds in turn, each on a new copy, after a round that warms up."""
    made, now_ms = scratch / "made", int(time.time() * 1000)
    fill(made, n_bytes, codec)
    size = sum(path.stat().st_size for path in made.glob("t-0/*.log"))
    seconds: dict[str, list[float]] = {"kafka": [], "ours": []}
    reads: list[tuple[_Read, _Read]] = []
    for number in range(rounds + 1):
        left = {}
        for name in seconds if number % 2 else reversed(seconds):
            copy = Path(shutil.copytree(made, scratch / name))
            os.sync()  # otherwise the next contestant pays for the copies
            took = (
                _our_seconds(copy, now_ms)
                if name == "ours"
                else _kafka_seconds(java, copy, now_ms)
            )
            left[name] = _Read.quickest_of(copy)
            if number:
                seconds[name].append(took)
            shutil.rmtree(copy)
        if left["kafka"][:2] != left["ours"][:2]:
            message = f"both were to leave the same: {left}"
            raise SystemExit(message)
        if number:
            reads.append((_Read.quickest_of(made), left["ours"]))
    shutil.rmtree(made)
    ours, theirs = (Result(seconds[name], left["ours"][:2]) for name in ("ours", "kafka"))
    detail = (
        f"{size / ours.median / 1e6:.0f} against {size / theirs.median / 1e6:.0f} MB/s; "
        f"{size / 1e6:.0f} MB; ±{ours.spread:.0%}, ±{theirs.spread:.0%}; bound by {_BOUNDS[codec]}"
    )
    kind = "uncompressed" if codec is Codec.NONE else codec.name.lower()
    ratio = f"{theirs.median / ours.median:.2f}"
    row = Row(
        f"compact, {kind}, one core", "Kafka's cleaner on the same log", "≥ 1.5", ratio, detail
    )
    return [row] if codec is not Codec.NONE else [row, _read_back(reads)]


def _read_back(reads: list[tuple[_Read, _Read]]) -> Row:
    """A fifth of the records is left, in batches of a fifth of the size."""
    before, after = (statistics.median(pair[i].rate for pair in reads) for i in (0, 1))
    detail = (
        f"{after:.1f} against {before:.1f} M rows/s; {reads[0][1].n_rows:,} of "
        f"{reads[0][0].n_rows:,} rows are left; bound by headers: batches have fewer records each"
    )
    work = "scan a compacted log, one core"
    return Row(work, "the same log before, rows a second", "–", f"{after / before:.2f}", detail)


_COMPACT = """
before = peak()
import segmentlog
settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
(done,) = segmentlog.compact(sys.argv[1], settings=settings, dedupe_buffer_bytes=int(sys.argv[2]))
assert done.n_passes == 1
print(peak() - before)
"""


def memory(scratch: Path, n_bytes: int) -> Row:
    """Compaction in new interpreters, of a log and of another that is four times as long."""
    found = {}
    for size in (n_bytes // 4, n_bytes):
        fill(scratch / "filled", size, Codec.NONE)
        arguments = str(scratch / "filled"), str(_SMALL_MAP_BYTES)
        (found[size],) = run_program(_COMPACT, os.environ, *arguments)
        shutil.rmtree(scratch / "filled")
    each = ", ".join(f"{size / 1e6:.0f} MB of log {most:.0f} MB" for size, most in found.items())
    most_map = f"{_SMALL_MAP_BYTES >> 20} MiB"
    detail = f"{each}; bound by the map, here of {most_map}, by imports, and by windows of 4 MiB"
    work = "memory of a compaction over the interpreter"
    return Row(work, "–", "< 300 MB", f"{max(found.values()):.0f} MB", detail)
