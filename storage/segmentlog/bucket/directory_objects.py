"""Objects in a local directory, for tests and for small setups: durable, as those of a store.

An object is there with its name, whose bytes are on the disk before: a power cut leaves no name
without bytes, and what `create` or `put` has returned for stays.
"""

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator

from segmentlog.bucket.objects import UNNAMED, Client, ListedObject, ObstoreObjects, UnsyncedError
from segmentlog.errors import StorageError, SyncFailedError
from segmentlog.store.durable import create_file, sync_directory, sync_file, write_all
from segmentlog.store.readable import FileStatus, exists, is_directory, status_of


class DirectoryObjects(ObstoreObjects):
    """`Objects` in a directory, which the first write makes: a wrong path leaves nothing."""

    def __init__(self, directory: str, shown: str) -> None:
        super().__init__(shown, self._opened, lists_all=True)
        self._directory = directory

    def _opened(self) -> Client:
        from obstore.store import LocalStore

        if not exists(self._directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._directory)
        store = LocalStore(self._directory)
        return Client(store, lambda: store)

    def create(self, key: str, data: bytes) -> str | None:
        found: FileStatus | None = None

        def give_name(temporary: str, path: str) -> None:
            nonlocal found
            try:
                found = status_of(temporary)
                os.link(temporary, path)
            finally:
                os.unlink(temporary)

        try:
            self._write("creating", key, [data], give_name)
        except FileExistsError:
            return None
        return _e_tag(found) if found else UNNAMED

    def put(self, key: str, pieces: Iterable[bytes]) -> None:
        self._write("writing", key, pieces, os.replace)

    def exchange(self, key: str, before: bytes, data: bytes) -> bool:
        if self.get(key) != before:
            return False
        self.put(key, [data])
        return True

    def _write(
        self,
        what: str,
        key: str,
        pieces: Iterable[bytes],
        give_name: Callable[[str, str], None],
    ) -> None:
        """Write a file, sync it, name it, and sync the name.

        Raises `FileExistsError` if the name must be new; `SyncFailedError` if the disk could not
        keep the bytes, and `UnsyncedError` if it could not keep the name.
        """
        path = os.path.join(self._directory, key)
        # The client takes no such name for an object.
        temporary = f"{path}#{secrets.randbelow(2**63)}"
        try:
            self._make_directory(os.path.dirname(path))
            descriptor, position = create_file(temporary), 0
            try:
                try:
                    for piece in pieces:
                        write_all(descriptor, piece, position)
                        position += len(piece)
                    sync_file(descriptor, path)
                finally:
                    os.close(descriptor)
            except BaseException:
                os.unlink(temporary)
                raise
            try:
                give_name(temporary, path)
            finally:  # the name of another writer, too: what follows may rest on it
                self._sync_name(path, key)
        except FileExistsError:
            raise
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise self._failed(error.errno or errno.EIO, what, key, error) from error

    def _sync_name(self, path: str, key: str) -> None:
        try:
            sync_directory(os.path.dirname(path))
        except SyncFailedError as error:
            said = f"the disk did not keep its name: {error.reason}"
            raise UnsyncedError(errno.EIO, said, f"{self._shown}/{key}") from error

    def _make_directory(self, path: str) -> None:
        """Make a directory and those above it, each with a name that is on the disk."""
        if is_directory(path):
            return
        above = os.path.dirname(path)
        self._make_directory(above)
        try:
            os.mkdir(path)
        except FileExistsError:  # another was quicker
            if not is_directory(path):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
        sync_directory(above)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ListedObject]:
        return super().list(prefix, after=after) if exists(self._directory) else iter(())


def _e_tag(found: FileStatus) -> str:
    """What a list of the client calls a file; if it calls it otherwise, the file is read."""
    return f'"{found.inode:x}-{found.modified_ns // 1000:x}-{found.size:x}"'
