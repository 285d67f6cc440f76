"""Paths as users write them, and the files or directories that they name.

The path of a log directory with a tier ends with the name of its file, so that names can be joined
to it and cut off from it, and a task on another machine finds the file by its path alone.  So all
that is known of the tier stands in front of the first slash::

    tiered://local;local=%2Fvar%2Flib%2Fkafka;remote=%2Fmnt%2Ftier/orders-0/00000000000000000000.log

The name of a file of keys stands in it, but never a key.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from segmentlog.arguments import one_of, path_text
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.model import RemoteStorageLayout
from segmentlog.store.bucket_location import bucket_at, is_bucket
from segmentlog.store.partitions import refuse_partition
from segmentlog.store.remote.location import path_of_url

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


_recognizers: list[Callable[[str], str | None]] = []


def add_recognizer(recognized: Callable[[str], str | None]) -> None:
    """Let a higher room say which URLs lead to its virtual disk, and by which path."""
    _recognizers.append(recognized)


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
    # log directory (`segmentlog.store.bucket_location`).
    text = path_text("path", path)
    for recognized in _recognizers if "://" in text and text[:5].lower() != "file:" else ():
        if found := recognized(text):
            return found
    return readable_path(path)


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
        RemoteStorageLayout(layout), options["remote"], options.get("local", ""),
        options.get("keys", ""), "gaps" in options,
    )  # fmt: skip
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
