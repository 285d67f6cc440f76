"""Tables of Kafka's internal topics: groups, transactions, and the metadata of the cluster.

The names below are the door for a connector.
"""

from segmentlog.kafka_tables.open_table import table, table_schema

__all__ = ["table", "table_schema"]
