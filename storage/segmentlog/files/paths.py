"""Paths as users write them, and the local files or directories that they name."""

import os
from urllib.parse import unquote, urlsplit

from segmentlog.errors import LogDirectoryError

__all__ = ["is_pattern", "local_path", "why_not_there"]

_OF_PATTERNS = "*?["


def local_path(path: str | os.PathLike[str]) -> str:
    """Absolute local path of `path`: relative, with ``~``, or a ``file:`` URI.

    Symbolic links are kept, so messages have the user's own path.

    Raises
    ------
    LogDirectoryError
        If the path is empty, of another scheme, on another host, or holds a null character.
    """
    text = os.fspath(path)
    if "\0" in text:
        raise LogDirectoryError(repr(text), "the path holds a null character; no file can have it")
    if not text.strip():
        raise LogDirectoryError(repr(text), "the path is empty; name a Kafka log directory")
    scheme, colon, _ = text.partition(":")
    if colon and scheme.lower() == "file":
        uri = urlsplit(text)
        if uri.netloc not in {"", "localhost"}:
            raise LogDirectoryError(text, f"host {uri.netloc!r} is not this machine")
        if not uri.path:
            raise LogDirectoryError(text, "the URI names no path; write file:///var/lib/kafka")
        text = unquote(uri.path)
    elif "://" in text:
        reason = f"scheme {text.split('://')[0]!r} is not supported; give a local path or file://"
        raise LogDirectoryError(text, reason)
    return os.path.abspath(os.path.expanduser(text))


def is_pattern(path: str) -> bool:
    """Whether a path was meant for several, as a shell expands it; nothing here does."""
    return any(char in path for char in _OF_PATTERNS)


def why_not_there(path: str) -> str:
    """Reason for an error about a path that leads to no file."""
    reason = "there is no such file or directory"
    if is_pattern(path):
        reason += "; a path is taken as it stands, without * and ? for others: name each directory"
    return reason
