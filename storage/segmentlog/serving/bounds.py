"""What all connections of a server share, so that their number does not bound its memory."""

import asyncio
from collections import deque

_MOST_REQUEST_BYTES = 2 << 20  # an entity takes many times the bytes of its request
_MOST_ANSWER_BYTES = 8 << 20
_SMALL_BYTES = 8 << 10  # requests and answers that need no room

#: APIs whose answers name all topics, or all rows of tables; two of each are made at once.
_LARGE = {3, 9, 15, 16, 32, 35, 61, 65, 66, 69, 75}
_AT_ONCE = 2


class Room:
    """Bytes that are held for a while; who finds too few of them left waits its turn."""

    def __init__(self, n_bytes: int) -> None:
        self._all = self._left = n_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, n_bytes: int) -> int:
        """Wait for so many bytes, or for all; the number that was taken."""
        wanted = 0 if n_bytes <= _SMALL_BYTES else min(n_bytes, self._all)
        if not wanted or (wanted <= self._left and not self._waiting):
            self._left -= wanted
            return wanted
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, granted))
        try:
            await granted
        except asyncio.CancelledError:
            self.give(0 if granted.cancelled() else wanted)
            raise
        return wanted

    def give(self, taken: int) -> None:
        """Give back what was taken."""
        self._left += taken
        while self._waiting:
            wanted, granted = self._waiting[0]
            if granted.cancelled():
                wanted = 0
            elif wanted > self._left:
                return
            else:
                granted.set_result(None)
            self._left -= wanted
            self._waiting.popleft()


class ServerBounds:
    """The bounds of one server.

    `requests`: room of requests until their answers are made.  `answers`: room of answers until
    they are sent, but for their records.  `n_by_memory`: answers whose records pass through memory
    now.
    """

    def __init__(self) -> None:
        self.requests = Room(_MOST_REQUEST_BYTES)
        self.answers = Room(_MOST_ANSWER_BYTES)
        self.n_by_memory = 0
        self._turns = {each: asyncio.Semaphore(_AT_ONCE) for each in _LARGE}

    def turn(self, key: int) -> asyncio.Semaphore | None:
        """What an API waits for before its answer is made; None for nothing."""
        return self._turns.get(key)

    @staticmethod
    def is_small(n_bytes: int) -> bool:
        """Whether a request is parsed, and answered, at once."""
        return n_bytes <= _SMALL_BYTES
