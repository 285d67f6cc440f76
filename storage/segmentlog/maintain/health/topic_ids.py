"""The topic id of a partition: ``partition.metadata`` as a broker reads it, and what mends it."""

import base64
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from segmentlog.errors import CorruptCheckpointError
from segmentlog.format.names import PARTITION_METADATA_FILE
from segmentlog.maintain.health.faults import StartAction, legible, whole_file
from segmentlog.maintain.health.java import java_int, java_lines
from segmentlog.maintain.health.mend import Mend, RecoveryStep, Tense
from segmentlog.store.durable import sync_directory
from segmentlog.txn.topics import write_topic_id

METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"  #: the same in all clusters


def uuid_fault(text: str) -> str | None:
    """Why Kafka does not take a text for an id (``Uuid.fromString``); None if it does."""
    if len(text) > 24:
        return "is longer than 24 characters"
    if not re.fullmatch(r"[A-Za-z0-9_-]*={0,2}", text):
        return "is not base64"
    n_bytes = len(text.rstrip("=")) * 6 // 8
    return None if n_bytes == 16 else f"has {n_bytes} bytes instead of 16"


def topic_id_of(path: str) -> "str | tuple[StartAction, str] | None":
    """The topic id of a ``partition.metadata``; what a broker does with the file, and why; None.

    None stands for a missing file.
    """
    try:
        data = whole_file(path)
    except FileNotFoundError:
        return None
    except CorruptCheckpointError as error:
        return StartAction.OFFLINE, error.reason
    except OSError as error:
        return StartAction.OFFLINE, error.strerror or str(error)
    try:
        lines = java_lines(data)
    except UnicodeDecodeError as error:
        # The reader fails at its first piece of 8 KiB.
        return StartAction.OFFLINE, f"it is not UTF-8: byte {data[error.start]:#04x}"
    parts = [_pair(line) for line in lines[:2]]
    if not parts:
        return StartAction.REFUSE, "the file is empty"
    expected = "expected 'version: 0' and 'topic_id: …'"
    version = java_int(parts[0][1]) if len(parts[0]) == 2 else None
    if version is None:
        return StartAction.OFFLINE, legible(f"{expected}, found {lines[0][:80]!r}")
    if version < 0:
        return StartAction.OFFLINE, f"version {version} is below 0"
    if len(parts) < 2:
        return StartAction.REFUSE, f"{expected}, but the second line is missing"
    if len(parts[1]) != 2:
        return StartAction.OFFLINE, legible(f"{expected}, found {lines[1][:80]!r}")
    text = parts[1][1]
    if fault := uuid_fault(text):
        return StartAction.REFUSE, f"topic_id {text!r} {fault}"
    text = text.rstrip("=")
    if not base64.urlsafe_b64decode(text + "==").strip(b"\0"):
        return StartAction.OFFLINE, "topic_id is zero"
    return text


def _pair(line: str) -> list[str]:
    r"""``line.split(":\\s+")``, without empty words at the end."""
    words = re.split(r":[ \t\n\x0b\f\r]+", line)
    while words and not words[-1]:
        words.pop()
    return words


class KnownId(NamedTuple):
    """The id that a log is to have."""

    topic_id: str
    words: str  # for the id, and its origin


def topic_id_mend(
    step: RecoveryStep, name: str, known_id: Callable[[], KnownId | None]
) -> Mend | None:
    """Write the topic id of a log whose file is damaged or missing; None if it need not be.

    `step`: without message.  `name`: of its directory.  Raises `CorruptCheckpointError` if a
    damaged file has no known id.
    """
    path = os.path.join(step.path, PARTITION_METADATA_FILE)
    found = topic_id_of(path)
    if isinstance(found, str):
        return None
    known = known_id()
    if known is None:
        if found is None:
            return None
        reason = f"{found[1]}, and there is no metadata of a cluster that has its topic id"
        remedy = (
            "name the log directory with __cluster_metadata-0 (--metadata), or restore the file "
            "from another replica"
        )
        raise CorruptCheckpointError(path, 1, reason, remedy)

    def write() -> None:
        write_topic_id(step.path, known.topic_id)
        sync_directory(step.path)

    why = "it was missing" if found is None else found[1]
    words = (
        f"{name}: ",
        Tense("wrote", "would write"),
        f" partition.metadata with {known.words}: {why}",
    )
    return Mend([(step, words)], write)
