"""A file that shows where each restored or cloned record is: the offset map, in Parquet.

A row is a run of records whose offsets follow each other, at the source and at the target:
`n_records` records, the first of them at `source_offset` of the old log and at `target_offset` of
the new one.  The last row of a partition has no records: it is the end of both logs.  So a row
stands for each gap between records, and not for each record.

An offset of the old log belongs to the first row that ends after it, or else to the last row.  In
the new log it is ``target_offset + max(offset - source_offset, 0)``, and in the last row
``target_offset``: an offset without a record becomes that of the next record.

The map of a clone also has the partition of the clone.  Its rows of a partition of the source have
rising offsets, and at the end stands a row without records for each partition of the clone that
may have records of it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory, TemporaryFile
from typing import BinaryIO, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from segmentlog.errors import OptionError
from segmentlog.format.kernels.memory import Int32s, Int64s
from segmentlog.store.durable import OutputFile

OFFSET_MAP_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("source_offset", pa.int64(), nullable=False),
        pa.field("n_records", pa.int64(), nullable=False),
        pa.field("target_offset", pa.int64(), nullable=False),
    ]
)
CLONED_MAP_SCHEMA = OFFSET_MAP_SCHEMA.append(
    pa.field("target_partition", pa.int32(), nullable=False)
)

#: Ends of the logs of a topic, by partition.
_Ends: TypeAlias = Mapping[int, int] | Int64s

_NUMBERS = CLONED_MAP_SCHEMA.names[1:]
_MOST_ROWS = 1 << 18  #: of a row group


class OffsetMapWriter:
    """Writes the rows of an offset map; the end of the file is written when the block ends.

    Raises `OSError` if the file cannot be written.
    """

    def __init__(self, file: BinaryIO, schema: pa.Schema = OFFSET_MAP_SCHEMA) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=["topic", "partition"],
            column_encoding={
                "source_offset": "DELTA_BINARY_PACKED",
                "target_offset": "DELTA_BINARY_PACKED",
            },
        )
        self._topic = ""
        self._rows: list[Int64s] = []  #: of the topic, shape (n_rows, 5); the last may continue
        self._n_rows = 0

    def add(
        self,
        topic: str,
        partitions: Int32s,
        offsets: Int64s,
        targets: Int32s,
        target_offsets: Int64s,
    ) -> None:
        """Take records, in the order in which they are written; arrays of shape (n_records,)."""
        if not len(offsets):
            return
        order = np.argsort(partitions, kind="stable")
        columns = [each[order] for each in (partitions, offsets, targets, target_offsets)]
        wanted = zip(map(np.diff, columns), (0, 1, 0, 1), strict=True)
        goes_on = np.logical_and.reduce([step == each for step, each in wanted])
        begins = np.flatnonzero(np.concatenate([[True], ~goes_on]))
        lengths = np.diff(begins, append=len(order))
        old, old_offsets, new, new_offsets = (each[begins] for each in columns)
        self._take(topic, np.column_stack([old, old_offsets, lengths, new_offsets, new]))

    def add_piece(self, topic: str, piece: pa.RecordBatch, before: Int64s) -> None:
        """Take rows of another map, which counts from 0 in each partition of the clone.

        `before`: the offset that 0 is; int64 array, shape (n_target,).
        """
        if len(piece):
            rows = np.column_stack([piece[each].to_numpy() for each in _NUMBERS])
            rows[:, 3] += before[rows[:, 4]]
            self._take(topic, rows)

    def flush(self) -> None:
        """Write all rows that were taken."""
        self._write()

    def add_rows(self, topic: str, rows: Int64s) -> None:
        """Take rows of another map, of records that keep their offsets; shape (n_rows, 5)."""
        for begin in range(0, len(rows), _MOST_ROWS):
            self._take(topic, rows[begin : begin + _MOST_ROWS])

    def end(
        self, topic: str, ends: Mapping[int, int], target_ends: _Ends, *, is_kept: bool = True
    ) -> None:
        """Take the ends of logs, after their last records.

        `is_kept`: whether records have stayed in the partition of their number.
        """
        for partition, end in ends.items():
            targets = [partition] if is_kept else range(len(target_ends))
            rows = [(partition, end, 0, target_ends[each], each) for each in targets]
            self._take(topic, np.array(rows, np.int64))

    def _take(self, topic: str, rows: Int64s) -> None:
        if topic != self._topic:
            self._write()
            self._topic = topic
        if self._rows:
            last, first = self._rows[-1][-1], rows[0]
            partition, offset, n_records, target_offset, target = last.tolist()
            after = [partition, offset + n_records, target_offset + n_records, target]
            if n_records and first[2] and first[[0, 1, 3, 4]].tolist() == after:
                last[2] += first[2]
                rows = rows[1:]
        if len(rows):
            self._rows.append(rows)
            self._n_rows += len(rows)
        if self._n_rows > _MOST_ROWS:
            self._write(n_kept=1)

    def _write(self, n_kept: int = 0) -> None:
        """Write all rows but the last ones."""
        if not self._rows:
            return
        rows = np.concatenate(self._rows)
        self._rows, self._n_rows = [rows[-1:].copy()] * n_kept, n_kept
        rows = rows[: len(rows) - n_kept]
        columns = dict(zip(_NUMBERS, rows.T, strict=True))
        found = {"topic": pa.repeat(self._topic, len(rows)), **columns}
        self._writer.write_table(pa.table(found, schema=self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                self._write()
            self._writer.close()
        except OSError:
            if error is None:  # otherwise the disk was full before
                raise


@contextmanager
def map_piece(directory: str, number: int) -> Iterator[OffsetMapWriter]:
    """The piece of a clone's map that a task writes; it appears when the block ends."""
    with OutputFile("offset_map", _place(directory, number)) as file:
        with OffsetMapWriter(file.file, CLONED_MAP_SCHEMA) as piece:
            yield piece
        file.finish()
        file.publish()


class MapPart:
    """The rows of one topic, before they are part of a map: a topic that fails has none."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.places, self._is_closed = file, OffsetMapWriter(file), False

    def join(self, topic: str, whole: OffsetMapWriter) -> None:
        """Add all rows to the map."""
        self.close()
        self._file.seek(0)
        with pq.ParquetFile(self._file) as part:
            for rows in part.iter_batches():
                numbers = [rows[name].to_numpy() for name in _NUMBERS[:-1]]
                whole.add_rows(topic, np.column_stack([*numbers, numbers[0]]))
        whole.flush()

    def close(self, error: BaseException | None = None) -> None:
        """Write the last rows, unless there is an error; once."""
        if not self._is_closed:
            self._is_closed = True
            self.places.__exit__(None, error, None)


@contextmanager
def map_part() -> Iterator[MapPart]:
    """A part of a map of restored records, in a file without a name."""
    with TemporaryFile() as file:
        part = MapPart(file)
        try:
            yield part
        except BaseException as error:
            part.close(error)
            raise
        part.close()


class MapPieces:
    """The map of a clone that is put together from the pieces of several tasks.

    `directory`: of the pieces, beside the map; it is removed when the block ends.  A block that
    ends without `publish` leaves no map.  Raises `OptionError` if the map cannot be there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with ExitStack() as stack:
            self._file = stack.enter_context(OutputFile("offset_map", path))
            beside, name = os.path.split(os.path.realpath(path))
            self.directory = stack.enter_context(
                TemporaryDirectory(prefix=f".{name}.pieces-", dir=beside)
            )
            self._stack = stack.pop_all()

    def join(
        self,
        topic: str,
        counts: Sequence[Int64s],
        bases: Int64s,
        ends: tuple[Mapping[int, int], Int64s],
        *,
        is_kept: bool,
    ) -> None:
        """Write the map from the pieces of all tasks, in their order, to the disk.

        `counts`: the records of each task by partition of the clone.  `bases`: the offsets of the
        first records.  `ends`, `is_kept`: see `OffsetMapWriter.end`.  Raises `OptionError` if a
        piece is missing.
        """
        before = bases.copy()
        with OffsetMapWriter(self._file.file, CLONED_MAP_SCHEMA) as places:
            for number, n_records in enumerate(counts):
                path = _place(self.directory, number)
                try:
                    with pq.ParquetFile(path) as piece:
                        for rows in piece.iter_batches():
                            places.add_piece(topic, rows, before)
                except FileNotFoundError as error:
                    accepted = (
                        "a worker has written this piece of the map, and it is not here: name a "
                        "file in a directory that all processes have at the same path"
                    )
                    raise OptionError("offset_map", path, accepted) from error
                before += n_records
            places.end(topic, *ends, is_kept=is_kept)
        self._file.finish()  # a full disk is noticed before a record is visible

    def publish(self) -> None:
        """Give the map its name."""
        self._file.publish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _place(directory: str, number: int) -> str:
    return os.path.join(directory, f"{number}.parquet")
