"""A log directory that tests write to in a line: its records, its changes, its errors."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

import segmentlog
from segmentlog import OptionError
from segmentlog.testing.damage import cut_tail
from segmentlog.testing.kafka_log import KafkaCluster, KafkaLog


def test_a_record_has_the_given_fields(kafka_log: KafkaLog) -> None:
    """Objects and lists become JSON, and are parsed again."""
    headers = {"trace": "x", "empty": None}
    record = {"key": "a", "value": {"n": 1}, "timestamp": 5, "headers": headers, "partition": 1}
    kafka_log.write("orders", [record], num_partitions=3)
    (found,) = kafka_log.read("orders").rows(
        "key", "value", "topic", "partition", "offset", "timestamp", "headers"
    )

    assert {
        "key": "a",
        "value": {"n": 1},
        "topic": "orders",
        "partition": 1,
        "offset": 0,
        "timestamp": datetime(1970, 1, 1, microsecond=5000, tzinfo=UTC),
        "headers": [("trace", "x"), ("empty", None)],
    } == found


@pytest.mark.parametrize(
    ("given", "stored", "shown"),
    [
        ("text", b"text", "text"),
        (b"\xff\x00", b"\xff\x00", b"\xff\x00"),
        (None, None, None),
        ("", b"", ""),
        ([1, {"a": None}], b'[1, {"a": null}]', [1, {"a": None}]),
        ("{no json", b"{no json", "{no json"),
        ("17", b"17", "17"),
    ],
)
def test_a_value_is_bytes_text_json_or_null(
    kafka_log: KafkaLog, given: object, stored: bytes | None, shown: object
) -> None:
    """The table has the bytes, and `values` shows them."""
    kafka_log.write("t", [{"value": given}])
    found = kafka_log.read("t")

    assert [stored] == found.table.column("value").to_pylist()
    assert [shown] == found.values()


def test_a_record_may_be_a_value_alone(kafka_log: KafkaLog) -> None:
    """Its key is null, and it has no headers."""
    kafka_log.write("t", ["a", b"b", None])

    assert [None] * 3 == kafka_log.read("t").keys()
    assert ["a", "b", None] == kafka_log.read("t").values()
    assert [None] * 3 == [row["headers"] for row in kafka_log.read("t").rows("headers")]


def test_fields_of_the_call_hold_for_records_without_their_own(kafka_log: KafkaLog) -> None:
    """A record's own field has precedence."""
    when = "2026-01-31T10:00:00Z"
    kafka_log.write(
        "t",
        ["a", {"value": "b", "timestamp": 7, "partition": 0, "headers": []}],
        timestamp=when,
        partition=1,
        headers=[("h", "1"), ("h", b"2")],
        num_partitions=2,
    )
    b, a = kafka_log.read("t").rows("value", "timestamp", "partition", "headers")

    assert (a["value"], a["partition"], a["headers"]) == ("a", 1, [("h", "1"), ("h", "2")])
    assert datetime.fromisoformat(when) == a["timestamp"]
    assert (b["value"], b["partition"], b["headers"]) == ("b", 0, None)


def test_partitions_are_those_of_the_java_client(kafka_log: KafkaLog) -> None:
    """The keys are those of Kafka's own test of its hash, `UtilsTest.testMurmur2`."""
    keys = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"abc": 479470107,
        b"": 275646681,
    }
    kafka_log.write("t", [{"key": key} for key in keys], num_partitions=7)
    found = {row["key"]: row["partition"] for row in kafka_log.read("t").rows("key", "partition")}

    assert {key.decode(): (n & 0x7FFFFFFF) % 7 for key, n in keys.items()} == found


def test_records_of_another_log_are_no_other_logs(kafka_cluster: KafkaCluster) -> None:
    """Each server has a directory, which is found by its name."""
    kafka_cluster.server("eu:9092").write("t", ["a"])
    kafka_cluster.server("us:9092").write("t", ["b"])

    assert ["eu:9092", "us:9092"] == list(kafka_cluster)
    assert ["a"] == kafka_cluster["eu:9092"].read("t").values()
    assert ["b"] == kafka_cluster.server("us:9092").read("t").values()


def test_what_is_written_is_a_log_directory(kafka_log: KafkaLog) -> None:
    """The engine reads the records, and verification finds nothing."""
    for n in range(40):
        kafka_log.write("t", [{"key": f"k{i}", "value": "x" * 50} for i in range(n)])
    kafka_log.gap("t", 3)
    with kafka_log.transaction() as transaction:
        transaction.write("t", ["a"])
    log = segmentlog.open_log_dir(kafka_log.path).log("t", 0)

    assert log.scan().read_all().num_rows == len(kafka_log.read("t")) == 781
    assert log.log_end_offset == log.high_watermark == 785
    assert [] == list(segmentlog.verify(kafka_log.path))


def test_the_end_of_a_transaction_decides(kafka_log: KafkaLog) -> None:
    """Aborted records and open ones are left out of a read of committed records."""
    with kafka_log.transaction() as aborted:
        aborted.write("t", ["a"])
        aborted.abort()
    with kafka_log.transaction() as committed:
        committed.write("t", ["b"])
        committed.write("u", ["c"])
    still_open = kafka_log.transaction()
    still_open.write("t", ["d"])
    kafka_log.write("t", ["e"])

    assert ["a", "b", "d", "e"] == kafka_log.read("t").values()
    assert ["b"] == kafka_log.read("t", read_committed=True).values()
    still_open.commit()
    assert ["b", "d", "e"] == kafka_log.read("t", read_committed=True).values()


def test_an_error_aborts_a_transaction(kafka_log: KafkaLog) -> None:
    """The error is raised again, and later calls of the transaction are refused."""
    transaction = kafka_log.transaction()

    def fail() -> None:
        with transaction:
            transaction.write("t", ["a"])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [] == kafka_log.read("t", read_committed=True).values()
    with pytest.raises(segmentlog.OptionError, match="begin another one"):
        transaction.commit()


def test_a_gap_has_offsets_and_no_records(kafka_log: KafkaLog) -> None:
    """The end of the log is after the gap."""
    kafka_log.write("t", ["a"])
    kafka_log.gap("t", 4)

    assert segmentlog.open_log_dir(kafka_log.path).log("t", 0).end_offset() == 5
    kafka_log.write("t", ["b"])
    assert [0, 5] == [row["offset"] for row in kafka_log.read("t").rows("offset")]


def test_compaction_leaves_the_last_record_of_each_key(kafka_log: KafkaLog) -> None:
    """Records keep their offsets."""
    kafka_log.write("t", [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}])
    kafka_log.write("t", [{"key": "a", "value": "3"}])
    kafka_log.compact("t")

    assert [
        {"value": "2", "offset": 1},
        {"value": "3", "offset": 2},
    ] == kafka_log.read("t").rows("value", "offset")


def test_deleted_records_move_the_log_start(kafka_log: KafkaLog) -> None:
    """The records that stay keep their offsets."""
    kafka_log.write("t", ["a", "b", "c"])
    kafka_log.delete_records("t", 2)

    assert [{"value": "c", "offset": 2}] == kafka_log.read("t").rows("value", "offset")


def test_retention_removes_what_is_too_old(kafka_log: KafkaLog) -> None:
    """New records stay."""
    kafka_log.write("t", ["old"], timestamp=1)
    kafka_log.retain("t", retention_ms=1000)
    kafka_log.write("t", ["new"])
    kafka_log.retain("t", retention_ms=1_000_000)

    assert [{"value": "new", "offset": 1}] == kafka_log.read("t").rows("value", "offset")


def test_a_topic_gets_more_partitions(kafka_log: KafkaLog) -> None:
    """They are empty, and belong to the topic as it was made."""
    kafka_log.write("t", ["a"])
    kafka_log.add_partitions("t", 3)
    kafka_log.write("t", ["b"], partition=2)
    ids = {(kafka_log.path / f"t-{n}" / "partition.metadata").read_text() for n in range(3)}

    assert ["a", "b"] == kafka_log.read("t").values()
    assert 1 == len(ids)
    with pytest.raises(segmentlog.OptionError, match="t has 3"):
        kafka_log.add_partitions("t", 3)


def test_a_deleted_topic_begins_again(kafka_log: KafkaLog) -> None:
    """Its offsets begin at 0."""
    kafka_log.write("t", ["a"])
    kafka_log.delete_topic("t")
    with pytest.raises(segmentlog.UnknownTopicOrPartitionError, match="topics are none"):
        kafka_log.read("t")
    kafka_log.write("t", ["b"])

    assert [{"value": "b", "offset": 0}] == kafka_log.read("t").rows("value", "offset")


def test_a_corrupt_log_fails_a_read(kafka_log: KafkaLog) -> None:
    """The error names the file, and no row is returned."""
    kafka_log.write("t", ["a"])
    kafka_log.corrupt("t")
    with pytest.raises(segmentlog.ChecksumMismatchError, match=r"t-0/0{20}\.log"):
        kafka_log.read("t")
    kafka_log.write("u", ["a"])
    kafka_log.corrupt("u", damage=cut_tail(1))
    with pytest.raises(segmentlog.TruncatedBatchError):
        kafka_log.read("u")


def test_the_last_segment_with_records_is_damaged(kafka_log: KafkaLog) -> None:
    """Compaction begins a new active segment; a topic without records cannot be damaged."""
    for topic, key in (("t", "k"), ("without_keys", None)):  # compaction empties the second
        kafka_log.write(topic, [{"key": key, "value": each} for each in "ab"])
        kafka_log.compact(topic)
        kafka_log.corrupt(topic)
        with pytest.raises(segmentlog.ChecksumMismatchError):
            kafka_log.read(topic)
    kafka_log.create_topic("empty")
    with pytest.raises(segmentlog.OptionError, match="empty-0 has no records"):
        kafka_log.corrupt("empty")


def test_an_empty_topic_has_no_rows(kafka_log: KafkaLog) -> None:
    """The table has all columns."""
    kafka_log.create_topic("t", 2)
    kafka_log.write("t", [])

    assert 0 == len(kafka_log.read("t"))
    assert "headers" in kafka_log.read("t").table.schema.names


def test_a_table_goes_to_other_libraries(kafka_log: KafkaLog) -> None:
    """The rows have Arrow's capsule interface."""
    kafka_log.write("t", ["a"])

    assert pa.table(kafka_log.read("t")).equals(kafka_log.read("t").table)


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        ([{"n": 1}], {}, "give {'value': {…}}"),
        ([{"value": 1}], {}, None),
        ([{"value": {1, 2}}], {}, "what JSON can hold"),
        ([{"value": "\ud800"}], {}, "what JSON can hold"),
        ([("k", "v")], {}, "a tuple may be meant as key and value"),
        (["a"], {"headers": ("trace", "1")}, "a list of pairs"),
        (["a"], {"headers": ("ab", "cd")}, "a list of pairs"),
        (["a"], {"headers": "ab"}, "a list of pairs"),
        (["a"], {"headers": 5}, "a list of pairs"),
        (["a"], {"headers": [("a", "b", "c")]}, "a list of pairs"),
        (["a"], {"headers": [{"name": "h", "value": "1"}]}, "a list of pairs"),
        (["a"], {"headers": {None: "1"}}, "the name of a header is a string"),
        (["a"], {"partition": 3}, "t has 0 to 1"),
        (["a"], {"partition": True}, "partition"),
        (["a"], {"num_partitions": 5}, "t has 2"),
        (["a"], {"timestamp": "yesterday"}, "timestamp"),
        ([{"key": "a", "timestamp": 2**63 - 1}], {}, "a time that microseconds can hold"),
        ([{"key": "a", "timestamp": datetime(2026, 1, 1)}], {}, "no zone"),
    ],
)
def test_a_bad_record_is_refused(
    kafka_log: KafkaLog, records: list, options: dict, message: str | None
) -> None:
    """The error says what a record may have, and nothing is written."""
    kafka_log.write("t", ["first"], num_partitions=2)
    if message is None:  # a number is JSON, too
        kafka_log.write("t", records, **options)
        assert ["first", "1"] == kafka_log.read("t").values()
        return
    with pytest.raises(segmentlog.OptionError, match=message):
        kafka_log.write("t", ["good", *records], **options)
    assert ["first"] == kafka_log.read("t").values()


@pytest.mark.parametrize(
    "headers",
    [
        {"h": "1"},
        {b"h": b"1"},
        [("h", "1")],
        (["h", b"1"],),
        [Row(key="h", value=b"1")],
        [{"key": "h", "value": b"1"}],
        np.array([{"key": "h", "value": b"1"}], object),
        iter([("h", np.int64(1))]),
    ],
)
def test_headers_are_a_dictionary_or_pairs(kafka_log: KafkaLog, headers: Any) -> None:
    """Also what rows of Spark, pyarrow and pandas have, which have read them."""
    kafka_log.write("t", [{"value": "a", "headers": headers}])

    assert [{"headers": [("h", "1")]}] == kafka_log.read("t").rows("headers")


def test_headers_of_the_call_may_come_from_an_iterator(kafka_log: KafkaLog) -> None:
    """Each record gets them."""
    kafka_log.write("t", ["a", "b"], headers=iter([("h", "1")]))

    assert [{"headers": [("h", "1")]}] * 2 == kafka_log.read("t").rows("headers")


def test_numbers_of_numpy_and_pyarrow_are_those_of_python(kafka_log: KafkaLog) -> None:
    """Alone, as a key, and in JSON; a time is none."""
    kafka_log.write("t", pa.array(["a", None]))
    content = {"n": np.float32(0.5), "m": np.arange(2)}
    kafka_log.write("t", [{"key": np.int64(1), "value": content}])

    assert ["a", None, {"n": 0.5, "m": [0, 1]}] == kafka_log.read("t").values()
    assert "1" == kafka_log.read("t").keys()[2]
    with pytest.raises(OptionError, match="what JSON can hold"):
        kafka_log.write("t", [{"value": np.datetime64("2026-01-01", "ns")}])


@pytest.mark.parametrize("number", ["1", 1.5, True, [0, 1]])
def test_a_number_of_another_type_is_refused(kafka_log: KafkaLog, number: Any) -> None:
    """By each method that takes one."""
    kafka_log.write("t", ["a"])
    for call in (
        lambda: kafka_log.read("t", partition=number),
        lambda: kafka_log.gap("t", number),
        lambda: kafka_log.gap("t", 1, number),
        lambda: kafka_log.corrupt("t", number),
        lambda: kafka_log.add_partitions("t", number),
    ):
        with pytest.raises(OptionError, match="give a whole number"):
            call()
    with pytest.raises(OptionError, match="give a whole number from 1"):
        kafka_log.gap("t", 0)
    assert 1 == segmentlog.open_log_dir(kafka_log.path).log("t", 0).end_offset()


def test_a_bad_name_is_refused(kafka_log: KafkaLog) -> None:
    """Kafka's rules for names hold, and an unknown topic is named with those that are there."""
    with pytest.raises(segmentlog.OptionError, match="a/b"):
        kafka_log.write("a/b", ["x"])
    kafka_log.create_topic("there")
    with pytest.raises(segmentlog.UnknownTopicOrPartitionError, match="its topics are there"):
        kafka_log.gap("other", 1)
    with pytest.raises(segmentlog.UnknownTopicOrPartitionError, match="its topics are there"):
        kafka_log.read("there", partition=1)
    assert Path(kafka_log).is_dir()


class Named(NamedTuple):
    """A record that names its fields."""

    key: str
    value: str


@dataclass
class Classed:
    """A record that names its fields."""

    key: str
    value: str


RECORD = {"key": "a", "value": "b"}


@pytest.mark.parametrize(
    "records",
    [
        RECORD,
        "hello",
        b"hi",
        bytearray(b"hi"),
        memoryview(b"hi"),
        None,
        5,
        Named("a", "b"),
        Classed("a", "b"),
        Row(**RECORD),
        pd.DataFrame([RECORD]),
        pa.Table.from_pylist([RECORD]),
        pa.RecordBatch.from_pylist([RECORD]),
    ],
    ids=lambda records: type(records).__name__,
)
def test_one_record_or_a_table_is_no_list_of_records(kafka_log: KafkaLog, records: object) -> None:
    """None of its parts is written, and no topic is made; a transaction refuses it, too."""
    with pytest.raises(OptionError, match="give a list of records"):
        kafka_log.write("t", records)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="give a list of records"), kafka_log.transaction() as t:
        t.write("t", records)  # type: ignore[arg-type]

    assert {} == segmentlog.open_log_dir(kafka_log.path).topics()


def test_records_may_be_rows_and_come_from_any_iterable(kafka_log: KafkaLog) -> None:
    """A row of Spark, a named tuple and a data class have the fields of a dictionary."""
    rows: list[Any] = [Named("a", "b"), Classed("a", "b"), Row(**RECORD)]
    kafka_log.write("t", iter(rows))
    kafka_log.write("t", pd.DataFrame([RECORD]).to_dict("records"))
    kafka_log.write("values", pd.Series(["a", "b"]))

    assert [RECORD] * 4 == kafka_log.read("t").rows()
    assert ["a", "b"] == kafka_log.read("values").values()


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan, pd.NA, pd.NaT, Decimal("NaN")])
def test_what_pandas_has_for_a_missing_value_is_null(kafka_log: KafkaLog, missing: object) -> None:
    """In each field, alone, and in JSON, which has no other word for it."""
    names = ("key", "value", "headers", "timestamp", "partition")
    kafka_log.write("t", [dict.fromkeys(names, missing), missing])  # type: ignore[list-item]
    kafka_log.write("t", [{"value": {"n": missing, "m": [1, missing]}, "headers": {"h": missing}}])

    table = kafka_log.read("t").table
    assert [None, None, b'{"n": null, "m": [1, null]}'] == table["value"].to_pylist()
    assert [None] * 3 == table["key"].to_pylist()
    assert [{"key": "h", "value": None}] == table["headers"].to_pylist()[2]


def test_a_number_that_json_does_not_have_is_refused(kafka_log: KafkaLog) -> None:
    """An infinite number would become a word that no parser of JSON has to take."""
    with pytest.raises(OptionError, match="what JSON can hold"):
        kafka_log.write("t", [{"value": {"n": float("inf")}}])


def test_segments_of_a_topic_roll_as_its_settings_say(kafka_log: KafkaLog) -> None:
    """Those of a transaction, too."""
    kafka_log.create_topic("t")
    segmentlog.alter_settings(kafka_log.path, "t", {"segment.bytes": "300"})
    for _ in range(5):
        kafka_log.write("t", ["x" * 150])
    with kafka_log.transaction() as transaction:
        transaction.write("t", ["x" * 150])

    assert 6 <= len(list((kafka_log.path / "t-0").glob("*.log")))
    assert 6 == len(kafka_log.read("t", read_committed=True))
    assert [] == list(segmentlog.verify(kafka_log.path))


PROGRAM = """
import sys
from segmentlog.testing.kafka_log import KafkaLog
log = KafkaLog(sys.argv[1])
log.write("t", [{"key": f"k{i}", "value": {"n": i}} for i in range(100)], num_partitions=3)
with log.transaction() as transaction:
    transaction.write("t", ["a"])
log.gap("t", 2)
log.add_partitions("t", 4)
print(len(log.read("t").rows()), sorted({"pandas", "pyspark"} & set(sys.modules)))
"""


def test_a_small_test_loads_neither_spark_nor_pandas(tmp_path: Path) -> None:
    """Their import takes longer than the test."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "101 []" == done.stdout.strip()
