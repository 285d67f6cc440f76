"""Rows of a partition in the shared file of a task, and in a separate file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from plain_writes import ONE, values, write
from soundness import assert_tidy

from segmentlog.format.topic_config import TopicConfig
from segmentlog.writes.config import ProducerConfig

pytestmark = pytest.mark.linux


@pytest.mark.parametrize("between", [100, 1_100_000])
@pytest.mark.parametrize("keeps_offsets", [False, True])
def test_little_or_very_much_of_a_partition_between_much_of_it(
    tmp_path: Path, between: int, keeps_offsets: bool
) -> None:
    """Such rows go to the shared file.

    After them, the partition's separate file is not continued.
    """
    counts = np.arange(3)
    sizes = [2_000, between, 300_000]

    def rows() -> list[pa.Table]:
        return [
            pa.table(
                {
                    "value": [b"%d" % count * (size // 10)] * 10,
                    "partition": pa.array([0] * 10, pa.int32()),
                    "offset": range(10 * count, 10 * count + 10),
                }
            )
            for count, size in zip(counts, sizes, strict=True)
        ]

    config = ProducerConfig(
        topic_config=TopicConfig(segment_bytes=1 << 20),
        batch_size=16_384,
        buffer_memory=1,
        use_offsets=keeps_offsets,
    )
    write(tmp_path, *rows(), config=config)
    write(tmp_path, ONE)

    written = [value for table in rows() for value in table.column("value").to_pylist()]
    assert [*written, b"v"] == values(tmp_path)
    assert_tidy(tmp_path)
