"""Restored replicas on three brokers: every row is served, and every replica is in sync."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.cluster import Cluster, ClusterClient
from kafka_here.java import Outgoing

import segmentlog

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

#: Topics, and the brokers of each of their partitions at the target.
TOPICS: dict[str, list[Sequence[int]]] = {
    "orders": [(1, 2, 3), (2, 3, 1), (3, 1, 2)],
    "visits": [(3, 1), (2, 3)],
}


def fill(client: JavaClient) -> None:
    """Records of some size, compressed and not, and an aborted transaction."""
    for topic, replicas in TOPICS.items():
        client.create_topic(topic, len(replicas), segment_bytes=1 << 20)
        records = [
            Outgoing(b"k%d" % i, b"v%d " % i * 3000, [("h", b"%d" % i)], i % len(replicas))
            for i in range(600)
        ]
        client.produce(topic, records, compression_type="lz4")
        client.produce(topic, records[:40], transactions=["commit", "abort"])
        client.produce(topic, records[:200])
    client.create_topic("proposed", 2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the topics, of which no partition has been on a broker's disk longer."""
    cluster = Cluster(tmp_path_factory.mktemp("target"))
    try:
        cluster.start(1, 2, 3)
        with cluster.client(1) as client:
            for topic, assignment in TOPICS.items():
                client.create_assigned(topic, assignment, retention_ms=-1, segment_bytes=1 << 20)
        yield cluster
    finally:
        cluster.end()


def run(cluster: Cluster, tool: str, *arguments: str) -> str:
    """The output of a command of Kafka, which ends its JVM."""
    command = cluster.brokers[1]._command(f"org.apache.kafka.tools.{tool}", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def make_as_proposed(cluster: Cluster, client: ClusterClient, source: Path) -> None:
    """Make a topic with the command that is proposed, and move it with the file."""
    found = segmentlog.propose_placement(source, to=cluster.log_dirs[0], replication_factor=3)
    (command,) = segmentlog.creation_commands(found)
    servers = cluster.brokers[1].bootstrap_servers
    words = command.replace("BOOTSTRAP", servers).split()[1:]
    assert "Created topic proposed" in run(cluster, "TopicCommand", *words)
    client.wait_for(lambda: client.replicas("proposed", 1) == found["proposed"][1])
    assert found["proposed"][0] == client.replicas("proposed", 0)
    file = cluster.brokers[1].directory / "moved.json"
    file.write_text(segmentlog.reassignment_json({"proposed": [[3], [3]]}))
    arguments = ("--bootstrap-server", servers, "--reassignment-json-file", str(file), "--execute")
    run(cluster, "reassign.ReassignPartitionsCommand", *arguments)
    client.wait_for(lambda: [client.replicas("proposed", each) for each in (0, 1)] == [[3], [3]])


@pytest.mark.slow
def test_three_brokers_serve_what_was_restored_on_their_disks(
    new_version: str, cluster: Cluster, tmp_path: Path
) -> None:
    """The cluster was killed; the replicas are identical, in sync, and none is put aside."""
    lost = Broker(tmp_path / "lost", new_version)
    with JavaClient(lost.start()) as client:
        fill(client)
        expected = client.consume_each(TOPICS, isolation="read_committed")
    lost.kill()
    cluster.kill(1, 2, 3)
    cluster.controller.kill()
    # A broker that had not made its partition yet.
    shutil.rmtree(cluster.brokers[3].log_dir / "visits-0")

    done = segmentlog.restore(lost.log_dir, to=cluster.log_dirs, topics=TOPICS)
    assert sum(map(len, expected.values())) == sum(each.n_records for each in done.partitions)
    for each in done.partitions:
        assert TOPICS[each.topic][each.partition] == tuple(
            int(Path(path).parent.name.removeprefix("node")) for path in each.directories
        )
        found = {
            tuple(
                (file.name, file.read_bytes())
                for file in sorted(Path(path, f"{each.topic}-{each.partition}").glob("*.log"))
            )
            for path in each.directories
        }
        assert 1 == len(found)
        (files,) = found
        assert len(files) > 1, "several segments"

    n_cuts = {node: len(each.cuts()) for node, each in cluster.brokers.items()}
    cluster.start(2, 1, 3)
    with cluster.client(1) as client:
        for topic, assignment in TOPICS.items():
            for partition, brokers in enumerate(assignment):
                client.wait_until_in_sync(topic, partition)
                assert [*brokers] == client.replicas(topic, partition)
        assert expected == client.consume_each(TOPICS)
        assert not [each for path in cluster.log_dirs for each in path.glob("*-stray")]
        ends = {
            f"{each.topic}-{each.partition}": client.offsets(each.topic)[each.partition][1]
            for each in done.partitions
        }
        cuts = {
            cut for node, each in cluster.brokers.items() for cut in each.cuts()[n_cuts[node] :]
        }
        assert not [cut for cut in cuts if cut[0] in ends and cut[1] < ends[cut[0]]]
        for topic in TOPICS:
            client.produce(topic, [Outgoing(b"new", b"new", partition=0)])
        make_as_proposed(cluster, client, lost.log_dir)
    # Each broker alone has everything: it leads after the others were killed.
    cluster.kill(1, 2)
    with cluster.client(3) as client:
        client.wait_for(lambda: {client.leader("orders", each) for each in range(3)} == {3})
        served = client.consume("orders")
        assert expected["orders"] == [each for each in served if each.key != b"new"]
