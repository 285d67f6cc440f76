"""A line of text is a schema, and other text is refused."""

import pytest

from segmentlog.format.messages import lines
from segmentlog.format.messages.reader import JSON_NULL, Field, Versions, parse_schemas, snake_case


def test_a_line_has_all_parts_of_a_schema() -> None:
    """Name, key, versions, flexible versions, and fields with all of their attributes."""
    line = (
        "A [7] v0-3 flex 2+: one str? v1+ =null, two [T]? #0 =<json null>; T = {three [i32] v1-2}"
    )
    (schema,) = parse_schemas(line).values()
    three = Field("three", "three", "i32", is_array=True, versions=Versions(1, 2))
    one, two = schema.fields

    assert ("A", 7, Versions(0, 3)) == (schema.name, schema.api_key, schema.versions)
    assert (1 in schema.flexible, 2 in schema.flexible) == (False, True)
    assert (one.kind, one.is_nullable, one.versions.least, one.default) == ("str", True, 1, "null")
    assert (two.kind, two.fields, two.is_array, two.tag) == ("struct", (three,), True, 0)
    assert two.default == JSON_NULL


@pytest.mark.parametrize(
    "line", ["A v0: one str!", "A 0-1", "A v0: one {two str", "A [7 v0: one str", "A v0x: one str"]
)
def test_other_text_is_refused(line: str) -> None:
    """The error contains the line, or the part that is not understood."""
    with pytest.raises(ValueError, match=r"not a|expected"):
        parse_schemas(line)


def test_all_lines_are_schemas() -> None:
    """The table has 90 schemas, and each record type of a topic once."""
    found = [parse_schemas(getattr(lines, name)) for name in lines.__all__]

    assert sum(map(len, found)) == 90
    assert found[0]["NoOpRecord"].fields == ()


def test_names_in_snake_case() -> None:
    """Names of Kafka begin with a capital or a small letter."""
    names = ["MetadataHash", "topicId", "TopicIdPartition", "Isr", "LastKnownElr"]

    assert [*map(snake_case, names)] == [
        "metadata_hash",
        "topic_id",
        "topic_id_partition",
        "isr",
        "last_known_elr",
    ]
