"""From options to slices, without Spark."""

import shutil
from pathlib import Path

import pytest

from pyspark_segmentlog.options import ReadOptions
from pyspark_segmentlog.planner import plan_slices
from segmentlog.errors import LogDirectoryError


def test_a_partition_that_is_not_read_may_be_in_two_directories(
    example_data: str, tmp_path: Path
) -> None:
    """Those of two brokers both hold one of the internal topics, which nobody has asked for."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, topic in zip(paths, ("orders", "payments"), strict=True):
        for source in Path(example_data).glob(f"{topic}-*"):
            shutil.copytree(source, path / source.name)
        shutil.copytree(Path(example_data, "orders-0"), path / "__consumer_offsets-0")
    options = {"paths": f'["{paths[0]}", "{paths[1]}"]'}
    slices = plan_slices(ReadOptions.parse(options))

    assert {"orders", "payments"} == {each.topic for each in slices}
    with pytest.raises(LogDirectoryError, match="leave one of the two out"):
        plan_slices(ReadOptions.parse(options | {"subscribe": "__consumer_offsets"}))
