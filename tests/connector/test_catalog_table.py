"""Options of queries on tables of Spark's catalog, without Spark."""

import pytest

from pyspark_segmentlog.catalog_table import options_of_query, schema_of_table

MAP = '{"a":{"0":5}}'
STARTS = {
    "startingTimestamp": "5",
    "startingOffsetsByTimestamp": MAP,
    "startingOffsets": MAP,
    "lastRecords": "5",
    "lastDuration": "1h",
}
ENDS = {"endingTimestamp": "5", "endingOffsetsByTimestamp": MAP, "endingOffsets": MAP}
TOPICS = {"subscribe": "a", "subscribePattern": "a", "assign": '{"a":[0]}'}


def merged(of_table: dict[str, str], of_query: dict[str, str]) -> dict[str, str]:
    """The options of a query on a table in the directory ``/d``, without the path."""
    made = {f"option.{name}": value for name, value in of_table.items()}
    schema = schema_of_table({"provider": "segmentlog", "path": "/d", **made})
    found = options_of_query(of_query, schema)
    assert "/d" == found.pop("path")
    return found


@pytest.mark.parametrize("group", [STARTS, ENDS, TOPICS], ids=["start", "end", "topics"])
def test_an_option_replaces_all_of_the_table_for_the_same_purpose(group: dict[str, str]) -> None:
    """Otherwise the table's option may have precedence, or be refused beside the query's."""
    other = {"minpartitions": "3"}
    for of_table, text in group.items():
        for of_query in group:
            found = merged({of_table: text, **other}, {of_query.swapcase(): group[of_query]})
            assert {of_query.lower(): group[of_query], **other} == found, (of_table, of_query)


def test_options_for_other_purposes_stay() -> None:
    """A query that names a start keeps the topics and the end of its table."""
    table = {"subscribe": "a", "endingtimestamp": "5", "startingtimestamp": "1"}
    kept = {"subscribe": "a", "endingtimestamp": "5", "lastrecords": "1"}

    assert kept == merged(table, {"lastRecords": "1"})
