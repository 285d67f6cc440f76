"""The leader epochs of a log: what a broker does with a damaged file, and what mends it."""

import os
from collections.abc import Iterator, Sequence

from segmentlog.errors import CorruptCheckpointError
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT
from segmentlog.log.checkpoint import parse_leader_epochs
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.segment import Segment
from segmentlog.maintain.health.faults import StartAction, legible, whole_file
from segmentlog.maintain.health.java import CheckpointFault, checkpoint_fault
from segmentlog.maintain.health.kinds import Fault, FaultKind
from segmentlog.maintain.health.mend import Mend, RecoveryKind, RecoveryStep, Tense
from segmentlog.model import METADATA_TOPIC, TopicPartition

_REMEDY = f"segmentlog recover {FaultKind.LEADER_EPOCHS.value.mend}"


def epochs_fault(where: TopicPartition, partition_path: str) -> Iterator[Fault]:
    """The fault of a partition's ``leader-epoch-checkpoint`` that is not as a broker writes it."""
    path = os.path.join(partition_path, LEADER_EPOCH_CHECKPOINT)
    action = StartAction.REFUSE if where.topic == METADATA_TOPIC else StartAction.OFFLINE
    try:
        fault, entries = java_fault(path)
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        if fault is not None:
            action = StartAction.REFUSE if fault.is_word else action
            reason = f"line {fault.line}: {legible(fault.reason)}"
        else:
            contradiction = EpochStarts(partition_path, warns=False).error
            if contradiction is None:
                return
            action, reason = StartAction.REFUSE, contradiction.reason
            if all(min(each) >= 0 for each in entries):
                yield FaultKind.LEADER_EPOCHS.at(
                    where,
                    path,
                    f"{reason}: a starting broker drops the epochs that a later line contradicts",
                    "the offsets at which followers have to cut their copies off",
                    _REMEDY,
                    action=StartAction.DROP,
                )
                return
    yield FaultKind.LEADER_EPOCHS.at(where, path, reason, remedy=_REMEDY, action=action)


def java_fault(path: str) -> tuple[CheckpointFault | None, Sequence[tuple[int, int]]]:
    """The first fault of such a file, as a broker reads it; and its entries.  `OSError`."""
    try:
        data = whole_file(path)
        fault = checkpoint_fault(data, 2)
        return fault, () if fault else parse_leader_epochs(path, data)
    except FileNotFoundError:
        return None, ()
    except CorruptCheckpointError as error:
        return CheckpointFault(error.line, error.reason), ()


def epochs_mend(
    step: RecoveryStep,
    name: str,
    segments: Sequence[Segment],
    log_start: int,
    first_read: int | None,
) -> Mend | None:
    """Build the leader epochs of a log again, if they are lost or wrong.

    `step`: without kind and message.  `name`: of the log's directory.  `segments`: that stay.
    `first_read`: number of the first that a planned recovery reads, which adds their epochs; None
    without one.
    """
    epochs = EpochStarts(step.path, warns=False)
    wrong = None if first_read is None else epochs.contradiction_in(segments[first_read:])
    fault = java_fault(epochs.path)[0]
    if wrong is None and fault is None and not epochs.are_lost(segments):
        return None
    epochs.forget()
    # Before anything is cut: a damaged header ends the recovery of this log.
    epochs.follow_all(segments if first_read is None else segments[:first_read])

    def write() -> None:
        if first_read is None or wrong is not None or fault is not None:
            epochs.truncate_from_start(log_start)
            epochs.write(is_forced=fault is not None)

    why = "it had no entries" if epochs.error is None else epochs.error.reason
    if fault is not None and epochs.error is None:
        why = f"line {fault.line}: {fault.reason}"
    if wrong is not None:
        why = "the batch at offset {} has epoch {}, but the file has {} there".format(*wrong)
    built = Tense("built", "would build")
    words = (f"{name}: ", built, f" {LEADER_EPOCH_CHECKPOINT} again from its batches: {why}")
    return Mend([(step._replace(kind=RecoveryKind.LEADER_EPOCHS_BUILT), words)], write)
