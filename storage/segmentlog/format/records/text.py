"""Keys and values as text, for readers that ask for strings in place of bytes.

Arrow validates the column of a batch without a copy.  Only if that fails are its values looked at
one by one.
"""

from collections.abc import Sequence

import pyarrow as pa

from segmentlog.errors import InvalidUtf8Error
from segmentlog.format.records.columns import decode_as_java
from segmentlog.model import OnInvalidUtf8, TopicPartition


class TextColumns:
    """Makes text of keys or values.

    `columns`: names of the requested columns, in order.  `text`: the columns to return as text, if
    they are requested: ``key``, ``value`` or both.  `on_invalid`: the treatment of bytes that are
    not UTF-8.  `scanned`: names of the columns to scan; an error needs the offsets.
    """

    def __init__(
        self,
        columns: Sequence[str],
        text: Sequence[str],
        on_invalid: OnInvalidUtf8,
    ) -> None:
        self._columns = tuple(columns)
        self._text = frozenset(text) & frozenset(columns)
        self._on_invalid = on_invalid
        fails = bool(self._text) and on_invalid == OnInvalidUtf8.FAIL
        needs_offset = fails and "offset" not in columns
        self.scanned = (*columns, "offset") if needs_offset else tuple(columns)

    def convert(self, batch: pa.RecordBatch, topic_partition: TopicPartition) -> pa.RecordBatch:
        """The requested columns of a batch with the scanned columns, which is not copied.

        Raises `InvalidUtf8Error` if bytes are not UTF-8, and `on_invalid` does not allow them.
        """
        if not self._text:
            return batch
        arrays = [
            self._to_text(batch, name, topic_partition)
            if name in self._text
            else batch.column(name)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=self._columns)

    def _to_text(
        self, batch: pa.RecordBatch, name: str, topic_partition: TopicPartition
    ) -> pa.Array:
        column = batch.column(name)
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            values = column.to_pylist()
        if self._on_invalid == OnInvalidUtf8.FAIL:
            row = next(row for row, value in enumerate(values) if not _is_utf8(value))
            raise InvalidUtf8Error(*topic_partition, batch.column("offset")[row].as_py(), name)
        if self._on_invalid == OnInvalidUtf8.NULL:
            found = [value if _is_utf8(value) else None for value in values]
        else:
            found = [None if value is None else decode_as_java(value) for value in values]
        return pa.array(found, pa.string())


def _is_utf8(value: bytes | None) -> bool:
    """Whether a value is null or text."""
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False
