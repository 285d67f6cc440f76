"""DataFrames of chosen columns: `pyspark_segmentlog.read`."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from plain_writes import ONE, write
from pyspark.sql import SparkSession

import pyspark_segmentlog
from segmentlog.errors import ColumnError, OptionError

pytestmark = pytest.mark.spark


def test_columns_are_chosen_by_name(spark: SparkSession, example_data: str) -> None:
    """One column is chosen, or several. The options are those of any read."""
    counted = pyspark_segmentlog.read(spark, Path(example_data), "partition", subscribe="orders")
    rows = pyspark_segmentlog.read(
        spark, example_data, ["offset", "topic"], assign='{"orders":[0]}', lastRecords=2
    )

    assert ["partition"] == counted.columns
    assert (900, [(333, "orders"), (334, "orders")]) == (
        counted.count(),
        sorted(map(tuple, rows.collect())),
    )


def test_rows_are_counted_without_a_column(
    spark: SparkSession, example_data: str, tmp_path: Path
) -> None:
    """Without checksums, damage inside a batch stays unnoticed."""
    assert 900 == pyspark_segmentlog.count(spark, Path(example_data), subscribe="orders")
    assert 6 == pyspark_segmentlog.count(
        spark, example_data, check_crcs=False, subscribe="orders", lastRecords=2
    )

    write(tmp_path, ONE)
    (log,) = tmp_path.glob("*/*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    (log.parent.parent / ".kafka_cleanshutdown").touch()
    assert 1 == pyspark_segmentlog.count(spark, tmp_path, check_crcs=False)
    with pytest.raises(OptionError, match="give True or False"):
        pyspark_segmentlog.count(spark, tmp_path, check_crcs="false")  # type: ignore[arg-type]


def test_keys_and_values_are_strings_if_asked_for(spark: SparkSession, example_data: str) -> None:
    """All columns are returned, in the order of a read without a schema."""
    rows = pyspark_segmentlog.read(
        spark, example_data, strings=True, subscribe="orders", lastRecords=1, includeHeaders=True
    )
    plain = spark.read.format("segmentlog").option("includeHeaders", "true").load(example_data)

    assert plain.columns == rows.columns
    assert ["string", "string"] == [kind for _, kind in rows.dtypes[:2]]
    assert rows.first().key.startswith("customer-")
    assert plain.schema == pyspark_segmentlog.read(spark, example_data, includeHeaders=True).schema


@pytest.mark.needs_spark("Sail passes no list of paths; the option paths does")
def test_several_directories_of_one_broker_are_read(
    spark: SparkSession, example_data: str, tmp_path: Path
) -> None:
    """The rows are those of `load([...])`."""
    write(tmp_path, ONE, topic="more")
    rows = pyspark_segmentlog.read(
        spark, [example_data, tmp_path], "topic", subscribe="orders,more"
    )

    assert 901 == rows.count()


def test_a_wrong_column_is_refused_before_spark_is_asked(
    spark: SparkSession, example_data: str
) -> None:
    """The message has the name that was probably meant."""
    with pytest.raises(ColumnError, match="did you mean 'offset'"):
        pyspark_segmentlog.read(spark, example_data, "ofset")
    with pytest.raises(OptionError, match="give 'startingTimestamp'"):
        pyspark_segmentlog.read(spark, example_data, since="x")
    with pytest.raises(OptionError, match=r"give 'kafka\.isolation\.level'"):
        pyspark_segmentlog.read(spark, example_data, isolation_level="read_committed")
    with pytest.raises(ColumnError, match="leave out all but one"):
        pyspark_segmentlog.read(spark, example_data, ["key", "key"])


def test_a_session_that_does_not_find_the_package_is_explained() -> None:
    """The next test has such a session."""
    session = Mock()
    load = session.read.format.return_value.options.return_value.load
    load.side_effect = ValueError("[DATA_SOURCE_NOT_FOUND] Failed to find segmentlog")
    with pytest.raises(ModuleNotFoundError, match=r"another Python.*PYSPARK_PYTHON"):
        pyspark_segmentlog.read(session, "/nothing")
    load.side_effect = ValueError("another fault")
    with pytest.raises(ValueError, match="another fault"):
        pyspark_segmentlog.read(session, "/nothing")


@pytest.mark.slow
def test_a_python_without_the_package_is_named_in_one_sentence(example_data: str) -> None:
    """An environment that is not activated: Spark starts the system's Python for its workers."""
    code = (
        "import sys, pyspark_segmentlog\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        "pyspark_segmentlog.read(spark, sys.argv[1], 'topic').count()\n"
    )
    kept = {name: each for name, each in os.environ.items() if not name.startswith("PYSPARK_P")}
    java = str(Path(shutil.which("java") or "/usr/bin/java").parent)
    done = subprocess.run(
        [sys.executable, "-c", code, example_data],
        env=kept | {"PATH": os.pathsep.join(["/usr/bin", "/bin", java])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    (said,) = re.findall(r"^ModuleNotFoundError: .*", done.stderr, re.MULTILINE)

    assert said.startswith(
        "ModuleNotFoundError: Spark's Python workers have no module pyspark_segmentlog, because "
        "they run another Python than this process; before the session starts, run export "
        f"PYSPARK_PYTHON={shlex.quote(sys.executable)}, or "
    )
    assert len(re.findall(r"^Traceback", done.stderr, re.MULTILINE)) == 1
