"""Trivial streams in Python: a source of prepared Arrow batches, and sinks without a log."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from segmentlog_bench_ipc import SCHEMA

__all__ = ["TrivialSource"]

Offset = dict[str, int]


class PreparedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Yields some record batches of a mapped Arrow file in each micro-batch, in one task.

    Parameters
    ----------
    file : path of the file.
    n_at_once : record batches of a micro-batch.
    """

    def __init__(self, file: str, n_at_once: int) -> None:
        self._file, self._n_at_once = file, n_at_once
        with pa.memory_map(file) as mapped:
            self._n_batches = pa.ipc.open_file(mapped).num_record_batches

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing changes: the file has an end."""

    def initialOffset(self) -> Offset:
        return {"next": 0}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return {"next": min(start["next"] + self._n_at_once, self._n_batches)}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [InputPartition((start["next"], end["next"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self._file) as mapped:
            file = pa.ipc.open_file(mapped)
            for number in range(*partition.value):
                yield file.get_batch(number)


class ReceivingWriter(DataSourceStreamArrowWriter):
    """Accepts all rows, and keeps none."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Nothing is to be kept."""

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Nothing is to be removed."""


class WritingWriter(ReceivingWriter):
    """Writes the bytes of all columns to a file of each task and syncs it: the least of a sink.

    Parameters
    ----------
    path : directory of the files.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        Path(self._path).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._path, delete=False) as file:
            for batch in iterator:
                for column in batch.columns:
                    for buffer in filter(None, column.buffers()):
                        file.write(buffer)
            file.flush()
            os.fsync(file.fileno())
        return WriterCommitMessage()


class TrivialSource(DataSource):
    """``format("bench_stream")``.

    A source has the options ``file`` and ``atOnce``.  A sink with a path writes.
    """

    @classmethod
    def name(cls) -> str:
        return "bench_stream"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> PreparedReader:
        return PreparedReader(self.options["file"], int(self.options["atOnce"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> ReceivingWriter:
        path = self.options.get("path")
        return WritingWriter(path) if path else ReceivingWriter()
