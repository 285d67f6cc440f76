"""Verify what the commits of a log in an object store say, against its objects and its batches.

Batches, indexes and markers are verified as those of a log directory, through the virtual disk.
What a directory does not have is verified here: the sequence of commits, the checkpoint that
spares readers the old ones, and that each object which a commit names is there, with all of its
bytes.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from segmentlog.bucket.checkpoint_objects import HINT, checkpoint_key
from segmentlog.bucket.checkpoints import decode_checkpoint
from segmentlog.bucket.commits import Commit
from segmentlog.bucket.disk import bucket_disk
from segmentlog.bucket.extents import PartitionLog, PlacedExtent
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.marker import NEWEST_LAYOUT, Marker
from segmentlog.bucket.objects import DATA, MARKER, Objects
from segmentlog.bucket.sequence import COMMITS, commit_key, number_of, sequence_at
from segmentlog.errors import CorruptCheckpointError, CorruptIndexError
from segmentlog.format.kernels import layout
from segmentlog.log.producer_snapshot import parse_snapshot
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding, Severity
from segmentlog.model import TopicPartition
from segmentlog.store.paths import BucketLocation, parse_bucket
from segmentlog.store.remote.requests import side_by_side

if TYPE_CHECKING:
    from segmentlog.format.records.header import ScannedBatches
    from segmentlog.reads.log import Log

#: Commits that are asked for at once.
_AT_ONCE = 64

#: Fields of a state that are compared as they are; logs are compared column by column.
_FIELDS = (
    "time_ms",
    "topics",
    "versions",
    "streams",
    "ended",
    "left",
    "deleted",
    "log_id",
    "features",
    "settings",
)


def commit_findings(objects: Objects, location: BucketLocation) -> Iterator[Finding]:
    """Findings about the commits of a log, its checkpoint, and the objects that both name.

    No data object is read, except for the producers of a partition.  Raises `StorageError` if the
    store fails, or refuses to list the place; `LogDirectoryError` if the layout is not known here.
    """
    place, data = str(location), objects.get(MARKER)
    marker = Marker(1) if data is None else Marker.decode(data, place)
    if data is None:
        yield MakeFinding()(
            FindingKind.COMMIT,
            f"{place}/{MARKER}",
            "the object is missing, so readers take the place for no log; restore it",
        )
    elif marker.layout < NEWEST_LAYOUT:
        yield MakeFinding()(
            FindingKind.COMMIT,
            f"{place}/{MARKER}",
            f"the log has layout {marker.layout}, which cannot tell it from another log that is "
            "made in its place: segmentlog upgrade moves it",
            severity=Severity.WARNING,
        )
    hinted = _Hinted(objects, place)
    state = LogState(log_id=marker.log_id if marker.since == 1 else "")
    yield from hinted.findings()
    numbers = sorted(_numbers(objects))
    for number, data in _bodies(objects, numbers):
        path = f"{place}/{commit_key(number)}"
        if number != state.number + 1:
            if _is_foreign(data, path, state):
                continue
            yield _of_commit(
                f"{place}/{commit_key(state.number + 1)}",
                f"the commit is missing, but there are later ones, up to {numbers[-1]}",
            )
            return
        try:
            commit = Commit.decode(data, path)
            if commit.number != number:
                yield _of_commit(path, f"has the number {commit.number}: copied from another key")
                return
            if state.log_id and commit.log_id != state.log_id:
                yield _of_another_log(path)
            state = state.after(commit)
        except CorruptCheckpointError as error:
            yield _of_commit(path, error.reason)
            return
        except ValueError as error:
            yield _of_commit(path, f"cannot follow the commits before: {error}")
            return
        yield from hinted.compared(state)
    yield from hinted.at_the_end(state.number)
    yield from _missing_bytes(objects, location, state)


def _of_commit(path: str, reason: str) -> Finding:
    remedy = "the log cannot be read, unless a later checkpoint spares it; restore the object"
    return MakeFinding()(FindingKind.COMMIT, path, f"{reason}; {remedy}")


def _of_another_log(path: str) -> Finding:
    reason = "is of a log that was at this place before, and has no effect; keep it"
    return MakeFinding()(FindingKind.COMMIT, path, reason, severity=Severity.WARNING)


def _is_foreign(data: bytes, path: str, state: LogState) -> bool:
    """Whether a commit far ahead is of a log that was at the place before."""
    try:
        return bool(state.log_id) and Commit.decode(data, path).log_id != state.log_id
    except CorruptCheckpointError:
        return False


def _numbers(objects: Objects) -> Iterator[int]:
    """Numbers of the commits that are there; other names are no commits."""
    for each in objects.list(COMMITS):
        number = number_of(each.key)
        if number is not None:
            yield number


def _bodies(objects: Objects, numbers: list[int]) -> Iterator[tuple[int, bytes]]:
    for at in range(0, len(numbers), _AT_ONCE):
        part = numbers[at : at + _AT_ONCE]
        found = side_by_side(objects.get, [commit_key(each) for each in part])
        # One that was listed and is gone shows as a gap.
        yield from ((n, data) for n, data in zip(part, found, strict=True) if data is not None)


class _Hinted:
    """The checkpoint that new readers begin with, and whether the commits add up to it."""

    def __init__(self, objects: Objects, place: str) -> None:
        self._objects, self._place = objects, place
        self._state: LogState | None = None
        self._finding = MakeFinding()

    def findings(self) -> Iterator[Finding]:
        """Read the hint and the checkpoint; damage of either costs readers time, nothing else."""
        slow = "readers read more commits instead, until the next checkpoint replaces it"
        path, number = f"{self._place}/{HINT}", 0
        try:
            hint = self._objects.get(HINT)
            if hint is None:
                return
            found = json.loads(hint)
            number, digest = found["checkpoint"], found["digest"]
            if type(number) is not int or not 0 < number < 10**20:
                raise ValueError(f"number {str(number)[:80]!r}")
            path = f"{self._place}/{checkpoint_key(number)}"
            data = self._objects.get(checkpoint_key(number))
            if data is None:
                raise ValueError("the object is missing")
            if blake2b(data, digest_size=16).hexdigest() != digest:
                raise ValueError("its bytes are not those that were written")
            self._state = decode_checkpoint(data, path)
            if self._state.number != number:
                raise ValueError(f"it is the state after commit {self._state.number}")
        except CorruptCheckpointError as error:
            yield self._of(path, f"{error.reason}; {slow}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            yield self._of(path, f"{str(error) or repr(error)}; {slow}")

    def _of(self, path: str, message: str, severity: Severity = Severity.WARNING) -> Finding:
        return self._finding(FindingKind.CHECKPOINT, path, message, severity=severity)

    def compared(self, state: LogState) -> Iterator[Finding]:
        """The finding if a state that commits add up to is another one than the checkpoint."""
        mine = self._state
        if mine is None or mine.number != state.number:
            return
        if what := _difference(mine, state):
            yield self._of(
                f"{self._place}/{checkpoint_key(mine.number)}",
                f"{what}; readers that begin with it are misled; remove {HINT}, and they read "
                "the commits",
                Severity.ERROR,
            )
        self._state = None  # compared; a later state has no use for it

    def at_the_end(self, number: int) -> Iterator[Finding]:
        """The finding if the checkpoint is of a commit that is not there."""
        if self._state is not None:
            yield self._of(
                f"{self._place}/{checkpoint_key(self._state.number)}",
                f"is the state after commit {self._state.number}, but the commits end at {number}"
                ": commits were removed; restore them",
                Severity.ERROR,
            )


def _difference(found: LogState, expected: LogState) -> str:
    """The first difference of two states in words, or an empty text."""
    for name in _FIELDS:
        if getattr(found, name) != getattr(expected, name):
            return f"its {name} are not those that the commits add up to"
    # A checkpoint has those of the last writes, and one of an earlier version has none.
    if any(expected.spans.get(key) != each for key, each in found.spans.items()):
        return "its offsets of writes are not those that the commits add up to"
    if found.logs.keys() != expected.logs.keys():
        return "its partitions are not those that the commits add up to"
    for at, log in expected.logs.items():
        if _facts(found.logs[at]) != _facts(log) or found.logs[at].placed(at) != log.placed(at):
            return f"{at} is not what the commits add up to"
    return ""


def _facts(log: PartitionLog) -> tuple[object, ...]:
    return log.start, log.end, log.n_extents, log.epochs, log.snapshot, log.cleaned_to


def _missing_bytes(
    objects: Objects, location: BucketLocation, state: LogState
) -> Iterator[Finding]:
    """Objects of the state that are missing, or shorter than its extents."""
    place = str(location)
    # After the state: an object that a commit names was there before the commit.
    sizes = {each.key: each.size for each in objects.list(DATA)}
    newest: LogState | None = None
    for at, log in state.logs.items():
        finding = MakeFinding(at)
        for key, group in groupby(log.placed(at), key=lambda each: each.object):
            lacking = [each for each in group if each.end > sizes.get(key, 0)]
            if lacking:
                # A sweep beside this one removes what has left the log since.
                newest = newest or sequence_at(location).refresh()
                lacking = [each for each in lacking if _is_named(each, newest)]
            if lacking:
                first, last = lacking[0], lacking[-1]
                yield finding(
                    FindingKind.DATA_OBJECT,
                    f"{place}/{key}",
                    _why(key, first.end, sizes),
                    position=first.start,
                    offset=first.base_offset,
                    end_offset=last.end_offset,
                )
        if log.snapshot is None:
            continue
        _, key, start, size = log.snapshot
        reason = _why(key, start + size, sizes) if start + size > sizes.get(key, 0) else ""
        if reason:
            newest = newest or sequence_at(location).refresh()
            if (newest.logs.get(at) or PartitionLog()).snapshot != log.snapshot:
                continue
        if not reason:
            try:
                parse_snapshot(f"{place}/{key}", objects.read(key, start, size))
            except (CorruptIndexError, FileNotFoundError) as error:
                reason = getattr(error, "reason", "the object is missing")
        if reason:
            yield finding(
                FindingKind.DATA_OBJECT,
                f"{place}/{key}",
                f"{reason}; the producers of {at} are lost, and a broker builds them from the log",
                position=start,
                offset=log.snapshot.offset,
                severity=Severity.WARNING,
            )


def _why(key: str, end: int, sizes: Mapping[str, int]) -> str:
    if key not in sizes:
        return "the object is missing; restore it from a version or a copy of the bucket"
    return f"the object has {sizes[key]} bytes, and a commit names bytes up to {end}; restore it"


class ExtentCheck:
    """Compares the batches of an extent with what its commit says.

    `location`: of the log.
    """

    def __init__(self, extent: PlacedExtent, location: BucketLocation) -> None:
        self._extent, self._path = extent, f"{location}/{extent.object}"
        self._location = location
        self._digest = blake2b(digest_size=8)
        self._n_bytes = self._n_records = 0
        self._has_legacy = False
        self._max_timestamp, self._next_offset = -1, extent.base_offset

    def has_left(self) -> bool:
        """Whether a commit that came meanwhile has taken the extent out of the log."""
        return not _is_named(self._extent, sequence_at(self._location).refresh())

    def follow(self, batches: "ScannedBatches") -> None:
        data, headers = batches.data, batches.headers
        self._n_bytes += len(data)
        if self._extent.digest:
            self._digest.update(data.data)
        is_legacy = headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK != 0
        self._has_legacy |= bool(is_legacy.any())
        self._n_records += int(np.maximum(headers[:, layout.RECORDS_COUNT], 0).sum())
        newest = int(headers[:, layout.MAX_TIMESTAMP].max())
        self._max_timestamp = max(self._max_timestamp, newest)
        self._next_offset = batches.next_offset

    def at_the_end(self) -> Iterator[Finding]:
        """Findings once all batches were seen; none if damage was reported before."""
        extent = self._extent
        if self._n_bytes != extent.size:
            return
        n_records = min(self._n_records, extent.end_offset - extent.base_offset)
        found = {"newest timestamp": (extent.max_timestamp, self._max_timestamp)}
        if not self._has_legacy:  # a commit counts a wrapper of many records as one
            found["records"] = extent.n_records, n_records
        if extent.digest:
            digest = int.from_bytes(self._digest.digest(), "big") >> 1 or 1
            found["digest"] = extent.digest, digest
            ends_right = self._next_offset <= extent.end_offset  # the next segment begins there
        else:
            ends_right = self._next_offset == extent.end_offset
        if not ends_right:
            found["end offset"] = extent.end_offset, self._next_offset
        differing = {name: each for name, each in found.items() if each[0] != each[1]}
        if differing and not self.has_left():
            for name, (promised, is_there) in differing.items():
                at = TopicPartition(extent.topic, extent.partition)
                yield MakeFinding(at)(
                    FindingKind.DATA_OBJECT,
                    self._path,
                    f"the commit has the {name} {promised} for bytes "
                    f"[{extent.start}, {extent.start + extent.size}), and the batches have "
                    f"{is_there}: the object or the commit was changed; restore it",
                    position=extent.start,
                    offset=extent.base_offset,
                    end_offset=extent.end_offset,
                )


def extents_of(log: "Log") -> dict[int, ExtentCheck]:
    """The checks of all extents of a log in an object store, by base offset."""
    location, at = parse_bucket(log.path)[0], log.topic_partition
    known = bucket_disk(log.path).state.logs.get(at) or PartitionLog()  # what is read from now on
    return {each.base_offset: ExtentCheck(each, location) for each in known.placed(at)}


def _is_named(extent: PlacedExtent, state: LogState) -> bool:
    """Whether a state still has an extent: if not, a sweep may have removed its object."""
    at = TopicPartition(extent.topic, extent.partition)
    log = state.logs.get(at) or PartitionLog()
    columns, n = log.extents.columns, log.n_extents
    slot = bisect_left(columns["base_offset"], extent.base_offset, 0, n)
    found = (log.extents.objects[slot], columns["start"][slot]) if slot < n else None
    return found == (extent.object, extent.start)
