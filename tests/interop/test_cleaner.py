"""Kafka's cleaner and ours, on the same logs at the same time of day, leave the same.

`test_retention` and this file have the same plan: one copy for each of the two, and then each
goes on with the other's.
"""

import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from dirty_logs import Kind, dirty_log, write_segments
from kafka_here.gateway import Gateway
from kafka_here.log_classes import KafkaLogs
from kept_records import Batch, batches_of, files_of, index_entries, kept

import segmentlog
from segmentlog.testing.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from segmentlog.files.checkpoint import read_offsets

pytestmark = pytest.mark.interop

NOW_MS = 1_800_000_000_000
DELETE_RETENTION_MS = 60_000
CHECKPOINT = "cleaner-offset-checkpoint"

KINDS: Mapping[str, Kind] = {
    "plain": Kind(),
    "one-key": Kind(n_keys=2, n_records=3),
    "unkeyed": Kind(unkeyed=0.3),
    "tombstones": Kind(tombstones=0.9),
    "append-time": Kind(is_append_time=True),
    "producers": Kind(producers=3),
    "busy": Kind(producers=2, n_keys=3, n_batches=120, n_records=3),
    "codecs": Kind(codecs=(NONE, GZIP, SNAPPY, LZ4, ZSTD), producers=2),
    "legacy": Kind(magics=(0, 1), codecs=(NONE, GZIP, SNAPPY, LZ4), n_keys=30),
    "mixed": Kind(magics=(0, 1, 2), codecs=(NONE, GZIP, LZ4), producers=1),
}
SETTINGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 2000,
    "index.interval.bytes": 150,
    "delete.retention.ms": DELETE_RETENTION_MS,
    "min.cleanable.dirty.ratio": 0.0,
    "file.delete.delay.ms": 0,
}


def topics_of(seeds: range) -> dict[str, tuple[int, Kind]]:
    return {f"{name}-{seed}": (seed, kind) for name, kind in KINDS.items() for seed in seeds}


def settings_of(topics: Mapping[str, object]) -> dict[str, dict[str, object]]:
    return {topic: dict(SETTINGS) for topic in topics}


@pytest.fixture(scope="module")
def filled(java: Gateway, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    directory = tmp_path_factory.mktemp("filled") / "logs"
    topics = topics_of(range(3))
    for topic, (seed, kind) in topics.items():
        write_segments(directory / f"{topic}-0", dirty_log(seed, kind, NOW_MS))
    with KafkaLogs(java, directory, settings_of(topics), NOW_MS):
        pass  # indexes, snapshots, epochs and checkpoints are there now
    return directory, [*topics]


def test_x(java: Gateway, filled, tmp_path):
    directory, topics = filled
    theirs = tmp_path / "theirs"
    import time; t=time.time()
    shutil.copytree(directory, theirs)
    for at in (NOW_MS, NOW_MS + DELETE_RETENTION_MS):
        with KafkaLogs(java, theirs, settings_of(topics), at) as logs:
            print(len(logs.clean()))
    for topic in topics:
        before, after = kept(directory/f"{topic}-0"), kept(theirs/f"{topic}-0")
        print(topic, len(before), sum(map(len,before.values())), len(after),sum(map(len,after.values())), sum(b.delete_horizon_ms is not None for bs in after.values() for b in bs), sum(not b.records for bs in after.values() for b in bs))
        for n in after: list(index_entries(theirs/f"{topic}-0"/n.replace('.log','.index')))
    print(time.time()-t)
    import collections
    for topic in topics:
        if 'legacy' in topic:
            for d in (directory, theirs):
                print(topic, d.name, {n: collections.Counter(b.fields[:2] if len(b.fields)==2 else 'v2' for b in bs) for n, bs in kept(d/f"{topic}-0").items()})
