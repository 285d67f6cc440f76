"""Bytes compacted a second, beside Kafka's own cleaner on copies of the same log.

``python tests/benchmarks/compacting.py [MB]``.  Both have the same time of day and a map of the
same size, and leave the same records.  Kafka's cleaner has one thread, and leaves the sync of its
files to the system; ours syncs them.
"""

import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from kafka_here import kafka_jars
from kafka_here.gateway import Gateway
from kafka_here.log_classes import KafkaLogs

import segmentlog
from segmentlog.model import Codec

_ROUNDS = 3
_SEGMENT_BYTES = 32 << 20
_SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
_ROWS, _ROW_BYTES = 100_000, 130
_MAP_BYTES = 128 << 20


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


def kafka_seconds(java: Gateway, directory: Path, now_ms: int) -> float:
    """Seconds of Kafka's cleaner; the log is open already."""
    settings = {"t": {**_SETTINGS, "segment.bytes": _SEGMENT_BYTES}}
    with KafkaLogs(java, directory, settings, now_ms) as logs:
        begin = time.perf_counter()
        done = logs.clean(map_bytes=_MAP_BYTES)
        seconds = time.perf_counter() - begin
    if len(done) != 1:
        message = f"{done}: one round was to clean all of it"
        raise SystemExit(message)
    return seconds


def our_seconds(directory: Path, now_ms: int) -> float:
    """Seconds of ours, with all of its planning."""
    settings = {**_SETTINGS, "segment.bytes": str(_SEGMENT_BYTES)}
    begin = time.perf_counter()
    segmentlog.compact(directory, settings=settings, now_ms=now_ms, dedupe_buffer_bytes=_MAP_BYTES)
    return time.perf_counter() - begin


def rows_of(directory: Path) -> tuple[int, int, float]:
    """Rows, the sum of their offsets, and the seconds that it took to read them."""
    begin = time.perf_counter()
    n_rows = offsets = 0
    for batch in segmentlog.open_log_dir(directory).log("t", 0).scan():
        n_rows += batch.num_rows
        offsets += int(batch.column("offset").to_numpy().sum())
    return n_rows, offsets, time.perf_counter() - begin


def measure(java: Gateway, scratch: Path, n_bytes: int, codec: Codec) -> None:
    """Rounds in turn, each on a new copy; prints medians."""
    made, now_ms = scratch / "made", int(time.time() * 1000)
    fill(made, n_bytes, codec)
    size = sum(path.stat().st_size for path in made.glob("t-0/*.log"))
    seconds: dict[str, list[float]] = {"kafka": [], "ours": []}
    for number in range(_ROUNDS + 1):  # the first one warms up
        found = {}
        for name, taken in seconds.items():
            copy = Path(shutil.copytree(made, scratch / name))
            took = (
                our_seconds(copy, now_ms) if name == "ours" else kafka_seconds(java, copy, now_ms)
            )
            found[name] = rows_of(copy)
            if number:
                taken.append(took)
            shutil.rmtree(copy)
        if found["kafka"][:2] != found["ours"][:2]:
            message = f"both were to leave the same: {found}"
            raise SystemExit(message)
    shutil.rmtree(made)
    rates = {name: size / 1e6 / statistics.median(taken) for name, taken in seconds.items()}
    n_rows, _, read_seconds = found["ours"]
    print(
        f"{codec.name.lower():7} {size / 1e6:6.0f} MB: ours {rates['ours']:6.0f} MB/s, "
        f"Kafka {rates['kafka']:6.0f} MB/s, ratio {rates['ours'] / rates['kafka']:.2f}; "
        f"{n_rows:,} records left, read back at {n_rows / read_seconds / 1e6:.1f} M a second"
    )


def main() -> None:
    """Uncompressed, and the codecs that are used most."""
    n_bytes = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 500_000_000
    java = Gateway(kafka_jars("4.3.1"), is_measured=True)
    for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
        with tempfile.TemporaryDirectory() as scratch:
            measure(java, Path(scratch), n_bytes, codec)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"most memory of this process, of which the map is 128 MiB: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
