"""The checkpoints at the top of a log directory: what a broker does with a damaged one, and we.

A checkpoint that a broker cannot read takes its log directory offline.  A line with a word in the
place of a number is another error, which a broker survives in one way for each file.
"""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from segmentlog.errors import CorruptCheckpointError
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from segmentlog.log.checkpoint import read_offsets, readable_offsets, write_offsets
from segmentlog.log.swaps import is_zeros, keep_tail
from segmentlog.maintain.health.faults import StartAction, legible, whole_file
from segmentlog.maintain.health.java import CheckpointFault, checkpoint_fault
from segmentlog.maintain.health.kinds import NO_LOG, Fault, FaultKind
from segmentlog.maintain.health.mend import Mend, RecoveryKind, RecoveryStep, Tense
from segmentlog.model import TopicPartition


class _CheckpointFile(NamedTuple):
    """A checkpoint of offsets.

    `without`: what a start does if the file is removed.  `of_words`: what a broker does about a
    line that has a word in place of a number, and what is lost.  `is_kept`: whether the entries of
    whole lines do less harm than none.
    """

    kind: FaultKind
    without: str
    of_words: tuple[StartAction, str]
    is_kept: bool


#: The checkpoints of a log directory, in the order of their reads.
_FILES = {
    RECOVERY_POINT_CHECKPOINT: _CheckpointFile(
        FaultKind.RECOVERY_POINTS,
        "the start then reads each log from its beginning",
        (StartAction.DROP, "the start reads each log from its beginning"),
        is_kept=False,
    ),
    LOG_START_CHECKPOINT: _CheckpointFile(
        FaultKind.LOG_STARTS,
        "records that DeleteRecords has deleted, and that are still in a segment, are then served "
        "again",
        (StartAction.DROP, "records that were deleted are served again"),
        is_kept=True,
    ),
    HIGH_WATERMARK_CHECKPOINT: _CheckpointFile(
        FaultKind.HIGH_WATERMARKS,
        "the start then sets each high watermark again",
        (StartAction.UNSERVED, "the broker runs, and serves no log of this directory"),
        is_kept=True,
    ),
    CLEANER_OFFSET_CHECKPOINT: _CheckpointFile(
        FaultKind.CLEANED_ENDS,
        "the cleaner then reads compacted logs from their beginning",
        (StartAction.DROP, "no log of this directory is compacted"),
        is_kept=False,
    ),
}


def checkpoint_faults(directory: str, *, is_only: bool) -> Iterator[Fault]:
    """The checkpoints that a starting broker does not take, or that are not read here.

    `is_only`: whether the broker has no other log directory.
    """
    for name, file in _FILES.items():
        path = os.path.join(directory, name)
        try:
            fault = _fault(path)
            is_noticed = fault is not None
            if fault is None:
                try:
                    read_offsets(directory, name)
                    continue
                except CorruptCheckpointError as error:
                    fault = CheckpointFault(error.line, error.reason)
        except OSError as error:
            yield file.kind.of(
                path, error.strerror or str(error), "give the file to the user of the broker"
            )
            continue
        action, loss = file.kind.value.action, ""
        # A log that finds its directory offline ends the start.
        if is_only and file.kind in {FaultKind.RECOVERY_POINTS, FaultKind.LOG_STARTS}:
            action = StartAction.REFUSE
        if fault.is_word:
            action, loss = file.of_words
        found = file.kind.at(
            NO_LOG,
            path,
            f"line {fault.line}: {legible(fault.reason)}",
            loss,
            f"segmentlog recover makes it readable again; or remove the file: {file.without}",
            action=action,
            mend=partial(_replaced, directory, name, fault, file),
        )
        yield found if is_noticed else found._replace(action=None)


def _fault(path: str) -> CheckpointFault | None:
    """The first fault of a checkpoint of offsets, as a broker reads it; `OSError`."""
    try:
        return checkpoint_fault(whole_file(path), 3)
    except FileNotFoundError:
        return None
    except CorruptCheckpointError as error:  # it is a directory, or far too large
        return CheckpointFault(error.line, error.reason)


def entries_that_stay(directory: str, name: str) -> Mapping[TopicPartition, int]:
    """The entries of a damaged checkpoint that a recovery keeps.

    Those of whole lines, except where none at all do less harm than wrong ones: a lost recovery
    point only costs time.
    """
    if not _FILES[name].is_kept:
        return {}
    try:
        return dict(read_offsets(directory, name))
    except CorruptCheckpointError:
        return readable_offsets(directory, name)


def _replaced(directory: str, name: str, fault: CheckpointFault, file: _CheckpointFile) -> Mend:
    """Make a checkpoint readable again; the damaged bytes stay beside it."""
    path = os.path.join(directory, name)
    found = entries_that_stay(directory, name)

    def replace() -> list[str]:
        kept = [] if is_zeros(path, 0) else [keep_tail(path, 0)]
        write_offsets(directory, name, found)
        return kept

    words: list[str | Tense] = [f"{name}, line {fault.line}: {legible(fault.reason)}; "]
    if file.is_kept:
        entries = f"{len(found)} entr{'y' if len(found) == 1 else 'ies'} in whole lines "
        words += [entries, Tense("were", "would be"), " kept; "]
    words.append(file.kind.value.after)
    step = RecoveryStep(RecoveryKind.CHECKPOINT_MENDED, "", -1, directory, "")
    return Mend([(step, words)], replace, "; the damaged file is kept as ")


def log_start_mend(
    directory: str, step: RecoveryStep, name: str, log_start: int, end: int
) -> Mend:
    """Remove the log start of a log that ends before it, and whose high watermark does, too.

    `step`: without kind and message.  `name`: of the log's directory.
    """

    def remove() -> None:
        starts = dict(read_offsets(directory, LOG_START_CHECKPOINT))
        del starts[TopicPartition(step.topic, step.partition)]
        write_offsets(directory, LOG_START_CHECKPOINT, starts)

    why = (
        f"{name}: its log start {log_start} lies beyond its high watermark and its log end {end}, "
        "and a broker would delete all its records: the log start "
    )
    words = (
        why,
        Tense("was", "would be"),
        f" removed from {LOG_START_CHECKPOINT}, and the log begins with its first segment",
    )
    return Mend([(step._replace(kind=RecoveryKind.LOG_START_LOWERED), words)], remove)
