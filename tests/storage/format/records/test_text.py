"""Keys and values as strings: valid text, or the reader's choice for other bytes."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import segmentlog
from segmentlog.errors import InvalidUtf8Error
from segmentlog.format.records.columns import TextColumns
from segmentlog.model import OnInvalidUtf8, TopicPartition

WHERE = TopicPartition("t", 3)
BYTES = st.binary(max_size=6) | st.text(max_size=4).map(str.encode)
BAD = [b"\xff", b"a\xc3", b"\xed\xa0\x80b", b"\xc0\x80", b"\xf4\x90\x80\x80"]


def converted(
    values: list[bytes | None], on_invalid: OnInvalidUtf8, columns: tuple[str, ...] = ("value",)
) -> pa.RecordBatch:
    """Values at offsets from 100 on, as text; they are the second half of a larger batch."""
    text = TextColumns(columns, ("value",), on_invalid)
    rows = {
        "value": pa.array([*values, *values], pa.binary()),
        "offset": pa.array(range(100 - len(values), 100 + len(values)), pa.int64()),
        "partition": pa.array([3] * len(values) * 2, pa.int32()),
    }
    scanned = pa.RecordBatch.from_pydict({name: rows[name] for name in text.scanned})
    return text.convert(scanned.slice(len(values)), WHERE)


def is_text(value: bytes | None) -> bool:
    """Whether Python's decoder accepts the bytes; it refuses surrogates as Java does."""
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


@given(st.lists(st.none() | BYTES))
@settings(deadline=None)
def test_text_comes_as_it_is(values: list[bytes | None]) -> None:
    """Nulls stay null, and bytes that are not text become null.

    The type is string in both cases.
    """
    found = converted(values, OnInvalidUtf8.NULL).column("value")

    found.validate(full=True)
    assert pa.string() == found.type
    assert found.to_pylist() == [
        value.decode() if value is not None and is_text(value) else None for value in values
    ]


@given(st.lists(st.none() | BYTES))
@settings(deadline=None)
def test_the_first_bad_value_is_named(values: list[bytes | None]) -> None:
    """The error names topic, partition, offset and column, even without the offset column."""
    bad = [row for row, value in enumerate(values) if not is_text(value)]
    if not bad:
        assert len(values) == converted(values, OnInvalidUtf8.FAIL).num_rows
        return
    with pytest.raises(InvalidUtf8Error) as caught:
        converted(values, OnInvalidUtf8.FAIL)

    assert ("t", 3, 100 + bad[0], "value") == caught.value.args


@pytest.mark.parametrize("columns", [("value",), ("partition", "value", "offset")])
def test_the_columns_are_those_that_were_asked_for(columns: tuple[str, ...]) -> None:
    """The requested columns come in their order, without the offset that an error needs."""
    for on_invalid in OnInvalidUtf8:
        batch = converted([b"a", None], on_invalid, columns)

        assert list(columns) == batch.schema.names
        assert ["a", None] == batch.column("value").to_pylist()


def test_bad_bytes_are_replaced_as_in_java() -> None:
    """A surrogate that was encoded alone becomes one replacement character, not three."""
    found = converted([*BAD, None, b"good"], OnInvalidUtf8.REPLACE).column("value")

    bad = "\ufffd"
    assert [bad, "a" + bad, bad + "b", bad * 2, bad * 4, None, "good"] == found.to_pylist()


def test_values_of_a_log_become_text(tmp_path: Path) -> None:
    """Values are not copied: the bytes of the column are those of the scan."""
    with segmentlog.open_writer(tmp_path, "t", num_partitions=1) as writer:
        writer.append(pa.table({"key": [None, "k"], "value": ["ä", ""]}))
    text = TextColumns(("key", "value"), ("key", "value"), OnInvalidUtf8.FAIL)
    (scanned,) = segmentlog.open_log_dir(tmp_path).log("t", 0).scan(columns=text.scanned)
    batch = text.convert(scanned, TopicPartition("t", 0))

    assert {"key": [None, "k"], "value": ["ä", ""]} == batch.to_pydict()
    assert (
        scanned.column("value").buffers()[2].address == batch.column("value").buffers()[2].address
    )
