"""The batches of a staged file as a table beside it: the commit then reads few of their headers.

A file of 1 GB has some eight thousand batches.  Their headers stand 128 KiB apart, so each one
costs the commit a read of its own: a page from a disk, or a request to a server.  The task that
writes the batches has all of these fields at hand, and leaves them in one small file.

A table is a help and no source of truth.  It is not synced, and a file without a table, or with a
table that is damaged or does not fit, has its headers read instead.
"""

import logging
import os
import struct

import numpy as np
from numpy.typing import NDArray

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.crc32c import checksum
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.store.durable import write_new_file
from segmentlog.store.readable import open_file
from segmentlog.writes.extents import Extent

logger = logging.getLogger(__name__)

#: Batches that are smaller than this on average are copied, and need no table.
LEAST_BATCH_BYTES = 8 << 10

#: One batch, as it stands in the staged file.
BATCH = np.dtype(
    [("base_offset", "<i8"), ("max_timestamp", "<i8"), ("size", "<i4"), ("last_delta", "<i4")]
)

#: The fields of a batch header from which a row is made, and those that identify it.
_FIELDS = {
    "base_offset": (layout.BASE_OFFSET_AT, ">i8"),
    "batch_length": (layout.BATCH_LENGTH_AT, ">i4"),
    "leader_epoch": (layout.LEADER_EPOCH_AT, ">i4"),
    "magic": (layout.MAGIC_AT, "u1"),
    "last_offset_delta": (layout.LAST_OFFSET_DELTA_AT, ">i4"),
    "max_timestamp": (layout.MAX_TIMESTAMP_AT, ">i8"),
}
HEADER = np.dtype(
    {
        "names": [*_FIELDS],
        "formats": [kind for _, kind in _FIELDS.values()],
        "offsets": [at for at, _ in _FIELDS.values()],
        "itemsize": layout.HEADER_BYTES,
    }
)

TABLE_FORMAT = 1
_HEAD = struct.Struct("<4sIQQ")  #: `_MARK`, format, bytes of the staged file, number of batches
_MARK = b"slbt"
_SUM = struct.Struct("<I")  #: CRC-32C of everything before it, and of the staged file's name

#: Headers of a file that are compared with its table.
_N_COMPARED = 16


def table_name(name: str) -> str:
    """Name of a staged file's table; it ends like the file's, and is swept with it."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.batches.{suffix}"


class BatchTable:
    """The table of a file that a task is writing."""

    def __init__(self) -> None:
        self._rows: list[NDArray[np.void]] = []
        self._n_bytes = self._n_rows = 0
        self._is_kept = True

    def add(self, batches: EncodedBatches, shift: int) -> None:
        """Add batches that are appended to the file; `shift` was added to their base offsets.

        A file of small batches keeps no table, which would take memory for nothing.
        """
        self._n_bytes += len(batches.buffer)
        self._n_rows += len(batches.table)
        if self._n_rows * LEAST_BATCH_BYTES > self._n_bytes:
            self._is_kept = False
            self._rows.clear()
        if self._is_kept:
            rows = np.empty(len(batches.table), BATCH)
            rows["base_offset"] = batches.base_offsets + shift
            rows["max_timestamp"] = batches.max_timestamps
            rows["size"] = batches.sizes
            rows["last_delta"] = batches.last_offset_deltas
            self._rows.append(rows)

    def write(self, directory: str, name: str) -> str | None:
        """Write the table of the file `name`; returns its path, or None if there is none."""
        if not self._rows:
            return None
        head = _HEAD.pack(_MARK, TABLE_FORMAT, self._n_bytes, self._n_rows)
        data = head + np.concatenate(self._rows).tobytes()
        path = os.path.join(directory, table_name(name))
        write_new_file(path, data + _SUM.pack(_checksum(data, name)), sync=False)
        self._rows.clear()
        return path


def read_table(directory: str, extent: Extent) -> NDArray[np.void] | None:
    """Rows of kind `BATCH` for the batches of a staged file, or None to read its headers.

    The table has to be whole, to be that of this file, to fit the extent, and to fit some headers
    of the file.
    """
    path = os.path.join(directory, table_name(extent.name))
    try:
        with open_file(path, follow=False) as file:
            data = file.read(0, file.status().size)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning(
            "%s cannot be read (%s): the headers of all batches are read instead", path, error
        )
        return None
    rows = _rows_of(data, extent)
    if rows is None or not _fits_file(directory, extent, rows):
        logger.warning(
            "%s is not the table of its file: the headers of all batches are read instead", path
        )
        return None
    return rows


def are_in_order(rows: NDArray[np.void], extent: Extent) -> NDArray[np.bool_]:
    """Flags of the batches that begin and end where the extent and their neighbours say."""
    first: NDArray[np.int64] = rows["base_offset"].astype(np.int64)
    last = first + rows["last_delta"]
    is_right = np.asarray(first <= last)
    is_right[0] &= first[0] == extent.staged_from
    is_right[1:] &= last[:-1] < first[1:]
    is_right[-1] &= last[-1] + 1 == extent.end_offset(extent.staged_from)
    return is_right


def _checksum(data: bytes, name: str) -> int:
    bytes_of = np.frombuffer(name.encode() + data, np.uint8)
    return int(checksum(bytes_of, 0, len(bytes_of)))


def _rows_of(data: bytes, extent: Extent) -> NDArray[np.void] | None:
    """The rows of a whole table of the extent's file; None for anything else."""
    if len(data) < _HEAD.size + BATCH.itemsize + _SUM.size:
        return None
    mark, number, n_bytes, n_rows = _HEAD.unpack_from(data)
    body, found = data[: -_SUM.size], _SUM.unpack(data[-_SUM.size :])[0]
    if (mark, number, n_bytes) != (_MARK, TABLE_FORMAT, extent.end):
        return None
    if len(body) != _HEAD.size + n_rows * BATCH.itemsize or found != _checksum(body, extent.name):
        return None
    rows = np.frombuffer(body, BATCH, offset=_HEAD.size)
    sizes = rows["size"].astype(np.int64)
    is_whole = sizes.min() >= layout.HEADER_BYTES and sizes.sum() == extent.end
    return rows if is_whole and are_in_order(rows, extent).all() else None


def _fits_file(directory: str, extent: Extent, rows: NDArray[np.void]) -> bool:
    """Whether the file has its size, and some of its headers have the fields of their rows."""
    ends = np.cumsum(rows["size"], dtype=np.int64)
    numbers = np.unique(np.linspace(0, len(rows) - 1, _N_COMPARED).astype(np.int64))
    compared = rows[numbers]
    with open_file(os.path.join(directory, extent.name), follow=False) as file:
        if file.status().size != extent.end:
            return False
        found = b"".join(
            file.read(position, layout.HEADER_BYTES)
            for position in (ends[numbers] - compared["size"]).tolist()
        )
    if len(found) != len(numbers) * layout.HEADER_BYTES:
        return False
    headers = np.frombuffer(found, HEADER)
    return bool(
        (headers["base_offset"] == compared["base_offset"]).all()
        and (headers["batch_length"] == compared["size"] - layout.LOG_OVERHEAD).all()
        and (headers["leader_epoch"] == extent.staged_epoch).all()
        and (headers["magic"] == layout.MAGIC).all()
        and (headers["last_offset_delta"] == compared["last_delta"]).all()
        and (headers["max_timestamp"] == compared["max_timestamp"]).all()
    )
