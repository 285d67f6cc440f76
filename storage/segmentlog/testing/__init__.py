"""Public helpers for tests: logs that a test fills, and a plain-Python reference of the format."""
