"""Build the indexes of a segment again from its batches, as ``LogSegment.recover`` does.

Headers and control batches are read, but no records.  Callers verify checksums, if they need to.
"""

import os

import numpy as np

from segmentlog.format.kernels import layout
from segmentlog.log.batches import WalkedBatches, walk_batches
from segmentlog.log.index_builder import IndexBuilder
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.producer_state import ProducerStates
from segmentlog.log.segment import Segment
from segmentlog.log.transaction_index import AbortedTransaction, encode_transactions
from segmentlog.store.durable import replace_file, sync_directory, sync_file, writable
from segmentlog.store.readable import exists, open_file


def rebuild_indexes(
    segment: Segment,
    interval_bytes: int,
    producers: ProducerStates | None = None,
    epochs: EpochStarts | None = None,
) -> list[str]:
    """Replace ``.index`` and ``.timeindex``, and also ``.txnindex`` if `producers` are known.

    `segment`: segment to index; its size is the byte after its last good batch.  `interval_bytes`:
    bytes of log between entries (``index.interval.bytes``).  `producers`: state at the segment's
    base offset; afterwards, at its end.  `epochs`: takes the leader epochs that begin in the
    segment.  Returns the files that were missing, or had other bytes.  Raises `CorruptLogError` or
    `UnsupportedFormatError` if a header is not plausible; nothing is replaced then.
    """
    builder = IndexBuilder.unlimited(segment.base_offset, interval_bytes)
    offsets, times = [], []
    aborted: list[AbortedTransaction] = []
    next_offset = segment.base_offset
    for walked in walk_batches([segment], segment.base_offset):
        checked = _checked(walked, segment, next_offset)
        headers, next_offset = checked.scanned.headers, checked.next_offset
        taken = builder.take(headers)
        offsets.append(taken.offset_entries)
        times.append(taken.time_entries)
        if producers is not None and len(headers):
            aborted += producers.follow(checked)
        if epochs is not None:
            epochs.follow(checked.scanned)
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


def _checked(walked: WalkedBatches, segment: Segment, next_offset: int) -> WalkedBatches:
    """The complete batches of the segment, if offsets rise and an index can hold them."""
    batches, headers = walked.scanned, walked.scanned.headers
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
    if batches.file_position + batches.end <= segment.size:
        return walked
    reached = int(last[-2]) + 1 if len(last) > 1 else next_offset
    return walked._replace(scanned=batches.only(slice(-1)), next_offset=reached)


def _put(path: str, data: bytes) -> bool:
    """Make a file hold `data`, but for its name durably; returns whether it did not before."""
    if not _holds(path, data):
        replace_file(path, data, sync_name=False)
        return True
    with writable(path) as descriptor:
        sync_file(descriptor, path)
    return False


def _holds(path: str, data: bytes) -> bool:
    """Whether a file is there and holds `data`."""
    try:
        with open_file(path, follow=False) as file:
            return file.status().size == len(data) and file.read(0, len(data)) == data
    except FileNotFoundError:
        return False
