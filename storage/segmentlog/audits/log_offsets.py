"""The offsets of a log by what is there: records, aborted records, end markers, or nothing.

The header of a batch has the number of its records.  If the batch has as many offsets, each of
them has a record, and the batch is not decoded.  Compaction leaves batches with fewer records or
none, and magic 0 and 1 do not have the number: the offsets of their records are decoded.

Headers are believed if they fit their neighbours.  If one of them does not, the rest of the range
is read like any other read, with its checks and its errors.  An audit that leaves out damaged
batches reads all of them.  Where it finds the records that the headers promise, it believes the
headers.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np

from segmentlog.errors import CorruptLogError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.batches import walk_batches
from segmentlog.log.damage import first_offset, position_of, sound_headers
from segmentlog.log.segment import from_offset
from segmentlog.model import IsolationLevel, OffsetRange, OnCorruptBatch, ScanPolicy
from segmentlog.reads.log import Log
from segmentlog.reads.scan import scan_slice
from segmentlog.reads.transactions import CommittedBatches

#: Bytes of log whose offsets are decoded together.
_SLICE_BYTES = 16 << 20


class Content(IntEnum):
    """What a log has at an offset."""

    NOTHING = 0  #: compaction has removed it, or it never was
    RECORD = 1
    ABORTED = 2  #: a record of an aborted transaction
    MARKER = 3  #: the end of a transaction, or another control record
    LOST = 4  #: a segment is gone, or a batch is damaged that had these offsets


class Contents(NamedTuple):
    """What a log has from the end of the last part up to an offset.

    Int64 arrays of one shape: ranges in order, without overlaps, and their `Content`; nothing is
    between them.
    """

    until: int
    first: Int64s
    end: Int64s
    content: Int64s


def log_contents(log: Log, offsets: OffsetRange, policy: ScanPolicy) -> Iterator[Contents]:
    """What a log has in a range of offsets, part by part, to the end of the range.

    Raises `CorruptLogError`, `UnsupportedFormatError` or `LogChangedError` if the log cannot be
    read; `LogDirectoryError` if segments at the end of the range are gone.
    """
    reached, end = offsets
    log.slices(*offsets)  # refuses a range that has lost records
    if policy.on_corrupt_batch == OnCorruptBatch.FAIL:
        try:
            for found in _by_headers(log, offsets, policy):
                reached = found.until
                yield found
        except (CorruptLogError, _DoubtError):
            pass  # the read below decides: damage may have nothing to be read
        else:
            if reached < end:
                yield Contents(end, *_NOTHING)
            return
    for log_slice in log.slices(reached, end, _SLICE_BYTES):
        yield from _checked(log, log_slice.offsets, policy)


class _DoubtError(Exception):
    """A header does not fit those before it."""


#: First offsets, ends and contents of ranges.
_Ranges: TypeAlias = tuple[Int64s, Int64s, Int64s]

_NO_OFFSETS: Int64s = np.empty(0, np.int64)
_NOTHING = (_NO_OFFSETS, _NO_OFFSETS, _NO_OFFSETS)


def _by_headers(log: Log, offsets: OffsetRange, policy: ScanPolicy) -> Iterator[Contents]:
    start, end = offsets
    segments = log.untorn_segments
    limits = {each.path: each.offset_limit for each in segments}
    committed = None
    if policy.isolation_level == IsolationLevel.READ_COMMITTED:
        committed = CommittedBatches(log.partition, ended=policy.ended)
    reached, is_first = start, True
    for walked in walk_batches(segments, start):
        if reached >= end:  # a wrapper has the offset of its last record
            return
        # A copy may hold a merged segment, and the segments that were merged into it.
        batches = walked.scanned
        batches = batches.only(batches.headers[:, layout.LAST_OFFSET] >= reached)
        if not len(batches.headers):
            continue
        firsts, lasts = _bounds(batches.headers, reached)
        before = np.concatenate([firsts[:1] if is_first else [reached], lasts[:-1] + 1])
        if (firsts < before).any() or lasts[-1] >= limits[batches.path]:
            raise _DoubtError
        batches = batches.only(firsts < end)
        # The batches after the range have not been seen: an end marker may be among them.
        found = _contents(log, batches, OffsetRange(reached, end), policy, committed)
        reached, is_first = found.until, False
        yield found


def _bounds(headers: Int64s, reached: int) -> tuple[Int64s, Int64s]:
    """First and last offsets of batches; a wrapper's first offset is after the batch before it."""
    lasts = headers[:, layout.LAST_OFFSET]
    is_legacy = headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK != 0
    firsts = headers[:, layout.BASE_OFFSET]
    if is_legacy.any():
        firsts = np.where(is_legacy, np.concatenate([[reached], lasts[:-1] + 1]), firsts)
    return firsts, lasts


def _contents(
    log: Log,
    batches: ScannedBatches,
    wanted: OffsetRange,
    policy: ScanPolicy,
    committed: CommittedBatches | None,
) -> Contents:
    """What sound batches have, from the beginning of `wanted` to their end, at most to its end."""
    headers = batches.headers
    if not len(headers):
        return Contents(wanted.end_offset, *_NOTHING)
    content = np.full(len(headers), Content.RECORD, np.int64)
    if committed is not None:
        content[committed.aborted(batches, batches.next_offset) != 0] = Content.ABORTED
    content[headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0] = Content.MARKER
    firsts, lasts = _bounds(headers, wanted.start_offset)
    until = min(int(lasts[-1]) + 1, wanted.end_offset)
    counts = headers[:, layout.RECORDS_COUNT]
    is_legacy = headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK != 0
    is_dense = ~is_legacy & (counts == lasts - firsts + 1)
    # The record of a marker is removed before its batch; there was no other record there.
    is_dense |= content == Content.MARKER
    # Also one without records: a damaged count must not hide them.
    is_sparse = ~is_dense
    first, end = firsts[is_dense], lasts[is_dense] + 1
    found = [(first, end, content[is_dense])]
    if is_sparse.any():
        begins, ends = np.maximum(firsts[is_sparse], wanted.start_offset), lasts[is_sparse] + 1
        for begin, stop in _near(begins, np.minimum(ends, until)):
            decoded = _offsets(log, OffsetRange(begin, stop), policy)
            of = np.searchsorted(lasts, decoded)
            decoded, of = decoded[is_sparse[of]], of[is_sparse[of]]
            found.append((decoded, decoded + 1, content[of]))
    if len(found) > 1:
        first, end, content = map(np.concatenate, zip(*found, strict=True))
        order = first.argsort(kind="stable")
        first, end, content = first[order], end[order], content[order]
    else:
        content = found[0][2]
    first, end = np.maximum(first, wanted.start_offset), np.minimum(end, until)
    return _packed(until, first, end, content)


def _packed(until: int, first: Int64s, end: Int64s, content: Int64s) -> Contents:
    """Contents of which neighbours with the same content are one range."""
    if not len(first):
        return Contents(until, *_NOTHING)
    begins = np.flatnonzero(
        np.append(True, (first[1:] != end[:-1]) | (content[1:] != content[:-1]))
    )
    return Contents(
        until, first[begins], end[np.append(begins[1:], len(end)) - 1], content[begins]
    )


#: Offsets of batches that need no decoding, and that are decoded to save a read of its own.
_NEAR = 4096


def _near(begins: Int64s, ends: Int64s) -> list[tuple[int, int]]:
    """Ranges in order, those that are near each other as one."""
    cuts = np.flatnonzero(begins[1:] - ends[:-1] > _NEAR) + 1
    at = np.concatenate([[0], cuts])
    lasts = np.append(cuts, len(ends)) - 1
    return [*zip(begins[at].tolist(), ends[lasts].tolist(), strict=True)]


def _offsets(log: Log, offsets: OffsetRange, policy: ScanPolicy) -> Int64s:
    """The offsets of all records in a range, also of aborted ones."""
    policy = policy._replace(isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return _offsets_read(log, offsets, policy)


def _offsets_read(log: Log, offsets: OffsetRange, policy: ScanPolicy) -> Int64s:
    """The offsets of the records that a read returns."""
    found = [
        batch.column(0).to_numpy()
        for log_slice in log.slices(*offsets)
        for batch in scan_slice(log_slice, columns=["offset"], policy=policy)
    ]
    return np.concatenate(found) if found else _NO_OFFSETS


def _checked(log: Log, offsets: OffsetRange, policy: ScanPolicy) -> Iterator[Contents]:
    """What a range has by a read of its records, with its checks and its errors.

    If the headers promise the same, they are believed: they also show end markers.  Else there is
    damage.
    """
    first = _offsets(log, offsets, policy)
    content = np.full(len(first), Content.RECORD, np.int64)
    if policy.isolation_level == IsolationLevel.READ_COMMITTED:
        is_there = np.isin(first, _offsets_read(log, offsets, policy), assume_unique=True)
        content[~is_there] = Content.ABORTED
    read = _packed(offsets.end_offset, first, first + 1, content)
    # Thinned batches are decoded: a damaged one must not count as an empty one.
    strict = policy._replace(on_corrupt_batch=OnCorruptBatch.FAIL)
    try:
        promised = [*_by_headers(log, offsets, strict)]
    except (CorruptLogError, _DoubtError):
        promised = []
    if promised and _are_same(promised, read):
        yield from promised
        if promised[-1].until < offsets.end_offset:
            yield Contents(offsets.end_offset, *_NOTHING)
        return
    parts = [read[1:], *_around_damage(log, offsets, first)]
    first, end, content = map(np.concatenate, zip(*parts, strict=True))
    order = first.argsort(kind="stable")
    yield _packed(offsets.end_offset, first[order], end[order], content[order])


def _are_same(promised: Iterable[Contents], read: Contents) -> bool:
    """Whether headers promise the records that were read."""
    first, end, content = map(np.concatenate, zip(*(each[1:] for each in promised), strict=True))
    is_record = content != Content.MARKER
    promise = _packed(read.until, first[is_record], end[is_record], content[is_record])
    return all(map(np.array_equal, promise[1:], read[1:]))


def _around_damage(log: Log, offsets: OffsetRange, read: Int64s) -> Iterator[_Ranges]:
    """The end markers of sound batches, and the offsets that damage has taken.

    `read`: the offsets of all records that can be read.
    """
    reached, until = offsets
    for segment in from_offset(log.untorn_segments, reached):
        if segment.base_offset >= until:
            return
        with segment.opened() as opened:
            position = position_of(opened, reached)
            for placed in sound_headers(opened, position, skips=True, warns=False):
                header, is_after_damage = placed.header, placed.position != position
                position = placed.end
                if header.last_offset < reached:
                    continue
                begin = max(first_offset(opened.file, placed.position, header), reached)
                end = min(header.last_offset + 1, until)
                if is_after_damage:
                    yield from _ranges(reached, min(begin, until), Content.LOST)
                if header.is_control:
                    yield from _ranges(begin, end, Content.MARKER)
                elif header.records_count and end == header.last_offset + 1:
                    # Of a sound batch that nobody can inflate, no record is read.  One that is
                    # not wholly in the range may have its records outside.
                    inside = read[read.searchsorted(begin) : read.searchsorted(end)]
                    is_cut = header.base_offset < begin and not header.is_wrapper
                    if not is_cut and len(inside) < max(header.records_count, 1):
                        yield from _without(inside, begin, end)
                reached = max(reached, header.last_offset + 1)
                if reached >= until:
                    return
            if position < segment.size:
                limit = min(segment.offset_limit or until, until)
                yield from _ranges(reached, limit, Content.LOST)
                reached = max(reached, limit)


def _ranges(begin: int, end: int, content: Content) -> Iterator[_Ranges]:
    """A range with its content, unless it is empty."""
    if begin < end:
        first, after, kind = (np.array([each], np.int64) for each in (begin, end, int(content)))
        yield first, after, kind


def _without(read: Int64s, begin: int, end: int) -> Iterator[_Ranges]:
    """The offsets of a range that could not be read."""
    for before, after in zip([begin, *(read + 1).tolist()], [*read.tolist(), end], strict=True):
        yield from _ranges(before, after, Content.LOST)
