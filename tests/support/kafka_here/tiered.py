"""A broker with tiered storage in Kafka's own ``LocalTieredStorage``."""

from pathlib import Path

from waiting import wait_for

from kafka_here.broker import Broker


def tiered_settings(tier: Path) -> dict[str, object]:
    """Settings of a broker that copies closed segments at once."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": (
            "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
        ),
        "rsm.config.dir": tier,
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 2,
        "remote.log.manager.task.interval.ms": 200,
        "log.retention.check.interval.ms": 300,
        "log.initial.task.delay.ms": 500,
    }


def local_start(partition: Path) -> int:
    """Base offset of the first local segment."""
    return min(int(path.stem) for path in partition.glob("*.log"))


def wait_for_local_start(broker: Broker, topic: str, offset: int) -> None:
    """Wait until local retention has removed the segments below an offset of partition 0."""
    wait_for(
        lambda: local_start(broker.log_dir / f"{topic}-0") >= offset,
        lambda: f"{topic}-0 still begins below offset {offset}:\n{broker.tail()}",
    )
