"""A log in an object store that any cluster writes: immutable objects, and a sequence of commits.

`storage/docs/bucket.md` has the design.
"""
