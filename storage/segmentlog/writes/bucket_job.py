"""A write job whose log is in an object store: the driver begins and commits it, tasks stage rows.

There is neither a lock nor a mark: tasks write objects of their own, and the commit creates
the next object of a sequence (`segmentlog.bucket.sequence`), with the offsets that are free then.
"""

import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.commits import SETTINGS, Commit
from segmentlog.bucket.extents import PlacedExtent, Topic
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.places import forget
from segmentlog.bucket.sequence import Mark, Sequence, opened_at, sequence_at
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.errors import (
    LogDirectoryError,
    OffsetsOutOfOrderError,
    OptionError,
)
from segmentlog.model import LARGEST_LONG, TopicPartition
from segmentlog.store.paths import BucketLocation, parse_bucket
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.state import StreamBatch
from segmentlog.txn.topics import new_topic_id
from segmentlog.writes.config import WriteRequest
from segmentlog.writes.job import WriteJob, above_settings
from segmentlog.writes.job_topics import JobTopics

if TYPE_CHECKING:
    from segmentlog.bucket.data_objects import ObjectStage, StagedExtent, StagedObjects
    from segmentlog.txn.change import HeldDirectory
    from segmentlog.writes.commit import Committed
    from segmentlog.writes.staged_files import TaskExtents


@dataclass(frozen=True, slots=True)
class BucketJob(WriteJob):
    """A job in an object store."""

    begun_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    mark: Mark = field(default_factory=Mark)  # of the log in which it began

    @classmethod
    def begin_in_bucket(cls, request: WriteRequest) -> "BucketJob":
        """Make the log if there is none; read what it holds.

        Raises `LogDirectoryError` if the store has no conditional writes, or other objects are at
        the place; `OptionError` if the topic has another number of partitions than is asked for.
        """
        if request.config.max_bytes_per_second is not None:
            accepted = "writes to an object store have no limit of bytes a second: leave it out"
            rate = str(request.config.max_bytes_per_second)
            raise OptionError("max_bytes_per_second", rate, accepted)
        location, _ = parse_bucket(request.directory)
        sequence, topic, asked = sequence_at(location), request.topic, request.num_partitions
        # A writer that has just committed need not look for newer commits: the look beside its
        # data shows them.  It looks if it would refuse the job, or create the topic.
        state = sequence.recent()
        fits = {None, state.topics[topic].n_partitions} if state and topic in state.topics else ()
        if state is None or asked not in fits:
            sequence = opened_at(location, creates=True)
            state = sequence.known
        sequence.create()
        forget(location)
        creates = request.auto_create_topics in (None, True)
        partitions = {each: found.n_partitions for each, found in state.topics.items()}
        topic_ids = {each: found.topic_id for each, found in state.topics.items()}
        topics = JobTopics(
            str(location),
            topic,
            partitions,
            (asked or 1) if creates else 0,
            request.config.use_offsets and asked is None,
            topic_ids,
        )
        topics.check(asked)
        if state.settings:
            config = above_settings(
                request.config, DirectorySettings(file=state.settings), request.topic
            )
            request = replace(request, config=config)
        return cls(request, secrets.token_hex(8), topics, mark=sequence.mark(state))

    @property
    def location(self) -> BucketLocation:
        """The place of the log."""
        return parse_bucket(self.request.directory)[0]

    @property
    def _sequence(self) -> Sequence:
        return sequence_at(self.location)

    def _stage(self, task: int, *, commits_here: bool) -> "ObjectStage":
        from segmentlog.bucket.data_objects import ObjectStage  # the kernels load in the task

        beside = self._sequence.beside if commits_here else None
        return ObjectStage(objects_at(self.location), self.token, task, beside)

    def renew(self) -> None:
        """See `WriteJob`: none is needed."""

    def check_begun(self) -> None:
        """See `WriteJob`: only the commit knows whether the job was ended."""

    def check_follows(self, before: "WriteJob") -> None:
        """See `WriteJob`; raises `LogChangedError`."""
        if isinstance(before, BucketJob):
            self._sequence.check(before.mark)

    @storage_errors()
    def commit(
        self,
        tasks: "Iterable[TaskExtents] | Iterable[StagedObjects]",
        *,
        rolls: bool = False,
        with_producers: Collection[TopicPartition] = (),
        batch: StreamBatch | None = None,
        held: "HeldDirectory | None" = None,
        ends: Mapping[int, int] | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> "Committed":
        """See `WriteJob`; each extent is a segment, so there is nothing to roll.

        Raises `CommitInDoubtError` if the store does not say whether it took place;
        `LogChangedError` if another log is at the place by now.
        """
        from segmentlog.writes.commit import Committed

        objects = cast("Iterable[StagedObjects]", tasks)  # what an `ObjectStage` returns
        staged = [each for task in objects for each in task.extents]
        if self.config.use_offsets:
            staged.sort(key=attrgetter("first_offset"))
        attempt = _Attempt(self, staged, batch, secrets.token_hex(16), ends, settings)
        sequence = self._sequence
        sequence.check(self.mark)
        # What rests on offsets of the log cannot follow others.
        is_free = not (self.config.use_offsets or self.request.overwrite) and ends is None
        sequence.append(attempt.commit_after, self.begun_ms if is_free else None)
        return Committed(is_new=not attempt.was_done)

    def abort(self) -> None:
        """End the job.

        Its objects stay, invisible, until a sweep: a task that is still running could write more
        of them, and to find them would take a listing.
        """


class _Attempt:
    """What a job is to commit, placed after one state of the log after the other."""

    def __init__(
        self,
        job: BucketJob,
        staged: "list[StagedExtent]",
        batch: StreamBatch | None,
        token: str,
        ends: Mapping[int, int] | None,
        settings: Mapping[str, str],
    ) -> None:
        self._job, self._staged, self._batch, self._token = job, staged, batch, token
        self._ends, self._settings = ends, settings
        self._topic_ids: dict[str, str] = {}
        self.was_done = False  # whether the log had the rows before

    def commit_after(self, state: LogState) -> Commit | None:
        """The commit that follows a state; None if nothing is to be done."""
        job, batch, numbered = self._job, self._batch, self._job.request.numbered
        shown = str(job.location)
        now_ms = max(int(time.time() * 1000), 0)
        sequence_at(job.location).refuse_ended(state, job.token, job.begun_ms)
        if self._ends is not None and (topic := job.topics.topic) is not None:
            logs = {at.partition: log for at, log in state.logs.items() if at.topic == topic}
            if self._ends != {number: log.end for number, log in logs.items() if log.end}:
                raise job.topics.not_as_staged(topic)
        n_records = sum(each.n_records for each in self._staged)
        topics = [*dict.fromkeys(each.topic for each in self._staged)]
        if job.topics.topic is not None and job.topics.topic not in topics:
            topics.append(job.topics.topic)
        if batch is not None:
            if batch.is_repeated(shown, state.streams, n_records):
                self.was_done = True
                return None
            if not n_records and not job.request.overwrite:
                return None
        left_out = numbered.left_out(state.versions, topics) if numbered else {}
        if numbered and left_out:
            numbered.warn(shown, left_out)
            if len(left_out) == len(topics):
                self.was_done = True
                return None
        topics = [each for each in topics if each not in left_out]
        created = self._created(state, topics)
        starts, extents = self._placed(state, set(topics))
        topic = job.topics.topic
        altered = state.settings.altered(topic, self._settings) if topic else state.settings
        alters = altered != state.settings
        if not (created or starts or extents or numbered or batch or alters):
            return None
        return Commit(
            state.number + 1,
            self._token,
            job.token,
            now_ms,
            settings={topic or "": altered.of(topic)} if alters else {},
            features=(SETTINGS,) if alters else (),
            created=created,
            starts=starts,
            extents=extents,
            version=numbered and (numbered.app_id, numbered.version, topics),
            batch=batch and (batch.query, batch.committed(n_records)),
        )

    def _created(self, state: LogState, topics: Collection[str]) -> dict[str, Topic]:
        """The topics that are missing; it is an error if rows were spread over other partitions.

        Another job may have made the topic meanwhile, or again.
        """
        known, created = self._job.topics, dict[str, Topic]()
        for topic in topics:
            wanted = known.n_partitions(topic)
            self._refuse_mirrored(state, topic)
            if topic not in known.partitions and known.is_named:
                mine = (each.partition for each in self._staged if each.topic == topic)
                wanted = max(mine, default=0) + 1
            found, topic_id = state.topics.get(topic), known.versions.get(topic)
            if found is None and topic_id is None:
                topic_id = self._topic_ids.setdefault(topic, new_topic_id())
                created[topic] = Topic(topic_id, wanted)
            elif (
                found is None
                or topic_id not in (None, found.topic_id)
                or found.n_partitions != wanted
            ):
                raise known.not_as_found(topic, wanted)
        return created

    def _refuse_mirrored(self, state: LogState, topic: str) -> None:
        """Refuse a topic of which brokers' leader epochs have been mirrored.

        New batches have the epoch 0, and epochs rise from batch to batch.  The next mirror would
        find them, and refuse to follow its source.
        """
        found = state.topics.get(topic, Topic("", 0))
        logs = (state.logs.get(TopicPartition(topic, each)) for each in range(found.n_partitions))
        if found.lacks or any(log and log.epochs and log.epochs[-1][0] > 0 for log in logs):
            reason = (
                f"topic {topic!r} was mirrored from a broker, whose leader epochs a write would "
                "break: write to another topic, or restore this one to another place first "
                "(segmentlog restore)"
            )
            raise LogDirectoryError(str(self._job.location), reason)

    def _placed(
        self, state: LogState, topics: Collection[str]
    ) -> tuple[dict[TopicPartition, int], list[PlacedExtent]]:
        """New log starts, and the extents with their offsets."""
        starts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        emptied = self._job.topics.topic if self._job.request.overwrite else None
        if emptied is not None and emptied in topics and emptied in state.topics:
            for partition in range(state.topics[emptied].n_partitions):
                at = TopicPartition(emptied, partition)
                starts[at] = state.logs[at].end
        placed = []
        for each in self._staged:
            if each.topic not in topics:
                continue
            at = TopicPartition(each.topic, each.partition)
            log = state.logs.get(at)
            next_offset = ends.get(at, log.end if log else 0)
            base, end, shift = next_offset, next_offset + each.n_records, next_offset
            if each.first_offset >= 0:
                if each.first_offset < next_offset:
                    raise OffsetsOutOfOrderError(*at, each.first_offset, next_offset)
                base, end, shift = each.first_offset, each.last_offset + 1, 0
                if at not in ends and base > next_offset and (log is None or not log.n_extents):
                    starts[at] = base  # the restored log begins there
            if end > LARGEST_LONG:
                raise OffsetsOutOfOrderError(*at, end - 1, next_offset)
            ends[at] = end
            placed.append(
                PlacedExtent(
                    each.topic,
                    each.partition,
                    each.object,
                    each.start,
                    each.size,
                    base,
                    end,
                    each.n_records,
                    each.max_timestamp,
                    shift,
                    each.offset_index,
                    each.time_index,
                )
            )
        return {at: start for at, start in starts.items() if start}, placed
