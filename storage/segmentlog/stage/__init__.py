"""In a task: rows become partitions, batches and staged files."""
