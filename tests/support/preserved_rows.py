"""Records with all columns, and directories that hold them at their offsets."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from plain_writes import write

from segmentlog import ProducerConfig


def rows(first: int, n_rows: int, **changed: Any) -> pa.Table:
    """Records with all columns; `changed` has other values by column, each for one offset.

    Names of headers may be text or bytes.
    """
    numbers = range(first, first + n_rows)
    columns: dict[str, list[Any]] = {
        "offset": [*numbers],
        "partition": [0] * n_rows,
        "timestampType": [0] * n_rows,
        "timestamp": [1_000_000 * i for i in numbers],
        "key": [b"k%d" % i if i % 3 else None for i in numbers],
        "value": [b"v%d" % i if i % 5 else None for i in numbers],
        "headers": [[("h", b"%d" % i), ("h", None)] if i % 2 else None for i in numbers],
    }
    for name, (offset, value) in changed.items():
        columns[name][offset - first] = value
    types = {
        "partition": pa.int32(),
        "timestampType": pa.int32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "headers": pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])),
    }
    return pa.table({name: pa.array(each, types.get(name)) for name, each in columns.items()})


def make(directory: Path, *tables: pa.Table, **config: Any) -> Path:
    """A directory with one partition."""
    write(directory, *tables, preserve=True, config=ProducerConfig(**config))
    return directory
