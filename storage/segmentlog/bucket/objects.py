"""What a log needs of an object store, the client that provides it, and how a URL shows a log.

The one request that decides anything is `Objects.create`: of several clients that create a key, at
the most one succeeds.  A store that ignores the condition would lose commits in silence, so each
process that writes asks the store once to break its word (`Sequence.create`).

The user writes ``s3://bucket/logs`` for a log and for a copy of a log directory.  The marker
object of the former decides, with one request.  A URL may also name a partition of the log, or a
segment.
"""

import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from segmentlog.errors import LogDirectoryError, StorageError
from segmentlog.format.names import parse_partition_directory, parse_segment_file
from segmentlog.store.paths import BucketLocation, bucket_at, is_bucket
from segmentlog.store.readable import exists
from segmentlog.store.remote.location import Location, location_of, without_secrets
from segmentlog.store.remote.requests import request
from segmentlog.store.remote.stores import Store, store_at

if TYPE_CHECKING:
    from obstore.store import ObjectStore


_T = TypeVar("_T")

#: Shows that a prefix has such a log, and not a copy of a log directory.
MARKER = "segmentlog.bucket"

DATA = "data/"  #: beginning of the keys of data objects
_DATA_KEY = re.compile(r"data/[0-9A-Za-z]+/[0-9]+-[0-9A-Za-z]+\.batches")

CLOCK = "segmentlog/clock/"  #: of objects that are made to be looked at, and removed
_CLOCK_KEY = re.compile(r"segmentlog/clock/(now|doctor-[0-9a-f]+-[0-9]+)")

INSTALL = "pip install 'pyspark-segmentlog[bucket]'"

#: A larger object is uploaded in parts of this size.
PART_BYTES = 8 << 20

_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
_TIMEOUT = "60s"  # of a request
#: The process in which the client has made its threads.  They do not outlive a fork, and a request
#: in a child would wait for them for ever.
_process = 0
_FORKED = (
    "the client of the store (obstore) does not work in a process that was forked after its first "
    "request: start processes by spawn or forkserver (multiprocessing.set_start_method)"
)

#: A larger object is not read whole: its length is no reason to take as much memory.
MOST_WHOLE_BYTES = 256 << 20

#: Codes in the answers of S3, Azure and Google Cloud Storage.
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)")
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
_NOT_ACCEPTED = frozenset({
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
    "TokenRefreshRequired", "RequestTimeTooSkewed", "AuthenticationFailed",
    "InvalidAuthenticationInfo", "NoAuthenticationInformation", "AuthenticationRequired",
})  # fmt: skip

_OF_TOKENS = ("token request", "//169.254.", "//metadata.google", "/latest/api/token")

_CREATING, _WRITING = "creating", "writing"  # in messages
_MAKES = frozenset({_CREATING, _WRITING})

_MOST_DELETED = 1000  # keys in one request, the most that S3 takes


def is_data_key(key: str) -> bool:
    """Whether a key has the form of a data object's, from its beginning to its end."""
    return _DATA_KEY.fullmatch(key) is not None


def is_clock_key(key: str) -> bool:
    """Whether a key is of an object that only was made to be looked at."""
    return _CLOCK_KEY.fullmatch(key) is not None


def _code_in(said: str) -> str | None:
    """The store's own code for an error, in a message of the client."""
    found = _CODE.search(said)
    return found and found[1]


def _asks_for_token(said: str) -> bool:
    """Whether a request failed by which the client asks a machine, or a service, for a token."""
    return any(each in said for each in _OF_TOKENS)


class Found(NamedTuple):
    """An object of a listing."""

    key: str
    size: int
    modified_ms: int  # by the clock of the store (epoch)


class Objects(Protocol):
    """The objects below one prefix.

    A `StorageError` with ``EACCES`` means that the store has refused the request.  After any other
    one nobody knows whether the request was carried out, or is yet to be.
    """

    def create(self, key: str, data: bytes) -> bool:
        """Make an object unless there is one; whether this was done.

        Even after False there may be none: another client that was about to make it has failed.
        """

    def put(self, key: str, pieces: Iterable[bytes]) -> None:
        """Make an object, or replace it; it is there with all bytes, or not at all."""

    def get(self, key: str) -> bytes | None:
        """All bytes of an object; None if there is none.

        Raises `StorageError` with ``EFBIG`` for more than `MOST_WHOLE_BYTES`.
        """

    def read(self, key: str, start: int, n_bytes: int) -> bytes:
        """A range of an object; `FileNotFoundError` if there is none."""

    def list(self, prefix: str, *, after: str = "") -> Iterator[Found]:
        """The objects whose keys begin with a prefix that ends with a slash, or is empty.

        `after`: only keys after this one, in the order of the keys.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; those that are gone are no error."""


class ObstoreObjects:
    """`Objects` of a store that the package `obstore` serves.

    `shown`: the place, for errors.
    """

    def __init__(self, store: "ObjectStore", shown: str) -> None:
        self._store, self._shown = store, shown

    def _ask(self, what: str, key: str, request: Callable[[], _T]) -> _T:
        from obstore import exceptions

        global _process  # noqa: PLW0603 - the client has one set of threads for all stores
        _process = _process or os.getpid()
        if _process != os.getpid():
            raise LogDirectoryError(self._shown, _FORKED)
        try:
            return request()
        except (FileNotFoundError, exceptions.NotFoundError) as error:
            # For a bucket that is missing, each of its objects seems to be.
            if _code_in(str(error)) in _NO_BUCKET:
                raise self._failed(errno.ENOENT, what, key, error) from None
            if what in _MAKES:  # an upload in parts that a rule of the store has ended
                raise self._failed(errno.EIO, what, key, error) from None
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key) from None
        except StorageError as error:  # too large
            raise StorageError(
                error.errno or errno.EFBIG, error.strerror or "", f"{self._shown}/{key}"
            ) from None
        except (
            FileExistsError, exceptions.AlreadyExistsError, exceptions.PreconditionError,
        ) as error:  # fmt: skip
            if what == _CREATING:
                raise FileExistsError(key) from None
            # There was no condition: a conflict of two requests (409).
            raise self._failed(errno.EIO, what, key, error) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise self._failed(errno.EACCES, what, key, error) from None
        except (exceptions.BaseError, OSError) as error:
            said = str(error)
            number = errno.EIO
            if _code_in(said) in _NO_BUCKET or "no bucket named" in said:
                number = errno.ENOENT
            elif _code_in(said) in _NOT_ACCEPTED:
                number = errno.EACCES
            elif _asks_for_token(said):
                number = errno.EPERM
            raise self._failed(number, what, key, error) from None

    def _failed(self, number: int, what: str, key: str, error: Exception) -> StorageError:
        # Only the first line: the client adds what it would print for its developers.
        whole = str(error)
        said, code = whole.partition("\n")[0].partition("<")[0].strip(" :"), _code_in(whole)
        if code is not None:
            said += f": {code}"
            if message := _MESSAGE.search(whole):
                said += f" ({message[1].partition(chr(10))[0].strip()})"
        if number == errno.ENOENT:
            said = f"there is no such bucket or container; {said}"
        elif number == errno.EPERM:
            said = f"no credentials were found, and this machine has no role; {said}"
        elif number == errno.EACCES:
            refused = "credentials were not accepted" if code in _NOT_ACCEPTED else "not permitted"
            said = f"{refused}; {said}"
        return StorageError(
            number, f"{what} failed: {without_secrets(said)}", f"{self._shown}/{key}"
        )

    def create(self, key: str, data: bytes) -> bool:
        import obstore

        try:
            self._ask(
                _CREATING, key,
                lambda: obstore.put(self._store, key, data, mode="create", use_multipart=False),
            )  # fmt: skip
        except FileExistsError:
            return False
        return True

    def put(self, key: str, pieces: Iterable[bytes]) -> None:
        """See `Objects`: more bytes than a part are uploaded in parts, side by side."""
        import obstore

        pieces, first, n_bytes = iter(pieces), [], 0
        for piece in pieces:
            first.append(piece)
            n_bytes += len(piece)
            if n_bytes > PART_BYTES:
                break
        is_small = n_bytes <= PART_BYTES
        data = b"".join(first) if is_small else chain(first, pieces)
        self._ask(
            _WRITING, key,
            lambda: obstore.put(
                self._store, key, data, use_multipart=not is_small, chunk_size=PART_BYTES
            ),
        )  # fmt: skip

    def get(self, key: str) -> bytes | None:
        try:
            return self._ask("reading", key, partial(_whole, self._store, key))
        except FileNotFoundError:
            return None

    def read(self, key: str, start: int, n_bytes: int) -> bytes:
        import obstore

        return self._ask(
            "reading", key,
            lambda: bytes(obstore.get_range(self._store, key, start=start, length=n_bytes)),
        )  # fmt: skip

    def list(self, prefix: str, *, after: str = "") -> Iterator[Found]:
        import obstore

        pages = iter(obstore.list(self._store, prefix or None, offset=after or None))
        while True:
            page = self._ask("listing", prefix, lambda: next(pages, None))
            if page is None:
                return
            for each in page:
                modified_ms = int(each["last_modified"].timestamp() * 1000)
                yield Found(each["path"], each["size"], modified_ms)

    def delete(self, keys: Iterable[str]) -> None:
        import obstore

        left = [*keys]
        while left:
            part, left = left[:_MOST_DELETED], left[_MOST_DELETED:]
            try:
                self._ask("removing", part[0], partial(obstore.delete, self._store, part))
            except FileNotFoundError:  # a directory says so; the others may still be there
                for each in part if len(part) > 1 else ():
                    self.delete([each])


def _whole(store: "ObjectStore", key: str) -> bytes:
    import obstore

    found = obstore.get(store, key)
    if (size := found.meta["size"]) > MOST_WHOLE_BYTES:
        message = f"the object has {size} bytes, and at the most {MOST_WHOLE_BYTES} are read whole"
        raise StorageError(errno.EFBIG, message, key)
    return bytes(found.bytes())


class _DirectoryObjects(ObstoreObjects):
    """`Objects` in a local directory, which the first write makes: a wrong path leaves nothing."""

    def __init__(self, directory: str, shown: str) -> None:
        self._directory, self._shown = directory, shown

    def __getattr__(self, name: str) -> "ObjectStore":
        """The store, once there is the directory."""
        from obstore.store import LocalStore

        if name != "_store":
            raise AttributeError(name)
        if not exists(self._directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._directory)
        self._store = LocalStore(self._directory)
        return self._store

    def create(self, key: str, data: bytes) -> bool:
        self._make_directory()
        return super().create(key, data)

    def put(self, key: str, pieces: Iterable[bytes]) -> None:
        self._make_directory()
        super().put(key, pieces)

    def list(self, prefix: str, *, after: str = "") -> Iterator[Found]:
        return super().list(prefix, after=after) if exists(self._directory) else iter(())

    def _make_directory(self) -> None:
        try:
            os.makedirs(self._directory, exist_ok=True)
        except OSError as error:
            raise self._failed(error.errno or errno.EIO, "making", "", error) from None


_clients: dict[tuple[int, str], Objects] = {}


def objects_at(location: BucketLocation) -> Objects:
    """The client of a place; a process keeps it.

    Raises `LogDirectoryError` if the client is not installed, or an option is not accepted.
    """
    key = os.getpid(), location.root  # threads of the client do not outlive a fork
    if key not in _clients:
        _clients[key] = _connect(location)
    return _clients[key]


def _connect(location: BucketLocation) -> Objects:
    try:
        from obstore.exceptions import BaseError
    except ImportError:
        reason = f"a log in an object store needs the package obstore: {INSTALL}"
        raise LogDirectoryError(str(location), reason) from None
    if location.scheme == "file":
        return _DirectoryObjects(location.prefix, str(location))
    try:
        store = _store(location_of(location.store), location.prefix)
    except (BaseError, ValueError, TypeError) as error:
        said = without_secrets(str(error).partition("\n")[0])
        raise LogDirectoryError(str(location), f"cannot be opened: {said}") from None
    return ObstoreObjects(store, str(location))


def _store(location: Location, prefix: str) -> "ObjectStore":
    from obstore.store import AzureStore, GCSStore, S3Store

    client: Any = {"timeout": _TIMEOUT}
    options = dict(location.options)
    bucket, config, made = location.host, dict[str, Any](), cast("Any", AzureStore)
    if location.scheme == "s3":
        config, made = _s3_config(location, options), S3Store
    elif location.scheme == "gs":
        config, made = _google_config(location, options), GCSStore
    else:
        config = _azure_config(location, options)
        if ":" in location.host:  # a server, whose paths begin with the container
            bucket, _, prefix = prefix.partition("/")
        elif "." in location.host:
            bucket = location.user
    if options:
        raise ValueError(f"these options are unknown here: {', '.join(options)}")
    if any(str(value).startswith("http://") for value in config.values()) or _uses_http(config):
        client["allow_http"] = True
    found: ObjectStore = made(
        bucket, prefix=prefix or None, config=config, client_options=client, retry_config=_RETRIES
    )
    return found


def _uses_http(config: dict[str, Any]) -> bool:
    """Whether a server without TLS stands in the account of Google Cloud Storage."""
    return '"gcs_base_url": "http://' in config.get("service_account_key", "")


#: Parameters of `pyarrow.fs.S3FileSystem`, which reads take, and the names of the client.
_S3_NAMES = {
    "region": "region", "endpoint_override": "endpoint", "access_key": "access_key_id",
    "secret_key": "secret_access_key", "session_token": "session_token", "role_arn": "role_arn",
}  # fmt: skip


def _s3_config(location: Location, options: dict[str, str]) -> dict[str, Any]:
    """The client's names of options, which are taken out; so do the other two functions."""
    config: dict[str, Any] = {}
    if location.user:
        config |= {"access_key_id": location.user, "secret_access_key": location.password}
    scheme = options.pop("scheme", "https")
    for name, theirs in _S3_NAMES.items():
        if name in options:
            config[theirs] = options.pop(name)
    if options.pop("anonymous", "false") == "true":
        config["skip_signature"] = True
    if options.pop("force_virtual_addressing", "false") == "true":
        config["virtual_hosted_style_request"] = True
    for name in ("allow_bucket_creation", "allow_bucket_deletion"):
        options.pop(name, None)
    endpoint = config.get("endpoint", "")
    if endpoint and "://" not in endpoint:
        endpoint = config["endpoint"] = f"{scheme}://{endpoint}"
    if "region" not in config and endpoint:
        config["region"] = os.environ.get("AWS_REGION", "us-east-1")
    return config


def _google_config(location: Location, options: dict[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, theirs in {"access_token": "bearer_token", "service_account_key": ""}.items():
        if name in options:
            config[theirs or name] = options.pop(name)
    for name in ("project_id", "retry_limit_seconds", "default_bucket_location"):
        options.pop(name, None)
    scheme, endpoint = options.pop("scheme", "https"), options.pop("endpoint_override", "")
    if endpoint and "://" not in endpoint:
        endpoint = f"{scheme}://{endpoint}"
    if location.user == "anonymous" or options.pop("anonymous", "false") == "true":
        # With its option for this (skip_signature), the client asks for a token when it writes.
        account = dict.fromkeys(("private_key", "private_key_id", "client_email"), "")
        server = {"gcs_base_url": endpoint} if endpoint else {}
        config["service_account_key"] = json.dumps(account | {"disable_oauth": True} | server)
    elif endpoint:
        config["base_url"] = endpoint
    return config


#: Parameters of `pyarrow.fs.AzureFileSystem` that the client has, too.
_AZURE_NAMES = (
    "account_name", "account_key", "sas_token", "client_id", "client_secret", "tenant_id",
)  # fmt: skip


def _azure_config(location: Location, options: dict[str, str]) -> dict[str, Any]:
    """Config for the forms of URLs that `segmentlog.store.remote.stores` reads, and ``az:``.

    Without an account, it is that of the environment (``AZURE_STORAGE_ACCOUNT_NAME``).
    """
    config: dict[str, Any] = {name: options.pop(name) for name in _AZURE_NAMES if name in options}
    host, account = location.host, location.user
    scheme = "http" if options.pop("enable_tls", "true") == "false" else "https"
    authority = options.pop("blob_storage_authority", "")
    options.pop("dfs_storage_authority", None)  # only one of the two is asked here
    if ":" in host:
        authority = host
    elif "." in host:
        account = host.partition(".")[0]
    if account:
        config["account_name"] = account
    if location.password:
        config["account_key"] = location.password
    if options.pop("anonymous", "false") == "true":
        config["skip_signature"] = True
    account = config.get("account_name", os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", ""))
    if authority.startswith("."):  # of another cloud: the account comes before
        config["endpoint"] = f"{scheme}://{account}{authority}"
    elif authority:
        config["endpoint"] = f"{scheme}://{authority}/{account}"
    return config


#: Seconds for which a URL without a marker is not asked for again.  One with a marker keeps it.
_FORGOTTEN_AFTER = 10.0

_stores: dict[tuple[int, str], Store] = {}
_known: dict[tuple[int, str], tuple[bool, float]] = {}


def recognized(url: str) -> str | None:
    """The path of a log that a URL leads to, or of something in it; None if it is none."""
    location = bucket_at(url)
    if location is None:
        return None
    if ";prefix=" in url and is_bucket(url):
        return url  # made here
    place = location
    names: list[str] = []
    while True:
        if _has_marker(location):
            return "/".join([location.root, *reversed(names)])
        before, _, name = location.prefix.rpartition("/")
        is_part = parse_partition_directory(name) or parse_segment_file(name)
        if not is_part or len(names) == 2:
            return place.root if is_bucket(url) else None
        names.append(name)
        location = location._replace(prefix=before)


def _has_marker(location: BucketLocation) -> bool:
    key = os.getpid(), location.root
    is_there, asked = _known.get(key, (False, 0.0))
    if is_there or (asked and time.monotonic() - asked < _FORGOTTEN_AFTER):
        return is_there
    if location.scheme == "file":
        is_there = exists(f"{location.prefix}/{MARKER}")
    else:
        is_there = _is_in_store(location)
    _known[key] = is_there, time.monotonic()
    return is_there


def _is_in_store(location: BucketLocation) -> bool:
    """Whether a store has the marker.

    The client that reads copies of log directories needs no other package.  For S3, it knows all
    credentials that the client of logs knows, and files of profiles.  For Google Cloud Storage and
    Azure it knows fewer, so there it is only asked if the client of logs cannot tell.  If neither
    can, the read of a copy reports that.
    """
    last: StorageError | None = None
    reads_copies = True
    is_s3 = location.scheme == "s3"
    for finds in (_finds_as_copy,) if is_s3 else (_finds_as_log, _finds_as_copy):
        try:
            return finds(location)
        except LogDirectoryError:  # no package, or an option that the client does not know
            reads_copies = finds is not _finds_as_copy
        except StorageError as error:
            last = error
    # A store that fails for a moment has not said that there is no log: its objects would be taken
    # for a directory without partitions.  And if no copy can be read (``az:`` without adlfs), the
    # user has to hear of a wrong key.
    if last is None or (last.errno == errno.EACCES and reads_copies):
        return False
    raise last


def _finds_as_copy(location: BucketLocation) -> bool:
    key = f"{location.prefix}/{MARKER}".lstrip("/")
    path = f"{location.store}/{key}"
    client = os.getpid(), location.store
    try:
        if client not in _stores:
            _stores[client] = request(
                path, "connecting", partial(store_at, location_of(location.store))
            )
        return not request(path, "looking up", partial(_stores[client].facts, key)).is_directory
    except FileNotFoundError:
        return False


def _finds_as_log(location: BucketLocation) -> bool:
    return objects_at(location).get(MARKER) is not None


def log_above(location: BucketLocation) -> BucketLocation | None:
    """The nearest log whose place a place lies in, or None.

    Raises `StorageError` if the store cannot be asked.
    """
    least = 0
    if location.scheme == "abfs" and ":" in location.store.rpartition("@")[2].partition(";")[0]:
        least = 1  # a server, whose paths begin with the container
    prefix = location.prefix
    while prefix.strip("/").count("/") + bool(prefix.strip("/")) > least:
        prefix = prefix.rpartition("/")[0]
        above = location._replace(prefix=prefix)
        try:
            if location.scheme == "file":
                is_there = exists(f"{prefix}/{MARKER}")
            else:
                is_there = _connect(above).get(MARKER) is not None
        except StorageError as error:
            if error.errno != errno.EACCES:
                raise
            is_there = False  # the rights of many end at their own place
        if is_there:
            return above
    return None


def forget(location: BucketLocation) -> None:
    """Ask again for a log: this process has made it."""
    _known.pop((os.getpid(), location.root), None)
