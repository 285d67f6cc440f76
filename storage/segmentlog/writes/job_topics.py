"""Topics of a job: how many partitions each has, which of them are missing, which are created."""

import contextlib
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from segmentlog.errors import LogDirectoryError, OptionError, UnknownTopicOrPartitionError
from segmentlog.format.names import check_topic_name
from segmentlog.model import TopicPartition
from segmentlog.store.partitions import current_partitions
from segmentlog.txn.deleted import is_known
from segmentlog.txn.state import LazyState
from segmentlog.txn.topics import create_partitions

#: Partitions of a new topic that rows may name by themselves: one wrong row makes no more.
_MOST_NAMED = 10_000


@dataclass(frozen=True, slots=True)
class JobTopics:
    """Topics of a log directory as a job has found them, and as it may create them."""

    directory: str  # the log directory
    topic: str | None  # of all rows, or None to take the column ``topic``
    partitions: Mapping[str, int]  # number of partitions of each topic when the job began
    in_cluster: Mapping[str, int]  # this number, of incomplete topics
    missing: Mapping[str, int]  # the first missing partition of each incomplete topic
    num_partitions: int  # of topics that the job creates; 0 to create none
    #: whether rows keep their partitions: an incomplete topic may be written to
    keeps_partitions: bool
    #: whether rows name the partitions of topics that the job creates, and no number was given:
    #: each of these topics gets those that its own rows name
    is_named: bool
    deletions: Mapping[str, str]  # the last deletion of each topic, when the job began
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
        """The topics that are there now; a job begins with them.

        It is an error if `topic` has another number of partitions than `asked` (one by default for
        missing topics), or is incomplete and not to be created.  `in_cluster` has the numbers of
        the cluster's metadata, if it is known.
        """
        partitions, missing = _count_partitions(directory, in_cluster)
        # The job travels to every task, so it keeps only the numbers that directories do not show.
        in_cluster = {each: partitions[each] for each in missing}
        if topic in partitions and asked not in {None, partitions[topic]}:
            accepted = (
                f"topic {topic!r} exists and has {partitions[topic]} partitions: leave the option "
                "out to write to these, choose another topic, or delete this one and its records: "
                "segmentlog delete-topic"
            )
            raise OptionError("num_partitions", str(asked), accepted)
        n_new = (asked or 1) if auto_create_topics else 0
        topics = cls(
            directory, topic, partitions, in_cluster, missing, n_new, keeps_partitions,
            is_named=is_named and asked is None, deletions=LazyState(directory).deletions,
        )  # fmt: skip
        if topic is not None:
            topics.n_partitions(topic)
        return topics

    def n_partitions(self, topic: str) -> int:
        """Number of partitions of a topic, or the number that it will get."""
        if topic in self.missing and not self.keeps_partitions:
            hint = (
                "write a topic only where all its partitions are: the number of partitions "
                "decides which partition a key gets"
            )
            missing = self.missing[topic]
            raise UnknownTopicOrPartitionError(topic, missing, self.directory, hint)
        if topic in self.partitions:
            return self.partitions[topic]
        check_topic_name(topic)
        if not self.num_partitions:
            hint = (
                "create the topic with the broker, or allow its creation: "
                "auto_create_topics=True (in Spark autoCreateTopics=true)"
            )
            raise UnknownTopicOrPartitionError(topic, -1, self.directory, hint)
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
            if each not in self.partitions and not is_known(self.directory, each)
        ]

    def make(self, topics: Collection[str]) -> None:
        """Create the topics that are missing when the job commits; the caller holds the lock.

        It is an error if rows were spread over another number of partitions than a topic has:
        another job may have created the topic meanwhile, or again.  Partitions that were added to
        a topic are none: a producer does not know of new partitions at once, either.
        """
        if self.num_partitions:
            for topic in topics:
                create_partitions(self.directory, topic, self.n_partitions(topic))
        found, missing = _count_partitions(self.directory, self.in_cluster)
        deletions = LazyState(self.directory).deletions
        for topic in topics:
            wanted, n_found = self.n_partitions(topic), found.get(topic, 0)
            is_same = deletions.get(topic) == self.deletions.get(topic)
            may_grow = topic in self.partitions and is_same
            is_other = n_found < wanted or (n_found > wanted and not may_grow)
            if is_other or missing.get(topic) != self.missing.get(topic):
                reason = (
                    f"topic {topic!r} no longer has the {wanted} partitions over which the job "
                    "has spread its rows; run the job again"
                )
                raise LogDirectoryError(self.directory, reason)

    def all_partitions(self) -> list[TopicPartition]:
        """The partitions that `topic` has now."""
        if self.topic is None:
            return []
        counts, _ = _count_partitions(self.directory, self.in_cluster)
        n_partitions = counts.get(self.topic, 0)
        return [TopicPartition(self.topic, number) for number in range(n_partitions)]


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

    Raises `LogDirectoryError` if the name of a directory has zeros before the number of its
    partition.
    """
    found: dict[str, set[int]] = {}
    for each in current_partitions(directory):
        topic, partition = each.topic_partition
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
