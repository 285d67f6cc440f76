"""A file of the user that gets its name when it is complete."""

import contextlib
import os
import secrets
from types import TracebackType
from typing import BinaryIO, Self

from segmentlog.errors import OptionError
from segmentlog.store.durable import sync_directory, sync_file


class OutputFile:
    """Writes a file under a temporary name in the same directory.

    `publish` gives the file its name.  A block that ends without it leaves no new file, and an
    earlier file of the name as it was.

    `option`: the argument that names the file, for messages.  `path`: of the file.  An earlier
    file of this name is replaced, and its permissions stay; a link is followed.  A pipe or a
    device takes the bytes as they come.  Raises `OptionError` if the path names a directory; if
    its directory does not exist.  Raises `OSError` if the file cannot be made.
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
        # Made as any new file: the system applies the umask, which a library cannot ask for
        # without changing it for all threads.
        temporary = os.path.join(self._directory, f".{name}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor, self._temporary = os.open(temporary, flags, 0o666), temporary
        self.file = os.fdopen(descriptor, "wb")
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(descriptor, os.stat(given).st_mode & 0o777)

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
