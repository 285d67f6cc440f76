"""Entries of the files beside a segment, and of a broker's text files around them."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from segmentlog.errors import CorruptIndexError
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_CHECKPOINT,
    FileKind,
    parse_segment_file,
)
from segmentlog.log.checkpoint import read_leader_epochs, read_offsets
from segmentlog.log.metadata import read_meta_properties, read_topic_id
from segmentlog.log.producer_snapshot import ProducerSnapshot, read_snapshot
from segmentlog.log.sparse_indexes import OffsetIndex, TimeIndex
from segmentlog.log.transaction_index import read_transaction_index
from segmentlog.store.readable import open_file, status_of

Entry = Mapping[str, object]


def is_index_file(path: str) -> bool:
    """Whether `path` has the name of a file that this module reads."""
    if Path(path).name in TEXT_FILES:
        return True
    parsed = parse_segment_file(Path(path).name)
    return parsed is not None and parsed.kind != FileKind.LOG


def entries(path: str) -> Iterator[Entry]:
    """Rows under Kafka's names; a row with the field ``problem`` stands for damage.

    Raises `OSError` if the file cannot be read; `CorruptCheckpointError` if it is a checkpoint or
    a file of ids in a form that no broker writes.
    """
    if reads := TEXT_FILES.get(Path(path).name):
        return iter(reads(path))
    with open_file(path):  # an index that cannot be opened would otherwise look empty
        parsed = parse_segment_file(Path(path).name)
    match parsed.kind if parsed else None:
        case FileKind.OFFSET_INDEX:
            return _offset_entries(path, parsed.offset if parsed else 0)
        case FileKind.TIME_INDEX:
            return _time_entries(path, parsed.offset if parsed else 0)
        case FileKind.TRANSACTION_INDEX:
            return _aborted_transactions(path)
        case _:
            return _producers(path)


def _offsets(path: str) -> list[Entry]:
    found = read_offsets(*os.path.split(path)).items()
    return [{**each._asdict(), "offset": offset} for each, offset in found]


def _leader_epochs(path: str) -> list[Entry]:
    return [
        {"epoch": epoch, "startOffset": start}
        for epoch, start in read_leader_epochs(path, takes_newer=True)
    ]


def _partition_metadata(path: str) -> list[Entry]:
    return [{"topicId": read_topic_id(os.path.dirname(path))}]


def _meta_properties(path: str) -> list[Entry]:
    found = read_meta_properties(os.path.dirname(path)).items()
    return [{"key": key, "value": value} for key, value in found]


#: The reader of each text file of a broker.
TEXT_FILES: Mapping[str, Callable[[str], list[Entry]]] = {
    RECOVERY_POINT_CHECKPOINT: _offsets,
    HIGH_WATERMARK_CHECKPOINT: _offsets,
    LOG_START_CHECKPOINT: _offsets,
    CLEANER_OFFSET_CHECKPOINT: _offsets,
    LEADER_EPOCH_CHECKPOINT: _leader_epochs,
    PARTITION_METADATA_FILE: _partition_metadata,
    META_PROPERTIES_FILE: _meta_properties,
}


def _offset_entries(path: str, base_offset: int) -> Iterator[Entry]:
    with OffsetIndex(path, base_offset, mapped=False) as index:
        for slot in range(index.n_entries):
            yield index.entry(slot)._asdict()
    yield from _cut_short(path, OffsetIndex.entry_bytes)


def _time_entries(path: str, base_offset: int) -> Iterator[Entry]:
    with TimeIndex(path, base_offset, mapped=False) as index:
        for slot in range(index.n_entries):
            entry = index.entry(slot)
            yield {"timestamp": entry.timestamp_ms, "offset": entry.offset}
    yield from _cut_short(path, TimeIndex.entry_bytes)


def _cut_short(path: str, entry_bytes: int) -> Iterator[Entry]:
    """A row of its own if the length of the file is not a whole number of entries."""
    if left := status_of(path, follow=True).size % entry_bytes:
        yield {"problem": f"{left} bytes at the end are not a whole entry of {entry_bytes}"}


def _aborted_transactions(path: str) -> Iterator[Entry]:
    try:
        for entry in read_transaction_index(path):
            yield {
                "version": 0,  # the only version
                "producerId": entry.producer_id,
                "firstOffset": entry.first_offset,
                "lastOffset": entry.last_offset,
                "lastStableOffset": entry.last_stable_offset,
            }
    except CorruptIndexError as error:
        yield {"problem": error.reason}


def _producers(path: str) -> Iterator[Entry]:
    try:
        for producer in read_snapshot(path):
            yield _producer(producer)
    except CorruptIndexError as error:
        yield {"problem": error.reason}


def _producer(producer: ProducerSnapshot) -> Entry:
    """One producer, and its last batch if it has written one."""
    first = producer.current_txn_first_offset
    row: dict[str, object] = {
        "producerId": producer.producer_id,
        "producerEpoch": producer.producer_epoch,
        "coordinatorEpoch": producer.coordinator_epoch,
        "currentTxnFirstOffset": None if first < 0 else first,
        "lastTimestamp": producer.timestamp_ms,
    }
    if producer.last_offset >= 0:
        last, delta = producer.last_sequence, producer.offset_delta
        first_sequence = (last - delta) % 2**31 if last >= 0 else -1
        row |= {"firstSequence": first_sequence, "lastSequence": last}
        row |= {"lastOffset": producer.last_offset, "offsetDelta": delta}
        row |= {"timestamp": producer.timestamp_ms}
    return row
