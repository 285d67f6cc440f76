"""A streaming query's reader: offsets and slices on the driver, Arrow batches in the tasks."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_segmentlog.options.read_options import Triggers
from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.reads.reader import SegmentLogReader, TaskPartition
from pyspark_segmentlog.spark_versions import Limits, StreamReader
from segmentlog.errors import SegmentLogError

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_segmentlog.reads.followed import FollowedDirectory
    from pyspark_segmentlog.reads.stream_offsets import OffsetsJson


class SegmentLogStreamReader(StreamReader):
    """Follows the records that `options` select."""

    # Spark keeps one reader on the driver for the whole query, and pickles another one into each
    # task.
    def __init__(self, reader: SegmentLogReader) -> None:
        self._options = reader.options
        self._reader = reader
        self._directory: FollowedDirectory | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the options alone."""
        return {**self.__dict__, "_directory": None}

    @property
    def _triggers(self) -> Triggers:
        if self._options.triggers is None:
            message = "the options are those of a batch query"
            raise TypeError(message)
        return self._options.triggers

    @property
    def _followed(self) -> "FollowedDirectory":
        from pyspark_segmentlog.reads.followed import FollowedDirectory

        if self._directory is None:
            self._directory = FollowedDirectory(self._options, self._triggers)
        return self._directory

    @property
    def limits(self) -> Limits:
        """The limits from the options."""
        triggers = self._triggers
        return triggers.max_offsets, triggers.max_bytes, triggers.min_offsets

    def end_with_what_is_there(self) -> None:
        """Have the query end with what the next poll finds."""
        self._followed.end_with_what_is_there()

    def first_start(self) -> "OffsetsJson":
        """The offsets at which a new query starts."""
        return self._followed.initial()

    def next_end(self, start: "OffsetsJson", *, takes_all: bool) -> "OffsetsJson":
        """The end of the next micro-batch; `start` if there is nothing to read."""
        return self._followed.latest(start, takes_all=takes_all)

    def newest_ends(self) -> "OffsetsJson":
        """The ends of the partitions, for the progress of the query."""
        return self._followed.newest()

    def tasks(self, start: "OffsetsJson", end: "OffsetsJson") -> Sequence[InputPartition]:
        """One partition for each task of a micro-batch."""
        plan = uuid4().hex
        return [TaskPartition(slices, plan) for slices in self._followed.plan(start, end)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of one task."""
        return self._reader.read(partition)


class RefusedStream(DataSourceStreamReader):
    """Raises an error at the first call of Spark."""

    # Spark closes a stream reader in a ``finally`` block, also if making the reader has failed. An
    # error of ``DataSource.streamReader`` itself is therefore followed by an
    # ``UnboundLocalError``.
    def __init__(self, error: SegmentLogError) -> None:
        self._error = error

    @PlainErrors(asked=False)
    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815
