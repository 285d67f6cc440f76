"""Latency of producers while a scan reads the directory of their broker."""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from kafka_here import Broker, JavaClient
from measure import Row
from query_data import TOPIC, QueryData

from segmentlog.store.beside_broker import _residency

__all__ = ["producers"]

_TOPIC = "beside"
_SECONDS, _QUICK_SECONDS = 2.0, 0.3  # of a round
_EVERY = 0.002  # seconds from record to record
_RECORD = b"x" * 1000
_LIMIT = 32 << 20

#: The options of each scan; None is no scan.
_SCANS: Mapping[str, Mapping[str, object] | None] = {
    "no scan": None,
    "no option": {},
    "`maxBytesPerSecond=32m`": {"max_bytes_per_second": _LIMIT},
    "`sparePageCache=true`": {"spare_page_cache": True},
    "`maxBytesPerSecond=32m` and `sparePageCache=true`": {
        "max_bytes_per_second": _LIMIT,
        "spare_page_cache": True,
    },
}

#: Scans the log again and again, each time from the disk, and writes a line when it begins.
_SCAN = """
import json, os, sys, segmentlog
path, topic, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
directory = segmentlog.open_log_dir(path)
logs = [directory.log(topic, each) for each in directory.topics()[topic]]
list(logs[0].scan(logs[0].log_start_offset, logs[0].log_start_offset + 1))
print("begun", flush=True)
while True:
    for log in logs:
        for segment in log.segments:
            descriptor = os.open(segment.path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        for batch in log.scan(**options):
            pass
"""


@contextmanager
def _scanning(directory: Path, options: Mapping[str, object] | None) -> Iterator[None]:
    """A process that scans, if there are options."""
    if options is None:
        yield
        return
    command = [sys.executable, "-c", _SCAN, str(directory), TOPIC, json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as scan:
        try:
            if scan.stdout is None or not scan.stdout.readline():
                message = "the scan has failed"
                raise SystemExit(message)
            yield
        finally:
            scan.kill()


def _latencies(producer: Producer, seconds: float) -> list[float]:
    """Seconds from sending each record to its acknowledgement, at a steady rate."""
    found: list[float] = []
    began = time.perf_counter()
    due = began
    while due - began < seconds:
        while (now := time.perf_counter()) < due:
            producer.poll(due - now)
        sent = time.perf_counter()
        producer.produce(
            _TOPIC, _RECORD, callback=lambda *_, at=sent: found.append(time.perf_counter() - at)
        )
        due += _EVERY
    producer.flush()
    return found


def _forget(broker: Broker) -> None:
    """Drop the scanned log from the page cache."""
    for path in broker.log_dir.glob(f"{TOPIC}-*/*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _cached(broker: Broker) -> float:
    """The part of the scanned log that is in the page cache."""
    n_there = n_pages = 0
    for path in broker.log_dir.glob(f"{TOPIC}-*/*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        pages = _residency(descriptor, 0, path.stat().st_size)
        os.close(descriptor)
        n_there, n_pages = n_there + sum(pages), n_pages + len(pages)
    return n_there / max(n_pages, 1)


def producers(data: QueryData, rounds: int) -> list[Row]:
    """Rows of the 99th percentile beside scans, against that without one."""
    percentiles: dict[str, list[float]] = {name: [] for name in _SCANS}
    cached: dict[str, list[float]] = {name: [] for name in _SCANS}
    order = random.Random(rounds)
    seconds = _SECONDS if data.n_large > 1_000_000 else _QUICK_SECONDS
    with data.broker as broker:
        with JavaClient(broker) as client:
            client.create_topic(_TOPIC, 1)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "broker.address.family": "v4",
                "linger.ms": 0,
                "acks": "all",
            }
        )
        _latencies(producer, 2 * seconds)  # the broker compiles what it needs
        for _ in range(rounds):
            for name in order.sample([*_SCANS], len(_SCANS)):
                _forget(broker)
                with _scanning(broker.log_dir, _SCANS[name]):
                    found = sorted(_latencies(producer, seconds))
                    cached[name].append(_cached(broker))
                percentiles[name].append(found[int(len(found) * 0.99)])
    alone = statistics.median(percentiles["no scan"])
    return [_row(name, percentiles[name], alone, cached[name]) for name in [*_SCANS][1:]]


def _row(name: str, found: list[float], alone: float, cached: list[float]) -> Row:
    p99 = statistics.median(found)
    goal = "≤ 2" if "32m" in name else "–"
    return Row(
        f"producers' p99 beside a scan of the broker's directory, {name}",
        "the same producers without a scan",
        goal,
        f"{p99 / alone:.2f}",
        f"{p99 * 1e3:.1f} against {alone * 1e3:.1f} ms; {min(found) * 1e3:.1f}–"
        f"{max(found) * 1e3:.1f} ms; {statistics.median(cached):.0%} of the scanned log in the "
        "page cache; bound by the processors, which the scan and the broker share",
    )
