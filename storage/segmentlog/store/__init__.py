"""Files on disks and in object stores: reads, durable writes, locks, listings.

Reads go through `readable`, which has the contract of all disks; `remote` meets it for object
stores.  Bytes are written by `durable` alone, under a `lock`.  Names are renamed and
removed by the modules whose steps they are.
"""
