"""Classes that a JVM has loaded, kept in a file: the next JVM starts in half the time.

``-XX:ArchiveClassesAtExit`` writes such a file when a JVM ends cleanly, and
``-XX:SharedArchiveFile`` reads it. A JVM ignores a file that was made from other jars.
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from kafka_here.artifacts import cache, java

#: At its end, the JVM prints which classes cannot be kept.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


class ClassData:
    """The file of one main class."""

    def __init__(self, name: str, directories: Sequence[Path], into: Path | None = None) -> None:
        parts = [_java_version(), *map(str, directories)]
        parts += [
            f"{jar}{jar.stat().st_mtime_ns}" for each in directories for jar in each.iterdir()
        ]
        digest = hashlib.sha256("".join(parts).encode()).hexdigest()[:12]
        self.kept = (into or cache()) / f"{name}-{digest}.jsa"
        self._new = self.kept.with_name(f"{self.kept.name}.{os.getpid()}.{id(self):x}")

    def flags(self) -> list[str]:
        """Flags of a JVM that reads the file, or makes it."""
        if self.kept.exists():
            return self.reading_flags()
        return [*_QUIET, f"-XX:ArchiveClassesAtExit={self._new}"]

    def reading_flags(self) -> list[str]:
        """Flags of a JVM that reads the file if there is one."""
        return [*_QUIET, f"-XX:SharedArchiveFile={self.kept}"]

    def keep(self, *, is_whole: bool) -> None:
        """Take over the file of a JVM that has ended, or remove it if the JVM was killed."""
        if not is_whole:
            self._new.unlink(missing_ok=True)
        elif self._new.exists():
            self._new.replace(self.kept)


def _java_version() -> str:
    """A name that changes with each Java: its launcher, and the time of its installation."""
    found = Path(shutil.which(java()) or java()).resolve()
    return f"{found}{found.stat().st_mtime_ns}"
