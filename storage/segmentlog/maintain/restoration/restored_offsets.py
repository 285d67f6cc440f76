"""A file that shows where each restored offset is: the offset map, in Parquet.

A row is a run of records whose offsets follow each other, at the source and at the target:
`n_records` records, the first of them at `source_offset` of the old log and at `target_offset` of
the new one.  The last row of a partition has no records: it is the end of both logs.  So a row
stands for each gap between records, and not for each record.

An offset of the old log belongs to the first row that ends after it, or else to the last row.  In
the new log it is ``target_offset + max(offset - source_offset, 0)``, and in the last row
``target_offset``: an offset without a record becomes that of the next record.
"""

from typing import BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from segmentlog.format.kernels.memory import Int64s
from segmentlog.model import TopicPartition

OFFSET_MAP_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("source_offset", pa.int64(), nullable=False),
        pa.field("n_records", pa.int64(), nullable=False),
        pa.field("target_offset", pa.int64(), nullable=False),
    ]
)

_MOST_ROWS = 1 << 18  #: of a row group


class OffsetMap:
    """Writes the rows of an offset map; the end of the file is written when the block ends."""

    def __init__(self, file: BinaryIO) -> None:
        self._writer = pq.ParquetWriter(file, OFFSET_MAP_SCHEMA)
        self._rows: list[Int64s] = []  #: first offsets and numbers of records, shape (n_runs, 2)
        self._n_rows = 0
        self._start, self._n_records = 0, 0  # the run that may continue

    def add(self, topic_partition: TopicPartition, offsets: Int64s) -> None:
        """Take the offsets of the next records of a partition: int64, shape (n_records,)."""
        if not len(offsets):
            return
        begins = np.concatenate([[0], np.flatnonzero(np.diff(offsets) != 1) + 1])
        runs = np.stack([offsets[begins], np.diff(begins, append=len(offsets))], axis=1)
        if self._n_records and self._start + self._n_records == runs[0, 0]:
            runs[0] = self._start, self._n_records + runs[0, 1]
        else:
            self._keep_run()
        self._rows.append(runs[:-1])
        self._n_rows += len(runs) - 1
        self._start, self._n_records = runs[-1].tolist()
        if self._n_rows >= _MOST_ROWS:
            self._write(topic_partition)

    def end(self, topic_partition: TopicPartition, source_end: int, target_end: int) -> None:
        """Take the ends of a partition's logs, after its last record."""
        self._keep_run()
        self._write(topic_partition, (source_end, target_end))

    def _keep_run(self) -> None:
        if self._n_records:
            self._rows.append(np.array([[self._start, self._n_records]], np.int64))
            self._n_rows += 1
            self._n_records = 0

    def _write(self, topic_partition: TopicPartition, ends: tuple[int, int] | None = None) -> None:
        runs = np.concatenate(self._rows) if self._rows else np.empty((0, 2), np.int64)
        self._rows, self._n_rows = [], 0
        # A restored record keeps its offset.
        source, n_records, target = runs[:, 0], runs[:, 1], runs[:, 0]
        if ends is not None:
            source, target = np.append(source, ends[0]), np.append(target, ends[1])
            n_records = np.append(n_records, 0)
        columns = [
            pa.repeat(topic_partition.topic, len(source)),
            pa.repeat(pa.scalar(topic_partition.partition, pa.int32()), len(source)),
            *map(pa.array, (source, n_records, target)),
        ]
        self._writer.write_table(pa.table(columns, schema=OFFSET_MAP_SCHEMA))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._writer.close()
        except OSError:
            if error is None:  # otherwise the disk was full before
                raise
