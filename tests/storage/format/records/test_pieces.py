"""Rows that share their values are measured, cut and decoded row by row."""

import pyarrow as pa
import pytest

from segmentlog.errors import ColumnError
from segmentlog.format.records.encoder import cut_rows

LARGE, SMALL = b"x" * 1000, b"s"


def dictionary(indices: list[int | None], kind: pa.DataType) -> pa.Array:
    """A dictionary column of `LARGE` and `SMALL`."""
    values = pa.array([LARGE, SMALL], pa.binary()).cast(kind)
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), values)


def views(indices: list[int | None], kind: pa.DataType) -> pa.Array:
    """A column of views of `LARGE` and `SMALL`."""
    return dictionary(indices, pa.binary()).cast(pa.binary()).cast(kind)


COLUMNS = {
    "dictionary": lambda rows: dictionary(rows, pa.binary()),
    "dictionary of text": lambda rows: dictionary(rows, pa.string()),
    "dictionary of large text": lambda rows: dictionary(rows, pa.large_string()),
    "binary view": lambda rows: views(rows, pa.binary_view()),
    "string view": lambda rows: views(rows, pa.string_view()),
    "binary": lambda rows: dictionary(rows, pa.binary()).cast(pa.binary()),
    "large binary": lambda rows: dictionary(rows, pa.binary()).cast(pa.large_binary()),
}
ROWS = [0, 1, None, 1, 0, 0, 1, None, 0, 1] * 20
BYTES = {0: LARGE, 1: SMALL, None: None}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("column", ["key", "value", "headers"])
def test_rows_are_cut_by_what_they_come_to(name: str, start: int, column: str) -> None:
    """Each piece has the size that is returned with it, and no size is far from the bound."""
    array = COLUMNS[name](ROWS)
    expected = [BYTES[row] for row in ROWS[start:]]
    if column == "headers":
        keys = pa.array(["k"] * len(ROWS))
        pairs = pa.StructArray.from_arrays([keys, array], ["key", "value"])
        array = pa.ListArray.from_arrays(pa.array(range(0, len(ROWS) + 1, 2), pa.int32()), pairs)
        start, expected = start // 2, [BYTES[row] for row in ROWS[start // 2 * 2 :]]
    batch = pa.RecordBatch.from_pydict({column: array, "other": [1] * len(array)}).slice(start)
    pieces = list(cut_rows(batch, 10_000, 16))

    assert len(pieces) > 6
    assert all(n_bytes <= 10_000 for _, n_bytes in pieces)
    assert sum(n_bytes for _, n_bytes in pieces) >= sum(len(each or b"") for each in expected)
    for rows, n_bytes in pieces:
        assert abs(rows.nbytes - n_bytes) < 100 * rows.num_rows
    found = pa.Table.from_batches([rows for rows, _ in pieces])[column].combine_chunks()
    if column == "headers":
        found = found.flatten().field(1)
    as_bytes = [each.encode() if isinstance(each, str) else each for each in found.to_pylist()]
    assert expected == as_bytes


def test_rows_of_their_own_bytes_stay_together() -> None:
    """If all rows together are smaller than the bound, nothing is measured or copied."""
    batch = pa.RecordBatch.from_pydict({"value": [LARGE] * 5})

    assert [(batch, batch.nbytes)] == list(cut_rows(batch, 10_000, 16))
    assert cut_rows(batch, 10_000, 16).__next__()[0] is batch


def test_indices_into_nothing() -> None:
    """The dictionary of a column of nulls may be empty.

    An index outside the dictionary is refused.
    """
    empty = pa.DictionaryArray.from_arrays(
        pa.array([None] * 3, pa.int8()), pa.array([], pa.binary())
    )
    (piece,) = cut_rows(pa.RecordBatch.from_pydict({"value": empty}), 100, 16)
    assert ([None] * 3, 48) == (piece[0]["value"].to_pylist(), piece[1])
    outside = pa.DictionaryArray.from_arrays(pa.array([0, 9]), pa.array([b"v"]), safe=False)
    with pytest.raises(pa.ArrowIndexError):
        list(cut_rows(pa.RecordBatch.from_pydict({"value": outside}), 100, 16))


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.binary())], ids=str)
def test_a_dictionary_of_other_values_is_refused(kind: pa.DataType) -> None:
    """A dictionary of another type is refused like a plain column of that type."""
    array = pa.DictionaryArray.from_arrays(pa.array([0]), pa.nulls(1, kind))
    with pytest.raises(ColumnError, match="a value is binary or string"):
        list(cut_rows(pa.RecordBatch.from_pydict({"value": array}), 100, 16))


@pytest.mark.parametrize("name", ["key", "value", "headers"])
@pytest.mark.parametrize("kind", [pa.list_view(pa.int64()), pa.large_list_view(pa.string_view())])
def test_lists_that_are_views_are_refused(kind: pa.DataType, name: str) -> None:
    """Before pyarrow 24, their `nbytes` would be an error of Arrow's."""
    batch = pa.RecordBatch.from_pydict({name: pa.array([[]], kind)})
    with pytest.raises(ColumnError, match=f"column '{name}' is .*list_view"):
        list(cut_rows(batch, 100, 16))
