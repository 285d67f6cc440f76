"""The job of a clone: its check, its tasks, and its commit.

One process begins a `CloneJob`.  Each task reads some windows of the source and stages the rows of
the clone, perhaps in another process.  The job commits the rows of all tasks, in their order.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from segmentlog.arrow_dataset.bounds import DatasetBounds, find_dataset_bounds
from segmentlog.bucket.upkeep import place_in_store
from segmentlog.cluster.directory_settings import DirectorySettings, Source
from segmentlog.errors import (
    LogDirectoryError,
    OptionError,
    SplitKeyError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.topic_config import OF_TIERS, TopicConfig
from segmentlog.kafka_tables.open_table import table
from segmentlog.maintain.cloning.clone import (
    Clone,
    ClonedGroup,
    ClonedPartition,
    ClonedTransactions,
    CloneSettings,
    NullKeys,
    Order,
)
from segmentlog.maintain.cloning.cloned_rows import Changes, RowRules
from segmentlog.maintain.cloning.split_keys import Keys, SplitKeys, find_split_keys
from segmentlog.maintain.cloning.task import (
    CloneTask,
    GroupPlaces,
    TaskOutcome,
    keys_of,
    time_windows,
)
from segmentlog.maintain.offset_map import MapPieces
from segmentlog.maintain.restoration.plan import GroupOffset, committed_offsets
from segmentlog.model import (
    LARGEST_LONG,
    Codec,
    IsolationLevel,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    ValueFrame,
)
from segmentlog.read_options import DatasetOptions
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.reads.metadata_log import is_of_a_broker, metadata_path
from segmentlog.store.partitions import refuse_partition
from segmentlog.store.paths import identity_of, is_bucket, refuse_overlap, writable_path
from segmentlog.store.readable import exists, is_url
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob
from segmentlog.writes.job_topics import log_ends

if TYPE_CHECKING:
    from segmentlog.decoding.masks import FieldMasks, Replacement

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 32 << 20  #: of log, in a window that a thread merges


class CloneJob:
    """A clone that has begun.  The block that ends without `commit` leaves nothing of it.

    `source`: the directories that are read.  Raises the errors of `segmentlog.clone`.
    """

    def __init__(self, source: LogDirectory, given: CloneSettings) -> None:
        self._source, self._given = source, given
        self._bounds = _bounds_of(source, given)
        numbers = [each.topic_partition.partition for each in self._bounds.partitions]
        n_source = max(numbers) + 1
        _refuse_open_transactions(self._bounds, given)
        self.directory = _destination(source, given)
        keeps = given.num_partitions is None
        self._rules = RowRules(
            given.topic,
            n_source,
            given.num_partitions or n_source,
            keeps_partitions=keeps,
            is_checked=not keeps and given.order == Order.OFFSET and n_source > 1,
            batch_size=ProducerConfig().batch_size,
            null_keys=NullKeys(given.null_keys),
            transform=given.transform,
            masks=_masks(source, given),
            schema_ids=given.schema_ids,
            key_schema_ids=given.key_schema_ids,
        )
        self._ends = log_ends(self.directory, given.new_topic)
        if self._ends and not given.overwrite:
            offsets = [each.offsets for each in self._bounds.partitions]
            n_source = sum(each.end_offset - each.start_offset for each in offsets)
            reason = (
                f"has records of a topic {given.new_topic!r} ({sum(self._ends.values()):,} "
                f"offsets; the source has {n_source:,}). A clone becomes visible as a whole: if "
                "an earlier run was killed after that, these are all of its records. Otherwise "
                "name another new topic, or replace them (overwrite=True, --overwrite); that also "
                "gives the offset map and the places of groups again"
            )
            raise LogDirectoryError(self.directory, reason)
        committed = committed_offsets(source, OnCorruptBatch(given.on_corrupt_batch))
        self._unread_groups = committed.unread
        self._groups, self._group_offsets = group_table(
            [
                (each.group, each.partition, each.offset)
                for each in committed.offsets
                if each.topic == given.topic
            ],
            {
                each.topic_partition.partition: each.offsets.start_offset
                for each in self._bounds.partitions
            },
            n_source,
        )
        self._settings = _own_settings(source, given.topic) | dict(given.settings or {})
        self._job: WriteJob | None = None
        if not given.dry_run:
            try:
                self._job = WriteJob.begin(self._request())
            except UnknownTopicOrPartitionError as error:
                hint = (
                    "a broker takes a topic from its cluster alone: create it (kafka-topics.sh "
                    f"--create --topic {given.new_topic} --partitions {self._rules.n_target}), "
                    "and stop the broker again; or name a directory without a broker (to, --to)"
                )
                raise UnknownTopicOrPartitionError(
                    given.new_topic, -1, self.directory, hint
                ) from error

    def _request(self) -> WriteRequest:
        given, is_kept = self._given, self._rules.keeps_partitions
        # Records keep their times, whatever the settings of the clone say about later ones.
        topic_config = self._settings | {"message.timestamp.type": "CreateTime"}
        config = ProducerConfig(
            TopicConfig.parse(topic_config),
            codec=_codec_of(self._bounds) if given.codec is None else given.codec,
            use_timestamps=True,
            # The partitions of a clone are merged by time.  Each append time is a batch of its
            # own, so a kept type would cut the batches of the clone at nearly every record.
            use_timestamp_types=is_kept,
            use_offsets=given.keep_offsets,
        )
        return WriteRequest(
            self.directory,
            config,
            topic=given.new_topic,
            num_partitions=self._rules.n_target,
            lock_timeout_seconds=given.lock_timeout_seconds,
            # A clone that was killed ends when it is run again, and two never commit.
            stream=f"clone {given.new_topic}",
            overwrite=given.overwrite,
        )

    @property
    def n_bytes(self) -> int:
        """Bytes of log that are read."""
        pieces = (each.log.slices(*each.offsets) for each in self._bounds.partitions)
        return sum(piece.n_bytes for found in pieces for piece in found)

    def tasks(self, n_tasks: int, map_directory: str | None = None) -> list[CloneTask]:
        """The work in so many tasks, or fewer; `map_directory` as of `CloneTask`."""
        if self._rules.keeps_partitions:
            windows = [
                self._bounds._replace(partitions=(each,)) for each in self._bounds.partitions
            ]
        else:
            least = self.n_bytes // max(n_tasks, 1)
            windows = time_windows(self._bounds, max(min(_WINDOW_BYTES, least), 1))
        n_tasks = min(n_tasks, len(windows))
        bounds = np.linspace(0, len(windows), n_tasks + 1).astype(int).tolist()
        return [
            CloneTask(
                number,
                tuple(windows[begin:end]),
                self._rules,
                self._job,
                self._group_offsets,
                map_directory,
            )
            for number, (begin, end) in enumerate(pairwise(bounds))
        ]

    def check_keys(self) -> None:
        """Refuse keys that stand in several partitions.

        Raises `SplitKeyError`.
        """
        n_records = sum(
            each.offsets.end_offset - each.offsets.start_offset for each in self._bounds.partitions
        )
        local = None if is_bucket(self.directory) or self._job is None else self.directory
        found = find_split_keys(self._keys, n_records, local)
        if not found.n_keys:
            return
        raise self.split_keys(found)

    def split_keys(self, found: SplitKeys) -> SplitKeyError:
        """The error for keys that were found."""
        topic = self._given.topic
        examples = [
            f"{topic}-{first[0]} offset {first[1]} and {topic}-{second[0]} offset {second[1]}"
            + (f", {key!r}" if self._given.show_keys else "")
            for first, second, key in found.examples
        ]
        return SplitKeyError(topic, found.n_keys, tuple(examples))

    def _keys(self) -> Iterator[Keys]:
        """The keys of the clone, by the partitions of the source."""
        for rows in keys_of([self._bounds], self._rules):
            if len(rows):
                yield rows["partition"][0].as_py(), rows["key"], rows["offset"].to_numpy()

    def ends_of(self, outcomes: Sequence[TaskOutcome]) -> tuple[dict[int, int], Int64s]:
        """The ends of the source, by partition, and of the clone; int64, shape (n_target,)."""
        ends = {
            each.topic_partition.partition: each.offsets.end_offset
            for each in self._bounds.partitions
        }
        if self._given.keep_offsets:
            return ends, np.max([each.ends for each in outcomes], axis=0)
        counts: Int64s = np.sum([each.groups.counts for each in outcomes], axis=0)
        return ends, self.bases + counts

    def join_map(self, pieces: MapPieces, outcomes: Sequence[TaskOutcome]) -> None:
        """Write the offset map of all tasks; see `MapPieces.join` for errors."""
        outcomes = sorted(outcomes, key=lambda each: each.number)
        counts, bases = [each.groups.counts for each in outcomes], self.bases
        if self._given.keep_offsets:  # the pieces have the offsets themselves
            counts, bases = [0 * each for each in counts], 0 * bases
        pieces.join(
            self._given.topic,
            counts,
            bases,
            self.ends_of(outcomes),
            is_kept=self._rules.keeps_partitions,
        )

    def commit(self, outcomes: Sequence[TaskOutcome]) -> Clone:
        """Make the clone visible, unless this is a dry run.

        `outcomes`: of all tasks.
        """
        outcomes = sorted(outcomes, key=lambda each: each.number)
        counts: Int64s = np.sum([each.groups.counts for each in outcomes], axis=0)
        starts, (_, ends) = self.bases, self.ends_of(outcomes)
        if self._given.keep_offsets:
            starts = np.minimum(np.min([each.starts for each in outcomes], axis=0), ends)
        if self._job is not None:
            extents = [each.extents for each in outcomes if each.extents is not None]
            # A broker's topic has its settings in the cluster.
            keeps = is_bucket(self.directory) or not is_of_a_broker(self.directory)
            self._job.commit(extents, ends=self._ends, settings=self._settings if keeps else {})
        changes = sum((each.changes for each in outcomes), Changes())
        if self._given.transform is not None and counts.sum() and not any(changes):
            logger.warning(
                "%s: the transform has changed no key, no value and nothing else of %d records: "
                "the clone %s them as they are",
                self._given.topic,
                counts.sum(),
                "has" if self._job else "would have",
            )
        places, groups = places_of_groups([each.groups for each in outcomes], self._groups)
        if self._given.keep_offsets:
            places = np.clip(self._group_offsets, starts, ends)
        else:
            places = places + starts
        topic = self._given.new_topic
        return Clone(
            tuple(
                ClonedPartition(topic, partition, n_records, start, end)
                for partition, (n_records, start, end) in enumerate(
                    zip(counts.tolist(), starts.tolist(), ends.tolist(), strict=True)
                )
            ),
            tuple(groups),
            tuple(
                GroupOffset(group, topic, partition, offset)
                for group, offsets in zip(self._groups, places.tolist(), strict=True)
                for partition, offset in enumerate(offsets)
            ),
            changes.n_left_out,
            tuple(sorted({number for each in outcomes for number in each.unknown_ids})),
            self._unread_groups,
            changes.n_keys,
            changes.n_values,
        )

    @property
    def bases(self) -> Int64s:
        """The offset of the first record of each partition; shape (n_target,)."""
        numbers = range(self._rules.n_target)
        found: Int64s = np.array([self._ends.get(each, 0) for each in numbers], np.int64)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._job is not None:
            self._job.abort()  # nothing is left to remove after a commit


def _bounds_of(source: LogDirectory, given: CloneSettings) -> DatasetBounds:
    """The partitions of the source, up to their last stable offsets."""
    policy = ScanPolicy(
        IsolationLevel.READ_COMMITTED,
        OnCorruptBatch(given.on_corrupt_batch),
        header_names_as_bytes=True,
        # A transform gets the columns of a read; microseconds cannot hold every time.
        in_milliseconds=given.transform is None,
    )
    options: DatasetOptions = {
        "since": given.since,
        "until": given.until,
        "read_up_to": given.read_up_to,
        "fail_on_data_loss": True,
    }
    return find_dataset_bounds(source, [given.topic], options, policy=policy, has_option=False)


def _masks(source: LogDirectory, given: CloneSettings) -> "list[FieldMasks]":
    """What changes fields of keys and of values."""
    if not given.mask:
        return []
    # After the bounds: a schema is there before the records that name it.
    from segmentlog.decoding.decode import Registered
    from segmentlog.decoding.masks import FieldMasks
    from segmentlog.decoding.sources import schemas_of

    assert isinstance(given.mask, Mapping)  # noqa: S101 - its settings are checked
    by_column: dict[str, dict[str, Replacement]] = {}
    for path, replacement in given.mask.items():
        by_column.setdefault(path[: 3 if path.startswith("key") else 5], {})[path] = replacement
    made = []
    for column, masks in by_column.items():
        subject = f"{given.topic}-{column}"
        if given.decode_schemas is None:
            found = table(source.whole, "schemas", on_corrupt_batch=given.on_corrupt_batch)
        else:
            found = schemas_of(given.decode_schemas, subject)
        frame = ValueFrame(given.decode_frame or ValueFrame.CONFLUENT)
        made.append(FieldMasks(Registered(found), column, masks, subject, frame))
    return made


def _refuse_open_transactions(bounds: DatasetBounds, given: CloneSettings) -> None:
    """Refuse a source of which the clone would lack records behind an open transaction."""
    if given.open_transactions != ClonedTransactions.REFUSE:
        return
    ends, on_corrupt = ReadUpTo(given.read_up_to), OnCorruptBatch(given.on_corrupt_batch)
    for each in bounds.partitions:
        opened = each.log.open_transactions(ends, on_corrupt)
        if not opened:
            continue
        first = min(opened.values())
        if given.until is not None:
            until = each.log.offset_for_timestamp(
                given.until, ends, IsolationLevel.READ_UNCOMMITTED, on_corrupt
            )
            if until is not None and until.offset <= first:
                continue
        reason = (
            f"a transaction is open since offset {first}: wait for its end, or clone an earlier "
            "part (until, --until), or leave out all records from there on: "
            "open_transactions='leave-out' (--open-transactions leave-out)"
        )
        raise LogDirectoryError(each.log.path, reason)


def _destination(source: LogDirectory, given: CloneSettings) -> str:
    """The log directory of the clone; that of the source, or one apart from all of them."""
    if given.to is None:
        if len(source.paths) > 1 or is_url(source.paths[0]):
            raise OptionError("to", "", "name the log directory of the clone")
        return source.paths[0]
    directory = writable_path(given.to)
    if is_bucket(directory):
        return directory
    if exists(directory):
        refuse_partition(directory)
    is_same = any(
        identity_of(directory) == identity_of(each) for each in source.paths if not is_url(each)
    )
    if not is_same:
        refuse_overlap(directory, source.paths)
    return directory


def _own_settings(source: LogDirectory, topic: str) -> dict[str, str]:
    """The settings that the topic has for itself."""
    places = {each: place_in_store(each) for each in source.paths}
    stored = [place.root for place in places.values() if place is not None]
    paths = stored or [each for each in source.paths if not is_url(each)]
    known = [each for each in paths if metadata_path(each)] or paths[:1]
    if not known:
        return {}
    found = DirectorySettings.read(known[0], is_optional=True, needs=()).of(topic)
    own = (Source.TOPIC, Source.FILE)
    return {
        name: each.value
        for name, each in found.items()
        if each.source in own and name not in OF_TIERS
    }


def _codec_of(bounds: DatasetBounds) -> Codec:
    """The codec of a newer batch of the source."""
    for each in bounds.partitions:
        for segment in reversed(each.log.untorn_segments):
            header = segment.header_at(0, up_to_offset=LARGEST_LONG)
            if header is not None and header.codec in {*map(int, Codec)}:
                return Codec(header.codec)
    return Codec.NONE


def places_of_groups(
    tasks: Sequence[GroupPlaces], groups: Collection[str]
) -> tuple[Int64s, list[ClonedGroup]]:
    """The place of each group in each partition, and what the groups repeat.

    `tasks`: in the order in which their rows follow each other.  Returns the number of the row in
    its partition; int64 array, shape (n_groups, n_target).
    """
    counts = np.cumsum([each.counts for each in tasks], axis=0)
    ends = counts[-1]
    places: Int64s = np.broadcast_to(ends, (len(groups), len(ends))).copy()
    for task, end in zip(reversed(tasks), reversed(counts), strict=True):
        begins = end - task.counts
        places = np.where(task.first >= 0, begins + task.first, places)
    n_read = np.sum([each.n_read for each in tasks], axis=0)
    # A group has read every record before its place.
    repeated = (n_read - places).sum(axis=1)
    found = zip(groups, n_read.sum(axis=1).tolist(), repeated.tolist(), strict=True)
    return places, [ClonedGroup(*each) for each in found]


def group_table(
    committed: Collection[tuple[str, int, int]], starts: Mapping[int, int], n_source: int
) -> tuple[list[str], Int64s]:
    """Names of groups, and the offset of each in each partition of the source.

    A group that has committed nothing in a partition has read nothing there: wherever it would
    begin by itself, it skips no record so.

    `committed`: group, partition and offset.  `starts`: log start of each partition.
    """
    names = sorted({group for group, _, _ in committed})
    numbers = {name: number for number, name in enumerate(names)}
    first = [starts.get(partition, 0) for partition in range(n_source)]
    offsets: Int64s = np.tile(np.array(first, np.int64), (len(names), 1))
    for group, partition, offset in committed:
        if partition < n_source:
            offsets[numbers[group], partition] = offset
    return names, offsets
