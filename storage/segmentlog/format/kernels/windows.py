"""Decode a file one window of bytes after the other, without a return to the interpreter.

Kernels do no I/O: this one is the exception.  It calls ``pread`` by its address, because the
threads of a scan lose most of their time where they hand the interpreter's lock over, and a window
of a scan needs the lock three times: to read, to decode, and to move the bytes that are left over.

Whatever is unusual goes back to the caller: an error or the end of the file (the caller reads
again, and names the fault), a batch that is larger than the buffer, and each batch that
`segmentlog.format.kernels.one_pass.decode_batches` does not take.
"""

from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s, call_5, copy_bytes
from segmentlog.format.kernels.one_pass import decode_batches
from segmentlog.format.kernels.output import PlainArrays
from segmentlog.native import internal, kernel

# The int64 array of a window.
END = 0  #: end of the bytes in the buffer
FILE_POSITION = 1  #: byte of the file that the first byte of the buffer is
FILE_END = 2  #: byte of the file at which reading ends
DESCRIPTOR = 3  #: of the open file
PREAD = 4  #: address of ``pread``; 0 if only the caller can read
N_WINDOW_COLUMNS = 5


@internal
def read_on(buf: Bytes, position: int, window: Int64s) -> bool:
    """Move the bytes from `position` on to the front, and read on; False if nothing was tried."""
    held = window[END] - position
    file_position = window[FILE_POSITION] + position
    wanted = min(buf.shape[0] - COPY_SLACK, window[FILE_END] - file_position)
    if window[PREAD] == 0 or position == 0 or held >= wanted:
        return False
    moved = 0
    while moved < held:  # in pieces, because source and target may overlap
        n_bytes = min(position, held - moved)
        copy_bytes(buf, moved, buf, position + moved, n_bytes)
        moved += n_bytes
    n_read = call_5(
        window[PREAD], window[DESCRIPTOR], buf.ctypes.data + held, wanted - held,
        file_position + held, 0,
    )  # fmt: skip
    window[FILE_POSITION] = file_position
    window[END] = held + max(n_read, 0)
    return True


@kernel
def decode_windows(
    buf: Bytes, start: int, next_offset: int, range_start: int, range_end: int, first_ms: int,
    last_ms: int, scale: int, most_inflated: int, codecs: Int64s, scratch: Bytes,
    columns: PlainArrays, state: Int64s, window: Int64s,
) -> tuple[int, int, int]:  # fmt: skip
    """`decode_batches` for a window that moves over a file.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); written if ``window[PREAD]`` is not 0
    start : byte of `buf` at which a batch begins
    window : int64 array, shape (`N_WINDOW_COLUMNS`,); read, and written when the window moves;
        `END` is not below `start`
    next_offset, range_start, range_end, first_ms, last_ms, scale, most_inflated, codecs, scratch,
    columns, state : see `decode_batches`

    Returns
    -------
    status, position, next_offset : see `decode_batches`; `OK` and `NEED_MORE` at the end of the
        file's range, or where the caller has to read
    """
    position = start
    while True:
        status, position, next_offset = decode_batches(
            buf, position, window[END], next_offset, range_start, range_end, first_ms, last_ms,
            scale, most_inflated, codecs, scratch, columns, state,
        )  # fmt: skip
        is_empty = status == st.OK or status == st.NEED_MORE
        if not is_empty or not read_on(buf, position, window):
            return status, position, next_offset
        position = 0
