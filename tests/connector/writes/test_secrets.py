"""Credentials of a store in the environment, or in the URL: nothing that Spark writes has them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto_here import Moto

pytestmark = [pytest.mark.slow, pytest.mark.needs_spark("it looks at what Spark writes")]

_KEY, _SECRET = "KEYwhichNOBODYmaySEE", "SECRETwhichNOBODYmaySEE"

_SPARK = """
import sys
from pyspark.sql import SparkSession
url, work, given = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", f"file://{work}/events")
    .config("spark.eventLog.logBlockUpdates.enabled", "true").getOrCreate()
)
spark.sparkContext.setLogLevel("INFO")
rows = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) value")

def write():
    rows.write.format("segmentlog").option("topic", "t").mode("append").save(given)

try:
    write()
except Exception as error:
    # Tasks are not given the credentials of a URL, unless the driver's worker is taken for them.
    assert given != url, error
    print(error)
    import segmentlog, pyarrow as pa
    with segmentlog.open_writer(given, "t") as writer:
        writer.append(pa.table({"value": [str(i) for i in range(100)]}))
url, writable = given, url
found = spark.read.format("segmentlog").option("subscribe", "t").load(url)
found.explain("extended")
print(found, found.count(), repr(found.schema))
stream = spark.readStream.format("segmentlog").option("subscribe", "t")
stream = stream.option("startingOffsets", "earliest").load(url).select("value")
writing = stream.writeStream.format("segmentlog").option("topic", "copy")
writing = writing.option("checkpointLocation", f"{work}/checkpoint").trigger(availableNow=True)
query = writing.start(writable)
query.awaitTermination()
query.explain(True)
print(query.lastProgress)
assert spark.read.format("segmentlog").option("subscribe", "copy").load(url).count() == 100
for wrong in (url.replace("/logs", "/missing", 1), url):
    try:
        rows.write.format("segmentlog").option("topic", "t").option(
            "numPartitions", "7").mode("append").save(wrong)
    except Exception as error:
        print(error)
    else:
        raise AssertionError(wrong)
print("all is there")
spark.stop()
"""


@pytest.fixture
def moto() -> Iterator[Moto]:
    """A server that takes any credentials."""
    with Moto() as server:
        yield server


@pytest.mark.parametrize("way", ["environment", "URL"])
def test_nothing_has_the_credentials(way: str, moto: Moto, tmp_path: Path) -> None:
    url = given = moto.url("log")
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    if way == "URL":
        given = url.replace("s3://", f"s3://{_KEY}:{_SECRET}@")
    else:
        environment |= {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}
    (tmp_path / "events").mkdir()
    command = [sys.executable, "-c", _SPARK, url, str(tmp_path), given]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    (tmp_path / "output").write_text(done.stdout)
    (tmp_path / "log").write_text(done.stderr)
    assert "all is there" in done.stdout, (done.stdout[-2000:], done.stderr[-3000:])
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            at = max(data.find(_SECRET.encode()), data.find(_KEY.encode()))
            assert at < 0, (path, data[max(0, at - 300) : at + 100])
