"""A file of the user that gets its name when it is complete."""

import contextlib
import os
import tempfile
from types import TracebackType
from typing import BinaryIO, Self

from segmentlog.disk.durable import sync_directory, sync_file
from segmentlog.errors import OptionError

__all__ = ["OutputFile"]


class OutputFile:
    """Writes a file under a temporary name in the same directory.

    `publish` gives the file its name.  A block that ends without it leaves no new file, and an
    earlier file of the name as it was.

    Parameters
    ----------
    option : the argument that names the file, for messages.
    path : of the file.  An earlier file of this name is replaced, and its permissions stay; a link
        is followed.  A pipe or a device takes the bytes as they come.

    Attributes
    ----------
    file : takes the bytes.

    Raises
    ------
    OptionError
        If the path names a directory; if its directory does not exist.
    OSError
        If the file cannot be made.
    """

    def __init__(self, option: str, path: str | os.PathLike[str]) -> None:
        given = os.fsdecode(path)
        self._path, self._temporary = os.path.realpath(given), ""
        self._directory, name = os.path.split(self._path)
        if os.path.isdir(self._path):
            raise OptionError(option, given, "is a directory; give the path of a file")
        if os.path.exists(given) and not os.path.isfile(given):
            self.file: BinaryIO = open(given, "wb")  # noqa: SIM115
            return
        if not os.path.isdir(self._directory):
            raise OptionError(option, given, "give a file in a directory that exists")
        descriptor, self._temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self._directory)
        os.fchmod(descriptor, _mode_of(given))
        self.file = os.fdopen(descriptor, "wb")

    def finish(self) -> None:
        """Sync all bytes to the disk: a full disk is an error now, and not in `publish`."""
        self.file.flush()
        if self._temporary:
            sync_file(self.file.fileno(), self._temporary)

    def publish(self) -> None:
        """Give the finished file its name, durably."""
        if self._temporary:
            os.replace(self._temporary, self._path)
            sync_directory(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # its last bytes, on a full disk
            self.file.close()
        if self._temporary:
            with contextlib.suppress(OSError):  # the error of the block says more
                os.unlink(self._temporary)


def _mode_of(path: str) -> int:
    """The permissions of a file, or those that a new file gets."""
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
