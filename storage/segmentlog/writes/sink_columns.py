"""The columns that rows must have to be written, and their meaning."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from segmentlog.errors import ColumnError, InvalidRecordError
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.columns import scalar
from segmentlog.format.records.source import buffer_view
from segmentlog.writes.config import ProducerConfig

_PER_MILLISECOND = {"s": 1, "ms": 1, "us": 1000, "ns": 1_000_000}
_LARGEST_LONG = 2**63 - 1

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
    "timestamp": (pa.types.is_timestamp, "a timestamp"),
    "timestampType": (pa.types.is_integer, "an integer"),
}


def check_columns(schema: pa.Schema, topic: str | None, config: ProducerConfig) -> None:
    """Refuse rows with a missing column or a wrong type; other columns are ignored.

    Keys, values and headers are checked where they are read
    (`segmentlog.format.records.source.record_source`).

    Raises `ColumnError` naming the column, its type, and what is accepted.
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

    `times`: int64 array, shape (n_rows,); their timestamps.  Raises `InvalidRecordError` if a row
    has no value in such a column, or a type of timestamps that no record has.
    """
    offsets = append_times = None
    if config.use_offsets:
        _check_not_null(topic, rows, "partition")  # the key may not have chosen the partition
        offsets = _numbers(topic, rows, "offset")
    if config.use_timestamp_types:
        kinds = _numbers(topic, rows, "timestampType")
        _check_kinds(topic, kinds)
        append_times = np.where(kinds == 1, times, -1)
    return Restored(offsets, append_times)


def milliseconds(topic: str, rows: pa.RecordBatch, default: int) -> Int64s:
    """The column ``timestamp`` in epoch milliseconds, `default` where it is null.

    Raises `InvalidRecordError` if a time in seconds is too large for milliseconds.
    """
    column = rows.column("timestamp")
    whole = column.cast(pa.int64()).fill_null(scalar(0, pa.int64()))
    # `to_numpy` would load pandas.
    counts = buffer_view(whole.buffers()[1], np.int64, len(whole), 8 * whole.offset)
    if column.type.unit == "s":
        wrong = np.abs(counts) > _LARGEST_LONG // 1000
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
    """The column ``partition`` as int32, from any type of integers.

    Raises `InvalidRecordError` if a row names a partition that no topic can have.
    """
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


def _check_kinds(topic: str, kinds: NDArray[np.int64]) -> None:
    unknown = (kinds < -1) | (kinds > 1)
    if unknown.any():
        row = int(np.argmax(unknown))
        reason = (
            f"its timestampType is {kinds[row]}: it has to be 0 for CreateTime, 1 for "
            "LogAppendTime, or -1 for none"
        )
        raise InvalidRecordError(topic, -1, row, reason)


def _numbers(topic: str, rows: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    _check_not_null(topic, rows, name)
    numbers: NDArray[np.int64] = rows.column(name).cast(pa.int64()).to_numpy()
    return numbers
