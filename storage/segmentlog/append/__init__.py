"""On the driver: prepare logs, append staged batches, move staged files in."""
