"""A held log directory, and one atomic change of it: guard, intent, decision, effects, undo.

Appends, overwrites, retention, deleted records and deleted topics are such changes.  Compaction is
not: it renames files as a broker does (`segmentlog.recovery.swap_segments`).  `topics` and
`settings_file` write single files, without a guard.
"""
