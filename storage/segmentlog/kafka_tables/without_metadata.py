"""``topics``, ``partitions`` and ``brokers`` of a cluster whose metadata ZooKeeper kept.

Such a broker's log directories have the ids of topics in ``partition.metadata`` (Kafka 2.8 and
later), the epochs of leaders, checkpoints of offsets, and the number of the broker.  Replicas,
leaders, settings and access were in ZooKeeper.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from segmentlog.errors import CorruptCheckpointError
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT
from segmentlog.kafka_tables.columns import rows_to_table
from segmentlog.kafka_tables.definitions import TABLES
from segmentlog.log.checkpoint import read_leader_epochs
from segmentlog.model import OnCorruptBatch, TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.reads.metadata_log import metadata_path
from segmentlog.store.failures import Failures

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


def table_without_metadata(
    directory: LogDirectory, name: str, on_corrupt_batch: OnCorruptBatch, failures: Failures
) -> pa.Table:
    """A table, as far as the directories have it; what they do not have is null.

    `on_corrupt_batch`: with ``skip``, the values of a damaged file are null.  `failures`: gets the
    partitions of which a file is damaged.
    """
    rows = _rows(directory, name, on_corrupt_batch, failures)
    return rows_to_table([*rows], TABLES[name].columns)


def _rows(
    directory: LogDirectory, name: str, on_corrupt_batch: OnCorruptBatch, failures: Failures
) -> Iterator[dict[str, Any]]:
    if name == "brokers":
        found = {each.get("broker.id", "") for each in directory.meta_properties()}
        yield from ({"broker_id": int(each)} for each in sorted(found) if each.isdecimal())
        return
    seen = set()
    for topic, partition in directory.topic_partitions():
        with failures.of(TopicPartition(topic, partition)):
            log = directory.log(topic, partition)
            row: dict[str, Any] = {"topic": topic, "topic_id": _topic_id(log, on_corrupt_batch)}
            if name == "partitions":
                yield row | {
                    "partition": partition,
                    "leader_epoch": _leader_epoch(log, on_corrupt_batch),
                    "log_start_offset": log.log_start_offset,
                    "high_watermark": _high_watermark(log, on_corrupt_batch),
                }
            elif topic not in seen:
                seen.add(topic)
                yield row


def _topic_id(log: Log, on_corrupt_batch: OnCorruptBatch) -> str | None:
    if on_corrupt_batch is OnCorruptBatch.SKIP:
        return log.known_topic_id or None
    return log.topic_id


def _high_watermark(log: Log, on_corrupt_batch: OnCorruptBatch) -> int | None:
    """The high watermark of the checkpoint, or None without one."""
    try:
        return log.high_watermark_checkpoint
    except CorruptCheckpointError:
        if on_corrupt_batch is not OnCorruptBatch.SKIP:
            raise
        return None


def _leader_epoch(log: Log, on_corrupt_batch: OnCorruptBatch) -> int | None:
    """The last epoch of the partition, or None without one."""
    try:
        epochs = read_leader_epochs(f"{log.path}/{LEADER_EPOCH_CHECKPOINT}", takes_newer=True)
    except CorruptCheckpointError:
        if on_corrupt_batch is not OnCorruptBatch.SKIP:
            raise
        return None
    return epochs[-1][0] if epochs else None
