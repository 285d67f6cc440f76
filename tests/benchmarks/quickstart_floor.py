"""The statements of the README's quickstart, with a source and a sink that do nearly nothing.

``python tests/benchmarks/quickstart_floor.py`` prints the same kinds of tables, with other rows.
"""

import os
import sys
from functools import partialmethod
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrameReader, DataFrameWriter
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "examples")]

from segmentlog_bench_few_rows import FewRowsSource  # noqa: E402

quickstart = import_module("quickstart")


def main() -> None:
    """Run two reads with a write between them, without segmentlog."""
    for kind in (DataFrameReader, DataFrameWriter):
        patch.object(kind, "format", partialmethod(_few_rows, kind.format)).start()
    here = str(Path(__file__).resolve().parent)  # Spark's Python processes import the source, too
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    spark = quickstart.start_spark()
    spark.dataSource.register(FewRowsSource)
    quickstart.read_all(spark).show(truncate=False)
    quickstart.write(spark, "nowhere")
    rows = spark.read.format("segmentlog").option("subscribe", "large-orders").load("nowhere")
    rows = rows.where(F.col("timestamp") >= F.lit(quickstart.SINCE))
    rows = rows.selectExpr("partition", "offset", "timestamp", "cast(value as string) value")
    rows.orderBy("timestamp").show(5, truncate=False)
    spark.stop()


def _few_rows(self: Any, choose: Any, _: str) -> Any:
    return choose(self, FewRowsSource.name())


if __name__ == "__main__":
    main()
