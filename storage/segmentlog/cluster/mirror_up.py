"""Mirror log directories into a log in an object store: a backup that moves only what is new.

The log in the store has what is replicated, up to the high watermarks.  What it has is compared
with the sources by digests, which are part of its commits, so nothing is downloaded:

1. A segment whose file has not changed since the last mirror is as it was.  The object
   ``segmentlog/mirrored.json`` has the stamps of these files.  It is only a hint: without it, all
   bytes of the sources are read, and their digests are compared.
2. Extents whose bytes are no longer those of the source are compared by records.  If the source
   has compacted them, one range of offsets is uploaded again.  If a record is another one, the
   source has diverged: that is an error, and nothing is changed.
3. New batches are uploaded, and one commit names all of it: batches, log starts, leader epochs,
   producers, numbered writes and batches of streams.

Records that were compacted or erased must not stay because other records lie in the same object.
So what shares an object with them is written into another one, with the same commit, and a sweep
can remove the object.
"""

import copy
import errno
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple

from segmentlog.bucket.commits import NOT_DONE, Commit
from segmentlog.bucket.data_objects import Upload, UploadPart, read_range
from segmentlog.bucket.extents import PartitionLog, PlacedExtent, Topic, digest_of_extent
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import Objects
from segmentlog.bucket.places import forget
from segmentlog.bucket.rewriting import move_out
from segmentlog.bucket.sequence import opened_at, sequence_at
from segmentlog.cluster.copies import Copy
from segmentlog.cluster.follower import MirroredPartition, differences
from segmentlog.cluster.replicated import ReplicatedDirectory
from segmentlog.errors import LogDirectoryError, SegmentLogError, StorageError
from segmentlog.log.producers import ProducerStates
from segmentlog.log.segment import Segment
from segmentlog.model import TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.fingerprint import fingerprint
from segmentlog.store.paths import BucketLocation
from segmentlog.store.system_errors import Failures
from segmentlog.txn.state import CommittedBatch, State
from segmentlog.txn.topics import new_topic_id

logger = logging.getLogger(__name__)

_HINT = "segmentlog/mirrored.json"


class _MirroredSegment(NamedTuple):
    """A segment of a source, as the last mirror has found it."""

    stamp: Sequence[int]  # inode, size and times of its file
    extents: str  # digest of the extents that the log in the store has of it


class _Hint(NamedTuple):
    """A partition at the last mirror: the path of the source, and segments by base offset."""

    source: str
    segments: Mapping[int, _MirroredSegment]


def mirror_up(
    location: BucketLocation,
    source: ReplicatedDirectory,
    chosen: Sequence[TopicPartition],
    *,
    dry_run: bool,
    on_bytes: Callable[[int], object],
    on_phase: Callable[[str], object],
    failures: Failures,
) -> list[MirroredPartition]:
    """Bring a log in an object store up to the sources; the place must be empty, or be one.

    `chosen`: the partitions.  `failures`: is told of each partition that cannot be copied; the
    others are: one of another topic, one with records that its source lacks, or one that another
    commit has changed meanwhile.  Raises `LogDirectoryError` if the place has other objects;
    `CommitInDoubtError` if the store does not say whether
    the commit took place.
    """
    sequence = sequence_at(location)
    state = LogState()
    if not dry_run or sequence.is_made():
        sequence = opened_at(location, creates=not dry_run)
        state = sequence.known
    if not dry_run:
        forget(location)
    hints = _read_hints(sequence.objects) if state.number else {}
    ups = []
    for each in chosen:
        with failures.of(each):
            on_phase(f"{each}: compares")
            up = _Up(location, source.log(*each), state, hints.get(each))
            up.plan()
            ups.append(up)
    if dry_run:
        return [each.result("") for each in ups]
    job, begun_ms = secrets.token_hex(8), int(time.time() * 1000)
    upload, sound = Upload(sequence.objects, job, on_bytes), []
    for up in ups:
        with failures.of(up.at):
            on_phase(f"{up.at}: copies")
            up.upload(upload)
            sound.append(up)
    leaving = _move(upload, state, sound)
    upload.finish()
    attempt = _MirrorAttempt(job, begun_ms, location, sound, upload, leaving, source, failures)
    on_phase("the logs become visible")
    after = sequence.append(attempt.commit_after).logs  # no later request decides the answer
    found = {each.at: after.get(each.at) or PartitionLog() for each in attempt.ups}
    kept = hints | {each.at: each.hint(found[each.at]) for each in attempt.ups}
    _write_hints(sequence.objects, kept, location)
    return [each.result(_digest_of(found[each.at])) for each in attempt.ups]


def _move(upload: Upload, state: LogState, ups: "Sequence[_Up]") -> set[str]:
    """Upload again what shares an object with extents that are replaced; returns these objects."""
    leaving = {each.object for up in ups for each in up.leaving}
    replaced = {(each.object, each.start) for up in ups for each in up.leaving}
    move_out(upload, state, leaving, replaced)
    return leaving


class _Up:
    """One partition of a source, and what the log in the store has of it.

    `end`: the offset up to which it is mirrored.  `replaced`: offsets whose extents are uploaded
    again, or None.
    """

    def __init__(
        self,
        location: BucketLocation,
        log: Log,
        state: LogState,
        known: _Hint | None,
    ) -> None:
        self.at, self.log, self._location = log.topic_partition, log, location
        self._known = known.segments if known is not None and known.source == log.path else {}
        self.topic_id = log.known_topic_id
        self.mine = state.logs.get(self.at) or PartitionLog()
        self.is_there = self.at in state.logs
        self._extents = self.mine.placed(self.at)
        self.replaced: tuple[int, int] | None = None
        self._parts: list[UploadPart] = []
        self._looks: dict[int, tuple[Sequence[int], bool]] = {}
        self.check_topic(state)
        self.start = log.log_start_offset
        self.end = self._replicated_end()
        if self.end < self.mine.end and self.start <= self.mine.end:
            self._diverged(self.end, f"the log ends at {log.log_end_offset}")

    def check_topic(self, state: LogState) -> None:
        """Refuse a topic that is another one there."""
        topic = state.topics.get(self.at.topic)
        if topic is not None and self.topic_id and topic.topic_id != self.topic_id:
            reason = (
                f"topic {self.at.topic!r} has the id {topic.topic_id} there, and {self.topic_id} "
                f"in {self.log.path}: the topic was created again; delete it in the store first "
                "(segmentlog delete-topic), or mirror to another place"
            )
            raise LogDirectoryError(str(self._location), reason)

    def _diverged(self, offset: int, why: str) -> None:
        reason = (
            f"{self.at} has records there that {self.log.path} lacks, from offset {offset} on "
            f"({why}): the source was truncated, or is another log; delete the topic in the store "
            "(segmentlog delete-topic), or mirror to another place"
        )
        raise LogDirectoryError(str(self._location), reason)

    def _replicated_end(self) -> int:
        """The end of the last whole batch below the high watermark.

        A high watermark in a checkpoint may be older than that of the last mirror.
        """
        end, known = self.log.log_end_offset, self.log.high_watermark
        if known is None or known >= end:
            return end
        wanted = min(max(known, self.mine.end), end)
        for segment in reversed(self.log.segments):
            if segment.base_offset <= wanted:
                placed = segment.find(wanted)
                is_cut = placed is not None and placed.header.base_offset < wanted
                return placed.header.base_offset if placed and is_cut else wanted
        return wanted

    # --- what differs

    def plan(self) -> None:
        """Find the offsets that are uploaded."""
        segments = [each for each in self.log.untorn_segments if each.base_offset < self.end]
        limits = [*(each.base_offset for each in segments), self.end][1:]
        differing: list[tuple[int, int]] = []
        done = 0
        for segment, limit in zip(segments, limits, strict=True):
            # Before the file is read, and with it whether a later change would show.
            look = fingerprint(segment.path)
            self._looks[segment.base_offset] = look.stamp or (), look.is_settled
            extents = self._between(max(segment.base_offset, done), min(limit, self.mine.end))
            if extents:
                done = extents[-1].end_offset
                now = _MirroredSegment([*(look.stamp or ())], _digest_of_extents(extents))
                if self._known.get(segment.base_offset) != now:
                    first = self._first_other(segment, extents, is_whole=limit <= self.mine.end)
                    if first is not None:
                        differing.append((first, done))
        if differing:
            self._compare(differing[0][0], differing[-1][1])
        new = max(self.mine.end, segments[0].base_offset if segments else 0), self.end
        for begin, end in [self.replaced, new] if self.replaced else [new]:
            self._parts += _parts(segments, limits, begin, end)

    @property
    def leaving(self) -> list[PlacedExtent]:
        """The extents in whose places others are uploaded."""
        return self._between(*self.replaced) if self.replaced else []

    def _between(self, first: int, end: int) -> list[PlacedExtent]:
        """The extents that begin between two offsets."""
        return [each for each in self._extents if first <= each.base_offset < end]

    def _first_other(
        self, segment: Segment, extents: Sequence[PlacedExtent], *, is_whole: bool
    ) -> int | None:
        """Base offset of the first extent whose bytes are others in the source, or None.

        `is_whole`: whether the segment has no batches after them.
        """
        with segment.opened() as opened:
            position = 0
            if extents[0].base_offset > segment.base_offset:
                placed = opened.find(extents[0].base_offset)
                position = segment.size if placed is None else placed.position
            for each in extents:
                if position + each.size > segment.size:
                    return each.base_offset
                pieces = read_range(opened.file, position, each.size)
                if not each.digest or digest_of_extent(pieces) != each.digest:
                    return each.base_offset
                position += each.size
        return extents[-1].base_offset if is_whole and position != segment.size else None

    def _compare(self, first: int, end: int) -> None:
        """Compare records whose bytes are others: upload them again if some were compacted."""
        own = open_log_dir(self._location.root).log(*self.at)
        start = max(first, own.log_start_offset, self.log.log_start_offset)
        found, is_equal = differences(own, self.log, start, min(end, self.end), self.mine.end)
        if found is not None:
            self._diverged(found, "its records are others")
        if not is_equal:
            self.replaced = first, end

    # --- the upload

    def upload(self, upload: Upload) -> None:
        segments = self._segments_up_to(self.end)
        for part in self._parts:
            producers = ProducerStates.load(self.log.path, part.base_offset)
            producers.follow_to(self._segments_up_to(part.base_offset), part.base_offset)
            upload.add(self.at, part, producers)
        if self.end > self.mine.end or not self.is_there:
            producers = ProducerStates.load(self.log.path, self.end)
            producers.follow_to(segments, self.end)
            if producers.known or self.mine.snapshot:
                upload.add_snapshot(self.at, self.end, sorted(producers.known))

    def _segments_up_to(self, end: int) -> list[Segment]:
        """The segments of the source as if the log ended at an offset, which begins a batch."""
        found = [copy.copy(each) for each in self.log.untorn_segments if each.base_offset < end]
        if found:
            placed = found[-1].find(end)
            found[-1].size = found[-1].size if placed is None else placed.position
        return found

    @property
    def n_bytes(self) -> int:
        """Bytes that the store lacks."""
        return sum(each.end - each.begin for each in self._parts)

    @cached_property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """The leader epochs up to the end; at least one entry, as in all logs."""
        found = Copy(self.log, "", {}).epochs.cut(self.end).starts
        return tuple((epoch, start) for epoch, start in found) or ((0, self.start),)

    def hint(self, after: PartitionLog) -> _Hint:
        """What this mirror has found, or made, equal; a change that may not show is left out."""
        self._extents = after.placed(self.at)
        bases = [*self._looks, self.end]
        found = {}
        for base, limit in pairwise(bases):
            stamp, is_settled = self._looks[base]
            extents = self._between(base, limit)
            if is_settled and stamp and extents:
                found[base] = _MirroredSegment(stamp, _digest_of_extents(extents))
        return _Hint(self.log.path, found)

    def result(self, sha256: str) -> MirroredPartition:
        """The result; without a digest it is that of a dry run."""
        first, end = self.replaced or (0, 0)
        leave = [each for each in self._extents if first <= each.base_offset < end]
        leave += [each for each in self._extents if each.end_offset <= self.start]
        sizes = sum(each.size for each in self._extents if each not in leave)
        return MirroredPartition(
            *self.at,
            self.log.path,
            self.start,
            max(self.end, self.mine.end),
            sizes + (0 if sha256 else self.n_bytes),
            self.n_bytes,
            None,
            (),
            len(leave),
            sha256,
        )


def _parts(
    segments: Sequence[Segment], limits: Sequence[int], begin: int, end: int
) -> list[UploadPart]:
    """The batches of a range of offsets, segment by segment."""
    found = []
    for segment, limit in zip(segments, limits, strict=True):
        if segment.base_offset >= end or limit <= begin or not segment.size:
            continue
        with segment.opened() as opened:
            first, last = 0, segment.size
            if segment.base_offset < begin:
                placed = opened.find(begin)
                first = segment.size if placed is None else placed.position
            if segment is segments[-1] or limit > end:
                placed = opened.find(end)
                last = segment.size if placed is None else placed.position
        if first < last:
            base = max(segment.base_offset, begin)
            found.append(UploadPart(segment, first, last, base, min(limit, end)))
    return found


class _MirrorAttempt:
    """The commit of a mirror, placed after one state of the log after the other.

    `ups`: the partitions that take part, without those that `failures` was told of.
    """

    def __init__(
        self,
        job: str,
        begun_ms: int,
        location: BucketLocation,
        ups: Sequence[_Up],
        upload: Upload,
        leaving: set[str],
        source: ReplicatedDirectory,
        failures: Failures,
    ) -> None:
        self._job, self._location, self._upload = job, location, upload
        self.ups, self._failures = ups, failures
        self._leaving = leaving
        self._begun_ms = begun_ms
        self._source, self._token = source, secrets.token_hex(16)
        self._new_ids: dict[str, str] = {}

    def commit_after(self, state: LogState) -> Commit | None:
        """The commit that follows a state; None if nothing is to be done."""
        starts, replaced, epochs = {}, {}, {}
        sequence_at(self._location).refuse_ended(state, self._job, self._begun_ms)
        unchanged = []
        for each in self.ups:
            with self._failures.of(each.at):
                each.check_topic(state)
                self._check_unchanged(each, state)
                unchanged.append(each)
        self.ups = unchanged
        for each in self.ups:
            now = state.logs.get(each.at) or PartitionLog()
            if each.start > now.start:
                starts[each.at] = each.start
            if each.replaced:
                replaced[each.at] = each.replaced
            if (found := each.epochs) != now.epochs:
                epochs[each.at] = found
        for at in starts:  # which shows that the log may begin after all of its records
            epochs.setdefault(at, (state.logs.get(at) or PartitionLog()).epochs)
        versions, streams, spans = self._writes(state)
        created = self._created(state)
        mine = {each.at for each in self.ups}  # others have failed after a part of their batches
        extents = [each for each in self._upload.extents if TopicPartition(*each[:2]) in mine]
        extents += self._moved(state, replaced)
        extents.sort(key=lambda each: (each.topic, each.partition, each.base_offset))
        moved = {
            at
            for at, log in state.logs.items()
            if log.snapshot and log.snapshot.object in self._leaving
        }
        snapshots = {at: each for at, each in self._upload.snapshots.items() if at in mine | moved}
        if not any((created, starts, extents, replaced, epochs, versions, streams)):
            return None
        return Commit(
            state.number + 1,
            self._token,
            self._job,
            max(int(time.time() * 1000), 0),
            created=created,
            starts=starts,
            extents=extents,
            replaced=replaced,
            epochs=epochs,
            snapshots=snapshots,
            versions=versions,
            streams=streams,
            spans=spans,
        )

    def _moved(
        self, state: LogState, replaced: dict[TopicPartition, tuple[int, int]]
    ) -> list[PlacedExtent]:
        """Extents at their new places, and those between them, whose range is `replaced`."""
        moved, found = self._upload.moved, list[PlacedExtent]()
        for at in {TopicPartition(*each[:2]) for each in moved.values()} & state.logs.keys():
            first, end = own = replaced.get(at, (0, 0))
            placed = state.logs[at].placed(at)
            changed = [each for each in placed if (each.object, each.start) in moved]
            if not changed:
                continue  # its records have left the log meanwhile
            if own == (0, 0):
                first, end = changed[0].base_offset, changed[-1].end_offset
            first = min(first, changed[0].base_offset)
            end = max(end, changed[-1].end_offset)
            replaced[at] = first, end
            found += [
                moved.get((each.object, each.start), each)
                for each in placed
                if first <= each.base_offset < end and not own[0] <= each.base_offset < own[1]
            ]
        return found

    def _check_unchanged(self, up: _Up, state: LogState) -> None:
        """Refuse a partition that another commit has changed since it was compared."""
        now, was = state.logs.get(up.at) or PartitionLog(), up.mine
        if (now.start, now.end, now.objects) != (was.start, was.end, was.objects):
            reason = f"{up.at} was changed there while it was mirrored: mirror again"
            raise LogDirectoryError(str(self._location), reason)

    def _created(self, state: LogState) -> dict[str, Topic]:
        """Topics that are missing, or have more partitions now."""
        wanted: dict[str, dict[int, str]] = {}
        for each in self.ups:
            wanted.setdefault(each.at.topic, {})[each.at.partition] = each.topic_id
        created = {}
        for topic, partitions in wanted.items():
            before = state.topics.get(topic)
            there = {
                number
                for number in range(before.n_partitions if before else 0)
                if before and number not in before.lacks
            }
            n_partitions = max([*partitions, (before.n_partitions if before else 1) - 1]) + 1
            lacks = {*range(n_partitions)} - there - partitions.keys()
            topic_id = before.topic_id if before else next(filter(None, partitions.values()), "")
            topic_id = topic_id or self._new_ids.setdefault(topic, new_topic_id())
            found = Topic(topic_id, n_partitions, tuple(sorted(lacks)))
            if found != before:
                created[topic] = found
        return created

    def _writes(self, state: LogState) -> tuple[Any, Any, Any]:
        """What counts in the store from now on: numbered writes, batches, and their offsets."""
        ends = {each.at: each.end for each in self.ups}
        others = {at: log.end for at, log in state.logs.items() if at not in ends}
        spans = {key: ranges for key, (ranges, _) in state.spans.items()}
        known = State(versions=dict(state.versions), streams=state.streams, spans=spans)
        # As in a directory: a write counts without partitions that the log lacks, and one of them
        # may come now, from an older copy, without its records.
        known = known.cut(
            {
                at: end
                for at, end in ends.items()
                if at not in state.logs
                and any(span[at][1] > end for span in spans.values() if at in span)
            }
        )
        found = self._source._writes_of(
            [each.log for each in self.ups], known, ends, others, self._is_same
        )
        no_batch = CommittedBatch(NOT_DONE, "", 0), state.time_ms
        gone = dict.fromkeys(state.versions.keys() - found.versions, (NOT_DONE, state.time_ms))
        ended = dict.fromkeys(state.streams.keys() - found.streams, no_batch)
        return (
            {key: each for key, each in found.versions.items() if state.versions.get(key) != each}
            | gone,
            {key: each for key, each in found.streams.items() if state.streams.get(key) != each}
            | ended,
            {key: each for key, each in found.spans.items() if spans.get(key) != each},
        )

    def _is_same(self, at: TopicPartition, start: int, end: int) -> bool:
        """Whether a partition that does not take part has the records of the source."""
        own = open_log_dir(self._location.root).log(*at)
        return differences(own, self._source.log(*at), start, end, start) == (None, True)


def _digest_of_extents(extents: Sequence[PlacedExtent]) -> str:
    shown = [(each.base_offset, each.end_offset, each.size, each.digest) for each in extents]
    return blake2b(json.dumps(shown).encode(), digest_size=16).hexdigest()


def _digest_of(log: PartitionLog) -> str:
    return blake2b(log.column("digest").tobytes(), digest_size=32).hexdigest()


def _read_hints(objects: Objects) -> dict[TopicPartition, _Hint]:
    """What the last mirror has left; nothing if it is missing, too large, or makes no sense."""
    try:
        found = json.loads(objects.get(_HINT) or b'{"partitions":[]}')
        return {
            TopicPartition(topic, partition): _Hint(
                source,
                {base: _MirroredSegment(stamp, extents) for base, stamp, extents in segments},
            )
            for topic, partition, source, segments in found["partitions"]
        }
    except (ValueError, KeyError, TypeError, RecursionError, StorageError) as error:
        if isinstance(error, StorageError) and error.errno != errno.EFBIG:
            raise
        logger.warning("%s is no hint, so all bytes are compared: %r", _HINT, error)
        return {}


def _write_hints(
    objects: Objects, hints: Mapping[TopicPartition, _Hint], location: BucketLocation
) -> None:
    """Keep what was found equal; a failure costs the next mirror time, nothing else."""
    rows = [
        [*at, hint.source, [[base, *known] for base, known in hint.segments.items()]]
        for at, hint in hints.items()
    ]
    try:
        objects.put(_HINT, [json.dumps({"partitions": rows}).encode()])
    except (SegmentLogError, OSError) as error:
        logger.warning("%s: %s was not written: %s", location, _HINT, error)
