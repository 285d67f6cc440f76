"""Paths as users write them, what they name, and where no log directory is written.

The path of a log directory with a tier ends with the name of its file, so that names can be joined
to it and cut off from it, and a task on another machine finds the file by its path alone.  So all
that is known of the tier stands in front of the first slash::

    tiered://local;local=%2Fvar%2Flib%2Fkafka;remote=%2Fmnt%2Ftier/orders-0/00000000000000000000.log

The name of a file of keys stands in it, but never a key.  A log in an object store that any
cluster writes (`segmentlog.bucket`) has a path of the same form::

    bucket+s3://bucket;endpoint_override=http:%2F%2Fminio:9000;prefix=logs/orders-0/000….log

Users write the URL of the store, ``s3://bucket/logs``.  A marker object tells such a log from a
copy of a log directory (`segmentlog.bucket.objects.MARKER`).  ``bucket+file:///path`` keeps one in
a local directory, for tests: a plain path, and a ``file:`` URI, stay log directories.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from segmentlog.arguments import one_of, path_text
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.model import RemoteStorageLayout
from segmentlog.store.partitions import refuse_partition
from segmentlog.store.readable import is_url
from segmentlog.store.remote.location import location_of, path_of_url, without_options
from segmentlog.store.virtual_disks import recognized_paths

_OF_PATTERNS = "*?["

#: The beginning of a URL that lacks slashes: credentials in it would be shown with the path.
_ONE_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:(/|[^/]*@)", re.IGNORECASE)


def local_path(path: str | os.PathLike[str]) -> str:
    """Absolute local path of `path`: relative, with ``~``, or a ``file:`` URI.

    Symbolic links are kept, so messages have the user's own path.  Raises `LogDirectoryError` for
    other URLs and for what cannot be a path, and `OptionError` for other types.
    """
    text = path_text("path", path)
    if "\0" in text:
        raise LogDirectoryError(
            repr(text), "the path contains a null character, which no file name can contain"
        )
    if not text.strip():
        raise LogDirectoryError(repr(text), "the path is empty; name a Kafka log directory")
    scheme, colon, _ = text.partition(":")
    if colon and scheme.lower() == "file":
        uri = urlsplit(text)
        if uri.netloc not in {"", "localhost"}:
            raise LogDirectoryError(text, f"host {uri.netloc!r} is not this machine")
        if not uri.path:
            raise LogDirectoryError(text, "the URI contains no path; write file:///var/lib/kafka")
        text = unquote(uri.path)
    elif "://" in text:
        reason = (
            "a directory at a URL can only be read, and in S3, Google Cloud Storage and Azure "
            "appended to (segmentlog.open_writer, in Spark a write): this operation needs the "
            "locks, renames and syncs of a file system; mirror it to a local directory "
            "(segmentlog mirror), work there, and mirror back, or copy that directory to the URL"
        )
        raise LogDirectoryError(path_of_url(text), reason)
    elif _ONE_SLASH.match(text) and not os.path.exists(text):
        reason = f"a URL has two slashes after {scheme}:, and a local path begins with / or ./"
        raise LogDirectoryError(f"{scheme}:…" if "@" in text else text, reason)
    return os.path.abspath(os.path.expanduser(text))


def writable_path(path: str | os.PathLike[str]) -> str:
    """Path of a log to append to, local or in an object store; raises as `local_path` does."""
    text = path_text("path", path)
    is_url = "://" in text and text[:5].lower() != "file:" and "\0" not in text
    location = bucket_at(text) if is_url else None
    return local_path(text) if location is None else location.root


def readable_path(path: str | os.PathLike[str]) -> str:
    """Path of a log directory to read: a local path, or a URL in the form of a path.

    Raises `LogDirectoryError` as `local_path` does; or if a URL names no bucket.  Raises
    `OptionError` as `local_path` does.
    """
    text = path_text("path", path)
    is_local = "://" not in text or text[:5].lower() == "file:" or "\0" in text
    if is_local:
        return local_path(text)
    location = bucket_at(text) if is_bucket(text) else None
    if location is not None and not text.startswith(location.root):  # not one that was made here
        return location.root
    return path_of_url(text)


def opened_path(path: str | os.PathLike[str]) -> str:
    """`readable_path` of a log directory that is about to be opened: its store may be asked."""
    # A URL of S3, Google Cloud Storage or Azure may lead to a log of another kind than a copy of a
    # log directory.
    text = path_text("path", path)
    is_local = "://" not in text or text[:5].lower() == "file:"
    path_on_disk = None if is_local else next(recognized_paths(text), None)
    return path_on_disk or readable_path(path)


def is_pattern(path: str) -> bool:
    """Whether a path was meant for several, as a shell expands it; nothing here does."""
    return any(char in path for char in _OF_PATTERNS)


def why_not_there(path: str) -> str:
    """Reason for an error about a path that leads to no file."""
    reason = "there is no such file or directory"
    if is_pattern(path):
        reason += "; the characters * and ? are not expanded in a path: name each directory"
    return reason


_SCHEME = "tiered://"


class TieredLocation(NamedTuple):
    """A log directory with a tier, or a tier alone."""

    layout: RemoteStorageLayout  # of the tier
    remote: str  # its directory, or a URL in the form of a path
    local: str = ""  # the log directory, or empty
    key_file: str = ""  # files of private keys, as the option has them, or empty
    skips_gaps: bool = False  # whether missing offsets in the tier are left out, and logged

    @property
    def root(self) -> str:
        """Beginning of the paths of all files."""
        options = [f"remote={quote(self.remote, '')}"]
        if self.local:
            options.insert(0, f"local={quote(self.local, '')}")
        if self.key_file:
            options.append(f"keys={quote(self.key_file, '')}")
        if self.skips_gaps:
            options.append("gaps=skip")
        return ";".join([f"{_SCHEME}{self.layout}", *options])


def is_tiered(path: str) -> bool:
    """Whether a path is one of a log directory with a tier, or of a tier alone."""
    return path.startswith(_SCHEME)


def parse_tiered(path: str) -> tuple[TieredLocation, str]:
    """The tier of a path, and the rest of the path without a slash at either end."""
    root, _, rest = path.removeprefix(_SCHEME).partition("/")
    layout, *given = root.split(";")
    options = {name: unquote(value) for name, _, value in (each.partition("=") for each in given)}
    location = TieredLocation(
        RemoteStorageLayout(layout),
        options["remote"],
        options.get("local", ""),
        options.get("keys", ""),
        "gaps" in options,
    )
    return location, rest.strip("/")


def plain_path(path: str) -> str:
    """The path below the log directory, or below a tier alone, for messages."""
    if not is_tiered(path):
        return path
    location, rest = parse_tiered(path)
    return os.path.join(location.local or location.remote, rest).rstrip("/")


def tiered_paths(
    paths: Iterable[str | os.PathLike[str]],
    remote_storage: str | os.PathLike[str] | None = None,
    remote_storage_layout: str | None = None,
    remote_storage_key_file: str | os.PathLike[str] | None = None,
    *,
    fail_on_data_loss: bool = True,
) -> list[str | os.PathLike[str]]:
    """Log directories, each with the tier if there is one."""
    directories = list(paths)
    if remote_storage is None:
        for name, given in (
            ("remote_storage_layout", remote_storage_layout),
            ("remote_storage_key_file", remote_storage_key_file),
        ):
            if given is not None:
                accepted = "it belongs to remote_storage, which is not given"
                raise OptionError(name, str(given), accepted)
        if not directories:
            raise OptionError("path", "", "give a log directory, or remote_storage")
        return directories
    layout = remote_storage_layout or RemoteStorageLayout.LOCAL
    tier = TieredLocation(
        one_of("remote_storage_layout", layout, RemoteStorageLayout),
        readable_path(remote_storage),
        key_file=(
            ""
            if remote_storage_key_file is None
            else path_text("remote_storage_key_file", remote_storage_key_file)
        ),
        skips_gaps=not fail_on_data_loss,
    )
    if not directories:
        return [tier.root]
    local = [local_path(each) for each in directories]
    for each in local:
        refuse_partition(each)
    return [tier._replace(local=each).root for each in local]


_BEGIN = "bucket+"
_PREFIX = ";prefix="

#: Stores with a conditional write that the client can ask for.
SCHEMES = frozenset({"s3", "gs", "abfs", "az"})


class BucketLocation(NamedTuple):
    """The place of a log: the root of a store as a path, and the beginning of all keys."""

    store: str  # ``s3://bucket``, with options in the form of a path; ``file://`` for directories
    prefix: str  # without a slash at either end; of ``file://``, an absolute path

    @property
    def root(self) -> str:
        """Beginning of the paths of all files."""
        return f"{_BEGIN}{self.store}{_PREFIX}{quote(self.prefix, '')}"

    @property
    def scheme(self) -> str:
        """Scheme of the store."""
        return self.store.partition(":")[0]

    def __str__(self) -> str:
        """The place as a user knows it, without options."""
        begin = _BEGIN if self.scheme == "file" else ""
        return f"{begin}{without_options(self.store)}/{self.prefix.strip('/')}".rstrip("/")


def is_bucket(path: str) -> bool:
    """Whether a path, or the URL of a user, begins as one of such a log."""
    return path.startswith(_BEGIN)


def bucket_at(url: str) -> BucketLocation | None:
    """The place that a URL names; None if its store has no conditional write."""
    if is_bucket(url) and _PREFIX in url:
        return parse_bucket(url)[0]
    url = url.removeprefix(_BEGIN)
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "file":
        if not rest.startswith("/") or not rest.strip("/"):
            raise LogDirectoryError(url, "write bucket+file:///path, with three slashes")
        return BucketLocation("file://", rest.rstrip("/"))
    location = location_of(path_of_url(url))
    return BucketLocation(location.root, location.key) if location.scheme in SCHEMES else None


def parse_bucket(path: str) -> tuple[BucketLocation, str]:
    """The place of a path that was made here, and the rest without a slash at either end."""
    scheme, _, rest = path.removeprefix(_BEGIN).partition("://")
    authority, _, name = rest.partition("/")
    server, _, prefix = authority.rpartition(_PREFIX)
    return BucketLocation(f"{scheme}://{server}", unquote(prefix)), name.strip("/")


def identity_of(path: str) -> tuple[object, ...]:
    """Names a file: equal for all paths to it, through links and other mounts of its disk."""
    real = os.path.realpath(path)
    with contextlib.suppress(OSError):
        found = os.stat(real)
        if found.st_ino:  # some network file systems have no inodes
            return found.st_dev, found.st_ino
    return (real,)


def refuse_overlap(directory: str, sources: Iterable[str]) -> None:
    """Refuse to write to a directory that is a source, lies in a source or holds one.

    A broker does not start if its log directory holds a directory whose name is not that of a
    partition.

    `sources`: directories that are read; those at a URL lie apart from any local one.  Raises
    `LogDirectoryError` if they do not lie apart.
    """
    own, own_parents = identity_of(directory), {*_parents(directory)}
    for each in sources:
        if is_url(each):
            continue
        source = identity_of(each)
        if source == own:
            reason = "is a source, too; give another directory as the destination"
        elif source in own_parents:
            reason = f"lies in the source {each}; give a destination outside of all sources"
        elif own in _parents(each):
            reason = f"holds the source {each}; give a destination outside of it"
        else:
            continue
        raise LogDirectoryError(directory, reason)


def _parents(path: str) -> Iterator[tuple[object, ...]]:
    """The identities of the directories that hold a directory, up to the root."""
    real = os.path.realpath(path)
    while (parent := os.path.dirname(real)) != real:
        real = parent
        yield identity_of(real)


_MOUNTS = "/proc/self/mountinfo"
_OBJECT_STORES = re.compile(
    r"s3fs|gcsfuse|goofys|geesefs|blobfuse2?|rclone|mountpoint-s3|ossfs|cosfs|dbfs|hdfs|tigrisfs",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def refuse_object_store(directory: str, mounts: str = _MOUNTS) -> None:
    """Refuse to write where an object store is mounted.

    On a FUSE mount of one, a rename copies, locks hold on one machine only, and a sync guarantees
    nothing.  A commit rests on all three.

    `directory`: absolute path, of something that exists.  `mounts`: the system's table of mounts;
    nothing is refused if there is none (macOS).
    """
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as table:
            lines = table.readlines()
    except OSError:
        return
    path = os.path.realpath(directory)
    longest, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), before.split()[4])
        within = path == point or path.startswith(point.rstrip("/") + "/")
        if within and len(point) >= len(longest):  # a later mount hides an earlier one
            longest, kind = point, " ".join(after.split()[:2])
    if kind.startswith("fuse") and _OBJECT_STORES.search(kind):
        reason = (
            f"is an object store ({kind} at {longest}), which has neither the locks nor the "
            "renames that a commit needs; write to a local file system or to NFS 4, and copy the "
            "log to the store"
        )
        raise LogDirectoryError(directory, reason)
