"""One atomic change of a log directory: guard, intent, decision, effects, undo.

Appends, overwrites, retention, deleted records and deleted topics are such changes.  Compaction is
not: it renames files as a broker does (`segmentlog.compaction.swap_segments`).  `topics` and
`settings_file` write single files, without a guard.
"""
