"""Records of a coordinator are chosen by the type that their keys begin with."""

import pyarrow as pa

from segmentlog.kafka_tables.source import record_types


def test_the_types_of_keys() -> None:
    """A key without two bytes has no type, and a part of an array has its own keys."""
    keys = [b"\x00\x05", None, b"", b"\x07", b"\x00\x01rest", b"\xff\xfe", b"\x01\x00"]
    array = pa.array([b"\x00\x09", *keys, b"\x00\x09"], pa.binary())

    assert [5, -1, -1, -1, 1, -2, 256] == record_types(array.slice(1, 7)).tolist()
    assert [] == record_types(pa.array([], pa.binary())).tolist()
    assert [-1] == record_types(pa.nulls(1, pa.binary())).tolist()
