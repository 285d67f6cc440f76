"""Paths of log directories with a tier.

A path has to end with the name of its file, so that names can be joined to it and cut off from it,
and a task on another machine has to find the file by its path alone.  So all that is known of a
tier stands in front of the first slash::

    tiered://local;local=%2Fvar%2Flib%2Fkafka;remote=%2Fmnt%2Ftier/orders-0/00000000000000000000.log

The name of a file of keys stands in it, but never a key.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

from segmentlog.arguments import one_of, path_text
from segmentlog.errors import OptionError
from segmentlog.model import RemoteStorageLayout
from segmentlog.store.partitions import refuse_partition
from segmentlog.store.paths import local_path, readable_path

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
    """Log directories, each with the tier if there is one.

    `paths`: log directories; none for the tier alone.  `remote_storage`: the tier: a directory, or
    a URL with the prefix of its keys; or None.  `remote_storage_layout`: `RemoteStorageLayout`; by
    default ``local``.  `fail_on_data_loss`: whether missing offsets in the tier are an error, or
    are left out.  Raises `OptionError` if the layout is unknown; if there is neither a directory
    nor a tier, or no tier for the other options.  Raises `LogDirectoryError` if a path is not one.
    """
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
