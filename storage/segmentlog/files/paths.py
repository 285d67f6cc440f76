"""Paths as users write them, and the local files or directories that they name."""

import os
from urllib.parse import unquote, urlsplit

from segmentlog.errors import LogDirectoryError

__all__ = ["local_path"]


def local_path(path: str | os.PathLike[str]) -> str:
    """Absolute local path of `path`: relative, with ``~``, or a ``file:`` URI.

    Symbolic links are kept, so messages have the user's own path.

    Raises
    ------
    LogDirectoryError
        If the path is empty, of another scheme, or on another host.
    """
    text = os.fspath(path)
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
