"""Logs in servers of each protocol of object stores: S3, Google Cloud Storage and Azure."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka_here import ArtifactsError
from killed_writers import play_kills
from moto_here import Moto
from spoiled_requests import OPERATIONS, play_all
from store_servers import AzureServer, GoogleServer, S3Server

import segmentlog
from segmentlog.bucket.clients import objects_at
from segmentlog.errors import StorageError
from segmentlog.store.paths import bucket_at

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Moto, id="moto behind a lock"),
        pytest.param(S3Server, id="S3Proxy"),
        pytest.param(GoogleServer, id="fake-gcs-server"),
        pytest.param(AzureServer, id="Azurite"),
    ],
)
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a place in a server."""
    try:
        running = request.param()
    except (ArtifactsError, ImportError) as error:
        pytest.skip(f"the server cannot be had: {error}")
    with running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running.log_url("logs")


@pytest.fixture
def url(place: str, request: pytest.FixtureRequest) -> str:
    """An empty place for one test."""
    before, question, options = place.partition("?")
    return f"{before}/{request.node.originalname}{question}{options}"


def _write(url: str, values: list[str], topic: str = "orders", **options: Any) -> None:
    with segmentlog.open_writer(url, topic, **options) as writer:
        writer.append(pa.table({"key": values, "value": values}))


def _values(url: str, topic: str = "orders") -> list[str]:
    found = segmentlog.read(url, topic).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )
    return [each.decode() for each in found["value"].to_pylist()]


def test_one_winner_of_each_key(url: str) -> None:
    """Of 16 clients that create the same keys at once; with two, commits would be lost."""
    location = bucket_at(url)
    assert location is not None
    objects = objects_at(location)
    winners: list[list[int]] = [[] for _ in range(1000)]
    together = threading.Barrier(16)

    def create(client: int) -> None:
        together.wait()
        for key, won in enumerate(winners):
            if objects.create(f"contended/{key}", b"%d" % client):
                won.append(client)

    threads = [threading.Thread(target=create, args=(client,)) for client in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    held = [objects.get(f"contended/{key}") for key in range(len(winners))]
    assert [[int(each)] for each in held] == winners


def test_writes_of_every_kind(url: str, tmp_path: Path) -> None:
    """Several partitions and topics, numbered and preserved writes, an overwrite, and a mirror."""
    for number in range(40):  # more than one checkpoint
        _write(url, [f"{number}-{i}" for i in range(20)], num_partitions=None if number else 3)
    assert len(set(_values(url))) == 800
    for version in (0, 0, 1):
        _write(url, [str(version)], "numbered", txn_app_id="app", txn_version=version)
    assert _values(url, "numbered") == ["0", "1"]
    _write(url, ["new"], "numbered", overwrite=True)
    assert _values(url, "numbered") == ["new"]
    rows = segmentlog.read(url, "orders")
    before, question, options = url.partition("?")
    other = f"{before}-other{question}{options}"
    with segmentlog.open_writer(other, "orders", preserve=True) as writer:
        writer.append(rows)
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert segmentlog.read(other, "orders").sort_by(order).equals(rows.sort_by(order))
    assert [*segmentlog.verify(url)] == []
    segmentlog.mirror(url, to=tmp_path / "local")
    assert {each.comparison for each in segmentlog.compare(url, tmp_path / "local")} == {"equal"}
    segmentlog.delete_topic(url, "orders")
    assert len(segmentlog.sweep(url, longest_read_days=0).keys) == 41 - 1 + 2
    assert _values(url, "numbered") == ["new"]


def test_an_object_in_parts(url: str) -> None:
    rows = pa.table({"value": [os.urandom(1000) for _ in range(30_000)]})
    config = segmentlog.ProducerConfig(codec=segmentlog.Codec.NONE)
    with segmentlog.open_writer(url, "large", config=config) as writer:
        writer.append(rows)
    assert segmentlog.read(url, "large")["value"].equals(rows["value"].cast(pa.binary()))


def test_jobs_at_once(url: str) -> None:
    threads = [
        threading.Thread(target=lambda i=i: [_write(url, [f"{i}-{j}"]) for j in range(20)])
        for i in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(_values(url)) == sorted(f"{i}-{j}" for i in range(8) for j in range(20))


def test_a_thousand_small_commits(url: str) -> None:
    with segmentlog.open_writer(url, "orders") as writer:
        for number in range(1000):
            writer.append(pa.table({"value": [b"%d" % number]}))
            writer.flush()
    assert _values(url) == [str(number) for number in range(1000)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_that_are_spoiled(name: str, url: str, say: Callable[[str], None]) -> None:
    """A part of all cases: each operation is done, or is not, and says so."""
    try:
        say(f"| {name} | {play_all(OPERATIONS[name], url, every=40)} |")
    except StorageError as error:
        if name != "write in parts":
            raise
        pytest.skip(f"the server takes no small parts: {error}")


def test_two_hundred_kills(url: str, say: Callable[[str], None]) -> None:
    """Of real processes, at their requests."""
    found = play_kills(url, 200)
    say(str(found))
    assert found.is_right


def test_two_hundred_kills_of_writers_that_combine(url: str, say: Callable[[str], None]) -> None:
    """Six processes write as fast as they can, and share commits."""
    found = play_kills(url, 200, n_writers=6, n_more=8)
    say(str(found))
    assert found.is_right
    assert found.n_shared > 20


_SPARK = """
import sys
from pyspark import InheritableThread
from pyspark.sql import SparkSession
url, work = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(0, 1000, 1, 3).selectExpr("cast(id as string) key", "cast(id as string) value")

def save(frame, mode="append", **options):
    frame.write.format("segmentlog").options(**options).mode(mode).save(url)

def load(topic):
    return spark.read.format("segmentlog").option("subscribe", topic).load(url)

save(rows, topic="t", numPartitions="4")
failed = []

def save_beside():
    try:
        # The source is looked up in the active session, which a new thread does not have.
        spark._jsparkSession.setActiveSession(spark._jsparkSession)
        save(rows, topic="t")
    except Exception as error:
        failed.append(str(getattr(error, 'java_exception', error)))

jobs = [InheritableThread(target=save_beside) for _ in range(2)]
for each in jobs:
    each.start()
for each in jobs:
    each.join()
assert not failed, failed
assert load("t").count() == 3000
for _ in range(2):
    save(rows, topic="numbered", txnAppId="app", txnVersion="0")
assert load("numbered").count() == 1000
save(rows.limit(10), "overwrite", topic="numbered", deleteRecords="true")
assert load("numbered").count() == 10
save(rows.selectExpr("key", "value", "concat('topic-', cast(value as int) % 3) topic"))
assert sum(load(f"topic-{i}").count() for i in range(3)) == 1000

def copy():
    found = spark.readStream.format("segmentlog").option("subscribe", "t")
    found = found.option("startingOffsets", "earliest").load(url).select("key", "value")
    made = found.writeStream.format("segmentlog").option("topic", "copy")
    made = made.option("checkpointLocation", f"{work}/checkpoint")
    made.trigger(availableNow=True).start(url).awaitTermination()

copy()
save(rows, topic="t")
copy()
assert load("copy").count() == 4000
# Two drivers of one query: the second has the checkpoint before the commits of the first.
import pathlib
for each in pathlib.Path(work, "checkpoint/commits").iterdir():
    each.unlink()
copy()
assert load("copy").count() == 4000
print("all is there")
"""


def test_spark(url: str, tmp_path: Path) -> None:
    """Spark's workers find credentials in the environment of a new JVM."""
    command = [sys.executable, "-c", _SPARK, url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "all is there" in done.stdout, done.stderr[-3000:]


_ENGINE = """
import sys
url, name = sys.argv[1:]
if name == "sail":
    from pyspark_segmentlog import sail_session
    spark = sail_session()
else:
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = spark.getOrCreate()
for number in range(8):
    rows = spark.range(0, 100, 1, 3).selectExpr(f"concat('{name}-{number}-', id) value")
    rows.write.format("segmentlog").option("topic", "together").mode("append").save(url)
print("all is written")
"""
#: Names a Python with the extra `sail`, which has no place beside Spark's.  Sail reads `SAIL_*`.
_SAIL = "PYTHON_OF_SAIL"


def test_engines_write_one_log(url: str, say: Callable[[str], None], tmp_path: Path) -> None:
    """Two applications of Spark, Sail if `PYTHON_OF_SAIL` names its Python, and plain Python."""
    pythons = {"spark-1": sys.executable, "spark-2": sys.executable}
    if sail := os.environ.get(_SAIL):
        pythons["sail"] = sail
    _write(url, ["first"], "together", num_partitions=4)
    running = dict[str, subprocess.Popen[bytes]]()
    script = tmp_path / "engine.py"  # the client of Spark Connect takes `python -c` for a doctest
    script.write_text(_ENGINE)
    for name, python in pythons.items():
        with (tmp_path / name).open("wb") as file:  # a full pipe would stop it
            command = [python, str(script), url, name]
            running[name] = subprocess.Popen(command, stdout=file, stderr=file)
    expected = {
        f"{name}-{job}-{row}" for name in running for job in range(8) for row in range(100)
    }
    with segmentlog.open_writer(url, "together") as writer:
        while any(each.poll() is None for each in running.values()):
            name = f"python-{len(expected)}"
            writer.append(pa.table({"value": [name]}))
            writer.flush()
            expected.add(name)
    for name in running:
        printed = (tmp_path / name).read_text()
        assert "all is written" in printed, printed[-3000:]
    assert sorted(_values(url, "together")) == sorted({*expected, "first"})
    assert [*segmentlog.verify(url)] == []
    n_of_python = sum(each.startswith("python") for each in expected)
    say(f"{', '.join(running)}: {len(expected)} rows, {n_of_python} commits of plain Python")
