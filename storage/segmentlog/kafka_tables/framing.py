"""Values that a serializer of a schema registry has framed: byte 0, the id of a schema, the rest.

Other values may begin with a byte 0, too.  An id that the table ``schemas`` does not have shows
that.
"""

import numpy as np
import pyarrow as pa

__all__ = ["payload", "schema_id"]

_FRAME_BYTES = 5


def schema_id(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Ids of the schemas of values, for a join with the table ``schemas``.

    ::

        values = segmentlog.read("/var/lib/kafka", "orders")
        values.append_column("id", segmentlog.schema_id(values["value"]))

    Parameters
    ----------
    values : keys or values, binary, shape (n_records,).

    Returns
    -------
    pyarrow.Array or pyarrow.ChunkedArray
        int32, shape (n_records,); null for a value that is not framed.
    """
    import pyarrow.compute as pc  # an import of segmentlog does not load it

    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([schema_id(each) for each in values.chunks], pa.int32())
    is_framed = _is_framed(values)
    ids = np.zeros(len(values), np.int32)
    framed = pc.binary_slice(values.filter(is_framed), 1, _FRAME_BYTES)
    if len(framed):
        offsets, data = framed.buffers()[1:]
        (begin,) = np.frombuffer(offsets, np.int32, 1, 4 * framed.offset).tolist()
        places = np.flatnonzero(is_framed.to_numpy(zero_copy_only=False))
        ids[places] = np.frombuffer(data, ">i4", len(framed), begin)
    is_null = pc.invert(is_framed).to_numpy(zero_copy_only=False)
    return pa.array(ids, mask=is_null | (ids < 0))


def payload(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The bytes of values after the id of their schema.

    In front of a message of protobuf, the path to its type in the schema stays.

    Parameters
    ----------
    values : keys or values, binary, shape (n_records,).

    Returns
    -------
    pyarrow.Array or pyarrow.ChunkedArray
        binary, shape (n_records,); null for a value that is not framed.
    """
    import pyarrow.compute as pc

    rest = pc.binary_replace_slice(values, 0, _FRAME_BYTES, b"")
    return pc.if_else(_is_framed(values), rest, pa.scalar(None, pa.binary()))


def _is_framed(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    import pyarrow.compute as pc

    begins = pc.equal(pc.binary_slice(values, 0, 1), pa.scalar(b"\0", pa.binary()))
    is_long = pc.greater_equal(pc.binary_length(values), _FRAME_BYTES)
    return pc.fill_null(pc.and_(begins, is_long), False)
