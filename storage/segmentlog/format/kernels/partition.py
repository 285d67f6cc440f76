"""The partition of each row, and the rows of each partition together."""

from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.memory import Bytes, Int32s, Int64s, load_u8, load_u32
from segmentlog.format.kernels.source import SourceArrays, is_null, length_of
from segmentlog.native import internal, kernel

_SEED, _M, _LOW = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


@internal
def murmur2(data: Bytes, start: int, end: int) -> int:
    """Hash of ``data[start:end]``, from 0 to 2**32 - 1: Java's int, unsigned.

    Parameters
    ----------
    data : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range; ``0 <= start <= end <= n_bytes``, checked by the caller
    """
    # The products of numbers of 32 bits with `_M`, which has 31, fit a signed word of 64.
    mixed = _SEED ^ (end - start)
    at = start
    while at + 4 <= end:
        word = (load_u32(data, at) * _M) & _LOW
        word = ((word ^ (word >> 24)) * _M) & _LOW
        mixed = ((mixed * _M) & _LOW) ^ word
        at += 4
    if at < end:
        if at + 2 < end:
            mixed ^= load_u8(data, at + 2) << 16
        if at + 1 < end:
            mixed ^= load_u8(data, at + 1) << 8
        mixed = ((mixed ^ load_u8(data, at)) * _M) & _LOW
    mixed = ((mixed ^ (mixed >> 13)) * _M) & _LOW
    return mixed ^ (mixed >> 15)


# The int64 array that `choose_partitions` keeps between calls.
STICKY_PARTITION = 0  #: the partition that rows without a key go to at present
STICKY_BYTES = 1  #: about how many bytes have gone there
N_STICKY = 2

#: Approximate bytes of a record besides `row_bytes`: its length, attributes and deltas.
_RECORD_OVERHEAD = 6
_POSITIVE = 0x7FFFFFFF


@kernel
def choose_partitions(
    source: SourceArrays,
    explicit: Int32s,
    explicit_valid: Bytes,
    first_bit: int,
    n_partitions: int,
    batch_size: int,
    sticky: Int64s,
    partitions: Int32s,
) -> tuple[int, int]:
    """Partition of each row: the named one, or that of the key, or the sticky one.

    Rows without a key stay with a partition until about `batch_size` bytes have gone there, as in
    Kafka's uniform sticky partitioner (KIP-480, KIP-794).  Then the partition with the next number
    follows, not a random one: a task that is run again makes the same choices.

    Parameters
    ----------
    source : the columns; read only
    explicit : int32 array, shape (n_rows,), or of length 0 where no row names its partition
    explicit_valid : uint8 array; bit ``first_bit + row`` is clear if a row names no partition; of
        length 0 if every row names one
    n_partitions : of the topic
    batch_size : bytes that make a batch
    sticky : int64 array, shape (`N_STICKY`,); read and written
    partitions : int32 array, shape (n_rows,); written

    Returns
    -------
    status, row : `OK` and the number of rows, or the fault of a row
    """
    for row in range(partitions.shape[0]):
        if explicit.shape[0] > 0 and not is_null(explicit_valid, first_bit + row):
            if not 0 <= explicit[row] < n_partitions:
                return st.BAD_PARTITION, row
            partitions[row] = explicit[row]
            continue
        length = length_of(source.keys, row)
        if length >= 0:  # an empty key is a key
            start = int(source.keys.ends[row])
            hashed = murmur2(source.keys.data, start, start + length)
            partitions[row] = (hashed & _POSITIVE) % n_partitions
            continue
        partitions[row] = sticky[STICKY_PARTITION]
        sticky[STICKY_BYTES] += _RECORD_OVERHEAD + source.row_bytes[row]
        if sticky[STICKY_BYTES] >= batch_size:
            sticky[STICKY_PARTITION] = (sticky[STICKY_PARTITION] + 1) % n_partitions
            sticky[STICKY_BYTES] = 0
    return st.OK, partitions.shape[0]


@kernel
def group_rows(partitions: Int32s, starts: Int64s, rows: Int64s) -> None:
    """Sort the rows by partition, keeping their order within each: a counting sort.

    Parameters
    ----------
    partitions : int32 array, shape (n_rows,); read only; each from 0 to ``n_partitions - 1``,
        checked by the caller
    starts : int64 array, shape (n_partitions + 1,); written: partition ``p`` has
        ``rows[starts[p] : starts[p + 1]]``
    rows : int64 array, shape (n_rows,); written
    """
    starts[:] = 0
    for row in range(partitions.shape[0]):
        starts[partitions[row] + 1] += 1
    for partition in range(1, starts.shape[0]):
        starts[partition] += starts[partition - 1]
    # The start of each partition moves through it, to the start of the next one …
    for row in range(partitions.shape[0]):
        partition = partitions[row]
        rows[starts[partition]] = row
        starts[partition] += 1
    # … and is then moved back.
    for partition in range(starts.shape[0] - 1, 0, -1):
        starts[partition] = starts[partition - 1]
    starts[0] = 0
