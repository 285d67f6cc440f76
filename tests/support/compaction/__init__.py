"""Logs for compaction, batch by batch, and their result by a cleaner in plain Python."""
