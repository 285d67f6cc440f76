"""Bytes and their values, without I/O: batches, records, Kafka's own messages, names, settings.

`kernels` loops over bytes, compiled; `records` gives headers, codecs and records as Arrow columns;
`messages` reads what Kafka writes about itself.
"""
