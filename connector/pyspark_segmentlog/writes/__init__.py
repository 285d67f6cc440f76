"""Batch writes: options and a schema to a job, and rows to its staged files."""
