"""The tables and their columns, without the code that makes them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from segmentlog.kafka_tables.columns import CHANGE, ORIGIN, TIME, Column


@dataclass(frozen=True)
class Table:
    """A table."""

    topic: str  # that has to be in the directory
    meaning: str  # one line, as the documentation has it
    columns: tuple[Column, ...]  # of the last state
    changes: tuple[Column, ...] = ()  # columns of the changes, where these have others
    #: of the names of topics, for tables whose topic a worker's settings name; or empty
    pattern: str = ""
    #: names of columns.  The last state of a table with a key is the last row of each key in its
    #: history.
    key: tuple[str, ...] = ()

    @property
    def history(self) -> tuple[Column, ...]:
        """Columns of the changes; empty for a table that has no history."""
        return (*(self.changes or self.columns), CHANGE) if self.changes or self.key else ()

    def topics(self, names: Iterable[str]) -> list[str]:
        """Those of some topics that the table is made of."""
        if not self.pattern:
            return [name for name in names if name == self.topic]
        return [name for name in names if re.fullmatch(self.pattern, name)]


#: Fields of a committed offset.
COMMIT = (
    Column("group", pa.string(), "the group"),
    Column("topic", pa.string(), "the topic"),
    Column("partition", pa.int32(), "the partition"),
    Column("offset", pa.int64(), "the committed offset: the next record to read"),
    Column("leader_epoch", pa.int32(), "leader epoch of the last record that was read, or null"),
    Column("metadata", pa.string(), "text that the consumer has given"),
    Column("commit_timestamp", TIME, "when the offset was committed"),
    Column("expire_timestamp", TIME, "when the offset expires, if the client has given a time"),
    Column("topic_id", pa.string(), "id of the topic, since Kafka 4.1; null if unknown"),
)

_GROUP_OFFSETS = (
    *COMMIT,
    Column("pending_offset", pa.int64(), "an offset in an open transaction; it does not count"),
    Column("pending_producer_id", pa.int64(), "producer of that transaction"),
    *ORIGIN,
)
_GROUP_OFFSETS_HISTORY = (
    *COMMIT,
    Column("producer_id", pa.int64(), "producer of the transaction, or null"),
    Column(
        "transaction",
        pa.string(),
        "`committed`, `aborted` or `open`; null outside of a transaction",
    ),
    *ORIGIN,
)

_TEXT, _INT, _LONG, _BOOL = pa.string(), pa.int32(), pa.int64(), pa.bool_()
_TEXTS, _INTS = pa.list_(_TEXT), pa.list_(_INT)

_GROUP = (
    Column("group", _TEXT, "the group"),
    Column("kind", _TEXT, "`classic`, `consumer` (KIP-848), `share` or `streams`"),
)
_OF_GROUPS = (
    Column("epoch", _INT, "epoch of the group; in a classic group, the generation"),
    Column("protocol_type", _TEXT, "type of a classic group, such as `consumer` or `connect`"),
    Column("protocol", _TEXT, "assignor of a classic group, or null"),
    Column("leader", _TEXT, "member id of the leader of a classic group, or null"),
    Column("current_state_timestamp", TIME, "when a classic group entered its state"),
)
_MEMBERS = Column("members", _INT, "number of members")
_GROUPS = (
    *_GROUP,
    Column("state", _TEXT, "`Empty`, `Stable`, `Assigning`, `Reconciling` or `NotReady`"),
    _MEMBERS,
    Column("assignment_epoch", _INT, "epoch of the target assignment; null in a classic group"),
    *_OF_GROUPS,
    *ORIGIN,
)
_GROUP_MEMBERS = (
    *_GROUP,
    Column("member_id", _TEXT, "the member"),
    Column("group_instance_id", _TEXT, "instance id of a static member, or null"),
    Column("client_id", _TEXT, "id of the member's client"),
    Column("client_host", _TEXT, "address of the client"),
    Column("rack_id", _TEXT, "rack of the client, or null"),
    Column("member_epoch", _INT, "epoch of the member; null in a classic group"),
    Column("state", _TEXT, "state of the member; null in a classic group"),
    Column("subscribed_topics", _TEXTS, "topics to which the member has subscribed, or null"),
    Column(
        "assigned",
        pa.list_(pa.struct([("topic", _TEXT), ("topic_id", _TEXT), ("partitions", _INTS)])),
        "partitions of the member; null if the bytes are not those of a consumer",
    ),
)
_CONSUMER_LAG = (
    Column("group", _TEXT, "the group"),
    Column("topic", _TEXT, "the topic"),
    Column("partition", _INT, "the partition"),
    Column("offset", _LONG, "the committed offset"),
    Column("log_end_offset", _LONG, "log end; null if this directory does not have the log"),
    Column("lag", _LONG, "log end minus offset; negative if the log was truncated later"),
    Column("kind", _TEXT, "kind of the group"),
    Column("state", _TEXT, "state of the group"),
    Column("pending_offset", _LONG, "an offset in an open transaction"),
    Column("commit_timestamp", TIME, "when the offset was committed"),
)
_TRANSACTIONS = (
    Column("transactional_id", _TEXT, "the transactional id"),
    Column("producer_id", _LONG, "its producer id"),
    Column("producer_epoch", _INT, "epoch of its producer"),
    Column("transaction_status", _TEXT, "`Empty`, `Ongoing`, `PrepareCommit`, `PrepareAbort`, "
           "`CompleteCommit`, `CompleteAbort`, `Dead` or `PrepareEpochFence`"),
    Column("transaction_partitions",
           pa.list_(pa.struct([("topic", _TEXT), ("partition_ids", _INTS)])),
           "partitions of the transaction; null if there was no transaction"),
    Column("transaction_timeout_ms", _INT, "time until a coordinator aborts the transaction"),
    Column("transaction_start_timestamp", TIME, "when the transaction began"),
    Column("transaction_last_update_timestamp", TIME, "when the state changed"),
    Column("previous_producer_id", _LONG, "producer id of the last transaction"),
    Column("next_producer_id", _LONG, "the next producer id, once all epochs are used up"),
    Column("client_transaction_version", _INT, "`transaction.version` of the client"),
    *ORIGIN,
)  # fmt: skip
_PRODUCERS = (
    Column("topic", _TEXT, "the topic"),
    Column("partition", _INT, "the partition"),
    Column("producer_id", _LONG, "the producer"),
    Column("producer_epoch", _INT, "its epoch"),
    Column("last_sequence", _INT, "sequence of its last record; null after an end marker alone"),
    Column("last_offset", _LONG, "offset of that record"),
    Column("offset_delta", _INT, "number of records of its last batch, minus 1"),
    Column("timestamp", TIME, "greatest time of that batch"),
    Column("coordinator_epoch", _INT, "epoch of the coordinator that wrote its last end marker"),
    Column("current_txn_first_offset", _LONG, "first offset of its open transaction, or null"),
)
_SHARE_STATE = (
    Column("group", _TEXT, "the share group"),
    Column("topic", _TEXT, "the topic; null if the directory has no metadata that names it"),
    Column("topic_id", _TEXT, "id of the topic"),
    Column("partition", _INT, "the partition"),
    Column("start_offset", _LONG, "records below this offset are done; null if not yet known"),
    Column("delivery_complete_count", _INT,
           "number of done records at or after `start_offset`; null before Kafka 4.2"),
    Column("snapshot_epoch", _INT, "number of snapshots of the state"),
    Column("state_epoch", _INT, "group's epoch when it set the state up; null in an update"),
    Column("leader_epoch", _INT, "epoch of the leader of the partition; null if it is not known"),
    Column("create_timestamp", TIME, "when the snapshot was first made; null in Kafka 4.0"),
    Column("write_timestamp", TIME, "when the snapshot was written; null in Kafka 4.0"),
    Column("state_batches",
           pa.list_(pa.struct([("first_offset", _LONG), ("last_offset", _LONG),
                               ("delivery_state", _TEXT), ("delivery_count", _INT)])),
           "ranges of delivered records: `AVAILABLE`, `ACKNOWLEDGED`, `ARCHIVING` or `ARCHIVED`"),
    *ORIGIN,
)  # fmt: skip
_REMOTE_SEGMENTS = (
    Column("topic", _TEXT, "the topic"),
    Column("topic_id", _TEXT, "its id"),
    Column("partition", _INT, "the partition"),
    Column("segment_id", _TEXT, "id of the copy"),
    Column("remote_log_segment_state", _TEXT, "`COPY_SEGMENT_STARTED`, `COPY_SEGMENT_FINISHED`, "
           "`DELETE_SEGMENT_STARTED`, and in a history `DELETE_SEGMENT_FINISHED`"),
    Column("start_offset", _LONG, "first offset of the segment"),
    Column("end_offset", _LONG, "last offset, which may lie after the last record"),
    Column("segment_size_in_bytes", _INT, "size of its log file"),
    Column("max_timestamp", TIME, "greatest time of the records"),
    Column("segment_leader_epochs",
           pa.list_(pa.struct([("leader_epoch", _INT), ("offset", _LONG)])),
           "its leader epochs, and their first offsets in the segment"),
    Column("txn_index_empty", _BOOL, "whether it has no aborted transactions"),
    Column("broker_id", _INT, "broker that wrote the last record"),
    Column("event_timestamp", TIME, "when this broker wrote the record"),
    Column("custom_metadata", pa.binary(), "bytes that the plugin has stored, or null"),
    *ORIGIN,
)  # fmt: skip
_OPEN_TRANSACTIONS = (
    Column("topic", _TEXT, "the topic"),
    Column("partition", _INT, "the partition"),
    Column("producer_id", _LONG, "producer of the transaction's records"),
    Column("first_offset", _LONG, "first offset of the transaction's records"),
    Column("first_timestamp", TIME, "time of the first record"),
    Column("transactional_id", _TEXT, "transactional id; null if no coordinator's log is here"),
    Column("transaction_status", _TEXT, "state of the transaction in the coordinator's log"),
    Column("transaction_start_timestamp", TIME, "when the transaction began"),
    Column("transaction_timeout_ms", _INT, "time until a coordinator aborts the transaction"),
)
_SCHEMAS = (
    Column("subject", _TEXT, "the subject, with its context"),
    Column("version", _INT, "version of the subject"),
    Column("id", _INT, "id of the schema, which values or their headers contain"),
    Column("guid", _TEXT, "GUID of the schema, which headers contain; null if it is not known"),
    Column("schema_type", _TEXT, "`AVRO`, `JSON` or `PROTOBUF`"),
    Column("schema", _TEXT, "text of the schema"),
    Column("references", pa.list_(pa.struct([("name", _TEXT), ("subject", _TEXT),
                                             ("version", _INT)])), "schemas that it refers to"),
    Column("deleted", _BOOL, "whether it was soft-deleted: its id can still be resolved"),
    *ORIGIN,
)  # fmt: skip
_SOURCE = Column("record_topic", _TEXT, "topic that has the record")
_OFFSET_SYNCS = (
    Column("topic", _TEXT, "the topic of the source cluster"),
    Column("partition", _INT, "the partition"),
    Column("upstream_offset", _LONG, "an offset in the source cluster"),
    Column("offset", _LONG, "the offset of the same record in the target cluster"),
    _SOURCE,
    *ORIGIN,
)
_CHECKPOINTS = (
    Column("group", _TEXT, "the group"),
    Column("topic", _TEXT, "the topic, by its name in the target cluster"),
    Column("partition", _INT, "the partition"),
    Column("upstream_offset", _LONG, "the offset that the group has committed in the source"),
    Column("offset", _LONG, "the offset for the target cluster; it may be lower than needed"),
    Column("metadata", _TEXT, "text that the consumer has given"),
    _SOURCE,
    *ORIGIN,
)
_CONNECTOR = Column("connector", _TEXT, "the connector")
_CONNECT_CONFIGS = (
    Column("key", _TEXT, "key of the record"),
    Column("kind", _TEXT, "`connector`, `task`, `commit`, `target-state`, `tasks-fencing`, "
           "`restart-connector`, `logger-cluster` or `session-key`; null for another kind"),
    Column("connector", _TEXT, "the connector; for `logger-cluster`, the namespace"),
    Column("task", _INT, "number of the task"),
    Column("properties", pa.map_(_TEXT, _TEXT),
           "settings of a connector or a task; `[hidden]` if they are secrets"),
    Column("tasks", _INT, "number of tasks, for `commit` and `tasks-fencing`"),
    Column("state", _TEXT, "`STARTED`, `PAUSED` or `STOPPED`, for `target-state`"),
    Column("value", _TEXT, "JSON, for the other kinds; `[hidden]` in place of the session key"),
    Column("session_key_timestamp", TIME, "when the session key was made"),
    _SOURCE,
    *ORIGIN,
)  # fmt: skip
_CONNECT_OFFSETS = (
    _CONNECTOR,
    Column("source_partition", _TEXT, "JSON: a part of the source, such as a file or a table"),
    Column("source_offset", _TEXT, "JSON: how far the connector has read this part"),
    _SOURCE,
    *ORIGIN,
)
_CONNECT_STATUS = (
    Column("kind", _TEXT, "`connector`, `task` or `topic`"),
    _CONNECTOR,
    Column("task", _INT, "number of the task"),
    Column("state", _TEXT, "such as `RUNNING`, `PAUSED` or `FAILED`"),
    Column("trace", _TEXT, "stack trace of the error, or null"),
    Column("worker_id", _TEXT, "the worker"),
    Column("generation", _INT, "generation of the workers' group"),
    Column("version", _TEXT, "version of the plugin, or null"),
    Column("topic", _TEXT, "for the kind `topic`: a topic that the connector uses"),
    Column("discover_timestamp", TIME, "when the topic was first used"),
    _SOURCE,
    *ORIGIN,
)
_DEAD_LETTERS = (
    Column("topic", _TEXT, "the topic of the record that was given up"),
    Column("partition", _INT, "its partition"),
    Column("offset", _LONG, "its offset"),
    Column("group", _TEXT, "the share group"),
    Column("delivery_count", _INT, "how often the record was delivered"),
    Column("message", _TEXT, "why the group has given it up"),
    _SOURCE,
    *ORIGIN,
)
_UNKNOWN_RECORDS = (
    Column("topic", _TEXT, "the topic"),
    Column("partition", _INT, "the partition"),
    Column("offset", _LONG, "offset of the record"),
    Column("timestamp", TIME, "time of the record"),
    Column("key", pa.binary(), "bytes of its key"),
    Column("value", pa.binary(), "bytes of its value; `[hidden]` if it may be a secret"),
    Column("record", _TEXT, "its name; null if its type is not known"),
    Column("newer", _TEXT, "its type, version or tagged fields that are not known"),
)

_OF_METADATA = ORIGIN[1:]
_TOPICS = (
    Column("topic", _TEXT, "the topic"),
    Column("topic_id", _TEXT, "its id"),
)
_PARTITIONS = (
    *_TOPICS,
    Column("partition", _INT, "the partition"),
    Column("leader", _INT, "broker that leads the partition, or -1"),
    Column("leader_epoch", _INT, "epoch of the leader"),
    Column("partition_epoch", _INT, "number of changes of the partition"),
    Column("replicas", _INTS, "brokers with a replica; the first is the preferred leader"),
    Column("isr", _INTS, "replicas in sync; empty after the last one was fenced (KIP-966)"),
    Column("removing_replicas", _INTS, "replicas that a reassignment removes"),
    Column("adding_replicas", _INTS, "replicas that a reassignment adds"),
    Column("leader_recovery_state", _INT, "1 after an unclean election, or 0"),
    Column("directories", _TEXTS, "ids of the log directories, in the order of the replicas"),
    Column("eligible_leader_replicas", _INTS, "replicas that may lead without loss (KIP-966)"),
    Column("last_known_elr", _INTS, "replicas that were eligible before an unclean stop"),
)
_BROKERS = (
    Column("broker_id", _INT, "the broker"),
    Column("broker_epoch", _LONG, "offset of its registration"),
    Column("incarnation_id", _TEXT, "id of its process"),
    Column("rack", _TEXT, "its rack, or null"),
    Column("fenced", _BOOL, "whether the broker may not lead, as before its first heartbeat"),
    Column("in_controlled_shutdown", _BOOL, "whether the broker was stopping"),
    Column("end_points", pa.list_(pa.struct([("name", _TEXT), ("host", _TEXT), ("port", _INT),
                                             ("security_protocol", _INT)])), "its listeners"),
    Column("features", pa.list_(pa.struct([("name", _TEXT), ("min_supported_version", _INT),
                                           ("max_supported_version", _INT)])),
           "features that the broker supports"),
    Column("log_dirs", _TEXTS, "ids of its log directories"),
    Column("cordoned_log_dirs", _TEXTS, "ids of the log directories that take no new partitions"),
)  # fmt: skip
_CONTROLLERS = (
    Column("controller_id", _INT, "the controller"),
    Column("incarnation_id", _TEXT, "id of its process"),
    Column("zk_migration_ready", _BOOL, "whether it could migrate a cluster with ZooKeeper"),
    *_BROKERS[6:8],
)
_VOTERS = (
    Column("voter_id", _INT, "the controller that votes"),
    Column("directory_id", _TEXT, "id of its log directory; null in a quorum of a fixed list"),
    Column("end_points", pa.list_(pa.struct([("name", _TEXT), ("host", _TEXT), ("port", _INT)])),
           "its listeners; null in a quorum of a fixed list (`controller.quorum.voters`)"),
    Column("min_supported_version", _INT, "least `kraft.version` that it supports"),
    Column("max_supported_version", _INT, "greatest `kraft.version` that it supports"),
)  # fmt: skip
_FEATURES = (
    Column("name", _TEXT, "the feature, such as `metadata.version`"),
    Column("feature_level", _INT, "its level"),
)
_CONFIGS = (
    Column("resource_type", _TEXT, "`topic`, `broker`, `client-metrics` or `group`"),
    Column("resource_name", _TEXT, "the topic, broker or group; empty for all brokers"),
    Column("name", _TEXT, "the setting"),
    Column("value", _TEXT, "its value; `[hidden]` if it is sensitive"),
    Column("is_sensitive", _BOOL, "whether the value is a secret, by the name of the setting"),
)
_QUOTAS = (
    Column("entity", pa.list_(pa.struct([("entity_type", _TEXT), ("entity_name", _TEXT)])),
           "`user`, `client-id` or `ip`, with a name; the name null means the default"),
    Column("key", _TEXT, "the quota"),
    Column("value", pa.float64(), "its value"),
)  # fmt: skip
_ACLS = (
    Column("principal", _TEXT, "such as `User:anna`"),
    Column("host", _TEXT, "address, `*`, or a block of addresses (CIDR) since Kafka 4.4"),
    Column("operation", _TEXT, "such as `READ`"),
    Column("permission_type", _TEXT, "`ALLOW` or `DENY`"),
    Column("resource_type", _TEXT, "such as `TOPIC`"),
    Column("resource_name", _TEXT, "name, or the prefix of names"),
    Column("pattern_type", _TEXT, "`LITERAL` or `PREFIXED`"),
    Column("id", _TEXT, "id of the ACL"),
)
_SCRAM_USERS = (
    Column("name", _TEXT, "the user"),
    Column("mechanism", _TEXT, "`SCRAM-SHA-256` or `SCRAM-SHA-512`"),
    Column("iterations", _INT, "iterations of the hash; salt and keys are never shown"),
)


#: Only of a cluster with ZooKeeper: there, they are all that shows how much a partition has.
_OF_DIRECTORIES = (
    Column("log_start_offset", _LONG, "log start here, in clusters with ZooKeeper; else null"),
    Column("high_watermark", _LONG, "high watermark here, in clusters with ZooKeeper; else null"),
)


def _of_metadata(
    meaning: str, columns: tuple[Column, ...], state: tuple[Column, ...] = ()
) -> Table:
    changes = (*columns, *_OF_METADATA)
    return Table("__cluster_metadata", meaning, (*columns, *state, *_OF_METADATA), changes)


#: Default names, those of distributed MirrorMaker 2, and names that end like the default ones.
_CONNECT = r"(?:.*[._-])?connect[._-]{0}|mm2-{0}.+internal"


#: All tables by name, in the order of the documentation.
TABLES = {
    "group_offsets": Table(
        "__consumer_offsets",
        "Committed offsets of groups",
        _GROUP_OFFSETS,
        _GROUP_OFFSETS_HISTORY,
    ),
    "consumer_lag": Table(
        "__consumer_offsets",
        "Committed offsets, the log ends of their partitions, and the lag between them",
        _CONSUMER_LAG,
    ),
    "groups": Table(
        "__consumer_offsets",
        "Groups of consumers, including groups that have only committed offsets",
        _GROUPS,
        (*_GROUP, _MEMBERS, *_OF_GROUPS, *ORIGIN),
    ),
    "group_members": Table("__consumer_offsets", "Members of groups", _GROUP_MEMBERS),
    "share_state": Table(
        "__share_group_state",
        "Progress of share groups (KIP-932): each snapshot, with the updates after it",
        _SHARE_STATE,
        (
            *_SHARE_STATE,
            Column(
                "record", _TEXT, "`snapshot` or `update`; an update contains only changed fields"
            ),
        ),
    ),
    "dead_letters": Table(
        "dlq.<group>",
        "Records that share groups have given up (KIP-1191): from where, and why",
        _DEAD_LETTERS,
        pattern=r"dlq\..+",
        key=("record_topic", "record_partition", "record_offset"),
    ),
    "transactions": Table(
        "__transaction_state",
        "Transactional ids, and their last transactions",
        _TRANSACTIONS,
        key=("transactional_id",),
    ),
    "open_transactions": Table(
        "",
        "Transactions without an end marker, in every partition: they hold back the last stable "
        "offset",
        _OPEN_TRANSACTIONS,
    ),
    "producers": Table(
        "",
        "Idempotent and transactional producers of each partition, as a broker would load them: "
        "from the newest snapshot, and the batches after it",
        _PRODUCERS,
        (
            *_PRODUCERS,
            Column(
                "record",
                _TEXT,
                "`batch`, `commit`, `abort`, or `snapshot` for the state at the beginning; null "
                "for another control batch",
            ),
            Column("record_offset", _LONG, "first offset of the batch; null in a snapshot"),
            Column("record_timestamp", TIME, "greatest time of the batch; null in a snapshot"),
        ),
    ),
    "remote_segments": Table(
        "__remote_log_metadata",
        "Segments in a tier (KIP-405), as brokers have announced them",
        _REMOTE_SEGMENTS,
        key=("topic_id", "partition", "segment_id"),
    ),
    "topics": _of_metadata("Topics of the cluster", _TOPICS),
    "partitions": _of_metadata("Partitions of the cluster", _PARTITIONS, _OF_DIRECTORIES),
    "brokers": _of_metadata("Brokers of the cluster", _BROKERS),
    "controllers": _of_metadata(
        "Controllers of the cluster, as they have registered", _CONTROLLERS
    ),
    "voters": _of_metadata("Voters of the metadata's quorum (KIP-853)", _VOTERS),
    "features": _of_metadata("Features of the cluster", _FEATURES),
    "configs": _of_metadata("Dynamic settings of topics, brokers and groups", _CONFIGS),
    "quotas": _of_metadata("Quotas of clients", _QUOTAS),
    "acls": _of_metadata("Access control lists", _ACLS),
    "scram_users": _of_metadata(
        "Users with SCRAM credentials; the credentials are not shown", _SCRAM_USERS
    ),
    "schemas": Table(
        "_schemas",
        "Schemas of a schema registry (Confluent, Karapace)",
        _SCHEMAS,
        key=("subject", "version"),
    ),
    "connect_configs": Table(
        "connect-configs",
        "Settings of connectors and tasks of Kafka Connect",
        _CONNECT_CONFIGS,
        pattern=_CONNECT.format("configs"),
        key=("record_topic", "key"),
    ),
    "connect_offsets": Table(
        "connect-offsets",
        "How far source connectors have read; sink connectors commit as groups",
        _CONNECT_OFFSETS,
        pattern=_CONNECT.format("offsets"),
        key=("record_topic", "connector", "source_partition"),
    ),
    "connect_status": Table(
        "connect-status",
        "States of connectors and tasks, and the topics that they use",
        _CONNECT_STATUS,
        pattern=_CONNECT.format("status"),
        key=("record_topic", "key"),
    ),
    "mm2_offset_syncs": Table(
        "mm2-offset-syncs.<target>.internal",
        "Pairs of offsets of the same record, which MirrorMaker 2 stores in the source cluster",
        _OFFSET_SYNCS,
        pattern=r"mm2-offset-syncs.+internal",
        key=("record_topic", "topic", "partition"),
    ),
    "mm2_checkpoints": Table(
        "<source>.checkpoints.internal",
        "Offsets of groups that MirrorMaker 2 has translated and stored in the target cluster",
        _CHECKPOINTS,
        pattern=r".+checkpoints.internal",
        key=("record_topic", "group", "topic", "partition"),
    ),
    "unknown_records": Table(
        "",
        "Records of Kafka's own topics that are newer than the Kafka that we know, as bytes: of "
        "unknown types and versions, and with unknown tagged fields",
        _UNKNOWN_RECORDS,
    ),
}
