"""Whole partitions as Kafka's own dump tool prints them."""

from pathlib import Path

from kafka_here.broker import Broker


def assert_dump_is_sound(broker: Broker, *patterns: str, every: int = 1) -> None:
    """It reads every log and every index, and finds nothing wrong.

    `broker`: whose log directory it reads. `patterns`: of the names of partition directories.
    `every`: of how many ``.log`` files of a pattern one is read.
    """
    logs = [path for each in patterns for path in _files(broker, each, "*.log")[::every]]
    indexes = [path for each in patterns for path in _files(broker, each, "*index")]
    dump, dump_of_indexes = broker.dump(logs), broker.dump(indexes)

    assert len(logs) == dump.count("Dumping ")
    assert "isvalid: true" in dump
    assert "isvalid: false" not in dump
    assert len(indexes) == dump_of_indexes.count("Dumping ")
    assert "ismatch" not in dump_of_indexes


def objections(broker: Broker) -> list[str]:
    """Warnings and errors that the broker has printed about its log directory."""
    return [
        line
        for line in broker.output.read_text().splitlines()
        if (" WARN " in line or " ERROR " in line)
        and ("storage.internals" in line or "kafka.log" in line)
        and "`log.cleaner.enable` is deprecated" not in line
    ]


def _files(broker: Broker, pattern: str, name: str) -> list[Path]:
    return sorted(broker.log_dir.glob(f"{pattern}/{name}"))
