"""Records as consumers return them.

They are read as Java prints them: one call returns a thousand, instead of ten calls for each.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

_TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
#: ``ConsumerRecord.toString`` up to the bytes of the key; keys and values of headers are numbers.
_RECORD = re.compile(
    r"ConsumerRecord\(topic = (?P<topic>\S+), partition = (?P<partition>\d+),"
    r"(?: leaderEpoch = \w+,)? offset = (?P<offset>\d+), (?P<type>\w+) = (?P<time>-?\d+),"
    r"(?: deliveryCount = \w+,)? serialized key size = (?P<key>-?\d+),"
    r" serialized value size = (?P<value>-?\d+),"
    r" headers = RecordHeaders\(headers = \[(?P<headers>.*?)\], isReadOnly = \w+\), key = ",
    re.DOTALL,
)
_HEADER = re.compile(
    r"RecordHeader\(key = (.*?), value = (null|\[[-\d, ]*\])\)(?:, |\Z)", re.DOTALL
)


class KafkaRecord(NamedTuple):
    """A record as a consumer returns it; without headers, `headers` is None, as in Spark."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None


def parse_records(printed: str) -> Iterator[KafkaRecord]:
    """The records of a printed list, whose keys and values are strings in ISO-8859-1."""
    at, end = 1, len(printed) - 1
    while at < end:
        found = _RECORD.match(printed, at)
        if not found:
            message = f"not a record: {printed[at : at + 500]!r}"
            raise ValueError(message)
        key, at = _bytes(printed, found.end(), int(found["key"]), ", value = ")
        value, at = _bytes(printed, at, int(found["value"]), ")")
        yield KafkaRecord(
            found["topic"],
            int(found["partition"]),
            int(found["offset"]),
            int(found["time"]),
            _TIMESTAMP_TYPES[found["type"]],
            key,
            value,
            _headers(found["headers"]),
        )
        at += len(", ")


def _bytes(printed: str, at: int, size: int, closing: str) -> tuple[bytes | None, int]:
    """The bytes at a place, null if their size is negative, and the place after `closing`."""
    end = at + (len("null") if size < 0 else size)
    if not printed.startswith(closing, end):
        message = f"{closing!r} does not follow {printed[max(0, at - 500) : end + 20]!r}"
        raise ValueError(message)
    text = printed[at:end]
    return None if size < 0 else text.encode("latin-1"), end + len(closing)


def _headers(printed: str) -> tuple[tuple[str, bytes | None], ...] | None:
    """Keys and values of headers; bytes are signed in Java."""
    found, at = [], 0
    while at < len(printed):
        header = _HEADER.match(printed, at)
        if not header:
            message = f"not a header: {printed[at : at + 500]!r}"
            raise ValueError(message)
        key, numbers = header.groups()
        signed = re.findall(r"-?\d+", numbers)
        value = None if numbers == "null" else bytes(int(each) & 0xFF for each in signed)
        found.append((key, value))
        at = header.end()
    return tuple(found) or None


def rows_of(table: pa.Table) -> list[KafkaRecord]:
    """Rows of a scan with headers, as a consumer's records."""
    at = table.schema.get_field_index("timestamp")
    table = table.set_column(at, "timestamp", table.column(at).cast(pa.int64()))
    return [
        KafkaRecord(
            row["topic"],
            row["partition"],
            row["offset"],
            row["timestamp"] // 1000,
            row["timestampType"],
            row["key"],
            row["value"],
            None
            if row["headers"] is None
            else tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in table.to_pylist()
    ]
