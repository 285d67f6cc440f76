"""One partition as it lies on the disk: its segments, their batches, where the log ends."""
