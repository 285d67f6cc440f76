"""The offset map of a clone: that of a restoration, with the partition of the clone.

The rows of a partition of the source have rising offsets.  A row is a run of records whose offsets
follow each other, in one partition of the source and in one of the clone.  At the end of each
partition of the source there is a row without records for each partition of the clone that may
have its records: the ends of both logs.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import BinaryIO, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from segmentlog.format.kernels.memory import Int32s, Int64s
from segmentlog.maintain.restoration.restored_offsets import OFFSET_MAP_SCHEMA

CLONED_MAP_SCHEMA = OFFSET_MAP_SCHEMA.append(
    pa.field("target_partition", pa.int32(), nullable=False)
)

_Ints: TypeAlias = Int64s | Int32s

_MOST_ROWS = 1 << 18  #: of a row group


class ClonedOffsets:
    """Writes the map; the end of the file is written when the block ends.

    `topic`: of the source.  Raises `OSError` if the file cannot be written.
    """

    def __init__(self, file: BinaryIO, topic: str) -> None:
        self._writer = pq.ParquetWriter(
            file, CLONED_MAP_SCHEMA, compression="zstd", use_dictionary=["topic", "partition"],
            column_encoding={"source_offset": "DELTA_BINARY_PACKED",
                             "target_offset": "DELTA_BINARY_PACKED"},
        )  # fmt: skip
        self._topic = topic
        self._held: list[pa.Table] = []
        self._n_rows = 0

    def add(
        self, partitions: Int32s, offsets: Int64s, targets: Int32s, target_offsets: Int64s
    ) -> None:
        """Take records, in the order in which they are written; arrays of shape (n_records,)."""
        if not len(offsets):
            return
        order = np.argsort(partitions, kind="stable")
        columns = [each[order] for each in (partitions, offsets, targets, target_offsets)]
        steps = [np.diff(each) for each in columns]
        wanted = zip(steps, (0, 1, 0, 1), strict=True)
        goes_on = np.logical_and.reduce([step == each for step, each in wanted])
        begins = np.flatnonzero(np.concatenate([[True], ~goes_on]))
        lengths = np.diff(begins, append=len(order))
        old, old_offsets, new, new_offsets = (each[begins] for each in columns)
        self._take(old, old_offsets, lengths, new_offsets, new)

    def end(self, ends: Mapping[int, int], target_ends: Int64s, *, is_kept: bool) -> None:
        """Take the ends of all logs, by partition, after the last record.

        `is_kept`: whether records have stayed in the partition of their number.
        """
        for partition, end in ends.items():
            targets = np.array([partition]) if is_kept else np.arange(len(target_ends))
            lengths: Int64s = np.zeros(len(targets), np.int64)
            self._take(lengths + partition, lengths + end, lengths, target_ends[targets], targets)
        self._write()

    def _take(
        self, partitions: _Ints, offsets: _Ints, lengths: Int64s, target_offsets: _Ints,
        targets: _Ints,
    ) -> None:  # fmt: skip
        columns = [
            pa.repeat(self._topic, len(offsets)),
            pa.array(partitions, pa.int32()),
            pa.array(offsets),
            pa.array(lengths),
            pa.array(target_offsets),
            pa.array(targets, pa.int32()),
        ]
        self._held.append(pa.table(columns, schema=CLONED_MAP_SCHEMA))
        self._n_rows += len(offsets)
        if self._n_rows >= _MOST_ROWS:
            self._write()

    def _write(self) -> None:
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held))
            self._held, self._n_rows = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._writer.close()
        except OSError:
            if error is None:  # otherwise the disk was full before
                raise
