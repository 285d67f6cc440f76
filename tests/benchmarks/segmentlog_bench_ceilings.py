"""Ceilings of any Python sink: one only counts the rows, one only writes their bytes.

A third one does what no log can leave out: it copies the bytes together, computes their checksum,
and writes them.
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import crc32c
import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

_WRITE_BYTES = 2 << 20  # at once, as tasks of segmentlog stage
_MOST_PIECES = 1000  # of one writev


@dataclass
class Counted(WriterCommitMessage):
    """The count of one task."""

    rows: int


class CountingSource(DataSource):
    """``frame.write.format("bench_count").option("directory", "a")``."""

    @classmethod
    def name(cls):
        return "bench_count"

    def writer(self, schema, overwrite):
        return CountingWriter(self.options["directory"])


class CountingWriter(DataSourceArrowWriter):
    """A writer that leaves the sum in ``counts.json``: its driver's side is another process."""

    def __init__(self, directory):
        self.directory = directory

    def write(self, iterator):
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages):
        Path(self.directory, "counts.json").write_text(json.dumps(sum(m.rows for m in messages)))


class CopyingSource(CountingSource):
    """``bench_copy``, a sink that writes the bytes of all columns to a file for each task."""

    @classmethod
    def name(cls):
        return "bench_copy"

    def writer(self, schema, overwrite):
        return CopyingWriter(self.options["directory"])


class CopyingWriter(CountingWriter):
    """A writer without encoding and without a commit."""

    @staticmethod
    def put(file, buffers):
        _write(file, buffers)

    def write(self, iterator):
        rows = size = 0
        held = []
        file, _ = tempfile.mkstemp(dir=self.directory)
        for batch in iterator:
            rows += batch.num_rows
            buffers = [each for column in batch.columns for each in column.buffers() if each]
            held += buffers
            size += sum(each.size for each in buffers)
            if size >= _WRITE_BYTES:
                self.put(file, held)
                held, size = [], 0
        self.put(file, held)
        os.close(file)
        return Counted(rows)


class CheckedSource(CountingSource):
    """``bench_checked``, which also copies the bytes together, and computes their CRC-32C."""

    @classmethod
    def name(cls):
        return "bench_checked"

    def writer(self, schema, overwrite):
        return CheckedWriter(self.options["directory"])


class CheckedWriter(CopyingWriter):
    """A writer with a checksum, still without encoding and without a commit."""

    @staticmethod
    def put(file, buffers):
        joined = np.empty(sum(each.size for each in buffers), np.uint8)
        at = 0
        for each in buffers:
            joined[at : at + each.size] = np.frombuffer(each, np.uint8)
            at += each.size
        crc32c.crc32c(joined.data)
        _write(file, [joined])


def _write(file, buffers):
    for at in range(0, len(buffers), _MOST_PIECES):
        pieces = buffers[at : at + _MOST_PIECES]
        if os.writev(file, pieces) != sum(memoryview(each).nbytes for each in pieces):
            raise OSError("the disk is full")
