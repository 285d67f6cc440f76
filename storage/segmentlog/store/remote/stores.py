"""The three requests that are made to a store: list, open, and read a range of bytes.

`pyarrow.fs` serves S3, Google Cloud Storage, Azure and HDFS, with its own credentials.  `fsspec`
serves other schemes, if it is installed.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

from segmentlog.errors import LogDirectoryError
from segmentlog.store.remote.location import (
    Location,
    number_of,
    unknown_options,
    with_slashes,
    without_secrets,
)
from segmentlog.store.remote.profiles import find_profile

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

_OF_ARROW = {"s3", "gs", "abfs", "hdfs", "viewfs"}
#: Options of Azure that only its own parameters take.
_KEYS = {"account_key", "sas_token"}
_AUTHORITIES = ("blob_storage_authority", "dfs_storage_authority")
_NUMBERS = {"request_timeout", "connect_timeout", "load_frequency"}
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_UNKNOWN = re.compile(r"unexpected keyword argument '([^']+)'")
#: Credentials of a profile are looked up again so long before they end.
_RENEWED_BEFORE = timedelta(minutes=1)
_IGNORED = {"allow_bucket_creation", "allow_bucket_deletion"}  # nothing is written


class Facts(NamedTuple):
    """Facts about an object that need no read."""

    size: int  # in bytes
    #: differs for another object of the name: its time in seconds, or its ETag.  Both are the same
    #: in a listing and for an opened object.
    version: str
    is_directory: bool = False  # whether it is the beginning of other objects' names
    modified_ns: int = 0  # time of the last write (epoch, nanoseconds), or 0


class Opened(NamedTuple):
    """An object that is there."""

    facts: Facts  # about the object when it was opened
    tag: str  # differs for another object of the name, perhaps more finely than `facts`
    #: returns a number of bytes from a position; the range must lie within the object
    fetch: Callable[[int, int], bytes]


class Store(Protocol):
    """A store, below one root; keys have no slash at either end.

    Any `OSError` may mean that the store could not be reached; a `FileNotFoundError` means that
    the object or directory is not there.
    """

    opens_at_once: bool  # to open an object takes no request

    def listing(self, key: str, *, deep: bool) -> Iterator[tuple[str, Facts]]:
        """Keys and facts of what is in a directory; with `deep`, of all below."""

    def facts(self, key: str) -> Facts:
        """Facts about an object or a directory."""

    def open(self, key: str) -> Opened:
        """An object, by one request."""


class ArrowStore:
    """A file system of `pyarrow.fs`."""

    opens_at_once = False

    def __init__(self, filesystem: "FileSystem", base: str) -> None:
        self._filesystem = filesystem
        self._root = base
        self._base = base.rstrip("/")

    def _path(self, key: str) -> str:
        if not self._root:  # an account, whose paths begin with a container and no slash
            return key
        return f"{self._base}/{key}" if key else self._base or "/"

    def listing(self, key: str, *, deep: bool) -> Iterator[tuple[str, Facts]]:
        from pyarrow.fs import FileSelector, FileType

        path = self._path(key)
        try:
            found = self._filesystem.get_file_info(FileSelector(path, recursive=deep))
        except OSError:
            # The client of Google Cloud Storage raises an error like any other.
            is_google = self._filesystem.type_name == "gcs"
            if is_google and self._filesystem.get_file_info(path).type == FileType.NotFound:
                raise FileNotFoundError(path) from None
            raise
        # The paths of the answer may begin with a slash that those of the request do not have.
        skipped = len(self._base.strip("/"))
        for info in found:
            yield info.path.strip("/")[skipped:].strip("/"), _facts(info)

    def facts(self, key: str) -> Facts:
        from pyarrow.fs import FileType

        info = self._filesystem.get_file_info(self._path(key))
        if info.type == FileType.NotFound:
            raise FileNotFoundError(key)
        return _facts(info)

    def open(self, key: str) -> Opened:
        """See `Store`; a client that gives no metadata is asked a second time."""
        file = self._filesystem.open_input_file(self._path(key))
        metadata = {name.lower(): value for name, value in (file.metadata() or {}).items()}
        seconds = _seconds(metadata.get("last-modified", b""))
        if seconds is None:
            facts = self.facts(key)
        else:
            facts = Facts(file.size(), str(seconds), modified_ns=seconds * 10**9)
        tag = metadata.get("etag", b"").decode("latin-1") or facts.version

        def fetch(position: int, n_bytes: int) -> bytes:
            found: bytes = file.read_at(n_bytes, position)
            return found

        return Opened(facts, tag, fetch)


class RenewedStore(ArrowStore):
    """A file system that is made again before its credentials end.

    `make`: makes it with the credentials of now, and says when these end.
    """

    def __init__(self, make: "Callable[[], tuple[FileSystem, datetime]]", base: str) -> None:
        self._make = make
        # Any thread that makes a request may replace `_ends_at` and the file system, under
        # `_turn`; requests under way go on with the earlier one, whose credentials still hold.
        self._turn = threading.Lock()
        made, self._ends_at = make()
        super().__init__(made, base)

    def _path(self, key: str) -> str:
        """See `ArrowStore`, which asks for the path of each request."""
        with self._turn:
            if datetime.now(UTC) >= self._ends_at - _RENEWED_BEFORE:
                self._filesystem, self._ends_at = self._make()
        return super()._path(key)


def _facts(info: "FileInfo") -> Facts:
    if not info.is_file:
        return Facts(0, "", is_directory=True)
    modified = info.mtime_ns or 0
    return Facts(info.size, str(modified // 10**9), modified_ns=modified)


def _seconds(text: bytes) -> int | None:
    """Time of ``Last-Modified`` as `pyarrow` gives it (ISO 8601), or None."""
    try:
        return int(datetime.fromisoformat(text.decode("latin-1")).timestamp())
    except ValueError:
        return None


class FsspecStore:
    """A file system of `fsspec`; ranges are read without its own read-ahead."""

    opens_at_once = False

    def __init__(self, filesystem: Any, base: str) -> None:  # noqa: ANN401 - it has no types
        self._filesystem = filesystem
        self._base = base.rstrip("/")

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}" if key else self._base or "/"

    def listing(self, key: str, *, deep: bool) -> Iterator[tuple[str, Facts]]:
        path = self._path(key)
        self._filesystem.invalidate_cache()  # clients remember listings
        depth = None if deep else 1
        found = self._filesystem.find(path, maxdepth=depth, withdirs=True, detail=True)
        skipped, base = len(self._base.strip("/")), path.strip("/")
        is_empty = not found or (len(found) == 1 and next(iter(found)).strip("/") == base)
        if is_empty and not self._filesystem.isdir(path):
            raise FileNotFoundError(path)
        for name, info in found.items():
            if name.strip("/") != base:
                yield name.strip("/")[skipped:].strip("/"), _fsspec_facts(info)

    def facts(self, key: str) -> Facts:
        self._filesystem.invalidate_cache()
        return _fsspec_facts(self._filesystem.info(self._path(key)))

    def open(self, key: str) -> Opened:
        facts = self.facts(key)
        if facts.is_directory:
            raise FileNotFoundError(key)
        path = self._path(key)

        def fetch(position: int, n_bytes: int) -> bytes:
            end = position + n_bytes
            found: bytes = self._filesystem.cat_file(path, start=position, end=end)
            return found

        return Opened(facts, facts.version, fetch)


def _fsspec_facts(info: Mapping[str, Any]) -> Facts:
    """Facts from what a file system says: each has its own name for the time."""
    if info["type"] == "directory":
        return Facts(0, "", is_directory=True)
    if info.get("size") is None:
        raise NotImplementedError("this file system does not report the sizes of its files")
    times = (_whole_seconds(info[name]) for name in _TIMES if info.get(name) is not None)
    return Facts(int(info["size"]), next(times, ""))


def _whole_seconds(time: object) -> str:
    """A time as text: listings and files of one file system may give it in two forms."""
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return str(time)
    seconds = time.timestamp() if isinstance(time, datetime) else time
    return str(int(seconds)) if isinstance(seconds, int | float) else str(seconds)


def store_at(location: Location) -> Store:
    """The store with the root of `location`."""
    try:
        if location.scheme == "s3":
            return _s3(location)
        if location.scheme == "abfs" and (location.password or _KEYS & location.options.keys()):
            return _azure(location)
        if location.scheme in _OF_ARROW:
            return _of_arrow(location)
        return _of_fsspec(location)
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        said = without_secrets(str(error))
        raise LogDirectoryError(location.root, f"cannot be opened: {said}") from None


def _s3(location: Location) -> Store:
    """S3, with a client that repeats a failed request twice."""
    # `FileSystem.from_uri` would make a client that repeats it thirty times, and takes no key that
    # is not in its environment or in the URL.
    from pyarrow.fs import S3FileSystem, resolve_s3_region

    options: dict[str, Any] = {}
    for name, value in location.options.items():
        if name not in _IGNORED:
            options[name] = _parsed(name, value)
    if location.user:
        options |= {"access_key": location.user, "secret_key": location.password}

    def made(options: Mapping[str, Any]) -> "FileSystem":
        try:
            filesystem = S3FileSystem(**options)
        except TypeError as error:
            raise TypeError(_unknown("s3", error)) from None
        in_environment = "AWS_REGION" in os.environ or "AWS_DEFAULT_REGION" in os.environ
        if "region" not in options and "endpoint_override" not in options and not in_environment:
            filesystem = S3FileSystem(**options, region=resolve_s3_region(location.host))
        return filesystem

    def of_profile() -> "tuple[FileSystem, datetime]":
        profile = find_profile({"profile": name})
        assert profile is not None  # noqa: S101 - it is named
        found = profile.credentials()
        given = {"access_key": found.access_key, "secret_key": found.secret_key}
        given |= {"session_token": found.token} if found.token else {}
        defaults = {"region": profile.region, "endpoint_override": profile.endpoint}
        defaults = {option: value for option, value in defaults.items() if value}
        return made({**defaults, **options, **given}), found.expires_at

    if name := options.pop("profile", None):
        return RenewedStore(of_profile, location.host)
    return ArrowStore(made(options), location.host)


def _unknown(scheme: str, error: TypeError) -> str:
    found = _UNKNOWN.search(str(error))
    return unknown_options(scheme, [found[1]]) if found else str(error)


def _parsed(name: str, value: str) -> str | bool | float:
    if name in _NUMBERS:
        return number_of(name, value)
    if name == "endpoint_override":
        return with_slashes(value)
    return value == "true" if value in {"true", "false"} else value


def _azure(location: Location) -> Store:
    """Azure, with the key or the token of an account; `FileSystem.from_uri` takes neither."""
    # The URL is ``abfs://container@account.dfs.core.windows.net/path``; with a password,
    # ``abfs://account:key@container/path``, or ``abfs://account:key@server:port/container/path``
    # of another server than Microsoft's.
    from pyarrow.fs import AzureFileSystem

    given = dict(location.options)
    options: dict[str, Any] = {}
    if given.pop("enable_tls", "true") == "false":
        options |= {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
    account, container = location.user, location.host
    if ":" in location.host:
        container = ""
        options |= dict.fromkeys(_AUTHORITIES, location.host)
    elif "." in location.host:
        account, container = location.host.partition(".")[0], location.user
    options["account_name"] = account
    if location.password:
        options["account_key"] = location.password
    try:
        return ArrowStore(AzureFileSystem(**(options | given)), container)
    except TypeError as error:
        raise TypeError(_unknown("abfs", error)) from None


def _of_arrow(location: Location) -> Store:
    from pyarrow.fs import FileSystem

    return ArrowStore(*FileSystem.from_uri(_url(location)))


def _url(location: Location) -> str:
    user = quote(location.user, "")
    if location.password:
        user += ":" + quote(location.password, "")
    query = f"?{urlencode(location.options)}" if location.options else ""
    return f"{location.scheme}://{user}{'@' * bool(user)}{location.host}/{query}"


def _of_fsspec(location: Location) -> Store:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        kinds = ", ".join(sorted(_OF_ARROW))
        message = f"scheme {location.scheme!r} needs fsspec (pip install fsspec); {kinds} do not"
        raise ImportError(message) from None
    options: dict[str, Any] = dict(location.options)
    if location.user:
        options |= {"username": location.user, "password": location.password}
    return FsspecStore(*url_to_fs(f"{location.scheme}://{location.host}", **options))
