"""A cluster that was killed broker by broker: the log of its files, and what it serves again."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka_here import KafkaRecord
from kafka_here.cluster import Cluster, ClusterClient
from kafka_here.java import Outgoing
from kafka_here.records import rows_of

import segmentlog
from segmentlog.cluster.replicated import ReplicatedPartition

pytestmark = [pytest.mark.interop, pytest.mark.slow]

#: Topics of one partition, and the brokers that have it at the start.
TOPICS = {
    "clean": (1, 2, 3),
    "unclean": (1, 2, 3),
    "again": (1, 2, 3),
    "moved": (3, 1),
    "left": (1, 3),
}


class Killed(NamedTuple):
    """The directories of the killed cluster, and everything about it after its restart."""

    brokers: list[Path]
    controller: Path
    served: dict[str, list[KafkaRecord]]
    cuts: set[tuple[int, str, int]]
    id_of_again: str


def send(client: ClusterClient, topic: str, name: str, n_records: int) -> None:
    """Produce records whose values show who appended them."""
    values = [f"{name} {i}".encode() for i in range(n_records)]
    client.produce(topic, [Outgoing(b"k", each, partition=0) for each in values])


def wait_for_leader(client: ClusterClient, topic: str, broker: int) -> None:
    """Wait until a broker leads the partition of a topic."""
    client.wait_for(lambda: client.leader(topic, 0) == broker)


def kill_in_sequence(cluster: Cluster) -> None:
    """Fill the topics, and kill each broker while it leads."""
    cluster.start(1, 2, 3)
    with cluster.client(1) as client:
        for topic, replicas in TOPICS.items():
            is_unclean = str(topic in ("unclean", "left")).lower()
            client.create_assigned(topic, [replicas], unclean_leader_election_enable=is_unclean)
            send(client, topic, "all", 20)
            client.wait_until_in_sync(topic, 0)
        cluster.kill(3)
        wait_for_leader(client, "moved", 1)
        client.reassign("moved", 0, [1, 2])
        for topic in TOPICS:
            send(client, topic, "without 3", 10)
        cluster.kill(2)
        for topic in TOPICS:
            wait_for_leader(client, topic, 1)
            send(client, topic, "1 alone", 10)
    cluster.kill(1)
    cluster.start(2)
    with cluster.client(2) as client:
        wait_for_leader(client, "unclean", 2)
        send(client, "unclean", "2 alone", 5)
    cluster.kill(2)
    cluster.start(3)
    with cluster.client(3) as client:
        wait_for_leader(client, "unclean", 3)
        send(client, "unclean", "3 alone", 7)
        wait_for_leader(client, "left", 3)
        send(client, "left", "3 alone", 3)
        client.reassign("left", 0, [3])
        client.delete_topic("again")
        client.create_assigned("again", [(3, 1, 2)])
        send(client, "again", "again", 4)
    cluster.kill(3)
    cluster.controller.kill()


def restart(cluster: Cluster) -> dict[str, list[KafkaRecord]]:
    """Start the last leader and then the others, and read everything from the cluster."""
    cluster.start(3)
    with cluster.client(3) as client:
        wait_for_leader(client, "unclean", 3)
        cluster.start(1, 2)
        wait_for_leader(client, "clean", 1)
        for topic in TOPICS:
            client.wait_until_in_sync(topic, 0)
        return client.consume_each(TOPICS)


@pytest.fixture(scope="module")
def killed(new_version: str, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """The directories as the kills left them, and the rows of the restarted cluster."""
    place = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(place / "nodes")
    try:
        kill_in_sequence(cluster)
        copies = []
        for node in (*cluster.brokers.values(), cluster.controller):
            copies.append(place / "copies" / node.directory.name)
            shutil.copytree(node.log_dir, copies[-1])
        before = {node_id: len(each.cuts()) for node_id, each in cluster.brokers.items()}
        served = restart(cluster)
    finally:
        cluster.end()
    cuts = {
        (node_id, *cut)
        for node_id, each in cluster.brokers.items()
        for cut in each.cuts()[before[node_id] :]
    }
    topic_id = segmentlog.open_log_dir(cluster.brokers[3].log_dir).log("again", 0).known_topic_id
    return Killed(copies[:3], copies[3], served, cuts, topic_id)


def found(paths: list[Path]) -> dict[str, ReplicatedPartition]:
    """The partition of each topic, by the files alone."""
    return {each.topic: each for each in segmentlog.replicas(*paths) if each.topic in TOPICS}


@pytest.mark.parametrize("has_controller", [False, True])
def test_the_log_is_what_the_restarted_cluster_serves(
    killed: Killed, *, has_controller: bool
) -> None:
    """Each record is the same, with the metadata of a broker and with that of the controller."""
    paths = [*killed.brokers, *([killed.controller] if has_controller else ())]
    directory = segmentlog.open_replicas(*paths)
    for topic, expected in killed.served.items():
        table = directory.log(topic, 0).scan(read_up_to="logEnd", include_headers=True).read_all()
        assert expected == rows_of(table), topic
        assert expected


def test_each_copy_is_cut_where_the_brokers_cut_it(killed: Killed) -> None:
    """The offsets are those that the followers log when they cut their copies."""
    expected = {
        (copy.node_id, f"{topic}-0", copy.diverges_at)
        for topic, each in found(killed.brokers).items()
        for copy in each.replicas
        if copy.diverges_at is not None
    }
    assert {(1, "unclean-0", 20), (2, "unclean-0", 20)} == expected
    # The copies of the new topic are empty, and are cut at offset 0 before the first fetch.
    assert expected == {cut for cut in killed.cuts if cut[1] != "again-0"}


def test_promises_that_the_unclean_election_broke_are_shown(killed: Killed) -> None:
    """The records had been acknowledged, and consumers could read them."""
    copies = {each.node_id: each for each in found(killed.brokers)["unclean"].replicas}
    assert [3] == [node for node, each in copies.items() if each.is_log]
    assert (20, 15) == (copies[1].n_diverging, copies[2].n_diverging)


def test_copies_of_a_former_topic_and_of_a_former_broker_are_left_out(killed: Killed) -> None:
    """The topic was created again, and the partition left its broker, while a broker was down."""
    by_topic = found(killed.brokers)
    assert killed.id_of_again == by_topic["again"].topic_id
    assert [3] == [each.node_id for each in by_topic["again"].replicas]
    assert 2 == len(by_topic["again"].others)
    assert (str(killed.brokers[0] / "left-0"),) == by_topic["left"].others
    # A broker that has started since then has put its copy aside.
    assert [*killed.brokers[2].glob("moved-0.*-stray")]
    assert [1, 2] == [each.node_id for each in by_topic["moved"].replicas]


def test_a_mirror_has_the_log_that_the_cluster_serves(killed: Killed, tmp_path: Path) -> None:
    """A copy of broker 1 follows, and is cut where broker 1 cut its own copy."""
    segmentlog.mirror(killed.brokers[0], to=tmp_path / "to", topics="unclean")
    found = {
        each.topic: each
        for each in segmentlog.mirror(*killed.brokers, to=tmp_path / "to", topics=TOPICS)
    }
    assert 20 == found["unclean"].cut_at
    assert found["unclean"].kept
    directory = segmentlog.open_log_dir(tmp_path / "to")
    for topic, expected in killed.served.items():
        table = directory.log(topic, 0).scan(read_up_to="logEnd", include_headers=True).read_all()
        assert expected == rows_of(table), topic


def test_brokers_start_on_mirrors_of_their_replicas(killed: Killed, tmp_path: Path) -> None:
    """Each broker has its partitions of the one log, so that no follower has to cut its copy."""
    cluster = Cluster(tmp_path)
    shutil.copytree(killed.controller, cluster.controller.log_dir)
    for source, node in zip(killed.brokers, cluster.brokers.values(), strict=True):
        node.log_dir.mkdir(parents=True)
        for name in ("meta.properties", "bootstrap.checkpoint"):
            shutil.copy(source / name, node.log_dir)
        shutil.copytree(source / "__cluster_metadata-0", node.log_dir / "__cluster_metadata-0")
        segmentlog.mirror(*killed.brokers, to=node.log_dir, assigned=True)
    assert not (cluster.log_dirs[0] / "left-0").exists()
    try:
        cluster.start(1, 2, 3)
        with cluster.client(1) as client:
            for topic in TOPICS:
                client.wait_until_in_sync(topic, 0)
            assert killed.served == client.consume_each(TOPICS)
        lengths = {f"{topic}-0": len(rows) for topic, rows in killed.served.items()}
        cuts = [cut for each in cluster.brokers.values() for cut in each.cuts()]
        assert not [each for each in cuts if each[1] < lengths.get(each[0], 0)]
        assert not [each for path in cluster.log_dirs for each in path.glob("*-stray")]
    finally:
        cluster.end()
