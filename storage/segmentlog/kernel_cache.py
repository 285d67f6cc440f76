"""Keep compiled kernels in files of the user, under names that depend on the sources.

Numba's own cache depends on the path of a source file.  Spark unpacks ``--py-files`` into a new
directory for each application, and numba cannot use a path inside a wheel, so in these cases each
process compiled again.  Numba's cache also checks a kernel's own file alone, and so returns an
outdated kernel if a function changes that the kernel calls.  Here the name of a directory depends
on the contents of all sources of the kernels' package, the versions of numba, llvmlite and Python,
the processor, and numba's settings.  So a file is never out of date, wherever the package was
unpacked.

One file holds one kernel for one signature.  It appears under its name in one step and has a
checksum, so any number of processes may compile at once, and a kernel whose file is torn is
compiled again.  Each kernel is compiled by one process, and others wait for its file: a machine
has more Python workers than cores.

A file is unpickled, and so runs code.  So the directory is used only if it, and every directory
above it, can be changed by the user and root alone (`_why_not_private`).  If the directory is
refused, each process compiles for itself.
"""

import fcntl
import functools
import hashlib
import importlib
import importlib.util
import logging
import math
import os
import pickle
import pkgutil
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import serialize
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target

__all__ = ["REMEDY", "KernelCache", "KernelStore", "store_of"]

logger = logging.getLogger(__name__)

#: What to do about a `KernelStore.obstacle`.
REMEDY = "set NUMBA_CACHE_DIR to a directory that only you can write to"

_CHECKSUM_BYTES = 32
_SUFFIX = ".nbc"
_CLAIM, _WARMED, _TURNS = "compiling", "warmed", "turns"

#: If nothing can be kept, each process compiles again, but only one in an hour logs it.
_SILENCE_SECONDS = 3600.0

#: Seconds after which a process compiles a kernel itself, if another has not finished it.
_WAIT_SECONDS = 30
_LOOK_SECONDS = 0.02

#: Owners of directories above the cache: in a user namespace, directories of the machine's root
#: have the user id that stands for unknown users.
_ROOT, _UNKNOWN = 0, 65534

#: Settings of numba that do not change the compiled code.
_NO_SETTINGS = ("NUMBA_CACHE_", "NUMBA_DEBUG_CACHE", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER")


class KernelStore:
    """The compiled kernels of one package.

    Parameters
    ----------
    package : name of the package.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        # The first module that has a kernel calls this while it is imported.
        self._digest = _digest_of_sources(package)
        self._compared: frozenset[str] = frozenset()
        self._is_of_sources = True
        self._is_announced = False
        #: Called with the name of each file that is written.
        self.on_saved: Callable[[str], object] = len
        self._turns = -1
        self._is_patient = True

    @functools.cached_property
    def path(self) -> Path | None:
        """The directory; None if there is none whose files may be loaded."""
        return self._place[0]

    @functools.cached_property
    def obstacle(self) -> str:
        """The reason why nothing can be kept; empty if files can be written."""
        path, reason = self._place
        if path is not None:
            try:
                tempfile.TemporaryFile(dir=path).close()
            except OSError as error:
                return f"{path}: {error.strerror}"
        return reason

    @functools.cached_property
    def _place(self) -> tuple[Path | None, str]:
        """The directory, which is made if it is missing, or the reason why none is used."""
        if self._digest is None:
            return None, "the package has no sources"
        chosen = numba.config.CACHE_DIR
        base = Path(chosen).absolute() if chosen else _user_cache_directory()
        if not base.is_absolute():
            return None, "there is no home"
        # A link that is redirected after the check has no effect.
        path = base.resolve() / "segmentlog" / self._name()
        try:
            for each in (*reversed(path.parents), path):
                each.mkdir(0o700, exist_ok=True)
        except FileExistsError as error:
            return None, f"{error.filename} is not a directory"
        except OSError as error:
            return None, f"{error.filename}: {error.strerror}"
        reason = _why_not_private(path)
        return (None, reason) if reason else (path, "")

    def _name(self) -> str:
        settings = sorted(
            item
            for item in os.environ.items()
            if item[0].startswith("NUMBA_") and not item[0].startswith(_NO_SETTINGS)
        )
        processor = cpu_target.target_context.codegen().magic_tuple()
        versions = (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag)
        made_from = repr((self._digest, versions, sys.abiflags, processor, settings))
        return "kernels-" + hashlib.sha256(made_from.encode()).hexdigest()[:16]

    def names(self) -> frozenset[str]:
        """Names of the existing files, one for each kernel and signature."""
        if self.path is None:
            return frozenset()
        return frozenset(path.name for path in self.path.glob(f"*{_SUFFIX}"))

    def mark_warmed(self) -> None:
        """Remember that all kernels are compiled."""
        if self.path is not None and not self.obstacle:
            self._write(_WARMED, "\n".join(sorted(self.names())).encode())

    def is_warmed(self) -> bool:
        """Whether all kernels of the last `mark_warmed` still exist."""
        try:
            marked = (self.path / _WARMED).read_text() if self.path else ""
        except OSError:
            return False
        return bool(marked) and self.names().issuperset(marked.splitlines())

    def load(self, name: str) -> Any | None:  # noqa: ANN401 - what numba has made
        """The object saved under `name`; None if it is missing, damaged or another user's."""
        if self.path is None or not self._is_current():
            return None
        try:
            with (self.path / name).open("rb") as file:
                # The directory may have been open to others before it was private.
                if os.fstat(file.fileno()).st_uid not in (_ROOT, os.geteuid()):
                    return None
                data = file.read()
            payload = memoryview(data)[_CHECKSUM_BYTES:]
            if hashlib.sha256(payload).digest() != data[:_CHECKSUM_BYTES]:
                return None
            return pickle.loads(payload)
        except Exception:  # noqa: BLE001 - after any failure, the kernel can be compiled again
            return None

    def save(self, name: str, made: object) -> None:
        """Keep `made` if possible: a cache must not make a query fail."""
        if self.obstacle or not self._is_current():
            return
        payload = serialize.dumps(made)
        try:
            self._write(name, hashlib.sha256(payload).digest() + payload)
        except OSError as error:
            logger.debug("%s/%s: %s", self.path, name, error)
        else:
            self.on_saved(name)

    def take_turn(self, name: str) -> None:
        """Wait until no other process compiles the kernel `name`; then others wait for this one.

        A kernel's turn is taken before those of the kernels that it calls, and no kernel calls
        itself, so processes never wait for each other in a circle.  The locks belong
        to the process: they end with it, and a forked process does not have them.

        After one wait that timed out, this process waits no more: a process that hangs, or whose
        compilation was interrupted, may hold the turns of many kernels.
        """
        if self.obstacle or not self._is_current() or not self._has_turns():
            return
        give_up = time.monotonic() + (_WAIT_SECONDS if self._is_patient else 0.0)
        while True:
            try:
                self._lock(name, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # POSIX allows both
                if time.monotonic() >= give_up:
                    self._is_patient = False
                    return
                time.sleep(_LOOK_SECONDS)
            except OSError:  # the file system has no locks
                return
            else:
                return

    def end_turn(self, name: str) -> None:
        """Let a process continue that waits for the kernel `name`."""
        if self._turns >= 0:
            with suppress(OSError):
                self._lock(name, fcntl.LOCK_UN)

    def _has_turns(self) -> bool:
        """Whether the file of turns is open, which stays open; another user may own it."""
        assert self.path is not None  # noqa: S101 - there is no obstacle
        if self._turns < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with suppress(OSError):
                self._turns = os.open(self.path / _TURNS, flags, 0o600)
        return self._turns >= 0

    def _lock(self, name: str, operation: int) -> None:
        """Lock or unlock the byte of the kernel `name`."""
        place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1
        fcntl.lockf(self._turns, operation, 1, place)

    def _is_current(self) -> bool:
        """Whether all loaded modules were made from the sources that name the directory.

        An upgrade may replace sources while a process imports them.  If the sources are the same
        before and after, the modules imported between are made from them.
        """
        loaded = frozenset(name for name in sys.modules if name.startswith(f"{self._package}."))
        if loaded != self._compared:
            self._compared = loaded
            self._is_of_sources &= _digest_of_sources(self._package) == self._digest
        return self._is_of_sources

    def _write(self, name: str, data: bytes) -> None:
        assert self.path is not None  # noqa: S101 - there is no obstacle
        temporary = self.path / f"{name}.{uuid.uuid4().hex}.tmp"
        try:
            temporary.write_bytes(data)
            temporary.replace(self.path / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def say_nothing(self) -> None:
        """Do not log that kernels are compiled: the caller reports it."""
        self._is_announced = True

    def announce(self) -> None:
        """Log that kernels are compiled now, once for all processes that have the directory."""
        if self._is_announced:
            return
        self._is_announced = True
        if not _is_first(self._claim(), _SILENCE_SECONDS if self.obstacle else math.inf):
            return
        # The level reaches the terminal even if logging is not configured.
        if self.obstacle:
            logger.warning(
                "compiling segmentlog's kernels, which takes up to a minute in each Python "
                "process, because they cannot be cached: %s; %s",
                self.obstacle,
                REMEDY,
            )
        else:
            logger.warning(
                "compiling segmentlog's kernels, which takes up to a minute, once on this "
                "machine: their cache is empty; they are kept in %s; `segmentlog warmup` compiles "
                "all of them in advance",
                self.path,
            )

    def _claim(self) -> Path:
        if self.path is None or self.obstacle:
            return Path(tempfile.gettempdir(), f"segmentlog-{os.getuid()}-{_CLAIM}")
        return self.path / _CLAIM


def _why_not_private(path: Path) -> str:
    """Why others than the user and root may change the files of a directory, or empty.

    As with the directories of OpenSSH's keys (``safe_path`` of its ``misc.c``), all directories
    above count.  In a sticky one, nobody can replace what belongs to others.
    """
    user = os.geteuid()
    for each in (path, *path.parents):
        status = os.lstat(each)
        is_above = each != path
        if status.st_uid not in ((_ROOT, user, _UNKNOWN) if is_above else (_ROOT, user)):
            return f"{each} belongs to another user"
        is_shared = status.st_mode & stat.S_IWOTH
        # Where each user has a group of the same number, it has no other members.
        is_shared |= status.st_mode & stat.S_IWGRP and status.st_gid != status.st_uid
        if is_shared and not (is_above and status.st_mode & stat.S_ISVTX):
            return f"{each} may be written to by other users"
    return ""


store_of = functools.cache(KernelStore)


class KernelCache:
    """One kernel's cache, as numba asks for it (``numba.core.caching._Cache``).

    Parameters
    ----------
    func : the kernel in Python.
    """

    def __init__(self, func: Callable[..., object]) -> None:
        module = func.__module__
        self._store = store_of(module.rpartition(".")[0])
        self._name = f"{module.rpartition('.')[2]}.{func.__qualname__}"

    @property
    def cache_path(self) -> str | None:
        """The directory, even if it is read-only."""
        return None if self._store.path is None else str(self._store.path)

    def load_overload(self, signature: object, target_context: Any) -> Any:  # noqa: ANN401
        """The kernel for `signature`; None announces that numba is about to compile."""
        # Numba's own cache calls `target_context.refresh()` here, which imports what a compiler
        # has to know, for 0.1 s.  A kernel that is loaded needs none of that, and numba's compiler
        # makes the same call itself.
        file = self._file(signature)
        made = self._store.load(file)
        if made is None:
            self._store.take_turn(file)
            made = self._store.load(file)  # another process may have compiled it meanwhile
            if made is None:
                self._store.announce()
                return None
            self._store.end_turn(file)
        return CompileResult._rebuild(target_context, *made)

    def save_overload(self, signature: object, compiled: Any) -> None:  # noqa: ANN401
        """Keep the kernel, unless it holds an address of this process."""
        file = self._file(signature)
        try:
            if not compiled.library.has_dynamic_globals:
                self._store.save(file, compiled._reduce())
        finally:
            self._store.end_turn(file)

    def enable(self) -> None:
        """Do nothing: it is always enabled."""

    disable = flush = enable

    def _file(self, signature: object) -> str:
        digest = hashlib.sha256(str(signature).encode()).hexdigest()[:32]
        return f"{self._name}-{digest}{_SUFFIX}"


def _digest_of_sources(package: str) -> str | None:
    """Digest of all modules of `package`, read by their importers, even from a zip."""
    digest = hashlib.sha256()
    try:
        path = list(importlib.import_module(package).__path__)
        for name in sorted(info.name for info in pkgutil.iter_modules(path)):
            source = _source(importlib.util.find_spec(f"{package}.{name}"))
            digest.update(f"{name}\0{len(source)}\0{source}".encode())
    except Exception:  # noqa: BLE001 - no sources, or an archive that was replaced meanwhile
        return None
    return digest.hexdigest()


def _source(spec: Any) -> str:  # noqa: ANN401 - a spec whose loader is known at runtime alone
    """The text of a module.

    A pytest plugin has the modules of its distribution loaded by pytest's hook for assertions,
    which returns bytes alone.  Without a digest, each test process would compile all kernels.
    """
    if hasattr(spec.loader, "get_source"):
        return str(spec.loader.get_source(spec.name))
    return importlib.util.decode_source(spec.loader.get_data(spec.origin))


def _user_cache_directory() -> Path:
    """The user's directory for files that programs can make again."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(os.path.expanduser(usual))  # noqa: PTH111 - pathlib's raises without a home


def _is_first(claim: Path, seconds: float) -> bool:
    """Whether no process has made this claim within the last `seconds`."""
    try:
        descriptor = os.open(claim, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if status.st_size and abs(time.time() - status.st_mtime) < seconds:
            return False
        os.pwrite(descriptor, b"\n", 0)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    finally:
        os.close(descriptor)
    return True
