"""The findings of a verification, and their severity."""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from segmentlog.maintain.health.faults import StartAction
from segmentlog.maintain.health.kinds import Fault
from segmentlog.masking import with_plain_buckets
from segmentlog.model import TopicPartition


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"  #: records cannot be read, or a broker would return wrong answers
    WARNING = "warning"  #: a broker repairs it when it starts, at a price
    NOTE = "note"  #: legal, and worth knowing


class FindingKind(StrEnum):
    """The kind of a finding; values never change, because programs read reports."""

    UNFINISHED_COMMIT = "unfinished-commit"
    CHECKPOINT = "checkpoint"
    MISSING_PARTITION = "missing-partition"
    MISSING_SEGMENT = "missing-segment"
    RECOVERY_CUT = "recovery-cut"
    CORRUPT_BATCH = "corrupt-batch"
    UNSUPPORTED_BATCH = "unsupported-batch"
    CORRUPT_RECORDS = "corrupt-records"
    UNREADABLE_FILE = "unreadable-file"
    VANISHED_SEGMENT = "vanished-segment"
    TORN_TAIL = "torn-tail"
    ZEROS_AT_THE_END = "zeros-at-the-end"
    OVERLAPPING_SEGMENT = "overlapping-segment"
    OFFSET_GAP = "offset-gap"
    INDEX_WITHOUT_LOG = "index-without-log"
    OFFSET_INDEX = "offset-index"
    TIME_INDEX = "time-index"
    TRANSACTION_INDEX = "transaction-index"
    HIGH_WATERMARK = "high-watermark"
    MARKER_WITHOUT_DATA = "marker-without-data"
    DATA_WITHOUT_MARKER = "data-without-marker"
    OPEN_TRANSACTION = "open-transaction"
    SEQUENCE_GAP = "sequence-gap"
    SEQUENCE_REPEAT = "sequence-repeat"
    PRODUCER_EPOCH = "producer-epoch"
    REMOTE_LOG = "remote-log"
    REMOTE_SEGMENT = "remote-segment"
    REMOTE_OBJECT = "remote-object"
    REMOTE_COPY = "remote-copy"
    COMMIT = "commit"
    DATA_OBJECT = "data-object"
    LEADER_EPOCHS = "leader-epochs"
    DISKLESS = "diskless"
    LEFTOVERS = "leftovers"
    START_REFUSED = "start-refused"
    START_OFFLINE = "start-offline"
    START_STRAY = "start-stray"
    START_EMPTIES = "start-empties"
    START_TRUNCATES = "start-truncates"
    START_SPLITS = "start-splits"
    START_REBUILDS = "start-rebuilds"
    START_DROPS = "start-drops"
    START_WITHOUT_LOG = "start-without-log"
    START_UNKNOWN = "start-unknown"
    NOT_CLEANLY_STOPPED = "not-cleanly-stopped"

    @property
    def remedy(self) -> str:
        """What to do about such findings; empty if there is nothing to do."""
        return REMEDIES.get(self, "")


_REINDEX = "segmentlog reindex builds them again from the batches"
_BY_ITSELF = "a broker does the same when it starts after an unclean stop"

#: Kinds of findings that have one remedy, the worst first.
_BY_REMEDY: Mapping[str, Sequence[FindingKind]] = {
    "damage inside a log: restore the file from another replica or a backup. A read with "
    "onCorruptBatch=skip leaves the bad batches out. After an unclean stop, segmentlog recover "
    "and a starting broker cut a log at its first bad batch: segmentlog recover --dry-run shows "
    "where. segmentlog recover --on-corrupt-batch skip leaves out the bad batches alone.": (
        FindingKind.CORRUPT_BATCH,
        FindingKind.CORRUPT_RECORDS,
    ),
    "missing partition: put its directory back from another replica or a backup. If the "
    "partition was moved, also name the log directory that now holds it. A read with "
    "failOnDataLoss=false (fail_on_data_loss=False) leaves it out.": (
        FindingKind.MISSING_PARTITION,
    ),
    "missing segment: put its .log file back from another replica or a backup. Its index files "
    "show the loss, and the next writer, segmentlog recover and a starting broker remove them: "
    "keep a copy. A read leaves the offsets out.": (FindingKind.MISSING_SEGMENT,),
    "damaged checkpoint: the logs were verified without it. Each finding says what to do.": (
        FindingKind.CHECKPOINT,
    ),
    "commit: the object must be as its writer has made it. Restore it from a version or a copy of "
    "the bucket, or mirror the log again to another place.": (FindingKind.COMMIT,),
    "data object: its records are lost unless the object comes back, from a version or a copy of "
    "the bucket. A rule that removes objects by their age must leave this place out.": (
        FindingKind.DATA_OBJECT,
    ),
    "unreadable file: the rest of the directory was verified. Make the file readable to this "
    "user, or run the command as the broker's user.": (FindingKind.UNREADABLE_FILE,),
    "unfinished commit: if no writer is at work, segmentlog recover finishes or undoes it.": (
        FindingKind.UNFINISHED_COMMIT,
    ),
    "torn tail: segmentlog recover cuts the tail off and keeps it in a .broken file; "
    f"{_BY_ITSELF}.": (FindingKind.TORN_TAIL,),
    "sequences of producers: Log.producers() lists each gap and each repeat with its offsets. "
    "The application that produced the records can show which records are missing or doubled; "
    "another replica may be complete.": (
        FindingKind.SEQUENCE_GAP,
        FindingKind.SEQUENCE_REPEAT,
        FindingKind.PRODUCER_EPOCH,
    ),
    "tiered storage: a broker cannot read this segment either. Restore the objects from a replica "
    "or a version of the bucket.": (FindingKind.REMOTE_SEGMENT,),
    "copies that differ: the local log is what readers get. segmentlog dump shows the batches of "
    "both.": (FindingKind.REMOTE_COPY,),
    f"index files: {_REINDEX}.": (
        FindingKind.OFFSET_INDEX,
        FindingKind.TIME_INDEX,
        FindingKind.TRANSACTION_INDEX,
    ),
}

#: What to do about findings, the worst first.
REMEDIES: Mapping[FindingKind, str] = {
    kind: remedy for remedy, kinds in _BY_REMEDY.items() for kind in kinds
}


class Finding(NamedTuple):
    """One thing that is wrong, and its place.

    `position` is the byte of the file and `offset` the offset of the log; each is -1 if there is
    none.  If the finding concerns a range of offsets, it begins at `offset`, and `end_offset` is
    the offset after it, otherwise -1.  A finding about a whole log directory has no topic, and has
    partition -1.
    """

    severity: Severity
    kind: FindingKind
    topic: str
    partition: int
    path: str
    position: int
    offset: int
    message: str
    end_offset: int = -1

    @property
    def has_problem(self) -> bool:
        """Whether it is damage that cannot be read, or that would mislead a broker."""
        return self.severity == Severity.ERROR


#: The usual severity of a kind, if it is not an error.
_SEVERITIES = dict.fromkeys(
    (
        FindingKind.TORN_TAIL, FindingKind.INDEX_WITHOUT_LOG, FindingKind.LEADER_EPOCHS,
        FindingKind.RECOVERY_CUT, FindingKind.START_SPLITS, FindingKind.START_REBUILDS,
        FindingKind.START_DROPS, FindingKind.START_WITHOUT_LOG,
    ),
    Severity.WARNING,
) | dict.fromkeys(
    (
        FindingKind.ZEROS_AT_THE_END, FindingKind.VANISHED_SEGMENT, FindingKind.OFFSET_GAP,
        FindingKind.MARKER_WITHOUT_DATA, FindingKind.OPEN_TRANSACTION, FindingKind.DISKLESS,
        FindingKind.LEFTOVERS, FindingKind.START_UNKNOWN, FindingKind.NOT_CLEANLY_STOPPED,
    ),
    Severity.NOTE,
)  # fmt: skip


class MakeFinding(NamedTuple):
    """Makes findings about the log of one topic-partition, or about a whole log directory."""

    topic_partition: TopicPartition = TopicPartition("", -1)

    def __call__(
        self,
        kind: FindingKind,
        path: str,
        message: str,
        *,
        position: int = -1,
        offset: int = -1,
        end_offset: int = -1,
        severity: Severity | None = None,
    ) -> Finding:
        """`severity`: by default, the usual one of the kind."""
        severity = severity or _SEVERITIES.get(kind, Severity.ERROR)
        where = (*self.topic_partition, with_plain_buckets(path), position, offset)
        return Finding(severity, kind, *where, with_plain_buckets(message), end_offset)


def unfinished_commits(guards: Iterable[str]) -> Iterator[Finding]:
    """Findings about the guards in log directories, given their paths."""
    for guard in guards:
        yield MakeFinding()(
            FindingKind.UNFINISHED_COMMIT,
            guard,
            "a write job is committing, or died during its commit; brokers refuse to start until "
            "the next writer, or "
            f"segmentlog recover {shlex.quote(os.path.dirname(guard))}, finishes or undoes it",
        )


#: The kinds of findings about what a starting broker does.
OF_START: Mapping[StartAction, FindingKind] = {
    StartAction.REFUSE: FindingKind.START_REFUSED,
    StartAction.OFFLINE: FindingKind.START_OFFLINE,
    StartAction.UNSERVED: FindingKind.START_OFFLINE,
    StartAction.STRAY: FindingKind.START_STRAY,
    StartAction.EMPTY: FindingKind.START_EMPTIES,
    StartAction.TRUNCATE: FindingKind.START_TRUNCATES,
    StartAction.SPLIT: FindingKind.START_SPLITS,
    StartAction.REBUILD: FindingKind.START_REBUILDS,
    StartAction.DROP: FindingKind.START_DROPS,
    StartAction.MISSING: FindingKind.START_WITHOUT_LOG,
    StartAction.RECOVER: FindingKind.NOT_CLEANLY_STOPPED,
    StartAction.DELETE: FindingKind.LEFTOVERS,
    StartAction.KEEP: FindingKind.LEFTOVERS,
    StartAction.UNKNOWN: FindingKind.START_UNKNOWN,
}


def as_finding(fault: Fault) -> Finding:
    """What a reader is told of a fault that a starting broker notices."""
    step = fault.as_step()
    return MakeFinding(TopicPartition(step.topic, step.partition))(
        OF_START[step.action],
        step.path,
        step.message,
        offset=step.offset,
        end_offset=step.end_offset,
    )
