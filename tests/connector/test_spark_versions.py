"""The connector with other versions of Spark: the same uses, with the same results."""

import importlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from names_of_pyspark import imported, lacking
from spark_environments import VERSIONS, python_with

import segmentlog

SUPPORT = Path(__file__).parents[1] / "support"

#: Names that pyspark 4.0.1 has.
NAMES = {
    "pyspark": ("", "StorageLevel", "__version__", "TaskContext", "cloudpickle"),
    "pyspark.errors": (
        "AnalysisException", "IllegalArgumentException", "NumberFormatException",
    ),
    "pyspark.serializers": ("CloudPickleSerializer",),
    "pyspark.sql": ("Column", "Observation", "SparkSession", "functions"),
    "pyspark.sql.connect.dataframe": ("DataFrame",),
    "pyspark.sql.datasource": (
        "DataSource", "DataSourceArrowWriter", "DataSourceReader", "DataSourceStreamReader",
        "DataSourceStreamWriter", "DataSourceWriter", "InputPartition", "WriterCommitMessage",
    ),
    "pyspark.sql.functions": ("expr",),
    "pyspark.sql.pandas.types": ("from_arrow_type", "to_arrow_type"),
    "pyspark.sql.streaming.listener": ("StreamingQueryProgress",),
    "pyspark.sql.types": (
        "ArrayType", "BinaryType", "BooleanType", "DataType", "DoubleType", "IntegerType",
        "LongType", "MapType", "StringType", "StructField", "StructType", "TimestampType",
    ),
    "pyspark.sql.utils": ("is_remote", "to_str"),
}  # fmt: skip
KNOWN = {(module, name) for module, names in NAMES.items() for name in names}


@pytest.mark.addition("name of pyspark")
def test_the_product_imports_what_the_lowest_version_has() -> None:
    """Other names belong into `spark_versions`, which also has an answer where they are absent.

    A name that 4.0.1 has may be added above: the slow test below looks there.
    """
    found = imported()

    assert set() == found - KNOWN
    assert len(found) > 30
    assert [] == lacking(found)


def test_a_version_without_python_data_sources_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 3.5 is, which platforms still offer."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    monkeypatch.delitem(sys.modules, "pyspark_segmentlog.source")

    with pytest.raises(ImportError, match=f"PySpark 4.0, which .* this is {pyspark.__version__}"):
        importlib.import_module("pyspark_segmentlog.source")


@pytest.mark.slow
def test_the_lowest_version_has_these_names() -> None:
    """In an environment of its own."""
    program = f"from names_of_pyspark import lacking; print(lacking({KNOWN!r}))"
    printed = subprocess.run(
        [python_with(VERSIONS[0]), "-c", program],
        cwd=SUPPORT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    assert "[]\n" == printed.stdout


def shown_by(python: Path | str, place: Path, *arguments: str) -> str:
    """What `every_use` prints."""
    ran = subprocess.run(
        [python, str(SUPPORT / "every_use.py"), str(place), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-4000:]
    return ran.stdout


@pytest.mark.slow
@pytest.mark.timeout(4000)
@pytest.mark.parametrize("arguments", [(), ("--remote",)], ids=["classic", "connect"])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.addition("name of pyspark")
def test_every_use(version: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    """The lines are those of the running version."""
    ours = shown_by(sys.executable, tmp_path / "ours", *arguments)
    theirs = shown_by(python_with(version), tmp_path / "theirs", *arguments)

    assert ours == theirs
    assert len(ours.splitlines()) > 15


def run_tests(version: str, *arguments: str, **variables: str) -> None:
    """Run tests of this checkout with another version."""
    ran = subprocess.run(
        [python_with(version), "-m", "pytest", "-n0", "-q", *arguments],
        cwd=SUPPORT.parents[1],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=7000,
    )
    assert ran.returncode == 0, ran.stdout[-8000:]
    assert " passed" in ran.stdout


#: Versions before 4.2 lack interfaces of 4.2.
_LACKING = VERSIONS[:2]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", _LACKING)
def test_the_tests_of_the_connector(version: str) -> None:
    """Those of a plain `pytest`."""
    run_tests(version, "tests/connector")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", _LACKING)
def test_killed_workers_and_drivers(version: str) -> None:
    """Batches and streams are in the log once."""
    files = ("tests/crash/test_kill_streams.py", "tests/crash/test_kill_spark.py")
    run_tests(version, "-m", "slow", *files, SPARK_KILLS=os.environ.get("SPARK_KILLS", "40"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_standalone_master_with_two_workers(version: str) -> None:
    """The plainest cluster, with other processes for driver and executors."""
    run_tests(version, "-m", "slow", "tests/architecture/test_standalone.py")


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", _LACKING)
def test_twins(version: str) -> None:
    """Jobs of `as_kafka` beside Spark's own source and sink of this version."""
    run_tests(version, "-m", "not slow", "tests/interop/twins")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_query_moves_between_versions(tmp_path: Path, start: str) -> None:
    """Each run is one of another version, with another limit, and some are killed at any time.

    Records, partitions and topics come between the runs.  Each record is copied once.
    """
    rng = random.Random(int(os.environ.get("SEQUENCE_SEED", "67")))
    pythons: list[Path | str] = [sys.executable, *map(python_with, VERSIONS)]
    logs, copied = tmp_path / "logs", Counter[str]()

    def write(topic: str) -> None:
        n_rows = rng.randrange(1, 30)
        with segmentlog.open_writer(logs, topic, num_partitions=2) as writer:
            writer.append(
                pa.table(
                    {"key": [rng.randbytes(3) for _ in range(n_rows)], "value": [b"v"] * n_rows}
                )
            )

    def places() -> Counter[str]:
        opened = segmentlog.open_log_dir(logs)
        return Counter(
            f"{topic} {partition} {offset}"
            for topic, partition in opened.topic_partitions()
            for offset in range(opened.log(topic, partition).log_end_offset)
        )

    def run(python: Path | str, **given: Any) -> None:
        options = {"startingOffsets": start, **dict.fromkeys(given.pop("limits", ()), "7")}
        options["initialOffsetsLocation"] = str(tmp_path / "checkpoint/sources/0")
        command = [python, str(SUPPORT / "moved_query.py"), str(tmp_path)]
        ran = subprocess.run(
            [*command, json.dumps({"options": options, **given})],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            start_new_session=True,
        )
        assert ran.returncode == (0 if given["dies"] is None else -9) or (
            ran.returncode == 0 and given["dies"]  # it was quicker
        ), ran.stderr[-4000:]

    write("t")
    before = places() if start == "latest" else Counter[str]()
    run(rng.choice(pythons), trigger="availableNow", dies=None)
    for topic in rng.choices("tu", k=int(os.environ.get("RUNS_OF_QUERY", "8"))):
        write(topic)
        write(rng.choice("tu"))
        run(
            rng.choice(pythons),
            trigger=rng.choice(["availableNow", "processingTime"]),
            dies=rng.choice([None, rng.uniform(3, 12)]),
            limits=rng.choice([(), ("maxOffsetsPerTrigger",)]),
        )
    for python in pythons:
        write("t")
        run(python, trigger="processingTime", dies=None)

    for partition in segmentlog.open_log_dir(tmp_path / "copy").topics()["copy"]:
        found = segmentlog.open_log_dir(tmp_path / "copy").log("copy", partition).scan().read_all()
        copied.update(each.decode() for each in found["value"].to_pylist())
    assert places() - before == copied
    assert len(copied) > 50
