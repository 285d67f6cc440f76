"""Tables of the metadata of a cluster: topics, partitions, brokers, settings, access.

A cluster whose metadata ZooKeeper kept has three of them.  Its brokers' log directories have the
ids of topics in ``partition.metadata`` (Kafka 2.8 and later), the epochs of leaders, checkpoints
of offsets, and the number of the broker.  Replicas, leaders, settings and access were in
ZooKeeper.

Secrets are hidden, in the tables and where records are shown as bytes.
"""

import contextlib
import logging
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from segmentlog.errors import CorruptCheckpointError, LogDirectoryError
from segmentlog.format.messages import lines
from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.messages.records import frame_key, framed_schemas, read_frame
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT
from segmentlog.kafka_tables.columns import (
    BOOL,
    INT,
    LONG,
    ORIGIN,
    TEXT,
    Column,
    Row,
    Table,
    fields_of,
    time_of,
)
from segmentlog.kafka_tables.source import METADATA_PARTITION, TableSource
from segmentlog.log.checkpoint import read_leader_epochs
from segmentlog.masking import MASK, masked
from segmentlog.model import METADATA_TOPIC, OnCorruptBatch, ScanPolicy, TopicPartition
from segmentlog.reads.cluster_image import RECORDS, Image, RowChange
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.reads.metadata_log import (
    IN_A_SNAPSHOT,
    metadata_path,
    newest_metadata,
    read_metadata,
    read_unknown,
)

#: Records whose values are secrets as a whole.
_CREDENTIALS = frozenset({"UserScramCredentialRecord", "DelegationTokenRecord"})
_SETTING = "ConfigRecord"
_NEWEST = 0  #: version of these records


def hide_secrets(values: Iterable[bytes | None]) -> list[bytes | None]:
    """The values of metadata records, with `MASK` in place of those that contain a secret.

    A value that is not a metadata record stays as it is.  A record of a type that may contain a
    secret is hidden if it cannot be read: a newer Kafka may have written it, or it is damaged.
    """
    return [MASK.encode() if value and _is_secret(value) else value for value in values]


def _is_secret(value: bytes) -> bool:
    try:
        message = read_frame(value, framed_schemas(METADATA_TOPIC))
    except ValueError:
        return _may_be_secret(value)
    if message is None or message.version > _NEWEST:  # what is new in it is not known
        return _may_be_secret(value)
    if message.name != _SETTING:
        return message.name in _CREDENTIALS
    setting: str | None = message.fields["value"]
    return masked(message.fields["name"], setting) != setting


def _may_be_secret(value: bytes) -> bool:
    """Whether the type of a record that cannot be read is that of one that may be a secret."""
    try:
        schema = framed_schemas(METADATA_TOPIC).get(frame_key(value))
    except ValueError:
        return False
    return schema is not None and (schema.name in _CREDENTIALS or schema.name == _SETTING)


logger = logging.getLogger(__name__)

NO_METADATA = (
    "no cluster metadata here: the cluster kept it in ZooKeeper; topics, partitions and brokers "
    "are those of the directories, without replicas and leaders"
)

#: Tables that have rows without metadata.
TABLES_WITHOUT_METADATA = ("topics", "partitions", "brokers")


def is_of_zookeeper(directory: LogDirectory) -> bool:
    """Whether all directories are those of brokers of a cluster with ZooKeeper.

    The version of their ``meta.properties`` shows it (``MetaPropertiesVersion.V0``).
    """
    if any(metadata_path(path) is not None for path in directory.paths):
        return False
    return all(each.get("version") == "0" for each in directory.meta_properties())


def _metadata_rows(source: TableSource, is_history: bool, name: str) -> Iterable[Row]:
    """Rows of the newest copy of the metadata; a removed row has the values that it had.

    If the cluster has ZooKeeper, some tables show the contents of its log directories, and a
    warning says so.
    """
    directory = source.directory
    is_zookeepers = is_of_zookeeper(directory)
    if not is_history and name in TABLES_WITHOUT_METADATA and is_zookeepers:
        logger.warning("%s: %s", ", ".join(directory.paths), NO_METADATA)
        return rows_without_metadata(source, name)
    path = newest_metadata(directory.paths)
    if path is None:
        reason = (
            NO_METADATA
            if is_zookeepers
            else (
                "no cluster metadata here (__cluster_metadata-0): it is in one log directory of "
                "each broker and controller (metadata.log.dir)"
            )
        )
        raise LogDirectoryError(", ".join(directory.paths), reason)
    changes, image = list[RowChange](), Image()
    with source.failures.of(METADATA_PARTITION):
        policy = ScanPolicy(on_corrupt_batch=source.on_corrupt_batch)
        records = read_metadata(path, RECORDS[name], is_history=is_history, policy=policy)
        made = (each for record in records for each in image.apply(record))
        changes = [each for each in made if each.table == name]
    if is_history:
        return map(_row, changes)
    last = dict[object, RowChange]()
    for each in changes:
        if each.row is None:
            last.pop(each.key, None)
        else:
            last[each.key] = each
    return map(_row, last.values())


def _row(change: RowChange) -> Row:
    """The columns of a row as they are shown."""
    row = change.row or change.before or {}
    shown = {name: _shown(value) for name, value in row.items()}
    if change.table == "configs":
        shown["value"] = masked(row["name"], row["value"])
    offset = change.record.offset
    return shown | {
        "record_offset": None if offset == IN_A_SNAPSHOT else offset,
        "record_timestamp": time_of(change.record.timestamp_ms),
        "change": "removed" if change.row is None else "set",
    }


def _shown(value: Any) -> Any:  # noqa: ANN401 (each column has its type)
    """Ids as Kafka prints them."""
    if isinstance(value, uuid.UUID):
        return uuid_text(value)
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return value


def unknown_metadata(source: TableSource) -> list[Row]:
    """Rows of the records that are newer than what we know; none without metadata."""
    path = newest_metadata(source.directory.paths)
    if path is None:
        return []
    policy = ScanPolicy(on_corrupt_batch=source.on_corrupt_batch)
    return [
        {
            "topic": METADATA_TOPIC,
            "partition": 0,
            "offset": offset,
            "timestamp": time_of(time),
            "key": None,
            "value": hide_secrets([value])[0],
            "record": name,
            "newer": newer,
        }
        for offset, time, value, name, newer in read_unknown(path, policy)
    ]


def rows_without_metadata(source: TableSource, name: str) -> Iterator[Row]:
    """Rows of a table, as far as the directories have them; what they do not have is null.

    If damage is skipped, the values of a damaged file are null.
    """
    if name == "brokers":
        found = {each.get("broker.id", "") for each in source.directory.meta_properties()}
        yield from ({"broker_id": int(each)} for each in sorted(found) if each.isdecimal())
        return
    skips, seen = source.on_corrupt_batch is OnCorruptBatch.SKIP, set()
    for topic, partition in source.directory.topic_partitions():
        with source.failures.of(TopicPartition(topic, partition)):
            log = source.directory.log(topic, partition)
            topic_id = (log.known_topic_id or None) if skips else log.topic_id
            row: Row = {"topic": topic, "topic_id": topic_id}
            if name == "partitions":
                row["partition"] = partition
                if_skipped = [CorruptCheckpointError] if skips else []
                with contextlib.suppress(*if_skipped):
                    path = f"{log.path}/{LEADER_EPOCH_CHECKPOINT}"
                    epochs = read_leader_epochs(path, takes_newer=True)
                    row["leader_epoch"] = epochs[-1][0] if epochs else None
                row["log_start_offset"] = log.log_start_offset
                with contextlib.suppress(*if_skipped):
                    row["high_watermark"] = log.high_watermark_checkpoint
                yield row
            elif topic not in seen:
                seen.add(topic)
                yield row


_partition = fields_of(lines.METADATA, "PartitionRecord")
_broker = fields_of(lines.METADATA, "RegisterBrokerRecord")
_controller = fields_of(lines.METADATA, "RegisterControllerRecord")
_feature = fields_of(lines.METADATA, "FeatureLevelRecord")
_config = fields_of(lines.METADATA, "ConfigRecord")
_quota = fields_of(lines.METADATA, "ClientQuotaRecord")
_acl = fields_of(lines.METADATA, "AccessControlEntryRecord")
_scram = fields_of(lines.METADATA, "UserScramCredentialRecord")

_TOPICS = (Column("topic", TEXT, "the topic"), Column("topic_id", TEXT, "its id"))
_PARTITIONS = (
    *_TOPICS,
    _partition("partition", "the partition", of="partition_id"),
    _partition("leader", "broker that leads the partition, or -1"),
    _partition("leader_epoch", "epoch of the leader"),
    _partition("partition_epoch", "number of changes of the partition"),
    _partition("replicas", "brokers with a replica; the first is the preferred leader"),
    _partition("isr", "replicas in sync; empty after the last one was fenced (KIP-966)"),
    _partition("removing_replicas", "replicas that a reassignment removes"),
    _partition("adding_replicas", "replicas that a reassignment adds"),
    _partition("leader_recovery_state", "1 after an unclean election, or 0"),
    _partition("directories", "ids of the log directories, in the order of the replicas"),
    _partition("eligible_leader_replicas", "replicas that may lead without loss (KIP-966)"),
    _partition("last_known_elr", "replicas that were eligible before an unclean stop"),
)
_BROKERS = (
    _broker("broker_id", "the broker"),
    _broker("broker_epoch", "offset of its registration"),
    _broker("incarnation_id", "id of its process"),
    _broker("rack", "its rack, or null"),
    _broker("fenced", "whether the broker may not lead, as before its first heartbeat"),
    _broker("in_controlled_shutdown", "whether the broker was stopping"),
    _broker("end_points", "its listeners"),
    _broker("features", "features that the broker supports"),
    _broker("log_dirs", "ids of its log directories"),
    _broker("cordoned_log_dirs", "ids of the log directories that take no new partitions"),
)
_CONTROLLERS = (
    _controller("controller_id", "the controller"),
    _controller("incarnation_id", "id of its process"),
    _controller("zk_migration_ready", "whether it could migrate a cluster with ZooKeeper"),
    *_BROKERS[6:8],
)
_VOTERS = (
    Column("voter_id", INT, "the controller that votes"),
    Column("directory_id", TEXT, "id of its log directory; null in a quorum of a fixed list"),
    Column(
        "end_points",
        pa.list_(pa.struct([("name", TEXT), ("host", TEXT), ("port", INT)])),
        "its listeners; null in a quorum of a fixed list (`controller.quorum.voters`)",
    ),
    Column("min_supported_version", INT, "least `kraft.version` that it supports"),
    Column("max_supported_version", INT, "greatest `kraft.version` that it supports"),
)
_FEATURES = (
    _feature("name", "the feature, such as `metadata.version`"),
    _feature("feature_level", "its level"),
)
_CONFIGS = (
    Column("resource_type", TEXT, "`topic`, `broker`, `client-metrics` or `group`"),
    _config("resource_name", "the topic, broker or group; empty for all brokers"),
    _config("name", "the setting"),
    _config("value", "its value; `[hidden]` if it is sensitive"),
    Column("is_sensitive", BOOL, "whether the value is a secret, by the name of the setting"),
)
_QUOTAS = (
    _quota("entity", "`user`, `client-id` or `ip`, with a name; the name null means the default"),
    _quota("key", "the quota"),
    _quota("value", "its value"),
)
_ACLS = (
    _acl("principal", "such as `User:anna`"),
    _acl("host", "address, `*`, or a block of addresses (CIDR) since Kafka 4.4"),
    Column("operation", TEXT, "such as `READ`"),
    Column("permission_type", TEXT, "`ALLOW` or `DENY`"),
    Column("resource_type", TEXT, "such as `TOPIC`"),
    _acl("resource_name", "name, or the prefix of names"),
    Column("pattern_type", TEXT, "`LITERAL` or `PREFIXED`"),
    _acl("id", "id of the ACL"),
)
_SCRAM_USERS = (
    _scram("name", "the user"),
    Column("mechanism", TEXT, "`SCRAM-SHA-256` or `SCRAM-SHA-512`"),
    _scram("iterations", "iterations of the hash; salt and keys are never shown"),
)


#: Only of a cluster with ZooKeeper: there, they are all that shows how much a partition has.
_OF_DIRECTORIES = (
    Column("log_start_offset", LONG, "log start here, in clusters with ZooKeeper; else null"),
    Column("high_watermark", LONG, "high watermark here, in clusters with ZooKeeper; else null"),
)


def _table(
    name: str, meaning: str, columns: tuple[Column, ...], state: tuple[Column, ...] = ()
) -> Table:
    origin = ORIGIN[1:]
    return Table(
        METADATA_TOPIC,
        meaning,
        (*columns, *state, *origin),
        whole=partial(_metadata_rows, name=name),
        history_columns=(*columns, *origin),
    )


METADATA_TABLES = {
    "topics": _table("topics", "Topics of the cluster", _TOPICS),
    "partitions": _table("partitions", "Partitions of the cluster", _PARTITIONS, _OF_DIRECTORIES),
    "brokers": _table("brokers", "Brokers of the cluster", _BROKERS),
    "controllers": _table(
        "controllers", "Controllers of the cluster, as they have registered", _CONTROLLERS
    ),
    "voters": _table("voters", "Voters of the metadata's quorum (KIP-853)", _VOTERS),
    "features": _table("features", "Features of the cluster", _FEATURES),
    "configs": _table("configs", "Dynamic settings of topics, brokers and groups", _CONFIGS),
    "quotas": _table("quotas", "Quotas of clients", _QUOTAS),
    "acls": _table("acls", "Access control lists", _ACLS),
    "scram_users": _table(
        "scram_users", "Users with SCRAM credentials; the credentials are not shown", _SCRAM_USERS
    ),
}
