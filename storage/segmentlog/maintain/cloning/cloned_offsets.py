"""The offset map of a clone: that of a restoration, with the partition of the clone.

The rows of a partition of the source have rising offsets.  A row is a run of records whose offsets
follow each other, in one partition of the source and in one of the clone.  At the end of each
partition of the source there is a row without records for each partition of the clone that may
have its records: the ends of both logs.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import BinaryIO, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from segmentlog.errors import OptionError
from segmentlog.format.kernels.memory import Int32s, Int64s
from segmentlog.maintain.restoration.restored_offsets import OFFSET_MAP_SCHEMA
from segmentlog.store.durable import OutputFile

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

    def add_piece(self, piece: pa.RecordBatch, before: Int64s) -> None:
        """Take rows of another map, which counts from 0 in each partition of the clone.

        `before`: the offset that 0 is; int64 array, shape (n_target,).
        """
        targets = piece["target_partition"].to_numpy()
        moved = pa.array(piece["target_offset"].to_numpy() + before[targets])
        at = piece.schema.get_field_index("target_offset")
        table = pa.Table.from_batches([piece]).set_column(at, CLONED_MAP_SCHEMA.field(at), moved)
        self._hold(table.cast(CLONED_MAP_SCHEMA))

    def end(self, ends: Mapping[int, int], target_ends: Int64s, *, is_kept: bool) -> None:
        """Take the ends of all logs, by partition, after the last record.

        `is_kept`: whether records have stayed in the partition of their number.
        """
        for partition, end in ends.items():
            targets = np.array([partition]) if is_kept else np.arange(len(target_ends))
            lengths: Int64s = np.zeros(len(targets), np.int64)
            self._take(lengths + partition, lengths + end, lengths, target_ends[targets], targets)

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
        self._hold(pa.table(columns, schema=CLONED_MAP_SCHEMA))

    def _hold(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self._n_rows += len(rows)
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
            if error is None:
                self._write()
            self._writer.close()
        except OSError:
            if error is None:  # otherwise the disk was full before
                raise


@contextmanager
def map_piece(directory: str, number: int, topic: str) -> Iterator[ClonedOffsets]:
    """The piece of a map that a task writes; it appears when the block ends."""
    with OutputFile("offset_map", _place(directory, number)) as file:
        with ClonedOffsets(file.file, topic) as piece:
            yield piece
        file.finish()
        file.publish()


class MapPieces:
    """An offset map that is put together from the pieces of several tasks.

    `directory`: of the pieces, beside the map; it is removed when the block ends.  A block that
    ends without `publish` leaves no map.  Raises `OptionError` if the map cannot be there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._stack = ExitStack()
        with self._stack as stack:
            self._file = stack.enter_context(OutputFile("offset_map", path))
            beside, name = os.path.split(os.path.realpath(path))
            self.directory = stack.enter_context(
                TemporaryDirectory(prefix=f".{name}.pieces-", dir=beside)
            )
            self._stack = stack.pop_all()

    def join(
        self, topic: str, counts: Sequence[Int64s], bases: Int64s,
        ends: tuple[Mapping[int, int], Int64s], *, is_kept: bool,
    ) -> None:  # fmt: skip
        """Write the map from the pieces of all tasks, in their order, to the disk.

        `counts`: the records of each task by partition of the clone.  `bases`: the offsets of the
        first records.  `ends`, `is_kept`: see `ClonedOffsets.end`.  Raises `OptionError` if a
        piece is missing.
        """
        before = bases.copy()
        with ClonedOffsets(self._file.file, topic) as places:
            for number, n_records in enumerate(counts):
                path = _place(self.directory, number)
                try:
                    with pq.ParquetFile(path) as piece:
                        for rows in piece.iter_batches():
                            places.add_piece(rows, before)
                except FileNotFoundError as error:
                    accepted = (
                        "a worker has written this piece of the map, and it is not here: name a "
                        "file in a directory that all processes have at the same path"
                    )
                    raise OptionError("offset_map", path, accepted) from error
                before += n_records
            places.end(*ends, is_kept=is_kept)
        self._file.finish()  # a full disk is noticed before a record is visible

    def publish(self) -> None:
        """Give the map its name."""
        self._file.publish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


def _place(directory: str, number: int) -> str:
    return os.path.join(directory, f"{number}.parquet")
