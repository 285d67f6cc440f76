"""Turn the rows of a task into staged batches, a buffer at a time.

The columns of the rows are checked first.  Then a partition is chosen for each row, as Kafka's
producers do (``BuiltInPartitioner``), and the rows of each partition are encoded together.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from segmentlog.errors import (
    ColumnError,
    InvalidRecordError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
)
from segmentlog.format.kernels import partition as kernel
from segmentlog.format.kernels import status
from segmentlog.format.kernels.memory import Bytes, Int32s, Int64s
from segmentlog.format.kernels.source import SourceArrays
from segmentlog.format.records.columns import scalar
from segmentlog.format.records.encoder import (
    MOST_ROW_BYTES,
    EncodedBatches,
    RecordEncoder,
    array_view,
    bitmap_view,
    buffer_view,
    cut_rows,
    pooled_array,
    record_source,
)
from segmentlog.model import LARGEST_LONG, TimestampType, TopicPartition
from segmentlog.store.system_errors import storage_errors
from segmentlog.writes.config import ProducerConfig
from segmentlog.writes.sequences import SequenceNumbers
from segmentlog.writes.staged_files import TaskExtents, TaskStage

if TYPE_CHECKING:
    from segmentlog.bucket.data_objects import ObjectStage

#: Full batches of each partition to hold before they are written.  With more, fewer batches are
#: cut short; with fewer, the rows of few partitions are still in the processor's caches.
_HELD_BATCHES = 16

#: The least that a row counts: a row of nulls alone has no bytes.
_LEAST_ROW_BYTES = 16

_COLUMNS = (
    "key",
    "value",
    "headers",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
)

_PER_MILLISECOND = {"s": 1, "ms": 1, "us": 1000, "ns": 1_000_000}

_TYPES: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "topic": (
        lambda kind: (
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_string_view(kind)
        ),
        "a string",
    ),
    "partition": (pa.types.is_integer, "an integer"),
    "offset": (pa.types.is_int64, "int64"),
    "timestamp": (pa.types.is_timestamp, "a timestamp"),  # without a zone, it is in UTC
    "timestampType": (pa.types.is_integer, "an integer"),
}


def check_columns(schema: pa.Schema, topic: str | None, config: ProducerConfig) -> None:
    """Refuse rows with a missing column or a wrong type; other columns are ignored.

    Keys, values and headers are checked where they are read
    (`segmentlog.format.records.encoder.record_source`).
    """
    needed = ["value"]
    if topic is None:
        needed.append("topic")
    if config.use_timestamps:
        needed.append("timestamp")
    if config.use_timestamp_types:
        needed.append("timestampType")
    if config.use_offsets:
        needed += ["partition", "offset"]
    for name in {*needed, *_TYPES, "key", "headers"}:
        if schema.names.count(name) > 1:
            raise ColumnError(name, "present more than once", "drop or rename all but one")
    for name in needed:
        if name not in schema.names:
            raise ColumnError(name, "missing", f"the rows have: {', '.join(schema.names)}")
    taken = {*needed, "partition"} - {"value"}
    for field in schema:
        if field.name in taken and not _TYPES[field.name][0](field.type):
            accepted = f"it has to be {_TYPES[field.name][1]}"
            raise ColumnError(field.name, str(field.type), accepted)


class Restored(NamedTuple):
    """Offsets and append times that rows keep from the log that they come from.

    `offsets`: int64 array, shape (n_rows,), or None to take the next offsets of the log.
    `append_times`: int64 array, shape (n_rows,), epoch milliseconds: when a log appended the row,
    or -1 if the timestamp is its producer's; None if this holds for all rows.
    """

    offsets: Int64s | None
    append_times: Int64s | None

    def runs(self, rows: Int64s) -> list[tuple[int, int, int | None]]:
        """Cut rows where a batch has to end: all rows of a batch have the same append time.

        Returns start, end and append time of each run; the time is None if the producer's
        timestamps hold.
        """
        if self.append_times is None:
            return [(0, len(rows), None)]
        times = self.append_times[rows]
        ends = [*(np.flatnonzero(np.diff(times)) + 1).tolist(), len(rows)]
        starts = [0, *ends[:-1]]
        firsts = times[starts].tolist()
        return [
            (start, end, time if time >= 0 else None)
            for start, end, time in zip(starts, ends, firsts, strict=True)
        ]


def restored(topic: str, rows: pa.RecordBatch, config: ProducerConfig, times: Int64s) -> Restored:
    """Offsets and append times of rows, if `config` uses them.

    `times`: int64 array, shape (n_rows,); their timestamps.
    """
    offsets = append_times = None
    if config.use_offsets:
        _check_not_null(topic, rows, "partition")  # the key may not have chosen the partition
        offsets = _numbers(topic, rows, "offset")
    if config.use_timestamp_types:
        kinds = _numbers(topic, rows, "timestampType")
        unknown = (kinds < -1) | (kinds > 1)
        if unknown.any():
            row = int(np.argmax(unknown))
            reason = (
                f"its timestampType is {kinds[row]}: it has to be 0 for CreateTime, 1 for "
                "LogAppendTime, or -1 for none"
            )
            raise InvalidRecordError(topic, -1, row, reason)
        append_times = np.where(kinds == 1, times, -1)
    return Restored(offsets, append_times)


def milliseconds(topic: str, rows: pa.RecordBatch, default: int) -> Int64s:
    """The column ``timestamp`` in epoch milliseconds, `default` where it is null."""
    column = rows.column("timestamp")
    whole = column.cast(pa.int64()).fill_null(scalar(0, pa.int64()))
    # `to_numpy` would load pandas.
    counts = buffer_view(whole.buffers()[1], np.int64, len(whole), 8 * whole.offset)
    if column.type.unit == "s":
        wrong = np.abs(counts) > LARGEST_LONG // 1000
        if wrong.any():
            reason = "its timestamp does not fit 64-bit milliseconds"
            raise InvalidRecordError(topic, -1, int(np.argmax(wrong)), reason)
        counts = counts * 1000
    # Rounded towards the past, as Kafka's source does.
    found: Int64s = counts // _PER_MILLISECOND[column.type.unit]
    if column.null_count:
        found = np.where(column.is_null().to_numpy(zero_copy_only=False), default, found)
    return found


def partition_numbers(topic: str, rows: pa.RecordBatch) -> pa.Array:
    """The column ``partition`` as int32, from any type of integers."""
    column = rows.column("partition")
    try:
        return column.cast(pa.int32())
    except pa.ArrowInvalid as error:
        numbers = column.to_pylist()
        fits = [n is None or -(2**31) <= n < 2**31 for n in numbers]
        row = fits.index(False)
        reason = f"no topic has a partition {numbers[row]}"
        raise InvalidRecordError(topic, -1, row, reason) from error


def _check_not_null(topic: str, rows: pa.RecordBatch, name: str) -> None:
    column = rows.column(name)
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise InvalidRecordError(topic, -1, row, f"its {name} is null")


def _numbers(topic: str, rows: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    _check_not_null(topic, rows, name)
    numbers: NDArray[np.int64] = rows.column(name).cast(pa.int64()).to_numpy()
    return numbers


_NO_PARTITIONS: Int32s = array_view(np.empty(0, np.int32))
_NO_BITMAP: Bytes = array_view(np.empty(0, np.uint8))


class Partitioner:
    """Chooses partitions for the rows of one topic, batch by batch.

    `batch_size`: bytes of rows without a key that go to one partition before the next partition.
    `first_partition`: the partition that these rows begin with; parallel tasks begin with
    different ones.
    """

    def __init__(
        self, topic: str, n_partitions: int, batch_size: int, first_partition: int = 0
    ) -> None:
        self._topic = topic
        self._n_partitions = n_partitions
        self._batch_size = batch_size
        self._sticky: Int64s = np.zeros(kernel.N_STICKY, np.int64)
        self._sticky[kernel.STICKY_PARTITION] = first_partition % n_partitions

    def choose(self, source: SourceArrays, explicit: pa.Array | None = None) -> Int32s:
        """Partition of each row; int32 array, shape (n_rows,).

        A partition that a row names takes precedence over the hash of its key; an empty key is a
        key.  Rows without either stay together for about a batch's size.

        `source`: the columns, as `segmentlog.format.records.encoder.record_source` gives them.
        `explicit`: int32 column, null where a row leaves the choice to the partitioner.  Raises
        `InvalidRecordError` if a row names a partition that the topic does not have.
        """
        named, valid, first_bit = _NO_PARTITIONS, _NO_BITMAP, 0
        if explicit is not None and len(explicit):
            start = explicit.offset * 4
            named = buffer_view(explicit.buffers()[1], np.int32, len(explicit), start)
            valid, first_bit = bitmap_view(explicit)
        chosen: Int32s = pooled_array(len(source.timestamps), np.int32)
        code, row = kernel.choose_partitions(
            source,
            named,
            valid,
            first_bit,
            self._n_partitions,
            self._batch_size,
            self._sticky,
            chosen,
        )
        if code != status.OK:
            reason = f"it names partition {named[row]}, but the topic has partitions 0 to "
            reason += f"{self._n_partitions - 1}; num_partitions "
            reason += "(in Spark numPartitions) is the number of partitions of a new topic"
            raise InvalidRecordError(self._topic, int(named[row]), row, reason)
        return chosen


def group_rows(partitions: Int32s, n_partitions: int) -> tuple[Int64s, Int64s]:
    """Sort the rows by partition, keeping their order within each.

    `partitions`: int32 array, shape (n_rows,); each from 0 to ``n_partitions - 1``.  Returns
    `rows`, an int64 array, shape (n_rows,); `starts`, an int64 array, shape (n_partitions + 1,);
    partition ``p`` has ``rows[starts[p] : starts[p + 1]]``.  Raises `IndexError` if a partition is
    outside this range.
    """
    if len(partitions) and not 0 <= partitions.min() <= partitions.max() < n_partitions:
        message = f"partitions are from 0 to {n_partitions - 1}"
        raise IndexError(message)
    rows: Int64s = pooled_array(len(partitions), np.int64)
    starts: Int64s = np.empty(n_partitions + 1, np.int64)
    kernel.group_rows(partitions, starts, rows)
    return rows, starts


class RowStager:
    """Stages the rows of one task attempt.

    Rows are held until there are some full batches for each partition, or until they take
    `ProducerConfig.buffer_memory` bytes.  So memory does not grow with the number of partitions,
    and batches are full unless there are very many partitions.

    `topic`: of all rows, or None to take the column ``topic``.  `n_partitions`: of a topic, by its
    name.  `first_partition`: the partition that rows without a key begin with.  `numbers`: the
    sequences of an idempotent producer, if the rows have one.
    """

    def __init__(
        self,
        stage: "TaskStage | ObjectStage",
        config: ProducerConfig,
        topic: str | None,
        n_partitions: Callable[[str], int],
        first_partition: int = 0,
        numbers: SequenceNumbers | None = None,
    ) -> None:
        self._stage = stage
        self._config = config
        self._topic = topic
        self._n_partitions = n_partitions
        self._first_partition = first_partition
        self._numbers = numbers
        self._encoder = _encoder(config)
        self._encoders = {each: _encoder(config.of(each)) for each in config.own}
        self._partitioners: dict[str, tuple[Partitioner, int]] = {}
        self._held: list[pa.RecordBatch] = []
        self._n_bytes = 0
        self._n_rows = 0  # number of rows before those that are held
        self._schema: pa.Schema | None = None
        self._last_offsets: dict[TopicPartition, int] = {}

    @storage_errors()
    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows, and write out the held rows when there are enough of them.

        Raises `OptionError` if a column is missing, or has another type.  Raises
        `InvalidRecordError` or `RecordTooLargeError` or `OffsetsOutOfOrderError` if a row cannot
        be written; then nothing of the task may be committed.  Raises `StorageError` if the disk
        is full, or fails.
        """
        if batch.schema != self._schema:
            self.check(batch.schema)
            self._write_held()
            self._schema = batch.schema
        taken = _with_plain_categories(
            batch.select([name for name in _COLUMNS if name in batch.schema.names])
        )
        if self._topic is None:
            taken = _without_views(taken)
        for rows, n_bytes in cut_rows(taken, self._config.buffer_memory, _LEAST_ROW_BYTES):
            self._hold(rows, n_bytes)

    def _hold(self, rows: pa.RecordBatch, n_bytes: int) -> None:
        """Take rows of `n_bytes` decoded bytes, or refuse a row that no batch can hold."""
        if n_bytes > MOST_ROW_BYTES:
            self._write_held()  # it counts the rows before this one
            reason = f"it takes {n_bytes} bytes, and no batch holds more than {MOST_ROW_BYTES}"
            raise InvalidRecordError(self._topic or "", -1, self._n_rows, reason)
        if self._n_bytes and self._n_bytes + n_bytes > self._config.buffer_memory:
            self._write_held()
        self._n_bytes += n_bytes
        self._held.append(rows)
        most = self._config.buffer_memory
        if self._topic is not None:
            _, n_partitions = self._partitioner(self._topic)
            most = min(most, _HELD_BATCHES * self._config.batch_size * n_partitions)
        if self._n_bytes >= most:
            self._write_held()
        elif rows.get_total_buffer_size() > self._config.buffer_memory:
            # Otherwise a few rows of a large batch could keep all memory of the batch alive.
            self._held[-1] = pa.concat_batches([rows])

    def add_batches(self, topic_partition: TopicPartition, batches: EncodedBatches) -> None:
        """Stage batches that are made already, after the rows before them."""
        self._write_held()
        self._stage.add(topic_partition, batches)

    def check(self, schema: pa.Schema) -> None:
        """Refuse rows that lack a required column, before any row is taken."""
        if schema != self._schema:
            plain = pa.schema([each.with_type(_without_categories(each)) for each in schema])
            check_columns(plain, self._topic, self._config)

    @storage_errors()
    def finish(self) -> TaskExtents:
        """Write out the rest; return the staged extents, synced if the settings require it."""
        self._write_held()
        return cast("TaskExtents", self._stage.close())  # an object's have the same face

    def discard(self) -> None:
        """Forget everything: the task has failed."""
        self._held.clear()
        self._stage.discard()

    def _write_held(self) -> None:
        held, self._held, self._n_bytes = self._held, [], 0
        if not held:
            return
        table = pa.Table.from_batches(held).combine_chunks()
        for rows in table.to_batches():
            if self._topic is None:
                self._write_topics(rows)
            else:
                self._write_run(self._topic, rows)
            self._n_rows += rows.num_rows

    def _write_topics(self, rows: pa.RecordBatch) -> None:
        """Write rows that name their topics; the rows of a topic keep their order."""
        topics = rows.column("topic")
        if topics.null_count:
            row = pc.index(topics.is_null(), True).as_py()
            reason = "its topic is null: fill the column, or give the option topic"
            raise InvalidRecordError("", -1, self._n_rows + row, reason)
        encoded = topics.dictionary_encode()
        order = pc.array_sort_indices(encoded.indices).to_numpy()
        ends = np.cumsum(np.bincount(encoded.indices.to_numpy(), minlength=1)).tolist()
        grouped, start = rows.take(pa.array(order)), 0
        for topic, end in zip(encoded.dictionary.to_pylist(), ends, strict=True):
            self._write_run(topic, grouped.slice(start, end - start), order[start:end])
            start = end

    def _write_run(
        self, topic: str, rows: pa.RecordBatch, order: NDArray[np.uint64] | None = None
    ) -> None:
        """Write rows of one topic; an error names the row as the task has counted it."""
        try:
            self._write_topic(topic, rows)
        except (InvalidRecordError, RecordTooLargeError) as error:
            place = error.row if order is None else int(order[error.row])
            raise error.at_row(self._n_rows + place) from error

    def _write_topic(self, topic: str, rows: pa.RecordBatch) -> None:
        partitioner, n_partitions = self._partitioner(topic)
        now = int(time.time() * 1000)
        if self._config.use_timestamps and "timestamp" in rows.schema.names:
            timestamps = milliseconds(topic, rows, now)
        else:
            timestamps = pooled_array(rows.num_rows, np.int64)
            timestamps.fill(now)
        source = record_source(rows, timestamps)
        explicit = None
        if "partition" in rows.schema.names:
            explicit = partition_numbers(topic, rows)
        chosen = partitioner.choose(source, explicit)
        order, starts = group_rows(chosen, n_partitions)
        keeps = restored(topic, rows, self._config, timestamps)
        kind = self._config.of(topic).topic_config.message_timestamp_type
        log_time = now if kind == TimestampType.LOG_APPEND_TIME else None
        encoder = self._encoders.get(topic, self._encoder)
        partitions = np.flatnonzero(np.diff(starts)).tolist()
        if self._numbers is not None:
            self._numbers.look_up(TopicPartition(topic, each) for each in partitions)
        for partition in partitions:
            mine = order[starts[partition] : starts[partition + 1]]
            topic_partition = TopicPartition(topic, partition)
            for begin, end, append_time in keeps.runs(mine):
                run = mine[begin:end]
                offsets = None if keeps.offsets is None else keeps.offsets[run]
                bounds = self._check_rising(topic_partition, offsets)
                batches = encoder.encode(
                    topic_partition,
                    source,
                    run,
                    offsets=offsets,
                    append_time_ms=log_time if append_time is None else append_time,
                )
                if self._numbers is not None:
                    self._numbers.number(topic_partition, batches)
                self._stage.add(topic_partition, batches, bounds)

    def _check_rising(
        self, topic_partition: TopicPartition, offsets: Int64s | None
    ) -> tuple[int, int] | None:
        """First and last of the offsets that rows keep; refuse offsets that do not rise."""
        if offsets is None:
            return None
        last = self._last_offsets.get(topic_partition, -1)
        wrong = np.flatnonzero(np.diff(offsets, prepend=last) <= 0)
        if len(wrong):
            at = int(wrong[0])
            before = int(offsets[at - 1]) if at else last
            raise OffsetsOutOfOrderError(*topic_partition, int(offsets[at]), before + 1)
        self._last_offsets[topic_partition] = int(offsets[-1])
        return int(offsets[0]), int(offsets[-1])

    def _partitioner(self, topic: str) -> tuple[Partitioner, int]:
        if topic not in self._partitioners:
            n_partitions = self._n_partitions(topic)
            partitioner = Partitioner(
                topic, n_partitions, self._config.batch_size, self._first_partition
            )
            self._partitioners[topic] = partitioner, n_partitions
        return self._partitioners[topic]


def _encoder(config: ProducerConfig) -> RecordEncoder:
    return RecordEncoder(
        config.batch_codec,
        config.level,
        batch_size=config.batch_size,
        max_message_bytes=config.most_batch_bytes,
    )


def _without_categories(field: pa.Field) -> pa.DataType:
    """The type of a column whose categories (of pandas and Polars) are in a form for the encoder.

    The encoder measures values that many rows share, but not if they are views.
    """
    kind = field.type
    if pa.types.is_dictionary(kind):
        values = _plain(kind.value_type)
        return values if field.name in _TYPES else pa.dictionary(kind.index_type, values)
    is_nested = "dictionary" in str(kind) and "view" in str(kind)
    return _plain(kind) if is_nested else kind


def _with_plain_categories(rows: pa.RecordBatch) -> pa.RecordBatch:
    for i, field in enumerate(rows.schema):
        kind, column = _without_categories(field), rows.column(i)
        if kind == field.type:
            continue
        if isinstance(column, pa.DictionaryArray):
            column.validate(full=True)  # a cast reads the targets of views unchecked
            values = column.dictionary.cast(_plain(field.type.value_type))
            column = pa.DictionaryArray.from_arrays(column.indices, values)
            column = column.dictionary_decode() if field.name in _TYPES else column
        else:
            column = pa.array(column.to_pylist(), kind)  # few rows have headers of categories
        rows = rows.set_column(i, field.name, column)
    return rows


def _without_views(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows whose columns are no views of strings or bytes, which Arrow cannot select by topic."""
    for i, field in enumerate(rows.schema):
        if "view" in str(field.type):
            column = rows.column(i)
            column.validate(full=True)  # a cast reads the targets of views unchecked
            rows = rows.set_column(i, field.name, column.cast(_plain(field.type)))
    return rows


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type with strings and bytes of 64-bit bounds in place of views."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type))
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind
