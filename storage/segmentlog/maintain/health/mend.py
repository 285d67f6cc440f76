"""What mends a fault: a value that a recovery carries out, and that its dry run only shows."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol


class RecoveryKind(StrEnum):
    """The kind of a step; values never change, because programs read reports."""

    COMMIT_ENDED = "commit-ended"  #: a commit was finished or undone, or its guard removed
    CHECKPOINT_MENDED = "checkpoint-mended"  #: a damaged file of offsets was made readable again
    LOG_START_LOWERED = "log-start-lowered"  #: it lay beyond the log end and the high watermark
    LEADER_EPOCHS_BUILT = "leader-epochs-built"  #: the file was damaged or lost
    TOPIC_ID_WRITTEN = "topic-id-written"  #: partition.metadata was missing or damaged
    SNAPSHOT_PUT_ASIDE = "snapshot-put-aside"  #: of the cluster's metadata; an older one is whole
    SEGMENT_SPLIT = "segment-split"  #: its indexes could not hold its offsets
    INDEXES_BUILT = "indexes-built"  #: those of times were missing, or ended in zeros
    INDEXES_REMOVED = "indexes-removed"  #: index files without a log
    LOG_RECOVERED = "log-recovered"  #: a log was read, and its indexes were built again
    LOG_CUT = "log-cut"  #: bytes after the last good batch were cut off
    LOG_SALVAGED = "log-salvaged"  #: bad bytes were left out, and good batches after them kept
    LOG_FAILED = "log-failed"  #: a log could not be recovered, and was left as it was
    HIGH_WATERMARK_LOWERED = "high-watermark-lowered"  #: to the end of its log
    MARKED_CLEAN = "marked-clean"  #: the directory has the mark of a clean stop again
    NOT_MARKED = "not-marked"  #: a starting broker would refuse the directory, or lose logs in it


class RecoveryStep(NamedTuple):
    """One step of a recovery, or of its dry run.

    A step that concerns the whole directory has no topic, and has partition -1.  All other numbers
    are -1, and `kept` is empty, if they do not apply to the kind of the step.

    Attributes
    ----------
    path : of the directory that the step has changed.
    end_offset : the log end offset afterwards.
    cut_to : offset after the last record that is lost: the offsets from `end_offset` up to this
        one are cut off, or were missing already if only a high watermark is lowered or indexes
        are removed.  It equals `end_offset` if only the bytes of a torn tail are cut off.
    good_from : offset of the first whole batch after the bad one, which is cut off, too.  Without
        such a batch, the bad bytes are a torn tail.
    n_bytes : number of bytes that are cut off or left out, zeros of preallocation included.
    kept : names of the ``.broken`` files in `path` that hold these bytes; none in a dry run.
    message : the step in words.
    n_records : number of records in the whole batches that are cut off.
    first_timestamp, last_timestamp : their least and largest timestamps, in epoch milliseconds.
    """

    kind: RecoveryKind
    topic: str
    partition: int
    path: str
    message: str
    end_offset: int = -1
    cut_to: int = -1
    good_from: int = -1
    n_bytes: int = -1
    kept: tuple[str, ...] = ()
    n_records: int = -1
    first_timestamp: int = -1
    last_timestamp: int = -1

    @property
    def has_problem(self) -> bool:
        """Whether the log is not recovered, or the directory has no mark of a clean stop."""
        return self.kind in {RecoveryKind.LOG_FAILED, RecoveryKind.NOT_MARKED}

    @property
    def has_lost_batches(self) -> bool:
        """Whether whole batches after a damaged batch are cut off: more than a torn tail."""
        return self.good_from >= 0

    @property
    def has_lost_records(self) -> bool:
        """Whether acknowledged records may be gone; another replica may have them."""
        kinds = {RecoveryKind.HIGH_WATERMARK_LOWERED, RecoveryKind.LOG_SALVAGED}
        is_sign = self.kind is RecoveryKind.INDEXES_REMOVED and self.cut_to >= 0
        return self.has_lost_batches or self.kind in kinds or is_sign


class Tense(NamedTuple):
    """Words of a step that was taken, and of one that would be."""

    done: str
    would: str


#: A sentence, in parts.
Words = Sequence[str | Tense]


def said(words: Words, *, is_done: bool) -> str:
    """The sentence about a step."""
    return "".join(
        each if isinstance(each, str) else each.done if is_done else each.would for each in words
    )


class Plan(Protocol):
    """What is to be done, and how it is told."""

    @property
    def hides(self) -> bool:
        """Whether what follows can be planned only once this is carried out."""

    def shown(self) -> list[RecoveryStep]:
        """The steps that would be taken."""

    def carry_out(self) -> list[RecoveryStep]:
        """Take the steps."""


@dataclass(slots=True)
class Mend(Plan):
    """One act that mends a fault, told as one or several steps.

    `steps`: without their messages, which are the words beside them.  `act`: returns the paths of
    the ``.broken`` files that it leaves, which belong to the last step.  `says_kept`: the words
    before their names in the message of that step.
    """

    steps: Sequence[tuple[RecoveryStep, Words]]
    act: Callable[[], Iterable[str] | None]
    says_kept: str = ""
    hides: bool = field(default=False)

    def shown(self) -> list[RecoveryStep]:
        """The steps that would be taken."""
        return [step._replace(message=said(words, is_done=False)) for step, words in self.steps]

    def carry_out(self) -> list[RecoveryStep]:
        """Take the steps."""
        kept = tuple(map(os.path.basename, self.act() or ()))
        done = [step._replace(message=said(words, is_done=True)) for step, words in self.steps]
        if kept and done:
            message = done[-1].message
            if self.says_kept:
                message += self.says_kept + ", ".join(kept)
            done[-1] = done[-1]._replace(message=message, kept=kept)
        return done
