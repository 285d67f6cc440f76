"""The disk: names, text files, read-only bytes; what stands where, not what it means."""
