"""Public helpers for tests: a plain-Python reference of the format, and builders."""
