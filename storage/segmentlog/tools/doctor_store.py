"""Checks of ``segmentlog doctor URL``: whether logs can be read, written and swept at a place.

Rights are tried and not asked for: only the store knows what its policies add up to.  All objects
that are made for it have one beginning, and are removed.
"""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version

from segmentlog.bucket.objects import CLOCK, MARKER, PART_BYTES, Objects, objects_at
from segmentlog.bucket.sequence import Sequence
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.store.paths import BucketLocation, bucket_at
from segmentlog.store.readable import exists
from segmentlog.store.remote.location import without_options
from segmentlog.store.remote.requests import side_by_side
from segmentlog.tools.doctor import Check, State
from segmentlog.tools.output import counted

_DAY_MS = 24 * 3600 * 1000
_N_CLIENTS = 8  #: that create one object at once
_N_RACES = 4
_MOST_SKEW_MS = 60_000

_READ = "give this user the rights to read objects and to list the place: without the latter, S3 "
_READ += "answers 403 and not 404 for an object that is missing"
_DELETE = "only sweep, and doctor's own objects, need it: s3:DeleteObject, storage.objects.delete"
_WRITE = "writers need the right to create objects: s3:PutObject, storage.objects.create"
_CONDITION = "two writers would lose commits of each other: use another store, or another version "
_CONDITION += "of it; a proxy in front of it may drop the header If-None-Match"


def store_checks(url: str) -> Iterator[Check]:
    """All checks of a place, each once the iterator reaches it.

    Raises `LogDirectoryError` if the URL names no store with conditional writes.
    """
    location = bucket_at(url) if "://" in url else None
    if location is None or url[:5].lower() == "file:":
        reason = (
            "is no URL of a store with conditional writes (s3://, gs://, abfss://, az://): "
            "segmentlog verify and preflight look at directories"
        )
        raise LogDirectoryError(without_options(url) if "://" in url else url, reason)
    objects = objects_at(location)
    yield Check(State.OK, "client", f"obstore {version('obstore')}, {location}")
    reading = _tried("reading", _READ, lambda: _log(objects, location))
    yield reading
    if reading.state != State.OK:
        return
    is_there = "commits" in reading.details
    listing = _tried("listing", _READ, lambda: _list(objects, is_there=is_there))
    yield listing
    if listing.state != State.OK and not is_there:
        return  # no place to write to
    removing = _tried("removing", _DELETE, lambda: _remove(objects), State.ADVICE)
    yield removing
    if State.OK == removing.state == listing.state:
        yield from _with_objects(objects, location)
    elif is_there:
        yield _tried("condition", _WRITE, lambda: _try_marker(objects))
    else:
        why = "not tried: nothing is written where it could not be removed"
        yield Check(State.SKIPPED, "condition", why, "check again once there is a log")
    if is_there and listing.state == State.OK:
        yield _tried("leftovers", _READ, lambda: _leftovers(location))


def _tried(
    name: str, remedy: str, work: Callable[[], Check], state: State = State.PROBLEM
) -> Check:
    """The check that `work` makes, or the one that says why it failed."""
    try:
        return work()
    except OSError as error:
        # Not all of its text, which has the advice about rights in directories.
        if error.errno != errno.EACCES:
            state, remedy = State.PROBLEM, "check the URL, the endpoint and the network"
        return Check(state, name, error.strerror or str(error), remedy)
    except SegmentLogError as error:
        return Check(state, name, str(error), remedy)


def _log(objects: Objects, location: BucketLocation) -> Check:
    sequence = Sequence(objects, location)
    try:
        if not sequence.is_made():
            return Check(State.OK, "reading", "no log yet: the first write makes it")
    except LogDirectoryError as error:
        found, _, remedy = error.reason.partition("; ")
        return Check(State.PROBLEM, "reading", found, remedy)
    state = sequence.refresh()
    found = counted(topics=len(state.topics), partitions=len(state.logs), commits=state.number)
    return Check(State.OK, "reading", found, details={"commits": state.number})


def _list(objects: Objects, *, is_there: bool) -> Check:
    left = list[str]()
    for each in objects.list(""):
        if is_there:
            break
        if not each.key.startswith(CLOCK):  # the first one is enough: there may be millions
            found = f"holds other objects, such as {each.key}, and no log that can be appended to"
            remedy = "give an empty place for a log; a copy of a log directory can only be read"
            return Check(State.PROBLEM, "listing", found, remedy)
        left.append(each.key)
    if left:
        found = f"allowed; {counted(objects=len(left))} of a doctor that was killed ({left[0]})"
        return Check(State.OK, "listing", found, "segmentlog sweep removes them from a log")
    return Check(State.OK, "listing", "allowed")


def _remove(objects: Objects) -> Check:
    """Whether objects may be removed; a store says so of one that is not there, too."""
    objects.delete([f"{CLOCK}doctor-{secrets.token_hex(8)}"])
    return Check(State.OK, "removing", "allowed")


def _try_marker(objects: Objects) -> Check:
    """Whether the marker is replaced by the same bytes: a try that leaves nothing behind."""
    if objects.create(MARKER, objects.get(MARKER) or b""):
        return Check(State.PROBLEM, "condition", "the store replaced an object", _CONDITION)
    return Check(State.OK, "condition", "an object that is there is not replaced")


def _with_objects(objects: Objects, location: BucketLocation) -> Iterator[Check]:
    """The checks that make objects, which are removed at the end."""
    begin = f"{CLOCK}doctor-{secrets.token_hex(8)}-"
    keys = [f"{begin}{number}" for number in range(_N_RACES + 1)]
    # In a local directory, those that were made, too.
    made = [f"{location.prefix}{each}" for each in ("/segmentlog/clock", "/segmentlog", "")]
    made = [each for each in made if location.scheme == "file" and not exists(each)]
    try:
        condition = _tried("condition", _WRITE, lambda: _condition(objects, keys[:_N_RACES]))
        yield condition
        if condition.state == State.OK:
            remedy = "writers also need s3:AbortMultipartUpload"
            yield _tried("uploading in parts", remedy, lambda: _parts(objects, keys[-1]))
            yield _tried("clock", _READ, lambda: _clock(objects, keys[0]))
    finally:
        by_hand = f"remove {begin}… by hand"
        removing = _tried("removing", by_hand, lambda: _removed(objects, keys, by_hand))
        for directory in made:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
    if removing.state != State.OK:
        yield removing


def _removed(objects: Objects, keys: list[str], by_hand: str) -> Check:
    objects.delete(keys)
    if left := [each.key for each in objects.list(CLOCK) if each.key in keys]:
        return Check(State.PROBLEM, "removing", f"still there: {', '.join(left)}", by_hand)
    return Check(State.OK, "removing", "allowed")


def _condition(objects: Objects, keys: list[str]) -> Check:
    """Whether exactly one of several clients creates an object, and no later one."""
    for key in keys:
        clients = [b"%d" % each for each in range(_N_CLIENTS)]
        done = side_by_side(partial(objects.create, key), clients)
        winners = [each for each, is_winner in zip(clients, done, strict=True) if is_winner]
        # Nobody may have won: a store may refuse all writes that meet, or lose the answer.
        if len(winners) > 1:
            found = f"{len(winners)} of {_N_CLIENTS} clients have created the same object"
            return Check(State.PROBLEM, "condition", found, _CONDITION)
        is_kept = not winners or objects.get(key) == winners[0]
        if not is_kept or (winners and objects.create(key, b"later")):
            found = "an object that was there was replaced"
            return Check(State.PROBLEM, "condition", found, _CONDITION)
    found = f"at the most one winner of {_N_CLIENTS} clients, {len(keys)} times"
    return Check(State.OK, "condition", found)


def _parts(objects: Objects, key: str) -> Check:
    """Whether a large object can be uploaded in parts, and a range of it read."""
    name, last = "uploading in parts", secrets.token_bytes(16)
    objects.put(key, [bytes(PART_BYTES), last])
    if objects.read(key, PART_BYTES, len(last)) != last:
        return Check(State.PROBLEM, name, "a range has other bytes", "use another store")
    return Check(State.OK, name, f"{PART_BYTES + len(last):,} bytes, and a range of them")


def _clock(objects: Objects, key: str) -> Check:
    """How far this machine's clock is from that of the store."""
    objects.delete([key])
    began_ms = time.time() * 1000
    objects.put(key, [b"now"])
    ended_ms = time.time() * 1000
    times = [each.modified_ms for each in objects.list(CLOCK) if each.key == key]
    if not times:
        return Check(State.PROBLEM, "clock", "a new object is not listed", "use another store")
    # Many stores know whole seconds only.
    behind_ms, ahead_ms = times[0] - ended_ms, began_ms - 1000 - times[0]
    skew_ms = int(max(behind_ms, ahead_ms, 0))
    details = {"skewMs": -skew_ms if behind_ms > 0 else skew_ms}
    if skew_ms > _MOST_SKEW_MS:
        word = "behind" if behind_ms > 0 else "ahead of"
        found = f"this machine is {skew_ms / 1000:,.0f} s {word} the store"
        remedy = "set the clock: commits have its times, and jobs are forgotten by them"
        return Check(State.ADVICE, "clock", found, remedy, details)
    return Check(State.OK, "clock", "that of the store, to a second or two", details=details)


def _leftovers(location: BucketLocation) -> Check:
    swept = sweep_objects(location, 7 * _DAY_MS, _DAY_MS, dry_run=True)
    found, details = (
        counted(objects=len(swept.keys), bytes=swept.n_bytes),
        {"bytes": swept.n_bytes},
    )
    if swept.keys:
        return Check(State.ADVICE, "leftovers", found, "segmentlog sweep removes them", details)
    return Check(State.OK, "leftovers", found, details=details)
