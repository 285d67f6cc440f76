"""The door to the disk and to object stores: reads, durable writes, locks."""
