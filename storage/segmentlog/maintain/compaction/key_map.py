"""The offset map of one pass of compaction: the last offset of each key of the dirty part.

`segmentlog.format.kernels.offset_map` has the table.  Its memory is bounded: a map that is full
ends the pass where it stands, and leaves the rest of the log to the next pass
(``Cleaner.buildOffsetMap``).
"""

import os
from collections.abc import Collection, Iterator, Sequence
from functools import partial

import numpy as np

from segmentlog.format.kernels import layout, offset_map, status
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.records.decoder import BatchScanner, RecordFiller
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.log.batches import BatchWindows, EndMarkers, walk_batches
from segmentlog.log.segment import Segment
from segmentlog.maintain.compaction.cleanable import ENTRY_BYTES, CleanerConfig
from segmentlog.store.readable import open_file

_LEAST_ENTRIES, _MOST_ENTRIES = 64, 2**31 - 1
_WINDOW_BYTES = 4 << 20
_AFTER_ALL = 2**63 - 2  #: the greatest offset that the table takes


class OffsetMap:
    """The keys that were put, and up to which offset they are known.

    `memory`: bytes of its table at most, of which the share `load_factor` is filled.
    `most_records`: how many records may come; a small table stays in the processor's caches.
    `table`, `state`, `secret`, `waiting`: arrays of `segmentlog.format.kernels.offset_map`.
    """

    def __init__(self, memory: int, load_factor: float, most_records: int) -> None:
        most_entries = min(memory // ENTRY_BYTES, _MOST_ENTRIES)
        n_entries = min(most_entries, 2 * most_records + _LEAST_ENTRIES)
        # Pages of zeros come from the system one by one, as they are used.
        self.table: Int64s = np.zeros((n_entries, offset_map.ENTRY_COLUMNS), np.int64)
        self.state: Int64s = np.zeros(offset_map.STATE_COLUMNS, np.int64)
        # One entry stays free: a search ends there.
        self.state[offset_map.MOST_KEYS] = min(int(most_entries * load_factor), n_entries - 1)
        self.state[offset_map.LATEST_OFFSET] = -1
        self.secret: Bytes = np.array(bytearray(os.urandom(offset_map.SECRET_BYTES)), np.uint8)
        self.waiting: Int64s = np.zeros(
            (offset_map.N_WAITING, offset_map.WAITING_COLUMNS), np.int64
        )

    @property
    def n_keys(self) -> int:
        return int(self.state[offset_map.N_KEYS])

    @property
    def latest_offset(self) -> int:
        """Offset up to which the keys are known; -1 for an empty map."""
        return int(self.state[offset_map.LATEST_OFFSET])

    @classmethod
    def of_erased(cls, keys: Collection[bytes]) -> "OffsetMap":
        """A map in which each key has its last record after every record of a log.

        All records with these keys are then older than the last one, and are removed.
        """
        known = cls(ENTRY_BYTES * (2 * len(keys) + _LEAST_ENTRIES), 0.9, len(keys))
        ends: Int64s = np.cumsum([len(each) for each in keys], dtype=np.int64)
        joined: Bytes = np.frombuffer(bytearray().join([*keys, bytes(COPY_SLACK)]), np.uint8)
        code = offset_map.put_all(
            joined, ends, _AFTER_ALL, known.table, known.state, known.secret, known.waiting
        )
        assert code == status.OK, code  # noqa: S101 - the table was made for these keys
        return known


def inflated_runs(
    filler: RecordFiller, batches: ScannedBatches
) -> Iterator[tuple[ScannedBatches, slice]]:
    """Runs of `batches`, whose headers are written to; ``filler.inflated`` has their records.

    Yields `run`, some batches, valid until the next step; `rows`, of `batches` that they are.
    Raises `MalformedBatchError` or `UnsupportedFormatError` if a batch cannot be inflated; the
    batches before it come first.
    """
    headers = batches.headers
    attributes = headers[:, layout.ATTRIBUTES]
    # A batch that compaction has emptied has nothing to inflate, whatever its codec.
    is_emptied = (headers[:, layout.SIZE] == layout.HEADER_BYTES) & (
        attributes & layout.LEGACY_MASK == 0
    )
    headers[is_emptied, layout.ATTRIBUTES] &= ~layout.CODEC_MASK
    begin = 0
    while begin < len(headers):
        rest = batches.only(slice(begin, None))
        end = begin + filler.inflate(rest)
        rows = slice(begin, end)
        yield batches.only(rows), rows
        begin = end


def build_offset_map(
    segments: Sequence[Segment], start_offset: int, end_offset: int, cleaner: CleanerConfig
) -> OffsetMap:
    """Read the dirty part of a log into a map, or as much of it as the map takes.

    `segments`: all segments of the log; transactions may end after the dirty part.
    `start_offset`: at which the dirty part begins.  `end_offset`: base of the segment at which it
    ends.
    """
    known = OffsetMap(cleaner.dedupe_buffer_bytes, cleaner.load_factor, end_offset - start_offset)
    transactions = EndMarkers(partial(walk_batches, segments))
    filler, windows = RecordFiller(), BatchWindows(_WINDOW_BYTES)
    bases = [each.base_offset for each in segments] + [end_offset]
    for segment, after in zip(segments, bases[1:], strict=True):
        if after <= start_offset or segment.base_offset >= end_offset:
            continue
        begin = segment.floor_position(start_offset)
        scanner = BatchScanner(segment.path, 0 if begin else segment.base_offset)
        with open_file(segment.path) as file:
            for batches in windows.batches(file.read_into, scanner, begin, segment.size):
                left_out = transactions.find_aborted(batches, batches.next_offset)
                left_out |= batches.headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0
                for run, rows in inflated_runs(filler, batches):
                    code, row = offset_map.put_keys(
                        run.buf, filler.inflated, run.headers, left_out[rows], start_offset,
                        known.table, known.state, known.secret, known.waiting,
                    )  # fmt: skip
                    if code == status.TABLE_FULL:
                        return known
                    if code != status.OK:
                        raise run.malformed(row, status.REASONS[code])
        # No key is between its last one and the end of the segment.
        known.state[offset_map.LATEST_OFFSET] = min(after, end_offset) - 1
    return known
