"""The choice of remote segments that are the log, and how far each of them is read.

A tier may hold a segment twice, because a broker that became the leader copied offsets that its
predecessor had copied, with other borders.  It may hold segments of a lost lineage, which an
unclean election has cut off the log.  The leader epochs of the log decide: a segment whose epochs
are not those of the log is not part of it (KIP-405,
``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs``).

Segments are joined by offset.  The local log is the log where it has an offset; before that, each
segment is read up to the segment that follows.
"""

import logging
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from segmentlog.disk.contract import ReadableFile
from segmentlog.errors import CorruptCheckpointError, RemoteSegmentError
from segmentlog.kernels import layout as bytes_of
from segmentlog.layout.checkpoint import parse_leader_epochs
from segmentlog.records.header import BatchHeader, parse_header
from segmentlog.tiered.layout import Layout, Part, RemoteLog, RemoteSegment

__all__ = [
    "Epochs",
    "PlacedSegment",
    "choose",
    "epochs_of",
    "missing_offsets",
    "of_lineage",
    "position_of",
]

logger = logging.getLogger(__name__)

#: Leader epochs of a log with their start offsets, in their order.
Epochs = Sequence[tuple[int, int]]

_ENTRY = struct.Struct(">ii")
_MOST_INDEX_BYTES = 1 << 28
_REMEDY = "restore the object, or remove the segment from the tier"


class PlacedSegment(NamedTuple):
    """A remote segment of the log.

    Attributes
    ----------
    segment : the segment, with its last offset.
    n_bytes : of its ``.log`` file, up to the next segment of the log.
    """

    segment: RemoteSegment
    n_bytes: int


def epochs_of(tier: Layout, segment: RemoteSegment) -> Epochs:
    """All leader epochs of the log up to the end of a segment.

    Raises
    ------
    RemoteSegmentError
        If the object is missing or damaged, or its bytes are not a checkpoint of leader epochs.
    """
    file = tier.open(segment, Part.LEADER_EPOCHS)
    if file is None:
        return sorted((segment.epochs or {}).items())
    with file:
        try:
            return parse_leader_epochs(file.path, file.read(0, _MOST_INDEX_BYTES))
        except CorruptCheckpointError as error:
            reason = f"line {error.line}: {error.reason}"
            raise RemoteSegmentError(file.path, reason, _REMEDY) from error


def choose(
    tier: Layout,
    log: RemoteLog,
    segments: Sequence[RemoteSegment],
    epochs: Epochs,
    local_start: int | None,
    *,
    log_start: int,
    skips_gaps: bool = False,
) -> list[PlacedSegment]:
    """The remote segments of a log, in the order of their offsets.

    Parameters
    ----------
    tier : reads objects.
    log : for messages.
    segments : all that are complete.
    epochs : leader epochs of the local log; empty if there is none: the newest segment has them.
    local_start : first offset of the local log, or None.
    log_start : first offset of the log by its checkpoint; the largest one without an entry.
    skips_gaps : whether offsets that no segment holds are left out, and logged.

    Raises
    ------
    RemoteSegmentError
        If offsets between two segments, or all offsets before the local log, are missing; if an
        object is.
    """
    wanted = [each for each in segments if local_start is None or each.start_offset < local_start]
    chain = of_lineage(tier, log, wanted, epochs) if wanted else []
    if not chain:
        # The entry of a log begins before its first local segment only if it has remote segments:
        # an empty bucket, or that of another cluster, was read as a log without them.
        if local_start is not None and log_start < local_start:
            missing = f"offsets [{log_start}, {local_start}) of {log}"
            if not skips_gaps:
                raise RemoteSegmentError(
                    str(log), f"{missing} are in no segment of the tier", _OTHER
                )
            logger.warning("%s are in no segment of the tier, and are left out", missing)
        return []
    if chain[0].start_offset > log_start:
        # Perhaps retention: a broker writes the checkpoint once a minute.
        logger.warning(
            "%s begins at offset %d in the tier, and at offset %d by its checkpoint",
            log, chain[0].start_offset, log_start,
        )  # fmt: skip
    for each, start in missing_offsets(chain, local_start):
        missing = f"offsets [{each.end_offset + 1}, {start}) of {log}"
        if not skips_gaps:
            reason = f"{missing} are in no segment after this one"
            raise RemoteSegmentError(f"remote segment {each.segment_id}", reason, _MISSING)
        logger.warning("%s are in no segment of the tier, and are left out", missing)
    placed = []
    for i, each in enumerate(chain):
        limit = chain[i + 1].start_offset if i + 1 < len(chain) else local_start
        placed.append(PlacedSegment(each, position_of(tier, each, limit)))
    return placed


def of_lineage(
    tier: Layout, log: RemoteLog, segments: Sequence[RemoteSegment], epochs: Epochs
) -> list[RemoteSegment]:
    """The segments of a log that follow each other, each with its last offset and its size.

    Parameters
    ----------
    tier, log, epochs : see `choose`.
    segments : at least one.

    Raises
    ------
    RemoteSegmentError
        If an object is missing or damaged.
    """
    known = {each.segment_id: _known_epochs(tier, each) for each in segments}
    if not epochs:
        # The epochs that a manifest or the broker's list has begin with the segment: the epochs of
        # the whole log are in a file of the segment.
        newest = max(segments, key=lambda each: (_last_epoch(known, each), each.start_offset))
        epochs = epochs_of(tier, newest)
    found = []
    for each in segments:
        if not _is_of_lineage(each.start_offset, known[each.segment_id], epochs):
            logger.info("%s of %s is not of the log's leader epochs", each.segment_id, log)
            continue
        whole = _with_end(tier, each)
        if _last_epoch_ends(known[each.segment_id], epochs) < whole.end_offset:
            logger.info("%s of %s has records that the log has lost", each.segment_id, log)
            continue
        found.append(whole)
    return _chain(found)


def _last_epoch(known: Mapping[str, Epochs], segment: RemoteSegment) -> int:
    epochs = known[segment.segment_id]
    return epochs[-1][0] if epochs else -1


def _known_epochs(tier: Layout, segment: RemoteSegment) -> Epochs:
    """Leader epochs up to the end of a segment; those before it may be left out."""
    if segment.epochs is not None:
        return sorted(segment.epochs.items())
    return epochs_of(tier, segment)


def _floor(epochs: Epochs, offset: int) -> int:
    """The epoch of an offset, or -1."""
    at = bisect_right([start for _, start in epochs], offset) - 1
    return epochs[at][0] if at >= 0 else -1


def _is_of_lineage(start: int, own: Epochs, epochs: Epochs) -> bool:
    """Whether the epochs of a segment that begins at `start` are those of the log."""
    if not own or not epochs:
        return True  # logs of before 0.11 have none
    # The first epoch of the log begins with its first record: DeleteRecords has moved that start.
    start = max(start, epochs[0][1])
    inside = {each for each in own if each[1] > start}
    return inside <= set(epochs) and _floor(own, start) == _floor(epochs, start)


def _last_epoch_ends(own: Epochs, epochs: Epochs) -> int:
    """Last offset that the log has in the last epoch of a segment."""
    if own:
        for epoch, start in epochs:
            if epoch > own[-1][0]:
                return start - 1
    return 2**63 - 1


def _chain(segments: Sequence[RemoteSegment]) -> list[RemoteSegment]:
    """Segments that follow each other: none of them lies inside another."""
    chain: list[RemoteSegment] = []
    for each in sorted(segments, key=lambda one: (one.start_offset, -one.end_offset)):
        if not chain or each.end_offset > chain[-1].end_offset:
            chain.append(each)
    return chain


def missing_offsets(
    chain: Sequence[RemoteSegment], local_start: int | None
) -> Iterator[tuple[RemoteSegment, int]]:
    """Segments after which offsets are missing, each with the offset that follows in the log.

    Parameters
    ----------
    chain : segments that follow each other.
    local_start : first offset of the local log, or None.
    """
    starts = [each.start_offset for each in chain[1:]]
    starts += [] if local_start is None else [local_start]
    for each, start in zip(chain, starts, strict=False):
        if each.end_offset + 1 < start:
            yield each, start


_REST = "read the other offsets (failOnDataLoss=false, in Python fail_on_data_loss=False)"
_MISSING = f"restore the objects, or {_REST}"
_OTHER = f"name the tier of this cluster, restore the objects, or {_REST}"


def _with_end(tier: Layout, segment: RemoteSegment) -> RemoteSegment:
    """The segment with its last offset and its size."""
    if segment.end_offset >= 0 and segment.n_bytes >= 0:
        return segment
    with _opened(tier, segment) as file:
        size = file.status().size
        last = segment.start_offset - 1
        begin = _floor_position(tier, segment, 2**63 - 1)
        for _, header in _headers(file, begin, size):
            last = header.last_offset
    end = segment.end_offset if segment.end_offset >= 0 else last
    return segment._replace(end_offset=end, n_bytes=size)


def position_of(tier: Layout, segment: RemoteSegment, limit: int | None) -> int:
    """Bytes of a segment before the first batch that begins at or above an offset.

    Parameters
    ----------
    segment : with its last offset and its size.
    limit : the offset, or None for the end of the segment.
    """
    if limit is None or segment.end_offset < limit:
        return segment.n_bytes
    with _opened(tier, segment) as file:
        begin = _floor_position(tier, segment, limit)
        for position, header in _headers(file, begin, segment.n_bytes):
            if header.base_offset >= limit:
                return position
    return segment.n_bytes


def _opened(tier: Layout, segment: RemoteSegment) -> ReadableFile:
    file = tier.open(segment, Part.LOG)
    assert file is not None, "each segment has a log"  # noqa: S101 - the contract of `Layout`
    return file


def _floor_position(tier: Layout, segment: RemoteSegment, offset: int) -> int:
    """Byte of a batch that begins below `offset`, by the offset index; 0 without one."""
    file = tier.open(segment, Part.OFFSET_INDEX)
    position = 0
    if file is not None:
        with file:
            data = file.read(0, _MOST_INDEX_BYTES)
        for relative, at in _ENTRY.iter_unpack(data[: len(data) // 8 * 8]):
            if segment.start_offset + relative >= offset or (at == 0 and relative == 0):
                break
            position = at
    return position


def _headers(file: ReadableFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch from a byte on."""
    while position + bytes_of.SMALLEST_BATCH_BYTES <= end:
        head = file.read(position, bytes_of.HEADER_BYTES).ljust(bytes_of.HEADER_BYTES, b"\0")
        header = parse_header(head)
        if header.batch_length <= 0 or position + header.size_in_bytes > end:
            return
        yield position, header
        position += header.size_in_bytes
