"""The public functions, and the documentation of the tables."""

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from coordinator_logs import Coordinator

import segmentlog
from segmentlog.kafka_tables.columns import Column
from segmentlog.kafka_tables.open_table import TABLES

DOCUMENT = Path(__file__).parents[3] / "storage" / "docs" / "tables.md"


def printed(kind: pa.DataType) -> str:
    """A type as the document has it."""
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_map(kind):
        return f"map of {printed(kind.key_type)} to {printed(kind.item_type)}"
    if pa.types.is_list(kind):
        return f"array of {printed(kind.value_type)}"
    if pa.types.is_struct(kind):
        return f"struct of {', '.join(f'`{each.name}`' for each in kind)}"
    return {"int32": "int", "int64": "bigint"}.get(str(kind), str(kind))


def rows(columns: tuple[Column, ...]) -> list[str]:
    """Rows of the document."""
    return [f"| `{each.name}` | {printed(each.type)} | {each.meaning} |" for each in columns]


def section(name: str) -> str:
    """The text that the document has for a table."""
    table = TABLES[name]
    source = f"`{table.topic}`" if table.topic else "several topics"
    head = ["| column | type | meaning |", "|---|---|---|"]
    lines = [
        f"### `{name}`",
        "",
        f"{table.meaning}. From {source}.",
        "",
        *head,
        *rows(table.columns),
    ]
    names = {each.name for each in table.columns}
    more = [each for each in table.history if each.name not in names]
    left = [f"`{n}`" for n in sorted(names - {each.name for each in table.history})]
    if more:
        lacks = f"lacks {' and '.join(left)}, and " if left else ""
        lines += [
            "",
            f"With `history`, the table {lacks}also has these columns:",
            "",
            *head,
            *rows(tuple(more)),
        ]
    return "\n".join(lines)


@pytest.mark.addition("table")
def test_the_document_has_the_columns_of_each_table() -> None:
    """The part between the marks is written from the code: run this module to write it again."""
    text = DOCUMENT.read_text()
    found = re.search(r"<!-- tables:begin -->\n(.*)\n<!-- tables:end -->", text, re.DOTALL)

    assert found
    assert "\n\n".join(map(section, TABLES)) == found[1].strip("\n")


@pytest.mark.addition("table")
def test_the_document_links_each_table() -> None:
    """The list before the tables has a link to each of them."""
    before, _, _ = DOCUMENT.read_text().partition("<!-- tables:begin -->")

    assert list(TABLES) == sorted(re.findall(r"\(#(\w+)\)", before), key=list(TABLES).index)


def test_the_questions_of_the_document_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB runs each statement on the example, and each of them finds rows."""
    monkeypatch.chdir(DOCUMENT.parents[2])
    text = DOCUMENT.read_text()
    (tables,) = re.findall(r"^```python\n(consumer_lag = .*?)^```", text, re.M | re.S)
    found: dict[str, pa.Table] = {}
    exec(tables, {"segmentlog": segmentlog}, found)
    statements = re.findall(r"^```sql\n(.*?)^```", text, re.M | re.S)
    with duckdb.connect() as connection:
        for name, each in found.items():
            connection.register(name, each)
        counts = [len(connection.execute(each).fetchall()) for each in statements]

    assert [5, 14] == [counts[0], counts[4]]
    assert all(counts)
    assert len(counts) == 5


def write() -> None:
    """Write the columns of the tables into the document."""
    before, _, rest = DOCUMENT.read_text().partition("<!-- tables:begin -->\n")
    _, _, after = rest.partition("<!-- tables:end -->")
    made = "\n\n".join(map(section, TABLES))
    DOCUMENT.write_text(f"{before}<!-- tables:begin -->\n\n{made}\n\n<!-- tables:end -->{after}")


if __name__ == "__main__":
    write()


@pytest.mark.parametrize(
    ("held", "name", "topic", "hint"),
    [
        ("prod.configs", "connect_configs", None, "; topics with similar names are prod.configs:"),
        ("connect-config", "connect_configs", None, "; topics with similar names are connect-con"),
        ("schemas", "schemas", None, "; topics with similar names are schemas: name one as the t"),
        ("my-configs", "connect_configs", "my-config", "; topics with similar names are my-con"),
        ("orders", "connect_configs", None, "; read the directory of the broker that led it"),
        ("_consumer_offsets", "groups", None, "; read the directory of the broker that led it"),
    ],
)
def test_topics_with_similar_names_are_listed(
    tmp_path: Path, held: str, name: str, topic: str | None, hint: str
) -> None:
    """The settings of a worker name the topic; the topics of brokers have fixed names."""
    Coordinator().write(tmp_path, 0, held)

    with pytest.raises(segmentlog.LogDirectoryError) as refused:
        segmentlog.table(tmp_path, name, topic=topic)
    assert f"holds no partition of {topic or TABLES[name].topic}{hint}" in str(refused.value)


def test_a_stray_topic_of_a_table_is_named(tmp_path: Path) -> None:
    """A broker that no longer knows its own topics renames their directories."""
    Coordinator().write(tmp_path, 0)
    stray = tmp_path / "__consumer_offsets-0.0123456789abcdef0123456789abcdef-stray"
    (tmp_path / "__consumer_offsets-0").rename(stray)

    with pytest.raises(segmentlog.LogDirectoryError) as refused:
        segmentlog.table(tmp_path, "group_offsets")
    assert f"its logs are still in {stray}; " in str(refused.value)


def test_a_table_with_a_similar_name_is_proposed(tmp_path: Path) -> None:
    """A wrong name of a table is an error that begins with the nearest one."""
    Coordinator().write(tmp_path, 0)

    with pytest.raises(segmentlog.OptionError, match="did you mean group_offsets\\? give one of "):
        segmentlog.table(tmp_path, "group-offset")
