"""Leader epochs, each with the offset at which it began (``LeaderEpochFileCache``)."""

import contextlib
import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from segmentlog.errors import CorruptCheckpointError, CorruptLogError, UnsupportedFormatError
from segmentlog.format.kernels import layout
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT
from segmentlog.log.checkpoint import read_leader_epochs, write_leader_epochs

if TYPE_CHECKING:
    from segmentlog.format.kernels.memory import Int64s
    from segmentlog.format.records.header import ScannedBatches
    from segmentlog.log.segment import Segment

logger = logging.getLogger(__name__)


class EpochStarts:
    """The ``leader-epoch-checkpoint`` of a partition, to be cut and updated.

    `partition_path`: the partition's directory.  `error`: the damage of the file; None if it can
    be read, or is missing.
    """

    def __init__(self, partition_path: str, *, warns: bool = True) -> None:
        self.path = os.path.join(partition_path, LEADER_EPOCH_CHECKPOINT)
        self.error: CorruptCheckpointError | None = None
        self._read: tuple[tuple[int, int], ...] | None = None
        try:
            found = read_leader_epochs(self.path)
            reason = ""
            if any(min(each) < 0 for each in found):
                reason = "it has an epoch or an offset below 0"
            elif any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(found)):
                reason = "its epochs and offsets do not rise from line to line"
            if reason:
                remedy = "segmentlog recover builds it again from the log"
                raise CorruptCheckpointError(self.path, 3, reason, remedy)
            self._read = found
        except CorruptCheckpointError as error:
            if warns:
                logger.warning("%s", error)
            self.error = error
        self._starts = list(self._read or ())

    @property
    def are_known(self) -> bool:
        """Whether the file has entries."""
        return bool(self._read)

    def are_lost(self, segments: "Sequence[Segment]") -> bool:
        """Whether the file cannot be read, or has no entries although the log has epochs."""
        if self._read:
            return False
        if self.error is not None:
            return True
        for segment in reversed(segments):
            with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
                for placed in segment.headers(0):
                    return placed.header.magic == layout.MAGIC and placed.header.leader_epoch >= 0
        return False

    def contradiction(self, batches: "ScannedBatches") -> tuple[int, int, int] | None:
        """The first batch whose epoch is not that of the file: its offset, and both epochs."""
        # Nothing is said about offsets below the first entry: older formats have no epochs.
        if not self._read:
            return None
        headers, epochs = _epochs_of(batches)
        offsets = headers[:, layout.BASE_OFFSET]
        known, starts = np.array(self._read, np.int64).T
        entry = np.searchsorted(starts, offsets, "right") - 1
        is_wrong = (entry >= 0) & (epochs >= 0) & (known[entry] != epochs)
        if not is_wrong.any():
            return None
        row = int(np.argmax(is_wrong))
        return int(offsets[row]), int(epochs[row]), int(known[entry[row]])

    def contradiction_in(self, segments: "Sequence[Segment]") -> tuple[int, int, int] | None:
        """The first contradiction in the good batches of some segments, whose headers are read."""
        from segmentlog.log.batches import walk_batches  # the compiled kernels load here

        if segments and self._read:
            with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
                for walked in walk_batches(segments, segments[0].base_offset):
                    if found := self.contradiction(walked.scanned):
                        return found
        return None

    def forget(self) -> None:
        """Begin again without any epoch."""
        self._starts = []

    def follow_all(self, segments: "Sequence[Segment]") -> None:
        """Take the epochs that begin in some whole segments, whose headers are read."""
        from segmentlog.log.batches import walk_batches  # the compiled kernels load here

        if segments:
            for walked in walk_batches(segments, segments[0].base_offset, is_whole=True):
                self.follow(walked.scanned)

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
        headers, epochs = _epochs_of(batches)
        highest = np.maximum.accumulate(np.concatenate(([self.last], epochs)))
        for row in np.flatnonzero(highest[1:] > highest[:-1]).tolist():
            self._starts.append((int(highest[row + 1]), int(headers[row, layout.BASE_OFFSET])))

    def write(self, *, is_forced: bool = False) -> bool:
        """Replace the file if its entries differ; returns whether it was replaced.

        `is_forced`: whether its text is also wrong if its entries are right.
        """
        is_changed = is_forced or self._read != tuple(self._starts)
        if is_changed:
            write_leader_epochs(self.path, self._starts)
        return is_changed


def _epochs_of(batches: "ScannedBatches") -> "tuple[Int64s, Int64s]":
    """Headers of the batches that have leader epochs, and these epochs."""
    headers = batches.headers[batches.headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK == 0]
    epochs: Int64s = np.zeros(len(headers), np.int64)
    for i in range(4):
        at = headers[:, layout.POSITION] + layout.LEADER_EPOCH_AT + i
        epochs = epochs << 8 | batches.buf[at]
    return headers, epochs.astype(np.int32).astype(np.int64)
