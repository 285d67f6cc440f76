"""Sparse indexes of a segment: from an offset or a time to a byte of the log."""
