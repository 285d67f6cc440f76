"""A write job: the driver begins it, tasks on any machine stage rows, the driver commits them.

In a log directory, a job leaves a mark, and its tasks leave staged files beside the logs.  Both
are removed when the job ends, or by a later job.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from segmentlog.cluster.directory_settings import DirectorySettings, read_partition_counts
from segmentlog.errors import (
    CommitInDoubtError,
    LogDirectoryError,
    SegmentLogError,
    SyncFailedError,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import TopicPartition
from segmentlog.reads.cluster_image import ClusterMetadata
from segmentlog.reads.metadata_log import is_of_a_broker
from segmentlog.store.beside_broker import pace_of
from segmentlog.store.paths import is_bucket
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.change import HeldDirectory, hold
from segmentlog.txn.guard import list_guards
from segmentlog.txn.state import State, StreamBatch
from segmentlog.txn.topics import remove_taken_out, take_out
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job_files import (
    JobFiles,
    end_stream,
    mark_new,
    new_token,
    prepare_directory,
    sweep_jobs,
)
from segmentlog.writes.job_topics import JobTopics, complete_topics, log_ends

if TYPE_CHECKING:
    from segmentlog.bucket.data_objects import ObjectStage
    from segmentlog.writes.commit import Committed
    from segmentlog.writes.sequences import SequenceNumbers
    from segmentlog.writes.staged_files import TaskExtents, TaskStage
    from segmentlog.writes.stager import RowStager


def above_settings(
    config: ProducerConfig, known: DirectorySettings, topic: str | None
) -> ProducerConfig:
    """What a write asks for, with the settings of its place where it asks for nothing."""
    given = config.topic_config
    all_topics = given.above(known.config(topic))
    names = () if topic is not None else known.topics
    own = {each: given.above(known.config(each)) for each in names}
    own = {each: found for each, found in own.items() if found != all_topics}
    return replace(config, topic_config=all_topics, own=own)


@dataclass(frozen=True, slots=True)
class WriteJob(ABC):
    """One job, by the kind of its place.  It is small and picklable: it travels to every task."""

    #: what the write asks for, with the settings of the directory in its `config`
    request: WriteRequest
    token: str  # random; part of the names of all files or objects that the job makes there
    topics: JobTopics  # that it writes to, with their numbers of partitions

    @classmethod
    @storage_errors()
    def begin(cls, request: WriteRequest, held: HeldDirectory | None = None) -> "WriteJob":
        """Begin a job, in a log directory or in an object store.

        A missing topic is created when the job commits.  A job that fails before leaves no topic,
        which would bind the next job to a number of partitions that nobody chose.

        `held`: the directory, if the caller holds it.  Raises `LogLockedError` if a broker is
        running on the directory, or another writer keeps it locked; `LogDirectoryError` if there
        can be no log.
        """
        if is_bucket(request.directory):
            from segmentlog.writes.bucket_job import BucketJob  # it begins with the base

            return BucketJob.begin_in_bucket(request)
        return DirectoryJob.begin_in_directory(request, held)

    @property
    def directory(self) -> str:
        """Absolute path of the log directory, or the path of the log in a store."""
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
        from segmentlog.writes.stager import RowStager  # the compiled kernels load in the task

        self.check_begun()
        topics, stage = self.topics, self._stage(task, commits_here=commits_here)
        return RowStager(stage, self.config, topics.topic, topics.n_partitions, task, numbers)

    @abstractmethod
    def _stage(self, task: int, *, commits_here: bool) -> "TaskStage | ObjectStage": ...

    @abstractmethod
    def renew(self) -> None:
        """Give a sign of life, if the job needs one.

        Raises `FileNotFoundError` if the job has ended, or has been swept.
        """

    @abstractmethod
    def check_begun(self) -> None:
        """Refuse to stage for a job that is known to have ended; a sign of life, too.

        Raises `LogDirectoryError`.
        """

    def check_follows(self, before: "WriteJob") -> None:
        """Refuse a job whose place has another log by now than an earlier one has seen.

        A directory needs no check: who removes it removes the mark of the job, too.
        """
        del before

    @abstractmethod
    def commit(
        self,
        tasks: "Iterable[TaskExtents]",
        *,
        rolls: bool = False,
        with_producers: Collection[TopicPartition] = (),
        batch: StreamBatch | None = None,
        held: HeldDirectory | None = None,
        ends: Mapping[int, int] | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> "Committed":
        """Make all rows visible at once, and end the job.

        `tasks`: the extents of each, in the order in which their records are to follow each
        other.  `rolls`: whether each partition begins a new segment first.  `with_producers`:
        partitions whose batches may have producers.  `batch`: the rows are this batch of a
        streaming query.  `held`: the directory, if the caller holds it.  `ends`: where the logs of
        the topic have to end, by partition, as `log_ends` has found them.  `settings`: which the
        topic gets together with the rows; a log in a store keeps none.  Raises
        `LogDirectoryError` if the job has ended; if its rows were not spread over the partitions
        of the topic; if its logs do not end at `ends`.
        """

    @abstractmethod
    def abort(self) -> None:
        """End the job; the log stays as it is."""

    @classmethod
    @storage_errors()
    def abort_stream(cls, request: WriteRequest) -> None:
        """End the jobs of a request's stream, if nobody knows their tokens."""
        if request.stream is not None and not is_bucket(request.directory):
            end_stream(request.directory, request.stream)


class DirectoryJob(WriteJob):
    """A job in a log directory."""

    __slots__ = ()

    @classmethod
    def begin_in_directory(
        cls, request: WriteRequest, held: HeldDirectory | None
    ) -> "DirectoryJob":
        """Recover from a crash, if there was one, and leave a mark for the tasks.

        The settings of each topic come from the directory, unless they are given.
        """
        directory, config, topic = request.directory, request.config, request.topic
        token = new_token(request.stream)
        prepare_directory(directory, token)
        auto_create_topics = request.auto_create_topics
        if auto_create_topics is None:
            auto_create_topics = not is_of_a_broker(directory)

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
            config = above_settings(config, known, topic)
            if auto_create_topics:
                complete_topics(directory, topic)
            keeps_partitions = config.use_offsets and not request.overwrite
            topics = JobTopics.found(
                directory,
                topic,
                asked=request.num_partitions,
                auto_create_topics=auto_create_topics,
                keeps_partitions=keeps_partitions,
                is_named=config.use_offsets,
                in_cluster={}
                if keeps_partitions
                else read_partition_counts(ClusterMetadata([directory])),
            )
            # Before the lock goes: the sweep of another job removes staged files without a mark.
            JobFiles(directory, token).make_mark()
        return cls(replace(request, config=config), token, topics)

    def _stage(self, task: int, *, commits_here: bool) -> "TaskStage":
        from segmentlog.writes.staged_files import TaskStage

        segment_bytes = self.config.least_segment_bytes
        rate = self.config.max_bytes_per_second
        return TaskStage(
            self.directory,
            self.token,
            task,
            segment_bytes,
            flush=self.config.flush,
            pace=None if rate is None else pace_of(rate, self.directory),
            # With a limit of speed, held batches would reach the disk in one burst.
            most_held=self.config.buffer_memory if commits_here and rate is None else 0,
        )

    def renew(self) -> None:
        self.files.renew()

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
        held: HeldDirectory | None = None,
        ends: Mapping[int, int] | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> "Committed":
        from segmentlog.writes.commit import CommitSettings, commit_staged
        from segmentlog.writes.staged_files import JobExtents

        staged, topic = JobExtents(tasks), self.topics.topic
        seconds, config_of = self.request.lock_timeout_seconds, self.config.config_of
        with (
            storage_errors(self.directory),
            hold(self.directory, seconds, config_of, held=held) as held,
        ):
            # Under the lock: no sweep can come between this look and the decision.
            self.check_begun()
            if ends is not None and topic is not None and log_ends(self.directory, topic) != ends:
                raise self.topics.not_as_staged(topic)
            topics = dict.fromkeys(staged.topics)
            if topic is not None:
                topics[topic] = None  # even without rows
            new = self.topics.new_among(topics)
            try:
                self.topics.named_by(staged.topic_partitions).make(topics)
                is_many = staged.n_records >= self.config.topic_config.flush_messages
                commit_settings = CommitSettings(
                    flush=self.config.flush or is_many,
                    numbered=self.request.numbered,
                    batch=batch,
                    topic=topic,
                    emptied=self.topics.all_partitions() if self.request.overwrite else (),
                    rolls=rolls,
                    with_producers=with_producers,
                    topic_settings=settings,
                )
                committed = commit_staged(held, self.token, staged, commit_settings)
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

    @property
    def files(self) -> "JobFiles":
        """The files of the job."""
        return JobFiles(self.directory, self.token)
