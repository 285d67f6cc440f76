"""The dataset itself: what pyarrow, DuckDB and Polars call."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from segmentlog.arguments import class_of_one_dialect, one_dialect
from segmentlog.arrow_dataset.aggregates import (
    Counts,
    count_by_headers,
    count_rows,
    counts_table,
    interval_milliseconds,
)
from segmentlog.arrow_dataset.bounds import (
    NO_FILES,
    DatasetBounds,
    slice_guarantee,
    timestamp_range,
)
from segmentlog.arrow_dataset.log_scanner import LogScanner, named_in
from segmentlog.format.records.columns import TextColumns, record_schema
from segmentlog.masking import with_plain_buckets
from segmentlog.model import LogSlice, OnCorruptBatch, ScanPolicy, TimestampRange, TopicPartition
from segmentlog.reads.latest_rows import latest_by_key

if TYPE_CHECKING:
    from segmentlog.decoding.rows import Decoding

#: Options of Arrow's scanners for its own threads, files and memory, which have no meaning here.
_OF_ARROW = frozenset(
    {
        "batch_readahead",
        "cache_metadata",
        "fragment_readahead",
        "fragment_scan_options",
        "memory_pool",
    }
)

_MOST_SHOWN = 20  # topics

#: Arguments that queries pass on to `Scannable.scanner`.
_OF_QUERIES = ("columns", "filter", "batch_size", "order", "use_threads", *sorted(_OF_ARROW))


@class_of_one_dialect(*_OF_QUERIES)
class Scannable:
    """The methods that datasets and fragments share: each is one query."""

    policy: ScanPolicy
    decoding: "Decoding | None"
    _schema: pa.Schema
    _condition: pc.Expression | None

    def slices(
        self, condition: pc.Expression | None = None, timestamps: TimestampRange | None = None
    ) -> Iterator[LogSlice]:
        """Slices that may hold rows for which `condition` is true, in the order of their rows.

        `timestamps` has the times of all such rows, if they are known.
        """
        raise NotImplementedError

    def cut(self, log_slice: LogSlice, n_bytes: int) -> list[LogSlice]:
        """A slice in pieces of about `n_bytes` of log."""
        raise NotImplementedError

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        batch_size: int | None = None,
        *,
        order: str = "offset",
        use_threads: bool = True,
        **options: Any,  # noqa: ANN401
    ) -> LogScanner:
        """A query of the dataset.

        Parameters
        ----------
        columns : names, or expressions by name; by default all columns.
        filter : rows for which it is true are kept.  Partitions and slices that cannot have such
            rows, by their topic, partition, offsets and largest timestamp, are not opened.
        batch_size : most rows of a batch; by default the decoder decides, with at most 50,000 rows
            and about 32 MiB.
        order : ``offset``: topics and partitions one after the other; or ``timestamp``, which
            merges all partitions into one timeline.  In the timeline, the place of a row is the
            largest timestamp up to that row in its partition, so that each partition keeps its
            order.
        use_threads : whether slices are read side by side.  Rows come in the same order.  A
            timeline is read by one thread.
        options : other options of pyarrow's scanners are accepted, and have no effect.
        """
        if not _OF_ARROW.issuperset(options):
            raise TypeError  # the decorator says more
        return LogScanner(
            self,
            self._schema,
            columns,
            _both(self._condition, filter),
            order=order,
            batch_size=batch_size,
            use_threads=use_threads,
        )

    def scan(self, *args: Any, **kwargs: Any) -> pa.RecordBatchReader:  # noqa: ANN401
        """A stream of Arrow batches, as `Log.scan` has it; parameters as for `scanner`."""
        return self.scanner(*args, **kwargs).to_reader()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All rows as a stream, by Arrow's protocol for all libraries."""
        return self.scanner().__arrow_c_stream__(requested_schema)

    def to_batches(self, *args: Any, **kwargs: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401
        """Batches, read while they are taken; parameters as for `scanner`."""
        return self.scanner(*args, **kwargs).to_batches()

    def to_table(self, *args: Any, **kwargs: Any) -> pa.Table:  # noqa: ANN401
        """All rows in memory; parameters as for `scanner`."""
        return self.scanner(*args, **kwargs).to_table()

    def head(self, num_rows: int, *args: Any, **kwargs: Any) -> pa.Table:  # noqa: ANN401
        """The first rows; other parameters as for `scanner`."""
        return self.scanner(*args, **kwargs).head(num_rows)

    def take(self, indices: Any, *args: Any, **kwargs: Any) -> pa.Table:  # noqa: ANN401
        """Rows by their numbers; other parameters as for `scanner`."""
        return self.scanner(*args, **kwargs).take(indices)

    def count_rows(
        self,
        filter: pc.Expression | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> int:
        """Number of rows for which `filter` is true; rows are decoded, but no column is made."""
        return self.scanner([], filter, **kwargs).count_rows()


@class_of_one_dialect()
class LogFragment(Scannable):
    """One slice of a dataset, with the methods of ``pyarrow.dataset.Fragment``."""

    def __init__(
        self,
        log_slice: LogSlice,
        policy: ScanPolicy,
        schema: pa.Schema,
        condition: pc.Expression | None,
        decoding: "Decoding | None" = None,
    ) -> None:
        self.log_slice = log_slice
        self.policy = policy
        self.decoding = decoding
        self._schema = schema
        self._condition = condition

    def __repr__(self) -> str:
        name, (start, end) = self.log_slice.topic_partition, self.log_slice.offsets
        return f"LogFragment({str(name)!r}, offsets [{start}, {end}))"

    @property
    def physical_schema(self) -> pa.Schema:
        """Schema of the rows."""
        return self._schema

    @property
    def partition_expression(self) -> pc.Expression:
        """Condition that all rows fulfil."""
        return slice_guarantee(self.log_slice)

    def slices(
        self, condition: pc.Expression | None = None, timestamps: TimestampRange | None = None
    ) -> Iterator[LogSlice]:
        return iter([self.log_slice])

    def cut(self, log_slice: LogSlice, n_bytes: int) -> list[LogSlice]:
        return [log_slice]


@class_of_one_dialect()
class LogDataset(Scannable, ds.UnionDataset):  # type: ignore[misc]
    """Log directories as a ``pyarrow.dataset.Dataset``; `segmentlog.dataset` makes it.

    Rows come in the order of topic, partition and offset.  The dataset can be read any number of
    times, by several threads at once, and pickled: it is opened again with the same bounds.

    Parameters
    ----------
    bounds : the partitions and their bounds.
    include_headers : whether there is a column ``headers``.
    condition : rows for which it is not true are left out by every query.
    narrowing : slices that cannot hold a row for which it is true are left out.
    decoding : of keys or values, if they are the columns of their schemas.
    """

    def __init__(
        self,
        bounds: DatasetBounds,
        *,
        include_headers: bool = False,
        condition: pc.Expression | None = None,
        narrowing: pc.Expression | None = None,
        decoding: "Decoding | None" = None,
    ) -> None:
        self._has_headers, self.decoding = include_headers, decoding
        schema = self._with_columns(bounds.policy, include_headers=include_headers)
        # Arrow's C++ may be handed this dataset, as a part of a union for example.  It then finds
        # a file that cannot be opened, and says so.
        file = ds.IpcFileFormat().make_fragment("log", filesystem=NO_FILES)
        super().__init__(
            schema, [ds.FileSystemDataset([file], schema, ds.IpcFileFormat(), NO_FILES)]
        )
        self._schema = schema
        self._bounds = bounds
        self._by_name = {each.topic_partition: each for each in bounds.partitions}
        self.policy = bounds.policy._replace(timestamps=timestamp_range(narrowing, schema))
        self._condition = condition
        self._narrowing = narrowing

    def _with_columns(self, policy: ScanPolicy, *, include_headers: bool) -> pa.Schema:
        schema = record_schema(
            include_headers=include_headers,
            text=policy.text,
            in_milliseconds=policy.in_milliseconds,
            header_names_as_bytes=policy.header_names_as_bytes,
        )
        return schema if self.decoding is None else self.decoding.schema_of(schema)

    @property
    def schema(self) -> pa.Schema:
        """The columns: those of Spark's ``kafka`` source, keys and values perhaps as strings."""
        return self._schema

    def __repr__(self) -> str:
        names = [*dict.fromkeys(each.topic_partition.topic for each in self._bounds.partitions)]
        paths = with_plain_buckets(", ".join(map(repr, self._bounds.paths)))
        n_more = len(names) - _MOST_SHOWN
        more = f" and {n_more:,} more" if n_more > 0 else ""
        return f"LogDataset({paths}, topics={names[:_MOST_SHOWN]}{more})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (
            self._bounds,
            self._has_headers,
            self._condition,
            self._narrowing,
            self.decoding,
        )

    def slices(
        self, condition: pc.Expression | None = None, timestamps: TimestampRange | None = None
    ) -> Iterator[LogSlice]:
        narrowing = _both(self._narrowing, condition)
        return self._bounds.slices(narrowing, timestamps, self._schema)

    def cut(self, log_slice: LogSlice, n_bytes: int) -> list[LogSlice]:
        return self._by_name[log_slice.topic_partition].cut(log_slice, n_bytes)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[LogFragment]:
        """Slices that may hold rows for which `filter` is true."""
        for log_slice in self.slices(_both(self._condition, filter)):
            yield self._fragment(log_slice)

    def _fragment(self, log_slice: LogSlice) -> LogFragment:
        return LogFragment(log_slice, self.policy, self._schema, self._condition, self.decoding)

    def filter(self, expression: pc.Expression) -> "LogDataset":
        """The dataset without the rows for which `expression` is not true."""
        return self._with(_both(self._condition, expression), self._narrowing)

    def count_by_time(self, interval: timedelta, *, exact: bool = False) -> pa.Table:
        """Number of records by partition and interval, without decoding most batches.

        A batch whose first and largest timestamps lie in one interval is counted there by its
        header.  So a record that is older than the first of its batch may be counted with it, an
        interval too late.  Of other batches, the timestamps are decoded.  Batches that are
        counted by their headers are not verified.

        Parameters
        ----------
        interval : of whole milliseconds; intervals begin at multiples of it since 1970 UTC.
        exact : whether all timestamps are decoded, and checksums verified.  That is also done if
            the dataset has a filter, or skips damage.

        Returns
        -------
        pyarrow.Table
            ``topic``, ``partition``, ``timestamp`` (beginning of the interval) and ``count``,
            sorted; without intervals that have no records.

        Raises
        ------
        OptionError
            If the interval is not a positive, whole number of milliseconds.
        CorruptLogError, UnsupportedFormatError, LogChangedError
            If the log cannot be read.
        """
        interval_ms = interval_milliseconds(interval)
        is_plain = self._condition is None and self._narrowing is None
        is_plain &= self.decoding is None or not self.decoding.skips
        skips = self.policy.on_corrupt_batch == OnCorruptBatch.SKIP
        if is_plain and not skips and not exact:
            counts = [
                (
                    each.topic_partition,
                    count_by_headers(each.log, each.offsets, interval_ms, self.policy),
                )
                for each in self._bounds.partitions
            ]
        else:
            found: dict[TopicPartition, Counts] = {}
            for log_slice in self.slices(self._condition):
                counted = found.setdefault(log_slice.topic_partition, {})
                rows = self._fragment(log_slice).to_batches(["timestamp"])
                count_rows(rows, interval_ms, counted)
            counts = list(found.items())
        return counts_table(counts, interval_ms)

    def latest(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The last record of each key and partition; a key whose last value is null has none.

        Compaction leaves these records, and also all records of the newest segment.  Records
        without a key are left out.

        Parameters
        ----------
        columns : names of the columns of the result; by default all.

        Returns
        -------
        pyarrow.Table
            In the order of topic, partition and offset.

        Raises
        ------
        OptionError
            If a column does not exist.
        CorruptLogError, UnsupportedFormatError, LogChangedError, InvalidUtf8Error
            If the log cannot be read.

        Notes
        -----
        All records are read once.  Beside the result, the rows of a reduction are in memory: as
        many bytes as the result has of one partition, and at least 64 MiB.
        """
        wanted = self._schema if columns is None else self._selected(columns)
        form = _Form(wanted.names, self.policy, self.decoding)
        needed = {*form.scanned, "topic", "partition", "key", "value"}
        scanned = [name for name in record_schema(include_headers=True).names if name in needed]
        is_plain = not self.policy.text and self.decoding is None
        rows = self.scanner(scanned).to_reader() if is_plain else self._as_bytes(scanned)
        found = (each for each in latest_by_key(rows).to_batches() if each.num_rows)
        made = pa.Table.from_batches(map(form.convert, found), wanted)
        form.end()
        return made

    def _selected(self, columns: Sequence[str]) -> pa.Schema:
        """The schema of some columns, of which one may be the headers."""
        every = self._with_columns(self.policy, include_headers=True)
        others = [name for name in columns if name not in every.names]
        names = record_schema(columns).names if others or self.decoding is None else columns
        return pa.schema([every.field(name) for name in names])

    def _as_bytes(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        """The rows with keys and values as bytes."""
        # As text, keys that are not UTF-8 could become equal, and values null, which would delete
        # their keys. So could values that cannot be decoded.
        condition, rows = self._condition, _Stored(self)
        if condition is None:
            return rows.scanner(columns).to_reader()
        decoding = self.decoding and self.decoding.with_all_rows()
        form = _Form([*named_in(self._schema, [condition])], self.policy, decoding)

        def matching() -> Iterator[pa.RecordBatch]:
            """The rows for which the condition on their text is true."""
            for batch in rows.scanner().to_batches():
                numbers = pa.array(np.arange(batch.num_rows))
                table = pa.Table.from_batches([form.convert(batch)])
                kept = table.append_column("row", numbers).filter(condition)["row"]
                yield batch.take(kept.combine_chunks()).select(columns)

        return pa.RecordBatchReader.from_batches(record_schema(columns), matching())

    def narrowed(self, condition: pc.Expression) -> "LogDataset":
        """The dataset without slices in which no row makes `condition` true; other rows stay."""
        return self._with(self._condition, _both(self._narrowing, condition))

    def _with(
        self, condition: pc.Expression | None, narrowing: pc.Expression | None
    ) -> "LogDataset":
        return _make(self._bounds, self._has_headers, condition, narrowing, self.decoding)

    def replace_schema(self, schema: pa.Schema) -> "LogDataset":
        """The dataset itself; another schema is refused, as the columns of a record are fixed."""
        if schema.equals(self._schema):
            return self
        reason = "the columns of a log are fixed; give scanner() expressions to make others"
        raise pa.ArrowNotImplementedError(reason)

    @one_dialect("null_placement")
    def sort_by(self, sorting: Any, **kwargs: Any) -> ds.InMemoryDataset:  # noqa: ANN401
        """The rows sorted, in memory, as pyarrow does it."""
        return ds.InMemoryDataset(self.to_table()).sort_by(sorting, **kwargs)

    @one_dialect(*signature(ds.Dataset.join).parameters)
    def join(self, right_dataset: ds.Dataset, *args: Any, **kwargs: Any) -> ds.InMemoryDataset:  # noqa: ANN401
        """A join in memory, as pyarrow does it."""
        return _in_memory(self).join(_in_memory(right_dataset), *args, **kwargs)

    @one_dialect(*signature(ds.Dataset.join_asof).parameters)
    def join_asof(
        self,
        right_dataset: ds.Dataset,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> ds.InMemoryDataset:
        """A join by nearest key, in memory, as pyarrow does it."""
        return _in_memory(self).join_asof(_in_memory(right_dataset), *args, **kwargs)


class _Stored(Scannable):
    """The rows of a dataset as they are stored; its conditions only leave slices out."""

    decoding = _condition = None

    def __init__(self, dataset: LogDataset) -> None:
        self._dataset = dataset
        self._schema = record_schema(include_headers=True)
        times = dataset.policy.timestamps or timestamp_range(dataset._condition, dataset.schema)
        self.policy = dataset.policy._replace(text=(), timestamps=times)

    def slices(
        self, condition: pc.Expression | None = None, timestamps: TimestampRange | None = None
    ) -> Iterator[LogSlice]:
        return self._dataset.slices(self._dataset._condition, timestamps)

    def cut(self, log_slice: LogSlice, n_bytes: int) -> list[LogSlice]:
        return self._dataset.cut(log_slice, n_bytes)


class _Form:
    """Makes wanted columns of rows as they are stored, each batch of one partition.

    `scanned`: the columns that it needs.
    """

    def __init__(
        self, wanted: Sequence[str], policy: ScanPolicy, decoding: "Decoding | None"
    ) -> None:
        self._wanted, self._decoding = wanted, decoding
        self._skipped = None if decoding is None else decoding.new_count()
        self._text = TextColumns(
            wanted if decoding is None else decoding.scanned(wanted),
            policy.text,
            policy.on_invalid_utf8,
        )
        self.scanned = self._text.scanned

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        place = TopicPartition(
            batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
        )
        rows = self._text.convert(batch.select(self.scanned), place)
        if self._decoding is None:
            return rows
        return self._decoding.decoded(rows, self._wanted, self._skipped, place)

    def end(self) -> None:
        """Log what was left out."""
        if self._skipped is not None:
            self._skipped.warn()


def _make(
    bounds: DatasetBounds,
    include_headers: bool,
    condition: pc.Expression | None,
    narrowing: pc.Expression | None,
    decoding: "Decoding | None",
) -> LogDataset:
    return LogDataset(
        bounds,
        include_headers=include_headers,
        condition=condition,
        narrowing=narrowing,
        decoding=decoding,
    )


def _in_memory(dataset: ds.Dataset) -> ds.Dataset:
    return ds.InMemoryDataset(dataset.to_table()) if isinstance(dataset, LogDataset) else dataset


def _both(first: pc.Expression | None, second: pc.Expression | None) -> pc.Expression | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second
