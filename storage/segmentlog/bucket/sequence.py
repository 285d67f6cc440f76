"""The sequence of commits: find the newest one, and append to it.

Commit ``n`` is the object ``segmentlog/commits/<n>.json``.  Whoever creates it has read all
commits before it, so there are no gaps, and the newest one is the last that is there: no list is
needed.  A reader that knows commit ``n`` asks for ``n + 1``.

A checkpoint spares new readers the old commits.  The object ``segmentlog/newest.json`` names the
newest checkpoint.  It is only a hint: if it is old, lost or damaged, more commits are read.  Both
are written after a commit was decided, and nothing depends on them.

A commit that is missing before a later one was removed, by a rule of the store or by a person.  If
its number counted as free, the later records would be left out in silence, and the next writer
would take the number.  A new process asks for several commits at once, and so finds such a hole.
Without a checkpoint to begin with, and before a sweep, the hole may be long, and one list of the
keys after it shows whether there are any.
"""

import contextlib
import errno
import itertools
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from hashlib import blake2b

from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.commits import Commit, State
from segmentlog.bucket.objects import (
    MARKER,
    MOST_WHOLE_BYTES,
    REFUSALS,
    Objects,
    UnsyncedError,
    is_clock_key,
)
from segmentlog.bucket.places import log_above
from segmentlog.errors import (
    CommitInDoubtError,
    CorruptCheckpointError,
    LogDirectoryError,
    SegmentLogError,
    StorageError,
)
from segmentlog.store.paths import BucketLocation
from segmentlog.store.remote.requests import side_by_side

logger = logging.getLogger(__name__)

HINT = "segmentlog/newest.json"
COMMITS = "segmentlog/commits/"
CHECKPOINTS = "segmentlog/checkpoints/"

#: Commits between two checkpoints: a new reader reads half as many, some of them at once.
_EVERY = 32

#: A writer that has lost a number waits up to so many times the time that the attempt took, of
#: which no more than some seconds count: an attempt whose answers were lost may take a minute.
_TURNS, _MOST_TURN_SECONDS = 8, 0.5

#: Seconds for which a job may begin with the newest commit that was seen.  If another process has
#: deleted the topic meanwhile, the job fails, and has to be run again.
_RECENT_SECONDS = 2.0

#: A job that takes longer may not commit: the log remembers for 30 days which jobs have ended, and
#: a sweep removes the objects of those that it has ended.
_LONGEST_MS = 14 * 24 * 3600 * 1000

#: Commits that a new reader asks for at once.
_AT_ONCE = 8

_FORMAT = 1  #: of the layout: which objects there are, and what their keys mean
_LAYOUT = b'{"format":%d,"layout":"segmentlog bucket"}' % _FORMAT

#: Seconds that a writer asks what became of its commit.
SETTLE_SECONDS = 120.0
_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_TRIES_OF_MARKER = 4


def commit_key(number: int) -> str:
    """Key of a commit."""
    return f"{COMMITS}{number:020d}.json"


def number_of(key: str) -> int | None:
    """The number of the commit that a key is of, or None if it is of something else."""
    name = key.removeprefix(COMMITS).partition(".")[0]
    return int(name) if name.isdecimal() and commit_key(int(name)) == key else None


def checkpoint_key(number: int) -> str:
    """Key of the checkpoint after a commit."""
    return f"{CHECKPOINTS}{number:020d}.arrow"


class Sequence:
    """The commits of one log, as far as this process knows them.  Threads may share it.

    `location`: for errors.  `settle_seconds`: how long a writer asks what became of its commit.
    """

    def __init__(
        self, objects: Objects, location: BucketLocation, settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        self.objects, self.location = objects, location
        self._settle_seconds = settle_seconds
        self._state: State | None = None
        self._turn = threading.Lock()
        self._is_checked = False
        self._seen = -_RECENT_SECONDS  # when `_state` was the newest one

    @property
    def known(self) -> State:
        """The state that was read last; read now if there was none."""
        return self._state or self.refresh()

    def is_made(self) -> bool:
        """Whether there is a log; raises `LogDirectoryError` if its layout is not known here."""
        return self._state is not None or self._marker() is not None

    def _marker(self) -> bytes | None:
        """The marker, or None if there is no log.

        Raises `LogDirectoryError` if a later version has made it: each user looks at it first.
        """
        data = self.objects.get(MARKER)
        if data is None:
            return None
        try:
            found = json.loads(data)
            number = found["format"]
        except (ValueError, KeyError, TypeError, RecursionError):
            number = None
        if type(number) is not int or number != _FORMAT:
            reason = (
                f"the log has a layout that this version of segmentlog does not know: expected "
                f"format {_FORMAT} in {MARKER}, found {data[:80]!r}; update segmentlog here, or "
                "restore the object if it is damaged"
            )
            raise LogDirectoryError(str(self.location), reason)
        return data

    def recent(self) -> State | None:
        """The newest state as this process has seen it a moment ago; None if it has not."""
        is_recent = time.monotonic() - self._seen < _RECENT_SECONDS
        return self._state if is_recent else None

    def refresh(self, *, lists: bool = False) -> State:
        """The state after the newest commit.

        `lists`: whether a list has to show that no later commit is there.  Raises
        `LogDirectoryError` if there is no log; `CorruptCheckpointError` if a commit is missing, or
        cannot be read; `StorageError` if the store cannot be asked.
        """
        with self._turn:
            state, at_once = self._state, 1
            if state is None:
                if self._marker() is None:
                    raise LogDirectoryError(str(self.location), "there is no log at this place")
                state, at_once = self._last_checkpoint(), _AT_ONCE
                lists = lists or state.number == 0
            self._state = self._followed(state, at_once, lists=lists)
            self._seen = time.monotonic()
            return self._state

    def _followed(self, state: State, at_once: int, *, lists: bool) -> State:
        """The state after all commits that are there; it asks for `at_once`, and then for more."""
        while True:
            numbers = range(state.number + 1, state.number + 1 + at_once)
            keys = [commit_key(number) for number in numbers]
            found = (
                [self.objects.get(keys[0])]
                if at_once == 1
                else side_by_side(self.objects.get, keys)
            )
            for at, (key, first) in enumerate(zip(keys, found, strict=True)):
                later = [keys[i] for i in range(at, len(keys)) if found[i] is not None]
                data = self._asked_again(key, later, lists=lists) if first is None else first
                if data is None:
                    return state
                state = self._after(state, self._decoded(key, data))
            at_once = min(2 * at_once, _AT_ONCE)

    def _asked_again(self, key: str, later: list[str], *, lists: bool) -> bytes | None:
        """A commit that was not there a moment ago; None if no later one is there."""
        if not later and lists:
            keys = (each.key for each in self.objects.list(COMMITS, after=key))
            later = [*itertools.islice((each for each in keys if number_of(each) is not None), 1)]
        if not later:
            return None
        data = self.objects.get(key)  # it may have come meanwhile, and the later one after it
        if data is None:
            reason = (
                f"the commit is missing, although there are later ones, such as {later[0]}: it "
                "was removed, and without it the later ones say nothing"
            )
            remedy = "restore the object from a version or a copy of the bucket"
            raise CorruptCheckpointError(f"{self.location}/{key}", 1, reason, remedy)
        return data

    def _after(self, state: State, commit: Commit) -> State:
        try:
            return state.after(commit)
        except ValueError as error:
            path = f"{self.location}/{commit_key(commit.number)}"
            reason = f"cannot follow the commits before: {error}"
            raise CorruptCheckpointError(path, 1, reason, "restore the object") from None

    def _decoded(self, key: str, data: bytes) -> Commit:
        path = f"{self.location}/{key}"
        commit = Commit.decode(data, path)
        if commit_key(commit.number) != key:
            reason = f"has the number {commit.number}: the object was copied from another key"
            raise CorruptCheckpointError(path, 1, reason, "restore the object")
        return commit

    def _last_checkpoint(self) -> State:
        """The state of the checkpoint that the hint names, or the state before all commits."""
        try:
            hint = self.objects.get(HINT)
            if hint is None:
                return State()
            found = json.loads(hint)
            number, digest = found["checkpoint"], found["digest"]
            if type(number) is not int or not 0 < number < 10**20:
                raise ValueError(f"number {str(number)[:80]!r}")
            data = self.objects.get(checkpoint_key(number))
            if data is not None:
                path = f"{self.location}/{checkpoint_key(number)}"
                # Arrow has no checksums: it would return other numbers, or end the process.
                state = State.decode(data, path) if _digest(data) == digest else None
                if state is not None and state.number == number:
                    return state
                reason = "is not what was written"
                raise CorruptCheckpointError(path, 1, reason, "")
        except (CorruptCheckpointError, StorageError) as error:
            if isinstance(error, StorageError) and error.errno != errno.EFBIG:
                raise
            logger.warning("%s; all commits are read instead", error)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning("%s/%s is no hint, and is passed over: %r", self.location, HINT, error)
        return State()

    def create(self) -> None:
        """Make the log, unless it is there; refuse a store without conditional writes.

        Raises `LogDirectoryError` if other objects are there: they may be a copied log directory,
        which readers would no longer see; if the place lies in that of another log.
        """
        if self._is_checked:
            return
        marker = self._marker()
        if marker is None:
            keys = (each.key for each in self.objects.list(""))
            other = next((key for key in keys if not is_clock_key(key)), None)
            # Asked again: another writer may have made the log, and written to it, since.
            if other is not None and self._marker() is None:
                reason = (
                    f"holds other objects, such as {other}, and no log that can be appended "
                    "to: give an empty place"
                )
                raise LogDirectoryError(str(self.location), reason)
            above = log_above(self.location) if other is None else None
            if above is not None:
                reason = (
                    f"lies in the place of another log, {above}: who copies, moves or removes "
                    "that log would take this one along; give a place beside it"
                )
                raise LogDirectoryError(str(self.location), reason)
            self._create_surely(MARKER, _LAYOUT)
            marker = self._marker()
        # The same bytes: a store that ignores the condition is none the worse for it.
        if marker is not None and self._create_surely(MARKER, marker):
            reason = (
                "the store has replaced an object that was to be created only if there was none: "
                "it has no conditional writes (If-None-Match), and commits of two writers would "
                "be lost; use another store, or another version of this one"
            )
            raise LogDirectoryError(str(self.location), reason)
        self._is_checked = True

    def _create_surely(self, key: str, data: bytes) -> bool:
        """`Objects.create` of an object that has the same bytes for all writers.

        So it may be repeated after a request that has failed.
        """
        pause = _PAUSE_SECONDS
        for _ in range(_TRIES_OF_MARKER - 1):
            try:
                return self.objects.create(key, data)
            except StorageError as error:
                if error.errno in REFUSALS or isinstance(error, UnsyncedError):
                    raise
            time.sleep(pause)
            pause *= 2
        return self.objects.create(key, data)

    def refuse_ended(self, state: State, job: str, begun_ms: int) -> None:
        """Refuse a commit of a job after a state in which it has ended; or `LogDirectoryError`."""
        if job in state.ended or time.time() * 1000 - begun_ms > _LONGEST_MS:
            reason = (
                "the job has ended: it has committed, a sweep has ended it, or it has taken more "
                f"than {_LONGEST_MS // 86_400_000} days; run it again"
            )
            raise LogDirectoryError(str(self.location), reason)

    def append(self, make: "Callable[[State], Commit | None]") -> State:
        """Append a commit.

        Returns a state that has it, or the newest one if `make` has returned None.

        `make`: the commit that follows a state, with the next number; it is called again with a
        later state if another writer was quicker.  None ends the attempt: nothing is to be done.
        Errors that it raises end it, too.  Raises `CommitInDoubtError` if the store does not say
        whether the commit took place; `StorageError` if it certainly did not.
        """
        # What this process knows may be old.  Then the number is taken, and nothing is lost.
        state, n_lost = self.known, 0
        while True:
            commit, refusal = None, None
            try:
                commit = make(state)
            except SegmentLogError as error:
                refusal = error
            if commit is None:  # only the newest state decides that
                newest = self.refresh()
                if newest.number > state.number:
                    state = newest
                    continue
                if refusal is not None:
                    raise refusal
                return state
            data = commit.encode()
            self._check(state, commit.number, data)
            begun = time.monotonic()
            first = self._create(commit, data)
            with self._turn:
                if self._state is state:  # no other thread has seen it before
                    self._state = self._after(state, first)
                if first.token == commit.token:
                    self._seen = begun
                    break
            n_lost += 1
            # Who has lost most waits least.  With 16 writers and 20 ms for a create, a commit took
            # 2.1 s at the most, and 4.0 tries (3.4 s and 6.0 with pauses that grow).
            turns = _TURNS / n_lost * secrets.randbelow(1000) / 1000
            time.sleep(turns * min(time.monotonic() - begun, _MOST_TURN_SECONDS))
            state = self.refresh()
        if commit.number % _EVERY == 0:
            self._write_checkpoint(commit.number)
        return self.known

    def _check(self, state: State, number: int, data: bytes) -> None:
        """Refuse a commit that readers could not follow: once it is there, it stays for ever.

        Raises `LogDirectoryError`.
        """
        if len(data) > MOST_WHOLE_BYTES:
            reason = (
                f"the commit would have {len(data)} bytes, and readers take at the most "
                f"{MOST_WHOLE_BYTES}: write fewer partitions or topics at once"
            )
            raise LogDirectoryError(str(self.location), reason)
        try:
            state.after(Commit.decode(data, f"{self.location}/{commit_key(number)}"))
        except (ValueError, CorruptCheckpointError) as error:
            why = error.reason if isinstance(error, CorruptCheckpointError) else error
            reason = f"nothing was changed: readers could not follow this commit: {why}"
            raise LogDirectoryError(str(self.location), reason) from error

    def _create(self, commit: Commit, data: bytes) -> Commit:
        """Try to take a number; the commit that has it in the end, ours or that of another writer.

        A request whose answer is lost may still be under way, and take the number later.  So the
        writer asks for the same number with the same bytes until somebody has it.
        """
        key = commit_key(commit.number)
        ends = time.monotonic() + self._settle_seconds
        pause, has_doubt = _PAUSE_SECONDS, False
        while True:
            found, reason = None, "the store refuses to create the object, and has none"
            try:
                if self.objects.create(key, data):
                    return commit
                # It may be ours even so: a request whose answer was lost.
                found = self.objects.get(key)
            except UnsyncedError as error:
                raise CommitInDoubtError(f"{self.location}/{key}", str(error)) from error
            except StorageError as error:
                reason = str(error)
                # A store that is too busy for writes may still answer reads.
                with contextlib.suppress(StorageError):
                    found = self.objects.get(key)
                if found is None and error.errno in REFUSALS and not has_doubt:
                    raise
            if found is not None:
                return self._decoded(key, found)
            # A request is lost, or two conditional writes have met, and both were refused (409).
            has_doubt = True
            if time.monotonic() > ends:
                raise CommitInDoubtError(f"{self.location}/{key}", reason)
            time.sleep(pause * (0.5 + secrets.randbelow(100) / 100))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _write_checkpoint(self, number: int) -> None:
        """Write a checkpoint and the hint; a failure costs later readers time, nothing else."""
        state = self.known
        if state.number != number:
            return  # another thread has gone on
        try:
            data = state.encode()
            if len(data) > MOST_WHOLE_BYTES:
                raise ValueError(f"it would have {len(data)} bytes")
            self.objects.put(checkpoint_key(number), [data])
            hint = {"checkpoint": number, "digest": _digest(data)}
            self.objects.put(HINT, [json.dumps(hint).encode()])
        except Exception as error:  # noqa: BLE001 - the commit is done: a failure would be repeated
            logger.warning("%s: no checkpoint was written: %s", self.location, error)


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


_sequences: dict[int, Sequence] = {}


def sequence_at(location: BucketLocation) -> Sequence:
    """The sequence of a place; a process keeps it."""
    objects = objects_at(location)
    found = _sequences.get(id(objects))
    if found is None or found.objects is not objects:
        found = _sequences[id(objects)] = Sequence(objects, location)
    return found
