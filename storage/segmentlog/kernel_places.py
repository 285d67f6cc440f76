"""The directory of compiled kernels, found without the imports of a compiler."""

import os
import sys
from pathlib import Path

__all__ = ["READ", "WARMED", "are_compiled_for_reads", "cache_directory"]

#: Names of marks beside kernels: all of a first read's are there, or all that `warmup` compiles.
READ, WARMED = "read", "warmed"


def cache_directory(chosen: str) -> Path:
    """The directory above ours: the one that was chosen, or the user's for remakeable files.

    It may be relative if there is neither a choice nor a home.
    """
    if chosen:
        return Path(chosen).absolute()
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(os.path.expanduser(usual))  # noqa: PTH111 - pathlib's raises without a home


def are_compiled_for_reads() -> bool:
    """Whether the kernels of a first read seem to be compiled: a mark is newer than the sources.

    The exact answer depends on the processor and on numba's version, and needs numba.
    """
    base = cache_directory(os.environ.get("NUMBA_CACHE_DIR", ""))
    marks = [mark for name in (READ, WARMED) for mark in base.glob(f"segmentlog/kernels-*/{name}")]
    try:
        marked = max((mark.stat().st_mtime_ns for mark in marks), default=0)
    except OSError:  # removed since it was listed
        return False
    return marked > _changed_ns(Path(__file__).parent / "kernels")


def _changed_ns(sources: Path) -> int:
    """The time of the newest source; 0 in an archive."""
    try:
        return max(path.stat().st_mtime_ns for path in sources.iterdir() if path.suffix == ".py")
    except OSError:
        return 0
