"""A standalone master, whose workers and executors are processes, as in a real cluster."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from ports import free_port
from ready_worker import plain_python

pytestmark = [pytest.mark.slow, pytest.mark.spark]

_JOB = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

master, source, target = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m"}
spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
rows = spark.read.format("segmentlog").option("preserve", "true").load(source)
written = rows.where("topic = 'orders'").repartition("topic", "partition")
written = written.sortWithinPartitions("offset").write.format("segmentlog").mode("append")
written.option("preserve", "true").option("numPartitions", "3").save(target)
back = spark.read.format("segmentlog").load(target)
executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
print(json.dumps({
    "read": dict(rows.groupBy("topic").count().collect()),
    "back": [list(each) for each in back.groupBy("partition")
             .agg(F.count("*"), F.sum("offset")).sort("partition").collect()],
    "expected": [list(each) for each in rows.where("topic = 'orders'").groupBy("partition")
                 .agg(F.count("*"), F.sum("offset")).sort("partition").collect()],
    "executors": len(executors) - 1,
}))
spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """URL of a master with two workers, each of one core."""
    url = f"spark://127.0.0.1:{free_port()}"
    host, port = url.removeprefix("spark://").split(":")
    place = ["--host", host, "--webui-port", "0"]
    commands = [["deploy.master.Master", *place, "--port", port]]
    for i in range(2):
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"work{i}")]
        commands.append(["deploy.worker.Worker", *place, *size, url])
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = os.environ | {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
    output = tmp_path / "daemons.out"
    processes = []
    with output.open("ab") as log:
        for name, *arguments in commands:
            command = [str(spark_class), f"org.apache.spark.{name}", *arguments]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        deadline = time.monotonic() + 60
        while output.read_text().count("Successfully registered with master") < 2:
            assert time.monotonic() < deadline, output.read_text()[-3000:]
            assert [None] * 3 == [each.poll() for each in processes], output.read_text()[-3000:]
            time.sleep(0.2)
        yield url
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def test_a_job_reads_and_writes(master: str, example_data: str, tmp_path: Path) -> None:
    """Executors of both workers read and write every row, and the driver is a separate process."""
    job = tmp_path / "job.py"
    job.write_text(_JOB)
    done = subprocess.run(
        [sys.executable, str(job), master, example_data, str(tmp_path / "logs")],
        env=os.environ | {"PYSPARK_PYTHON": plain_python()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    found = json.loads(done.stdout)

    assert {"customers": 42, "orders": 900, "payments": 120} == found["read"]
    assert found["expected"] == found["back"]
    assert 2 == found["executors"]
