"""A write job: the driver begins it, tasks on any machine stage rows, the driver commits them."""

import contextlib
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from segmentlog.cluster.directory_settings import DirectorySettings, read_partition_counts
from segmentlog.errors import (
    CommitInDoubtError,
    LogDirectoryError,
    OptionError,
    SegmentLogError,
    SyncFailedError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import META_PROPERTIES_FILE, check_topic_name
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import TopicPartition
from segmentlog.reads.metadata_log import metadata_path
from segmentlog.store.beside_broker import pace_of
from segmentlog.store.partitions import current_partitions
from segmentlog.store.paths import is_bucket
from segmentlog.store.readable import exists
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.change import hold
from segmentlog.txn.guard import list_guards
from segmentlog.txn.state import LazyState, State, StreamBatch
from segmentlog.txn.topics import create_partitions, is_known, remove_taken_out, take_out
from segmentlog.writes.bucket_job import BucketJob
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job_files import (
    JobFiles,
    end_stream,
    mark_new,
    new_token,
    prepare_directory,
    sweep_jobs,
)

if TYPE_CHECKING:
    from segmentlog.txn.change import HeldDirectory
    from segmentlog.writes.commit_staged import Committed
    from segmentlog.writes.extents import TaskExtents
    from segmentlog.writes.sequences import SequenceNumbers
    from segmentlog.writes.stager import RowStager

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


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One job.  It is small and picklable, because it travels to every task."""

    #: what the write asks for, with the settings of the directory in its `config`
    request: WriteRequest
    token: str  # random; part of the names of all files that the job makes there
    topics: JobTopics  # that it writes to, with their numbers of partitions

    @classmethod
    @storage_errors()
    def begin(cls, request: WriteRequest, held: "HeldDirectory | None" = None) -> "WriteJob":
        """Recover from a crash, if there was one, and leave a mark for the tasks.

        The settings of each topic come from the directory, unless they are given.

        A missing topic is created when the job commits.  A job that fails before leaves no topic,
        which would bind the next job to a number of partitions that nobody chose.

        `held`: the directory, if the caller holds it.  A path in an object store gets a job of
        its own kind.  Raises `LogLockedError` if a broker is running on the directory, or another
        writer keeps it locked.
        """
        if is_bucket(request.directory):
            return cast("WriteJob", BucketJob.begin(request))  # it has the same face
        directory, config, topic = request.directory, request.config, request.topic
        token = new_token(request.stream)
        prepare_directory(directory, token)
        auto_create_topics = request.auto_create_topics
        if auto_create_topics is None:
            auto_create_topics = not exists(f"{directory}/{META_PROPERTIES_FILE}")

        def config_of(each: str) -> TopicConfig:
            found = known.config(each)
            # Settings that were given for the job count for topics that it may write to.
            return request.config.topic_config.above(found) if topic in (None, each) else found

        with (
            storage_errors(directory),
            hold(directory, request.lock_timeout_seconds, held=held) as held,
        ):
            mark_new(directory)
            if request.stream is not None:
                end_stream(directory, request.stream)
            sweep_jobs(directory)
            # Only now: to finish a deletion forgets the settings of its topic.
            known = DirectorySettings.read(directory, is_optional=True)
            # Before rows are staged: on a full disk, they may need the space.
            held.config_of = config_of
            held.remove_due()
            # The settings of the directory count where none was given.
            given = config.topic_config
            all_topics = given.above(known.config(topic))
            names = () if topic is not None else known.topics
            own = {each: given.above(known.config(each)) for each in names}
            own = {each: found for each, found in own.items() if found != all_topics}
            config = replace(config, topic_config=all_topics, own=own)
            if auto_create_topics:
                complete_topics(directory, topic)
            keeps_partitions = config.use_offsets and not request.overwrite
            metadata = None if keeps_partitions else metadata_path(directory)
            topics = JobTopics.found(
                directory,
                topic,
                asked=request.num_partitions,
                auto_create_topics=auto_create_topics,
                keeps_partitions=keeps_partitions,
                is_named=config.use_offsets,
                in_cluster={} if metadata is None else read_partition_counts(metadata),
            )
            # Before the lock goes: the sweep of another job removes staged files without a mark.
            JobFiles(directory, token).make_mark()
        return cls(replace(request, config=config), token, topics)

    @property
    def directory(self) -> str:
        """Absolute path of the log directory."""
        return self.request.directory

    @property
    def config(self) -> ProducerConfig:
        """How rows become batches: what the write asks for, above the directory's settings."""
        return self.request.config

    @storage_errors()
    def stager(
        self, task: int, numbers: "SequenceNumbers | None" = None, *, commits_here: bool = False
    ) -> "RowStager":
        """The stager for the rows of a task attempt.

        `numbers`: the sequences of an idempotent producer, if the rows have one.  `commits_here`:
        whether this process commits the job, so that batches may stay in its memory.
        """
        # The compiled kernels load in the task.
        from segmentlog.writes.staged_files import TaskStage
        from segmentlog.writes.stager import RowStager

        self.check_begun()
        segment_bytes = self.config.least_segment_bytes
        rate = self.config.max_bytes_per_second
        stage = TaskStage(
            self.directory,
            self.token,
            task,
            segment_bytes,
            flush=self.config.flush,
            pace=None if rate is None else pace_of(rate, self.directory),
            # With a limit of speed, held batches would reach the disk in one burst.
            most_held=self.config.buffer_memory if commits_here and rate is None else 0,
        )
        topics = self.topics
        return RowStager(stage, self.config, topics.topic, topics.n_partitions, task, numbers)

    @storage_errors()
    def check_begun(self) -> None:
        """Refuse to stage for a job that has ended, or that this machine does not see.

        A task calls this again when all rows are staged.  A job that ends removes its mark first,
        and then the staged files, so a task whose files came too late for this removal notices it.
        Each call is a sign of life (`JobFiles.renew`), which a job that takes weeks needs.

        Raises `LogDirectoryError` if the mark of the job is not there.
        """
        try:
            self.files.renew()
        except FileNotFoundError:
            ended = "the job has ended"
            if self.request.stream is not None:
                ended += ", or a later batch or run of its query has begun"
            reason = (
                f"holds no {self.files.mark.name}: {ended}, or this directory is not the "
                "directory of the driver"
            )
            raise LogDirectoryError(self.directory, reason) from None

    def commit(
        self,
        tasks: "Iterable[TaskExtents]",
        *,
        rolls: bool = False,
        with_producers: Collection[TopicPartition] = (),
        batch: StreamBatch | None = None,
        held: "HeldDirectory | None" = None,
    ) -> "Committed":
        """Make all rows visible at once, and end the job.

        `tasks`: the extents of each, in the order in which their records are to follow each
        other.  `rolls`: whether each partition begins a new segment first.  `with_producers`:
        partitions whose batches may have producers.  `batch`: the rows are this batch of a
        streaming query.  `held`: the directory, if the caller holds it.  Raises
        `LogDirectoryError` if the job has ended; if its rows were not spread over the partitions
        of the topic.
        """
        from segmentlog.writes.commit_staged import CommitSettings, commit_staged
        from segmentlog.writes.extents import JobExtents

        staged, topic = JobExtents(tasks), self.topics.topic
        seconds, config_of = self.request.lock_timeout_seconds, self.config.config_of
        with (
            storage_errors(self.directory),
            hold(self.directory, seconds, config_of, held=held) as held,
        ):
            # Under the lock: no sweep can come between this look and the decision.
            self.check_begun()
            topics = dict.fromkeys(staged.topics)
            if topic is not None:
                topics[topic] = None  # even without rows
            new = self.topics.new_among(topics)
            try:
                self.topics.named_by(staged.topic_partitions).make(topics)
                is_many = staged.n_records >= self.config.topic_config.flush_messages
                settings = CommitSettings(
                    flush=self.config.flush or is_many,
                    numbered=self.request.numbered,
                    batch=batch,
                    topic=topic,
                    emptied=self.topics.all_partitions() if self.request.overwrite else (),
                    rolls=rolls,
                    with_producers=with_producers,
                )
                committed = commit_staged(held, self.token, staged, settings)
            except (CommitInDoubtError, SyncFailedError):
                raise  # nobody knows, or the disk cannot be trusted
            except BaseException:
                self._remove_new(new)
                raise
        self.files.remove()  # those of attempts that lost, too
        return committed

    def _remove_new(self, topics: Collection[str]) -> None:
        """Remove the topics that a failed commit has made; an interrupt may follow the decision.

        A topic that stayed would bind the next job to a number of partitions.
        """
        directory = self.directory
        with contextlib.suppress(OSError, SegmentLogError):
            if list_guards(directory) or State.read(directory).token == self.token:
                return
            for topic in topics:
                # A broker may have deleted an earlier topic of this name, whose directories hold
                # all that is left of it.
                renamed = take_out(directory, topic, keeps_settings=True)
                remove_taken_out(directory, topic, renamed)

    def abort(self) -> None:
        """End the job: remove its mark and all its staged files; the log stays as it is."""
        self.files.remove()

    @classmethod
    @storage_errors()
    def abort_stream(cls, request: WriteRequest) -> None:
        """End the jobs of a request's stream, if nobody knows their tokens."""
        if request.stream is not None and not is_bucket(request.directory):
            end_stream(request.directory, request.stream)

    @property
    def files(self) -> JobFiles:
        return JobFiles(self.directory, self.token)
