"""The door to the disk and to object stores: reads, durable writes, locks.

Reads go through `readable`, by one `contract`: `local` meets it for mounted file systems, `remote`
for object stores.  Writes go through `durable`, under a `lock`.
"""
