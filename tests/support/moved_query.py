"""Runs of one query, each by another version of Spark: ``python moved_query.py DIRECTORY RUN``.

RUN is JSON: the options of the source, ``trigger`` (``availableNow`` or ``processingTime``), and
``dies``, the seconds after which the driver is killed, or null.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any


def main(directory: Path, run: dict[str, Any]) -> None:
    """Copy places of records into another log, each once."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "OFF").getOrCreate()
    source = spark.readStream.format("segmentlog").options(**run["options"])
    stream = source.option("subscribePattern", ".").load(str(directory / "logs"))
    writer = (
        stream.selectExpr("concat_ws(' ', topic, partition, offset) AS value")
        .writeStream.format("segmentlog")
        .option("topic", "copy")
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    now = run["trigger"] == "availableNow"
    trigger: dict[str, Any] = {"availableNow": True} if now else {"processingTime": "0 seconds"}
    if run["dies"] is not None:
        threading.Thread(target=_die, args=(run["dies"],), daemon=True).start()
    query = writer.trigger(**trigger).start(str(directory / "copy"))
    if now:
        query.awaitTermination()
    else:
        query.processAllAvailable()
        query.stop()
    spark.stop()


def _die(seconds: float) -> None:
    time.sleep(seconds)
    os.killpg(0, signal.SIGKILL)  # with the JVM and its Python processes


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
