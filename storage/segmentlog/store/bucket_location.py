"""Paths of logs in object stores that any cluster writes (`segmentlog.bucket`).

As with a tier, all that is known of the place stands in front of the first slash, so that names of
files can be joined to the path and cut off from it::

    bucket+s3://bucket;endpoint_override=http:%2F%2Fminio:9000;prefix=logs/orders-0/000….log

Users write the URL of the store, ``s3://bucket/logs``.  A marker object tells such a log from a
copy of a log directory (`segmentlog.bucket.objects.MARKER`).  ``bucket+file:///path`` keeps one in
a local directory, for tests: a plain path, and a ``file:`` URI, stay log directories.
"""

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from segmentlog.errors import LogDirectoryError
from segmentlog.store.remote.location import location_of, path_of_url, without_options

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


_PATH = re.compile(rf"{re.escape(_BEGIN)}\w+://[^\s/]*?{_PREFIX}[^\s/;,:]*")


def with_plain_buckets(text: str) -> str:
    """A path, or a message with paths, with the URLs that a user knows in place of those here."""
    return _PATH.sub(lambda found: str(parse_bucket(found[0])[0]), text)
