"""What is wrong with log directories, or worth knowing: found once, as a value.

A rule of this room finds the faults of its subject.  `verify` shows each as a `Finding`,
`preflight` as a `StartStep`, and `recover` carries out what mends it.  So what a fault is, what a
starting broker does, and what a recovery does are columns of one table, `FaultKind`, which
``docs/recovery.md`` prints.  A rule names the row, and the action of the broker where it is not
the usual one of the row.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from segmentlog.maintain.health.faults import HARM, StartAction, StartStep
from segmentlog.maintain.health.mend import Mend
from segmentlog.model import TopicPartition

_REFUSE, _OFFLINE, _STRAY, _EMPTY = (
    StartAction.REFUSE,
    StartAction.OFFLINE,
    StartAction.STRAY,
    StartAction.EMPTY,
)
_DROP, _DELETE, _KEEP, _MISSING = (
    StartAction.DROP,
    StartAction.DELETE,
    StartAction.KEEP,
    StartAction.MISSING,
)
_TRUNCATE, _UNKNOWN = StartAction.TRUNCATE, StartAction.UNKNOWN


#: The place of a fault that concerns a whole log directory.
NO_LOG = TopicPartition("", -1)


class Fault(NamedTuple):
    """One thing that is wrong, or worth knowing, and its place.

    `action`: of a starting broker; None if it does not notice.  `evidence`: what is there, and
    what is expected.  `mend`: returns what `recover` carries out; None if nothing mends it, or if
    more has to be read to know what does.  The others are as those of a `StartStep`.
    """

    kind: "FaultKind"
    action: StartAction | None
    topic: str
    partition: int
    path: str
    evidence: str
    loss: str = ""
    remedy: str = ""
    offset: int = -1
    end_offset: int = -1
    n_bytes: int = -1
    mend: Callable[[], Mend] | None = None

    @property
    def has_harm(self) -> bool:
        """Whether the broker does not serve a log, or has removed its records."""
        return self.action in HARM

    def as_step(self) -> StartStep:
        """What a starting broker does, which has to notice the fault."""
        assert self.action is not None  # noqa: S101 - its rules say what a broker does
        return StartStep(self.action, *self[2:-1])


class Row(NamedTuple):
    """A row of the table.

    `fault`: in words.  `action`: the usual one of a starting broker.  `mend`: what ``segmentlog
    recover`` does, as the end of a sentence; empty if it does nothing.  `after`: what comes of it.
    """

    fault: str
    action: StartAction
    mend: str = ""
    after: str = ""


class FaultKind(Enum):
    """The faults that a starting broker or a recovery notices, in the order of a start."""

    # The directories.
    IDS = Row("`meta.properties` is missing, damaged, or of another node or cluster", _REFUSE)
    FEATURE = Row("a feature of the cluster has a level that the version does not take", _REFUSE)
    SPACE = Row("no space is left", _OFFLINE)
    OWNERS = Row("files that the owner of the directory may not open", _OFFLINE)
    FOREIGN_DIRECTORY = Row("a directory whose name is not that of a partition", _REFUSE)
    MARK = Row("`.kafka_cleanshutdown` is a directory with entries", _OFFLINE)
    UNCLEAN = Row(
        "the directory was not cleanly stopped",
        StartAction.RECOVER,
        "does the same before the start, and keeps what it cuts off",
    )
    # The metadata of the cluster.
    BOOTSTRAP = Row("`bootstrap.checkpoint` is damaged", _REFUSE)
    METADATA_TWICE = Row("an older copy of the cluster's metadata", _REFUSE)
    METADATA_GONE = Row("`__cluster_metadata-0` is not there", _MISSING)
    METADATA_UNREAD = Row("the cluster's metadata cannot be read", _UNKNOWN)
    METADATA_CUT = Row("a bad batch in the cluster's metadata", _TRUNCATE)
    METADATA_END = Row("the cluster's metadata ends before its newest snapshot", _EMPTY)
    ELECTION = Row("`quorum-state` is not what a node writes", _REFUSE)
    METADATA_ID = Row(
        "the topic id of the cluster's metadata is damaged, or another",
        _REFUSE,
        "writes a damaged one again",
    )
    SNAPSHOT_NAME = Row("a name in `__cluster_metadata-0` that no snapshot has", _REFUSE)
    SNAPSHOT = Row(
        "the newest snapshot of the cluster's metadata is damaged",
        _REFUSE,
        "puts it aside as a `.broken` file if an older snapshot, or none, and the log have all "
        "its records; otherwise that is a failure, and you need the directory of another "
        "controller or broker",
    )
    # The checkpoints of a directory.
    RECOVERY_POINTS = Row(
        "`recovery-point-offset-checkpoint` is damaged",
        _OFFLINE,
        "begins a new file",
        "all bytes of all logs are read, unless they were cleanly stopped",
    )
    LOG_STARTS = Row(
        "`log-start-offset-checkpoint` is damaged",
        _OFFLINE,
        "keeps the entries of whole lines",
        "other logs begin with their first segment, and records that DeleteRecords has deleted "
        "there may be seen again",
    )
    HIGH_WATERMARKS = Row(
        "`replication-offset-checkpoint` is damaged",
        _OFFLINE,
        "keeps the entries of whole lines",
        "reads of other logs end at their log ends, until a broker has agreed with its replicas "
        "on a high watermark",
    )
    CLEANED_ENDS = Row(
        "`cleaner-offset-checkpoint` is damaged",
        _OFFLINE,
        "begins a new file",
        "compaction begins again with the first segment of each log",
    )
    MOVED_START = Row("the log start of a log that was moved is in its old directory", _DROP)
    # The logs that the cluster assigns to the broker.
    TOPIC_ID = Row(
        "`partition.metadata` is missing, damaged, or of a topic that the cluster does not have",
        _STRAY,
        "writes a file that is missing or damaged again, with the topic id in the cluster's "
        "metadata: of this directory, or of that which `--metadata` names; without the metadata, "
        "a damaged file is a failure",
    )
    REPLICA = Row("the cluster assigns the partition to other nodes", _STRAY)
    TWICE = Row("a partition is in two directories", _REFUSE)
    FUTURE = Row("a `-future` copy that the cluster assigns to this directory", _REFUSE)
    LOG_GONE = Row("the directory of a partition is not there", _MISSING)
    DISK_GONE = Row(
        "the directory to which logs are assigned is none of these", StartAction.UNSERVED
    )
    RENAMED = Row("a `-delete` directory of a topic that the cluster has", _EMPTY)
    # The files of a log.
    NAME = Row("a file in a partition whose name begins with no offset", _REFUSE)
    LEADER_EPOCHS = Row(
        "`leader-epoch-checkpoint` is damaged, lost, does not rise, or contradicts a batch",
        _OFFLINE,
        "builds the file again from the log",
        "a broker keeps epochs that contradict batches",
    )
    NOT_OPENED = Row("a file of a segment is a directory, or a link that leads nowhere", _OFFLINE)
    TRANSACTIONS = Row(
        "a `.txnindex` file of another version", _REFUSE, "builds it again from the log"
    )
    INDEX_GONE = Row(
        "a segment without `.index`", StartAction.REBUILD, "builds it again from the log"
    )
    TIMES_GONE = Row(
        "a cleanly stopped segment without `.timeindex`", _DROP, "builds it again from the log"
    )
    TIMES_ZEROED = Row(
        "a `.timeindex` file that ends in zeros",
        _TRUNCATE,
        "builds it again from the log, unless the segment has a bad batch",
    )
    FAR_OFFSETS = Row(
        "offsets that no index can hold", StartAction.SPLIT, "splits the segment, too"
    )
    BELOW_BASE = Row(
        "a batch below the base offset of its segment, in a segment that is read",
        _REFUSE,
        "cuts the log off before the batch, without the mark of a clean stop",
    )
    BAD_END = Row(
        "a bad length at the end of a cleanly stopped log",
        _REFUSE,
        "cuts it off once `.kafka_cleanshutdown` is removed",
    )
    SHORT_END = Row(
        "the last entry of an index leads beyond the end of a cleanly stopped log",
        _TRUNCATE,
        "builds it again once `.kafka_cleanshutdown` is removed",
    )
    TAIL = Row(
        "bytes after the last batch of a cleanly stopped log",
        _KEEP,
        "cuts them off once `.kafka_cleanshutdown` is removed",
    )
    START_BEYOND = Row(
        "the log start is beyond the log end",
        _EMPTY,
        "removes the entry if the high watermark is not beyond the log end, too: only records "
        "below it can be deleted",
    )
    BELOW_WATERMARK = Row(
        "the log ends below its high watermark, and nothing is cut off",
        _TRUNCATE,
        "lowers the high watermark, and ends with status 3: acknowledged records are missing",
    )
    PRODUCERS = Row("producer snapshots of a cleanly stopped log are damaged, or gone", _DROP)
    SEGMENTS_GONE = Row(
        "index files without a log, the last sign of the loss of segments",
        _DELETE,
        "removes them, and names the loss",
    )
    NO_SEGMENT = Row("a log with a high watermark, and without a segment", _MISSING)
    UNREAD = Row("a log that cannot be read", _UNKNOWN)
    RECOVERED = Row(
        "bytes beyond the recovery point, without a clean stop",
        StartAction.RECOVER,
        "reads them, too",
    )
    BAD_BATCH = Row(
        "a bad batch beyond the recovery point, without a clean stop",
        _TRUNCATE,
        "does the same, and keeps the bytes; with `--on-corrupt-batch skip`, it keeps the good "
        "batches after it",
    )
    # What is not served, and the first minute.
    LEFTOVERS = Row("logs and files that earlier starts and stops have left", _KEEP)
    EXPIRED = Row("segments that are due", _DELETE)
    ELSEWHERE = Row("other nodes, and newer metadata", _UNKNOWN)

    def at(
        self,
        where: TopicPartition,
        path: str,
        evidence: str,
        loss: str = "",
        remedy: str = "",
        *,
        action: StartAction | None = None,
        offset: int = -1,
        end_offset: int = -1,
        n_bytes: int = -1,
        mend: Callable[[], Mend] | None = None,
    ) -> Fault:
        """A fault of this kind in a log; `action`: if it is not the usual one."""
        return Fault(
            self,
            action or self.value.action,
            *where,
            path,
            evidence,
            loss,
            remedy,
            offset,
            end_offset,
            n_bytes,
            mend,
        )

    def of(
        self, path: str, evidence: str, remedy: str = "", *, action: StartAction | None = None
    ) -> Fault:
        """A fault of this kind in a log directory."""
        return self.at(NO_LOG, path, evidence, remedy=remedy, action=action)
