"""Compiled kernels that earlier builds of the same sources have kept, in the user's cache folder.

A build takes a minute of processor time and needs numba; whoever installs the checkout a second
time has both behind them.  An entry is an archive, whose checksums show a torn file.  Its name is
a digest of all that decides the code.  The folder may be removed at any time.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["alone", "entry_for", "keep", "load"]

_STORAGE = Path(__file__).parents[1]
_SOURCES = ("kernel_compiler/*.py", "segmentlog/format/kernels/*.py", "segmentlog/native.py")
_MOST_ENTRIES = 8


def entry_for(compiler: str, platform: str, variants: Sequence[str]) -> Path | None:
    """The path of the archive for these sources; None where nothing can be kept.

    `compiler`: its name and version.  `variants`: kinds of processors; none stands for the best
    that this processor runs.
    """
    processor = " ".join(variants) or _processor(platform)
    folder = _folder()
    if processor is None or folder is None:
        return None
    checked = os.environ.get("SEGMENTLOG_CHECKED_KERNELS", "")
    digest = hashlib.sha256("\0".join((compiler, platform, processor, checked)).encode())
    for path in sorted(each for pattern in _SOURCES for each in _STORAGE.glob(pattern)):
        source = path.read_bytes()
        digest.update(f"\0{path.relative_to(_STORAGE)}\0{len(source)}\0".encode() + source)
    return folder / f"{digest.hexdigest()}.zip"


def load(entry: Path | None) -> dict[str, bytes]:
    """The files of an archive by their names; none if there is no whole one."""
    if entry is None or not entry.exists():
        return {}
    try:
        with zipfile.ZipFile(entry) as archive:
            files = {Path(name).name: archive.read(name) for name in archive.namelist()}
        os.utime(entry)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error):
        return {}
    return files


def keep(entry: Path | None, files: Mapping[str, bytes]) -> None:
    """Keep what was compiled; without effect where that is not possible."""
    if entry is None:
        return
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile(dir=entry.parent, suffix=".new", delete=False) as made:
            try:
                with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                    for name, data in files.items():
                        archive.writestr(name, data)
                Path(made.name).replace(entry)
            except OSError:
                Path(made.name).unlink(missing_ok=True)
                raise
        entries = sorted(entry.parent.glob("*.zip"), key=lambda each: each.stat().st_mtime)
        for old in entries[:-_MOST_ENTRIES]:
            old.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(entry: Path | None) -> Iterator[None]:
    """Wait for another build of the same sources, which then has kept what this one needs."""
    with contextlib.ExitStack() as held:
        if entry is not None:
            with contextlib.suppress(OSError):
                lock = held.enter_context((entry.parent / "lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _folder() -> Path | None:
    """The cache folder of the user; None if it cannot be made, or if others may write to it."""
    try:
        root = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
        folder = Path(os.environ.get("XDG_CACHE_HOME") or root, "segmentlog", "kernels")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError):  # there may be no home
        return None
    # Code comes from it: with `sudo pip`, the home may be that of somebody else.
    is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return folder if is_own and os.access(folder, os.W_OK) else None


def _processor(platform: str) -> str | None:
    """A text that is equal for processors that run the same instructions."""
    if not platform.endswith("x86_64"):
        return "any"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if platform.startswith("darwin"):
            command = ["sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
        with Path("/proc/cpuinfo").open() as lines:
            return next((line for line in lines if line.startswith("flags")), None)
    return None
