"""Turn the rows of a task into staged batches, a buffer at a time."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from segmentlog.errors import (
    InvalidRecordError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
)
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.encoder import EncodedBatches, RecordEncoder
from segmentlog.format.records.pieces import MOST_ROW_BYTES, cut_rows
from segmentlog.format.records.source import pooled_array, record_source
from segmentlog.model import TimestampType, TopicPartition
from segmentlog.store.system_errors import storage_errors
from segmentlog.writes.config import ProducerConfig
from segmentlog.writes.extents import TaskExtents
from segmentlog.writes.numbering import SequenceNumbers
from segmentlog.writes.partitioner import Partitioner, group_rows
from segmentlog.writes.sink_columns import (
    check_columns,
    milliseconds,
    partition_numbers,
    restored,
)
from segmentlog.writes.staged_files import TaskStage

if TYPE_CHECKING:
    from segmentlog.bucket.task_object import ObjectStage, StagedObjects

    Staged: TypeAlias = TaskExtents | StagedObjects  # what a task sends to its job

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
        taken = batch.select([name for name in _COLUMNS if name in batch.schema.names])
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
        if self._n_bytes >= self._most_held_bytes():
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
            check_columns(schema, self._topic, self._config)

    @storage_errors()
    def finish(self) -> "Staged":
        """Write out the rest; return the staged extents, synced if the settings require it."""
        self._write_held()
        return self._stage.close()

    def discard(self) -> None:
        """Forget everything: the task has failed."""
        self._held.clear()
        self._stage.discard()

    def _most_held_bytes(self) -> int:
        most = self._config.buffer_memory
        if self._topic is not None:
            _, n_partitions = self._partitioner(self._topic)
            most = min(most, _HELD_BATCHES * self._config.batch_size * n_partitions)
        return most

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
        timestamps = self._timestamps(topic, rows)
        source = record_source(rows, timestamps)
        explicit = None
        if "partition" in rows.schema.names:
            explicit = partition_numbers(topic, rows)
        chosen = partitioner.choose(source, explicit)
        order, starts = group_rows(chosen, n_partitions)
        keeps = restored(topic, rows, self._config, timestamps)
        kind = self._config.of(topic).topic_config.message_timestamp_type
        encoder = self._encoders.get(topic, self._encoder)
        now = int(time.time() * 1000) if kind == TimestampType.LOG_APPEND_TIME else None
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
                    append_time_ms=now if append_time is None else append_time,
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

    def _timestamps(self, topic: str, rows: pa.RecordBatch) -> Int64s:
        """Epoch milliseconds of each row: its own, if the settings use them, or now."""
        now = int(time.time() * 1000)
        if not self._config.use_timestamps or "timestamp" not in rows.schema.names:
            times: Int64s = pooled_array(rows.num_rows, np.int64)
            times.fill(now)
            return times
        return milliseconds(topic, rows, now)


def _encoder(config: ProducerConfig) -> RecordEncoder:
    return RecordEncoder(
        config.batch_codec,
        config.level,
        batch_size=config.batch_size,
        max_message_bytes=config.most_batch_bytes,
    )


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
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type))
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind
