"""The meaning of bytes: batch headers, codecs, and records as Arrow columns."""
