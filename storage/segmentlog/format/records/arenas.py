"""A pool of buffers for keys and values, which are reused once nobody holds their rows."""

from collections import deque
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from segmentlog.format.kernels.memory import Bytes

Lent: TypeAlias = tuple[pa.Buffer, Bytes]  #: the same memory, as Arrow's and as numpy's

#: Two threads that read ahead hold 10 batches of records of 100 bytes, and more of small records.
#: With 12, two threads took 4 % longer for records of 16 bytes; with 60, as long as with 24.
_N_ARENAS = 24
_FEW_SPARE = 12  # fewer than these: somebody collects rows


class Arenas:
    """Areas of memory of one size, each of which is lent again when its last holder drops it.

    Arrow's pool soon returns freed memory to the system, and gets it back as cleared pages.
    On a virtual machine that reports free pages to its host, 3 to 7 of 15 reads by two threads
    took more than 1.5 times as long as the others.  With this memory none did, and such a read
    takes 200 MB instead of 300.

    A thread of another library takes the interpreter's lock to drop an arena.  So the columns of a
    batch are parts of one arena, and a user who holds one of these columns holds the others, too.

    `n_bytes`: of each part of an arena.
    """

    def __init__(self, n_bytes: int, n_parts: int) -> None:
        self._n_bytes = n_bytes
        self._n_parts = n_parts
        # The last one is the warmest.  None stands for memory that nobody has needed yet.
        self._spare: deque[Bytes | None] = deque([None] * _N_ARENAS)

    @property
    def are_scarce(self) -> bool:
        """Whether so many are lent that somebody seems to collect batches.

        Then small rows are copied, and their arena serves the next batch.  A scan that hands out
        batches of records of 10 bytes would take a tenth longer if it always copied them.
        """
        return len(self._spare) < _FEW_SPARE

    def lend(self) -> list[Lent] | None:
        """Lend the parts of an arena; None if all arenas are lent.

        The arena is not cleared.
        """
        try:
            memory = self._spare.pop()
        except IndexError:
            return None
        if memory is None:
            memory = np.empty(self._n_parts * self._n_bytes, np.uint8)
        held = _Held(memory, self._spare)
        buffer, view = pa.foreign_buffer(memory.ctypes.data, memory.nbytes, held), np.asarray(held)
        return [
            (buffer.slice(at, self._n_bytes), view[at : at + self._n_bytes])
            for at in range(0, memory.nbytes, self._n_bytes)
        ]


class _Held:
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
