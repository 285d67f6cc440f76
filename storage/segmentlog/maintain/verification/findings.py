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

    #: a guard stands: a writer is committing, or died during its commit
    UNFINISHED_COMMIT = "unfinished-commit"
    #: a checkpoint cannot be read. In an object store, it contradicts the commits; a warning if
    #: readers pass over it
    CHECKPOINT = "checkpoint"
    #: a checkpoint names a partition whose directory is gone
    MISSING_PARTITION = "missing-partition"
    #: a segment at the beginning or in the middle of a log is gone. Its index is still there, the
    #: log was never compacted, and no `.log.deleted` file shows that retention was interrupted. In
    #: a broker's directory, a gap is enough if the metadata shows that `cleanup.policy` never had
    #: `compact`, and `cleaner-offset-checkpoint` has no entry of the log
    MISSING_SEGMENT = "missing-segment"
    #: the offsets that `recover` would cut off at a damaged batch, and the number of good records
    #: after the damage, which `recover --on-corrupt-batch skip` keeps
    RECOVERY_CUT = "recovery-cut"
    #: a batch with a wrong checksum, length or offset; a warning if it is wholly below the log
    #: start
    CORRUPT_BATCH = "corrupt-batch"
    #: a batch of a magic or a codec that this version does not read; a warning if it is wholly
    #: below the log start
    UNSUPPORTED_BATCH = "unsupported-batch"
    #: with `--records`: records that contradict their batch, or cannot be inflated
    CORRUPT_RECORDS = "corrupt-records"
    #: a file or a partition that cannot be read, or is a link
    UNREADABLE_FILE = "unreadable-file"
    #: a segment was removed while `verify` ran
    VANISHED_SEGMENT = "vanished-segment"
    #: the last write was cut short: bytes after the last whole batch. An error if no start of the
    #: broker removes them, as after a clean stop: what is written after them cannot be read
    TORN_TAIL = "torn-tail"
    #: preallocated space in the active segment
    ZEROS_AT_THE_END = "zeros-at-the-end"
    #: a segment begins before the one before it ends
    OVERLAPPING_SEGMENT = "overlapping-segment"
    #: offsets without a batch: compaction has removed them, or a segment is missing. In a tier, an
    #: error between two segments, and a warning after the log start
    OFFSET_GAP = "offset-gap"
    #: an index whose segment is gone: a crash has left it
    INDEX_WITHOUT_LOG = "index-without-log"
    #: an entry of an `.index` contradicts its batch. A warning if the file is missing or cut
    #: short, a note if it is missing below the log start
    OFFSET_INDEX = "offset-index"
    #: an entry of a `.timeindex` contradicts its batch. A warning if the file is missing or cut
    #: short, a note if it is missing below the log start
    TIME_INDEX = "time-index"
    #: a `.txnindex` contradicts the abort markers. A warning if the file is missing or cut short,
    #: a note if it is missing below the log start
    TRANSACTION_INDEX = "transaction-index"
    #: the log ends below its checkpointed high watermark. An error if a clean stop, an index or
    #: the recovery point shows that later segments are gone; otherwise a warning: acknowledged
    #: records may be missing, or the checkpoint is newer than this copy of the log
    HIGH_WATERMARK = "high-watermark"
    #: the end marker of a transaction without its records: compaction or retention has removed
    #: them
    MARKER_WITHOUT_DATA = "marker-without-data"
    #: records of a transaction that has no end marker, where a broker took it as ended
    DATA_WITHOUT_MARKER = "data-without-marker"
    #: a transaction that is not ended, from its first offset on
    OPEN_TRANSACTION = "open-transaction"
    #: with `--producers`: the sequences of a batch do not continue those of the producer's batch
    #: before it. An error if fewer offsets than sequences are missing: records are lost; otherwise
    #: a note, because compaction may have removed them
    SEQUENCE_GAP = "sequence-gap"
    #: with `--producers`: a batch is in the log twice, or the producer returns to an earlier
    #: sequence. Producers before Kafka 2.5 may begin again at 0 without a new epoch, without a
    #: record twice
    SEQUENCE_REPEAT = "sequence-repeat"
    #: with `--producers`: a batch has a lower epoch than the producer's batch or marker before it;
    #: a leader would have refused it
    PRODUCER_EPOCH = "producer-epoch"
    #: a tier has logs of a topic id that no partition has. A note if another broker may have the
    #: topic
    REMOTE_LOG = "remote-log"
    #: an object of a segment in a tier is missing, damaged, or differs from the broker's list. A
    #: warning if a segment lacks an index, a producer snapshot or its leader epochs
    REMOTE_SEGMENT = "remote-segment"
    #: an object in a tier belongs to a segment that the list lacks, or that was deleted. A note if
    #: the copy or the deletion has not ended
    REMOTE_OBJECT = "remote-object"
    #: a batch in a tier differs from the same batch on the disk
    REMOTE_COPY = "remote-copy"
    #: a commit of a log in an object store cannot be read, or does not follow the others. A
    #: warning for a commit of an earlier log at this place, and for an earlier layout
    COMMIT = "commit"
    #: an object in an object store lacks bytes that a commit names, or has other batches. A
    #: warning if only producers differ
    DATA_OBJECT = "data-object"
    #: a batch has another leader epoch than `leader-epoch-checkpoint` has at its offset
    LEADER_EPOCHS = "leader-epochs"
    #: later records of the topic are elsewhere, in the object store of a diskless topic
    DISKLESS = "diskless"
    #: deleted or stray partitions, `.deleted` files, `.broken` files
    LEFTOVERS = "leftovers"
    #: a starting broker ends
    START_REFUSED = "start-refused"
    #: a starting broker takes the log directory offline, or serves none of its logs
    START_OFFLINE = "start-offline"
    #: a starting broker renames the partition to `-stray`
    START_STRAY = "start-stray"
    #: a starting broker deletes all segments of the log
    START_EMPTIES = "start-empties"
    #: a starting broker cuts the log off, or hides its end
    START_TRUNCATES = "start-truncates"
    #: a starting broker divides a segment
    START_SPLITS = "start-splits"
    #: a starting broker builds an index again
    START_REBUILDS = "start-rebuilds"
    #: a starting broker forgets producers, leader epochs or entries of a checkpoint
    START_DROPS = "start-drops"
    #: a starting broker begins an empty log in the place of one that is missing
    START_WITHOUT_LOG = "start-without-log"
    #: what the disks of one broker do not show
    START_UNKNOWN = "start-unknown"
    #: a start reads this number of bytes
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
SEVERITIES: Mapping[FindingKind, Severity] = dict.fromkeys(
    (
        FindingKind.TORN_TAIL, FindingKind.INDEX_WITHOUT_LOG, FindingKind.LEADER_EPOCHS,
        FindingKind.RECOVERY_CUT, FindingKind.START_SPLITS, FindingKind.START_REBUILDS,
        FindingKind.START_DROPS, FindingKind.START_WITHOUT_LOG, FindingKind.REMOTE_LOG,
        FindingKind.REMOTE_OBJECT,
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
        severity = severity or SEVERITIES.get(kind, Severity.ERROR)
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
