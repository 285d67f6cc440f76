"""The whole batches of a file, read a window of bytes at a time.

Data is read with ``pread`` into one reused buffer, never mapped: a file that is cut under a map
kills the process with SIGBUS.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from segmentlog.errors import TruncatedBatchError
from segmentlog.format.kernels import layout, one_pass
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.records.decoder import BatchScanner
from segmentlog.format.records.header import ScannedBatches
from segmentlog.format.records.one_pass import Workspace
from segmentlog.native import address_of


@dataclass(slots=True)
class Window:
    """Bytes of a file in a buffer."""

    buf: Bytes  # uint8 array that holds them, with `COPY_SLACK` bytes after them
    begin: int  # of the bytes in `buf`; a reader moves it after the batches it has taken
    #: int64 array, shape (`segmentlog.format.kernels.one_pass.N_WINDOW_COLUMNS`,); a kernel may
    #: move the window over the file by it
    state: Int64s

    @property
    def end(self) -> int:
        """Byte of `buf` after the last one that was read."""
        return int(self.state[one_pass.WINDOW_END])

    @property
    def file_position(self) -> int:
        """Byte of the file that ``buf[0]`` is."""
        return int(self.state[one_pass.WINDOW_POSITION])


class BatchWindows:
    """A window, moved over one file after the other.

    `window_bytes`: bytes to hold at a time; a larger batch takes more.  It may be changed: the
    next window has the new size.  `workspace`: has the window; by default, it is allocated.
    """

    def __init__(self, window_bytes: int, workspace: Workspace | None = None) -> None:
        self.window_bytes = window_bytes
        self._next_bytes = 0  # of the next batch, if it is larger than a window
        self._workspace = workspace or Workspace()
        self._state: Int64s = np.zeros(one_pass.N_WINDOW_COLUMNS, np.int64)

    def batches(
        self,
        read_into: Callable[[memoryview, int], int],
        scanner: BatchScanner,
        start: int,
        end: int,
    ) -> Iterator[ScannedBatches]:
        """Batches of the bytes ``[start, end)`` of a file, which begin at a batch, checked.

        Raises `CorruptLogError` or `UnsupportedFormatError` at the first bad batch; a
        `TruncatedBatchError` if `end`, or the end of the file, lies inside it.
        """
        for window in self.windows(read_into, scanner.path, start, end):
            while window.begin < window.end:
                batches = scanner.scan(window.buf, window.begin, window.end, window.file_position)
                if not len(batches.headers):
                    break
                window.begin = batches.end
                yield batches

    def windows(
        self,
        read_into: Callable[[memoryview, int], int],
        path: str,
        start: int,
        end: int,
        *,
        descriptor: int | None = None,
    ) -> Iterator[Window]:
        """The bytes ``[start, end)`` of a file, which begin at a batch.

        `descriptor`: of the file, if a kernel may move a window over it.  Yields windows that are
        valid until the next step.  The reader moves its ``begin`` after the last whole batch; the
        bytes from there on come again in the next window.  Raises `TruncatedBatchError` if `end`,
        or the end of the file, lies inside a batch.
        """
        state = self._state
        state[one_pass.WINDOW_FILE_END] = end
        if descriptor is not None:
            state[one_pass.WINDOW_DESCRIPTOR] = descriptor
        state[one_pass.WINDOW_PREAD] = 0 if descriptor is None else address_of("pread")
        position, held = start, 0
        while position < end:
            # A window, plus the next batch if that is larger than a window.
            wanted = min(self.window_bytes + self._next_bytes, end - position)
            held = self._fill(read_into, position, held, wanted)
            has_ended = held < wanted
            state[one_pass.WINDOW_END], state[one_pass.WINDOW_POSITION] = held, position
            window = Window(self._workspace.window[: wanted + COPY_SLACK], 0, state)
            if held:
                yield window
            begin, held = window.begin, window.end - window.begin
            buffer = self._workspace.window
            buffer[:held] = buffer[begin : begin + held].copy()
            position = window.file_position + begin
            if held or has_ended:
                available = held if has_ended else end - position
                needed = self._bytes_of_next(path, position, held, available)
                self._next_bytes = needed if needed > self.window_bytes else 0

    def _fill(
        self, read_into: Callable[[memoryview, int], int], position: int, held: int, wanted: int
    ) -> int:
        """Fill the buffer, which holds `held` bytes from `position` on, up to `wanted` bytes."""
        buffer = self._workspace.window
        if buffer.size < wanted + COPY_SLACK:
            buffer = np.empty(wanted + COPY_SLACK, np.uint8)
            buffer[:held] = self._workspace.window[:held]
            self._workspace.window = buffer
        while held < wanted:
            n_read = read_into(buffer[held:wanted].data, position + held)
            if not n_read:
                break
            held += n_read
        return held

    def _bytes_of_next(self, path: str, position: int, held: int, available: int) -> int:
        """Bytes of the next batch, as far as it is in the buffer.

        `position`: of a batch that is not whole in the buffer.  `held`: number of its bytes in the
        buffer.  `available`: number of bytes to read, including those held.
        """
        base_offset, needed = -1, layout.LOG_OVERHEAD
        if held >= layout.LOG_OVERHEAD:
            prefix = self._workspace.window[: layout.LOG_OVERHEAD].tobytes()
            base_offset = int.from_bytes(prefix[: layout.BATCH_LENGTH_AT], "big", signed=True)
            needed += int.from_bytes(prefix[layout.BATCH_LENGTH_AT :], "big", signed=True)
        if needed > available or held == available:
            if needed <= available:  # the bytes are too few to hold a magic number
                needed = layout.MAGIC_PREFIX_BYTES
            raise TruncatedBatchError(path, position, base_offset, needed, available)
        return needed
