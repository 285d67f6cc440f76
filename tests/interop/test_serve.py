"""`segmentlog serve` to clients of the JVM: Kafka's own tools, Connect, and Spark."""

import contextlib
import itertools
import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from kafka_here import Broker, JavaClient, kafka_jars
from kafka_here.artifacts import VERSION, connect_jars, java, logging_jars
from kafka_here.gateway import gateway
from kafka_protocol import RawClient
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from quick_java import FLAGS
from waiting import wait_for

import segmentlog
from segmentlog.serving.open_server import Server
from segmentlog.testing.kafka_log import KafkaLog

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

_TOOLS = "org.apache.kafka.tools"
_N_RECORDS = 300
_FIRST_MS = 1_700_000_000_000
_DOCUMENT = Path(__file__).parents[2] / "storage" / "docs" / "serve.md"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> KafkaLog:
    return written(tmp_path_factory.mktemp("kafka"))


def written(directory: Path) -> KafkaLog:
    """Three partitions, with headers, nulls and an aborted transaction."""
    made = KafkaLog(directory)
    rows = [
        {
            "key": None if i % 7 == 0 else f"k{i}",
            "value": None if i % 11 == 0 else f"v{i}",
            "timestamp": 1_700_000_000_000 + i,
            "headers": {"n": b"%d" % i} if i % 3 else {},
        }
        for i in range(_N_RECORDS)
    ]
    for first in range(0, _N_RECORDS, 50):
        made.write("t", rows[first : first + 50], num_partitions=3)
    with made.transaction() as transaction:
        transaction.write("t", ["never"], partition=0)
        transaction.abort()
    return made


@pytest.fixture(scope="module")
def server(log: KafkaLog) -> Iterator[Server]:
    with segmentlog.serve(log.path) as found:
        yield found


def run(version: str, server: Server, tool: str, *arguments: str) -> str:
    """The output of one of Kafka's tools."""
    main = f"{_TOOLS}.{tool}"
    command = [java(), *FLAGS, main, "--bootstrap-server", server.bootstrap_servers, *arguments]
    environment = os.environ | {"CLASSPATH": f"{kafka_jars(version)}/*"}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        input="x\n",
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("version", ["3.9.2", pytest.param("4.4.0", marks=pytest.mark.slow)])
def test_kafkas_tools_read_and_may_not_write(server: Server, log: KafkaLog, version: str) -> None:
    ends = segmentlog.open_log_dir(log.path)
    listed = run(version, server, "GetOffsetShell").splitlines()
    consumed = run(
        version,
        server,
        "consumer.ConsoleConsumer",
        "--topic",
        "t",
        "--from-beginning",
        "--max-messages",
        str(_N_RECORDS),
        "--timeout-ms",
        "30000",
        "--isolation-level",
        "read_committed",
    )
    created = run(version, server, "TopicCommand", "--create", "--topic", "new")

    for number in range(3):
        assert f"t:{number}:{ends.log('t', number).log_end_offset}" in listed
    values = {f"v{i}" for i in range(_N_RECORDS) if i % 11}
    assert values <= {*consumed.splitlines()}
    assert "never" not in consumed.splitlines()
    assert "segmentlog serve only reads" in created


def test_admin_clients_of_the_jvm_get_an_answer_to_each_call(server: Server) -> None:
    """As tools with a screen make them: a result, or a reason at once; nothing waits."""
    jvm = gateway(kafka_jars(VERSION)).jvm
    common, admins = jvm.org.apache.kafka.common, jvm.org.apache.kafka.clients.admin
    place, kinds = common.TopicPartition("t", 0), common.config.ConfigResource.Type
    node = str(server._running.node_id)
    topic, broker, logs = (
        common.config.ConfigResource(getattr(kinds, kind), name)
        for kind, name in (("TOPIC", "t"), ("BROKER", node), ("BROKER_LOGGER", node))
    )
    specs = [
        admins.OffsetSpec.latest(),
        admins.OffsetSpec.earliest(),
        admins.OffsetSpec.maxTimestamp(),
        admins.OffsetSpec.forTimestamp(0),
    ]
    quotas = common.quota
    entry = admins.ConfigEntry("retention.ms", "1")
    set_it = admins.AlterConfigOp(entry, admins.AlterConfigOp.OpType.SET)
    move = jvm.java.util.Optional.of(admins.NewPartitionReassignment([0]))
    begun = admins.Admin.create({"bootstrap.servers": server.bootstrap_servers})

    reads = {
        "nodes": lambda: begun.describeCluster().nodes(),
        "topics": lambda: begun.listTopics().names(),
        "described": lambda: begun.describeTopics(["t"]).allTopicNames(),
        "settings": lambda: begun.describeConfigs([topic, broker, logs]).all(),
        "directories": lambda: begun.describeLogDirs([int(node)]).allDescriptions(),
        "groups": lambda: begun.listGroups().all(),
        "offsets of a group": lambda: begun.listConsumerGroupOffsets("g").all(),
        "acls": lambda: begun.describeAcls(common.acl.AclBindingFilter.ANY).values(),
        "quotas": lambda: begun.describeClientQuotas(quotas.ClientQuotaFilter.all()).entities(),
        "users": lambda: begun.describeUserScramCredentials().all(),
        "moves": lambda: begun.listPartitionReassignments().reassignments(),
        "features": lambda: begun.describeFeatures().featureMetadata(),
        "producers": lambda: begun.describeProducers([place]).all(),
        "transactions": lambda: begun.listTransactions().all(),
    }
    refused = {
        "settings": lambda: begun.incrementalAlterConfigs({topic: [set_it]}).all(),
        "topics": lambda: begun.deleteTopics(["t"]).all(),
        "partitions": lambda: begun.createPartitions(
            {"t": admins.NewPartitions.increaseTo(9)}
        ).all(),
        "moves": lambda: begun.alterPartitionReassignments({place: move}).all(),
        "leaders": lambda: begun.electLeaders(common.ElectionType.PREFERRED, {place}).all(),
        "groups": lambda: begun.deleteConsumerGroups(["g"]).all(),
        "offsets": lambda: begun.deleteConsumerGroupOffsets("g", {place}).all(),
        "acls": lambda: begun.deleteAcls([common.acl.AclBindingFilter.ANY]).all(),
        "producers": lambda: begun.fenceProducers(["x"]).all(),
    }
    not_there = {
        "quorum": lambda: begun.describeMetadataQuorum().quorumInfo(),
        "tokens": lambda: begun.describeDelegationToken().delegationTokens(),
    }
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    try:
        found = {name: call().get(30, seconds) for name, call in reads.items()}
        at = [
            begun.listOffsets({place: each}).all().get(30, seconds)[place].offset()
            for each in specs
        ]
        for calls, reason in (
            (refused, "AuthorizationException"),
            (not_there, "UnsupportedVersionException"),
        ):
            for name, call in calls.items():
                with pytest.raises(Py4JJavaError) as raised:
                    call().get(30, seconds)
                assert reason in str(raised.value.java_exception.getCause()), name
    finally:
        begun.close()
    assert {"t"} == {*found["topics"]}
    assert 3 == len(found["described"]["t"].partitions())
    assert found["settings"][topic] is not None
    for name in ("acls", "users", "moves", "quotas"):
        assert 0 == len(found[name])
    log = segmentlog.open_log_dir(server._running.view.directory.paths[0]).log("t", 0)
    assert [log.log_end_offset, 0] == at[:2]
    assert 0 == at[3] < at[2] < log.log_end_offset


def test_offsets_are_those_that_a_broker_finds(tmp_path: Path) -> None:
    """By time and by the words for ends: transactions, several segments, times that fall."""
    rng = random.Random(72)
    topics = {"create": "CreateTime", "append": "LogAppendTime"}
    with Broker(tmp_path / "kafka") as broker:
        with JavaClient(broker) as client:
            for topic, kind in topics.items():
                client.create_topic(
                    topic,
                    1,
                    segment_bytes=1 << 20,
                    index_interval_bytes=300,
                    message_timestamp_type=kind,
                    segment_ms=300,
                )
        open_at_the_end = [
            _produced(broker, topic, n, rng, leaves_open=n == 11)
            for topic in topics
            for n in range(12)
        ]
        with (
            segmentlog.serve(broker.log_dir, read_up_to="logEnd") as server,
            RawClient(server.bootstrap_servers) as ours,
            RawClient(broker.bootstrap_servers) as theirs,
        ):
            times = [_FIRST_MS + rng.randint(-400, 5_600) for _ in range(60)]
            for asked in itertools.product(topics, [0], [-1, -2, -3, -4, -5, 0, *times], [0, 1]):
                found, expected = (each.list_offset(*asked) for each in (ours, theirs))
                assert found == expected, asked
            ends = [ours.list_offset("create", 0, -1, level).offset for level in (0, 1)]
            assert ends[0] > ends[1]
        del open_at_the_end


def _produced(
    broker: Broker, topic: str, n: int, rng: random.Random, *, leaves_open: bool
) -> confluent_kafka.Producer:
    """A producer that has written some records, half of them in a transaction that has ended."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "broker.address.family": "v4",
        "log_level": 0,
        "batch.num.messages": rng.choice([1, 3, 50]),
    }
    is_transaction = leaves_open or rng.random() < 0.5
    if is_transaction:
        settings["transactional.id"] = f"{topic}-{n}"
    producer = confluent_kafka.Producer(settings)
    if is_transaction:
        producer.init_transactions()
        producer.begin_transaction()
    first_ms = _FIRST_MS + rng.randint(0, 5_000)
    for _ in range(rng.randint(1, 60)):
        value, timestamp = rng.randbytes(rng.choice([0, 900])), first_ms + rng.randint(-300, 300)
        producer.produce(topic, value, timestamp=timestamp)
    producer.flush()
    if is_transaction and not leaves_open:
        rng.choice([producer.commit_transaction, producer.abort_transaction])()
    return producer


def test_sparks_source_is_a_twin(spark: SparkSession, server: Server, log: KafkaLog) -> None:
    """Batch and stream: the same rows as ``format("segmentlog")``, offsets and headers too."""
    ours = spark.read.format("segmentlog").option("subscribe", "t")
    expected = rows_of(ours.option("includeHeaders", "true").load(str(log.path)))
    options = {
        "kafka.bootstrap.servers": server.bootstrap_servers,
        "subscribe": "t",
        "includeHeaders": "true",
        "startingOffsets": "earliest",
    }
    batch = spark.read.format("kafka").options(**options).load()
    stream = spark.readStream.format("kafka").options(**options).load()
    query = (
        stream.writeStream.format("memory").queryName("served").trigger(availableNow=True).start()
    )
    query.awaitTermination(120)

    assert _N_RECORDS <= len(expected)
    assert expected == rows_of(batch)
    assert expected == rows_of(spark.table("served"))


def rows_of(frame: DataFrame) -> list[str]:
    columns = ["partition", "offset", "timestamp", "timestampType", "key", "value", "headers"]
    return sorted(map(str, frame.select(*columns).collect()))


@contextlib.contextmanager
def connect(directory: Path, main: str, **files: str) -> Iterator[Path]:
    """A process of Connect with its files of properties; its output is in the file it yields."""
    directory.mkdir()
    paths = []
    for name, text in files.items():
        paths.append(directory / f"{name}.properties")
        paths[-1].write_text(text)
    jars = f"{connect_jars(VERSION)}/*:{logging_jars()}/*"
    command = [java(), *FLAGS, "-Xmx512m", "-cp", jars, main, *map(str, paths)]
    output = directory / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=directory)
    try:
        yield output
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()


@pytest.mark.slow
def test_mirror_maker_feeds_a_cluster(tmp_path: Path) -> None:
    """The recipe of the document: records, offsets, times, headers and groups.

    A second run copies what is new, and nothing again.
    """
    log = written(tmp_path / "kafka")
    (recipe,) = re.findall(r"```properties\n(.*?)```", _DOCUMENT.read_text(), re.DOTALL)
    ends = {n: segmentlog.open_log_dir(log.path).log("t", n).log_end_offset for n in (1, 2)}
    with Broker(tmp_path / "broker") as broker, segmentlog.serve(log.path, follow=True) as server:
        recipe = recipe.replace("127.0.0.1:9092", server.bootstrap_servers)
        recipe = recipe.replace("kafka.example:9092", broker.bootstrap_servers)
        recipe += "replication.factor=1\nemit.checkpoints.interval.seconds=1\n"
        recipe += "sync.group.offsets.interval.seconds=1\n"
        for each in (
            "offset-syncs.topic",
            "checkpoints.topic",
            "config.storage",
            "offset.storage",
            "status.storage",
        ):
            recipe += f"{each}.replication.factor=1\n"
        with RawClient(server.bootstrap_servers) as client:
            places = [{"partition_index": n, "committed_offset": end} for n, end in ends.items()]
            topics = [{"name": "t", "partitions": places}]
            client.ask(8, 7, group_id="shipping", topics=topics)
        for run_number in ("first", "second"):
            expected = rows_in(log.path)
            main = "org.apache.kafka.connect.mirror.MirrorMaker"
            with connect(tmp_path / run_number, main, mm2=recipe) as output:
                wait_until_copied(broker.log_dir, expected, ends, output)
            log.write("t", ["late"], partition=1)

    assert _N_RECORDS + 1 == len(expected)


def wait_until_copied(
    directory: Path, expected: list[str], ends: dict[int, int], output: Path
) -> None:
    wait_for(
        lambda: expected == rows_in(directory) and ends == offsets_of(directory, "shipping"),
        lambda: output.read_text()[-4000:],
        seconds=300,  # MirrorMaker 2 notes each minute what its offsets have become
    )


def rows_in(directory: Path) -> list[str]:
    """All records of the topic; none if it is not there yet."""
    try:
        found = segmentlog.read(
            directory,
            "t",
            include_headers=True,
            read_up_to="logEnd",
            isolation_level="read_committed",
        )
    except segmentlog.SegmentLogError:
        return []
    columns = ["partition", "offset", "timestamp", "key", "value", "headers"]
    return sorted(map(str, found.select(columns).to_pylist()))


def offsets_of(directory: Path, group: str) -> dict[int, int]:
    """Offsets that a group has committed to partitions of the topic."""
    try:
        found = segmentlog.table(directory, "group_offsets").to_pylist()
    except segmentlog.SegmentLogError:
        return {}
    return {row["partition"]: row["offset"] for row in found if row["group"] == group}


@pytest.mark.slow
def test_connect_writes_a_file(server: Server, log: KafkaLog, tmp_path: Path) -> None:
    """A sink of Kafka's own, which reads in a group."""
    file = tmp_path / "sink.txt"
    converter = "org.apache.kafka.connect.storage.StringConverter"
    worker = f"""
        bootstrap.servers={server.bootstrap_servers}
        key.converter={converter}
        value.converter={converter}
        offset.storage.file.filename={tmp_path / "offsets"}
        listeners=HTTP://127.0.0.1:0
        offset.flush.interval.ms=500
        """
    sink = f"""
        name=sink
        connector.class=org.apache.kafka.connect.file.FileStreamSinkConnector
        topics=t
        file={file}
        consumer.override.isolation.level=read_committed
        """
    expected = sorted("null" if i % 11 == 0 else f"v{i}" for i in range(_N_RECORDS))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    with (
        connect(tmp_path / "connect", main, worker=worker, sink=sink) as output,
        RawClient(server.bootstrap_servers) as client,
    ):

        def has_all() -> bool:
            return file.exists() and sorted(file.read_text().splitlines()) == expected

        def committed() -> int:
            found = client.ask(9, 5, group_id="connect-sink", topics=None).topics
            return sum(each.committed_offset for topic in found for each in topic.partitions)

        wait_for(
            lambda: has_all() and committed() >= _N_RECORDS,
            lambda: output.read_text()[-4000:],
            seconds=120,
        )
