"""Make ``examples/brokers`` with a cluster of real brokers that is killed broker by broker.

Run from the top of the checkout: ``python tests/golden/make_example_brokers.py``.
"""

import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "support"))

from kafka_here.cluster import Cluster, ClusterClient  # noqa: E402
from kafka_here.golden import copy_log_dir  # noqa: E402
from kafka_here.java import Outgoing  # noqa: E402

FIRST_TIME_MS = 1_760_000_000_000
GROUP = "billing"

#: A killed broker leaves its indexes with megabytes of zeros; readers and brokers can do without.
LEFT_OUT = ["*-delete", "*.index", "*.timeindex", ".lock"]


def send(client: ClusterClient, first: int, n_records: int) -> None:
    """Send orders from a number on, one a minute."""
    orders = [
        Outgoing(
            b"c%d" % (i % 7),
            b'{"order":%d}' % i,
            partition=0,
            timestamp_ms=FIRST_TIME_MS + 60_000 * i,
        )
        for i in range(first, first + n_records)
    ]
    client.produce("orders", orders, compression_type="zstd")


def commit(client: ClusterClient, offset: int) -> None:
    """Commit the place of the group."""
    found = client.jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset)
    places = client.jvm.java.util.HashMap()
    places.put(client._partition("orders", 0), found)
    client._wait(client._admin.alterConsumerGroupOffsets(GROUP, places).all())


def kill_in_sequence(cluster: Cluster) -> None:
    """Broker 3 misses records, and broker 2 becomes the leader by an unclean election."""
    cluster.start(1, 2, 3)
    with cluster.client(1) as client:
        client.create_assigned(
            "orders", [(1, 2, 3)], retention_ms=-1, unclean_leader_election_enable="true"
        )
        send(client, 0, 60)
        client.wait_until_in_sync("orders", 0)
        commit(client, 45)
        cluster.kill(3)
        send(client, 60, 20)
        cluster.kill(2)
        client.wait_for(lambda: client.leader("orders", 0) == 1)
        send(client, 80, 12)
    cluster.kill(1)
    cluster.start(2)
    with cluster.client(2) as client:
        client.wait_for(lambda: client.leader("orders", 0) == 2)
        send(client, 500, 30)
    cluster.kill(2)
    cluster.controller.kill()


def main() -> None:
    """Run the brokers, kill them, and copy their directories."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = {"offsets.topic.num.partitions": 1}
        cluster = Cluster(Path(scratch), settings=settings)
        try:
            kill_in_sequence(cluster)
            for node, broker in cluster.brokers.items():
                target = TOP / "examples" / "brokers" / f"b{node}"
                copy_log_dir(broker.log_dir, target, LEFT_OUT)
        finally:
            cluster.end()
    for path in (TOP / "examples" / "brokers").rglob("*.checkpoint"):
        path.chmod(0o644)  # Kafka makes them readable by their owner alone


if __name__ == "__main__":
    main()
