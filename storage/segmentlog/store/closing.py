"""Contexts that close what they hold."""

from types import TracebackType
from typing import Self


class Closing:
    """A context that calls `close` at its end, with or without an error."""

    __slots__ = ()

    def close(self) -> None:
        """Close it; twice is not an error."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
