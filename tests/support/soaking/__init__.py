"""Writers, a stream, compaction and retention on one directory, and a checker of the results.

`plan` derives the writes from a seed, `history` compares reads with them, `writer` and `checker`
are programs, `stream` is a job of Spark's, and `upkeep` runs and kills the others.
"""
