"""Compiled loops over bytes: no Arrow, no exceptions, and no I/O but that of `one_pass`.

A kernel takes arrays and returns a status with the position it stopped at; its caller turns the
pair into an error with coordinates.  Every index into a buffer is checked against the end that was
passed in, so hostile bytes give a status and never a read outside the buffer.

`layout` has the bytes of every known format of batches.  A new format begins there, then in
`scan`, and in `segmentlog.format.records.header`, which reads single headers.

This package's ``__init__`` imports nothing: planning needs the constants of `layout` alone.
"""
