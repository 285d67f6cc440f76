"""Tasks that read a log with a flipped bit return all rows, an error, or all but one batch."""

import os
import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from flipping import COLUMNS, FlippedLog, Rows, flips_of, is_hidden, plant, taken, wrong_reads

from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.planner import plan_tasks
from pyspark_segmentlog.reads.task import parts_of_task, read_part


def by_tasks(**given: str) -> Callable[[FlippedLog, str], Rows]:
    """The rows of all tasks of a query, in their order."""

    def read(log: FlippedLog, on_corrupt: str) -> Rows:
        options = ReadOptions.parse(
            {"path": str(log.directory), "onCorruptBatch": on_corrupt, **given}
        )
        tasks = plan_tasks(options)
        parts = chain.from_iterable(parts_of_task(each, options) for each in tasks)
        batches = (batch for part in parts for batch in read_part(part, tuple(COLUMNS), options))
        return sorted(taken(batches))

    return read


WAYS = {
    "one task": by_tasks(),
    "small tasks": by_tasks(maxBytesPerPartition="300"),
    "tasks of a few records": by_tasks(maxRecordsPerPartition="5"),
}


@pytest.mark.parametrize("name", ["v2 none", "v2 lz4", "v1 gzip", "compacted", "transactions"])
def test_a_flipped_bit_changes_no_rows_of_a_query(tmp_path: Path, name: str) -> None:
    """Random bits of a log with a high watermark are flipped."""
    is_ci = os.environ.get("CI") == "true"
    number = 0 if is_ci else random.SystemRandom().randrange(10**9)
    rng = random.Random(number)
    log = plant(tmp_path, name, has_indexes=rng.random() < 0.5, has_checkpoints=True)
    kinds = flips_of(log)
    for _ in range(4):
        flip = rng.choice(rng.choice(kinds))
        wrong = [] if is_hidden(log, flip) else wrong_reads(log, flip, rng, 2, WAYS)
        assert [] == wrong, (number, flip.path.name, flip.byte, flip.bit)
