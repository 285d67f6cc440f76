"""Ids of schemas are read from framed values, and from no others."""

import pyarrow as pa
import pytest

import segmentlog

FRAMED = [(b"\0\0\0\1\2rest", 258, b"rest"), (b"\0\0\0\0\7", 7, b""),
          (b"\0\x7f\xff\xff\xff\0", 2**31 - 1, b"\0")]  # fmt: skip
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
