"""The choice of remote segments that are the log, and how far each of them is read.

A tier may hold a segment twice, because a broker that became the leader copied offsets that its
predecessor had copied, with other borders.  It may hold segments of a lost lineage, which an
unclean election has cut off the log.  The leader epochs of the log decide: a segment whose epochs
are not those of the log is not part of it (KIP-405,
``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs``).

Segments are joined by offset.  The local log is the log where it has an offset; before that, each
segment is read up to the segment that follows.

Objects may be damaged, and a tier is read without a broker that would notice.  So a segment ends
where its batches end: an index is a hint for where to look for them, and an overlap is an overlap
only if both segments have a batch that begins there.  If the end cannot be read, the segment ends
where the next one begins, and a read reports the damage.  And leader epochs leave a segment out
only if its offsets are elsewhere.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptLogError,
    RemoteSegmentError,
    UnsupportedFormatError,
)
from segmentlog.log.checkpoint import parse_leader_epochs
from segmentlog.log.indexes import OffsetIndex
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import OpenSegment, PlacedHeader, Segment
from segmentlog.model import LARGEST_LONG
from segmentlog.store.readable import bytes_of
from segmentlog.tiered.layout import Layout, RemoteFileKind, RemoteLog, RemoteSegment

logger = logging.getLogger(__name__)

#: Leader epochs of a log with their start offsets, in their order.
Epochs = Sequence[tuple[int, int]]

_REMEDY = "restore the object, or remove the segment from the tier"


class PlacedSegment(NamedTuple):
    """A remote segment of the log."""

    segment: RemoteSegment  # the segment, with its last offset
    n_bytes: int  # of its ``.log`` file, up to the next segment of the log


def epochs_of(tier: Layout, segment: RemoteSegment) -> Epochs:
    """All leader epochs of the log up to the end of a segment; a damaged object is an error."""
    file = tier.open(segment, RemoteFileKind.LEADER_EPOCHS)
    if file is None:
        return sorted((segment.epochs or {}).items())
    with file:
        path = file.path
        data = bytes_of(file, lambda reason: RemoteSegmentError(path, f"it {reason}", _REMEDY))
        try:
            epochs = parse_leader_epochs(file.path, data, takes_newer=True)
        except CorruptCheckpointError as error:
            reason = f"line {error.line}: {error.reason}"
            raise RemoteSegmentError(file.path, reason, _REMEDY) from error
        if not epochs and data.split() != [b"0", b"0"]:
            raise RemoteSegmentError(file.path, f"it ends after {len(data)} bytes", _REMEDY)
        return epochs


class Chain(NamedTuple):
    """The segments of a log that follow each other, each with its last offset and its size.

    `left_out` are those whose leader epochs are not those of the log, and `starts_at` is the first
    offset by these epochs.
    """

    segments: list[RemoteSegment]
    left_out: list[RemoteSegment]
    starts_at: int


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
    """The remote segments of a log, in the order of their offsets; all `segments` are complete.

    ::

        log_start              local_start                             log end
        |  only in the tier    |  on the disk, in part in the tier, too  |
        |  read from there     |  read from the disk                     |

    `epochs` are those of the local log; there are none without one: the newest segment has them.
    `local_start` is its first offset, and `log_start` that of the log by its checkpoint, or the
    largest offset without an entry.  Offsets from there on that no segment holds, or only one of
    other leader epochs, are an error, or with `skips_gaps` a warning.  A damaged object is
    always an error.
    """

    def lose(place: str, missing: str, reason: str, remedy: str) -> None:
        if not skips_gaps:
            raise RemoteSegmentError(place, f"{missing} {reason}", remedy)
        logger.warning("%s are in no segment of the tier, and are left out", missing)

    wanted = [each for each in segments if local_start is None or each.start_offset < local_start]
    found = of_lineage(tier, log, wanted, epochs, local_start) if wanted else Chain([], [], 0)
    for each, start, end in lost_offsets(tier, found, local_start, log_start):
        where = f"remote segment {each.segment_id}"
        lose(where, f"offsets [{start}, {end}) of {log}", ONLY_THERE, _MISSING)
    chain = found.segments
    if not chain:
        # The entry of a log begins before its first local segment only if it has remote segments:
        # an empty bucket, or that of another cluster, was read as a log without them.
        if local_start is not None and log_start < local_start:
            missing = f"offsets [{log_start}, {local_start}) of {log}"
            lose(str(log), missing, "are in no segment of the tier", _OTHER)
        return []
    # A broker moves the start of the first leader epoch with the log start.
    begins = found.starts_at if epochs and log_start == LARGEST_LONG else log_start
    if chain[0].start_offset > begins:
        # Perhaps retention: a broker writes the checkpoint once a minute.
        logger.warning(
            "%s begins at offset %d in the tier, and at offset %d by its checkpoint",
            log,
            chain[0].start_offset,
            begins,
        )
    for each, start in missing_offsets(chain, local_start, log_start):
        missing = f"offsets [{each.end_offset + 1}, {start}) of {log}"
        where = f"remote segment {each.segment_id}"
        lose(where, missing, "are in no segment after this one", _MISSING)
    placed = []
    for i, each in enumerate(chain):
        limit = chain[i + 1].start_offset if i + 1 < len(chain) else local_start
        n_bytes = each.n_bytes
        if limit is not None and each.end_offset >= limit:
            n_bytes = _border(tier, each, limit).position
        placed.append(PlacedSegment(each, n_bytes))
    return placed


def of_lineage(
    tier: Layout,
    log: RemoteLog,
    segments: Sequence[RemoteSegment],
    epochs: Epochs,
    local_start: int | None = None,
) -> Chain:
    """The segments, of at least one, that follow each other in a log; see `choose`."""
    # Epochs before a segment may be left out of those that are known without its file.
    known = {
        each.segment_id: epochs_of(tier, each)
        if each.epochs is None
        else sorted(each.epochs.items())
        for each in segments
    }
    if not epochs:
        # The epochs that a manifest or the broker's list has begin with the segment: the epochs of
        # the whole log are in a file of the segment.
        last = {each: epochs_of_it[-1][0] for each, epochs_of_it in known.items() if epochs_of_it}
        newest = max(segments, key=lambda each: (last.get(each.segment_id, -1), each.start_offset))
        epochs = epochs_of(tier, newest)
    found, left_out = [], []
    for each in segments:
        if not _is_of_lineage(each.start_offset, known[each.segment_id], epochs):
            logger.info("%s of %s is not of the log's leader epochs", each.segment_id, log)
            left_out.append(each)
            continue
        whole = _with_end(tier, each)
        ends = _last_epoch_ends(known[each.segment_id], epochs)
        if ends < whole.end_offset != _UNKNOWN:
            logger.info("%s of %s has records that the log has lost", each.segment_id, log)
            left_out.append(whole)
            continue
        found.append(whole)
    starts_at = epochs[0][1] if epochs else 0
    return Chain(_chain(tier, found, local_start), left_out, starts_at)


def lost_offsets(
    tier: Layout, chain: Chain, local_start: int | None, log_start: int
) -> Iterator[tuple[RemoteSegment, int, int]]:
    """Segments that are left out and alone have offsets of the log, each with these offsets."""
    for each in chain.left_out:
        at = max(each.start_offset, chain.starts_at)
        if log_start < LARGEST_LONG:
            at = max(at, log_start)
        for one in chain.segments:
            if one.start_offset <= at <= one.end_offset:
                at = one.end_offset + 1
        if local_start is not None and at >= local_start:
            continue
        last = _with_end(tier, each).end_offset
        end = 1 + (last if last != _UNKNOWN else each.start_offset)
        if at < end:
            yield each, at, end if local_start is None else min(end, local_start)


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
    return LARGEST_LONG


def _chain(
    tier: Layout, segments: Sequence[RemoteSegment], local_start: int | None
) -> list[RemoteSegment]:
    """Segments that follow each other: none of them lies inside another.

    Raises `RemoteSegmentError` if segments overlap, and the first one has no batch that begins
    with the second one.
    """
    ordered = sorted(segments, key=lambda one: (one.start_offset, -one.end_offset))
    chain: list[RemoteSegment] = []
    for each in ordered:
        if chain and chain[-1].end_offset == _UNKNOWN:
            if each.start_offset == chain[-1].start_offset:
                continue
            chain[-1] = _ended(tier, chain[-1], each.start_offset)
        if chain and each.start_offset <= chain[-1].end_offset:
            border = _border(tier, chain[-1], each.start_offset)
            if border.is_end:  # what is known of the end is not true
                chain[-1] = chain[-1]._replace(end_offset=border.reached)
            elif each.end_offset <= chain[-1].end_offset:
                continue
        chain.append(each)
    if chain and chain[-1].end_offset == _UNKNOWN:
        last = chain[-1]
        if local_start is not None and last.start_offset < local_start:
            chain[-1] = _ended(tier, last, local_start)
        else:
            chain[-1] = last._replace(end_offset=max(_reached(tier, last), last.start_offset))
    if chain and local_start is None:
        _check_indexes(tier, chain[-1])
    return chain


def _ended(tier: Layout, segment: RemoteSegment, limit: int) -> RemoteSegment:
    """A segment with damaged last batches, which ends at `limit` unless it has that offset, too.

    Damage at or after that offset does not matter; a read reports damage before it.
    """
    try:
        is_end = _border(tier, segment, limit).is_end
    except RemoteSegmentError:
        is_end = True
    return segment._replace(end_offset=limit - 1 if is_end else limit)


def missing_offsets(
    chain: Sequence[RemoteSegment], local_start: int | None, log_start: int
) -> Iterator[tuple[RemoteSegment, int]]:
    """Segments after which offsets of the log are missing, each with the one that follows.

    `chain` has segments that follow each other; see `choose` for the starts.
    """
    starts = [each.start_offset for each in chain[1:]]
    starts += [] if local_start is None else [local_start]
    for each, start in zip(chain, starts, strict=False):
        is_deleted = start <= log_start < LARGEST_LONG
        if each.end_offset + 1 < start and not is_deleted:
            yield each, start


_REST = "read the other offsets (failOnDataLoss=false, in Python fail_on_data_loss=False)"
_MISSING = f"restore the objects, or {_REST}"
_OTHER = f"name the tier of this cluster, restore the objects, or {_REST}"
#: The reason of lost offsets.
ONLY_THERE = (
    "are only in this segment, and its leader epochs are not those of the log: an unclean "
    "election has lost them, or a checkpoint of leader epochs is damaged"
)

#: Last offset of a segment whose last batches are damaged.
_UNKNOWN = 2**63 - 2


def _with_end(tier: Layout, segment: RemoteSegment) -> RemoteSegment:
    """The segment with its last offset, by its batches unless the layout has it, and its size."""
    if segment.end_offset >= 0 and segment.n_bytes >= 0:
        return segment
    with _opened(tier, segment) as opened:
        size = opened.segment.size
        end = segment.end_offset
        if end < 0:
            last = _last_batch(opened, _position_before(tier, segment, opened, LARGEST_LONG))
            last = last or _last_batch(opened, 0)
            end = last.header.last_offset if last else _UNKNOWN
    return segment._replace(end_offset=end, n_bytes=size)


def _reached(tier: Layout, segment: RemoteSegment) -> int:
    """An offset at or after the last one of a segment whose last batches are damaged.

    A read has to meet the damage, so each byte after the sound batches counts as a record.
    """
    reached, position = segment.start_offset - 1, 0
    with _opened(tier, segment) as opened:
        size = opened.segment.size
        for placed in _followed(opened, 0):
            is_wrong = placed.end == size and placed.header.base_offset > reached + 1
            if is_wrong or placed.checksum(opened.file) != placed.header.crc:
                break  # see `_last_batch`
            reached, position = placed.header.last_offset, placed.end
    return reached + max(size - position, 1)


def _check_indexes(tier: Layout, segment: RemoteSegment) -> None:
    """Refuse the last segment of a tier if an index leads to an offset after its last batch.

    Nothing else shows that an object was cut between two batches.
    """
    for part, entry_bytes in ((RemoteFileKind.OFFSET_INDEX, 8), (RemoteFileKind.TIME_INDEX, 12)):
        file = tier.open(segment, part)
        if file is None:
            continue
        with file:
            n_entries = file.status().size // entry_bytes
            entry = file.read(max(n_entries - 1, 0) * entry_bytes, entry_bytes)
        if len(entry) < entry_bytes:
            continue
        relative = entry[:4] if part is RemoteFileKind.OFFSET_INDEX else entry[8:]
        indexed = segment.start_offset + int.from_bytes(relative, "big", signed=True)
        if indexed > segment.end_offset:
            reason = (
                f"it leads to offset {indexed}, and the batches of the segment end at offset "
                f"{segment.end_offset}: the log was cut, or the index is damaged"
            )
            raise RemoteSegmentError(file.path, reason, _REMEDY)


def _last_batch(opened: OpenSegment, position: int) -> PlacedHeader | None:
    """The last batch of a segment; None if it, or a batch after byte `position`, is damaged.

    No checksum covers a base offset.  In a log without gaps the batch before shows that it is
    wrong; compaction, which leaves gaps, leaves many.
    """
    before, last, n_gaps = opened.segment.base_offset - 1, None, 0
    for placed in _followed(opened, position):
        if last is not None:
            n_gaps += last.header.base_offset > before + 1
            before = last.header.last_offset
        elif position:
            before = placed.header.base_offset - 1
        last = placed
    if last is None or last.end != opened.segment.size:
        return None
    is_gap = last.header.base_offset > before + 1 and not last.header.is_wrapper
    if is_gap and not (position == 0 and n_gaps):
        return None
    return last if last.checksum(opened.file) == last.header.crc else None


def _followed(opened: OpenSegment, position: int) -> Iterator[PlacedHeader]:
    """Headers from a byte on, up to the first that cannot follow the one before it."""
    least = opened.segment.base_offset
    try:
        for placed in opened.headers(position):
            if placed.header.base_offset < least or placed.header.last_offset_delta < 0:
                return
            yield placed
            least = placed.header.last_offset + 1
    except (CorruptLogError, UnsupportedFormatError):
        return


class _Border(NamedTuple):
    """The byte of a segment at which another one begins.

    `reached` is the last offset before it, and `is_end` whether no batch follows.
    """

    position: int
    reached: int
    is_end: bool


def _border(tier: Layout, segment: RemoteSegment, offset: int) -> _Border:
    """The border of a segment and another one that begins at `offset`.

    Raises `RemoteSegmentError` if the batches of the segment do not end before that offset, and go
    on with it.
    """
    with _opened(tier, segment) as opened:
        for begin in dict.fromkeys((_position_before(tier, segment, opened, offset), 0)):
            reached, position = segment.start_offset - 1 if begin == 0 else -1, begin
            for placed in _followed(opened, begin):
                if placed.header.base_offset >= offset:
                    if reached == offset - 1:
                        return _Border(placed.position, reached, is_end=False)
                    break
                reached, position = placed.header.last_offset, placed.end
            else:
                if position == opened.segment.size and reached < offset:
                    return _Border(position, reached, is_end=True)
        reason = (
            f"its batches do not meet offset {offset}, where the next segment of the log begins"
        )
        raise RemoteSegmentError(opened.file.path, reason, _REMEDY)


def _opened(tier: Layout, segment: RemoteSegment) -> OpenSegment:
    """A segment, for look-ups without an index."""
    file = tier.open(segment, RemoteFileKind.LOG)
    assert file is not None, "each segment has a log"  # noqa: S101 - the contract of `Layout`
    size = file.status().size
    if not size:
        file.close()
        raise RemoteSegmentError(file.path, "the object is empty", _REMEDY)
    files = SegmentFiles(segment.start_offset, file.path, size)
    return OpenSegment(Segment(files, is_sealed=False, is_active=False), file)


def _position_before(
    tier: Layout, segment: RemoteSegment, opened: OpenSegment, offset: int
) -> int:
    """Byte of a batch at least one batch before the one at `offset`; 0 without such an entry.

    The entry of the offset index before the last one below the offset is taken.
    """
    file = tier.open(segment, RemoteFileKind.OFFSET_INDEX)
    if file is None:
        return 0
    with OffsetIndex(file.path, segment.start_offset, mapped=False, file=file) as index:
        found, at = index.lookup_before(offset - 1)
    fits = opened.header_at(at, up_to_offset=min(found, offset)) if at > 0 else None
    return 0 if fits is None else at
