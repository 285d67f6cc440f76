"""Tiered storage (KIP-405): the parts of a log that a broker has copied into a bucket.

A tier is read through a virtual disk (`segmentlog.tiered.disk`).  A partition on this disk has its
local segments and, before them, its remote ones, under the names that a broker gives to local
files.  So all reads, look-ups and checks work on a tier as they work on a directory.
"""
