"""Kafka's rules by which a group's members share partitions, as pure functions."""
