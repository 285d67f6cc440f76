"""Logs as a Polars LazyFrame: columns, predicates and limits reach the reader.

``polars.scan_pyarrow_dataset(segmentlog.dataset(path))`` does nearly the same.  Here, a predicate
is evaluated by Polars itself, and a limit ends the read.  Polars is imported by the first call.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.arguments import takes
from segmentlog.arrow_dataset.open_dataset import dataset
from segmentlog.model import TimestampRange
from segmentlog.read_options import DatasetOptions
from segmentlog.reads.log_directory import LogDirectory

if TYPE_CHECKING:
    import polars as pl

    from segmentlog.arrow_dataset.log_dataset import LogDataset


@takes(DatasetOptions)
def scan_log(
    path: str | os.PathLike[str] | LogDirectory,
    *more: str | os.PathLike[str] | Sequence[str],
    topics: str | Sequence[str] | None = None,
    **options: Unpack[DatasetOptions],
) -> "pl.LazyFrame":
    """Records of all partitions as a LazyFrame, which reads when it is collected.

    Partitions, slices and segments that cannot have rows for a predicate, by their topic,
    partition, offsets and largest timestamp, are not opened.

    Parameters
    ----------
    path, more, topics : as `segmentlog.dataset` takes them, with its errors.
    **options : those of `DatasetOptions`.
    """
    import polars as pl
    from polars.io.plugins import register_io_source

    logs = dataset(path, *more, topics=topics, **options)
    nothing = pl.from_arrow(logs.schema.empty_table())

    def source(
        with_columns: list[str] | None,
        predicate: "pl.Expr | None",
        n_rows: int | None,
        batch_size: int | None,
    ) -> "Iterator[pl.DataFrame]":
        columns = logs.schema.names if with_columns is None else with_columns
        used = [] if predicate is None else predicate.meta.root_names()
        decoded = [name for name in logs.schema.names if name in {*columns, *used}]
        # Rows count towards `n_rows` whether or not the predicate keeps them.
        narrowed = logs if n_rows is not None else _narrow(logs, predicate)
        for batch in narrowed.scanner(decoded, batch_size=batch_size).to_batches():
            part = batch if n_rows is None else batch.slice(0, n_rows)
            kept = _of_times(part, narrowed.policy.timestamps)
            if kept.num_rows:  # a frame without rows takes Polars 1 ms, too
                rows = pl.DataFrame(pa.Table.from_batches([kept]))
                yield (rows if predicate is None else rows.filter(predicate)).select(columns)
            if n_rows is not None:
                n_rows -= part.num_rows
                if not n_rows:
                    return

    return register_io_source(source, schema=pl.DataFrame(nothing).schema)


def _of_times(batch: pa.RecordBatch, wanted: TimestampRange | None) -> pa.RecordBatch:
    """The rows of these times: others need not be made Polars' rows, which takes longer.

    A batch all of whose rows are wanted is not copied.
    """
    if wanted is None or not batch.num_rows:
        return batch
    column = batch.column("timestamp")
    first, last = (1000 * wanted.start_ms, 1000 * wanted.end_ms - 1)
    oldest, newest = (each.value for each in pc.min_max(column).values())
    if first <= oldest and newest <= last:
        return batch
    if newest < first or last < oldest:
        return batch.slice(0, 0)
    first, last = (
        pa.scalar(min(max(each, oldest), newest), column.type) for each in (first, last)
    )
    return batch.filter(pc.and_(pc.greater_equal(column, first), pc.less_equal(column, last)))


class _Probe:
    """Stands for a dataset, and notes the filter that Polars hands to it."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.filter: Any = None

    def to_batches(self, *, filter: Any = None, **_: Any) -> list[pa.RecordBatch]:  # noqa: ANN401
        self.filter = filter
        return []


def _narrow(logs: "LogDataset", predicate: "pl.Expr | None") -> "LogDataset":
    """The slices that may hold rows for which `predicate` is true.

    Polars translates predicates for Arrow only within a scan of a dataset of Arrow's.  It leaves
    out what it cannot translate, and then nothing is narrowed.
    """
    import polars as pl

    if predicate is None:
        return logs
    probe = _Probe(logs.schema)
    with contextlib.suppress(pl.exceptions.PolarsError):  # of the predicate, which rows will meet
        pl.scan_pyarrow_dataset(probe).filter(predicate).collect()
    return logs if probe.filter is None else logs.narrowed(probe.filter)
