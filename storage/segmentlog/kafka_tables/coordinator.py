"""Records of a coordinator's topic, one by one, for kinds of which there are few."""

import logging
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from segmentlog.errors import CorruptCheckpointError, MalformedRecordError
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.messages.records import (
    CoordinatorRecord,
    coordinator_schemas,
    read_coordinator_record,
)
from segmentlog.format.newer import note
from segmentlog.model import IsolationLevel, OnCorruptBatch, ReadUpTo
from segmentlog.reads.log import Log

logger = logging.getLogger(__name__)

_SCANNED = ("key", "value", "offset", "timestamp")
_TYPE_BYTES = 2

#: Types of the keys of commits, and the first version of their values with tagged fields.
_COMMIT_TYPES, _FIRST_WITH_TAGS = (0, 1), 4


class PlacedRecord(NamedTuple):
    """A record, and its place in the log."""

    record: CoordinatorRecord  # its fields
    partition: int
    offset: int
    timestamp: int  # of the record, in microseconds


def end_of_read(log: Log, on_corrupt_batch: OnCorruptBatch) -> ReadUpTo:
    """The end of a read of a coordinator's log: its own end, as a coordinator reads it.

    If a high watermark has promised records after that end, and damage is not to be left out, the
    read goes to the high watermark, and reports what has become of them.
    """
    if on_corrupt_batch is OnCorruptBatch.SKIP:
        return ReadUpTo.LOG_END
    try:
        is_promised = log.end_offset(ReadUpTo.HIGH_WATERMARK) > log.log_end_offset
    except CorruptCheckpointError:
        is_promised = False
    return ReadUpTo.HIGH_WATERMARK if is_promised else ReadUpTo.LOG_END


def refuse_record(log: Log, offset: int, reason: str, on_corrupt_batch: OnCorruptBatch) -> None:
    """Refuse a record that cannot be read, or log that it is left out.

    Raises `MalformedRecordError` unless `on_corrupt_batch` is ``skip``.
    """
    path = log.path
    for segment in log.segments:
        if segment.base_offset <= offset:
            path = segment.path
    error = MalformedRecordError(path, offset, reason)
    if on_corrupt_batch is not OnCorruptBatch.SKIP:
        raise error
    logger.warning("%s; it is left out", error)


def read_records(
    log: Log,
    names: Collection[str],
    on_corrupt_batch: OnCorruptBatch,
    is_kafka_4_0: Callable[[], bool] | None = None,
) -> Iterator[PlacedRecord]:
    """Records of some kinds, in the order of the log, to its end.

    `names`: of the messages, without ``Key`` and ``Value``; others are not decoded.
    `is_kafka_4_0`: whether records of share groups have the bytes of Kafka 4.0; asked only if
    there is a record whose bytes 4.1 has changed.  None means that they do not.  Raises
    `MalformedRecordError` if such a record cannot be read; `CorruptLogError` if the log is
    damaged.
    """
    topic = log.topic_partition.topic
    schemas = coordinator_schemas(topic)
    changed = {
        kind
        for kind, each in coordinator_schemas(topic, is_kafka_4_0=True).items()
        if is_kafka_4_0 is not None and each != schemas.get(kind)
    }
    every = coordinator_schemas(topic, is_kafka_4_0=True)
    wanted = [kind for kind, (key, _) in schemas.items() if key.name.removesuffix("Key") in names]
    known = [kind for kind in every if kind not in wanted]
    for key, value, offset, time in _rows(log, known, on_corrupt_batch, is_inverted=True):
        kind = int.from_bytes((key or b"")[:_TYPE_BYTES], "big", signed=True)
        is_old = kind in changed and is_kafka_4_0 is not None and is_kafka_4_0()
        try:
            if kind not in every:
                note(f"type {kind} of {topic}")
                continue
            record = read_coordinator_record(topic, key, value, is_kafka_4_0=is_old)
        except ValueError as error:
            refuse_record(log, offset, str(error), on_corrupt_batch)
            continue
        if record is not None:
            yield PlacedRecord(record, log.topic_partition.partition, offset, time)


def read_unknown_records(
    log: Log, on_corrupt_batch: OnCorruptBatch
) -> Iterator[tuple[bytes | None, bytes | None, int, int]]:
    """Key, value, offset and time of the records whose type, version or tags may be unknown."""
    are_commits = log.topic_partition.topic == "__consumer_offsets"  # nearly all of its records
    commits = [*_COMMIT_TYPES] if are_commits else []
    yield from _rows(log, commits, on_corrupt_batch, is_inverted=True)
    for row in _rows(log, commits, on_corrupt_batch, is_inverted=False) if commits else ():
        version = int.from_bytes((row[1] or b"")[:_TYPE_BYTES], "big", signed=True)
        if version >= _FIRST_WITH_TAGS:
            yield row


def record_types(keys: pa.Array) -> Int64s:
    """The type of each record, which its key begins with; -1 for a key of fewer bytes.

    `keys`: binary array, shape (n_records,).
    """
    offsets, data = keys.buffers()[1:3]
    places = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    types = np.full(len(keys), -1, np.int64)
    has_type = np.diff(places) >= _TYPE_BYTES
    if keys.null_count:
        has_type &= keys.is_valid().to_numpy(zero_copy_only=False)
    at = places[:-1] if has_type.all() else places[:-1][has_type]
    if len(at):
        found = np.frombuffer(data, np.uint8)
        numbers = found[at].astype(np.int64) << 8 | found[at + 1]
        types[has_type] = np.where(numbers >= 1 << 15, numbers - (1 << 16), numbers)
    return types


def _rows(
    log: Log, types: list[int], on_corrupt_batch: OnCorruptBatch, *, is_inverted: bool
) -> Iterator[tuple[bytes | None, bytes | None, int, int]]:
    read_up_to = end_of_read(log, on_corrupt_batch)
    scan = log.scan(columns=_SCANNED, read_up_to=read_up_to, on_corrupt_batch=on_corrupt_batch)
    for batch in scan:
        is_wanted = np.isin(record_types(batch["key"]), types, invert=is_inverted)
        if not is_wanted.any():
            continue
        rows = batch.filter(pa.array(is_wanted))
        columns = [*(rows[name] for name in _SCANNED[:3]), rows["timestamp"].cast(pa.int64())]
        yield from zip(*(each.to_pylist() for each in columns), strict=True)


def placed_rows(
    log: Log,
    on_corrupt_batch: OnCorruptBatch,
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> Iterator[tuple[bytes | None, bytes | None, dict[str, int]]]:
    """Key, value, and the columns `ORIGIN` of every record, in the order of the log.

    Committed records end at the last stable offset, with a warning if more follow.

    Raises `CorruptLogError` if the log is damaged.
    """
    read_up_to = end_of_read(log, on_corrupt_batch)
    scan = log.scan(
        columns=_SCANNED,
        read_up_to=read_up_to,
        isolation_level=isolation_level,
        on_corrupt_batch=on_corrupt_batch,
    )
    if isolation_level == IsolationLevel.READ_COMMITTED:
        stable = log.last_stable_offset(read_up_to, on_corrupt_batch)
        if stable < log.log_end_offset:
            logger.warning(
                "%s: offsets from %d on are not read: a transaction that begins there was neither "
                "committed nor aborted",
                log.path, stable,
            )  # fmt: skip
    partition = log.topic_partition.partition
    for batch in scan:
        columns = [*(batch[name] for name in _SCANNED[:3]), batch["timestamp"].cast(pa.int64())]
        for key, value, offset, time in zip(*(each.to_pylist() for each in columns), strict=True):
            yield key, value, {
                "record_partition": partition, "record_offset": offset, "record_timestamp": time,
            }  # fmt: skip
