"""Memory for keys and values, which is used again when nobody holds its rows any more."""

from collections import deque

import numpy as np
import pyarrow as pa

from segmentlog.kernels.memory import Bytes

__all__ = ["Arenas"]

#: Two threads that read ahead hold 10 batches of records of 100 bytes, and more of small records.
#: With 12, two threads took 4 % longer for records of 16 bytes; with 60, as long as with 24.
_N_ARENAS = 24


class Arenas:
    """Areas of memory of one size, each of which is lent again when its last holder drops it.

    Arrow's pool returns freed memory to the system after 10 ms, and gets it back as cleared pages.
    On a virtual machine that reports free pages to its host, 3 to 7 of 15 reads by two threads
    took more than 1.5 times as long as the others.  With this memory none did, and such a read
    takes 200 MB instead of 300.

    Parameters
    ----------
    n_bytes : of each arena.
    """

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        # The last one is the warmest.  None stands for memory that nobody has needed yet.
        self._spare: deque[Bytes | None] = deque([None] * _N_ARENAS)

    def lend(self) -> tuple[pa.Buffer, Bytes] | None:
        """Lend an arena, as Arrow's and as numpy's view of it; None if all of them are lent.

        The arena is not cleared.
        """
        try:
            memory = self._spare.pop()
        except IndexError:
            return None
        if memory is None:
            memory = np.empty(self.n_bytes, np.uint8)
        lent = _Lent(memory, self._spare)
        return pa.foreign_buffer(memory.ctypes.data, self.n_bytes, lent), np.asarray(lent)


class _Lent:
    """An arena that Arrow and numpy hold; when both have dropped it, it can be lent again.

    Any thread may be the last to drop it, at any time, even in the middle of `Arenas.lend`.  So
    there is no lock: the operations of a deque are atomic.
    """

    __slots__ = ("__array_interface__", "_memory", "_spare")

    def __init__(self, memory: Bytes, spare: "deque[Bytes | None]") -> None:
        self._memory = memory
        self._spare = spare
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._spare.append(self._memory)
