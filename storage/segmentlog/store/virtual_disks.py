"""The rooms above `store` that serve paths of their own, and URLs that lead to such paths.

A room reads logs to do so, and therefore `store` cannot import it.  ``segmentlog/__init__.py``
adds the rooms before anything is read; this module imports nothing, so that this costs nothing.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segmentlog.store.readable import SurveyedDisk

_disks: dict[str, "Callable[[str], SurveyedDisk]"] = {}
_recognizers: list[Callable[[str], str | None]] = []


def add_disk(prefix: str, disk: "Callable[[str], SurveyedDisk]") -> None:
    """Let a higher room serve the paths with a prefix."""
    _disks[prefix] = disk


def add_recognizer(recognized: Callable[[str], str | None]) -> None:
    """Let a higher room say which URLs lead to its virtual disk, and by which path."""
    _recognizers.append(recognized)


def virtual_disk(path: str) -> "SurveyedDisk | None":
    """The virtual disk that holds a path, or None."""
    return next((disk(path) for prefix, disk in _disks.items() if path.startswith(prefix)), None)


def recognized_paths(url: str) -> Iterator[str]:
    """The paths of virtual disks to which a URL leads: the stores may be asked."""
    return (found for each in _recognizers if (found := each(url)))
