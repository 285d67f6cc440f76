"""Count the records of each customer with Dask, and show how a query is spread over its workers.

Run with ``pip install . 'dask[dataframe]' && python examples/dask_frames.py [DIRECTORY]``.

A fragment of `segmentlog.dataset` is a part of a partition.  It can be pickled, and it reads its
own files, so that a cluster of Dask reads a directory that all of its machines see.  The same
works in Ray: ``ray.data.from_items(fragments)``, and then a task that calls ``to_table``.
"""

import sys
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow.dataset as ds

import segmentlog

DATA = str(Path(__file__).parent / "data")


def read(fragment: ds.Fragment, columns: list[str]) -> pd.DataFrame:
    """The rows of a fragment; Dask calls this on a worker."""
    return fragment.to_table(columns=columns).to_pandas()


def frame(path: str, columns: list[str]) -> dd.DataFrame:
    """A DataFrame of Dask with one part for each fragment."""
    dataset = segmentlog.dataset(path, strings=True)  # keys and values are text
    empty = dataset.schema.empty_table().select(columns).to_pandas()
    return dd.from_map(read, list(dataset.get_fragments()), columns=columns, meta=empty)


def main(path: str) -> None:
    """Count records, and find the busiest keys."""
    records = frame(path, ["topic", "partition", "key"])
    print(f"{records.npartitions} parts")
    print(records.groupby(["topic", "partition"]).size().compute().sort_index().to_string())
    orders = records[records.topic == "orders"]
    busiest = orders.groupby("key").size().nlargest(3).compute()
    for key, n_records in busiest.items():
        print(f"{key}: {n_records} orders")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else DATA)
