"""Assertions about rows, and the differences that they show."""

import pyarrow as pa
import pytest

from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.testing.topic_rows import assert_rows


def test_rows_are_compared_by_the_columns_that_are_expected(kafka_log: KafkaLog) -> None:
    """Their order does not matter, unless it is asked for."""
    kafka_log.write("t", [{"key": "a", "value": {"n": 1}}, {"key": "b", "value": {"n": 2}}])
    found = kafka_log.read("t")
    assert_rows(found, [{"value": {"n": 2}}, {"value": {"n": 1}}])
    assert_rows(found, [{"key": "a", "offset": 0}, {"key": "b", "offset": 1}], ordered=True)
    with pytest.raises(AssertionError, match="in another order"):
        assert_rows(found, [{"key": "b"}, {"key": "a"}], ordered=True)


def test_a_difference_has_a_line_for_each_row_that_differs(kafka_log: KafkaLog) -> None:
    """Equal rows are not shown; a row that comes twice counts twice."""
    kafka_log.write("t", [{"key": "a"}, {"key": "b"}, {"key": "b"}])
    with pytest.raises(AssertionError) as refused:
        assert_rows(kafka_log.read("t"), [{"key": "a"}, {"key": "b"}, {"key": "c"}])

    assert ["3 rows, 3 expected", "- missing   + too many", "- key='c'", "+ key='b'"] == str(
        refused.value
    ).splitlines()


def test_long_differences_are_cut() -> None:
    """The number of lines that are left out is shown."""
    rows = [{"n": n} for n in range(100)]
    with pytest.raises(AssertionError, match="and 60 more lines"):
        assert_rows(rows, [])


def test_tables_and_dictionaries_are_rows() -> None:
    """Bytes of keys and values are compared as text."""
    table = pa.table({"key": [b"a"], "value": [b'{"n": 1}'], "count": [3]})
    assert_rows(table, [{"key": "a", "value": {"n": 1}, "count": 3}])
    assert_rows([{"key": "a"}], table.select(["key"]))
    with pytest.raises(AssertionError, match="1 rows, 0 expected"):
        assert_rows(table, [])


def test_rows_are_shown_in_a_console(kafka_log: KafkaLog) -> None:
    """A line shows the key and the value of each record."""
    kafka_log.write("t", [{"key": "a", "value": "x"}])

    assert "1 records\nkey='a'  value='x'" == repr(kafka_log.read("t"))
