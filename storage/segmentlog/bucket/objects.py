"""What a log needs of an object store, by the package `obstore`.

The one request that decides anything is `Objects.create`: of several clients that create a key, at
the most one succeeds.  A store that ignores the condition would lose commits in silence, so each
process that writes asks the store once to break its word (`Sequence.create`).

A client repeats other requests by itself.  If it repeated a conditional one, an answer might be
that to a repetition: a refusal (403), although the request before it was carried out.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from segmentlog.errors import LogDirectoryError, StorageError
from segmentlog.store.remote.location import without_secrets
from segmentlog.store.remote.requests import in_time

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore


_T = TypeVar("_T")

#: Shows that a prefix has such a log, and not a copy of a log directory.
MARKER = "segmentlog.bucket"

DATA = "data/"  #: beginning of the keys of data objects
_DATA_KEY = re.compile(r"data/[0-9a-f]{16}/[0-9]+-[0-9a-f]{8}\.batches")

CLOCK = "segmentlog/clock/"  #: of objects that are made to be looked at, and removed
_CLOCK_KEY = re.compile(r"segmentlog/clock/(now|compact-[0-9a-f]+|doctor-[0-9a-f]+-[0-9]+)")

#: A larger object is uploaded in parts of this size.
PART_BYTES = 8 << 20

#: The process in which the client has made its threads.  They do not outlive a fork, and a request
#: in a child would wait for them for ever.
_process = 0
_FORKED = (
    "the client of the store (obstore) does not work in a process that was forked after its first "
    "request: start processes by spawn or forkserver (multiprocessing.set_start_method)"
)

#: Instead of an ``ETag``, if a store gives none for a new object; no list has it.
UNNAMED = "?"

#: A larger object is not read whole: its length is no reason to take as much memory.
MOST_WHOLE_BYTES = 256 << 20

#: In the messages of the client: status and code in the answer of S3, Azure or Google.
_STATUS = re.compile(r"non-2xx status code: ([0-9]{3}) ")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)")
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
#: Other credentials may be accepted: those of now, or those that were renewed.
_RENEWED = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "AuthenticationFailed",
        "InvalidAuthenticationInfo",
        "NoAuthenticationInformation",
        "AuthenticationRequired",
    }
)
_NOT_ACCEPTED = _RENEWED | {"RequestTimeTooSkewed"}

#: Answers that may hide that the request is carried out, or will be.
_NOT_FINAL = frozenset({408, 409, 412, 425, 429})

_NO_CONDITION = "status code: 501 "  # the store has no such condition

_OF_TOKENS = ("token request", "//169.254.", "//metadata.google", "/latest/api/token")
_OF_PROFILES = "credential provider"  # in what the client says if a profile gives no credentials

#: In what the client prints for its developers: no connection was made, so nothing was sent; and
#: no request of its own repetitions came before.
_NEVER_SENT = re.compile(r"hyper_util::client::legacy::Error\(\s*Connect,")
_FIRST_TRY = re.compile(r"\bretries: 0,")
#: In the same place: why a server was not reached.
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)")

_CREATING, _REPLACING, _WRITING = "creating", "replacing", "writing"  # in messages
_MAKES = frozenset({_CREATING, _WRITING})

_MOST_DELETED = 1000  # keys in one request, the most that S3 takes


def is_data_key(key: str) -> bool:
    """Whether a key has the form of a data object's, from its beginning to its end."""
    return _DATA_KEY.fullmatch(key) is not None


def job_of(key: str) -> str:
    """The job in the key of a data object."""
    return key.removeprefix(DATA).partition("/")[0]


def is_clock_key(key: str) -> bool:
    """Whether a key is of an object that only was made to be looked at."""
    return _CLOCK_KEY.fullmatch(key) is not None


def _code_in(said: str) -> str:
    """The store's own code for an error, in a message of the client; or an empty text."""
    found = _CODE.search(said)
    return found[1] if found else ""


def _number_of(said: str) -> int:
    """Number of the system's error that says the same as a message of the client."""
    code, status = _code_in(said), _STATUS.search(said)
    if code in _NO_BUCKET or "no bucket named" in said:
        return errno.ENOENT
    if code in _NOT_ACCEPTED:
        return errno.EACCES
    if any(each in said for each in (*_OF_TOKENS, _OF_PROFILES)):
        return errno.EPERM
    if _NEVER_SENT.search(said) and _FIRST_TRY.search(said):
        return errno.ECONNREFUSED if "ConnectionRefused" in said else errno.EHOSTUNREACH
    if status is not None and 400 <= int(status[1]) < 500 and int(status[1]) not in _NOT_FINAL:
        return errno.EINVAL
    return errno.EIO


#: Errors of requests that have never come to the store.
NEVER_SENT = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH})
#: And those of requests that the store says it has not carried out, and will not.
REFUSALS = NEVER_SENT | {errno.EACCES, errno.EPERM, errno.ENOENT, errno.EINVAL}


class ListedObject(NamedTuple):
    """An object of a listing."""

    key: str
    size: int
    modified_ms: int  # by the clock of the store (epoch)
    e_tag: str = ""  # what the store calls these bytes; empty if it does not say so


class UnsyncedError(StorageError):
    """An object is there, and a power cut may take it away again."""

    def __init__(self, errno: int, strerror: str, filename: str = "") -> None:
        super().__init__(errno, strerror, filename)


class Objects(Protocol):
    """The objects below one prefix.

    A `StorageError` with a number of `REFUSALS` means that the store has refused the request, or
    that it was never sent.
    After any other one nobody knows whether the request was carried out, or is yet to be.
    """

    #: whether a list of the last keys takes longer, the more keys there are before them
    lists_all: bool

    def create(self, key: str, data: bytes) -> str | None:
        """Make an object unless there is one, by one request; what a list calls it, or None.

        Even after None there may be none: another client that was about to make it has failed.
        """

    def put(self, key: str, pieces: Iterable[bytes]) -> None:
        """Make an object, or replace it; it is there with all bytes, or not at all."""

    def exchange(self, key: str, before: bytes, data: bytes) -> bool:
        """Replace an object that still has some bytes; whether it did so.

        A store without such a condition (`If-Match`) may do so even if the object was replaced
        between a look and the request.
        """

    def get(self, key: str) -> bytes | None:
        """All bytes of an object; None if there is none.

        Raises `StorageError` with ``EFBIG`` for more than `MOST_WHOLE_BYTES`.
        """

    def read(self, key: str, start: int, n_bytes: int) -> bytes:
        """A range of an object; `FileNotFoundError` if there is none."""

    def list(self, prefix: str, *, after: str = "") -> Iterator[ListedObject]:
        """The objects whose keys begin with a prefix that ends with a slash, or is empty.

        `after`: only keys after this one, in the order of the keys.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; those that are gone are no error."""


class Client:
    """The client of a place, twice, with the same settings.

    `store` repeats requests that have failed for a moment, and `once` makes each request once.  A
    reader needs only the first, and each takes the time of a request to make.  `made_from`: the
    settings of its environment.
    """

    def __init__(
        self, store: "ObjectStore", once: Callable[[], "ObjectStore"], made_from: object = None
    ) -> None:
        self.store, self._once, self.made_from = store, once, made_from

    @cached_property
    def once(self) -> "ObjectStore":
        """See `Client`."""
        return self._once()


class ObstoreObjects:
    """`Objects` of a store that the package `obstore` serves.

    `shown`: the place, for errors.  `connect`: makes the client.  `made_from`: what it would be
    made from now; if that has changed, it is made again.  `lists_all`: see `Objects`.  `seconds`:
    until a request has failed, with its repetitions; None for a client that does not wait.
    """

    def __init__(
        self,
        shown: str,
        connect: Callable[[], Client],
        made_from: Callable[[], object] = lambda: None,
        *,
        lists_all: bool = False,
        seconds: float | None = None,
    ) -> None:
        self._shown, self._connect, self._made_from = shown, connect, made_from
        self.lists_all, self._seconds = lists_all, seconds
        self._client: Client | None = None

    def connect(self) -> Client:
        """The client, with the settings of now."""
        client = self._client  # another thread may make a new one
        if client is None or client.made_from != self._made_from():
            client = self._client = self._connect()
        return client

    def _ask(
        self, what: str, key: str, request: Callable[[Client], _T], *, is_repeatable: bool = True
    ) -> _T:
        """The answer to a request.

        `is_repeatable`: whether it may be made again at once, and takes no longer than others.
        """
        global _process  # noqa: PLW0603 - the client has one set of threads for all stores
        _process = _process or os.getpid()
        if _process != os.getpid():
            raise LogDirectoryError(self._shown, _FORKED)
        known = self._client
        try:
            return self._answer(what, key, request, is_short=is_repeatable)
        except StorageError as error:
            if error.store_code not in _RENEWED and error.errno != errno.EPERM:
                raise
            self._client = None  # a profile or a role may have other credentials by now
            if known is None or error.errno == errno.EPERM or not is_repeatable:
                raise
        return self._answer(what, key, request)  # nothing was done: this is no repetition

    def _answer(
        self, what: str, key: str, request: Callable[[Client], _T], *, is_short: bool = True
    ) -> _T:
        from obstore import exceptions

        try:
            if self._seconds is None or not is_short:
                return request(self.connect())
            return in_time(self._seconds, lambda: request(self.connect()))
        except TimeoutError:
            said = f"{what} took more than {self._seconds:g} s"
            raise StorageError(errno.ETIMEDOUT, said, f"{self._shown}/{key}") from None
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
            FileExistsError,
            exceptions.AlreadyExistsError,
            exceptions.PreconditionError,
        ) as error:
            if what in {_CREATING, _REPLACING}:
                raise FileExistsError(key) from None
            # There was no condition: a conflict of two requests (409).
            raise self._failed(errno.EIO, what, key, error) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            number = errno.EPERM if _OF_PROFILES in str(error) else errno.EACCES
            raise self._failed(number, what, key, error) from None
        except (exceptions.BaseError, OSError) as error:
            raise self._failed(_number_of(str(error)), what, key, error) from None

    def _failed(self, number: int, what: str, key: str, error: Exception) -> StorageError:
        # The error of the client is no cause: it may show a token.
        # Only the first line: the client adds what it would print for its developers.
        whole = str(error)
        said, code = whole.partition("\n")[0].partition("<")[0].strip(" :"), _code_in(whole)
        if code:
            said += f": {code}"
            if message := _MESSAGE.search(whole):
                said += f" ({message[1].partition(chr(10))[0].strip()})"
        elif certificate := _CERTIFICATE.search(whole):
            said += f": the certificate is not trusted ({certificate[1]}): name that of its maker "
            said += "in AWS_CA_BUNDLE"
        elif causes := _CAUSE.findall(whole):
            said += f": {causes[-1]}"
        if number == errno.ENOENT:
            said = f"there is no such bucket or container; {said}"
        elif number == errno.EPERM:
            said = f"no credentials were found; {said}"
        elif number == errno.EACCES:
            refused = "credentials were not accepted" if code in _NOT_ACCEPTED else "not permitted"
            said = f"{refused}; {said}"
        return StorageError(
            number, f"{what} failed: {without_secrets(said)}", f"{self._shown}/{key}", code
        )

    def create(self, key: str, data: bytes) -> str | None:
        import obstore

        try:
            made = self._ask(
                _CREATING,
                key,
                lambda c: obstore.put(c.once, key, data, mode="create", use_multipart=False),
            )
        except FileExistsError:
            return None
        return made["e_tag"] or UNNAMED

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
            _WRITING,
            key,
            lambda c: obstore.put(
                c.store, key, data, use_multipart=not is_small, chunk_size=PART_BYTES
            ),
            is_repeatable=is_small,  # else some pieces are gone
        )

    def exchange(self, key: str, before: bytes, data: bytes) -> bool:
        try:
            return self._ask(_REPLACING, key, partial(_exchanged, key, before, data))
        except (FileExistsError, FileNotFoundError):
            return False

    def get(self, key: str) -> bytes | None:
        try:
            return self._ask("reading", key, partial(_whole, key))
        except FileNotFoundError:
            return None

    def read(self, key: str, start: int, n_bytes: int) -> bytes:
        import obstore

        return self._ask(
            "reading",
            key,
            lambda c: bytes(obstore.get_range(c.store, key, start=start, length=n_bytes)),
        )

    def list(self, prefix: str, *, after: str = "") -> Iterator[ListedObject]:
        import obstore
        from obstore import exceptions

        pages: Iterator[Sequence[ObjectMeta]] | None = None
        last = after

        def page(client: Client) -> "Sequence[ObjectMeta] | None":
            nonlocal pages
            if pages is None:
                pages = iter(obstore.list(client.store, prefix or None, offset=last or None))
            try:
                return next(pages, None)
            except exceptions.BaseError:
                pages = None  # by another client, the list goes on after what is known
                raise

        while found := self._ask("listing", prefix, page):
            for each in found:
                modified_ms = int(each["last_modified"].timestamp() * 1000)
                yield ListedObject(each["path"], each["size"], modified_ms, each["e_tag"] or "")
            last = max(last, *(each["path"] for each in found))

    def delete(self, keys: Iterable[str]) -> None:
        left = [*keys]
        while left:
            part, left = left[:_MOST_DELETED], left[_MOST_DELETED:]
            try:
                self._ask("removing", part[0], partial(_removed, part))
            except FileNotFoundError:  # a directory says so; the others may still be there
                for each in part if len(part) > 1 else ():
                    self.delete([each])


def _removed(keys: Sequence[str], client: Client) -> None:
    import obstore

    obstore.delete(client.store, keys)


def _exchanged(key: str, before: bytes, data: bytes, client: Client) -> bool:
    import obstore
    from obstore import exceptions

    found = obstore.get(client.once, key)
    named = {name: found.meta[name] for name in ("e_tag", "version") if found.meta[name]}
    if bytes(found.bytes()) != before:
        return False
    put = partial(obstore.put, client.once, key, data, use_multipart=False)
    try:
        put(mode=cast("Any", named or "overwrite"))
    except (exceptions.BaseError, NotImplementedError) as error:
        if not isinstance(error, NotImplementedError) and _NO_CONDITION not in str(error):
            raise
        put()
    return True


def _whole(key: str, client: Client) -> bytes:
    import obstore

    found = obstore.get(client.store, key)
    if (size := found.meta["size"]) > MOST_WHOLE_BYTES:
        message = f"the object has {size} bytes, and at the most {MOST_WHOLE_BYTES} are read whole"
        raise StorageError(errno.EFBIG, message, key)
    return bytes(found.bytes())
