"""Directories of other systems with Kafka's protocol, which people take for log directories.

Redpanda keeps the partition 0 of the topic ``orders`` in ``kafka/orders/0_23`` of its data
directory, where 23 is a revision, and segments there as ``1042-7-v1.log``: base offset, term and
version.  The batches in these files begin with another header than Kafka's.
"""

import contextlib
import os
import re
from collections.abc import Iterator

from segmentlog.errors import LogDirectoryError
from segmentlog.store.readable import FileType, is_url, list_entries

_PARTITION = re.compile(r"[0-9]+_[0-9]+")
_SEGMENT = re.compile(r"[0-9]+-[0-9]+-v[0-9]+\.log")
#: Directories of the data directory, which are those of namespaces.
_NAMESPACES = ("kafka", "redpanda")
_MOST_LOOKED_AT = 8  #: directories of each level

_REDPANDA = (
    "is of Redpanda, which keeps logs in another layout and another format "
    "(kafka/<topic>/<partition>_<revision>/<base offset>-<term>-v1.log), and segmentlog reads "
    "Kafka's: read the topics from the brokers, as with Spark's kafka source"
)


def refuse_other_systems(path: str) -> None:
    """Refuse a path that another system than Kafka has written: any level of its directories.

    Raises `LogDirectoryError`.
    """
    if is_url(path):
        return
    parent, name = os.path.split(path)
    is_segment = _SEGMENT.fullmatch(name) and _PARTITION.fullmatch(os.path.basename(parent))
    if is_segment or _has_partition(path, 3):
        raise LogDirectoryError(path, _REDPANDA)


def _has_partition(path: str, n_levels: int) -> bool:
    """Whether a directory is that of a partition, or has one at most so many levels below."""
    names = [*_names(path)]
    if _PARTITION.fullmatch(os.path.basename(path)):
        return any(_SEGMENT.fullmatch(name) for name, _ in names)
    if not n_levels:
        return False
    below = sorted(name for name, kind in names if kind is FileType.DIRECTORY)
    # A topic has partitions alone, and the data directory has namespaces.
    likely = [each for each in below if _PARTITION.fullmatch(each)]
    likely = likely or [each for each in below if each in _NAMESPACES] or below
    return any(
        _has_partition(os.path.join(path, each), n_levels - 1) for each in likely[:_MOST_LOOKED_AT]
    )


def _names(path: str) -> Iterator[tuple[str, FileType]]:
    with contextlib.suppress(OSError):  # no directory, or none of this user's
        yield from list_entries(path)
