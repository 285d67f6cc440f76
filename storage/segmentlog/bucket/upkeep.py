"""Upkeep of a log in an object store: commits that remove records, and the sweep of objects.

No commit removes an object.  Records leave the log with a commit that moves a log start or deletes
a topic; objects that no extent lies in go with a later sweep, because a reader may have planned to
read them.

Nobody can know whether a job still lives whose objects no commit names.  So a sweep first makes a
commit that ends such jobs, and only then removes their objects: a job that commits has read every
commit before its own number, and fails if it was ended.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Collection, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from segmentlog.arguments import path_text
from segmentlog.bucket.checkpoint_objects import CHECKPOINTS, N_KEPT_CHECKPOINTS, checkpoint_number
from segmentlog.bucket.commits import SETTINGS, Commit
from segmentlog.bucket.extents import PartitionLog
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.marker import NEWEST_LAYOUT, Marker, new_log_id
from segmentlog.bucket.objects import (
    CLOCK,
    DATA,
    MARKER,
    ListedObject,
    is_clock_key,
    is_data_key,
    job_of,
)
from segmentlog.bucket.places import forget
from segmentlog.bucket.proposals import INBOX, MOST_COMMITS, Proposal, parsed_key
from segmentlog.bucket.sequence import Sequence, opened_at, sequence_at
from segmentlog.errors import (
    CommitInDoubtError,
    LogChangedError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from segmentlog.model import TopicPartition
from segmentlog.store.paths import BucketLocation, is_bucket, local_path, opened_path, parse_bucket
from segmentlog.txn.state import FORGOTTEN_AFTER_MS, forget_old

_NOW = CLOCK + "now"


def place_in_store(path: str | os.PathLike[str]) -> BucketLocation | None:
    """The place of a log in an object store, or None if the path is none.

    Raises `LogDirectoryError` if the path leads to a part of such a log.
    """
    if "://" not in path_text("path", path):
        return None
    found = opened_path(path)
    if not is_bucket(found):
        return None
    location, rest = parse_bucket(found)
    if rest:
        local_path(path)  # raises: nothing but reads goes to a part of a log
    return location


class Swept(NamedTuple):
    """Objects that a sweep has removed, or would remove.

    Attributes
    ----------
    keys : of the objects, in their order.
    n_bytes : of all of them.
    retired : the jobs that were ended for it.
    kept : objects that hold records which have left the log, erased ones among them, and stay for
        reads that may still need them: a later sweep removes them.
    """

    keys: tuple[str, ...]
    n_bytes: int
    retired: tuple[str, ...]
    kept: tuple[str, ...] = ()


class Upgraded(NamedTuple):
    """The layout of a log after an upgrade.

    Attributes
    ----------
    layout : its number.
    log_id : by which the log knows itself.
    commit : number of the first commit with the id.
    is_new : whether this call has changed the log.
    """

    layout: int
    log_id: str
    commit: int
    is_new: bool


def upgrade_layout(location: BucketLocation) -> Upgraded:
    """Move a log to the newest layout, beside readers and writers.

    First a commit with an id takes the next number: a writer of an earlier version loses it, reads
    it, and refuses.  Then the marker is replaced, which a call after a crash makes up for.  Raises
    `LogDirectoryError` if there is no log; `LogChangedError` if another one was made at the place
    meanwhile, whose marker stays; `CommitInDoubtError` or `StorageError` if the store fails.
    """
    sequence = opened_at(location)
    state, log_id = sequence.refresh(lists=True), new_log_id()

    def make(state: LogState) -> Commit | None:
        return None if state.log_id else replace(_commit_after(state), log_id=log_id)

    if state.log_id:
        return _mark_as_newest(sequence, state, location)
    state = sequence.append(make)
    try:
        return _mark_as_newest(sequence, state, location)
    except StorageError as error:  # also one that is definite: the commit is there
        raise CommitInDoubtError(f"{location}/{MARKER}", f"{_HALF_UPGRADED}: {error}") from error


_HALF_UPGRADED = "the log has its id, and its marker is to follow: run it again"


def _mark_as_newest(sequence: Sequence, state: LogState, location: BucketLocation) -> Upgraded:
    """Replace the marker of a log whose commits have its id already."""
    objects, marker = sequence.objects, Marker(NEWEST_LAYOUT, state.log_id, max(state.since, 1))
    before, is_new = objects.get(MARKER), False
    if before is not None and Marker.decode(before, str(location)).layout < NEWEST_LAYOUT:
        is_new = objects.exchange(MARKER, before, marker.encode())
    found = sequence.marker()
    try:
        sequence.refresh(lists=True)
    except LogChangedError:
        # Markers of layout 1 are all the same: this one may have been that of a later log.
        if is_new and before is not None:
            objects.exchange(MARKER, marker.encode(), before)
        raise
    if found is not None and found.layout < NEWEST_LAYOUT:  # a store may refuse without a reason
        raise CommitInDoubtError(f"{location}/{MARKER}", _HALF_UPGRADED)
    if found is None or found.log_id != marker.log_id:
        reason = "its marker was replaced by another one during the upgrade: run it again"
        raise LogChangedError(str(location), -1, -1, reason)
    return Upgraded(found.layout, found.log_id, found.since, is_new)


def _commit_after(state: LogState) -> Commit:
    """An empty commit that follows a state."""
    return Commit(state.number + 1, secrets.token_hex(16), "", int(time.time() * 1000))


def _check_topic(state: LogState, location: BucketLocation, topic: str, topic_id: str) -> None:
    """Refuse a topic that is not the one that the caller has looked at.

    Raises `UnknownTopicOrPartitionError` if it is gone; `LogChangedError` if it was made again.
    """
    found = state.topics.get(topic)
    if found is None:
        raise UnknownTopicOrPartitionError(topic, -1, str(location), "")
    if found.topic_id != topic_id:
        reason = (
            f"topic {topic!r} was deleted, and another was created (id {found.topic_id}, not "
            f"{topic_id})"
        )
        raise LogChangedError(str(location), -1, -1, reason)


def alter_topic_settings(
    location: BucketLocation,
    topic: str | None,
    settings: Mapping[str, str],
    removed: Collection[str],
) -> None:
    """Change settings of a topic, or the defaults, in a log that is made if there is none.

    Raises `LogDirectoryError` if the log has layout 1, or cannot be made; `OptionError` if a
    setting is not accepted; `CommitInDoubtError` or `StorageError` if the store fails.
    """

    def make(state: LogState) -> Commit | None:
        changed = state.settings.altered(topic, settings, removed)
        if changed == state.settings:
            return None
        found = {topic or "": changed.of(topic)}
        return replace(_commit_after(state), settings=found, features=[SETTINGS])

    sequence = opened_at(location, creates=True)
    forget(location)
    sequence.append(make)


def newest_times(location: BucketLocation, at: TopicPartition) -> dict[int, int]:
    """The newest timestamp of each extent of a partition, by base offset; -1 for none."""
    log = sequence_at(location).known.logs.get(at) or PartitionLog()
    return dict(zip(log.column("base_offset"), log.column("max_timestamp"), strict=True))


def remove_topic(location: BucketLocation, topic: str, topic_id: str) -> None:
    """Delete a topic with all its records.

    Raises `UnknownTopicOrPartitionError` or `LogChangedError` if there is no such topic;
    `CommitInDoubtError` or `StorageError` if the store fails.
    """

    def make(state: LogState) -> Commit:
        _check_topic(state, location, topic, topic_id)
        return replace(_commit_after(state), deleted=[topic])

    sequence_at(location).append(make)


def move_starts(
    location: BucketLocation,
    starts: Mapping[TopicPartition, int],
    topic_ids: Mapping[TopicPartition, str],
) -> None:
    """Delete the records below new log starts; a log start never moves back.

    Raises `UnknownTopicOrPartitionError` or `LogChangedError` if a partition is gone;
    `CommitInDoubtError` or `StorageError` if the store fails.
    """

    def make(state: LogState) -> Commit | None:
        for at, topic_id in topic_ids.items():
            _check_topic(state, location, at.topic, topic_id)
        for topic, partition in starts.keys() - state.logs.keys():
            raise UnknownTopicOrPartitionError(topic, partition, str(location), "")
        moved = {
            at: min(start, state.logs[at].end)
            for at, start in starts.items()
            if start > state.logs[at].start
        }
        return replace(_commit_after(state), starts=moved) if moved else None

    sequence_at(location).append(make)


def sweep_objects(
    location: BucketLocation, longest_job_ms: float, longest_read_ms: float, *, dry_run: bool
) -> Swept:
    """Remove the data objects that no extent lies in, and what a doctor has left that was killed.

    `longest_job_ms`: jobs whose youngest object is older are ended; objects of younger ones stay.
    `longest_read_ms`: objects of records that left the log since then stay for readers.
    """
    sequence = sequence_at(location)
    # Before the state: an object that is listed and then committed is named by the state.  Objects
    # with other names are those of somebody else, as those of a log further below.
    found = {each.key: each for each in sequence.objects.list(DATA) if is_data_key(each.key)}
    # Without a later commit, its objects would seem to be unused.
    state, now_ms = sequence.refresh(lists=True), int(time.time() * 1000)
    if not dry_run:
        sequence.objects.put(_NOW, [b"now"])
    looked_at = {each.key: each for each in sequence.objects.list(CLOCK) if is_clock_key(each.key)}
    # Objects have times of the store, from which this machine's clock may be days away.  A list
    # may lack the newest ones: then ages are taken for smaller than they are.
    newest = (each.modified_ms for each in (*looked_at.values(), *found.values()))
    store_now_ms = now_ms if dry_run else max(newest, default=0)
    if state.left and now_ms - state.time_ms > FORGOTTEN_AFTER_MS and not dry_run:
        # Ages are not known: one of the two clocks is wrong, or nobody has written for so long.
        # From this commit on, they count by the clock of now.
        state = sequence.append(_commit_after)
    left = forget_old(state.left, state.time_ms, now_ms)
    used = state.objects()
    youngest: dict[str, int] = {}
    for each in found.values():
        job = job_of(each.key)
        youngest[job] = max(youngest.get(job, 0), each.modified_ms)
    unused = [key for key in found if key not in used]
    oldest_ms = store_now_ms - longest_job_ms
    old = {job for job, modified_ms in youngest.items() if modified_ms <= oldest_ms}
    retired = sorted({job_of(key) for key in unused} & old - state.ended.keys())
    ended = state.ended.keys() | set(retired)
    gone = sorted(
        key
        for key in unused
        if job_of(key) in ended and now_ms - left.get(key, ("", 0))[1] >= longest_read_ms
    )
    if not dry_run and retired:

        def make(state: LogState) -> Commit | None:
            left = [job for job in retired if job not in state.ended]
            return replace(_commit_after(state), retired=left) if left else None

        # A job of them may have committed before it was ended.
        # Its objects may even have left the log again, and readers may still need them.
        state = sequence.append(make)
        used = state.objects()
        gone = [
            key
            for key in gone
            if key not in used and now_ms - state.left.get(key, ("", 0))[1] >= longest_read_ms
        ]
    of_doctors = [
        each.key
        for each in looked_at.values()
        if each.key != _NOW and each.modified_ms <= oldest_ms
    ]
    old_checkpoints = _old_checkpoints(sequence, store_now_ms - longest_read_ms)
    dead_proposals = _dead_proposals(sequence, state, ended)
    gone = [*gone, *of_doctors, *old_checkpoints, *dead_proposals]
    found |= looked_at | old_checkpoints | dead_proposals
    if not dry_run:
        sequence.objects.delete(gone)
    kept = sorted((found.keys() & state.left.keys()) - used - {*gone})
    n_bytes = sum(found[key].size for key in gone)
    return Swept(tuple(gone), n_bytes, tuple(retired), tuple(kept))


_LISTS_FOR_TIME = 3


def time_of_store(sequence: Sequence) -> int:
    """The time by the clock of the store (epoch), or by that of this machine if no list shows it.

    Records of compacted topics age by it: machines that compact one after the other have clocks of
    their own.
    """
    key = f"{CLOCK}compact-{secrets.token_hex(8)}"
    sequence.objects.put(key, [b"now"])
    try:
        for _ in range(_LISTS_FOR_TIME):
            for each in sequence.objects.list(CLOCK):
                if each.key == key:
                    return each.modified_ms
    finally:
        with contextlib.suppress(StorageError):  # only sweeps need the right; one removes it then
            sequence.objects.delete([key])
    return int(time.time() * 1000)


def _old_checkpoints(sequence: Sequence, oldest_ms: float) -> dict[str, ListedObject]:
    """The checkpoints that no reader begins with: all but the newest, and that of the hint."""
    found = [
        each
        for each in sequence.objects.list(CHECKPOINTS)
        if checkpoint_number(each.key) is not None
    ]
    hinted = sequence.checkpoints.hinted_key()
    return {
        each.key: each
        for each in sorted(found)[:-N_KEPT_CHECKPOINTS]
        if each.modified_ms <= oldest_ms and each.key != hinted
    }


def _dead_proposals(
    sequence: Sequence, state: LogState, ended: Set[str]
) -> dict[str, ListedObject]:
    """The proposals that no commit can name any more."""
    keys = ((parsed_key(each.key), each) for each in sequence.objects.list(INBOX))
    return {
        each.key: each
        for key, each in keys
        if key is not None
        and (
            key.made_at + MOST_COMMITS <= state.number
            or ((proposal := Proposal.decode(key, b"")) and proposal.commit.job in ended)
        )
    }
