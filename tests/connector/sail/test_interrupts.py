"""Ctrl-C ends a query on Sail, and neither the server nor its sessions."""

import subprocess
import sys
from pathlib import Path

import pytest

from segmentlog.testing.kafka_log import KafkaLog

pytestmark = pytest.mark.only_sail

PROGRAM = """
import os, signal, sys, threading
from pyspark_segmentlog import sail_session

spark = sail_session()
rows = spark.read.format("segmentlog").load(sys.argv[1])
rows.count()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        rows.count()
except KeyboardInterrupt:
    print("interrupted", rows.count(), sail_session().range(3).count())
"""


def test_ctrl_c_ends_a_query_and_leaves_the_session(tmp_path: Path) -> None:
    """The client asks the server to cancel the query, so the server must not end."""
    KafkaLog(tmp_path / "logs").write("orders", ["a", "b"])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(tmp_path / "logs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert "interrupted 2 3" == done.stdout.strip(), done.stderr[-2000:]
