"""Remove old records: retention, deleted records, deleted topics."""
