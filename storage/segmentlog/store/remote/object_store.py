"""`Disk` for a copy of a log directory in an object store.

An object store has neither directories nor renames, its listings take time, and each request takes
as long as many reads of a disk.  So a directory is surveyed when it is opened: one deep
listing answers every later question for names, sizes and times, and small files and index entries
are kept once they are read.  Objects that differ from the listing are gone (``ESTALE``).

A second request takes as long as the first one.  So ranges that were read are kept for some time,
and the pieces of a file that a slice reads are requested side by side, ahead of the reader.  Such
a file is opened again, wherever the task runs (`RemoteFile.expect`).
"""

import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable
from hashlib import blake2b

from segmentlog.errors import StorageError
from segmentlog.format.names import parse_partition_directory, parse_segment_file
from segmentlog.store.readable import (
    Entry,
    FileStatus,
    FileType,
    Measured,
    ReadableFile,
    SurveyedDisk,
    gone,
)
from segmentlog.store.remote.location import Location, location_of
from segmentlog.store.remote.requests import Pending, request
from segmentlog.store.remote.stores import Facts, Opened, Store, store_at


class KeptRanges:
    """Ranges of objects up to a number of bytes, for several threads; those not used go first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        # All three change together, and are read, under the lock: threads find, keep and drop.
        self._ranges: dict[tuple[str, int], bytes] = {}
        self._starts: dict[str, list[int]] = {}
        self.n_bytes = 0
        self._lock = threading.Lock()

    def find(self, key: str, position: int, n_bytes: int) -> bytes | None:
        """The bytes, if one range holds them all."""
        with self._lock:
            for start in self._starts.get(key, ()):
                found = self._ranges[key, start]
                if start <= position and position + n_bytes <= start + len(found):
                    self._ranges[key, start] = self._ranges.pop((key, start))
                    return found[position - start : position - start + n_bytes]
        return None

    def keep(self, key: str, position: int, found: bytes) -> None:
        """Keep a range that was not found."""
        with self._lock:
            self._drop(key, position)
            self._ranges[key, position] = found
            self._starts.setdefault(key, []).append(position)
            self.n_bytes += len(found)
            while self.n_bytes > self._most_bytes:
                self._drop(*next(iter(self._ranges)))

    def _drop(self, key: str, position: int) -> None:
        found = self._ranges.pop((key, position), None)
        if found is not None:
            self.n_bytes -= len(found)
            self._starts[key].remove(position)


#: Bytes of one request: a window of a scan takes two.
PIECE_BYTES = 2 << 20

#: Pieces that are there or on their way at a time: the window that is decoded, and three more.
_PIECES = 8


class ReadAhead:
    """The bytes ``[start, end)`` of an object, read from the start to the end."""

    def __init__(self, begin: Callable[[int, int], Pending], start: int, end: int) -> None:
        self._begin = begin
        self._next = start  # first byte that is not requested yet
        self._end = end
        self._at = start  # of the first piece
        self._pieces: deque[Pending | bytes] = deque()
        self._request()

    def _request(self) -> None:
        while self._next < self._end and len(self._pieces) < _PIECES:
            n_bytes = min(PIECE_BYTES, self._end - self._next)
            self._pieces.append(self._begin(self._next, n_bytes))
            self._next += n_bytes

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from byte `position`; 0 if that is not where the range continues."""
        filled = 0
        while filled < len(buffer) and (piece := self._piece(position + filled)) is not None:
            begin = position + filled - self._at
            n_bytes = min(len(piece) - begin, len(buffer) - filled)
            buffer[filled : filled + n_bytes] = memoryview(piece)[begin : begin + n_bytes]
            filled += n_bytes
        return filled

    def _piece(self, position: int) -> bytes | None:
        """The piece with a byte; those before it are dropped, and others requested."""
        while self._pieces and position >= self._at:
            first = self._pieces[0]
            if isinstance(first, Pending):
                first = self._pieces[0] = first.result()
            if position < self._at + len(first):
                return first
            self._at += len(first)
            self._pieces.popleft()
            self._request()
        return None

    def close(self) -> None:
        """Forget pieces that are still on their way."""
        for piece in self._pieces:
            if isinstance(piece, Pending):
                piece.cancel()
        self._pieces.clear()
        self._next = self._end


#: Bytes that a small read requests: the headers and entries after it are often wanted next.  A
#: read that continues where the last one ended requests twice as much, up to `_LARGEST_KEPT`.
_SMALL_BYTES = 64 << 10

#: Largest range that is kept, such as the index of a segment of 2 GiB; bytes of all of them.
_LARGEST_KEPT = 4 << 20
_KEPT_BYTES = 32 << 20

_MOST_SURVEYS = 8

_DIRECTORY = Facts(0, "", is_directory=True)


def _status(facts: Facts) -> FileStatus:
    """Status of an object; size and version take the place of an inode."""
    mode = stat.S_IFDIR | 0o555 if facts.is_directory else stat.S_IFREG | 0o444
    digest = blake2b(f"{facts.size} {facts.version}".encode(), digest_size=7).digest()
    inode = int.from_bytes(digest, "big") or 1
    return FileStatus(
        mode,
        facts.size,
        inode,
        facts.modified_ns,
        facts.modified_ns,
        is_remembered=False,
        n_allocated=facts.size,
    )


class _Object:
    """An object, opened at the first read."""

    def __init__(
        self, path: str, key: str, store: Store, listed: Facts | None, kept: KeptRanges
    ) -> None:
        self.path = path
        self._key = key
        self._store = store
        self._listed = listed
        self._opened: Opened | None = None
        self._kept = kept
        self._wanted = _SMALL_BYTES
        self._read_to = -1  # byte after the last range that was requested

    def opened(self) -> Opened:
        """The object; ``ESTALE`` if it is no longer the listed object."""
        if self._opened is None:
            found = self.open_now()
            listed = self._listed
            if listed is not None and _status(listed).inode != _status(found.facts).inode:
                raise gone(self.path, errno.ESTALE)
            self._opened = found
        return self._opened

    def open_anew(self) -> Opened:
        """The object as it is now; without a listing, as it was when it was opened first."""
        if self._listed is None and self._opened is not None:
            return self._opened
        return self.open_now()

    def open_now(self) -> Opened:
        if self._store.opens_at_once:  # and would wait for all reads that are under way
            return self._store.open(self._key)
        return request(self.path, "opening", lambda: self._store.open(self._key))

    @property
    def facts(self) -> Facts:
        """Facts by the listing, or else by the store."""
        return self._listed if self._listed is not None else self.opened().facts

    def begin(self, opened: Opened, position: int, n_bytes: int) -> Pending:
        def fetch() -> bytes:
            found = opened.fetch(position, n_bytes)
            if len(found) != n_bytes:  # the connection ended early, or the object is shorter now
                raise OSError(errno.EIO, f"only {len(found)} of {n_bytes} bytes arrived")
            return found

        return Pending(self.path, f"reading bytes {position} to {position + n_bytes}", fetch)

    def read(self, position: int, n_bytes: int) -> bytes:
        """A range, which a larger request may have brought before."""
        facts = self.facts
        if facts.is_directory:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), self.path)
        n_bytes = min(n_bytes, facts.size - position)
        if n_bytes <= 0:
            return b""
        kept = self._kept.find(self._key, position, n_bytes)
        if kept is not None:
            return kept
        goes_on = 0 <= self._read_to - position < self._wanted
        self._wanted = min(2 * self._wanted, _LARGEST_KEPT) if goes_on else _SMALL_BYTES
        wanted = min(max(n_bytes, self._wanted), facts.size - position)
        found: bytes = self.begin(self.opened(), position, wanted).result()
        self._read_to = position + wanted
        if wanted <= _LARGEST_KEPT:
            self._kept.keep(self._key, position, found)
        return found[:n_bytes]


class RemoteFile(ReadableFile):
    """An object; see `ReadableFile`."""

    never_cut = True  # its bytes are copies that were requested

    __slots__ = ("_ahead", "_object", "_opened", "path")

    def __init__(self, found: _Object) -> None:
        self.path = found.path
        self._object = found
        self._opened: Opened | None = None  # for a range that is read ahead
        self._ahead: ReadAhead | None = None

    def status(self) -> FileStatus:
        return _status(self._object.facts if self._opened is None else self._opened.facts)

    def expect(self, start: int, end: int) -> None:
        """See `ReadableFile`: the object is opened again, and its first bytes are requested."""
        opened = self._opened = self._object.open_anew()

        def begin_piece(position: int, n_bytes: int) -> Pending:
            return self._object.begin(opened, position, n_bytes)

        self._ahead = ReadAhead(begin_piece, start, min(end, opened.facts.size))

    def check_unchanged(self) -> None:
        """See `ReadableFile`: ranges that were read before and after a change do not fit."""
        if self._opened is not None:
            now = self._object.open_now()
            if (now.tag, now.facts.size) != (self._opened.tag, self._opened.facts.size):
                said = "the object was replaced by another one while it was read"
                raise StorageError(errno.EIO, said, self.path)

    def read(self, position: int, n_bytes: int) -> bytes:
        if self._ahead is not None:
            buffer = bytearray(n_bytes)
            n_read = self._ahead.read_into(memoryview(buffer), position)
            if n_read == n_bytes:
                return bytes(buffer)
        return self._object.read(position, n_bytes)

    def read_into(self, buffer: memoryview, position: int) -> int:
        if self._ahead is not None:
            n_read = self._ahead.read_into(buffer, position)
            if n_read:
                return n_read
        return super().read_into(buffer, position)

    def map(self) -> bytes | None:
        """See `ReadableFile`: the bytes of a small object; None for a larger or empty one."""
        size = self.status().size
        return self._object.read(0, size) if 0 < size <= _LARGEST_KEPT else None

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


class _Survey:
    """The entries of a directory when it was opened.

    `is_deep`: whether `directories` has every directory below `key`; if not, each is listed on
    request.
    """

    def __init__(self, key: str, *, is_deep: bool) -> None:
        self.key = key
        self.is_deep = is_deep
        self.directories: dict[str, dict[str, Facts]] = {}
        self.objects: dict[str, _Object] = {}
        self.kept = KeptRanges(_KEPT_BYTES)

    def covers(self, key: str) -> bool:
        return not self.key or key == self.key or key.startswith(f"{self.key}/")

    def add(self, key: str, facts: Facts) -> None:
        """Take a file or a directory, and the directories above it."""
        parent, _, name = key.rpartition("/")
        if facts.is_directory and self.is_deep:
            self.directories.setdefault(key, {})
        self.directories.setdefault(parent, {})[name] = facts
        while self.is_deep and parent != self.key and parent:
            parent, _, name = parent.rpartition("/")
            self.directories.setdefault(parent, {}).setdefault(name, _DIRECTORY)


class RemoteDisk(SurveyedDisk):
    """A store; see `Disk`.  Paths are those of `segmentlog.store.remote.location`."""

    def __init__(self, root: str, store: Store) -> None:
        self._root = root
        self._store = store
        self._surveys: list[_Survey] = []

    def _key(self, path: str) -> str:
        return path[len(self._root) :].strip("/")

    def survey(self, path: str) -> None:
        """List a log directory, a partition directory or the place of a file, to open it."""
        # Later questions for it are answered from this listing. For a partition or a file, its log
        # directory is listed without the other partitions.
        key = self._key(path)
        parent, _, name = key.rpartition("/")
        if parse_segment_file(name) is not None:
            found = _Survey(parent.rpartition("/")[0], is_deep=False)
        elif parse_partition_directory(name):
            found = _Survey(parent, is_deep=False)
            self._list(found, key)
            if not any(each.endswith(".log") for each in found.directories.get(key, ())):
                found = _Survey(key, is_deep=True)
        else:
            found = _Survey(key, is_deep=True)
        if found.is_deep:
            self._list(found, key)
            if not found.directories and key:  # a file, or nothing: its directory is asked
                found = _Survey(parent, is_deep=False)
        self._surveys = [each for each in self._surveys if each.key != found.key]
        self._surveys = [found, *self._surveys[: _MOST_SURVEYS - 1]]

    def forget(self, path: str) -> None:
        key = self._key(path)
        self._surveys = [
            each
            for each in self._surveys
            if not each.covers(key) and not f"{each.key}/".startswith(f"{key}/")
        ]

    def _list(self, survey: _Survey, key: str) -> None:
        path = f"{self._root}/{key}".rstrip("/")
        deep = survey.is_deep
        try:
            found = request(path, "listing", lambda: list(self._store.listing(key, deep=deep)))
        except FileNotFoundError:
            return
        survey.directories.setdefault(key, {})
        for each, facts in found:
            survey.add(each, facts)

    def _survey_of(self, key: str) -> _Survey | None:
        return next((each for each in self._surveys if each.covers(key)), None)

    def _in_directory(self, path: str) -> dict[str, Facts]:
        key = self._key(path)
        survey = self._survey_of(key)
        if survey is None:
            survey = _Survey(key, is_deep=False)
        if key not in survey.directories and not survey.is_deep:
            self._list(survey, key)
        if key not in survey.directories:
            raise gone(path)
        return survey.directories[key]

    def _facts(self, path: str) -> Facts:
        key = self._key(path)
        survey = self._survey_of(key)
        if survey is None:
            return request(path, "looking up", lambda: self._store.facts(key))
        if key == survey.key:
            self._in_directory(path)
            return _DIRECTORY
        parent, _, name = path.rpartition("/")
        facts = self._in_directory(parent).get(name)
        if facts is None:
            raise gone(path)
        return facts

    def open(self, path: str, *, follow: bool = True) -> RemoteFile:
        """See `Disk`: without a survey of its directory, the store is asked."""
        key = self._key(path)
        survey = self._survey_of(key)
        if survey is None:
            found = _Object(path, key, self._store, None, KeptRanges(_KEPT_BYTES))
            found.opened()
            return RemoteFile(found)
        facts = self._facts(path)
        known = survey.objects.get(key)
        if known is None:
            known = _Object(path, key, self._store, facts, survey.kept)
            survey.objects[key] = known
        return RemoteFile(known)

    def status(self, path: str, *, follow: bool = False) -> FileStatus:
        return _status(self._facts(path))

    def measure(self, directory: str, names: Iterable[str]) -> Measured:
        found = self._in_directory(directory)
        try:
            return Measured.of(_status(found[name]) for name in names)
        except KeyError as missing:
            raise gone(f"{directory}/{missing.args[0]}") from None

    def names(self, path: str) -> list[str]:
        return list(self._in_directory(path))

    def entries(self, path: str) -> list[Entry]:
        return [
            Entry(name, FileType.DIRECTORY if facts.is_directory else FileType.FILE)
            for name, facts in self._in_directory(path).items()
        ]


_disks: dict[tuple[int, str], RemoteDisk] = {}


def remote_disk(path: str) -> RemoteDisk:
    """The disk that holds a path at a URL."""
    authority = path.find("/", path.index("://") + 3)
    root = path if authority < 0 else path[:authority]
    key = os.getpid(), root  # a client does not outlive a fork
    if key not in _disks:
        location: Location = location_of(root)
        _disks[key] = RemoteDisk(root, request(root, "connecting", lambda: store_at(location)))
    return _disks[key]
