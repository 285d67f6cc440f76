"""From rows to the record batches of partitions."""
