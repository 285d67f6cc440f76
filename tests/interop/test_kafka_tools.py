"""The tables equal what Kafka's own tools print about a broker on the directory."""

import functools
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_here import Broker, JavaClient, kafka_jars
from kafka_here.artifacts import java, logging_jars, shell_jars, streams_jars
from kafka_here.gateway import Gateway, gateway
from kafka_here.internals import SETTINGS
from kafka_here.java import Outgoing
from quick_java import FLAGS

import segmentlog
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment

_GROUPS = "org.apache.kafka.tools.consumer.group"
_TOOLS = "org.apache.kafka.tools"
_CONFIGS = "kafka.admin.ConfigCommand"
_RESOURCES = {
    "topics": "topic",
    "brokers": "broker",
    "groups": "group",
    "client-metrics": "client-metrics",
}
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

    def streams_tasks(self, group: str) -> dict[str, set[tuple[str, str, str]]]:
        """The tasks that each member of a group has now: kind, subtopology and partitions."""
        asked = ("--describe", "--group", group, "--members", "--verbose")
        tasks: dict[str, set[tuple[str, str, str]]] = {}
        for line in self.run(f"{_TOOLS}.streams.StreamsGroupCommand", *asked).splitlines():
            if not line.startswith(f"{group} "):
                continue
            cells, kind = line.split(maxsplit=8), ""
            mine = tasks.setdefault(cells[3], set())
            for each in cells[8].rstrip("; ").split("; ") if len(cells) > 8 else ():
                named, _, task = each.rpartition(": ")
                kind = named or kind
                subtopology, _, partitions = task.partition(":")
                if not kind.startswith("TARGET-"):
                    mine.add((kind, subtopology, partitions))
        return tasks

    def streams_offsets(self, group: str) -> set[tuple[str, ...]]:
        """Topic, partition, offset, leader epoch, log end and lag of a group's partitions."""
        asked = ("--describe", "--group", group, "--offsets", "--verbose")
        printed = _cells(self.run(f"{_TOOLS}.streams.StreamsGroupCommand", *asked))
        return {tuple(row.values())[1:] for row in printed}

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
                named = [
                    (_ENTITIES[kind], None if default else name) for default, kind, name in parts
                ]
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
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
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


pytestmark = [pytest.mark.interop, pytest.mark.thorough]

SECRET = "listener.name.plaintext.ssl.keystore.password"
SECOND = "BBBBBBBBBBBBBBBBBBBBBg"
CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"


def rows(directory: Any, table: str) -> list[dict[str, Any]]:
    """Rows of a table."""
    return segmentlog.table(directory, table).to_pylist()


@pytest.fixture(scope="module")
def broker(new_version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker on a copy of the example, with a second log directory."""
    settings = SETTINGS | {
        "offsets.retention.minutes": 2**31 - 1,
        "group.streams.initial.rebalance.delay.ms": 0,
        "group.streams.min.heartbeat.interval.ms": 500,
        "group.streams.heartbeat.interval.ms": 500,
    }
    made = Broker(tmp_path_factory.mktemp("kafka"), new_version, 2, settings)
    shutil.copytree(CLUSTER, made.log_dirs[0])
    made.log_dirs[1].mkdir()
    identity = (CLUSTER / "meta.properties").read_text().splitlines()
    kept = [line for line in identity if not line.startswith("directory.id")]
    kept.append(f"directory.id={SECOND}")
    (made.log_dirs[1] / "meta.properties").write_text("\n".join(kept))
    with made:
        yield made


@pytest.fixture(scope="module")
def whole_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example without snapshots: all comes from the log."""
    directory = tmp_path_factory.mktemp("whole") / "kafka"
    shutil.copytree(CLUSTER, directory)
    for path in directory.glob("*/*.checkpoint"):
        path.unlink()
    return directory


@pytest.fixture(scope="module")
def tools(broker: Broker) -> Tools:
    """Kafka's tools; the coordinators have loaded all groups."""
    found = Tools(broker)
    expected = {row["group"] for row in rows(CLUSTER, "groups") if row["kind"] != "share"}
    _wait(lambda: expected == {row["GROUP"] for row in found.groups("--state")})
    _wait(lambda: bool(found.groups("--state", "ShareGroupCommand")))
    return found


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def _eventually(check: Callable[[], None]) -> None:
    """Repeat a check until it passes."""
    until = time.monotonic() + _SECONDS
    while True:
        try:
            check()
        except AssertionError:
            if time.monotonic() > until:
                raise
        else:
            return


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _share_lag(row: dict[str, Any], end: int) -> str:
    """Records that are not done, as the tool computes them."""
    if row["start_offset"] is None:
        return "-"
    return str(end - row["start_offset"] - (row["delivery_complete_count"] or 0))


def assert_groups_are_equal(tools: Tools, directory: Any) -> None:
    """Offsets, lag, states and members are those of the tools."""
    names = ["group", "topic", "partition", "offset", "log_end_offset", "lag"]
    columns = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    lag = rows(directory, "consumer_lag")
    assert {tuple(row[each] for each in columns) for row in tools.groups("--offsets")} == {
        tuple(_text(row[each]) for each in names) for row in lag
    }
    groups = rows(directory, "groups")
    assert {(row["GROUP"], row["STATE"], row["#MEMBERS"]) for row in tools.groups("--state")} == {
        (row["group"], row["state"], str(row["members"]))
        for row in groups
        if row["kind"] not in ("share", "streams")
    }
    columns = ["GROUP", "STATE", "GROUP-EPOCH", "ASSIGNMENT-EPOCH", "#MEMBERS"]
    names = ["group", "state", "epoch", "assignment_epoch", "members"]
    shared = tools.groups("--state", "ShareGroupCommand")
    assert [[row[each] for each in columns] for row in shared] == [
        [str(row[each]) for each in names] for row in groups if row["kind"] == "share"
    ]
    opened = segmentlog.open_log_dir(directory) if isinstance(directory, Path) else directory
    columns = ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    printed = tools.groups("--offsets", "ShareGroupCommand")
    assert {tuple(row[each] for each in columns) for row in printed} == {
        (
            row["group"],
            row["topic"],
            str(row["partition"]),
            _text(row["start_offset"]),
            _share_lag(row, opened.log(row["topic"], row["partition"]).log_end_offset),
        )
        for row in rows(directory, "share_state")
    }


def assert_members_are_equal(tools: Tools, directory: Any) -> None:
    """Members, their clients, epochs and partitions are those of the tools."""
    printed = [
        (row["GROUP"], row["CONSUMER-ID"], row.get("GROUP-INSTANCE-ID"), row["HOST"],
         row["CLIENT-ID"], row["CURRENT-EPOCH"], row["CURRENT-ASSIGNMENT"])
        for row in tools.groups("--members")
    ] + [
        (row["GROUP"], row["CONSUMER-ID"], None, row["HOST"], row["CLIENT-ID"],
         row["MEMBER-EPOCH"], row["ASSIGNMENT"])
        for row in tools.groups("--members", "ShareGroupCommand")
    ]  # fmt: skip
    ours = [
        (
            row["group"],
            row["member_id"],
            row["group_instance_id"],
            row["client_host"],
            row["client_id"],
            _text(row["member_epoch"]),
            ";".join(
                f"{each['topic']}:{','.join(map(str, each['partitions']))}"
                for each in row["assigned"]
            ),
        )
        for row in rows(directory, "group_members")
        if row["kind"] != "streams"
    ]
    assert sorted(printed, key=str) == sorted(ours, key=str)


def assert_transactions_are_equal(tools: Tools, directory: Any) -> None:
    """Transactional ids, their producers, states and partitions are those of the tool."""
    printed = [
        (
            row["TransactionalId"],
            row["ProducerId"],
            row["ProducerEpoch"],
            row["TransactionState"],
            row["TransactionTimeoutMs"],
            row["CurrentTransactionStartTimeMs"],
            {*filter(None, row["TopicPartitions"].split(","))},
        )
        for row in tools.transactions()
    ]
    ours = [
        (
            row["transactional_id"],
            str(row["producer_id"]),
            str(row["producer_epoch"]),
            row["transaction_status"],
            str(row["transaction_timeout_ms"]),
            f"{row['transaction_start_timestamp'].timestamp() * 1000:.0f}",
            {
                f"{each['topic']}-{partition}"
                for each in row["transaction_partitions"]
                for partition in each["partition_ids"]
            },
        )
        for row in rows(directory, "transactions")
    ]
    assert sorted(printed, key=str) == sorted(ours, key=str)


def assert_metadata_is_equal(tools: Tools, directory: Any) -> None:
    """Topics, features, access, settings, quotas and users are those of the tools."""
    assert tools.topics() == {
        (row["topic"], row["topic_id"], str(row["partition"]), ",".join(map(str, row["replicas"])))
        for row in rows(directory, "partitions")
    }
    levels = {row["name"]: str(row["feature_level"]) for row in rows(directory, "features")}
    assert tools.features() == levels | {"metadata.version": "4.3-IV0"}
    assert levels["metadata.version"] == "30"
    names = [
        "resource_type",
        "resource_name",
        "pattern_type",
        "principal",
        "host",
        "operation",
        "permission_type",
    ]
    assert tools.acls() == {tuple(row[each] for each in names) for row in rows(directory, "acls")}
    assert tools.configs() == {
        (
            row["resource_type"],
            row["resource_name"],
            row["name"],
            "null" if row["is_sensitive"] else row["value"],
        )
        for row in rows(directory, "configs")
    }
    assert tools.quotas() == {
        (
            tuple(
                sorted(
                    ((each["entity_type"], each["entity_name"]) for each in row["entity"]), key=str
                )
            ),
            row["key"],
            str(row["value"]),
        )
        for row in rows(directory, "quotas")
    }
    assert tools.scram_users() == {
        (row["name"], row["mechanism"], str(row["iterations"]))
        for row in rows(directory, "scram_users")
    }


def test_groups_equal_those_of_the_tools(tools: Tools) -> None:
    """There are classic groups, KIP-848, share groups, and offsets without a group."""
    assert_groups_are_equal(tools, CLUSTER)
    assert_members_are_equal(tools, CLUSTER)


def test_transactions_equal_those_of_the_tool(tools: Tools) -> None:
    """One of the transactions is open."""
    assert_transactions_are_equal(tools, CLUSTER)


def test_metadata_equals_that_of_the_tools(tools: Tools, whole_log: Path) -> None:
    """Topics were deleted and made again, and settings, quotas and ACLs were removed."""
    assert_metadata_is_equal(tools, CLUSTER)
    assert_metadata_is_equal(tools, whole_log)


def _fields(text: str) -> dict[str, str]:
    """Fields of a Java record as it prints itself; an array is a text, too."""
    return dict(re.findall(r"(\w+)=(\[[^]]*\]|[^,)]*)", text.partition("(")[2]))


def _leaf(node: dict[str, Any]) -> str:
    (text,) = node
    return str(text)


def assert_image_is_equal(jars: Path, directory: Path) -> None:
    """The metadata are those of Kafka's shell, which replays the log as a controller does."""
    log = directory / "__cluster_metadata-0" / f"{0:020d}.log"
    found = image(jars, log)
    topics = found["topics"]["byName"]
    printed = {
        (topic, _leaf(node["id"]), number): _fields(_leaf(each))
        for topic, node in topics.items()
        for number, each in node.items()
        if number.isdecimal()
    }
    names = {
        "replicas": "replicas",
        "directories": "directories",
        "isr": "isr",
        "removingReplicas": "removing_replicas",
        "addingReplicas": "adding_replicas",
        "elr": "eligible_leader_replicas",
        "lastKnownElr": "last_known_elr",
        "leader": "leader",
        "leaderEpoch": "leader_epoch",
        "partitionEpoch": "partition_epoch",
    }

    assert printed == {
        (row["topic"], row["topic_id"], str(row["partition"])): {
            name: str(row[column]).replace("'", "") for name, column in names.items()
        }
        | {"leaderRecoveryState": "RECOVERING" if row["leader_recovery_state"] else "RECOVERED"}
        for row in rows(directory, "partitions")
    }
    assert {(topic, _leaf(node["id"])) for topic, node in topics.items()} == {
        (row["topic"], row["topic_id"]) for row in rows(directory, "topics")
    }
    acls = {
        key: _fields(_leaf(each).replace("[", "(", 1).replace("]", ")"))
        for key, each in found["acls"]["byId"].items()
    }
    assert acls == {
        row["id"]: {
            "resourceType": row["resource_type"],
            "resourceName": row["resource_name"],
            "patternType": row["pattern_type"],
            "principal": row["principal"],
            "host": row["host"],
            "operation": row["operation"],
            "permissionType": row["permission_type"],
        }
        for row in rows(directory, "acls")
    }
    configs = {
        (*resource.partition(":")[::2], name, _leaf(value) if name != SECRET else "[hidden]")
        for resource, settings in found["configs"].items()
        for name, value in settings.items()
    }
    assert configs == {
        (row["resource_type"].upper(), row["resource_name"], row["name"], row["value"])
        for row in rows(directory, "configs")
    }
    users = {
        (name, mechanism, _fields(_leaf(each))["iterations"])
        for mechanism, users in found["scram"].items()
        for name, each in users.items()
    }
    assert users == {
        (row["name"], row["mechanism"], str(row["iterations"]))
        for row in rows(directory, "scram_users")
    }
    brokers = {key: _leaf(each) for key, each in found["cluster"]["brokers"].items()}
    for row in rows(directory, "brokers"):
        text = brokers.pop(str(row["broker_id"]))
        fields = _fields(text)
        (listener,) = row["end_points"]
        supported = ", ".join(
            f"{each['name']}: {each['min_supported_version']}-{each['max_supported_version']}"
            for each in sorted(row["features"], key=lambda each: each["name"])
        )
        assert f"supportedFeatures={{{supported}}}" in text
        assert f"host='{listener['host']}', port={listener['port']})" in text
        assert [
            fields[each]
            for each in ("epoch", "incarnationId", "fenced", "inControlledShutdown", "directories")
        ] == [
            str(row["broker_epoch"]),
            row["incarnation_id"],
            str(row["fenced"]).lower(),
            str(row["in_controlled_shutdown"]).lower(),
            f"[{', '.join(row['log_dirs'])}]",
        ]
    assert not brokers


def test_metadata_equals_the_image_of_the_shell(new_version: str, whole_log: Path) -> None:
    """The shell and the tables replay each record of the log."""
    assert_image_is_equal(kafka_jars(new_version), whole_log)


@pytest.mark.parametrize(("source", "state"), [("orders", "Stable"), ("missing", "NotReady")])
def test_a_streams_group_equals_that_of_the_tool(
    broker: Broker, tools: Tools, source: str, state: str
) -> None:
    """The coordinator assigns tasks at once, unless the topic is missing."""
    group = f"streams-{source}"
    tools.join_streams(group, "member-1", source)
    directory = segmentlog.open_log_dir(*broker.log_dirs)
    (ours,) = (row for row in rows(directory, "groups") if row["group"] == group)
    (printed,) = (row for row in tools.streams_groups("--state") if row["GROUP"] == group)

    assert state == ours["state"]
    assert [
        printed[each] for each in ("STATE", "GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS")
    ] == [str(ours[each]) for each in ("state", "epoch", "assignment_epoch", "members")]
    (ours,) = (row for row in rows(directory, "group_members") if row["group"] == group)
    (printed,) = (row for row in tools.streams_groups("--members") if row["GROUP"] == group)
    assert [printed[each] for each in ("MEMBER", "MEMBER-EPOCH", "CLIENT-ID")] == [
        str(ours[each]) for each in ("member_id", "member_epoch", "client_id")
    ]


class StreamsApp:
    """An instance of an application of Kafka Streams, in a JVM of its own.

    It has a subtopology that counts ``words``, with a store, and one that copies ``lines``.

    Parameters
    ----------
    broker : a running broker of 4.3.1.
    group : the id of the application.
    client : the name of the instance.
    """

    def __init__(self, broker: Broker, group: str, client: str) -> None:
        self._java = Gateway(streams_jars(broker.version))
        self._pid = int(self._java.jvm.java.lang.ProcessHandle.current().pid())
        streams = self._java.jvm.org.apache.kafka.streams
        builder = streams.StreamsBuilder()
        store = streams.state.Stores.inMemoryKeyValueStore("counts")
        counted = getattr(streams.kstream.Materialized, "as")(store)
        builder.stream("words").groupByKey().count(counted)
        builder.stream("lines").to("copied")
        settings = self._java.jvm.java.util.Properties()
        serde = "org.apache.kafka.common.serialization.Serdes$StringSerde"
        for name, value in {
            "application.id": group,
            "client.id": client,
            "bootstrap.servers": broker.bootstrap_servers,
            "group.protocol": "streams",
            "default.key.serde": serde,
            "default.value.serde": serde,
            "state.dir": str(broker.directory / client),
            "commit.interval.ms": "200",
        }.items():
            settings.put(name, value)
        self._app = streams.KafkaStreams(builder.build(), settings)
        self._app.start()

    def freeze(self) -> None:
        """Stop the process, so that it answers nobody and gives no task away."""
        os.kill(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the process continue."""
        os.kill(self._pid, signal.SIGCONT)

    def close(self) -> None:
        """Leave the group."""
        self._app.close()
        self._java.java.shutdown()


def test_a_real_application_of_streams_equals_that_of_the_tool(
    broker: Broker, tools: Tools
) -> None:
    """Two instances with standby tasks; a third one waits for tasks of a frozen one."""
    group, apps = "counted", list[StreamsApp]()

    def ours(table: str) -> list[dict[str, Any]]:
        directory = segmentlog.open_log_dir(*broker.log_dirs)  # as it is now
        return [row for row in rows(directory, table) if row["group"] == group]

    def check(state: str) -> None:
        (found,) = ours("groups")
        (printed,) = (row for row in tools.streams_groups("--state") if row["GROUP"] == group)
        assert state == found["state"] == printed["STATE"]
        columns = ("GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS")
        assert [printed[each] for each in columns] == [
            str(found[each]) for each in ("epoch", "assignment_epoch", "members")
        ]
        assert found["members"] == len(apps)
        members = ours("group_members")
        assert {
            row["MEMBER"]: (row["MEMBER-EPOCH"], row["CLIENT-ID"])
            for row in tools.streams_groups("--members")
            if row["GROUP"] == group
        } == {
            each["member_id"]: (str(each["member_epoch"]), each["client_id"]) for each in members
        }
        assert tools.streams_tasks(group) == {
            each["member_id"]: {
                (
                    kind.upper(),
                    task["subtopology_id"],
                    f"[{','.join(map(str, task['partitions']))}]",
                )
                for kind in ("active", "standby", "warmup")
                for task in each[f"{kind}_tasks"]
            }
            for each in members
        }
        lag = {(row["topic"], row["partition"]): row for row in ours("consumer_lag")}
        offsets = {
            (
                row["topic"],
                str(row["partition"]),
                str(row["offset"]),
                str(row["leader_epoch"]),
                str(lag[row["topic"], row["partition"]]["log_end_offset"]),
                str(lag[row["topic"], row["partition"]]["lag"]),
            )
            for row in ours("group_offsets")
        }
        # The tool lists partitions of active tasks alone.
        assert tools.streams_offsets(group) <= offsets
        assert len(offsets) == 6
        assert {each["lag"] for each in lag.values()} == {0}

    with JavaClient(broker) as client:
        for topic in ("words", "lines", "copied"):
            client.create_topic(topic, 3)
        for topic in ("words", "lines"):
            rows_of = [Outgoing(b"k%d" % (i % 7), b"v%d" % i, partition=i % 3) for i in range(90)]
            client.produce(topic, rows_of)
        client.alter("GROUP", group, {"streams.num.standby.replicas": 1})
        try:
            apps += [StreamsApp(broker, group, each) for each in ("one", "two")]
            _eventually(lambda: check("Stable"))
            standby = [each["standby_tasks"] for each in ours("group_members")]
            assert all(standby)
            apps[1].freeze()
            try:
                apps.append(StreamsApp(broker, group, "three"))
                _wait(
                    lambda: "UNRELEASED_TASKS" in {each["state"] for each in ours("group_members")}
                )
                _eventually(lambda: check("Reconciling"))
            finally:
                apps[1].go_on()
            _eventually(lambda: check("Stable"))
        finally:
            for each in apps:
                each.close()
        (found,) = ours("groups")
        assert (found["state"], found["members"]) == ("Empty", 0)
        # The other tests compare all offsets with a tool that leaves out those of streams.
        tools.run(f"{_TOOLS}.streams.StreamsGroupCommand", "--delete", "--group", group)
        _wait(lambda: not ours("group_offsets"))


def copied_metadata(broker: Broker, into: Path) -> Path:
    """A copy of the metadata of a running broker, which the shell can lock."""
    copied = into / "kafka"
    shutil.copytree(broker.log_dir / "__cluster_metadata-0", copied / "__cluster_metadata-0")
    shutil.copy(broker.log_dir / "meta.properties", copied)
    return copied


def test_the_tables_follow_a_running_broker(broker: Broker, tools: Tools, tmp_path: Path) -> None:
    """A change of settings, access, quotas, partitions or directories is in the next table."""
    directory = segmentlog.open_log_dir(*broker.log_dirs)
    with JavaClient(broker) as client:
        client.add_partitions("invoices", 3)
        client.alter("TOPIC", "orders", {"retention.ms": None, "max.message.bytes": 65536})
        client.alter("BROKER", "1", {SECRET: "not-a-secret"})
        client.alter("GROUP", "shared", {"share.session.timeout.ms": 45000})
        tools.run(
            "kafka.admin.ConfigCommand",
            "--alter",
            "--entity-type",
            "ips",
            "--entity-name",
            "10.0.0.1",
            "--add-config",
            "connection_creation_rate=7",
        )
        tools.run(
            "kafka.admin.ConfigCommand",
            "--alter",
            "--entity-type",
            "users",
            "--entity-name",
            "anna",
            "--delete-config",
            "producer_byte_rate",
        )
        tools.run(
            "org.apache.kafka.tools.AclCommand",
            "--add",
            "--deny-principal",
            "User:eve",
            "--operation",
            "Write",
            "--topic",
            "in",
            "--resource-pattern-type",
            "prefixed",
        )
        tools.run(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            "--delete-offsets",
            "--group",
            "audit",
            "--topic",
            "orders",
        )
        tools.run(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            "--reset-offsets",
            "--group",
            "left",
            "--topic",
            "orders",
            "--shift-by",
            "2",
            "--execute",
        )
        client.move("orders", 0, broker.log_dirs[1])
    # A broker's answers follow its controller's log after some time.
    for check in (
        assert_groups_are_equal,
        assert_members_are_equal,
        assert_transactions_are_equal,
        assert_metadata_is_equal,
    ):
        _eventually(functools.partial(check, tools, directory))
    _wait(lambda: SECOND in str(rows(broker.log_dirs[0], "partitions")))
    copied = copied_metadata(broker, tmp_path)
    assert_image_is_equal(broker.jars, copied)
    assert "not-a-secret" not in str(rows(copied, "configs"))


def test_a_reassignment_equals_that_of_the_tool(
    broker: Broker, tools: Tools, tmp_path: Path
) -> None:
    """The new replica never answers, so that the reassignment does not end."""
    tools.register_broker(7)
    with JavaClient(broker) as client:
        listed = tools.reassign(client, "orders", 1, [7])
    (row,) = (
        each
        for each in rows(broker.log_dir, "partitions")
        if (each["topic"], each["partition"]) == ("orders", 1)
    )
    brokers = {each["broker_id"]: each["fenced"] for each in rows(broker.log_dir, "brokers")}

    assert {1: False, 7: True} == brokers
    assert ([7], [1]) == (row["adding_replicas"], row["removing_replicas"])
    assert (
        f"orders-1: replicas: {','.join(map(str, row['replicas']))}. "
        f"adding: {','.join(map(str, row['adding_replicas']))}. "
        f"removing: {','.join(map(str, row['removing_replicas']))}."
    ) in listed
    assert_image_is_equal(broker.jars, copied_metadata(broker, tmp_path))
