"""Checkpoints, indexes and files of ids of a log directory, as they lie on a disk."""
