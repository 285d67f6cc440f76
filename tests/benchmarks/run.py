"""Measure everything side by side in one run and print a table of ratios.

``python tests/benchmarks/run.py [--only PART] [--row NAME] [--quick] [--write]``, where a part is
``reads``, ``queries``, ``decoding``, ``audits``, ``writes``, ``streams``, ``polls``,
``compaction``, ``topics``, ``starts``, ``installs``, ``stores``, ``latency``, ``serving``,
``databases`` or ``scale``, which is measured only if it is named: see scale.py.
``--row``, once or several times, measures rows of the queries and streams alone.  ``--write`` puts
the tables into storage/docs/speed.md, each part into its own, and a few rows of that document into
README.md; the databases have their own page.
Needs the extra ``test``, Java, and two idle cores.  A real broker makes the data.
"""

import argparse
import os
import platform
import random
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "support"), str(Path(__file__).parent)]

import auditing  # noqa: E402
import beside_broker  # noqa: E402
import choosing  # noqa: E402
import codecs_alone  # noqa: E402
import committing  # noqa: E402
import compacting  # noqa: E402
import databases  # noqa: E402
import dataset_queries  # noqa: E402
import decoding  # noqa: E402
import doubles  # noqa: E402
import engine  # noqa: E402
import first_record  # noqa: E402
import group_state  # noqa: E402
import installing  # noqa: E402
import latent_stores  # noqa: E402
import object_stores  # noqa: E402
import planning  # noqa: E402
import pyarrow  # noqa: E402
import pyspark  # noqa: E402
import scale  # noqa: E402
import searching  # noqa: E402
import serving  # noqa: E402
import spark_queries  # noqa: E402
import spark_scan  # noqa: E402
import spark_settings  # noqa: E402
import spark_write  # noqa: E402
import staging  # noqa: E402
import starts  # noqa: E402
import streams  # noqa: E402
import tier_scan  # noqa: E402
import whole_topics  # noqa: E402
from confluent_kafka import Producer  # noqa: E402
from kafka_here import Broker, JavaClient  # noqa: E402
from measure import Row, figures, goal_here, processor, rows_of, table  # noqa: E402
from query_data import QueryData  # noqa: E402

import segmentlog  # noqa: E402

_VERSION = "4.3.1"

#: Topics that are compressed by a codec, and the goals of reading them.
_CODECS = {"lz4": "≥ 0.9", "zstd": "≥ 0.8", "snappy": "–", "gzip": "–"}

#: The rows about queries, each of which runs alone, too.
QUERIES = {
    "window": spark_queries.time_window,
    "window-engine": spark_queries.time_window_engine,
    "small": spark_queries.small_query,
    "narrow": spark_queries.narrow_spark,
    "columns": spark_settings.columns,
    "settings": spark_settings.recommended,
    "write-batches": spark_settings.write_batches,
    "narrow-engine": spark_queries.narrow_engine,
    "parquet": dataset_queries.duckdb_and_polars,
    "threads": dataset_queries.threads,
    "timeline": dataset_queries.timeline,
    "counting": dataset_queries.counting,
    "search": searching.search,
    "tier": tier_scan.scan,
    "offset-commits": group_state.fold,
    "consumer-lag": group_state.lag,
    "replicas": choosing.choose,
}

#: The rows about streams, each of which runs alone, too.
STREAMS = {
    "micro-batches": streams.small_batches,
    "large-micro-batches": streams.large_batches,
    "latency": streams.latency,
    "backlog": streams.backlog,
    "idle": streams.idle,
}

#: A row about streams that needs no log: small commits, one after the other.
COMMITS = "commits"
#: Rows about a scan beside a broker.
PRODUCERS = "producers"

#: The part that takes minutes, and 40 GB of disk.
_SCALE = "scale"

#: The row about topics of tests, which needs no log, either.
DOUBLES = "doubles"


def produce(
    broker: Broker, topic: str, n_records: int, partitions: int, **settings: object
) -> None:
    """Send records of about 110 bytes with librdkafka; half of a value is random."""
    rng = random.Random(1)
    blob = rng.randbytes(1 << 20)
    text = b'{"customer":"name","state":"open","n":' * 2
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "broker.address.family": "v4",
            "queue.buffering.max.messages": 500_000,
            "linger.ms": 20,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    for i in range(n_records):
        value = text[:48] + blob[i * 37 % 1_000_000 :][:40]
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    b"key-%06d" % (i % 1_000_000),
                    i % partitions,
                    timestamp=1_700_000_000_000 + i // 8,
                )
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


def make_topics(broker: Broker, n_records: int) -> None:
    """Make a topic in four partitions, one with a record in each batch, and one for each codec."""
    with JavaClient(broker) as client:
        keep = {"retention_ms": -1, "segment_bytes": 256 << 20}
        client.create_topic("plain", 4, **keep)
        for topic in ("single", *_CODECS):
            client.create_topic(topic, 1, **keep)
    produce(broker, "plain", n_records, 4, batch_size=16384)
    produce(broker, "single", n_records // 8, 1, batch_num_messages=1)
    for codec in _CODECS:
        produce(broker, codec, n_records // 2, 1, batch_size=16384, compression_codec=codec)


def measure_reads(scratch: Path, n_records: int, rounds: int, n_partitions: int) -> list[Row]:
    """The rows of the table about reading."""
    for part in ("ipc", "seek", "plan"):
        (scratch / part).mkdir()
    with Broker(scratch / "kafka", _VERSION, is_measured=True) as broker:
        make_topics(broker, n_records)
        rows = spark_scan.rows(broker, "plain", scratch / "ipc", rounds)
    directory = segmentlog.open_log_dir(broker.log_dir)
    plain = [directory.log("plain", partition) for partition in range(4)]
    return [
        *rows,
        engine.against_roofline(
            "decode, one core",
            plain[0],
            "≥ 0.75",
            "memory: lengths lie between keys and values, which are copied one by one",
            rounds,
        ),
        engine.against_roofline(
            "decode one-record batches, one core",
            directory.log("single", 0),
            goal_here(Intel=0.85, AMD=0.55),
            "headers: each is checked, and each record has one",
            rounds,
        ),
        *(
            codecs_alone.against_codec(name, directory.log(name, 0), goal, rounds)
            for name, goal in _CODECS.items()
        ),
        engine.against_java(broker.jars, plain, "≥ 2.0×", rounds),
        engine.against_checksum(plain, "≥ 0.85", rounds),
        *planning.seek(scratch / "seek", rounds),
        *planning.plan(scratch / "plan", n_partitions, rounds),
        *planning.memory_and_start(broker.log_dir, "plain", rounds),
        *planning.quickstart(3),
        *first_record.rows(),
    ]


def measure_writes(scratch: Path, n_records: int, rounds: int, commit_bytes: int) -> list[Row]:
    """The rows of the table about writing."""
    with Broker(scratch / "empty", _VERSION, is_measured=True) as broker:
        rows = spark_write.rows(broker, scratch, n_records, rounds)
    return [
        *rows,
        engine.encode_against_roofline(n_records // 4, goal_here(Intel=0.7, AMD=0.55), rounds),
        *staging.commit_time(scratch, commit_bytes),
        staging.memory(scratch, commit_bytes // 10),
    ]


def query_data(scratch: Path, *, quick: bool) -> QueryData:
    """The logs that queries read."""
    return QueryData(scratch, *((400_000, 100_000) if quick else (20_000_000, 4_000_000)))


def measure_queries(scratch: Path, names: Sequence[str], rounds: int, *, quick: bool) -> list[Row]:
    """The rows of the table about queries, in the order of the table."""
    data = query_data(scratch, quick=quick)
    return [row for name in QUERIES if name in names for row in QUERIES[name](data, rounds)]


def measure_streams(scratch: Path, names: Sequence[str], *, quick: bool) -> list[Row]:
    """The rows of the table about streams, in the order of the table."""
    rounds = 1 if quick else 3
    shape = (5, 20_000, 4.0) if quick else (30, 1_000_000, 20.0)
    data = streams.StreamData(scratch / "streams", *shape)
    rows = [row for name in STREAMS if name in names for row in STREAMS[name](data, rounds)]
    if PRODUCERS in names:
        rows += beside_broker.producers(query_data(scratch / "producers", quick=quick), rounds)
    if COMMITS in names:
        rows += committing.rows(scratch / "commits", 100 if quick else 1000)
    if DOUBLES in names:
        rows += doubles.rows(scratch / "doubles", _VERSION, rounds)
    return rows


def measure_compaction(scratch: Path, n_bytes: int, rounds: int) -> list[Row]:
    """The rows of the table about compaction."""
    scratch.mkdir()
    return [
        *compacting.rows(scratch, n_bytes, rounds, _VERSION),
        compacting.memory(scratch, 3 * n_bytes),
    ]


def measure_serving(scratch: Path, *, quick: bool) -> list[Row]:
    """The rows of the table about logs that Kafka's clients read."""
    n_records, n_partitions = (20_000, 200) if quick else (300_000, 10_000)
    (scratch / "served").mkdir()
    with Broker(scratch / "broker", _VERSION, is_measured=True) as broker:
        return serving.rows(broker, n_records, scratch / "served", 3, n_partitions)


def machine() -> str:
    """The machine and the versions that the figures come from."""
    return (
        f"{os.cpu_count()} cores of {processor()}; Python {platform.python_version()}, "
        f"pyspark {pyspark.__version__}, pyarrow {pyarrow.__version__}, Kafka {_VERSION}; "
        "warm page cache"
    )


SPEED = TOP / "storage" / "docs" / "speed.md"

#: Follows the machine in front of a table of ratios.
RATIOS = (
    "; medians of alternating rounds after a warm-up. Ratios above 1 are in our favour, except in "
    "rows whose goal has ≤ and in rows of producers' p99, where less is better."
)


def main() -> None:
    """Measure, print, and write the documents if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts: Sequence[str] = (
        "reads",
        "queries",
        "decoding",
        "audits",
        "writes",
        "streams",
        "polls",
        "compaction",
        "topics",
        "starts",
        "installs",
        "stores",
        "serving",
        "latency",
        "databases",
    )
    parser.add_argument("--only", choices=[*parts, _SCALE], help="part of the table")
    alone = [*QUERIES, *STREAMS, COMMITS, PRODUCERS, DOUBLES]
    parser.add_argument("--row", choices=alone, action="append", help="of one part, alone")
    parser.add_argument("--quick", action="store_true", help="small data, to see that it works")
    parser.add_argument("--write", action="store_true", help="put the table into the documents")
    arguments = parser.parse_args()
    if arguments.write and (arguments.quick or arguments.row):
        parser.error("the documents have whole tables, and --quick measures overheads")
    quick, asked = arguments.quick, arguments.row or alone
    if arguments.only:
        parts = [arguments.only]
    elif arguments.row:
        parts = ["queries" if each in QUERIES else "streams" for each in asked]
    n_records, rounds = 100_000 if quick else 4_000_000, 5
    rows: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        if "reads" in parts:
            n_partitions = 500 if quick else 10_000
            rows["reads"] = measure_reads(scratch, n_records, rounds, n_partitions)
        if "queries" in parts:
            rows["queries"] = measure_queries(scratch, asked, rounds, quick=quick)
        if "decoding" in parts:
            rows["decoding"] = decoding.rows(scratch / "decoding", n_records // 4, rounds)
        if "audits" in parts:
            (scratch / "audits").mkdir()
            rows["audits"] = auditing.rows(scratch / "audits", n_records, rounds)
        if "writes" in parts:
            n_bytes = 5 * 10 ** (7 if quick else 9)
            rows["writes"] = measure_writes(scratch, n_records, rounds, n_bytes)
        if "streams" in parts:
            rows["streams"] = measure_streams(scratch, asked, quick=quick)
        if "polls" in parts:
            made_here = scratch / "polls"
            made_here.mkdir()
            rows["polls"] = planning.refresh(made_here, 500 if quick else 10_000, rounds)
        if "compaction" in parts:
            n_bytes = 10 ** (7 if quick else 8) * 2
            rows["compaction"] = measure_compaction(scratch / "compaction", n_bytes, 3)
        if "topics" in parts:
            rows["topics"] = whole_topics.rows(scratch / "topics", n_records, 3)
        if "starts" in parts:
            rows["starts"] = starts.rows(scratch, 200 if quick else 10_000, 9)
        if "installs" in parts:
            (scratch / "installs").mkdir()
            rows["installs"] = installing.rows(scratch / "installs", 1)
        if "stores" in parts:
            made_here = scratch / "stores"
            made_here.mkdir()
            rows["stores"] = object_stores.rows(made_here, quick=quick)
        if "serving" in parts:
            rows["serving"] = measure_serving(scratch, quick=quick)
        if "latency" in parts:
            made_here = scratch / "latency"
            made_here.mkdir()
            rows["latency"] = latent_stores.rows(made_here, quick=quick)
        compared = at_scale = ""
        if _SCALE in parts:
            size = os.environ.get("SCALE_BYTES", "1e8" if quick else "12e9")
            at_scale = scale.measure(scratch, int(float(size)), machine(), RATIOS)
        if "databases" in parts:
            sizes = [1_000, 5_000] if quick else [10_000, 100_000, 1_000_000]
            compared = f"{machine()}.\n\n{databases.measure(scratch, sizes)}"
    if rows:
        print(table([row for part in rows.values() for row in part], machine() + RATIOS))
    print(compared, at_scale)
    if arguments.write:
        if compared:
            put(TOP / "storage" / "docs" / "databases.md", "databases", compared)
        if at_scale:
            put(SPEED, _SCALE, at_scale)
        for part, found in rows.items():
            put(SPEED, part, table(found, machine() + RATIOS))
        measured = SPEED.read_text()
        put(TOP / "README.md", "figures", figures(rows_of(measured)))


def put(document: Path, mark: str, text: str) -> None:
    """Put a text between the marks of a document."""
    marks = re.compile(rf"(<!-- {mark}:begin -->\n).*(<!-- {mark}:end -->)", re.DOTALL)
    document.write_text(marks.sub(lambda m: m[1] + text + m[2], document.read_text()))


if __name__ == "__main__":
    main()
