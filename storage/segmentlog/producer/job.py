"""A write job: begun on the driver, staged by tasks wherever they run, committed on the driver."""

import contextlib
import itertools
import logging
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from segmentlog.commit.commit import commit_staged
from segmentlog.commit.extent_columns import JobExtents
from segmentlog.commit.stage import STAGE_SUFFIX, Extent, TaskStage
from segmentlog.commit.topics import MOST_PARTITIONS, check_topic_name, create_partitions
from segmentlog.errors import LogDirectoryError, OptionError, UnknownTopicOrPartitionError
from segmentlog.files.durable import create_file
from segmentlog.files.lock import DirectoryLock
from segmentlog.files.mounts import refuse_object_store
from segmentlog.files.names import (
    META_PROPERTIES_FILE,
)
from segmentlog.files.partitions import list_partitions
from segmentlog.files.readable import exists, list_names, status_of
from segmentlog.files.system_errors import storage_errors
from segmentlog.journal.sink_versions import SinkVersion
from segmentlog.model import TopicPartition
from segmentlog.producer.config import ProducerConfig
from segmentlog.producer.directory import (
    JOB_SUFFIX,
    check_owner,
    make_directory,
    mark_new,
    sweep,
)
from segmentlog.producer.stager import RowStager
from segmentlog.recovery.unfinished import recover_commits
from segmentlog.settings.directory_settings import DirectorySettings

__all__ = ["WriteJob"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One job.  It is small and picklable, because it travels to every task.

    Attributes
    ----------
    directory : absolute path of the log directory.
    token : random; part of the names of all files that the job makes there.
    topic : of all rows, or None to take the column ``topic``.
    partitions : number of partitions of each topic when the job began.
    missing : the first missing partition of each incomplete topic.
    num_partitions : of topics that the job creates; 0 to create none.
    config : how rows become batches.
    lock_timeout_seconds : how long to wait for another writer.
    sink : name and number of the write, if it is numbered.
    deletes_records : whether the job's records replace all earlier records of `topic`.
    """

    directory: str
    token: str
    topic: str | None
    partitions: Mapping[str, int]
    missing: Mapping[str, int]
    num_partitions: int
    config: ProducerConfig
    lock_timeout_seconds: float
    sink: SinkVersion | None = None
    deletes_records: bool = False

    @classmethod
    @storage_errors()
    def begin(
        cls,
        directory: str,
        config: ProducerConfig,
        *,
        topic: str | None = None,
        num_partitions: int | None = None,
        creates_topics: bool | None = None,
        lock_timeout_seconds: float = 60.0,
        sink: SinkVersion | None = None,
        deletes_records: bool = False,
    ) -> "WriteJob":
        """Recover from a crash, if there was one, and leave a mark for the tasks.

        The settings of the topic come from the directory, unless they are given; without a topic,
        they are those of topics without settings of their own.

        A missing topic is created when the job commits.  A job that fails before leaves no topic,
        which would bind the next job to a number of partitions that nobody chose.

        Parameters
        ----------
        num_partitions : of topics that are created, one by default.
        creates_topics : whether missing topics are created; by default they are, except in a
            broker's own directory, where the broker would not know them.

        Raises
        ------
        LogLockedError
            If a broker is running on the directory, or another writer keeps it locked.
        OptionError
            If Kafka does not allow the topic's name, or if the topic has another number of
            partitions than `num_partitions`.
        UnknownTopicOrPartitionError
            If the topic, or a partition of it, is missing, and is not to be created.
        LogDirectoryError
            If the directory cannot be a log directory, or this user cannot write for its owner.
        StorageError
            If the disk is full or fails, or if this user lacks a permission.
        """
        if num_partitions is not None and not 1 <= num_partitions <= MOST_PARTITIONS:
            accepted = f"give a number from 1 to {MOST_PARTITIONS}"
            raise OptionError("numPartitions", str(num_partitions), accepted)
        if topic is not None:
            check_topic_name(topic)
        elif deletes_records:
            raise OptionError("topic", "", "name the topic whose records are to be deleted")
        refuse_object_store(directory)
        make_directory(directory)
        if creates_topics is None:
            creates_topics = not exists(f"{directory}/{META_PROPERTIES_FILE}")
        n_new = (num_partitions or 1) if creates_topics else 0
        token = secrets.token_hex(8)
        check_owner(directory, token)
        config = _configured(config, directory, topic)
        with storage_errors(directory), DirectoryLock(directory, lock_timeout_seconds):
            mark_new(directory)
            recover_commits(directory)
            sweep(directory)
            if topic is not None and n_new:
                create_partitions(directory, topic, 0)  # completes a topic after a crash
            elif n_new:
                _complete_topics(directory)
            partitions, missing = _partitions(directory)
            if topic in partitions and num_partitions not in {None, partitions[topic]}:
                raise _other_number(topic, partitions[topic], num_partitions)
            job = cls(
                directory, token, topic, partitions, missing, n_new, config,
                lock_timeout_seconds, sink, deletes_records,
            )  # fmt: skip
            os.close(create_file(str(job.mark)))
        if topic is not None:
            try:
                job.n_partitions(topic)
            except UnknownTopicOrPartitionError:
                job.abort()
                raise
        return job

    def n_partitions(self, topic: str) -> int:
        """Number of partitions of a topic, or the number that it will get.

        Raises
        ------
        OptionError, UnknownTopicOrPartitionError
            If Kafka does not allow its name; if it is missing, and is not to be created.
        """
        keeps_partitions = self.config.use_offsets and not self.deletes_records
        if topic in self.missing and not keeps_partitions:
            hint = (
                "a topic is written whole: the number of its partitions, by which keys find "
                "theirs, is that of its directories"
            )
            missing = self.missing[topic]
            raise UnknownTopicOrPartitionError(topic, missing, self.directory, hint)
        if topic in self.partitions:
            return self.partitions[topic]
        check_topic_name(topic)
        if not self.num_partitions:
            hint = "create it with the broker, or let it be created: autoCreateTopics=true"
            raise UnknownTopicOrPartitionError(topic, -1, self.directory, hint)
        return self.num_partitions

    @storage_errors()
    def stager(self, task: int) -> RowStager:
        """The stager for the rows of a task attempt.

        Raises
        ------
        LogDirectoryError
            See `check_begun`.
        """
        self.check_begun()
        segment_bytes = self.config.topic_config.segment_bytes
        stage = TaskStage(self.directory, self.token, task, segment_bytes, flush=self.config.flush)
        return RowStager(stage, self.config, self.topic, self.n_partitions, task)

    @storage_errors()
    def check_begun(self) -> None:
        """Refuse to stage for a job that has ended, or that this machine does not see.

        A task calls this again when all rows are staged.  A job that ends removes its mark first,
        and then the staged files, so a task whose files came too late for this removal notices it.
        Each call is a sign of life (`renew`), for a job that takes weeks.

        Raises
        ------
        LogDirectoryError
            If the mark of the job is not there.
        """
        try:
            self.renew()
        except FileNotFoundError:
            reason = (
                f"holds no {self.mark.name}: the job has ended, or this is not the directory that "
                "the driver sees"
            )
            raise LogDirectoryError(self.directory, reason) from None

    def commit(self, extents: Iterable[Extent] | JobExtents, *, rolls: bool = False) -> bool:
        """Make all rows visible at once; False if `sink` has already committed all of them.

        Parameters
        ----------
        extents : of all tasks, in the order in which their records are to follow each other.
        rolls : whether each partition begins a new segment first.

        Raises
        ------
        LogDirectoryError
            If the job has ended; if its rows were not spread over the partitions of the topic.
        LogLockedError, CommitInDoubtError, SyncFailedError, StorageError
            See `segmentlog.commit.commit.commit_staged`.
        """
        topic_config = self.config.topic_config
        staged = JobExtents.of(extents)
        with (
            storage_errors(self.directory),
            DirectoryLock(self.directory, self.lock_timeout_seconds),
        ):
            self.check_begun()
            recover_commits(self.directory)
            topics = dict.fromkeys(staged.topics)
            if self.topic:
                topics[self.topic] = None  # even without rows
            if self.num_partitions:
                for topic in topics:
                    create_partitions(self.directory, topic, self.n_partitions(topic))
            self._check_partitions(topics)
            is_new = commit_staged(
                self.directory,
                self.token,
                staged,
                topic_config,
                flush=self.config.flush or staged.n_records >= topic_config.flush_messages,
                sink=self.sink,
                topic=self.topic,
                emptied=self._emptied(),
                rolls=rolls,
            )
        self.abort()  # removes the files of attempts that lost
        return is_new

    def _check_partitions(self, topics: Iterable[str]) -> None:
        """Refuse rows that were spread over another number of partitions than the topic has.

        Another job may have created the topic meanwhile.  Partitions that were added to a topic
        are no error: a producer does not know of new partitions at once, either.
        """
        found, missing = _partitions(self.directory)
        for topic in topics:
            wanted, n_found = self.n_partitions(topic), found.get(topic, 0)
            is_other = n_found < wanted or (n_found > wanted and topic not in self.partitions)
            if is_other or missing.get(topic) != self.missing.get(topic):
                reason = (
                    f"topic {topic!r} has other partitions than the {wanted} that the job has "
                    "spread its rows over; run the job again"
                )
                raise LogDirectoryError(self.directory, reason)

    def _emptied(self) -> list[TopicPartition]:
        if not self.deletes_records or self.topic is None:
            return []
        n_partitions = _partitions(self.directory)[0].get(self.topic, 0)
        return [TopicPartition(self.topic, number) for number in range(n_partitions)]

    def abort(self) -> None:
        """Remove the job's staged files; the log stays as it is.

        The job has ended in any case, so a file that cannot be removed causes only a warning, and
        a later job sweeps it.
        """
        try:
            self.mark.unlink(missing_ok=True)  # first: a late task finds no job any more
            for name in list_names(self.directory):
                if name.startswith(f"segmentlog.{self.token}.") and name.endswith(STAGE_SUFFIX):
                    Path(self.directory, name).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("what job %s has staged is not removed: %s", self.token, error)

    def renew(self) -> None:
        """Mark the job as alive, so that it is not swept as one whose driver died.

        Raises
        ------
        FileNotFoundError
            If the job has been swept.
        """
        # If this user may not write to the mark, the staged files of its tasks show life as well.
        with contextlib.suppress(PermissionError):
            if status_of(str(self.mark)).size:
                os.truncate(self.mark, 0)  # the notice of `sweep`
            os.utime(self.mark)

    @property
    def mark(self) -> Path:
        """The file that stands as long as the job runs."""
        return Path(self.directory, f"segmentlog.{self.token}{JOB_SUFFIX}")


def _configured(config: ProducerConfig, directory: str, topic: str | None) -> ProducerConfig:
    """The configuration with the settings of the directory, where none was given."""
    known = DirectorySettings.read(directory, is_optional=True)
    return replace(config, topic_config=config.topic_config.above(known.config(topic)))


def _other_number(topic: str | None, found: int, asked: int | None) -> OptionError:
    accepted = f"topic {topic!r} is there and has {found}: leave the option out to write to those"
    remedy = "choose another topic, or delete this one and its records: segmentlog delete-topic"
    return OptionError("numPartitions", str(asked), f"{accepted}, {remedy}")


def _complete_topics(directory: str) -> None:
    """Make the partitions that a crash has left out in topics that the rows may name."""
    partitions, missing = _partitions(directory)
    for topic in missing:
        # The partition had records, or a link is in its place: an error only if rows come for it.
        with contextlib.suppress(UnknownTopicOrPartitionError, LogDirectoryError):
            create_partitions(directory, topic, partitions[topic])


def _partitions(directory: str) -> tuple[dict[str, int], dict[str, int]]:
    """`WriteJob.partitions` and `WriteJob.missing`."""
    found: dict[str, set[int]] = {}
    for each in list_partitions(directory):
        if each.is_current:
            topic, partition = each.topic_partition
            found.setdefault(topic, set()).add(partition)
    counts = {topic: max(numbers) + 1 for topic, numbers in found.items()}
    missing = {
        topic: next(number for number in itertools.count() if number not in numbers)
        for topic, numbers in found.items()
        if len(numbers) < counts[topic]
    }
    return counts, missing
