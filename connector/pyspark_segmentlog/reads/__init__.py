"""Batch reads: options to ranges of offsets, ranges to tasks, tasks to Arrow batches."""
