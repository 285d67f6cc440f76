"""The rule of work over many things: one that fails ends no other, each is named, and all count.

A failure that the others would meet as well ends the work at once: a wrong option, a lock, a full
disk, a disk that could not keep what was written.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from segmentlog.errors import (
    CommitInDoubtError,
    LogLockedError,
    OptionError,
    SegmentLogError,
    SyncFailedError,
)
from segmentlog.store.system_errors import FULL, storage_error

#: Is told of each thing that failed, by its name (``orders-0``), and why.
OnFailure: TypeAlias = Callable[[str, SegmentLogError], object]

_OF_ALL = (LogLockedError, CommitInDoubtError, OptionError, SyncFailedError)
_ERRNOS_OF_ALL = FULL | {errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class Failures:
    """The things of a work that failed.

    `on_failure`: is told of each failure at once; without it, `end` raises the first one.
    `errors`: by the names of the things, in their order.
    """

    def __init__(self, on_failure: OnFailure | None = None) -> None:
        self._on_failure = on_failure
        self.errors: dict[str, SegmentLogError] = {}

    @contextmanager
    def of(self, name: object) -> Iterator[None]:
        """Do the work of one thing, and continue after it if it fails."""
        try:
            yield
        except SegmentLogError as error:
            self.add(name, error)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.add(name, storage_error(error))

    def add(self, name: object, error: SegmentLogError) -> None:
        """Note a failure; one thing fails once.  Raises it if the other things would fail, too."""
        is_of_all = isinstance(error, OSError) and error.errno in _ERRNOS_OF_ALL
        if is_of_all or isinstance(error, _OF_ALL):
            raise error
        if str(name) not in self.errors:
            self.errors[str(name)] = error
            if self._on_failure is not None:
                self._on_failure(str(name), error)

    def end(self) -> None:
        """Raise the first failure, with a note about each other one, if nobody was told of it."""
        if self._on_failure is not None or not self.errors:
            return
        (_, first), *others = self.errors.items()
        for name, error in others:
            first.add_note(f"{name} failed, too: {error}")
        raise first
