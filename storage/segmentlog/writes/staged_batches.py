"""Read staged batches back, check each batch, and give it its place in the log."""

import contextlib
import os
from collections.abc import Iterator

import numpy as np

from segmentlog.errors import CorruptLogError, StagedFileError, UnsupportedFormatError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.encode import assign_offsets
from segmentlog.format.records.decoder import BatchScanner
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.log.windows import BatchWindows
from segmentlog.store.readable import open_file
from segmentlog.writes.extents import Extent

_WINDOW_BYTES = 8 << 20


@contextlib.contextmanager
def staged_errors() -> Iterator[None]:
    """Raise a `StagedFileError` for damage: no log is damaged, and running the job again helps.

    A newer format counts as damage, because this version has written the batches.
    """
    try:
        yield
    except (CorruptLogError, UnsupportedFormatError) as error:
        raise StagedFileError(error.path, error.finding) from error


def staged_batches(
    directory: str, extent: Extent, shift: int, leader_epoch: int
) -> Iterator[ScannedBatches]:
    """Batches of an extent as they will stand in the log, window by window.

    `shift`: is added to the base offset of each batch; see `Extent.shift_to`.  Yields batches with
    the offsets of the log, valid until the next step.  Raises `CorruptLogError` if the checksum of
    a staged batch is wrong.
    """
    path = os.path.join(directory, extent.name)
    scanner, windows = BatchScanner(path, 0), BatchWindows(_WINDOW_BYTES)
    with open_file(path, follow=False) as file:
        for batches in windows.batches(file.read_into, scanner, extent.start, extent.end):
            _place(batches, shift, leader_epoch)
            yield batches


def _place(batches: ScannedBatches, shift: int, leader_epoch: int) -> None:
    """Assign offsets like ``LogValidator.assignOffsetsNonCompressed``, and the leader epoch."""
    headers = batches.headers
    positions = np.ascontiguousarray(headers[:, layout.POSITION])
    assign_offsets(batches.buf, positions, shift, leader_epoch)
    headers[:, layout.BASE_OFFSET] += shift
    headers[:, layout.LAST_OFFSET] += shift
