"""The disk: names, text files, read-only bytes; places and forms of data, not their meaning."""
