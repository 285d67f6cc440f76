"""The indexes of a segment: the entries that a broker would write while the segment grows.

`rebuild_indexes` makes them again from the batches, as ``LogSegment.recover`` does.  It reads
headers and control batches, but no records.  Callers verify checksums, if they need to.
"""

import contextlib
import os
from typing import NamedTuple

import numpy as np

from segmentlog.format.kernels import growth, layout
from segmentlog.format.kernels.growth import take_batches
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.header import ScannedBatches
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.batches import walk_batches
from segmentlog.log.indexes import (
    TIME_ENTRY,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    encode_transactions,
)
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.producers import ProducerStates
from segmentlog.log.segment import Segment
from segmentlog.store.durable import replace_file, sync_directory, sync_file, writable
from segmentlog.store.readable import exists, open_file

_UNLIMITED = 2**62


class Taken(NamedTuple):
    """What a segment has taken of a run: the row after its last batch, and the new entries."""

    end: int
    offset_entries: bytes
    time_entries: bytes


class IndexBuilder:
    """Chooses and encodes the entries of one segment; `state` is as `kernels.growth` counts."""

    def __init__(self, base_offset: int, limits: Int64s) -> None:
        self._limits = limits
        self.state: Int64s = np.zeros(growth.STATE_COLUMNS, np.int64)
        self.state[growth.BASE_OFFSET] = base_offset
        self.state[growth.FIRST_MAX_TIMESTAMP] = -1
        self.state[growth.MAX_TIMESTAMP] = self.state[growth.LAST_TIME_ENTRY] = -1

    @classmethod
    def of_topic(cls, base_offset: int, config: TopicConfig) -> "IndexBuilder":
        """For a segment that rolls at the limits of its topic."""
        limits: Int64s = np.zeros(growth.LIMIT_COLUMNS, np.int64)
        limits[growth.SEGMENT_BYTES] = config.segment_bytes
        limits[growth.SEGMENT_MS] = config.segment_ms
        limits[growth.INDEX_INTERVAL_BYTES] = config.index_interval_bytes
        limits[growth.MOST_OFFSET_ENTRIES] = config.segment_index_bytes // OffsetIndex.entry_bytes
        limits[growth.MOST_TIME_ENTRIES] = config.segment_index_bytes // TimeIndex.entry_bytes
        return cls(base_offset, limits)

    @classmethod
    def unlimited(cls, base_offset: int, interval_bytes: int) -> "IndexBuilder":
        """For a segment that takes all batches it is given."""
        limits: Int64s = np.full(growth.LIMIT_COLUMNS, _UNLIMITED, np.int64)
        limits[growth.INDEX_INTERVAL_BYTES] = interval_bytes
        return cls(base_offset, limits)

    def take(self, headers: Int64s, begin: int = 0) -> Taken:
        """Take batches from row `begin` on, until the segment has to roll.

        `headers`: int64 array, shape (n_batches, at least `layout.N_HEADER_COLUMNS`), of which
        sizes, last offsets and largest timestamps are read.
        """
        entries: Int64s = np.empty((len(headers) - begin, growth.ENTRY_COLUMNS), np.int64)
        end, n_entries = take_batches(headers, begin, self._limits, self.state, entries)
        entries = entries[:n_entries]
        pairs = entries[:, growth.ENTRY_OFFSET : growth.ENTRY_POSITION + 1]
        # The time index gets fewer entries than the other.
        timed = entries[entries[:, growth.ENTRY_TIMESTAMP] >= 0]
        times = np.empty(len(timed), TIME_ENTRY)
        times["timestamp"] = timed[:, growth.ENTRY_TIMESTAMP]
        times["offset"] = timed[:, growth.ENTRY_TIMESTAMP_OFFSET]
        return Taken(end, pairs.astype(">i4").tobytes(), times.tobytes())

    def last_time(self) -> bytes:
        """The entry that closes the time index, if it adds anything."""
        # By ``LogSegment.onBecomeInactive`` the newest entry holds the largest time of the
        # segment.
        state = self.state
        largest = int(state[growth.MAX_TIMESTAMP])
        if largest <= state[growth.LAST_TIME_ENTRY]:
            return b""
        offset = int(state[growth.MAX_TIMESTAMP_OFFSET] - state[growth.BASE_OFFSET])
        return np.array([(largest, offset)], TIME_ENTRY).tobytes()


def rebuild_indexes(
    segment: Segment,
    interval_bytes: int,
    producers: ProducerStates | None = None,
    epochs: EpochStarts | None = None,
) -> list[str]:
    """Replace ``.index`` and ``.timeindex``, and also ``.txnindex`` if `producers` are known.

    The size of the segment is the byte after its last good batch.  `producers` move from its base
    offset to its end, and `epochs` take those that begin in it.  Returns the files that were
    missing, or had other bytes.  Raises `CorruptLogError` or `UnsupportedFormatError` if a header
    is not plausible, or the batches do not end where the segment does; nothing is replaced then.
    """
    builder = IndexBuilder.unlimited(segment.base_offset, interval_bytes)
    offsets, times = [], []
    aborted: list[AbortedTransaction] = []
    next_offset = segment.base_offset
    for walked in walk_batches([segment], segment.base_offset, is_whole=True):
        _check(walked.scanned, segment, next_offset)
        headers, next_offset = walked.scanned.headers, walked.next_offset
        taken = builder.take(headers)
        offsets.append(taken.offset_entries)
        times.append(taken.time_entries)
        if producers is not None:
            aborted += producers.follow(walked)
        if epochs is not None:
            epochs.follow(walked.scanned)
    times.append(builder.last_time())
    files = {
        segment.offset_index_path: b"".join(offsets),
        segment.time_index_path: b"".join(times),
    }
    if producers is not None and (aborted or exists(segment.transaction_index_path)):
        files[segment.transaction_index_path] = encode_transactions(aborted)
    changed = [path for path, data in files.items() if _put(path, data)]
    if changed:
        sync_directory(os.path.dirname(segment.path))
    return changed


def _check(batches: ScannedBatches, segment: Segment, next_offset: int) -> None:
    """Refuse batches whose offsets do not rise, or that no index can hold."""
    headers = batches.headers
    last = headers[:, layout.LAST_OFFSET]
    begins = np.concatenate(([next_offset], last[:-1] + 1))
    is_bad = (headers[:, layout.BASE_OFFSET] < begins) & (
        headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK == 0
    )
    is_bad |= last < begins
    is_far = last - segment.base_offset >= layout.SEGMENT_OFFSETS
    if is_bad.any() or is_far.any():
        row = int(np.argmax(is_bad | is_far))
        reason = "its offsets do not follow the offsets of the batch before it in this segment"
        if not is_bad[row]:
            reason = (
                "its offset is too far from the segment's base offset for an index; a recovery "
                f"splits the segment: rm {os.path.basename(segment.offset_index_path)}, if it is "
                "there, and segmentlog recover"
            )
        raise batches.malformed(row, reason)


def _put(path: str, data: bytes) -> bool:
    """Make a file hold `data`, but for its name durably; returns whether it did not before."""
    with contextlib.suppress(FileNotFoundError), open_file(path, follow=False) as file:
        if file.status().size == len(data) and file.read(0, len(data)) == data:
            with writable(path) as descriptor:
                sync_file(descriptor, path)
            return False
    replace_file(path, data, sync_name=False)
    return True
