"""Logs for compaction, batch by batch, and what a cleaner in plain Python makes of them."""
