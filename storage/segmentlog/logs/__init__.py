"""A log directory and its logs, to read."""
