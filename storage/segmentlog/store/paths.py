"""Paths as users write them, and the files or directories that they name."""

import os
import re
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from segmentlog.arguments import path_text
from segmentlog.errors import LogDirectoryError
from segmentlog.store.bucket_location import bucket_at
from segmentlog.store.remote.location import path_of_url

_OF_PATTERNS = "*?["

#: The beginning of a URL that lacks slashes: credentials in it would be shown with the path.
_ONE_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:(/|[^/]*@)", re.IGNORECASE)


def local_path(path: str | os.PathLike[str]) -> str:
    """Absolute local path of `path`: relative, with ``~``, or a ``file:`` URI.

    Symbolic links are kept, so messages have the user's own path.

    Raises `LogDirectoryError` if the path is empty, a URL, on another host, or holds a null
    character; if it begins like a URL.  Raises `OptionError` if the path is neither text nor an
    object with a path.
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
            "locks, renames and syncs of a file system; use a local directory"
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
    """Path of a log to append to: a local path, or that of a log in an object store.

    Raises `LogDirectoryError` as `local_path` does, also if nothing can be appended at the URL.
    """
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
    for recognized in _recognizers:
        if found := recognized(text):
            return found
    return path_of_url(text)


def is_pattern(path: str) -> bool:
    """Whether a path was meant for several, as a shell expands it; nothing here does."""
    return any(char in path for char in _OF_PATTERNS)


def why_not_there(path: str) -> str:
    """Reason for an error about a path that leads to no file."""
    reason = "there is no such file or directory"
    if is_pattern(path):
        reason += "; the characters * and ? are not expanded in a path: name each directory"
    return reason
