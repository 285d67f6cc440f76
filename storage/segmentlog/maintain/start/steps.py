"""The steps of a starting broker, and the files that it reads at several of them."""

import base64
import os
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from segmentlog.cluster import directory_settings
from segmentlog.errors import CorruptCheckpointError
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT
from segmentlog.log.checkpoint import read_leader_epochs
from segmentlog.model import METADATA_TOPIC
from segmentlog.store.readable import exists, read_whole

BOOTSTRAP_FILE = "bootstrap.checkpoint"


class StartAction(StrEnum):
    """The action of a starting broker; values never change, because programs read reports."""

    REFUSE = "refuse"  #: it ends
    OFFLINE = "offline"  #: it takes the log directory offline, and ends if it has no other
    UNSERVED = "unserved"  #: it runs, and serves none of the logs
    STRAY = "stray"  #: it renames the partition's directory to ``-stray``
    EMPTY = "empty"  #: it deletes all segments of the log
    TRUNCATE = "truncate"  #: it cuts the log off
    SPLIT = "split"  #: it divides a segment
    RECOVER = "recover"  #: it reads the log from the recovery point on
    REBUILD = "rebuild"  #: it builds an index again
    DROP = "drop"  #: it drops producers, leader epochs or an entry of a checkpoint
    DELETE = "delete"  #: it removes files that are no longer part of a log
    MISSING = "missing"  #: it begins an empty log in place of one that is not there
    KEEP = "keep"  #: it leaves files that it does not use
    UNKNOWN = "unknown"  #: these disks do not tell


class StartStep(NamedTuple):
    """One thing that a starting broker does, and why.

    A step that concerns a whole log directory has no topic, and has partition -1.  Numbers that
    do not apply are -1, and words that do not apply are empty.

    Attributes
    ----------
    action : what the broker does.
    topic, partition : the log, or the log that a file belongs to.
    path : the file or the directory that decides it.
    reason : what is in the file, and what a broker expects.
    loss : what is lost.
    remedy : what to do before the start.
    offset, end_offset : half-open range of the offsets that are lost.
    n_bytes : number of the bytes that are read, deleted or renamed.
    """

    action: StartAction
    topic: str
    partition: int
    path: str
    reason: str
    loss: str = ""
    remedy: str = ""
    offset: int = -1
    end_offset: int = -1
    n_bytes: int = -1

    @property
    def has_harm(self) -> bool:
        """Whether the broker does not serve a log, or has removed its records."""
        return self.action in _HARM

    @property
    def message(self) -> str:
        """The step in words."""
        does = f"{_DOES[self.action]}: {self.reason}" if self.action in _DOES else self.reason
        return "; ".join(filter(None, (does, self.loss, self.remedy)))


_HARM = {
    StartAction.REFUSE, StartAction.OFFLINE, StartAction.UNSERVED, StartAction.STRAY,
    StartAction.EMPTY,
}  # fmt: skip

_DOES: Mapping[StartAction, str] = {
    StartAction.REFUSE: "a starting broker ends here",
    StartAction.OFFLINE: "a starting broker takes the log directory offline, and ends if it has "
    "no other",
    StartAction.STRAY: "a starting broker renames the directory to -stray and does not serve it",
    StartAction.EMPTY: "a starting broker deletes all segments of this log",
}


def is_of_a_broker(directory: str) -> bool:
    """Whether a broker has used this log directory, or was told to use it."""
    is_told = exists(os.path.join(directory, BOOTSTRAP_FILE))
    return is_told or directory_settings.is_of_a_broker(directory)


def refused(path: str, reason: str, remedy: str) -> StartStep:
    """A step that concerns a directory, and ends the start."""
    return StartStep(StartAction.REFUSE, "", -1, path, reason, remedy=remedy)


def legible(text: str) -> str:
    """A reason without the line it quotes, if that is no text."""
    head, _, quoted = text.partition(", found ")
    n_nul = quoted.count("\\x00")
    if n_nul > 3:
        return f"{head}, found bytes that are zero"
    return text if len(quoted) < 60 else f"{head}, found {quoted[:50]}…"


def whole_file(path: str) -> bytes:
    """The bytes of a small file."""
    return read_whole(path, lambda reason: CorruptCheckpointError(path, 1, reason, ""))


def has_words(path: str, line: int, n_parts: int) -> bool:
    """Whether a line has the right number of parts, and words in place of numbers."""
    lines = whole_file(path).split(b"\n")
    return 2 < line <= len(lines) and len(lines[line - 1].split()) == n_parts


def epochs_step(topic: str, partition: int, partition_path: str) -> Iterator[StartStep]:
    """The step for a partition's ``leader-epoch-checkpoint``, if it cannot be read."""
    path = os.path.join(partition_path, LEADER_EPOCH_CHECKPOINT)
    action = StartAction.REFUSE if topic == METADATA_TOPIC else StartAction.OFFLINE
    try:
        read_leader_epochs(path)
        return
    except CorruptCheckpointError as error:
        reason = f"line {error.line}: {legible(error.reason)}"
        action = StartAction.REFUSE if has_words(path, error.line, 2) else action
    except OSError as error:
        reason = error.strerror or str(error)
    remedy = "segmentlog recover builds the file again from the log"
    yield StartStep(action, topic, partition, path, reason, remedy=remedy)


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
    lines = data[:4096].decode(errors="replace").splitlines()
    parts = [re.split(r":\s+", line) for line in lines[:2]]
    if not parts:
        return StartAction.REFUSE, "the file is empty"
    expected = "expected 'version: 0' and 'topic_id: …'"
    if len(parts[0]) != 2 or not re.fullmatch(r"[+-]?[0-9]{1,10}", parts[0][1]):
        return StartAction.OFFLINE, legible(f"{expected}, found {lines[0][:80]!r}")
    if int(parts[0][1]) < 0:
        return StartAction.OFFLINE, f"version {parts[0][1]} is below 0"
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
