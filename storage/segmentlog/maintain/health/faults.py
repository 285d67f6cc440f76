"""What a starting broker does about a fault, and the words for it."""

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from segmentlog.errors import CorruptCheckpointError
from segmentlog.model import METADATA_TOPIC
from segmentlog.store.readable import read_whole


class StartAction(StrEnum):
    """The action of a starting broker; values never change, because programs read reports."""

    REFUSE = "refuse"  #: it ends
    OFFLINE = "offline"  #: it takes the log directory offline, and ends if it has no other
    UNSERVED = "unserved"  #: it runs, and does not serve the logs
    STRAY = "stray"  #: it renames the partition's directory to ``-stray``
    EMPTY = "empty"  #: it deletes all segments of the log
    TRUNCATE = "truncate"  #: it cuts the log off, or takes an earlier offset for its end
    SPLIT = "split"  #: it divides a segment
    RECOVER = "recover"  #: it reads the log from the recovery point on: so many bytes
    REBUILD = "rebuild"  #: it builds an index again
    DROP = "drop"  #: it drops producers, leader epochs or an entry of a checkpoint
    #: it removes deleted partitions and files at its start, and segments that retention removes
    #: within the first minute
    DELETE = "delete"
    MISSING = "missing"  #: it begins an empty log: one that is assigned to it is missing
    KEEP = "keep"  #: it leaves files that it does not use
    UNKNOWN = "unknown"  #: the disks of one broker do not show it


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
        return self.action in HARM

    @property
    def has_problem(self) -> bool:
        """Whether the broker would end, or not serve a log, or lose offsets that nobody let go.

        Also of a log that cannot be read, so that nobody knows.
        """
        # A log is cut off, and not only a torn tail of it; or its records are gone already.
        is_lost = self.action in {StartAction.TRUNCATE, StartAction.MISSING} and (
            self.end_offset > self.offset or self.topic == METADATA_TOPIC
        )
        return self.has_harm or is_lost or self.is_undecided

    @property
    def is_undecided(self) -> bool:
        """Whether the log cannot be read, so that nobody knows what the broker does."""
        return self.action == StartAction.UNKNOWN and bool(self.topic)

    @property
    def message(self) -> str:
        """The step in words."""
        does = f"{_DOES[self.action]}: {self.reason}" if self.action in _DOES else self.reason
        return "; ".join(filter(None, (does, self.loss, self.remedy)))


#: Actions after which a broker does not serve a log, or has removed its records.
HARM = {
    StartAction.REFUSE,
    StartAction.OFFLINE,
    StartAction.UNSERVED,
    StartAction.STRAY,
    StartAction.EMPTY,
}

_DOES: Mapping[StartAction, str] = {
    StartAction.REFUSE: "a starting broker ends here",
    StartAction.OFFLINE: "a starting broker takes the log directory offline, and ends if it has "
    "no other",
    StartAction.STRAY: "a starting broker renames the directory to -stray and does not serve it",
    StartAction.EMPTY: "a starting broker deletes all segments of this log",
}


def is_within(path: str, directory: str) -> bool:
    """Whether a path is a directory, or lies in it, and not beside it under a longer name."""
    return os.path.join(path, "").startswith(os.path.join(directory, ""))


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
