"""Checkpoints, indexes and files of ids as they lie on a disk; checkpoints of Spark's streams."""
