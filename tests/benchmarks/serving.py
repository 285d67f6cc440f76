"""Kafka's clients from ``segmentlog serve``, and from a broker that has the same files."""

import base64
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import confluent_kafka
import pyarrow as pa
from kafka_here import Broker, JavaClient
from kafka_here.gateway import Gateway
from kafka_protocol import RawClient
from measure import Digest, Row, compare

import segmentlog

__all__ = ["rows"]

_N_PARTITIONS = 4

#: Topics, and how each is compressed.
_TOPICS = {"plain": "none", "zstd": "zstd"}

_CANNED = Path(__file__).with_name("canned.py")
_TICKS = os.sysconf("SC_CLK_TCK")

_IMPORTS = """
import sys
sys.modules["hypothesis"] = None
import kio.index, kio.serial, numpy, pyarrow
"""

#: The command.  `kio` imports hypothesis where it is installed, and that takes 0.4 s: only here.
_COMMAND = """
import runpy, sys
sys.modules["hypothesis"] = None
runpy.run_module("segmentlog", run_name="__main__", alter_sys=True)
"""


def rows(
    broker: Broker, n_records: int, scratch: Path, rounds: int, n_partitions: int
) -> list[Row]:
    """The rows of the table about serving.

    Parameters
    ----------
    broker : that runs.
    n_records : of 1 kB, in each topic.
    scratch : an empty directory.
    rounds : counted rounds.
    n_partitions : of the large directory whose metadata are asked for.
    """
    found = []
    java = Gateway(broker.jars, is_measured=True)
    ends = {topic: _produce(broker, java, topic, n_records, scratch) for topic in _TOPICS}
    # A broker notes its high watermarks every five seconds.
    with (
        _serving(str(broker.log_dir), "--read-up-to", "logEnd") as (address, pid),
        _started([sys.executable, str(_CANNED), address, str(broker.log_dir)]) as canned,
    ):
        pair = {
            "serve": (address, pid),
            "broker": (broker.bootstrap_servers, _pid_of(broker)),
            "canned": canned,
        }
        with ProcessPoolExecutor(_N_PARTITIONS, get_context("spawn")) as pool:
            for topic in _TOPICS:
                for n in (1, _N_PARTITIONS):
                    name = f"librdkafka, {n} consumer{'s' * (n > 1)}, {topic}"
                    read = partial(_consume, topic, ends[topic], n, pool)
                    found += _against(name, pair, read, _bytes_of(broker, topic), rounds)
        for topic in _TOPICS:
            for n in (1, _N_PARTITIONS):
                name = f"Kafka's Java consumer, {n} of them, {topic}"
                read = partial(_java, java, topic, ends[topic], n)
                found += _against(name, pair, read, _bytes_of(broker, topic), rounds)
        java.java.shutdown()
        found.append(_memory(pid))
    found.append(_first_record(str(broker.log_dir), next(iter(_TOPICS)), rounds))
    found.append(_metadata(scratch, n_partitions, rounds))
    return found


def _produce(
    broker: Broker, java: Gateway, topic: str, n_records: int, scratch: Path
) -> list[tuple[int, int]]:
    """Fill a topic with Kafka's own tool, in batches of 16 KB; its partitions and their ends."""
    with JavaClient(broker) as client:
        client.create_topic(topic, _N_PARTITIONS, retention_ms=-1, segment_bytes=256 << 20)
    rng, head = random.Random(72), b'{"customer":"name","state":"open","n":'
    payload = scratch / "payload"
    payload.write_bytes(
        b"\n".join(
            b"%s%07d," % (head, i) + head * 11 + base64.b64encode(rng.randbytes(390))
            for i in range(2_000)
        )
    )
    java.run(
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        str(n_records),
        "--throughput",
        "-1",
        "--payload-file",
        str(payload),
        "--producer-props",
        f"bootstrap.servers={broker.bootstrap_servers}",
        "linger.ms=20",
        f"compression.type={_TOPICS[topic]}",
    )
    with RawClient(broker.bootstrap_servers) as raw:
        return [(i, raw.list_offset(topic, i, -1).offset) for i in range(_N_PARTITIONS)]


def _pid_of(broker: Broker) -> int:
    process = broker._process
    assert process is not None
    return process.pid


def _bytes_of(broker: Broker, topic: str) -> int:
    return sum(each.stat().st_size for each in broker.log_dir.glob(f"{topic}-*/*.log"))


@contextmanager
def _serving(*arguments: str) -> Iterator[tuple[str, int]]:
    """A process of the command; its address, once it has named it."""
    command = [sys.executable, "-c", _COMMAND, "serve", *arguments, "--bind", "127.0.0.1:0"]
    with _started(command) as found:
        yield found


@contextmanager
def _started(command: list[str]) -> Iterator[tuple[str, int]]:
    """A process whose first line begins with its address."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            if process.stdout is None or not (line := process.stdout.readline()):
                message = f"this has failed: {' '.join(command)}"
                raise SystemExit(message)
            yield line.split()[0], process.pid
        finally:
            process.terminate()


def _used(pid: int) -> float:
    """Processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _against(
    name: str,
    pair: Mapping[str, tuple[str, int]],
    read: Callable[[str], Digest],
    n_bytes: int,
    rounds: int,
) -> list[Row]:
    """The ratio of the times, and that of the processor times of the servers."""
    used: dict[str, list[float]] = {each: [] for each in pair}

    def run(who: str) -> Digest:
        servers, pid = pair[who]
        before = _used(pid)
        digest = read(servers)
        used[who].append(_used(pid) - before)
        return digest

    found = compare({each: partial(run, each) for each in pair}, rounds)
    ours, theirs, canned = found["serve"], found["broker"], found["canned"]
    mine, broker = (
        statistics.median(used[each][1:]) / n_bytes * 1e9 for each in ("serve", "broker")
    )
    speed = [n_bytes / each.median / 1e6 for each in (ours, theirs)]
    return [
        Row(
            name,
            "the same consumer, from a broker",
            "≥ 1.1",
            f"{theirs.median / ours.median:.2f}",
            f"{speed[0]:.0f} against {speed[1]:.0f} MB/s; ±{ours.spread:.0%}, "
            f"±{theirs.spread:.0%}; bound: {theirs.median / canned.median:.2f} with a server that "
            "only sends what was looked up before",
        ),
        Row(
            f"{name}: processor time of the server",
            "of the broker",
            "≤ 1.0",
            f"{mine / broker if broker else 0:.2f}",
            f"{mine:.2f} against {broker:.2f} s a GB",
        ),
    ]


def _consume(
    topic: str,
    ends: list[tuple[int, int]],
    n_consumers: int,
    pool: ProcessPoolExecutor,
    servers: str,
) -> Digest:
    parts = [ends[i::n_consumers] for i in range(n_consumers)]
    found = pool.map(partial(_consumed, servers, topic), parts)
    return tuple(map(sum, zip(*found, strict=True)))


def _consumed(servers: str, topic: str, ends: list[tuple[int, int]]) -> Digest:
    """Records, sum of offsets and bytes of values, of partitions up to their ends.

    By default, librdkafka waits a second where it has fetched more than it was asked for; that
    would hide the server, and here it does not.
    """
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "broker.address.family": "v4",
            "fetch.queue.backoff.ms": 2,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each, _ in ends])
    n_left = sum(end for _, end in ends)
    n_rows = offsets = n_bytes = 0
    while n_left:
        messages = consumer.consume(min(n_left, 10_000), 10)
        if not messages:
            message = f"{servers} gives no more records: {n_left} are missing"
            raise SystemExit(message)
        n_left -= len(messages)
        n_rows += len(messages)
        offsets += sum([each.offset() or 0 for each in messages])
        n_bytes += sum([len(each.value() or b"") for each in messages])
    consumer.close()
    return n_rows, offsets, n_bytes


def _java(
    java: Gateway, topic: str, ends: list[tuple[int, int]], n_consumers: int, servers: str
) -> Digest:
    """The same with Kafka's consumer, which counts records and bytes of whole answers."""
    parts = [ends[i::n_consumers] for i in range(n_consumers)]
    with ThreadPoolExecutor(n_consumers) as threads:
        found = list(threads.map(partial(_consumed_by_java, java, servers, topic), parts))
    return (sum(found),)


def _consumed_by_java(java: Gateway, servers: str, topic: str, ends: list[tuple[int, int]]) -> int:
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    settings = java.jvm.java.util.Properties()
    for name, value in {
        "bootstrap.servers": servers,
        "key.deserializer": deserializer,
        "value.deserializer": deserializer,
        "max.poll.records": "10000",
    }.items():
        settings.setProperty(name, value)
    kafka = java.jvm.org.apache.kafka
    consumer = kafka.clients.consumer.KafkaConsumer(settings)
    places = [kafka.common.TopicPartition(topic, each) for each, _ in ends]
    consumer.assign(places)
    consumer.seekToBeginning(places)
    n_left = n_all = sum(end for _, end in ends)
    patience = java.jvm.java.time.Duration.ofSeconds(20)
    while n_left > 0:
        n_found = consumer.poll(patience).count()
        if not n_found:
            message = f"{servers} gives no more records: {n_left} are missing"
            raise SystemExit(message)
        n_left -= n_found
    consumer.close()
    return n_all - n_left


def _memory(pid: int) -> Row:
    status = Path(f"/proc/{pid}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
    return Row(
        "memory of `segmentlog serve` after all of this",
        "–",
        "≤ 200 MB",
        f"{peak:.0f} MB",
        "the largest resident set",
    )


def _first_record(directory: str, topic: str, rounds: int) -> Row:
    seconds, imports = [], []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        command = [sys.executable, "-c", _IMPORTS]
        subprocess.run(command, check=True)
        imports.append(time.perf_counter() - began)
        began = time.perf_counter()
        arguments = directory, "--read-up-to", "logEnd"
        with _serving(*arguments) as (servers, _), RawClient(servers) as client:
            assert client.fetch(topic, 0, 0).records
            seconds.append(time.perf_counter() - began)
    bound = statistics.median(imports[1:])
    return Row(
        "first record after the command",
        "–",
        "≤ 1 s",
        f"{statistics.median(seconds[1:]):.2f} s",
        f"bound by imports: those of numpy, pyarrow and `kio` alone take {bound:.2f} s",
    )


def _metadata(scratch: Path, n_partitions: int, rounds: int) -> Row:
    """The first answer with all topics, of ten partitions each, and the later ones."""
    place = scratch / "large"
    with segmentlog.open_writer(place, "t0", num_partitions=1) as writer:
        writer.append(pa.table({"key": [b"k"], "value": [b"v"]}))
    for i in range(1, n_partitions):
        shutil.copytree(place / "t0-0", place / f"t{i // 10}-{i % 10}")
    first: list[float] = []
    later: list[float] = []
    for _ in range(rounds):
        with _serving(str(place)) as (servers, _), RawClient(servers, 60) as client:
            for kept in (first, later):
                began = time.perf_counter()
                client.sock.sendall(client.frame(3, 12, topics=None))
                client.take(int.from_bytes(client.take(4), "big"))
                kept.append(time.perf_counter() - began)
    return Row(
        f"metadata of {n_partitions:,} partitions, the first answer",
        "–",
        "≤ 1 s",
        f"{statistics.median(first):.2f} s",
        f"later ones {statistics.median(later):.2f} s; bound by `kio`, which writes each field "
        "by a call",
    )
