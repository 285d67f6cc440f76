"""`segmentlog.read` and `segmentlog.latest`: records, and the last values of keys, as tables."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import segmentlog
from segmentlog.errors import InvalidUtf8Error, OptionError
from segmentlog.reads import latest_rows


def test_a_topic_is_read_between_two_times(example_data: str) -> None:
    """A date means midnight in UTC.

    The rows are those of a scan of each partition with these bounds.
    """
    table = segmentlog.read(example_data, "orders", since="2025-10-10", until="2025-10-11")
    expected = sum(
        log.scan(since="2025-10-10T00:00:00Z", until=1_760_140_800_000).read_all().num_rows
        for log in segmentlog.open_log_dir(example_data)
        if log.topic_partition.topic == "orders"
    )

    assert 0 < expected == table.num_rows
    assert pa.binary() == table.schema.field("value").type


def test_the_last_records_of_each_partition_are_read(example_data: str) -> None:
    """`last` counts offsets before the end of each partition, as Spark's `lastRecords` does."""
    table = segmentlog.read(example_data, "orders", last=2, columns=["partition", "offset"])

    assert [(0, 333), (0, 334), (1, 315), (1, 316), (2, 246), (2, 247)] == list(
        zip(*table.to_pydict().values(), strict=True)
    )
    assert 0 == segmentlog.read(example_data, "orders", since="2h").num_rows


def test_a_read_takes_columns_by_name(example_data: str) -> None:
    """An unknown name is an error of the option, and headers are read if they are named."""
    with pytest.raises(OptionError, match="nope"):
        segmentlog.read(example_data, "orders", columns=["nope"])
    found = segmentlog.read(example_data, "orders", last=1, columns=["headers", "offset"])
    assert ["headers", "offset"] == found.schema.names


def test_the_later_of_two_starts_counts(example_data: str) -> None:
    """The records of the last two offsets may be older than `since`, or not all that are newer."""
    last = segmentlog.read(example_data, "orders", last=2)
    newest = pc.max(last["timestamp"]).as_py().isoformat()
    since = segmentlog.read(example_data, "orders", since=newest)

    assert 0 < since.num_rows < last.num_rows
    assert since == segmentlog.read(example_data, "orders", since=newest, last=2)
    assert last == segmentlog.read(example_data, "orders", since="2025-10-09", last=2)


def test_keys_and_values_are_strings_everywhere(example_data: str) -> None:
    """With `strings`, filters on strings work and a scan returns strings.

    A pickled dataset keeps its types.
    """
    logs = segmentlog.dataset(example_data, topics="orders", strings=True)
    long_keys = logs.to_table(["key"], filter=pc.utf8_length(pc.field("key")) > 3)
    log = segmentlog.open_log_dir(example_data).log("orders", 0)

    assert pa.string() == logs.schema.field("key").type == long_keys.schema.field("key").type
    assert long_keys.num_rows == logs.count_rows()
    assert isinstance(
        log.scan(strings=True, columns=["value"]).read_all()["value"][0].as_py(), str
    )


def test_a_value_that_is_not_utf_8_is_an_error_or_replaced(tmp_path: Path) -> None:
    """The error names the record. On request the value is null instead, or contains U+FFFD."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(pa.table({"value": [b"a", b"\xff"]}))

    with pytest.raises(InvalidUtf8Error) as caught:
        segmentlog.read(tmp_path, "t", strings=True, columns=["value"])
    assert ("t", 0, 1) == (caught.value.topic, caught.value.partition, caught.value.offset)
    for policy, expected in (("null", None), ("replace", "\ufffd")):
        table = segmentlog.read(tmp_path, "t", strings=True, on_invalid_utf8=policy)
        assert ["a", expected] == table["value"].to_pylist()


@pytest.mark.parametrize("least_bytes", [1, 2000, 64 << 20])
def test_the_last_value_of_each_key_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_bytes: int
) -> None:
    """A null value deletes its key, and a later value restores it.

    Rows without a key are ignored.

    The result does not depend on how many rows are compared at once.
    """
    monkeypatch.setattr(latest_rows, "_LEAST_BYTES", least_bytes)
    rng = np.random.default_rng(7)
    expected: dict[str, dict[str, str]] = {"a": {}, "b": {}}
    with segmentlog.open_writer(tmp_path, num_partitions=2) as writer:
        for _ in range(30):
            keys = [f"k{each}" if each else None for each in rng.integers(0, 40, 50)]
            values = [None if each < 20 else f"v{each}" for each in rng.integers(0, 99, 50)]
            topics = ["ab"[each] for each in rng.integers(0, 2, 50)]
            writer.append(pa.table({"topic": topics, "key": keys, "value": values}))
            for topic, key, value in zip(topics, keys, values, strict=True):
                if key is not None:
                    expected[topic].pop(key, None)
                    if value is not None:
                        expected[topic][key] = value
    found = segmentlog.latest(tmp_path, columns=["topic", "key", "value"], strings=True)
    one = segmentlog.latest(tmp_path, "b", strings=True)

    rows = sorted(zip(*found.to_pydict().values(), strict=True))
    assert sorted((t, k, v) for t, held in expected.items() for k, v in held.items()) == rows
    assert expected["b"] == dict(
        zip(*one.select(["key", "value"]).to_pydict().values(), strict=True)
    )
    assert sorted(one["offset"].to_pylist()) != []


def test_text_does_not_change_which_records_are_the_last(tmp_path: Path) -> None:
    """Two keys that are not UTF-8 are two keys, and a value that is not UTF-8 is not null."""
    rows = [(b"a", b"1"), (b"b", b"\xff"), (b"\xff", b"x"), (b"\xfe", b"y"), (b"c", None)]
    keys, values = zip(*rows, strict=True)
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(pa.table({"key": pa.array([b"\x80", *keys]), "value": [b"z", *values]}))
        writer.append(pa.table({"key": [b"\x80"], "value": pa.nulls(1, pa.binary())}))

    def latest(invalid: str, columns: list[str]) -> list[dict]:
        rows = segmentlog.latest(
            tmp_path, "t", columns=columns, strings=True, on_invalid_utf8=invalid
        )
        return rows.to_pylist()

    for invalid in ("fail", "null", "replace"):
        assert [1, 2, 3, 4] == [each["offset"] for each in latest(invalid, ["offset"])]
    names = ["key", "value"]
    assert [("a", "1"), ("b", None), (None, "x"), (None, "y")] == [
        tuple(each.values()) for each in latest("null", names)
    ]
    assert [("a", "1"), ("b", "�"), ("�", "x"), ("�", "y")] == [
        tuple(each.values()) for each in latest("replace", names)
    ]
    with pytest.raises(InvalidUtf8Error, match="offset 3"):
        latest("fail", ["key"])
    dataset = segmentlog.dataset(tmp_path, strings=True, on_invalid_utf8="null")
    chosen = dataset.filter((pc.field("key") == "a") | pc.field("value").is_null())
    assert [1, 2] == chosen.latest(["offset"])["offset"].to_pylist()


def test_a_directory_iterates_over_its_logs(example_data: str) -> None:
    """Iteration leaves out brokers' internal topics, as `topics` does.

    A directory is always true, even if it is empty.
    """
    directory = segmentlog.open_log_dir(example_data)
    logs = list(directory)

    assert len(directory) == len(logs) == sum(map(len, directory.topics().values()))
    assert logs == [directory.log(*each.topic_partition) for each in logs]
    assert directory
