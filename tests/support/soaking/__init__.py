"""Writers, a stream, compaction and retention on one directory, and a checker of all they leave.

`plan` says from a seed what is written, `history` holds reads against it, `writer` and `checker`
are programs, `stream` is a job of Spark's, and `upkeep` runs and kills the others.
"""
