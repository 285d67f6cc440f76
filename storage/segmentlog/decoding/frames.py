"""The frames around the values of a batch: which schema each names, and what is left of it."""

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.format.kernels.memory import Int64s
from segmentlog.kafka_tables.registry import message_indexes, payload, schema_guid, schema_id


class Frames:
    """The frames of keys or values.  `headers`: of the records, or None."""

    def __init__(self, values: pa.Array, headers: pa.Array | None, *, is_key: bool) -> None:
        self._values = values
        self._headers = headers
        self._is_key = is_key

    def names(self) -> list[pa.Array]:
        """Ids, and GUIDs, of the schemas of values: columns with null where there is none."""
        ids = schema_id(self._values, self._headers, is_key=self._is_key)
        if self._headers is None:
            return [ids]
        return [ids, schema_guid(self._headers, is_key=self._is_key)]

    def payloads(self, rows: Int64s) -> list[bytes]:
        """The bytes of values without their frames."""
        taken: list[bytes] = self._payloads.take(pa.array(rows)).to_pylist()
        return taken

    def messages(self, rows: Int64s) -> dict[tuple[int, ...] | None, tuple[Int64s, list[bytes]]]:
        """Messages of protobuf by the paths to their types, with their rows; None: no path."""
        taken = pa.array(rows)
        texts, paths = self._messages.take(taken), self._paths.take(taken)
        flat = pc.list_flatten(paths)
        if not paths.null_count and len(flat) == len(rows) and pc.max(flat).as_py() == 0:
            return {(0,): (rows, texts.to_pylist())}
        by_path: dict[tuple[int, ...] | None, list[int]] = {}
        for number, path in enumerate(paths.to_pylist()):
            by_path.setdefault(None if path is None else tuple(path), []).append(number)
        return {
            path: (rows[np.asarray(numbers)], texts.take(pa.array(numbers)).to_pylist())
            for path, numbers in by_path.items()
        }

    @cached_property
    def _payloads(self) -> pa.Array:
        return payload(self._values, self._headers, is_key=self._is_key)

    @cached_property
    def _messages(self) -> pa.Array:
        return payload(self._values, self._headers, is_key=self._is_key, is_protobuf=True)

    @cached_property
    def _paths(self) -> pa.Array:
        return message_indexes(self._values, self._headers, is_key=self._is_key)
