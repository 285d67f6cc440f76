"""Tables of Kafka's internal topics: groups, transactions, and the metadata of the cluster.

The names below are the door for a connector.
"""

from typing import TYPE_CHECKING

from segmentlog.exports import exported

if TYPE_CHECKING:
    from segmentlog.kafka_tables.open_table import table, table_schema

__all__ = ["table", "table_schema"]

__getattr__, __dir__ = exported(
    __name__,
    {
        "kafka_tables.open_table": "table table_schema",
    },
)
