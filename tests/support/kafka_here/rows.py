"""Rows of the engine in the form of a consumer's records, to compare both."""

import pyarrow as pa

from kafka_here.java import KafkaRecord


def rows_of(table: pa.Table) -> list[KafkaRecord]:
    """Rows of a scan with headers, as a consumer's records."""
    at = table.schema.get_field_index("timestamp")
    table = table.set_column(at, "timestamp", table.column(at).cast(pa.int64()))
    return [
        KafkaRecord(
            row["topic"], row["partition"], row["offset"], row["timestamp"] // 1000,
            row["timestampType"], row["key"], row["value"],
            None if row["headers"] is None
            else tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in table.to_pylist()
    ]  # fmt: skip
