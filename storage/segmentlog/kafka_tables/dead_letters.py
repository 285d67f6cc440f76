"""``dead_letters``: records that share groups have given up, and where they came from (KIP-1191).

A broker copies such a record to a topic of dead letters, and writes its place and the cause into
headers, as text.

Rules: ``ShareGroupDLQStateManager``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from segmentlog.kafka_tables.coordinator import end_of_read
from segmentlog.model import OnCorruptBatch
from segmentlog.reads.log import Log

_PREFIX = "__dlq.errors."
_TEXTS = {"topic": "topic", "group": "group", "message": "message"}

#: Headers with numbers, their columns, and the largest values that these have.
_NUMBERS = {
    "partition": ("partition", 2**31 - 1),
    "offset": ("offset", 2**63 - 1),
    "delivery.count": ("delivery_count", 2**31 - 1),
}


def dead_letter_rows(log: Log, on_corrupt_batch: OnCorruptBatch) -> Iterator[dict[str, Any]]:
    """A row for each record with a broker's headers; other records are no dead letters."""
    scan = log.scan(
        columns=["offset", "timestamp", "headers"],
        read_up_to=end_of_read(log, on_corrupt_batch),
        on_corrupt_batch=on_corrupt_batch,
    )
    for batch in scan:
        times = batch["timestamp"].cast("int64").to_pylist()
        rows = zip(batch["offset"].to_pylist(), times, batch["headers"].to_pylist(), strict=True)
        for offset, time, headers in rows:
            found = {
                each["key"].removeprefix(_PREFIX): (each["value"] or b"").decode(errors="replace")
                for each in headers or ()
                if each["key"].startswith(_PREFIX)
            }
            if found:
                yield _row(found) | {
                    "record_partition": log.topic_partition.partition, "record_offset": offset,
                    "record_timestamp": time, "change": "set",
                }  # fmt: skip


def _row(found: Mapping[str, str]) -> dict[str, Any]:
    """Columns of the headers; a text that is not the column's kind of number is null."""
    row: dict[str, Any] = {column: found.get(name) for name, column in _TEXTS.items()}
    for name, (column, most) in _NUMBERS.items():
        digits = found.get(name, "")
        is_number = digits.isascii() and digits.isdecimal() and len(digits) < 20
        row[column] = int(digits) if is_number and int(digits) <= most else None
    return row
