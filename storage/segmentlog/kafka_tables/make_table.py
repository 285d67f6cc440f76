"""A table of a log directory, by its name."""

import difflib
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from segmentlog.errors import LogDirectoryError
from segmentlog.format.messages.records import look_at
from segmentlog.kafka_tables.columns import rows_to_table, schema_of
from segmentlog.kafka_tables.committing_groups import committing_groups
from segmentlog.kafka_tables.connect import connect_changes
from segmentlog.kafka_tables.coordinator import read_unknown_records, refuse_record
from segmentlog.kafka_tables.dead_letters import dead_letter_rows
from segmentlog.kafka_tables.definitions import TABLES
from segmentlog.kafka_tables.group_offsets import group_offsets
from segmentlog.kafka_tables.groups import group_changes, group_rows, member_rows, read_groups
from segmentlog.kafka_tables.joined import lag_table, open_transaction_rows
from segmentlog.kafka_tables.metadata_tables import (
    METADATA_PARTITION,
    metadata_level,
    metadata_table,
    topic_names_by_id,
    unknown_metadata,
)
from segmentlog.kafka_tables.mirror_maker import mirror_changes
from segmentlog.kafka_tables.producer_rows import producer_changes, producer_rows
from segmentlog.kafka_tables.registry_schemas import schema_changes, warn_of_ambiguous_ids
from segmentlog.kafka_tables.remote_segments import segment_changes, unknown_segment_records
from segmentlog.kafka_tables.share_state import FIRST_LEVEL_OF_4_1, share_changes, share_rows
from segmentlog.kafka_tables.transactions import transaction_changes
from segmentlog.model import METADATA_TOPIC, OnCorruptBatch, TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.failures import Failures
from segmentlog.tiered.metadata import REMOTE_LOG_METADATA

_Rows = TypeVar("_Rows")
_ReadUnknown: TypeAlias = Callable[
    [Log, OnCorruptBatch], Iterator[tuple[bytes | None, bytes | None, int, int]]
]

#: The history of each table with a key, in one log.
_CHANGES: Mapping[str, Callable[[Log, OnCorruptBatch], Iterator[dict[str, Any]]]] = {
    "transactions": transaction_changes,
    "remote_segments": segment_changes,
    "dead_letters": dead_letter_rows,
    "schemas": schema_changes,
    **{each: partial(connect_changes, name=each)
       for each in ("connect_configs", "connect_offsets", "connect_status")},
    "mm2_offset_syncs": partial(mirror_changes, name="OffsetSync"),
    "mm2_checkpoints": partial(mirror_changes, name="Checkpoint"),
}  # fmt: skip

_GROUPS, _TRANSACTIONS, _SHARES = (
    "__consumer_offsets", "__transaction_state", "__share_group_state",
)  # fmt: skip
_FIXED = (_GROUPS, _TRANSACTIONS, _SHARES, REMOTE_LOG_METADATA)

_MOST_NAMED = 5  #: topics that an error lists
_WORDS = re.compile(r"[-._]")


def make_table(
    directory: LogDirectory,
    name: str,
    on_corrupt_batch: OnCorruptBatch,
    failures: Failures,
    *,
    is_history: bool,
    topic: str | None = None,
) -> pa.Table:
    """A table.

    `failures`: gets the partitions that cannot be read; the table has no rows of theirs.
    `is_history`: whether each change is a row.  `topic`: that a setting names, or None for the
    names that are known.
    """
    made = _Tables(directory, on_corrupt_batch, failures)
    found = TABLES[name]
    if found.topic == METADATA_TOPIC:
        return metadata_table(directory, name, on_corrupt_batch, failures, is_history=is_history)
    if name == "group_offsets":
        return made.group_offsets(is_history=is_history)
    if name == "consumer_lag":
        return made.consumer_lag()
    if name == "producers" and is_history:
        return made.producer_changes()
    if name in _CHANGES:
        rows = made.of_key(name, topic, is_history=is_history)
    elif is_history:
        rows = {"groups": made.group_changes, "share_state": made.share_changes}[name]()
    else:
        rows = {
            "groups": made.groups, "group_members": made.group_members,
            "open_transactions": made.open_transactions, "producers": made.producers,
            "share_state": made.share_state, "unknown_records": made.unknown_records,
        }[name]()  # fmt: skip
    return rows_to_table([*rows], found.history if is_history else found.columns)


class _Tables:
    """The tables of a directory, as rows."""

    def __init__(
        self, directory: LogDirectory, on_corrupt_batch: OnCorruptBatch, failures: Failures
    ) -> None:
        self._directory = directory
        self._on_corrupt_batch = on_corrupt_batch
        self._failures = failures
        self._level: int | None = None

    def _of_logs(self, topic: str, read: Callable[[Log], Iterable[_Rows]]) -> Iterator[_Rows]:
        """The results of `read` for the logs of a topic that it can read to the end.

        Half of a log would show states that are long past.
        """
        partitions = self._directory.topics(internal=True).get(topic)
        if not partitions:
            raise LogDirectoryError(", ".join(self._directory.paths), self._why_not(topic))
        for partition in partitions:
            each, found = TopicPartition(topic, partition), list[_Rows]()
            if str(each) in self._failures.errors:  # by an earlier look, for the same table
                continue
            with self._failures.of(each):
                found = [*read(self._directory.log(*each))]
            yield from found

    def _why_not(self, topic: str) -> str:
        """The reason for which a topic cannot be read, and the topics that are perhaps meant."""
        reason = f"holds no partition of {topic}"
        if renamed := self._directory.where_renamed(topic):
            return f"{reason}; {renamed}"
        held = self._directory.topics()  # Kafka fixes the names of the others
        near = difflib.get_close_matches(topic, held, n=_MOST_NAMED)
        last_word = _WORDS.split(topic)[-1]
        alike = [*near, *(each for each in held if last_word in _WORDS.split(each)[1:])]
        names = ", ".join([*dict.fromkeys(alike)][:_MOST_NAMED])
        if names and topic not in _FIXED:
            return f"{reason}; topics with similar names are {names}: name one as the topic"
        return f"{reason}; read the directory of the broker that led it"

    def group_offsets(self, *, is_history: bool = False) -> pa.Table:
        """The table of committed offsets."""
        found = TABLES["group_offsets"]
        schema = schema_of(found.history if is_history else found.columns)
        parts = self._of_logs(
            _GROUPS,
            lambda log: [group_offsets(log, self._on_corrupt_batch, is_history=is_history)],
        )
        return pa.concat_tables([schema.empty_table(), *parts])

    def groups(self) -> Iterator[dict[str, Any]]:
        """Groups, of every kind."""
        return self._of_logs(
            _GROUPS,
            lambda log: self._groups(log, committing_groups(log, self._on_corrupt_batch)),
        )

    def _groups(self, log: Log, commits: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        """Groups of a partition; those that have commits alone have no record of their own."""
        groups = read_groups(log, self._on_corrupt_batch, self._is_kafka_4_0)
        yield from group_rows(groups, commits, log.topic_partition.partition)

    def group_changes(self) -> Iterator[dict[str, Any]]:
        """Changes of groups."""
        return self._of_logs(
            _GROUPS, lambda log: group_changes(log, self._on_corrupt_batch, self._is_kafka_4_0)
        )

    def group_members(self) -> Iterator[dict[str, Any]]:
        """Members of groups."""
        topics = self._topic_names()

        def members(log: Log) -> Iterator[dict[str, Any]]:
            groups = read_groups(log, self._on_corrupt_batch, self._is_kafka_4_0)
            return member_rows(groups.present, topics)

        return self._of_logs(_GROUPS, members)

    def _topic_names(self) -> Mapping[uuid.UUID, str]:
        """Names of topics by their ids; empty without metadata that can be read."""
        with self._failures.of(METADATA_PARTITION):
            return topic_names_by_id(self._directory)
        return {}

    def share_state(self) -> Iterator[dict[str, Any]]:
        """Progress of share groups."""
        topics = self._topic_names()
        return self._of_logs(
            _SHARES,
            lambda log: share_rows(log, self._on_corrupt_batch, topics, self._is_kafka_4_0),
        )

    def share_changes(self) -> Iterator[dict[str, Any]]:
        """Changes of the progress of share groups."""
        topics = self._topic_names()
        return self._of_logs(
            _SHARES,
            lambda log: share_changes(log, self._on_corrupt_batch, topics, self._is_kafka_4_0),
        )

    def _is_kafka_4_0(self) -> bool:
        """Whether the cluster is older than Kafka 4.1; without metadata, it is not."""
        if self._level is None:
            level = None
            with self._failures.of(METADATA_PARTITION):
                level = metadata_level(self._directory)
            self._level = FIRST_LEVEL_OF_4_1 if level is None else level
        return self._level < FIRST_LEVEL_OF_4_1

    def consumer_lag(self) -> pa.Table:
        """Committed offsets, and ends of logs."""
        offsets = self.group_offsets()
        commits: dict[int, dict[str, int]] = defaultdict(dict)
        keys = ["record_partition", "group"]
        for row in offsets.group_by(keys).aggregate([("record_offset", "max")]).to_pylist():
            commits[row["record_partition"]][row["group"]] = row["record_offset_max"]
        groups = self._of_logs(
            _GROUPS, lambda log: self._groups(log, commits[log.topic_partition.partition])
        )
        return lag_table(self._directory, offsets, groups, self._failures)

    def open_transactions(self) -> Iterator[dict[str, Any]]:
        """Transactions without an end marker."""
        known = {}
        if _TRANSACTIONS in self._directory.topics(internal=True):
            known = {row["producer_id"]: row for row in self.of_key("transactions")}
        yield from open_transaction_rows(
            self._directory, self._on_corrupt_batch, known, self._failures
        )

    def producers(self) -> Iterator[dict[str, Any]]:
        """Producers of each partition."""
        yield from producer_rows(self._directory, self._on_corrupt_batch, self._failures)

    def producer_changes(self) -> pa.Table:
        """Every change of a producer."""
        schema = schema_of(TABLES["producers"].history)
        parts = producer_changes(self._directory, self._on_corrupt_batch, self._failures)
        return pa.concat_tables([schema.empty_table(), *parts])

    def of_key(
        self, name: str, topic: str | None = None, *, is_history: bool = False
    ) -> Iterable[dict[str, Any]]:
        """The history of a table with a key, or its last rows that were not removed."""
        found, held = TABLES[name], self._directory.topics(internal=True)
        names = [topic] if topic is not None else found.topics(held) or [found.topic]
        changes = (
            row | {"record_topic": each}
            for each in names
            for row in self._of_logs(each, lambda log: _CHANGES[name](log, self._on_corrupt_batch))
        )
        if is_history:
            return changes
        last: dict[tuple[object, ...], dict[str, Any]] = {}
        for row in changes:
            key = tuple(row.get(each) for each in found.key)
            if row["change"] == "removed":
                last.pop(key, None)
            else:
                last[key] = row
        if name == "schemas":
            warn_of_ambiguous_ids([*last.values()])
        return last.values()

    def unknown_records(self) -> Iterator[dict[str, Any]]:
        """Records of unknown types, of all topics that are here."""
        readers = dict.fromkeys((_GROUPS, _TRANSACTIONS, _SHARES), read_unknown_records)
        readers[REMOTE_LOG_METADATA] = unknown_segment_records
        for topic, read in readers.items():
            if topic not in self._directory.topics(internal=True):
                continue
            yield from self._of_logs(topic, partial(self._unknown, read))
        with self._failures.of(METADATA_PARTITION):
            yield from unknown_metadata(self._directory, self._on_corrupt_batch)

    def _unknown(self, read: _ReadUnknown, log: Log) -> Iterator[dict[str, Any]]:
        for key, value, offset, time in read(log, self._on_corrupt_batch):
            try:
                newer = look_at(log.topic_partition.topic, key, value)
            except ValueError as error:
                refuse_record(log, offset, str(error), self._on_corrupt_batch)
                continue
            if newer is not None:
                yield log.topic_partition._asdict() | {
                    "offset": offset, "timestamp": time, "key": key, "value": value,
                    "record": newer[0], "newer": newer[1],
                }  # fmt: skip
