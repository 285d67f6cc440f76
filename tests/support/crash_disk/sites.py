"""Sites at which the engine syncs and renames, and a disk on which one of them does nothing."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

import pytest
from crashing import Forward, around_calls

CALLS = ("fsync", "rename", "replace", "link")

#: For a call in these modules, the caller shows its purpose.
_HELPERS = ("segmentlog.store.", "segmentlog.log.checkpoint", "segmentlog.log.producer_snapshot")

#: Its function `do_together` makes calls in threads, or in the caller's thread if they are few.
_DURABLE = "segmentlog.store.durable"

_COMPILED = ".nbc"  # the kernels' cache: it is filled where they run for the first time


class Site(NamedTuple):
    """A call in the engine."""

    caller: str  # module and function, and the helpers that they call
    call: str  # of `os`
    target: str  # the kind of file or directory that it changes
    lines: tuple[int, ...]  # of the source, for functions that do the same twice

    def __str__(self) -> str:
        return f"{self.caller}: {self.call} {self.target}"


def _site(call: str, forward: Forward) -> Site:
    """The function that makes the current call."""
    names, lines, module = [], [], _HELPERS[0]
    frame: FrameType | None = sys._getframe()
    while frame is not None and module.startswith(_HELPERS):
        found = str(frame.f_globals["__name__"])
        if found == _DURABLE and frame.f_code.co_name in {"do_together", "<lambda>"}:
            break
        if found.startswith("segmentlog."):
            module = found
            names.append(frame.f_code.co_name.strip("_"))
            lines.append(frame.f_lineno)
        frame = frame.f_back
    if module.startswith(_HELPERS):  # no other function: a thread calls it
        caller = " > ".join([_DURABLE.removeprefix("segmentlog."), *names[::-1]])
    else:
        where = module.removeprefix("segmentlog.")
        caller = " > ".join([f"{where}.{names[-1]}", *names[-2::-1]])
    return Site(caller, call, _target(call, forward), tuple(lines))


def _target(call: str, forward: Forward) -> str:
    """The target of a call, without the parts that differ each time."""
    if call == "fsync":
        path = os.readlink(f"/proc/self/fd/{forward.args[0]}")
    else:
        path = os.fspath(forward.args[1])
    name = os.path.basename(path)
    if re.fullmatch(r"t-\d+", name):
        return "partition"
    if name.startswith("segmentlog.unfinished."):
        return "guard"
    if os.path.isdir(path):
        return "log directory" if name == "logs" else "a directory above"
    name = re.sub(r"\.\d+(?=\.deleted$)", ".*", name.removesuffix(".tmp"))
    return re.sub(r"^(\d{20}|segmentlog\..*(?=\.stage))", "*", name)


@contextmanager
def sites_met(met: list[Site]) -> Iterator[None]:
    """Note the sites that the engine reaches meanwhile, each once."""

    def around(name: str, forward: Forward) -> object:
        site = _site(name, forward)
        if site not in met and not site.target.endswith(_COMPILED):
            met.append(site)
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        yield


@contextmanager
def without(site: Site) -> Iterator[None]:
    """Make one site do nothing meanwhile."""

    def around(name: str, forward: Forward) -> object:
        return None if _site(name, forward) == site else forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        yield
