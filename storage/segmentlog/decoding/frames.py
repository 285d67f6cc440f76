"""The frames around the values of a batch: which schema each names, and what is left of it.

Confluent's are those of `segmentlog.kafka_tables.registry`.

Apicurio's serializers write a byte 0 and eight bytes of the global id; or a header has the eight
bytes, and the value has no frame.  If a record has the header, the header alone counts.

Those of AWS Glue write a byte 3, a byte for the compression (0 for none, 5 for zlib), and the UUID
of the version of the schema.

Rules: ``DefaultIdHandler`` and ``DefaultHeadersHandler`` of Apicurio's serializers;
``AWSSchemaRegistryConstants`` of those of AWS.
"""

import zlib
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.decoding.payloads import Payloads
from segmentlog.decoding.schema import UnusableSchemaError
from segmentlog.format.kernels.layout import FRAME_BYTES
from segmentlog.format.kernels.memory import Int64s
from segmentlog.kafka_tables.columns import Cells
from segmentlog.kafka_tables.registry import (
    as_binary,
    last_headers,
    message_indexes,
    payload,
    printed_guids,
    schema_guid,
    schema_headers,
    schema_id,
)
from segmentlog.model import ValueFrame

_ID_BYTES, _GLUE_BYTES = 9, 18

#: That a value of Glue may inflate to: a few bytes can say that they are billions.
_MOST_INFLATED = 64 << 20


class Frames:
    """The frames of keys or values.  `headers`: of the records, or None."""

    def __init__(
        self,
        values: pa.Array,
        headers: pa.Array | None,
        *,
        is_key: bool,
        frame: ValueFrame = ValueFrame.CONFLUENT,
    ) -> None:
        self._values = as_binary(values)
        # Mostly no record has headers: then nothing is looked for in them.
        has_headers = headers is not None and headers.null_count < len(headers)
        self._headers = headers if has_headers else None
        self._is_key = is_key
        self._frame = frame

    def _names(self) -> list[pa.Array]:
        """Ids, and GUIDs, of the schemas of values: columns with null where there is none."""
        if self._frame is ValueFrame.NONE:
            zeros = pa.array(np.zeros(len(self._values), np.int64))
            return [pc.if_else(self._values.is_valid(), zeros, pa.scalar(None, pa.int64()))]
        if self._frame is ValueFrame.APICURIO:
            return [self._global_ids]
        if self._frame is ValueFrame.GLUE:
            return [self._versions_of_glue()]
        ids = schema_id(self._values, self._headers, is_key=self._is_key)
        if self._headers is None:
            return [ids]
        return [ids, schema_guid(self._headers, is_key=self._is_key)]

    def rows_by_name(self) -> Iterator[tuple[int | str | None, Int64s]]:
        """The rows of each schema, by the name that their values have for it.

        The rows of the values that name none come last, with None.
        """
        names = self._names()
        if not names[0].null_count and not self._values.null_count and len(self._values):
            least, most = pc.min_max(names[0]).as_py().values()
            if least == most:
                yield least, np.arange(len(self._values))
                return
        is_left = self._values.is_valid().to_numpy(zero_copy_only=False).copy()
        for groups in names:
            found = groups.dictionary_encode()
            codes = found.indices.fill_null(-1).to_numpy()
            for code, name in enumerate(found.dictionary.to_pylist()):
                rows = np.flatnonzero((codes == code) & is_left)
                is_left[rows] = False
                if len(rows):
                    yield name, rows
        yield None, np.flatnonzero(is_left)

    def payloads(self, rows: Int64s) -> Payloads:
        """The values of rows, which rise, without frames; lost if they cannot be inflated."""
        if self._frame is ValueFrame.GLUE:
            frames = _taken(self._values, rows)
            kinds = pc.binary_slice(frames, 1, 2).to_pylist()
            rest = pc.binary_replace_slice(frames, 0, _GLUE_BYTES, b"").to_pylist()
            inflated = [
                _inflated(each) if kind == b"\5" else each
                for kind, each in zip(kinds, rest, strict=True)
            ]
            return Payloads.of(pa.array(inflated, pa.binary()))
        every = self._payloads
        return every if len(rows) == len(every) else every.only(rows)

    def messages(self, rows: Int64s) -> dict[tuple[int, ...] | None, tuple[Int64s, Payloads]]:
        """Messages of protobuf by the paths to their types, with their rows; None: no path.

        Raises `UnusableSchemaError`.
        """
        if self._frame is ValueFrame.NONE:
            return {(0,): (rows, self.payloads(rows))}
        if self._frame is not ValueFrame.CONFLUENT:
            raise UnusableSchemaError(f"messages of protobuf in frames of {self._frame}")
        texts, paths = _taken(self._messages, rows), _taken(self._paths, rows)
        flat = pc.list_flatten(paths)
        payloads = Payloads.of(texts)
        if not paths.null_count and len(flat) == len(rows) and pc.max(flat).as_py() == 0:
            return {(0,): (rows, payloads)}
        by_path: dict[tuple[int, ...] | None, list[int]] = {}
        for number, path in enumerate(paths.to_pylist()):
            by_path.setdefault(None if path is None else tuple(path), []).append(number)
        numbers_of = {path: np.asarray(numbers) for path, numbers in by_path.items()}
        return {path: (rows[each], payloads.only(each)) for path, each in numbers_of.items()}

    @cached_property
    def _payloads(self) -> Payloads:
        if self._frame is ValueFrame.NONE:
            return Payloads.of(self._values)
        if self._frame is ValueFrame.APICURIO:
            n_bytes, found = _ID_BYTES, self._headers_of_apicurio
        else:
            n_bytes, found = FRAME_BYTES, None
            if self._headers is not None:
                found = schema_headers(self._headers, is_key=self._is_key)
        if found is None:
            return Payloads.of(self._values, n_bytes)
        is_named = found.is_valid().to_numpy(zero_copy_only=False)
        return Payloads.of(self._values, np.where(is_named, 0, n_bytes).astype(np.int32))

    @cached_property
    def _messages(self) -> pa.Array:
        return payload(self._values, self._headers, is_key=self._is_key, is_protobuf=True)

    @cached_property
    def _paths(self) -> pa.Array:
        return message_indexes(self._values, self._headers, is_key=self._is_key)

    @cached_property
    def _headers_of_apicurio(self) -> pa.Array | None:
        if self._headers is None:
            return None
        column = "key" if self._is_key else "value"
        names = [f"apicurio.{column}.{each}".encode() for each in ("globalId", "contentId")]
        return pc.coalesce(*(last_headers(self._headers, name) for name in names))

    @cached_property
    def _global_ids(self) -> pa.Array:
        cells = Cells(self._values)
        is_framed = (cells.number(1) == 0) & cells.is_right
        ids = cells.number(8)
        framed = pa.array(ids, mask=~(is_framed & cells.is_right & (ids >= 0)))
        found = self._headers_of_apicurio
        if found is None:
            return framed
        cells = Cells(found)
        ids = cells.number(8)
        in_headers = pa.array(ids, mask=~(cells.is_right & (ids >= 0)))
        return pc.if_else(found.is_valid(), in_headers, framed)

    def _versions_of_glue(self) -> pa.Array:
        cells = Cells(self._values)
        is_framed = (cells.number(1) == 3) & cells.is_right
        kinds = cells.number(1)
        guids = cells.bytes(16)
        has_guid = is_framed & cells.is_right & ((kinds == 0) | (kinds == 5))
        return printed_guids(guids, has_guid)


def _taken(values: pa.Array, rows: Int64s) -> pa.Array:
    """The values of rows, which rise."""
    return values if len(rows) == len(values) else values.take(pa.array(rows))


def _inflated(data: bytes | None) -> bytes | None:
    try:
        stream = zlib.decompressobj()
        made = stream.decompress(data or b"", _MOST_INFLATED)
    except zlib.error:
        return None
    return made if stream.eof else None
