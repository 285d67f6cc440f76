"""A held log directory, one atomic change of it, and recovery after a crash.

A change has a guard, an intent, a decision, effects, or is undone.  Appends, overwrites,
retention, deleted records and deleted topics are such changes.  Compaction is not: it renames
files as a broker does (`segmentlog.log.swaps`).  `topics` writes single files, without a guard.
"""
