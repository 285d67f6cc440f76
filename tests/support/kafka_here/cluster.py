"""A cluster: a controller and brokers as processes, killed and started one by one."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ports import free_port
from py4j.protocol import Py4JJavaError
from waiting import wait_for

from kafka_here.broker import Broker
from kafka_here.java import JavaClient

_CONTROLLER = 100
_SECONDS = 60

#: A follower logs the offset at which it cuts its copy.
_FOLLOWER = "-Dorg.slf4j.simpleLogger.log.kafka.server.ReplicaFetcherThread=info"
_CUT = re.compile(r"Truncating partition (\S+) with TruncationState\(offset=(\d+)")


class ClusterNode(Broker):
    """A node of a cluster: the controller, or one of the brokers.

    `directory`: where its log directory, settings and output go. `node_id`: its number.
    `controller_port`: port of the controller. `settings`: broker settings on top of what a node of
    a cluster needs.
    """

    cluster_id = "segmentlogTestCluster2"

    def __init__(
        self, directory: Path, node_id: int, controller_port: int, settings: Mapping[str, object]
    ) -> None:
        super().__init__(directory, settings=settings)
        self.node_id, self._controller_port = node_id, controller_port
        self._java_options.append(_FOLLOWER)

    def _needed_settings(self) -> dict[str, object]:
        settings = super()._needed_settings()
        roles, name = "broker", "PLAINTEXT"
        if self.node_id == _CONTROLLER:
            roles, name, self.port = "controller", "CONTROLLER", self._controller_port
            del settings["inter.broker.listener.name"]
        return settings | {
            "process.roles": roles,
            "node.id": self.node_id,
            "controller.quorum.voters": f"{_CONTROLLER}@localhost:{self._controller_port}",
            "listeners": f"{name}://localhost:{self.port}",
            "offsets.topic.replication.factor": 3,
        }

    def _prepare(self, settings: Path) -> None:
        if not (self.log_dir / "meta.properties").exists():
            self.format(settings)

    def cuts(self) -> list[tuple[str, int]]:
        """The partitions that this broker has cut as a follower, and the offsets."""
        found = _CUT.findall(self.output.read_text(errors="replace"))
        return [(name, int(offset)) for name, offset in found]


class Cluster:
    """A controller and brokers on loopback, numbered from 1.

    `directory`: where all of their directories go. `n_brokers`: how many brokers there are.
    `settings`: settings of each broker.
    """

    def __init__(
        self, directory: Path, n_brokers: int = 3, settings: Mapping[str, object] | None = None
    ) -> None:
        port = free_port()
        self.controller, *brokers = (
            ClusterNode(directory / f"node{each}", each, port, settings or {})
            for each in (_CONTROLLER, *range(1, n_brokers + 1))
        )
        self.brokers = {each.node_id: each for each in brokers}

    @property
    def log_dirs(self) -> list[Path]:
        """The log directory of each broker."""
        return [each.log_dir for each in self.brokers.values()]

    def start(self, *brokers: int) -> None:
        """Start these brokers one after the other, after the controller."""
        if not self.controller.is_running:
            self.controller.start()
        for each in brokers:
            self.brokers[each].start()

    def kill(self, *brokers: int) -> None:
        """Kill these brokers."""
        for each in brokers:
            self.brokers[each].kill()

    @contextlib.contextmanager
    def client(self, broker: int) -> "Iterator[ClusterClient]":
        """Clients that ask this broker first."""
        with ClusterClient(self.brokers[broker]) as client:
            yield client

    def end(self) -> None:
        """Kill every node that still runs."""
        for each in (*self.brokers.values(), self.controller):
            if each.is_running:
                each.kill()


class ClusterClient(JavaClient):
    """The Java clients, with requests about replicas."""

    def create_assigned(
        self, topic: str, assignment: Sequence[Sequence[int]], **settings: object
    ) -> None:
        """Create a topic whose partitions have replicas on these brokers.

        A topic of this name may be in the course of its deletion.
        """
        replicas = self._map({number: [*each] for number, each in enumerate(assignment)})
        new = self.jvm.org.apache.kafka.clients.admin.NewTopic(topic, replicas)
        new = new.configs({key.replace("_", "."): str(value) for key, value in settings.items()})

        def create() -> bool:
            try:
                self._wait(self._admin.createTopics([new]).all())
            except Py4JJavaError as error:
                if "TopicExists" not in str(error.java_exception):
                    raise
                return False
            return True

        self.wait_for(create)
        self._wait_for_partitions(topic, len(assignment))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        names = self.jvm.org.apache.kafka.common.TopicCollection.ofTopicNames([topic])
        self._wait(self._admin.deleteTopics(names).all())

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Move a partition to these brokers, and wait until they have it."""
        super().reassign(topic, partition, replicas)
        self.wait_for(lambda: self.replicas(topic, partition) == [*replicas])

    def _described(self, topic: str, partition: int) -> Any:
        names = self.jvm.org.apache.kafka.common.TopicCollection.ofTopicNames([topic])
        found = self._wait(self._admin.describeTopics(names).allTopicNames())
        return found[topic].partitions()[partition]

    def replicas(self, topic: str, partition: int) -> list[int]:
        """Ids of the brokers that have the partition by the assignment."""
        return [each.id() for each in self._described(topic, partition).replicas()]

    def wait_until_in_sync(self, topic: str, partition: int) -> None:
        """Wait until all replicas of a partition are in sync."""

        def are_in_sync() -> bool:
            found = self._described(topic, partition)
            return len(found.isr()) == len(found.replicas())

        self.wait_for(are_in_sync)

    def leader(self, topic: str, partition: int) -> int | None:
        """Id of the leader, or None."""
        node = self._described(topic, partition).leader()
        return None if node is None else node.id()

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        wait_for(holds, lambda: "the cluster did not come to a state", _SECONDS)
