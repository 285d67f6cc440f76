"""Removal of data from a log directory: topics, and later retention and compaction."""
