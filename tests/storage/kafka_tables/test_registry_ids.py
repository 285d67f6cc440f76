"""Ids of schemas are read from framed values, and from no others."""

import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import segmentlog

FRAMED = [
    (b"\0\0\0\1\2rest", 258, b"rest"),
    (b"\0\0\0\0\7", 7, b""),
    (b"\0\x7f\xff\xff\xff\0", 2**31 - 1, b"\0"),
]
OTHERS = [None, b"", b"\0\0\0\1", b"\1\0\0\0\1x", b'{"json": 1}']


def test_ids_and_payloads_of_values() -> None:
    """A value that is not framed has neither. Slices and chunks have the same ids."""
    rows = [*FRAMED, *((each, None, None) for each in OTHERS), *FRAMED]
    values = pa.array([each for each, _, _ in rows], pa.binary())
    ids = [number for _, number, _ in rows]
    chunked = pa.chunked_array([values[:4], values[4:4], values[4:]])

    assert ids == segmentlog.schema_id(values).to_pylist()
    assert ids[2:] == segmentlog.schema_id(values[2:]).to_pylist()
    assert ids == segmentlog.schema_id(chunked).to_pylist()
    assert [rest for _, _, rest in rows] == segmentlog.payload(values).to_pylist()
    assert [rest for _, _, rest in rows] == segmentlog.payload(chunked).to_pylist()
    assert pa.int32() == segmentlog.schema_id(values).type


@pytest.mark.parametrize("values", [[], [None], [b"\0\xff\xff\xff\xff"]])
def test_values_without_ids(values: list[bytes | None]) -> None:
    """A negative id is not one of a registry."""
    found = segmentlog.schema_id(pa.array(values, pa.binary()))

    assert [None] * len(values) == found.to_pylist()


@pytest.mark.parametrize(
    "kind",
    [pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary()), pa.string()],
    ids=str,
)
def test_values_of_other_libraries_have_the_same_ids(kind: pa.DataType) -> None:
    """Polars returns large binary, whose offsets are twice as long."""
    values = pa.array([b"\0\0\0\0\5\4\2\4x", None, b"\0\0\0\0\5\0y"], pa.binary()).cast(kind)
    assert [5, None, 5] == segmentlog.schema_id(values).to_pylist()
    assert [[1, 2], None, [0]] == segmentlog.message_indexes(values).to_pylist()
    rest = segmentlog.payload(pa.chunked_array([values]), is_protobuf=True)
    assert [b"x", None, b"y"] == rest.to_pylist()
    headers = pa.array([[(NAME, b"\1" + GUID.bytes + b"\2\4")], [], None], HEADERS).cast(
        pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    )
    assert [[2], None, [0]] == segmentlog.message_indexes(values, headers).to_pylist()


def test_values_that_are_not_bytes_are_refused() -> None:
    """The message shows the type."""
    with pytest.raises(segmentlog.OptionError, match="int64"):
        segmentlog.payload(pa.array([1, 2]))
    listed: Any = [b"x"]
    with pytest.raises(segmentlog.OptionError, match="give a column of pyarrow"):
        segmentlog.schema_id(listed)
    with pytest.raises(segmentlog.OptionError, match="headers"):
        segmentlog.schema_guid(listed)


GUID = uuid.UUID("1d20cbb9-e5e3-5e97-54e7-da170b6e5ddb")
NAME, OF_KEY = "__value_schema_id", "__key_schema_id"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

#: Headers, a value, and then its id, its GUID, its path and its message.
RECORDS: list[tuple[Any, ...]] = [
    ([(NAME, b"\0\0\0\0\7")], b"plain", 7, None, None, b"plain"),
    (
        [("a", b"b"), (NAME, b"\1" + GUID.bytes + b"\0")],
        b"\0\0\0\0\1x",
        None,
        str(GUID),
        [0],
        b"\0\0\0\0\1x",
    ),
    ([(NAME, b"\1" + GUID.bytes), (NAME, b"\0\0\0\0\7\4\2\6")], b"", 7, None, [1, 3], b""),
    ([(NAME, b"\2other")], b"\0\0\0\0\1\0x", None, None, None, None),
    ([(NAME, None)], b"\0\0\0\0\1\0x", 1, None, [0], b"x"),
    ([(OF_KEY, b"\0\0\0\0\7")], b"\0\0\0\0\1\2\2x", 1, None, [1], b"x"),
    ([], b"\0\0\0\0\1\2\x80\1x", 1, None, [64], b"x"),
    (None, b"\0\0\0\0\1\1\3x", 1, None, [3], b"x"),  # unsigned varints
    (None, b"\0\0\0\0\1\4\2", 1, None, None, None),
    (None, b"\0\0\0\0\1", 1, None, None, None),
    (None, b"\0\0\0\0\1" + b"\x80" * 9, 1, None, None, None),
    (None, b"\0\0\0\0\1\2" + b"\x80" * 5 + b"\0", 1, None, None, None),
    ([], None, None, None, None, None),
]


def columns() -> tuple[pa.Array, pa.Array]:
    """Headers and values of the records."""
    pairs = [each[0] and [{"key": k, "value": v} for k, v in each[0]] for each in RECORDS]
    headers = pa.array([[] if each == [] else each for each in pairs], HEADERS)
    return headers, pa.array([each[1] for each in RECORDS], pa.binary())


@pytest.mark.parametrize("first", [0, 1, 6, 7])
def test_ids_guids_and_paths_in_headers_and_in_values(first: int) -> None:
    """If a record has the header, the header alone counts. Slices and chunks are equal."""
    headers, values = (each[first:] for each in columns())
    chunked = pa.chunked_array([values[:2], values[2:]])
    for one in (values, chunked):
        found = [
            segmentlog.schema_id(one, headers),
            segmentlog.schema_guid(headers),
            segmentlog.message_indexes(one, headers),
            segmentlog.payload(one, headers, is_protobuf=True),
        ]
        expected = [[*each[2:]] for each in RECORDS[first:]]
        assert expected == [
            [*row] for row in zip(*(each.to_pylist() for each in found), strict=True)
        ]


def test_headers_of_keys_have_another_name() -> None:
    """A header of the value does not count for the key."""
    headers, values = columns()

    assert [7] == segmentlog.schema_id(values[5:6], headers[5:6], is_key=True).to_pylist()
    assert [None] == segmentlog.schema_id(values[:1], headers[:1], is_key=True).to_pylist()
    assert [None] * 3 == segmentlog.schema_guid(headers[:3], is_key=True).to_pylist()
    whole = segmentlog.payload(values[5:6], headers[5:6], is_key=True, is_protobuf=True)
    assert values[5:6].to_pylist() == whole.to_pylist()


def path_of(data: bytes) -> tuple[list[int], bytes] | None:
    """The path that bytes begin with, and the rest, in plain Python."""
    if not data or (data[0] if data[0] % 2 else data[0] >> 1) > 63:
        return None
    count, at, path = data[0] if data[0] % 2 else data[0] >> 1, 1, []
    for _ in range(count):
        ends = [n for n, byte in enumerate(data[at : at + 5]) if byte < 0x80]
        if not ends:
            return None
        number = sum((byte & 0x7F) << 7 * n for n, byte in enumerate(data[at : at + ends[0] + 1]))
        if number % 2 and not data[0] % 2:  # no message has a negative index
            return None
        path.append(number if data[0] % 2 else number >> 1)
        at += ends[0] + 1
    return path or [0], data[at:]


@given(st.lists(st.none() | st.binary(max_size=12) | st.binary(max_size=3).map(lambda b: b * 40)))
def test_paths_are_those_of_plain_python(rests: list[bytes | None]) -> None:
    """Any bytes may follow an id."""
    values = pa.array(
        [None if each is None else b"\0\0\0\0\1" + each for each in rests], pa.binary()
    )
    expected = [None if each is None else path_of(each) for each in rests]
    wrapped = [
        None if each is None else [(n + 2**31) % 2**32 - 2**31 for n in each[0]]
        for each in expected
    ]  # as an int of Java

    assert wrapped == segmentlog.message_indexes(values).to_pylist()
    assert [None if each is None else each[1] for each in expected] == (
        segmentlog.payload(values, is_protobuf=True).to_pylist()
    )


def test_no_path_has_a_negative_index() -> None:
    """Bytes that would be one begin no path: -1 as a zigzag varint is one byte 1."""
    values = pa.array(
        [b"\0\0\0\0\1" + path for path in (b"\2\1rest", b"\4\0\3rest", b"\4\0\2rest")]
    )
    assert [None, None, [0, 1]] == segmentlog.message_indexes(values).to_pylist()
    assert [None, None, b"rest"] == segmentlog.payload(values, is_protobuf=True).to_pylist()
