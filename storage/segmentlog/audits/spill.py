"""A temporary file for arrays that are too many for memory, and lists of ranges that use it."""

import os
import tempfile
import weakref
from collections.abc import Iterator

import numpy as np

from segmentlog.format.kernels.memory import Int64s
from segmentlog.store.system_errors import storage_errors

_MOST_IN_MEMORY = 1 << 20  # ranges of all lists together: 16 MiB


class SpillFile:
    """Arrays of int64 in a temporary file, which is made when it is needed and has no name.

    `directory`: where it is made; by default the system's directory for temporary files.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._descriptor = -1
        self._end = 0
        self.n_in_memory = 0  # ranges of all lists

    def write(self, array: Int64s) -> int:
        """Append an array; return its place.

        Raises `StorageError` if the disk is full.
        """
        with storage_errors(self._directory or tempfile.gettempdir()):
            if self._descriptor < 0:
                with tempfile.TemporaryFile(dir=self._directory) as file:
                    self._descriptor = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._descriptor)
            at, data = self._end, np.ascontiguousarray(array).data.cast("B")
            while data:
                data = data[os.pwrite(self._descriptor, data, self._end) :]
                self._end = at + array.nbytes - len(data)
            return at

    def mapped(self, at: int, length: int) -> Int64s:
        """An array of the file, mapped into memory."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            return np.asarray(np.memmap(file, np.int64, "r", at, (length,)))

    def read(self, at: int, length: int) -> Int64s:
        """An array of the file."""
        with storage_errors(self._directory or tempfile.gettempdir()):
            return np.frombuffer(os.pread(self._descriptor, 8 * length, at), np.int64)


class RangeList:
    """Ranges of offsets in order, in memory or in a file."""

    def __init__(self, spill: SpillFile) -> None:
        self._spill = spill
        self._held: list[Int64s] = []
        self._n_held = 0
        self._parts: list[tuple[int, int]] = []  # places in the file, and lengths

    def add(self, first: Int64s, end: Int64s) -> None:
        """Take the next ranges."""
        self._held.append(np.stack([first, end], axis=1))
        self._n_held += len(first)
        self._spill.n_in_memory += len(first)
        # A list that has little gives the file little, and memory little.
        if self._spill.n_in_memory > _MOST_IN_MEMORY and self._n_held >= _MOST_IN_MEMORY >> 8:
            held = np.concatenate(self._held).ravel()
            self._parts.append((self._spill.write(held), len(held)))
            self._drop()

    def _drop(self) -> None:
        self._spill.n_in_memory -= self._n_held
        self._held, self._n_held = [], 0

    def clear(self) -> None:
        """Forget all ranges."""
        self._drop()
        self._parts = []

    def __iter__(self) -> Iterator[Int64s]:
        """The ranges, many at a time: arrays of first offsets and ends, shape (n_ranges, 2)."""
        for at, length in self._parts:
            yield self._spill.read(at, length).reshape(-1, 2)
        if self._held:
            yield np.concatenate(self._held)
