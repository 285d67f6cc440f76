"""The checkpoints at the top of a log directory: what a broker does with a damaged one, and we.

A checkpoint that a broker cannot read takes its log directory offline.  A line with a word in the
place of a number is another error, which a broker survives in one way for each file.
"""

import os
from collections.abc import Iterator, Mapping, MutableMapping

from segmentlog.errors import CorruptCheckpointError
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from segmentlog.log.checkpoint import read_offsets, readable_offsets, write_offsets
from segmentlog.log.swaps import is_zeros, keep_tail
from segmentlog.maintain.health.faults import StartAction, StartStep, legible, whole_file
from segmentlog.maintain.health.java import CheckpointFault, checkpoint_fault
from segmentlog.maintain.health.mend import Mend, RecoveryKind, RecoveryStep, Tense
from segmentlog.model import TopicPartition

#: The checkpoints at the top of a log directory, and what is done without their entries.
_WITHOUT = {
    RECOVERY_POINT_CHECKPOINT: "all bytes of all logs are read, unless they were cleanly stopped",
    LOG_START_CHECKPOINT: "other logs begin with their first segment, and records that "
    "DeleteRecords has deleted there may be seen again",
    HIGH_WATERMARK_CHECKPOINT: "reads of other logs end at their log ends, until a broker has "
    "agreed with its replicas on a high watermark",
    CLEANER_OFFSET_CHECKPOINT: "compaction begins again with the first segment of each log",
}


#: The checkpoints of a log directory in the order of their reads, and the remedy for each.
_REMEDIES = {
    RECOVERY_POINT_CHECKPOINT: "remove the file: the start then reads each log from its beginning",
    LOG_START_CHECKPOINT: "remove the file: records that DeleteRecords has deleted, and that are "
    "still in a segment, are then served again",
    HIGH_WATERMARK_CHECKPOINT: "remove the file: the start then sets each high watermark again",
    CLEANER_OFFSET_CHECKPOINT: "remove the file: the cleaner then reads compacted logs from their "
    "beginning",
}

#: What a broker does about a line that has a word in place of a number.
_OF_WORDS = {
    RECOVERY_POINT_CHECKPOINT: (StartAction.DROP, "the start reads each log from its beginning"),
    LOG_START_CHECKPOINT: (StartAction.DROP, "records that were deleted are served again"),
    HIGH_WATERMARK_CHECKPOINT: (
        StartAction.UNSERVED, "the broker runs, and serves no log of this directory"
    ),
    CLEANER_OFFSET_CHECKPOINT: (StartAction.DROP, "no log of this directory is compacted"),
}  # fmt: skip


def checkpoint_steps(directory: str, *, is_only: bool) -> Iterator[StartStep]:
    """What a starting broker does about checkpoints that it does not take.

    `is_only`: whether the broker has no other log directory.
    """
    for name, remedy in _REMEDIES.items():
        path = os.path.join(directory, name)
        try:
            fault = _fault(path)
        except OSError as error:
            yield StartStep(
                StartAction.OFFLINE, "", -1, path, error.strerror or str(error),
                remedy="give the file to the user of the broker",
            )  # fmt: skip
            continue
        if fault is None:
            continue
        action, loss = StartAction.OFFLINE, ""
        # A log that finds its directory offline ends the start.
        if is_only and name in {RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT}:
            action = StartAction.REFUSE
        if fault.is_word:
            action, loss = _OF_WORDS[name]
        reason = f"line {fault.line}: {legible(fault.reason)}"
        yield StartStep(action, "", -1, path, reason, loss, remedy)


def _fault(path: str) -> CheckpointFault | None:
    """The first fault of a checkpoint of offsets, as a broker reads it; `OSError`."""
    try:
        return checkpoint_fault(whole_file(path), 3)
    except FileNotFoundError:
        return None
    except CorruptCheckpointError as error:  # it is a directory, or far too large
        return CheckpointFault(error.line, error.reason)


def readable_starts(directory: str) -> Mapping[TopicPartition, int]:
    """The log starts of a directory; none if a broker cannot read them."""
    try:
        return read_offsets(directory, LOG_START_CHECKPOINT)
    except (CorruptCheckpointError, OSError):
        return {}


def checkpoint_mends(
    directory: str, mended: MutableMapping[str, Mapping[TopicPartition, int]]
) -> Iterator[tuple[str, Mend]]:
    """Make the damaged checkpoints readable again; `mended` takes their entries, by name.

    The damaged bytes stay beside them, and the entries of whole lines are used, except where none
    at all do less harm than wrong ones: a lost recovery point only costs time.
    """
    for name, without in _WITHOUT.items():
        path = os.path.join(directory, name)
        fault, found = _fault(path), dict[TopicPartition, int]()
        is_kept = name in {HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT}
        try:
            if fault is None:
                read_offsets(directory, name)
                continue
            found = dict(read_offsets(directory, name)) if is_kept else found
        except CorruptCheckpointError as error:
            fault = CheckpointFault(error.line, error.reason)
            found = readable_offsets(directory, name) if is_kept else found
        mended[name] = found
        yield path, _replaced(directory, path, fault, found, without, is_kept=is_kept)


def _replaced(
    directory: str,
    path: str,
    fault: CheckpointFault,
    found: Mapping[TopicPartition, int],
    without: str,
    *,
    is_kept: bool,
) -> Mend:
    name = os.path.basename(path)

    def replace() -> list[str]:
        kept = [] if is_zeros(path, 0) else [keep_tail(path, 0)]
        write_offsets(directory, name, found)
        return kept

    words: list[str | Tense] = [f"{name}, line {fault.line}: {fault.reason}; "]
    if is_kept:
        entries = f"{len(found)} entr{'y' if len(found) == 1 else 'ies'} in whole lines "
        words += [entries, Tense("were", "would be"), " kept; "]
    step = RecoveryStep(RecoveryKind.CHECKPOINT_MENDED, "", -1, directory, "")
    return Mend([(step, [*words, without])], replace, "; the damaged file is kept as ")


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
