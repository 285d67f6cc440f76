"""Ctrl-C ends a query on Sail, and neither the server nor its sessions."""

import subprocess
import sys
from pathlib import Path

import pytest

from segmentlog.testing.kafka_log import KafkaLog

pytestmark = pytest.mark.only_sail

PROGRAM = """
import os, signal, sys, time
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark_segmentlog import sail_session


class Slow(DataSource):
    @classmethod
    def name(cls):
        return "slow"

    def schema(self):
        return "n long"

    def reader(self, schema):
        return Reader()


class Reader(DataSourceReader):
    def read(self, partition):
        # The client waits for the answer.  In the midst of a call, the exception can leave a lock
        # of grpc taken, and the next query waits for it.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):
            yield pa.record_batch({"n": [1]})
            time.sleep(0.1)


spark = sail_session()
rows = spark.read.format("segmentlog").load(sys.argv[1])
rows.count()
spark.dataSource.register(Slow)
try:
    spark.read.format("slow").load().count()
except KeyboardInterrupt:
    print("interrupted", rows.count(), sail_session().range(3).count())
"""


def test_ctrl_c_ends_a_query_and_leaves_the_session(tmp_path: Path) -> None:
    """The client asks the server to cancel the query, so the server must not end."""
    KafkaLog(tmp_path / "logs").write("orders", ["a", "b"])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(tmp_path / "logs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert "interrupted 2 3" == done.stdout.strip(), done.stderr[-2000:]
