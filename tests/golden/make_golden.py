"""Make the directories beside this file with real brokers, and the manifest of their files.

Run from the top of the checkout: ``python tests/golden/make_golden.py [version ...]``.
"""

import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

from golden_manifest import MANIFEST, write_manifest  # noqa: E402
from kafka_here import Broker, JavaClient, OldBroker  # noqa: E402
from kafka_here.golden import Expected, checksums, copy_log_dir, write_expected  # noqa: E402
from kafka_here.golden_shapes import BROKER_SETTINGS, golden_topics  # noqa: E402
from kafka_here.shapes import batches  # noqa: E402

VERSIONS = ("2.8.2", "3.9.2", "4.3.1")
_NODES = {
    "2": "one broker with ZooKeeper, stopped cleanly",
    "3": "one KRaft node, stopped cleanly",
    "4": "one KRaft node, stopped cleanly",
}


def make(version: str) -> dict[str, object]:
    """Make a directory with a broker, and keep it; return its part of the manifest."""
    topics = golden_topics(version)
    with tempfile.TemporaryDirectory() as scratch:
        kind = OldBroker if version.startswith("2") else Broker
        broker = kind(Path(scratch), version, settings=BROKER_SETTINGS)
        with broker, JavaClient(broker) as client:
            for topic, golden in topics.items():
                golden.make(broker, client, topic)
            expected = {topic: ask(client, topic) for topic in topics}
        check(broker, version, expected)
        target = HERE / f"kafka-{version}"
        copy_log_dir(broker.log_dir, target, ["__*-[0-9]*"])
    write_expected(HERE / f"kafka-{version}.expected.json", expected)
    return {
        "version": version,
        "made": _NODES[version[0]],
        "topics": {topic: golden.about for topic, golden in topics.items()},
        "files": {path: digest for path, (_, digest) in checksums(target).items()},
    }


def ask(client: JavaClient, topic: str) -> dict[int, Expected]:
    """The broker's answers for each partition of a topic, at both isolation levels."""
    records, committed = client.consume(topic), client.consume(topic, isolation="read_committed")
    ends = client.offsets(topic)
    stable = client.offsets(topic, isolation="read_committed")
    offsets = {(row.partition, row.offset) for row in committed}
    if [row for row in records if row[1:3] in offsets] != committed:
        message = f"{topic}: committed records are not among the uncommitted ones"
        raise RuntimeError(message)
    return {
        number: Expected(
            *ends[number],
            stable[number][1],
            [row for row in records if row.partition == number],
            [row.offset for row in committed if row.partition == number],
        )
        for number in sorted(ends)
    }


def check(broker: Broker, version: str, expected: Mapping[str, Mapping[int, Expected]]) -> None:
    """Check with a dump that each topic has the intended contents."""
    dump = broker.dump(sorted(broker.log_dir.glob("[!_]*/*.log")))
    seen = batches(dump)
    for topic, golden in golden_topics(version).items():
        rows = [row for each in expected[topic].values() for row in each.records]
        if not golden.check(seen.get(topic, []), rows):
            message = f"{topic} of {version} is not what it should be: {seen.get(topic)}"
            raise RuntimeError(message)


def main() -> None:
    """Make the given versions, or all; the manifest keeps its other versions."""
    parts = tomllib.loads(MANIFEST.read_text()) if MANIFEST.exists() else {}
    for version in sys.argv[1:] or VERSIONS:
        parts[f"kafka-{version}"] = make(version)
        write_manifest(parts)


if __name__ == "__main__":
    main()
