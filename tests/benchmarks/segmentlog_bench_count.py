"""The ceiling of any Python sink: takes the Arrow batches, and counts their rows and bytes."""

import json
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage


class CountingSource(DataSource):
    """``frame.write.format("bench_count").option("counts", "a.json")``."""

    @classmethod
    def name(cls):
        return "bench_count"

    def writer(self, schema, overwrite):
        return CountingWriter(self.options["counts"])


@dataclass
class Counted(WriterCommitMessage):
    """Of one task."""

    rows: int
    n_bytes: int


class CountingWriter(DataSourceArrowWriter):
    """Leaves the sums in a file, because its driver's side runs in a process of its own."""

    def __init__(self, counts):
        self.counts = counts

    def write(self, iterator):
        counted = Counted(0, 0)
        for batch in iterator:
            counted.rows += batch.num_rows
            counted.n_bytes += batch.nbytes
        return counted

    def commit(self, messages):
        sums = [sum(m.rows for m in messages), sum(m.n_bytes for m in messages)]
        Path(self.counts).write_text(json.dumps(sums))
