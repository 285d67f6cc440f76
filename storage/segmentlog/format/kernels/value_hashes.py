"""Hashes of the values of a column, by which rows of a table are compared with records."""

from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.kernels.sketches import hash_of, signed
from segmentlog.native import kernel


@kernel
def hash_values(data: Bytes, ends: Int64s, hashes: Int64s) -> int:
    """Hash of each value of a column of bytes.

    Parameters
    ----------
    data : uint8 array, shape (n_bytes,); read only
    ends : int64 array, shape (n_rows + 1,); read only: byte at which each value begins, and the
        end of the last one; they do not fall, and lie in ``0..n_bytes``, checked by the caller
    hashes : int64 array, shape (n_rows,); written

    Returns
    -------
    n_rows
    """
    for row in range(hashes.shape[0]):
        hashes[row] = signed(hash_of(data, int(ends[row]), int(ends[row + 1])))
    return int(hashes.shape[0])
