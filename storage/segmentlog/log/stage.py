"""Staged batches: what a writing task leaves in the log directory for the commit to take.

A staged file's name begins with a letter and has no dash: a broker, which knows directories, and
files by the digits that their names begin with, passes over it.  It holds record batches only, one
extent after the other; an extent is what one call has written for one partition, and its base
offsets count from 0.
"""

import contextlib
import os
import secrets
from typing import NamedTuple

from segmentlog.files.durable import write_all
from segmentlog.kernels.memory import Bytes
from segmentlog.model import TopicPartition

__all__ = ["STAGE_SUFFIX", "Extent", "StageFile"]

STAGE_SUFFIX = ".stage"


class Extent(NamedTuple):
    """Batches of one partition, one behind the other in a staged file.

    Small and picklable: it travels from the writing task to the commit on the driver.
    """

    topic: str
    partition: int
    name: str  #: of the staged file, in the log directory
    start: int
    end: int
    n_records: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Whose batches they are."""
        return TopicPartition(self.topic, self.partition)


class StageFile:
    """The staged file of one task attempt, made when something is written to it.

    Parameters
    ----------
    directory : the log directory.
    token : of the job.
    task : number of the task, for people who look at the directory.
    """

    def __init__(self, directory: str, token: str, task: int) -> None:
        # A task that is tried again must not meet its own earlier attempt.
        self.name = f"segmentlog.{token}.{task}.{secrets.token_hex(4)}{STAGE_SUFFIX}"
        self._path = os.path.join(directory, self.name)
        self._descriptor = -1
        self._size = 0
        self._extents: list[Extent] = []

    def add(self, topic_partition: TopicPartition, batches: Bytes, n_records: int) -> None:
        """Write the batches of one partition; uint8 array, shape (n_bytes,)."""
        if self._descriptor < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o644)
        write_all(self._descriptor, batches.data, self._size)
        start, self._size = self._size, self._size + len(batches)
        self._extents.append(Extent(*topic_partition, self.name, start, self._size, n_records))

    def close(self, *, flush: bool) -> tuple[Extent, ...]:
        """What was written; with `flush` it is on the disk.

        Only the task can tell: what goes wrong when its pages are written back is reported once,
        to a descriptor that was open then, and not to the driver that reads the file later.
        """
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                if flush:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return tuple(self._extents)

    def discard(self) -> None:
        """Remove the file: the task has failed."""
        with contextlib.suppress(OSError):
            self.close(flush=False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
