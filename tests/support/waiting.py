"""Waits for conditions, with an end."""

import time
from collections.abc import Callable


def wait_for(
    holds: Callable[[], object], else_: Callable[[], str], seconds: float = 60, pause: float = 0.1
) -> None:
    """Wait until a condition holds; after `seconds`, raise an error with the text of `else_`."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            message = f"{else_()} ({seconds:g} s)"
            raise TimeoutError(message)
        time.sleep(pause)
