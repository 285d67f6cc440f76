"""List the segments of a log again if files have changed since they were listed."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from segmentlog.errors import CorruptLogError, LogChangedError, SegmentLogError
from segmentlog.reads.listed import ListedSegments
from segmentlog.store.system_errors import is_gone, storage_error

_ATTEMPTS = 5  # a broker rarely overtakes a look-up more often than this

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Listing(Protocol):
    """A log that lists its segments on request, and remembers the newest listing."""

    path: str  # for errors
    #: None before the first request, and once it is to be forgotten
    _newest_listing: ListedSegments | None


_L = TypeVar("_L", bound=_Listing)


def retry_if_relisted(
    method: Callable[Concatenate[_L, _P], _R],
) -> Callable[Concatenate[_L, _P], _R]:
    """Call a method of a log again if a file was renamed, replaced or cut since the listing.

    Retention and compaction do that to a healthy log.  An error in a file that is still the listed
    one is a true error, and is raised.
    """

    @functools.wraps(method)
    def looking_again(self: _L, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        for _ in range(_ATTEMPTS):
            try:
                return method(self, *args, **kwargs)
            except SegmentLogError as error:
                listed = self._newest_listing
                is_corrupt = isinstance(error, CorruptLogError)
                if not is_corrupt or (listed is not None and not listed.has_changed()):
                    raise
                change: Exception = error
            except OSError as error:
                if not is_gone(error):
                    raise storage_error(error, self.path) from error
                change = error
            self._newest_listing = None  # listed again on the next request
        raise LogChangedError(self.path, -1, -1, str(change)) from change

    return looking_again
