"""Log directories as a ``pyarrow.dataset.Dataset``, for DuckDB, Polars and pyarrow itself."""
