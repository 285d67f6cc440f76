"""Topics of a job: how many partitions each has, which of them are missing, which are created."""

import contextlib
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from segmentlog.errors import LogDirectoryError, OptionError, UnknownTopicOrPartitionError
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT, check_topic_name
from segmentlog.log.checkpoint import read_offsets
from segmentlog.model import TopicPartition
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.paths import is_bucket
from segmentlog.store.readable import exists, is_url
from segmentlog.txn.state import LazyState
from segmentlog.txn.topics import create_partitions, is_known, partitions_there

#: Partitions of a new topic that rows may name by themselves: one wrong row makes no more.
_MOST_NAMED = 10_000


@dataclass(frozen=True, slots=True)
class JobTopics:
    """Topics as a job has found them, and as it may create them."""

    place: str  # the log directory, or the place of a log in a store
    topic: str | None  # of all rows, or None to take the column ``topic``
    partitions: Mapping[str, int]  # number of partitions of each topic when the job began
    num_partitions: int  # of topics that the job creates; 0 to create none
    #: whether rows name the partitions of topics that the job creates, and no number was given:
    #: each of these topics gets those that its own rows name
    is_named: bool
    #: by topic, when the job began: what shows that it is not a later topic of the same name (the
    #: token of the last deletion; in a store, the topic id)
    versions: Mapping[str, str]
    in_cluster: Mapping[str, int] = field(default_factory=dict)  # `partitions`, of incomplete ones
    #: the first missing partition of each incomplete topic
    missing: Mapping[str, int] = field(default_factory=dict)
    #: whether rows keep their partitions: an incomplete topic may be written to
    keeps_partitions: bool = False
    #: number of partitions of these topics, once all rows are staged
    named: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def found(
        cls,
        directory: str,
        topic: str | None,
        *,
        asked: int | None,
        auto_create_topics: bool,
        keeps_partitions: bool,
        in_cluster: Mapping[str, int],
        is_named: bool = False,
    ) -> "JobTopics":
        """The topics that a log directory has now; raises as `check` does.

        `in_cluster` has the numbers of the cluster's metadata, if it is known.
        """
        partitions, missing = _count_partitions(directory, in_cluster)
        # The job travels to every task, so it keeps only the numbers that directories do not show.
        in_cluster = {each: partitions[each] for each in missing}
        topics = cls(
            directory,
            topic,
            partitions,
            (asked or 1) if auto_create_topics else 0,
            is_named and asked is None,
            LazyState(directory).deletions,
            in_cluster,
            missing,
            keeps_partitions,
        )
        topics.check(asked)
        return topics

    def check(self, asked: int | None) -> None:
        """Refuse to begin a job.

        Raises `OptionError` if `topic` has another number of partitions than `asked` (one by
        default for missing topics); as `n_partitions` does if it is not to be written to.
        """
        if self.topic is None:
            return
        if asked not in {None, self.partitions.get(self.topic, asked)}:
            accepted = (
                f"topic {self.topic!r} exists and has {self.partitions[self.topic]} partitions: "
                "give this number, choose another topic, or delete this one "
                "and its records: segmentlog delete-topic"
            )
            raise OptionError("num_partitions", str(asked), accepted)
        self.n_partitions(self.topic)

    def n_partitions(self, topic: str) -> int:
        """Number of partitions of a topic, or the number that it will get.

        Raises `UnknownTopicOrPartitionError` if it is missing and not to be created, or
        incomplete.
        """
        if topic in self.missing and not self.keeps_partitions:
            hint = (
                "write a topic only where all its partitions are: the number of partitions "
                "decides which partition a key gets"
            )
            raise UnknownTopicOrPartitionError(topic, self.missing[topic], self.place, hint)
        if topic in self.partitions:
            return self.partitions[topic]
        check_topic_name(topic)
        if not self.num_partitions:
            hint = "allow its creation: auto_create_topics=True (in Spark autoCreateTopics=true)"
            if not is_url(self.place):
                hint = f"create the topic with the broker, or {hint}"
            raise UnknownTopicOrPartitionError(topic, -1, self.place, hint)
        return self.named.get(topic, _MOST_NAMED) if self.is_named else self.num_partitions

    def named_by(self, staged: Collection[TopicPartition]) -> "JobTopics":
        """The topics, with the partitions that all rows of the job name."""
        named = {} if self.topic is None else {self.topic: 1}
        for topic, partition in staged:
            named[topic] = max(named.get(topic, 1), partition + 1)
        return replace(self, named=named)

    def new_among(self, topics: Collection[str]) -> list[str]:
        """The topics that `make` would create, and of which nothing is there yet."""
        return [
            each
            for each in topics
            if each not in self.partitions and not is_known(self.place, each)
        ]

    def make(self, topics: Collection[str]) -> None:
        """Create the topics that are missing when the job commits; the caller holds the lock.

        It is an error if rows were spread over another number of partitions than a topic has:
        another job may have created the topic meanwhile, or again.  Partitions that were added to
        a topic are none: a producer does not know of new partitions at once, either.
        """
        if self.num_partitions:
            for topic in topics:
                create_partitions(self.place, topic, self.n_partitions(topic))
        found, missing = _count_partitions(self.place, self.in_cluster)
        deletions = LazyState(self.place).deletions
        for topic in topics:
            wanted, n_found = self.n_partitions(topic), found.get(topic, 0)
            is_same = deletions.get(topic) == self.versions.get(topic)
            may_grow = topic in self.partitions and is_same
            is_other = n_found < wanted or (n_found > wanted and not may_grow)
            if is_other or missing.get(topic) != self.missing.get(topic):
                raise self.not_as_found(topic, wanted)

    def not_as_found(self, topic: str, n_wanted: int) -> LogDirectoryError:
        """The error for a topic that another job has created meanwhile, or again."""
        reason = (
            f"topic {topic!r} no longer has the {n_wanted} partitions over which the job has "
            "spread its rows; run the job again"
        )
        return LogDirectoryError(self.place, reason)

    def not_as_staged(self, topic: str) -> LogDirectoryError:
        """The error for a topic that has got records since the job has begun."""
        reason = (
            f"the topic {topic!r} has changed while its records were staged; nothing of the job "
            "is visible: run it again"
        )
        return LogDirectoryError(self.place, reason)

    def all_partitions(self) -> list[TopicPartition]:
        """The partitions that `topic` has now."""
        if self.topic is None:
            return []
        counts, _ = _count_partitions(self.place, self.in_cluster)
        n_partitions = counts.get(self.topic, 0)
        return [TopicPartition(self.topic, number) for number in range(n_partitions)]


def log_ends(place: str, topic: str) -> dict[int, int]:
    """The ends of the logs of a topic that have had records, by partition.

    A partition without records may be one that a killed job has left, and the next job completes.
    """
    if not is_bucket(place) and not exists(place):
        return {}
    try:
        opened = open_log_dir(place)
    except LogDirectoryError:  # an empty directory: a job makes the log, or says why it cannot
        return {}
    numbers = opened.topics(internal=True).get(topic, ())
    ends = {number: opened.log(topic, number).log_end_offset for number in numbers}
    return {number: end for number, end in ends.items() if end}


def complete_topics(directory: str, topic: str | None) -> None:
    """Make the partitions that a crash has left out, of `topic` or of all topics."""
    if topic is not None:
        create_partitions(directory, topic, 0)
        return
    partitions, missing = _count_partitions(directory, {})
    for each in missing:
        # The partition had records, or a link is in its place: an error only if rows come for it.
        with contextlib.suppress(UnknownTopicOrPartitionError, LogDirectoryError):
            create_partitions(directory, each, partitions[each])


def _count_partitions(
    directory: str, in_cluster: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """`JobTopics.partitions` and `JobTopics.missing`.

    The directories alone do not show that the highest partitions are missing.
    """
    found: dict[str, set[int]] = {}
    known = read_offsets(directory, HIGH_WATERMARK_CHECKPOINT)
    for topic, partition in partitions_there(directory, known):
        found.setdefault(topic, set()).add(partition)
    counts = {
        topic: max(max(numbers) + 1, in_cluster.get(topic, 0)) for topic, numbers in found.items()
    }
    missing = {
        topic: next(number for number in itertools.count() if number not in numbers)
        for topic, numbers in found.items()
        if len(numbers) < counts[topic]
    }
    return counts, missing
