"""Dead letters of share groups, with the headers that Kafka 4.4 writes."""

from pathlib import Path

import segmentlog
from segmentlog.testing.reference import Record, encode_batch

HEADERS = {
    "topic": b"orders",
    "partition": b"2",
    "offset": b"41",
    "group": b"shipping",
    "delivery.count": b"3",
    "message": b"Offset rejected by client.",
}


def headers(**changed: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of a dead letter, some of them changed."""
    found = HEADERS | {name.replace("_", "."): value for name, value in changed.items()}
    return tuple((f"__dlq.errors.{name}".encode(), value) for name, value in found.items())


def test_the_headers_are_columns(tmp_path: Path) -> None:
    """A number that no broker writes is null; a record without the headers is no dead letter."""
    made = [
        Record(0, 10, None, b"v", headers()),
        Record(1, 11, None, b"v", ((b"mine", b"x"),)),
        Record(2, 12, None, b"v", headers(offset=b"9" * 19, partition=b"-1", delivery_count=b"x")),
    ]
    (tmp_path / "dlq.orders-1").mkdir()
    (tmp_path / "dlq.orders-1" / f"{0:020d}.log").write_bytes(encode_batch(made))
    first, other = segmentlog.table(tmp_path, "dead_letters").to_pylist()

    assert ("orders", 2, 41, "shipping", 3, "Offset rejected by client.", "dlq.orders", 1, 0) == (
        tuple(first.values())[:9]
    )
    assert (None, None, None, 2) == tuple(
        other[name] for name in ("partition", "offset", "delivery_count", "record_offset")
    )
    assert "dead_letters" in segmentlog.tables(tmp_path)
