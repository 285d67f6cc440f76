"""Leader epochs, each with the offset at which it began (``LeaderEpochFileCache``).

Reading and cutting them compiles nothing.
"""

import logging
import os
from typing import TYPE_CHECKING

import numpy as np

from segmentlog.errors import CorruptCheckpointError
from segmentlog.kernels import layout
from segmentlog.layout.checkpoint import read_leader_epochs, write_leader_epochs
from segmentlog.names import LEADER_EPOCH_CHECKPOINT

if TYPE_CHECKING:
    from segmentlog.kernels.memory import Int64s
    from segmentlog.records.scanned_batches import ScannedBatches

__all__ = ["EpochStarts"]

logger = logging.getLogger(__name__)


class EpochStarts:
    """The ``leader-epoch-checkpoint`` of a partition, to be cut and updated.

    Parameters
    ----------
    partition_path : the partition's directory.
    """

    def __init__(self, partition_path: str) -> None:
        self._path = os.path.join(partition_path, LEADER_EPOCH_CHECKPOINT)
        try:
            self._read: tuple[tuple[int, int], ...] | None = read_leader_epochs(self._path)
        except CorruptCheckpointError as error:
            logger.warning("%s; it is built again from the log", error)
            self._read = None
        self._starts = list(self._read or ())

    @property
    def last(self) -> int:
        """The last epoch, or -1."""
        return self._starts[-1][0] if self._starts else -1

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that begin at or after the log end."""
        self._starts = [each for each in self._starts if each[1] < end_offset]

    def truncate_from_start(self, log_start: int) -> None:
        """Forget epochs below the log start; the epoch of the log start begins there."""
        below = [each for each in self._starts if each[1] <= log_start]
        if below:
            self._starts[: len(below)] = [(below[-1][0], log_start)]

    def follow(self, batches: "ScannedBatches") -> None:
        """Take the epochs that begin in some batches."""
        is_known = batches.headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK == 0
        headers = batches.headers[is_known]
        epochs: Int64s = np.zeros(len(headers), np.int64)
        for i in range(4):
            at = headers[:, layout.POSITION] + layout.LEADER_EPOCH_AT + i
            epochs = epochs << 8 | batches.buf[at]
        highest = np.maximum.accumulate(np.concatenate(([self.last], epochs.astype(np.int32))))
        for row in np.flatnonzero(highest[1:] > highest[:-1]).tolist():
            self._starts.append((int(highest[row + 1]), int(headers[row, layout.BASE_OFFSET])))

    def write(self) -> bool:
        """Replace the file if its contents differ; returns whether they did."""
        is_changed = self._read != tuple(self._starts)
        if is_changed:
            write_leader_epochs(self._path, self._starts)
        return is_changed
