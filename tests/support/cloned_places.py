"""What the offset map of a clone says, however its rows are divided."""

from pathlib import Path

import pyarrow.parquet as pq

from segmentlog.maintain.offset_map import CLONED_MAP_SCHEMA

__all__ = ["places_of"]


def places_of(path: Path) -> list[tuple[int, ...]]:
    """A row of a map for each record, and for each end, in the order of the source."""
    assert pq.read_schema(path).equals(CLONED_MAP_SCHEMA)
    return sorted(
        (
            row["partition"],
            row["source_offset"] + i,
            row["n_records"] == 0,
            row["target_partition"],
            row["target_offset"] + i,
        )
        for row in pq.read_table(path).to_pylist()
        for i in range(max(row["n_records"], 1))
    )
