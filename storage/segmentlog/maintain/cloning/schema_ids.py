"""Ids of schemas in keys, values and headers, replaced by those of another registry.

The forms are those of `segmentlog.kafka_tables.registry`: a byte 0 and four bytes of the id
stand before a value; or a header has them, or a byte 1 and the 16 bytes of a GUID.  If a record
has the header, its value has no frame.
"""

import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from segmentlog.format.records.encoder import cast_column, headers_type
from segmentlog.maintain.cloning.settings import SchemaIds

_ID_AT, _ID_BYTES, _GUID_AT, _GUID_BYTES = 1, 4, 1, 16
_MOST_UNKNOWN = 20  #: ids that are noted: values that only look framed have any number of them


class NewIds:
    """Replaces the ids of one column, ``key`` or ``value``, and of its header.

    `ids`: as `CloneSettings` accepts them.  `column`: its name.  `unknown`: some of the ids that
    were met and that `ids` does not have.
    """

    def __init__(self, ids: SchemaIds, column: str) -> None:
        numbers = sorted((old, new) for old, new in ids.items() if not isinstance(old, str))
        pairs: NDArray[np.int64] = np.array(numbers, np.int64).reshape(-1, 2)
        self._old, self._new = pairs[:, 0], pairs[:, 1].astype(">i4").view(np.uint8).reshape(-1, 4)
        self._guids = [
            tuple(np.frombuffer(uuid.UUID(each).bytes, np.uint8) for each in (old, str(new)))
            for old, new in ids.items()
            if isinstance(old, str)
        ]
        self._column = column
        self._header = pa.scalar(f"__{column}_schema_id".encode(), pa.binary())
        self.unknown: set[int] = set()

    def replaced(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the new ids."""
        values = cast_column(self._column, rows[self._column], pa.binary())
        is_framed = np.ones(len(rows), bool)
        at = rows.schema.get_field_index("headers")
        if at >= 0 and len(rows):
            headers = rows.column(at)
            headers = cast_column("headers", headers, headers_type(headers.type, pa.binary()))
            pairs = headers.values.flatten()
            is_named = pc.fill_null(pc.equal(pairs[0], self._header), False)
            if is_named.true_count:
                named = is_named.to_numpy(zero_copy_only=False)
                at_headers, ends = np.flatnonzero(named), headers.offsets.to_numpy()
                owners = np.searchsorted(ends, at_headers, "right") - 1
                is_framed[owners[(owners >= 0) & (owners < len(rows))]] = False
                values_of = self._in_frames(cast_column("headers", pairs[1], pa.binary()), named)
                rows = rows.set_column(at, "headers", _with_values(headers, values_of))
        number = rows.schema.get_field_index(self._column)
        return rows.set_column(number, self._column, self._in_frames(values, is_framed))

    def _in_frames(self, values: pa.Array, is_framed: NDArray[np.bool_]) -> pa.Array:
        """Values with new ids, where they are frames."""
        if not len(values) or values.buffers()[2] is None:
            return values
        validity, ends, data = values.buffers()
        bounds = np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset)
        found = np.frombuffer(data, np.uint8)
        rows = np.flatnonzero(is_framed & (np.diff(bounds) > _ID_BYTES))
        if values.null_count:
            rows = rows[values.is_valid().to_numpy(zero_copy_only=False)[rows]]
        begins = bounds[rows].astype(np.int64)
        kinds = found[begins]
        changed = found.copy()
        at = begins[kinds == 0][:, None] + np.arange(_ID_AT, _ID_AT + _ID_BYTES)
        ids = np.ascontiguousarray(found[at]).view(">i4")[:, 0].astype(np.int64)
        places = np.searchsorted(self._old, ids)
        is_known = places < len(self._old)
        is_known[is_known] = self._old[places[is_known]] == ids[is_known]
        changed[at[is_known]] = self._new[places[is_known]]
        if len(self.unknown) < _MOST_UNKNOWN:
            unknown = np.unique(ids[~is_known & (ids >= 0)])
            self.unknown.update(unknown[:_MOST_UNKNOWN].tolist())
        if self._guids:
            lengths = np.diff(bounds)[rows]
            begins = begins[(kinds == 1) & (lengths > _GUID_BYTES)]
            at = begins[:, None] + np.arange(_GUID_AT, _GUID_AT + _GUID_BYTES)
            guids = found[at]
            for old, new in self._guids:
                changed[at[(guids == old).all(axis=1)]] = new
        buffers = [validity, ends, pa.py_buffer(changed)]
        return pa.Array.from_buffers(
            values.type, len(values), buffers, values.null_count, values.offset
        )


def _with_values(headers: pa.Array, values: pa.Array) -> pa.Array:
    """Lists of headers with other values."""
    pairs = pa.StructArray.from_arrays(
        [headers.values.flatten()[0], values], fields=list(headers.type.value_type)
    )
    return pa.Array.from_buffers(
        headers.type, len(headers), headers.buffers()[:2], headers.null_count, headers.offset,
        children=[pairs],
    )  # fmt: skip
