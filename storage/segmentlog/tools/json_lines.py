"""Records of a batch as lines of JSON: the fields of `record_rows` as `to_json` writes them.

A line is joined from its parts, and `json` quotes the texts.  A dictionary for each record and
`to_json` take four times as long for usual records of 110 bytes.
"""

from collections.abc import Iterator
from json.encoder import encode_basestring as quoted
from typing import Any

import pyarrow as pa

from segmentlog.records.header import BatchHeader
from segmentlog.tools.rows import Place, RecordText, sequence_after, timestamp_type
from segmentlog.tools.text import escape_json, to_json

__all__ = ["record_lines"]

_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


def record_lines(
    place: Place, header: BatchHeader, records: pa.RecordBatch, text: RecordText
) -> Iterator[str]:
    """A line, with its end, for each record of one batch, which is not a control batch."""
    begin = to_json({"kind": "record", "topic": place.topic, "partition": place.partition})[:-1]
    kind = timestamp_type(header)
    base_offset, base_sequence = header.base_offset, header.base_sequence
    as_key, as_value = text.key, text.value
    columns = (records.column(name).to_pylist() for name in _COLUMNS)
    for offset, timestamp, key, value, headers in zip(*columns, strict=True):
        line = (
            f'{begin}, "offset": {offset}, "timestampType": "{kind}", "timestamp": {timestamp}, '
            f'"keySize": {-1 if key is None else len(key)}, '
            f'"valueSize": {-1 if value is None else len(value)}, '
            f'"sequence": {sequence_after(base_sequence, offset - base_offset)}, '
            f'"key": {"null" if key is None else quoted(as_key(key))}, '
            f'"value": {"null" if value is None else quoted(as_value(value))}, '
            f'"headers": [{_headers(headers, text) if headers else ""}]}}'
        )
        yield escape_json(line) + "\n"


def _headers(headers: list[dict[str, Any]], text: RecordText) -> str:
    return ", ".join(
        f'{{"key": {quoted(key)}, "value": '
        f"{'null' if value is None else quoted(text.value(value))}}}"
        for key, value in map(dict.values, headers)
    )
