"""Read the whole batches of a file, a window of bytes at a time.

Data is read with ``pread`` into one reused buffer, never mapped: a file that is cut under a map
kills the process with SIGBUS.
"""

from collections.abc import Callable, Iterator

import numpy as np

from segmentlog.errors import TruncatedBatchError
from segmentlog.kernels import layout
from segmentlog.kernels.memory import COPY_SLACK, Bytes
from segmentlog.records.decoder import BatchScanner
from segmentlog.records.scanned_batches import ScannedBatches

__all__ = ["BatchWindows"]


class BatchWindows:
    """A window, moved over one file after the other.

    Parameters
    ----------
    window_bytes : bytes to hold at a time; a larger batch takes more.
    """

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._buffer: Bytes = np.empty(0, np.uint8)

    def batches(
        self,
        read_into: Callable[[memoryview, int], int],
        scanner: BatchScanner,
        start: int,
        end: int,
    ) -> Iterator[ScannedBatches]:
        """Batches of the bytes ``[start, end)`` of a file, checked.

        Parameters
        ----------
        read_into : of the file; see `segmentlog.files.readable.ReadableFile`.
        scanner : for the same file.
        start : byte at which a batch begins.
        end : byte behind the last one.

        Yields
        ------
        ScannedBatches
            Valid until the next step.

        Raises
        ------
        CorruptLogError, UnsupportedFormatError
            At the first bad batch; a `TruncatedBatchError` if `end`, or the end of the file, lies
            inside it.
        """
        position, held, wanted = start, 0, self._window_bytes
        while position < end:
            wanted = min(wanted, end - position)
            held = self._fill(read_into, position, held, wanted)
            has_ended = held < wanted
            begin = 0
            while begin < held:
                batches = scanner.scan(self._buffer, begin, held, position)
                if not len(batches.headers):
                    break
                begin = batches.end
                yield batches
            self._buffer[: held - begin] = self._buffer[begin:held].copy()
            position, held = position + begin, held - begin
            wanted = self._window_bytes
            if held or has_ended:
                available = held if has_ended else end - position
                wanted = self._next_window(scanner.path, position, held, available)

    def _fill(
        self, read_into: Callable[[memoryview, int], int], position: int, held: int, wanted: int
    ) -> int:
        """Fill the buffer up to `wanted` bytes, if the file has them; return the bytes held.

        The buffer begins at byte `position`, and holds `held` bytes.
        """
        if self._buffer.size < wanted + COPY_SLACK:
            grown: Bytes = np.empty(wanted + COPY_SLACK, np.uint8)
            grown[:held] = self._buffer[:held]
            self._buffer = grown
        while held < wanted:
            n_read = read_into(self._buffer[held:wanted].data, position + held)
            if not n_read:
                break
            held += n_read
        return held

    def _next_window(self, path: str, position: int, held: int, available: int) -> int:
        """Bytes to hold next: a window, or the whole of a batch that is larger.

        Parameters
        ----------
        position : of a batch that is not whole in the buffer.
        held : number of its bytes in the buffer.
        available : number of bytes to read, including those held.
        """
        base_offset, needed = -1, layout.LOG_OVERHEAD
        if held >= layout.LOG_OVERHEAD:
            prefix = self._buffer[: layout.LOG_OVERHEAD].tobytes()
            base_offset = int.from_bytes(prefix[: layout.BATCH_LENGTH_AT], "big", signed=True)
            needed += int.from_bytes(prefix[layout.BATCH_LENGTH_AT :], "big", signed=True)
        if needed > available or held == available:
            if needed <= available:  # the bytes are too few to hold a magic number
                needed = layout.MAGIC_PREFIX_BYTES
            raise TruncatedBatchError(path, position, base_offset, needed, available)
        return max(self._window_bytes, needed)
