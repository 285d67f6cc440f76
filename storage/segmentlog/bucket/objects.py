"""What a log needs of an object store, and the client that provides it.

The one request that decides anything is `Objects.create`: of several clients that create a key, at
the most one succeeds.  A store that ignores the condition would lose commits in silence, so each
process that writes asks the store once to break its word (`check_conditional`).
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from segmentlog.errors import LogDirectoryError, StorageError
from segmentlog.store.bucket_location import BucketLocation
from segmentlog.store.remote.location import Location, location_of, without_secrets

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_T = TypeVar("_T")

#: Shows that a prefix has such a log, and not a copy of a log directory.
MARKER = "segmentlog.bucket"

DATA = "data/"  #: beginning of the keys of data objects

INSTALL = "pip install 'pyspark-segmentlog[bucket]'"

#: A larger object is uploaded in parts of this size.
PART_BYTES = 8 << 20

_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
_SECONDS = "60s"  # of a request
#: The process in which the client has made its threads.  They do not outlive a fork, and a request
#: in a child would wait for them for ever.
_process = 0
_FORKED = (
    "the client of the store (obstore) does not work in a process that was forked after its first "
    "request: start processes by spawn or forkserver (multiprocessing.set_start_method)"
)

#: A larger object is not read whole: its length is no reason to take as much memory.
MOST_WHOLE_BYTES = 256 << 20

_ALL_DELETED = 1000  # keys in one request, the most that S3 takes


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

    def list(self, prefix: str) -> Iterator[Found]:
        """The objects whose keys begin with a prefix that ends with a slash, or is empty."""

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
        except (FileNotFoundError, exceptions.NotFoundError):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key) from None
        except StorageError as error:  # too large
            raise StorageError(
                error.errno or errno.EFBIG, error.strerror or "", f"{self._shown}/{key}"
            ) from None
        except FileExistsError:
            raise
        except exceptions.AlreadyExistsError:
            raise FileExistsError(key) from None
        except exceptions.PreconditionError:
            raise FileExistsError(key) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise self._failed(errno.EACCES, what, key, error) from None
        except (exceptions.BaseError, OSError) as error:
            raise self._failed(errno.EIO, what, key, error) from None

    def _failed(self, number: int, what: str, key: str, error: Exception) -> StorageError:
        # Only the first line: the client adds what it would print for its developers.
        said = without_secrets(str(error).partition("\n")[0])
        return StorageError(number, f"{what} failed: {said}", f"{self._shown}/{key}")

    def create(self, key: str, data: bytes) -> bool:
        """See `Objects`."""
        import obstore

        try:
            self._ask(
                "creating", key,
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
            "writing", key,
            lambda: obstore.put(
                self._store, key, data, use_multipart=not is_small, chunk_size=PART_BYTES
            ),
        )  # fmt: skip

    def get(self, key: str) -> bytes | None:
        """See `Objects`."""
        try:
            return self._ask("reading", key, partial(_whole, self._store, key))
        except FileNotFoundError:
            return None

    def read(self, key: str, start: int, n_bytes: int) -> bytes:
        """See `Objects`."""
        import obstore

        return self._ask(
            "reading", key,
            lambda: bytes(obstore.get_range(self._store, key, start=start, length=n_bytes)),
        )  # fmt: skip

    def list(self, prefix: str) -> Iterator[Found]:
        """See `Objects`."""
        import obstore

        pages = iter(obstore.list(self._store, prefix or None))
        while True:
            page = self._ask("listing", prefix, lambda: next(pages, None))
            if page is None:
                return
            for each in page:
                modified_ms = int(each["last_modified"].timestamp() * 1000)
                yield Found(each["path"], each["size"], modified_ms)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Objects`."""
        import obstore

        left = [*keys]
        while left:
            part, left = left[:_ALL_DELETED], left[_ALL_DELETED:]
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


def check_conditional(objects: Objects, location: BucketLocation) -> None:
    """Refuse a store that creates an object that is there; the log's marker must be.

    The attempt writes the bytes that the marker has: a store that ignores the condition is none
    the worse for it.
    """
    marker = objects.get(MARKER)
    if marker is not None and objects.create(MARKER, marker):
        reason = (
            "the store has replaced an object that was to be created only if there was none: it "
            "has no conditional writes (If-None-Match), and commits of two writers would be lost; "
            "use another store, or another version of this one"
        )
        raise LogDirectoryError(str(location), reason)


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
        from obstore.store import LocalStore
    except ImportError:
        reason = f"a log in an object store needs the package obstore: {INSTALL}"
        raise LogDirectoryError(str(location), reason) from None
    if location.scheme == "file":
        return ObstoreObjects(LocalStore(location.prefix, mkdir=True), str(location))
    try:
        store = _store(location_of(location.store), location.prefix)
    except (BaseError, ValueError, TypeError) as error:
        said = without_secrets(str(error).partition("\n")[0])
        raise LogDirectoryError(str(location), f"cannot be opened: {said}") from None
    return ObstoreObjects(store, str(location))


def _store(location: Location, prefix: str) -> "ObjectStore":
    from obstore.store import AzureStore, GCSStore, S3Store

    common: Any = {"prefix": prefix or None, "retry_config": _RETRIES}
    client: Any = {"timeout": _SECONDS}
    options = dict(location.options)
    if location.scheme == "s3":
        return S3Store(
            location.host, config=_s3_config(location, options, client), client_options=client,
            **common,
        )  # fmt: skip
    if location.scheme == "gs":
        if location.user or options:
            accepted = "give the credentials of Google Cloud Storage in the environment"
            raise ValueError(f"{accepted}, and no option but those: {', '.join(options)}")
        return GCSStore(location.host, client_options=client, **common)
    account, container = location.host.partition(".")[0], location.user
    config: Any = {"account_name": account}
    for name in ("account_key", "sas_token"):
        if name in options:
            config[name] = options.pop(name)
    if location.password:
        account, container = location.user, location.host
        config = {"account_name": account, "account_key": location.password}
    if options:
        raise ValueError(f"these options are unknown here: {', '.join(options)}")
    return AzureStore(container, config=config, client_options=client, **common)


#: Parameters of `pyarrow.fs.S3FileSystem`, which reads take, and the names of the client.
_S3_NAMES = {
    "region": "region", "endpoint_override": "endpoint", "access_key": "access_key_id",
    "secret_key": "secret_access_key", "session_token": "session_token", "role_arn": "role_arn",
}  # fmt: skip


def _s3_config(location: Location, options: dict[str, str], client: dict[str, Any]) -> Any:  # noqa: ANN401 - its type is only for checkers
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
    if options:
        raise ValueError(f"these options are unknown here: {', '.join(options)}")
    endpoint = config.get("endpoint", "")
    if endpoint and "://" not in endpoint:
        endpoint = config["endpoint"] = f"{scheme}://{endpoint}"
    if endpoint.startswith("http://"):
        client["allow_http"] = True
    if "region" not in config and endpoint:
        config["region"] = os.environ.get("AWS_REGION", "us-east-1")
    return config
