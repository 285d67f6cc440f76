"""Log directories of several brokers as one: which copy of a partition is the log, and why."""
