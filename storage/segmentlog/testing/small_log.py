"""Small appends and small reads in plain Python.

A test writes some hundred records, for which the import of the kernels alone would take longer
than the test.  An append here is a change (`segmentlog.commit.change`) as any other, and leaves
the files that the writer would leave: `fits` says for which logs.  A read takes what
`segmentlog.logs.log.Log.slices` has planned.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from segmentlog.append.prepare import ready_to_append, visible_ends
from segmentlog.commit.change import Change
from segmentlog.commit.effects import MoveBounds
from segmentlog.commit.guard import PartitionIntent, SegmentSizes
from segmentlog.commit.held import hold, take
from segmentlog.commit.topics import create_partitions
from segmentlog.disk.durable import writable, write_all
from segmentlog.disk.readable import open_file
from segmentlog.layout.checkpoint import read_offsets, write_offsets
from segmentlog.logs.log import Log
from segmentlog.model import LOCK_TIMEOUT_SECONDS, OffsetRange, TopicPartition
from segmentlog.names import (
    HIGH_WATERMARK_CHECKPOINT,
    FileKind,
    partition_path,
    segment_file_name,
)
from segmentlog.records.header import parse_header
from segmentlog.records.schema import record_schema
from segmentlog.segments.listing import list_segments
from segmentlog.segments.segment import Segment
from segmentlog.testing.reference import Record, encode_batch, murmur2
from segmentlog.testing.reference_log import ReadBatch, read_log, split_batches
from segmentlog.topic_config import TopicConfig
from segmentlog.writes.directory import mark_new, prepare_directory

__all__ = [
    "MOST_RECORDS",
    "NewRecord",
    "add_partitions",
    "append_batches",
    "create_topic",
    "encode",
    "fits",
    "partition_of",
    "read_small",
]

#: The size of an append up to which the compiled writer would not be quicker.
MOST_RECORDS = 1000
_MOST_BATCH_BYTES = 64 << 10
_MOST_READ_BYTES = 256 << 10
_LEAST_PER_RECORD = 40  #: bytes of a record besides its key, value and headers, at most

_DEFAULTS = TopicConfig()

#: Makes the batches of one partition, from the offset of the first record.
MakeBatches = Callable[[int], bytes]


class NewRecord(NamedTuple):
    """A record that is yet to get its offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    timestamp_ms: int

    @property
    def n_bytes(self) -> int:
        """About as many bytes as it takes in a batch."""
        parts = [self.key, self.value, *(each for pair in self.headers for each in pair)]
        return sum(len(each or b"") + 5 for each in parts) + _LEAST_PER_RECORD


def partition_of(record: NewRecord, n_partitions: int) -> int:
    """The partition of a record that names none, as the Java client and the writer choose it.

    Records without a key stay together in the first partition, as long as they are few.
    """
    return 0 if record.key is None else (murmur2(record.key) & 0x7FFFFFFF) % n_partitions


def fits(records: Sequence[NewRecord], config: TopicConfig) -> bool:
    """Whether an append of these records is small, and the writer would make one batch of them."""
    n_bytes = sum(each.n_bytes for each in records)
    return len(records) <= MOST_RECORDS and n_bytes <= _MOST_BATCH_BYTES and config == _DEFAULTS


def encode(records: Iterable[NewRecord], *, attributes: int = 0,
           producer: tuple[int, int, int] = (-1, -1, -1)) -> MakeBatches:  # fmt: skip
    """One batch of the records."""
    taken = list(records)

    def make(base_offset: int) -> bytes:
        numbered = [
            Record(base_offset + i, each.timestamp_ms, each.key, each.value, each.headers)
            for i, each in enumerate(taken)
        ]
        return encode_batch(numbered, attributes=attributes, producer=producer)

    return make


def create_topic(directory: str, topic: str, n_partitions: int) -> None:
    """Make a topic; one that is there stays as it is."""
    prepare_directory(directory, "created")
    with take(directory, LOCK_TIMEOUT_SECONDS) as held:
        mark_new(directory)
        held.end_changes()
        create_partitions(directory, topic, n_partitions)


def add_partitions(directory: str, topic: str, n_partitions: int) -> None:
    """Give an existing topic more partitions, which are empty."""
    with hold(directory, LOCK_TIMEOUT_SECONDS):
        offsets = dict(read_offsets(directory, HIGH_WATERMARK_CHECKPOINT))
        for number in range(n_partitions):
            offsets.setdefault(TopicPartition(topic, number), 0)
        # Partitions that a checkpoint names and that are not there are made.
        write_offsets(directory, HIGH_WATERMARK_CHECKPOINT, offsets)
        create_partitions(directory, topic, n_partitions)


def append_batches(
    directory: str,
    batches: Mapping[TopicPartition, MakeBatches],
    config: TopicConfig = _DEFAULTS,
    *,
    rolls: bool = True,
) -> bool:
    """Append to logs that are there; all batches become visible at once.

    Parameters
    ----------
    batches : of each partition; each makes one batch or more.
    config : of the topics.
    rolls : whether an append is left to the writer if it begins a segment; otherwise the batches
        go to the active segment in any case.

    Returns
    -------
    is_done : False if it is left to the writer; nothing is changed then.

    Raises
    ------
    LogDirectoryError
        If a log has no segment, or is damaged.
    LogLockedError
        If another writer, or a broker, holds the directory.
    """
    with hold(directory, LOCK_TIMEOUT_SECONDS, lambda _: config) as held:
        change = Change.begin(held)
        ready = ready_to_append(held, batches.keys(), flush=True)
        held.checkpoints.write()
        visible = visible_ends(held, {each: end for each, (_, end) in ready.items()})
        intents, made = [], []
        for each, make in batches.items():
            sizes, end = ready[each]
            data = make(end)
            if rolls and _has_to_roll(partition_path(directory, each), sizes, data, config):
                return False
            new_end = _end_of(data)
            intents.append(PartitionIntent(*each, sizes, end, visible[each], new_end))
            made.append((partition_path(directory, each), sizes, data))

        def work(_: object) -> None:
            for path, sizes, data in made:
                _append(path, sizes, data, config)

        change.carry_out(intents, [MoveBounds()], work, is_repeatable=False)
    return True


def _end_of(data: bytes) -> int:
    """The offset after the last of some batches."""
    end = 0
    for batch, _ in split_batches(data):
        end = parse_header(batch).last_offset + 1
    return end


def _has_to_roll(path: str, sizes: SegmentSizes, data: bytes, config: TopicConfig) -> bool:
    """Whether the writer would begin a segment with these batches, or one of them."""
    if not sizes.log:
        return False
    with Segment(list_segments(path)[-1], is_sealed=False).opened() as opened:
        first = next(opened.headers(0)).header.max_timestamp
    newest = max(parse_header(batch).max_timestamp for batch, _ in split_batches(data))
    is_old = first >= 0 and newest - first > config.segment_ms
    return is_old or sizes.log + len(data) > config.segment_bytes


def _append(path: str, sizes: SegmentSizes, data: bytes, config: TopicConfig) -> None:
    """Bytes and index entries, by the rules of `segmentlog.kernels.growth`."""
    base, segment = sizes.base_offset, Segment(list_segments(path)[-1], is_sealed=False)
    with segment.opened() as opened:
        index = opened.offset_index
        last = index.entry(index.n_entries - 1).position if index.n_entries else 0
        since_entry = sizes.log - last
        (largest, offset), position = opened.indexed_time()
        in_index = largest
        for placed in opened.headers(position, sizes.log):
            if placed.header.max_timestamp > largest:
                largest, offset = placed.header.max_timestamp, placed.header.last_offset
    entries, times, at = b"", b"", sizes.log
    for batch, _ in split_batches(data):
        header = parse_header(batch)
        if header.max_timestamp > largest:
            largest, offset = header.max_timestamp, header.last_offset
        if since_entry > config.index_interval_bytes:
            entries += _two(header.last_offset - base, 4) + _two(at, 4)
            if largest > in_index:
                times += _two(largest, 8) + _two(offset - base, 4)
                in_index = largest
            since_entry = 0
        at, since_entry = at + len(batch), since_entry + len(batch)
    if largest > in_index:
        times += _two(largest, 8) + _two(offset - base, 4)
    for kind, added, end in (
        (FileKind.LOG, data, sizes.log),
        (FileKind.OFFSET_INDEX, entries, sizes.offset_index),
        (FileKind.TIME_INDEX, times, sizes.time_index),
    ):
        if added:
            with writable(f"{path}/{segment_file_name(base, kind)}") as descriptor:
                write_all(descriptor, added, end)


def _two(number: int, n_bytes: int) -> bytes:
    """A number in two's complement."""
    return number.to_bytes(n_bytes, "big", signed=True)


def read_small(logs: Sequence[Log]) -> pa.Table | None:
    """All records that a consumer sees, with headers; None if they are not few.

    None also stands for batches that this module does not read, damaged ones included: the scan
    names the damage.
    """
    parts, left = [], _MOST_READ_BYTES
    for log in logs:
        offsets = log.bounds()
        for each in log.slices(*offsets):
            for file in each.files:
                left -= file.end - file.start
                if left < 0:
                    return None
                with open_file(file.path) as opened:
                    data = opened.read(file.start, file.end - file.start)
                part = _records(data, offsets)
                if part is None:
                    return None
                parts.append((log.topic_partition, part))
    return _table(parts)


def _records(data: bytes, offsets: OffsetRange) -> list[tuple[int, Record]] | None:
    """Timestamp type and record, of a range of offsets; None if a batch is damaged."""
    found: list[ReadBatch] = []
    try:
        found.extend(read_log(data, _MOST_READ_BYTES))
    except Exception:  # noqa: BLE001 - whatever it is, the scan says it better
        return None
    return [
        (batch.timestamp_type, record)
        for batch in found
        for record in batch.records
        if offsets.start_offset <= record.offset < offsets.end_offset
    ]


def _table(parts: Sequence[tuple[TopicPartition, list[tuple[int, Record]]]]) -> pa.Table:
    """The table of a read, made of buffers: `pyarrow.array` would import pandas."""
    schema = record_schema(include_headers=True)
    records = [record for _, part in parts for _, record in part]
    counts = [len(part) for _, part in parts]
    partitions = np.repeat([each.partition for each, _ in parts], counts).tolist()
    topics = [each.topic.encode() for each, part in parts for _ in part]
    columns = {
        "key": _binary([each.key for each in records], pa.binary()),
        "value": _binary([each.value for each in records], pa.binary()),
        "topic": _binary(topics, pa.string()),
        "partition": _numbers(partitions, schema.field("partition").type),
        "offset": _numbers([each.offset for each in records], pa.int64()),
        "timestamp": _numbers(
            [each.timestamp_ms * 1000 for each in records], schema.field("timestamp").type
        ),
        "timestampType": _numbers(
            [kind for _, part in parts for kind, _ in part], schema.field("timestampType").type
        ),
        "headers": _headers([each.headers for each in records], schema.field("headers").type),
    }
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _numbers(values: Sequence[int], kind: pa.DataType) -> pa.Array:
    data = np.asarray(values, f"i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def _ends(lengths: Iterable[int]) -> pa.Buffer:
    return pa.py_buffer(np.cumsum([0, *lengths], dtype=np.int32))


def _bitmap(is_valid: Sequence[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.asarray(is_valid, bool), bitorder="little"))


def _binary(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    bitmap = _bitmap([each is not None for each in values])
    data = [each or b"" for each in values]
    buffers = [bitmap, _ends(map(len, data)), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _headers(
    values: Sequence[tuple[tuple[bytes, bytes | None], ...]], kind: pa.DataType
) -> pa.Array:
    """Lists of headers, null where a record has none."""
    pairs = [pair for each in values for pair in each]
    key, value = kind.value_type.field(0), kind.value_type.field(1)
    texts = [pair[0].decode(errors="replace").encode() for pair in pairs]
    children = [_binary(texts, key.type), _binary([pair[1] for pair in pairs], value.type)]
    structs = pa.Array.from_buffers(kind.value_type, len(pairs), [None], children=children)
    buffers = [_bitmap([bool(each) for each in values]), _ends(map(len, values))]
    return pa.Array.from_buffers(kind, len(values), buffers, children=[structs])
