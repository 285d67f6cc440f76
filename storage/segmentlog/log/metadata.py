"""A broker's files about a log directory and its partitions: ids and versions.

``meta.properties`` is Java properties text, ``partition.metadata`` two lines of ``key: value``.
"""

import os
import re
from collections.abc import Mapping

from segmentlog.errors import CorruptCheckpointError
from segmentlog.format.names import META_PROPERTIES_FILE, PARTITION_METADATA_FILE
from segmentlog.format.newer import note
from segmentlog.log.checkpoint import found_text
from segmentlog.store.bucket_location import is_bucket
from segmentlog.store.fingerprint import Fingerprint, fingerprint
from segmentlog.store.readable import read_whole
from segmentlog.store.remote.location import is_url

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_FROM_REPLICA = "restore the file from a replica"
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 5:
        return chr(int(code[1:], 16))
    return _CONTROL.get(code, code)


def read_meta_properties(directory: str) -> Mapping[str, str]:
    """Keys and values of a directory's ``meta.properties``; none if there is no such file.

    Raises `CorruptCheckpointError` if the file is not a plain file, or is too large.
    """
    try:
        found = read_properties(os.path.join(directory, META_PROPERTIES_FILE))
    except FileNotFoundError:
        return {}
    version = found.get("version", "")
    if version.isdecimal() and int(version) > 1:
        note(f"{META_PROPERTIES_FILE} of version {version}")
    return found


def read_properties(path: str) -> Mapping[str, str]:
    """Keys and values of a file of Java's properties.

    Raises `CorruptCheckpointError` if the file is not a plain file, or is too large;
    `FileNotFoundError` if there is no such file.
    """
    data = read_whole(
        path, lambda reason: CorruptCheckpointError(path, 1, reason, "restore the file")
    )
    return parse_properties(data)


def parse_properties(data: bytes) -> Mapping[str, str]:
    """Keys and values of the bytes of such a file."""
    properties = {}
    for line in data.decode("latin-1").splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            key, value = _split_property(stripped)
            properties[_ESCAPE.sub(_unescape, key)] = _ESCAPE.sub(_unescape, value)
    return properties


def _split_property(line: str) -> tuple[str, str]:
    """Key and value: divided by the first ``=``, ``:`` or blank that is not escaped."""
    match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", line, re.DOTALL)
    return (match[1], match[2]) if match else (line, "")


def read_topic_id(partition_path: str) -> str | None:
    """Topic id of a partition directory as Kafka prints it, or None without the file.

    Raises `CorruptCheckpointError` if ``partition.metadata`` is not two lines of version and topic
    id.
    """
    path = os.path.join(partition_path, PARTITION_METADATA_FILE)
    try:
        data = read_whole(
            path, lambda reason: CorruptCheckpointError(path, 1, reason, _FROM_REPLICA)
        )
    except FileNotFoundError:
        return None
    text = data.decode(errors="replace")
    match = re.fullmatch(r"version: ([0-9]+)\s+topic_id: ([A-Za-z0-9_-]{22}={0,2})\s*", text)
    if match is None:
        reason = f"expected 'version: 0' and 'topic_id: …', found {found_text(text)}"
        raise CorruptCheckpointError(path, 1, reason, _FROM_REPLICA)
    return match[2].rstrip("=")


def known_topic_id(partition_path: str) -> str:
    """The topic id; empty without ``partition.metadata``, or if it cannot be read.

    It is empty at a URL of a copy: topics are not recreated in a copy, and planning asks a store
    for listings alone.

    Each slice of a scan asks for it, so the file is not read again if a look proves that it has
    not changed.  Two threads that read 28 slices of 14 MiB lost 5 % of their time to these reads:
    at each call of the system, they may have to wait for the interpreter's lock.
    """
    if is_url(partition_path) and not is_bucket(partition_path):
        return ""
    before, known = _known_ids.get(partition_path, (None, ""))
    now = fingerprint(os.path.join(partition_path, PARTITION_METADATA_FILE), before)
    if now is before:
        return known
    try:
        known = "" if now.stamp is None else read_topic_id(partition_path) or ""
    except CorruptCheckpointError:
        known = ""
    except OSError:  # the next call reads again
        return ""
    if len(_known_ids) >= _MOST_KNOWN:
        _known_ids.clear()
    _known_ids[partition_path] = now, known
    return known


#: The last look at each partition's file, and the topic id that was read after it.
_known_ids: dict[str, tuple[Fingerprint, str]] = {}
_MOST_KNOWN = 4096
