"""A clone as a Spark job is that of one process."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cloned_places import places_of
from coordinator_logs import write_commits
from pyspark.sql import SparkSession
from registered import readings
from registered import write as registered_write

import pyspark_segmentlog
import segmentlog
from pyspark_segmentlog import cloning
from segmentlog.errors import ColumnError, SplitKeyError
from segmentlog.maintain.cloning import job
from segmentlog.maintain.cloning.clone import CloneSettings
from segmentlog.maintain.cloning.task import time_windows

pytestmark = pytest.mark.linux


def write(path: Path, *, with_split_keys: bool = False) -> Path:
    """A topic of three partitions."""
    chance = random.Random(7)
    columns: dict[str, Any] = {
        "key": [b"%d" % chance.randrange(60) for _ in range(900)],
        "value": [b"%0100d" % number for number in range(900)],
        "timestamp": pa.array(
            [1_700_000_000_000 + i for i in range(900)], pa.timestamp("ms", "UTC")
        ),
    }
    if with_split_keys:
        columns["partition"] = pa.array([i % 3 for i in range(900)], pa.int32())
    config = segmentlog.ProducerConfig(use_timestamps=True, batch_size=500)
    with segmentlog.open_writer(path, "t", num_partitions=3, config=config) as writer:
        writer.append(pa.table(columns))
    return path


def records(path: Path) -> list[Any]:
    columns = ["partition", "offset", "key", "value", "timestamp"]
    return segmentlog.read(path, "u", columns=columns).to_pylist()


def test_the_clone_is_that_of_one_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tasks, each with windows of time; groups have the same places."""
    monkeypatch.setattr(cloning, "_TASK_BYTES", 12_000)
    source = write(tmp_path / "s")
    write_commits(source, [("g", 0, 100), ("g", 1, 150), ("g", 2, 1), ("h", 1, 200)])
    bounds = job._bounds_of(segmentlog.open_log_dir(source), CloneSettings("t", "u"))
    assert 3 < len(time_windows(bounds, 12_000))

    def mask(rows: pa.RecordBatch) -> pa.RecordBatch:
        at = rows.schema.get_field_index("key")
        keys = pc.binary_join_element_wise(rows["key"], b"x", b"-")
        return rows.set_column(at, "key", keys).filter(pc.not_equal(rows["value"], b"%0100d" % 7))

    options: dict[str, Any] = {"num_partitions": 4, "transform": mask}
    here = segmentlog.clone(
        source, "t", "u", to=tmp_path / "here", offset_map=tmp_path / "here.parquet", **options
    )
    there = pyspark_segmentlog.clone(
        spark,
        source,
        "t",
        "u",
        to=tmp_path / "there",
        offset_map=tmp_path / "there.parquet",
        **options,
    )
    assert here == there
    assert 1 == here.n_left_out
    assert records(tmp_path / "here") == records(tmp_path / "there")
    assert places_of(tmp_path / "here.parquet") == places_of(tmp_path / "there.parquet")
    assert not list(tmp_path.glob("*pieces*"))


def test_keys_in_several_partitions_and_errors_of_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing is left of a clone that is refused."""
    source, clone = write(tmp_path / "s", with_split_keys=True), tmp_path / "c"
    errors = []
    for call in (
        segmentlog.clone,
        lambda *args, **options: pyspark_segmentlog.clone(spark, *args, **options),
    ):
        with pytest.raises(SplitKeyError) as caught:
            call(source, "t", "u", to=clone, num_partitions=4)
        errors.append(caught.value)
    assert errors[0].n_keys == errors[1].n_keys == 60
    with pytest.raises(ColumnError, match="'value' is missing"):
        pyspark_segmentlog.clone(
            spark, source, "t", "u", to=clone, transform=lambda rows: rows.select(["key"])
        )
    assert not list(clone.glob("segmentlog.*"))
    pyspark_segmentlog.clone(spark, source, "t", "u", to=clone)
    assert 900 == len(records(clone))


def test_fields_are_masked_in_the_workers(spark: SparkSession, tmp_path: Path) -> None:
    """As in one process; what cannot be masked is named by its place."""
    pytest.importorskip("fastavro")
    readings(tmp_path / "s")
    mask = {"value.city": None, "value.degrees": 7}
    asked: dict[str, Any] = {"to": tmp_path / "a", "mask": mask}
    done = pyspark_segmentlog.clone(spark, tmp_path / "s", "readings", "u", **asked)
    segmentlog.clone(tmp_path / "s", "readings", "u", to=tmp_path / "b", mask=mask)
    assert 3 == done.n_changed_values
    assert records(tmp_path / "b") == records(tmp_path / "a")
    registered_write(tmp_path / "s", "readings", [b"no schema"])
    asked["to"] = tmp_path / "c"
    with pytest.raises(segmentlog.UndecodableValueError, match="readings-0"):
        pyspark_segmentlog.clone(spark, tmp_path / "s", "readings", "u", **asked)
