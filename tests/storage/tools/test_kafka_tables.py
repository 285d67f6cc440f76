"""Groups, transactions and the metadata of a cluster on the command line."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from coordinator_logs import Coordinator, commit_key, commit_value, framed
from typer.testing import Result

import segmentlog
from segmentlog.format.messages.records import framed_schemas
from segmentlog.kafka_tables.open_table import TABLES
from segmentlog.testing.reference import Record, encode_batch

Run = Callable[..., Result]


def objects(result: Result) -> list[dict[str, Any]]:
    """The objects of an output in JSON."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_groups_in_json_are_the_rows_of_the_tables(run: Run, example_cluster: str) -> None:
    """Groups that have committed no offset are there, too."""
    rows = objects(run("groups", example_cluster, "--json"))
    lag = segmentlog.table(example_cluster, "consumer_lag").to_pylist()

    assert len(lag) + 1 == len(rows)
    assert ["shared"] == [row["group"] for row in rows if "topic" not in row]
    assert sorted(row["lag"] for row in lag) == sorted(row["lag"] for row in rows if "lag" in row)
    assert rows[0]["commit_timestamp"].endswith("Z")


def test_groups_can_be_chosen(run: Run, example_cluster: str) -> None:
    """The rows are those of the named groups, in each form; an unknown name is an error."""
    every = objects(run("groups", example_cluster, "--json"))
    for given in (["billing"], ["fraud", "audit"]):
        options = [word for group in given for word in ("--group", group)]
        found = objects(run("groups", example_cluster, *options, "--json"))
        history = objects(run("groups", example_cluster, *options, "--history"))
        lines = run("groups", example_cluster, *options).stdout.splitlines()

        assert [row for row in every if row["group"] in given] == found != []
        assert {row["group"] for row in history} <= set(given)
        sums = [line for line in lines if ": " in line]
        assert len(found) + 1 == len(lines) - len(sums)
        assert sums == [
            line
            for line in (
                "fraud: 53 records in 3 partitions, at the most 65 ms behind",
                "audit: 15 records in 3 partitions, at the most 65 ms behind",
            )
            if line.partition(":")[0] in given
        ]
    said = run("groups", example_cluster, "--group", "biling", status=2).stderr
    assert "there is no such group; did you mean 'billing'?" in said
    assert "shared" in run("groups", example_cluster, "--group", "shared").stdout


@pytest.mark.parametrize(
    ("command", "tables"),
    [
        ("groups", ["group_offsets"]),
        ("transactions", ["transactions"]),
        ("cluster", [n for n, each in TABLES.items() if each.topic == "__cluster_metadata"]),
    ],
)
def test_a_history_has_every_change(
    run: Run, example_cluster: str, command: str, tables: list[str]
) -> None:
    """Each line is a change, and has the time of its record."""
    rows = objects(run(command, example_cluster, "--history"))
    expected = sum(segmentlog.table(example_cluster, t, history=True).num_rows for t in tables)

    assert expected == len(rows) > 15
    assert {"set", "removed"} >= {row["change"] for row in rows}
    assert all(row["record_timestamp"] for row in rows)


def test_transactions_and_the_cluster_in_json(run: Run, example_cluster: str) -> None:
    """Each object names its table."""
    found = objects(run("transactions", example_cluster, "--json"))
    assert ["transactions"] * 3 + ["open_transactions"] * 2 == [row["table"] for row in found]
    shown = objects(run("cluster", example_cluster, "--json"))
    tables = {
        "topics",
        "partitions",
        "brokers",
        "controllers",
        "voters",
        "configs",
        "quotas",
        "acls",
        "scram_users",
    }

    assert {*tables, "features", "log_directories"} == {row["table"] for row in shown}


def test_a_directory_without_the_topic_is_an_error(run: Run, example_data: str) -> None:
    """The message names the topic."""
    assert "no partition of __consumer_offsets" in run("groups", example_data, status=2).stderr
    without = run("cluster", example_data, status=2)
    assert "no cluster metadata here" in without.stderr
    assert without.stdout.startswith(f"{example_data}: cluster id ")


def test_a_broker_with_zookeeper_is_shown_without_metadata(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The command says so once, and shows the broker and its topics."""
    old = Path(__file__).parents[2] / "golden" / "kafka-2.8.2"
    shown = run("cluster", old).stdout

    assert caplog.text.count("no cluster metadata here") == 1
    assert shown.startswith(
        f"{old}: cluster id Cz1yUQMMSSmR2zwxXW-sDA, node id 1, directory id -\n"
    )
    assert "\n\nbroker_id\n        1\n\ntopic " in shown
    assert "magic-1.snappy" in shown
    rows = objects(run("cluster", old, "--json"))
    tables = {"topics", "partitions", "brokers", "log_directories"}
    assert tables == {row["table"] for row in rows}
    history = run("cluster", old, "--history", status=2)
    assert "kept it in ZooKeeper" in history.stderr


def test_any_table_is_printed(run: Run, example_cluster: str, tmp_path: Path) -> None:
    """Columns without a value are left out. JSON has all columns, and bytes in Base64."""
    head, *lines = run("table", "consumer_lag", example_cluster).stdout.splitlines()
    expected = segmentlog.table(example_cluster, "consumer_lag")
    has_value = [n for n in expected.column_names if expected[n].null_count < len(expected)]

    assert has_value == head.split()
    assert expected.num_rows == len(lines)
    for name in TABLES:
        for history in ([], ["--history"] if TABLES[name].history else []):
            if TABLES[name].pattern or name in ("schemas", "remote_segments"):
                continue
            rows = objects(run("table", name, example_cluster, "--json", *history))
            found = segmentlog.table(example_cluster, name, history=bool(history))
            assert found.num_rows == len(rows)
    Coordinator().add((b"\0\x63", b"\xff")).write(tmp_path)
    (row,) = objects(run("table", "unknown_records", str(tmp_path), "--json"))
    assert ("AGM=", "/w==") == (row["key"], row["value"])
    config = (b"connector-a", b'{"properties":{"x":"y"}}')
    Coordinator().add(config).write(tmp_path, 0, "my-configs")
    given = ("table", "connect_configs", str(tmp_path), "--topic", "my-configs")
    (row,) = objects(run(*given, "--json"))
    assert {"x": "y"} == row["properties"]
    assert '{"x": "y"}' in run(*given).stdout
    assert "give one of group_offsets" in run("table", "x", str(tmp_path), status=2).stderr
    fixed = run("table", "groups", str(tmp_path), "--topic", "x", status=2)
    assert "Kafka fixes the topic" in fixed.stderr


def test_the_schemas_of_a_registry(run: Run, tmp_path: Path) -> None:
    """The table has the beginning of a schema in one line, and JSON has all of it."""
    long = '{"type":\n  "record", "name": "' + 99 * "n" + '"}'
    log = Coordinator()
    for subject, text in (("b", long), ("a", '"int"')):
        key = {"keytype": "SCHEMA", "subject": subject, "version": 1, "magic": 1}
        value = {"subject": subject, "version": 1, "id": 7, "schema": text}
        log.add((json.dumps(key).encode(), json.dumps(value).encode()))
    directory = str(log.write(tmp_path, 0, "kept-schemas"))
    given = ("schemas", directory, "--topic", "kept-schemas")
    head, first, second = run(*given).stdout.splitlines()

    assert ["subject", "version", "id", "schema_type", "deleted", "schema"] == head.split()
    assert ["a", "1", "7", "AVRO", "no", '"int"'] == first.split()
    assert '{"type": "record", "name": "nnn' in second
    assert second.endswith("n…")
    assert ['"int"', long] == [row["schema"] for row in objects(run(*given, "--json"))]
    assert ["b", "a"] == [row["subject"] for row in objects(run(*given, "--history"))]
    assert "no partition of _schemas" in run("schemas", directory, status=2).stderr


def test_times_that_no_calendar_has_are_numbers(run: Run, tmp_path: Path) -> None:
    """A producer may send microseconds as milliseconds; -1 stands for no time."""
    late, none = 1_700_000_000_000_000, -1
    value = commit_value(4, version=1)[:-8] + struct.pack(">q", late)  # until it expires
    batches = [
        encode_batch([Record(i, time, commit_key(f"g{i}"), value)])
        for i, time in enumerate((late, none))
    ]
    partition = tmp_path / "__consumer_offsets-0"
    partition.mkdir()
    (partition / f"{0:020d}.log").write_bytes(b"".join(batches))
    rows = objects(run("table", "group_offsets", tmp_path, "--json"))
    history = objects(run("groups", tmp_path, "--history"))

    for found in (rows, history):
        assert [str(late), None] == [row["record_timestamp"] for row in found]
        assert {str(late)} == {row["expire_timestamp"] for row in found}
    assert str(late) in run("table", "group_offsets", tmp_path).stdout


def test_values_that_json_does_not_have(run: Run, tmp_path: Path) -> None:
    """A quota may be no number, and a connector may have no properties."""
    topic = "__cluster_metadata"
    kind = next(i for i, each in framed_schemas(topic).items() if each.name == "ClientQuotaRecord")
    quotas = [
        framed(topic, kind, {"entity": [], "key": "request_percentage", "value": value})
        for value in (float("nan"), float("inf"))
    ]
    Coordinator().add(*quotas).write(tmp_path, topic=topic)
    connector = (b"connector-c", json.dumps({"properties": {}}).encode())
    Coordinator().add(connector).write(tmp_path, topic="connect-configs")

    found = objects(run("table", "quotas", tmp_path, "--history"))
    assert ["nan", "inf"] == [row["value"] for row in found]
    (row,) = objects(run("table", "connect_configs", tmp_path, "--json"))
    assert {} == row["properties"]


def test_the_ids_of_a_cluster_come_first(run: Run, example_cluster: str, tmp_path: Path) -> None:
    """Each log directory has a line, and an object; ids that are not known are shown as such."""
    line = (
        f"{example_cluster}: cluster id segmentlogTestCluster1, node id 1, directory id "
        "ysKhoyZrnzo2CsFOUpkcuA"
    )
    first = objects(run("cluster", example_cluster, "--json"))[0]
    copy = shutil.copytree(example_cluster, tmp_path / "copy")
    (copy / "meta.properties").unlink()

    assert line == run("cluster", example_cluster).stdout.splitlines()[0]
    assert ("log_directories", "1") == (first["table"], first["node_id"])
    assert (
        f"{copy}: cluster id -, node id -, directory id -"
        == (run("cluster", copy).stdout.splitlines()[0])
    )
