"""The output of Kafka's own tools about a cluster, as rows that can be compared with tables.

The tools run in one JVM, and the metadata shell in its own JVM.
"""

import re
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafka_here import Broker, JavaClient
from kafka_here.artifacts import java, logging_jars, shell_jars
from kafka_here.gateway import gateway
from quick_java import FLAGS

from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment

__all__ = ["Tools", "image"]

_GROUPS = "org.apache.kafka.tools.consumer.group"
_TOOLS = "org.apache.kafka.tools"
_CONFIGS = "kafka.admin.ConfigCommand"
_RESOURCES = {"topics": "topic", "brokers": "broker", "groups": "group",
              "client-metrics": "client-metrics"}  # fmt: skip
_ENTITIES = {"user-principal": "user", "client-id": "client-id", "ip": "ip"}
_SECONDS = 60


class Tools:
    """Kafka's tools for a running broker.

    Parameters
    ----------
    broker : a running broker of 4.3.1.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._java = gateway(broker.jars)
        self._stay()

    def _stay(self) -> None:
        """Have a tool return where it would end the JVM."""
        lang = self._java.jvm.java.lang
        of_text = self._java.java.new_array(lang.Class, 1)
        of_text[0] = lang.Class.forName("java.lang.String")
        of_exit = lang.invoke.MethodType.methodType(lang.Void.TYPE, lang.Integer.TYPE, of_text)
        procedure = lang.invoke.MethodHandleProxies.asInterfaceInstance(
            lang.Class.forName("org.apache.kafka.common.utils.Exit$Procedure"),
            lang.invoke.MethodHandles.empty(of_exit),
        )
        self._java.jvm.org.apache.kafka.common.utils.Exit.setExitProcedure(procedure)

    def run(self, main: str, *arguments: str) -> str:
        """The output of a tool."""
        return self._java.run(
            main, "--bootstrap-server", self._broker.bootstrap_servers, *arguments
        )

    def groups(self, what: str, command: str = "ConsumerGroupCommand") -> list[dict[str, str]]:
        """Rows about all groups: ``--offsets``, ``--state`` or ``--members``."""
        verbose = [] if what == "--offsets" else ["--verbose"]
        asked = ("--describe", "--all-groups", what, *verbose)
        return [*_cells(self.run(f"{_GROUPS}.{command}", *asked))]

    def streams_groups(self, what: str) -> list[dict[str, str]]:
        """Rows about all groups of Kafka Streams: ``--state`` or ``--members``."""
        asked = ("--describe", "--all-groups", what, "--verbose")
        return [*_cells(self.run(f"{_TOOLS}.streams.StreamsGroupCommand", *asked))]

    def join_streams(self, group: str, member: str, source: str) -> None:
        """Join a group of Kafka Streams with a topology that reads one topic."""
        jvm = self._java.jvm
        message = jvm.org.apache.kafka.common.message

        def part(name: str) -> Any:
            return getattr(message, f"StreamsGroupHeartbeatRequestData${name}")()

        read = part("Subtopology").setSubtopologyId("0").setSourceTopics([source])
        topology = part("Topology").setEpoch(1).setSubtopologies([read])
        data = message.StreamsGroupHeartbeatRequestData().setGroupId(group).setMemberId(member)
        data = data.setMemberEpoch(0).setProcessId("process").setRebalanceTimeoutMs(60000)
        data = data.setTopology(topology).setActiveTasks([]).setStandbyTasks([])
        data = data.setWarmupTasks([])
        until = time.monotonic() + _SECONDS
        # The error comes after the time of a throttle.
        while (error := self._asked(self._broker.port, "StreamsGroupHeartbeat", 0, data, 4)) != 0:
            assert time.monotonic() < until, error  # the coordinator loads its groups
            time.sleep(0.1)

    def register_broker(self, broker_id: int) -> None:
        """Register another broker, which has never answered: the controller keeps it fenced."""
        jvm = self._java.jvm
        data = jvm.org.apache.kafka.common.message.BrokerRegistrationRequestData()

        def part(name: str) -> Any:
            parts = jvm.org.apache.kafka.common.message
            return getattr(parts, f"BrokerRegistrationRequestData${name}")()

        listeners, features = part("ListenerCollection"), part("FeatureCollection")
        listeners.add(part("Listener").setName("PLAINTEXT").setHost("localhost").setPort(9))
        output = self.run(f"{_TOOLS}.FeatureCommand", "describe")
        for name in re.findall(r"^Feature: (\S+)", output, re.M):
            feature = part("Feature").setName(name)
            features.add(feature.setMaxSupportedVersion(jvm.Short.parseShort("99")))
        new_id = jvm.org.apache.kafka.common.Uuid.randomUuid
        data = data.setBrokerId(broker_id).setIncarnationId(new_id()).setLogDirs([new_id()])
        data = data.setClusterId(_property(self._broker.log_dir / "meta.properties", "cluster.id"))
        settings = self._broker.directory / "server.properties"
        controller = int(_property(settings, "controller.quorum.voters").rpartition(":")[2])
        data = data.setListeners(listeners).setFeatures(features)
        assert self._asked(controller, "BrokerRegistration", 4, data, 4) == 0

    def reassign(self, client: JavaClient, topic: str, partition: int, replicas: list[int]) -> str:
        """Begin a reassignment; the reassignments of the cluster, as the tool lists them."""
        client.reassign(topic, partition, replicas)
        return self.run(f"{_TOOLS}.reassign.ReassignPartitionsCommand", "--list")

    def _asked(self, port: int, name: str, version: int, data: Any, error_at: int) -> int:
        """Send a request that no client of Kafka sends by itself; the error of the answer."""
        jvm = self._java.jvm
        number = jvm.Short.parseShort(str(version))
        common = jvm.org.apache.kafka.common
        kind = common.protocol.ApiKeys.valueOf(re.sub(r"\B([A-Z])", r"_\1", name).upper())
        request = getattr(common.requests, f"{name}Request").Builder(data).build(number)
        head = common.requests.RequestHeader(kind, number, "streams-client", 1)
        body = bytes(request.serializeWithHeader(head).array())
        with socket.create_connection(("localhost", port), timeout=_SECONDS) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as answers:
                answer = answers.read(struct.unpack(">i", answers.read(4))[0])
        after_head = 5  # a correlation id, and no tags
        (error,) = struct.unpack_from(">h", answer, after_head + error_at)
        return int(error)

    def transactions(self) -> list[dict[str, str]]:
        """Transactional ids, as they are listed and described."""
        rows = []
        for listed in _tabbed(self.run(f"{_TOOLS}.TransactionsCommand", "list")):
            asked = ("describe", "--transactional-id", listed["TransactionalId"])
            (described,) = _tabbed(self.run(f"{_TOOLS}.TransactionsCommand", *asked))
            assert listed.items() <= (described | {"Coordinator": listed["Coordinator"]}).items()
            rows.append(described)
        return rows

    def topics(self) -> set[tuple[str, ...]]:
        """Topic, id, partition and replicas of all partitions."""
        found: set[tuple[str, ...]] = set()
        ids: dict[str, str] = {}
        for line in self.run(f"{_TOOLS}.TopicCommand", "--describe").splitlines():
            cells = dict(re.findall(r"(\w+): (\S*)", line))
            if "TopicId" in cells:
                ids[cells["Topic"]] = cells["TopicId"]
            elif cells:
                topic = cells["Topic"]
                found.add((topic, ids[topic], cells["Partition"], cells["Replicas"]))
        return found

    def features(self) -> dict[str, str]:
        """Levels of the features that have one."""
        output = self.run(f"{_TOOLS}.FeatureCommand", "describe")
        pairs = re.findall(r"^Feature: (\S+).*FinalizedVersionLevel: (\S+)", output, re.M)
        return {name: level for name, level in pairs if level != "0"}

    def acls(self) -> set[tuple[str, ...]]:
        """Type, name and pattern of the resource, principal, host, operation and permission."""
        found: set[tuple[str, ...]] = set()
        resource: tuple[str, ...] = ()
        for line in self.run(f"{_TOOLS}.AclCommand", "--list").splitlines():
            cells = re.findall(r"\w+=([^,)]+)", line)
            if line.startswith("Current ACLs"):
                resource = tuple(cells)
            elif cells:
                found.add((*resource, *cells))
        return found

    def configs(self) -> set[tuple[str, str, str, str]]:
        """Type and name of the resource, setting, and value; ``null`` is a secret."""
        found: set[tuple[str, str, str, str]] = set()
        for plural, kind in _RESOURCES.items():
            output = self.run(_CONFIGS, "--describe", "--entity-type", plural)
            name = ""
            for line in output.splitlines():
                match = re.match(r"  (\S+?)=(.*) sensitive=", line)
                if match:
                    found.add((kind, name, match[1], match[2]))
                else:
                    named = re.match(rf"Dynamic configs for {kind} (\S+) are", line)
                    name = named[1] if named else ""
        return found

    def quotas(self) -> set[tuple[tuple[tuple[str, str | None], ...], str, str]]:
        """Entity, quota and value."""
        found = set()
        for kinds in (["users"], ["clients"], ["ips"], ["users", "clients"]):
            asked = [word for kind in kinds for word in ("--entity-type", kind)]
            output = self.run(_CONFIGS, "--describe", *asked)
            for entity, pairs in re.findall(r"^Quota configs for (.*) are (.*)$", output, re.M):
                parts = re.findall(
                    r"(?:(the default) )?(user-principal|client-id|ip)(?: '(.*?)')?", entity
                )
                named = [(_ENTITIES[kind], None if default else name)
                         for default, kind, name in parts]  # fmt: skip
                for pair in pairs.split(", "):
                    key, _, value = pair.partition("=")
                    found.add((tuple(sorted(named, key=str)), key, value))
        return found

    def scram_users(self) -> set[tuple[str, str, str]]:
        """User, mechanism and iterations."""
        output = self.run(_CONFIGS, "--describe", "--entity-type", "users")
        return {
            (user, *pair)
            for user, pairs in re.findall(
                r"^SCRAM .* user-principal '(.*)' are (.*)$", output, re.M
            )
            for pair in re.findall(r"(SCRAM-SHA-\d+)=iterations=(\d+)", pairs)
        }


def _property(path: Path, name: str) -> str:
    """A line of a file of properties."""
    (value,) = re.findall(rf"^{re.escape(name)}=(.*)$", path.read_text(), re.M)
    return str(value)


def _cells(output: str) -> Iterator[dict[str, str]]:
    """Rows of a tool that pads its cells; each group has a head."""
    names: list[str] = []
    for line in output.splitlines():
        cells = line.split()
        if cells[:1] == ["GROUP"]:
            names = line.replace("COORDINATOR (ID)", "COORDINATOR ID").split()
        elif cells and names:
            yield dict(zip(names, cells, strict=False))


def _tabbed(output: str) -> list[dict[str, str]]:
    """Rows of a tool that has tabs between its cells."""
    head, *lines = [line for line in output.splitlines() if "\t" in line]
    names = [each.strip() for each in head.split("\t")[:-1]]
    return [
        dict(zip(names, (each.strip() for each in line.split("\t")[:-1]), strict=True))
        for line in lines
    ]


def image(jars: Path, log: Path) -> dict[str, Any]:
    """The metadata that Kafka's shell reads from a segment, as nested dictionaries.

    The text of a leaf stands for the leaf.  The shell locks the directory, so that it gets a copy.
    It shows what it has replayed when the command runs, so that it is started again until it has
    replayed all.

    Parameters
    ----------
    jars : of the broker.
    log : a segment of ``__cluster_metadata-0`` that begins with offset 0.
    """
    classpath = f"{jars}/*:{shell_jars('4.3.1')}/*:{logging_jars()}/*"
    options = [*FLAGS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", classpath]
    command = [java(), *options, "org.apache.kafka.shell.MetadataShell", "--snapshot", str(log)]
    files = SegmentFiles(0, str(log), log.stat().st_size)
    *_, last = Segment(files, is_sealed=True).headers(0)
    last_offset = last.header.last_offset
    until = time.monotonic() + _SECONDS
    while True:
        done = subprocess.run(
            [*command, "tree", "/image"],
            capture_output=True, text=True, timeout=_SECONDS, check=True,
        )  # fmt: skip
        found = _tree(done.stdout)
        if any(each.startswith(f"offset {last_offset},") for each in found.get("provenance", {})):
            return found
        assert time.monotonic() < until, done.stdout


def _tree(output: str) -> dict[str, Any]:
    """Nested dictionaries of lines that are indented."""
    root: dict[str, Any] = {}
    open_names: list[dict[str, Any]] = [root]
    for line in output.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        node: dict[str, Any] = {}
        del open_names[depth + 1 :]
        open_names[depth][line.strip().removesuffix(":")] = node
        open_names.append(node)
    return root
