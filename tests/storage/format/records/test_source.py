"""Arrow columns of every type that can be written, and of types that cannot."""

import numpy as np
import pyarrow as pa
import pytest

from segmentlog.errors import OptionError
from segmentlog.format.records.encoder import RecordEncoder, record_source
from segmentlog.model import TopicPartition
from segmentlog.testing.reference import Record, read_batch

TEXT = ["a", "", None, "bc", "x" * 300]
PAIRS = [[("h", b"1"), ("", None)], [], None, [("i", b"")], [("j", b"2")]]


def written(columns: dict[str, pa.Array], n_rows: int, start: int = 0) -> list[Record]:
    """The rows of a batch from `start` on, as one batch of records, read back."""
    batch = pa.RecordBatch.from_pydict(columns).slice(start)
    source = record_source(batch, np.zeros(n_rows, np.int64))
    found = RecordEncoder().encode(TopicPartition("t", 0), source, np.arange(n_rows))
    return read_batch(found.buffer.tobytes())


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_binary()),
    ],
    ids=str,
)
@pytest.mark.parametrize("column", ["key", "value"])
@pytest.mark.parametrize("start", [0, 2])
def test_bytes_and_text_of_every_type_are_written(
    kind: pa.DataType, column: str, start: int
) -> None:
    """Whole arrays and slices are written. The other column may have another width of offsets."""
    base = kind.value_type if pa.types.is_dictionary(kind) else kind
    array = pa.array(TEXT, pa.string()).cast(base)
    array = array.dictionary_encode().cast(kind) if base is not kind else array
    other = "value" if column == "key" else "key"
    columns = {column: array, other: pa.array([b"o"] * 5, pa.binary())}
    expected = [None if text is None else text.encode() for text in TEXT[start:]]

    assert expected == [getattr(r, column) for r in written(columns, 5 - start, start)]


@pytest.mark.parametrize("lists", [pa.list_, pa.large_list])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_headers_of_either_width_are_written(lists: type, start: int) -> None:
    """Null headers and empty headers are written alike. A null value differs from an empty one."""
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    data = [
        None if pairs is None else [{"key": key, "value": value} for key, value in pairs]
        for pairs in PAIRS
    ]
    columns = {"headers": pa.array(data, lists(pair))}
    expected = [tuple((k.encode(), v) for k, v in pairs or ()) for pairs in PAIRS[start:]]

    assert expected == [record.headers for record in written(columns, 5 - start, start)]


def test_columns_of_nulls_need_no_type() -> None:
    """A column of nulls has no type, as in ``select(null as key)``."""
    columns = {name: pa.nulls(3) for name in ("key", "value", "headers")}

    assert [Record(i, 0, None, None) for i in range(3)] == written(columns, 3)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("key", pa.int64()),
        ("value", pa.float64()),
        ("value", pa.list_(pa.binary())),
        ("headers", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
        ("headers", pa.list_(pa.struct([("key", pa.string())]))),
        ("headers", pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))),
    ],
    ids=str,
)
def test_other_types_are_refused(column: str, kind: pa.DataType) -> None:
    """The error names the column, its type, and the accepted types."""
    batch = pa.RecordBatch.from_arrays([pa.nulls(2, kind)], [column])
    with pytest.raises(OptionError) as caught:
        record_source(batch, np.zeros(2, np.int64))

    assert (caught.value.option, caught.value.value) == (column, str(kind))


def test_every_row_has_a_timestamp() -> None:
    """An array of timestamps that has another length is refused."""
    batch = pa.RecordBatch.from_arrays([pa.array([b"v"])], ["value"])
    with pytest.raises(ValueError, match="2 timestamps for 1 rows"):
        record_source(batch, np.zeros(2, np.int64))


@pytest.mark.parametrize("key", [None, b"", b"k"])
def test_rows_without_keys_can_be_copied_in_vectors(key: bytes | None) -> None:
    """If many rows have few bytes of keys, the rows do not all go through the careful loop."""
    keys = pa.array([key] + [None] * 999, pa.binary())
    batch = pa.RecordBatch.from_pydict({"key": keys, "value": pa.array([b"v" * 100] * 1000)})

    assert record_source(batch, np.zeros(1000, np.int64)).n_wide_rows >= 998


@pytest.mark.parametrize("column", ["key", "value", "headers"])
@pytest.mark.parametrize("has_null", [False, True])
@pytest.mark.parametrize(
    "bounds", [[0, 3, 2, 4], [0, 2**63 - 1, -2, 4]], ids=["falls", "wraps around"]
)
def test_bounds_that_are_not_in_order_are_refused(
    bounds: list[int], has_null: bool, column: str
) -> None:
    """Nothing is read at the wrong bounds; Arrow itself uses the first and the last bound."""
    bitmap = pa.py_buffer(b"\x05") if has_null else None
    buffers = [bitmap, pa.py_buffer(np.array(bounds).tobytes()), pa.py_buffer(b"abcd")]
    array = pa.Array.from_buffers(pa.large_binary(), 3, buffers, int(has_null))
    columns = {"key": pa.array([b"k"] * 3, pa.large_binary())}
    if column == "headers":
        pairs = pa.StructArray.from_arrays([array, array], ["key", "value"])
        array = pa.LargeListArray.from_arrays(pa.array([0, 1, 2, 3]), pairs)

    with pytest.raises(pa.ArrowInvalid):
        written(columns | {column: array}, 3)
