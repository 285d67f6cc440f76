"""CRC-32C of a few bytes, where loading the compiled kernels would cost more."""

from collections.abc import Callable
from functools import cache


def crc32c(data: bytes | memoryview, crc: int = 0) -> int:
    """Checksum of `data` after bytes that have the checksum `crc`."""
    return _of_library()(data, crc)


@cache
def _of_library() -> Callable[[bytes | memoryview, int], int]:
    # The package reads its own metadata when it is imported: 40 ms, and most processes that open a
    # log compute no checksum here.
    from crc32c import crc32c as of_library

    return of_library
