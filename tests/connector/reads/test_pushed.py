"""What engines push: rows stay those of the filters, and less is read."""

import random
import sys
from datetime import UTC, datetime, timedelta
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from pyspark_segmentlog import DefaultSource

pytest.importorskip("pyspark.sql.worker.data_source_pushdown_filters", reason="Spark 4.0 has none")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

OPERATORS = {
    EqualTo: lambda found, given: found == given,
    EqualNullSafe: lambda found, given: found == given,
    GreaterThan: lambda found, given: found > given,
    GreaterThanOrEqual: lambda found, given: found >= given,
    LessThan: lambda found, given: found < given,
    LessThanOrEqual: lambda found, given: found <= given,
    In: lambda found, given: found in given,
}


def new_reader(path: str, **options: str) -> object:
    """A reader as an engine gets it."""
    source = DefaultSource({"path": path, **options})
    return source.reader(source.schema())


def rows_of(reader: object) -> list[dict[str, Any]]:
    """All rows, read as tasks do: from a copy of the reader."""
    partitions = cloudpickle.loads(cloudpickle.dumps(reader.partitions()))
    copy = cloudpickle.loads(cloudpickle.dumps(reader))
    batches = [batch for each in partitions for batch in copy.read(each)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def kept(rows: list[dict[str, Any]], filters: list[Filter]) -> list[dict[str, Any]]:
    """The rows that an engine keeps."""
    return [
        row
        for row in rows
        if all(OPERATORS[type(f)](row[f.attribute[0]], f.value) for f in filters)
    ]


@pytest.mark.parametrize("options", [{}, {"latebinding": "true"}, {"maxpartitions": "2"}])
def test_no_row_of_a_filter_is_missing(example_data: str, options: dict[str, str]) -> None:
    """The reader returns all filters, and with them its rows are those of a whole read."""
    every = rows_of(new_reader(example_data))
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(60):
        filters = []
        for _ in range(dice.randint(1, 3)):
            column = dice.choice(["topic", "partition", "offset", "timestamp"])
            values = tuple(row[column] for row in dice.sample(every, 3))
            kind = dice.choice(list(OPERATORS) if column != "topic" else [EqualTo, In])
            value: Any = values if kind is In else values[0]
            if column == "timestamp" and kind is not In and dice.random() < 0.5:
                value += timedelta(microseconds=dice.randint(-1500, 1500))
            filters.append(kind((column,), value))
        reader = new_reader(example_data, **options)
        assert filters == list(reader.pushFilters(filters))
        assert kept(every, filters) == kept(rows_of(reader), filters), filters


@pytest.mark.parametrize(
    ("filters", "most"),
    [
        ([EqualTo(("topic",), "orders")], 900),
        ([In(("topic",), ("payments", "nothing"))], 120),
        ([EqualTo(("topic",), "orders"), EqualTo(("partition",), 1)], 317),
        ([GreaterThanOrEqual(("offset",), 100), LessThan(("offset",), 110)], 55),
        ([EqualTo(("topic",), "orders"), EqualTo(("topic",), "payments")], 0),
        ([GreaterThan(("timestamp",), datetime(2025, 10, 12, tzinfo=UTC))], 300),
        ([GreaterThan(("timestamp",), datetime(2100, 1, 1, tzinfo=UTC))], 0),
    ],
)
def test_less_is_read(example_data: str, filters: list[Filter], most: int) -> None:
    """Whole partitions, offsets and batches are left out."""
    reader = new_reader(example_data)
    reader.pushFilters(filters)

    assert most >= len(rows_of(reader))


@pytest.mark.parametrize(
    "filter_",
    [
        EqualTo(("offset",), "5"),
        EqualTo(("offset",), True),
        EqualTo(("partition",), None),
        EqualTo(("topic",), None),
        EqualTo(("key",), b"k"),
        EqualTo(("timestamp",), 19_723),  # cast(timestamp as date), as Sail passes it
        GreaterThan(("timestamp",), datetime(2100, 1, 1)),  # in no zone
        In(("partition",), ()),
        IsNotNull(("topic",)),
        Not(EqualTo(("topic",), "orders")),
        StringStartsWith(("topic",), "_rders"),  # like '_rders%', as Sail passes it
        SimpleNamespace(),
    ],
    ids=str,
)
def test_a_filter_of_another_kind_narrows_nothing(example_data: str, filter_: Filter) -> None:
    """Values of other types are of casts that the engine has left out."""
    reader = new_reader(example_data)
    reader.pushFilters([filter_])

    assert 1062 == len(rows_of(reader))


def test_microseconds_may_be_those_of_another_zone(example_data: str) -> None:
    """Sail passes them so. A day more on both sides is read."""
    at = datetime(2025, 10, 12, tzinfo=UTC)
    reader = new_reader(example_data)
    reader.pushFilters([GreaterThanOrEqual(("timestamp",), int(at.timestamp()) * 1_000_000)])
    found = rows_of(reader)
    every = rows_of(new_reader(example_data))
    wanted = [row for row in every if row["timestamp"] >= at - timedelta(hours=14)]

    assert all(row in found for row in wanted)
    assert len(found) < len(every)


def test_a_query_that_needs_no_values_decodes_none(example_data: str) -> None:
    """The bytes of what is read are those of the columns alone."""
    reader = new_reader(example_data)
    schema = pa.schema([("offset", pa.int64())])
    pruned = reader.pruneColumns(schema)
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]

    assert ["offset"] == pruned.names == batches[0].schema.names
    assert 8 * 1062 == sum(batch.nbytes for batch in batches)


@pytest.mark.parametrize("has_filter", [False, True])
def test_a_limit_ends_each_task_early(example_data: str, has_filter: bool) -> None:
    """Unless it is one of rows that filters keep, which only the engine can count."""
    reader = new_reader(example_data)
    if has_filter:
        reader.pushFilters([EqualTo(("topic",), "orders")])
    assert reader.pushLimit(7) is not has_filter
    sizes = [sum(batch.num_rows for batch in reader.read(each)) for each in reader.partitions()]

    assert (335 in sizes) if has_filter else ({7} == set(sizes))


@pytest.mark.parametrize(
    "name", ["pyspark.daemon", "pyspark.sql.worker.plan_data_source_read", "pyspark.worker"]
)
def test_spark_sees_none_of_it(
    example_data: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its planner refuses a reader that overrides `pushFilters`; the filters all come back."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    reader = new_reader(example_data)
    filters = [EqualTo(("topic",), "orders")]

    assert "pyspark.sql.datasource" == type(reader).pushFilters.__module__
    assert filters == list(reader.pushFilters(filters))
    assert 1062 == len(rows_of(reader))
    assert not hasattr(reader, "pruneColumns")
