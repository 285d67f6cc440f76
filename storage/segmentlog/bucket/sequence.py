"""The sequence of commits: find the newest one, and append to it.

Commit ``n`` is the object ``segmentlog/commits/<n>.json``.  Whoever creates it has read all
commits before it, so there are no gaps.  A process that knows commit ``n`` asks for a list of the
keys from that of ``n`` on.  One answer says three things: whether ``n`` is still there, as it was;
which commits have come since; and whether one of them is missing.

A checkpoint spares new readers the old commits.  The object ``segmentlog/newest.json`` names the
newest one.  It is only a hint: if it is lost or damaged, a list shows the newest checkpoints, and
without one all commits are read.  Both are written after a commit was decided, and nothing depends
on them.  The larger a checkpoint is, the more commits lie between two, so that what they cost
stays in proportion to what is new.

A commit that is missing before a later one was removed, by a rule of the store or by a person.  If
its number counted as free, the later records would be left out in silence, and the next writer
would take the number.

If the last commit that a process knows is gone, or is another one, the log is another one: the
place was emptied and made again, or filled from a backup.  What was begun in the earlier log ends
with `LogChangedError`, and what is opened from then on finds the log that is there now.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from segmentlog.bucket.checkpoint_objects import HINT, CheckpointObjects, checkpoint_key
from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.combining import HOT_SECONDS, Writes
from segmentlog.bucket.commits import Commit
from segmentlog.bucket.directory_objects import DirectoryObjects
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.marker import NEWEST_LAYOUT, Marker, run_of
from segmentlog.bucket.objects import (
    MARKER,
    MOST_WHOLE_BYTES,
    NEVER_SENT,
    REFUSALS,
    Objects,
    UnsyncedError,
    is_clock_key,
    is_data_key,
)
from segmentlog.bucket.places import log_above
from segmentlog.bucket.proposals import HOT, LONGEST_JOB_MS, MOST_COMMITS, parsed_key
from segmentlog.errors import (
    CommitInDoubtError,
    CorruptCheckpointError,
    LogChangedError,
    LogDirectoryError,
    SegmentLogError,
    StorageError,
)
from segmentlog.store.paths import BucketLocation
from segmentlog.store.remote.requests import side_by_side

logger = logging.getLogger(__name__)

COMMITS = "segmentlog/commits/"

#: A writer that has lost a number waits up to so many times the time that the attempt took, of
#: which no more than some seconds count: an attempt whose answers were lost may take a minute.
_TURNS, _MOST_TURN_SECONDS = 8, 0.5

#: Seconds for which a job may begin with the newest commit that was seen.  If another process has
#: deleted the topic meanwhile, the job fails, and has to be run again.
_RECENT_SECONDS = 2.0

#: Commits that are asked for at once.
_AT_ONCE = 32

#: Who is so many commits behind looks for a checkpoint that is nearer.
_FAR = 2 * _AT_ONCE

#: Seconds for which a look counts: a writer that has looked then need not look again.
_LOOK_SECONDS = 1.0

#: Where lists begin with the first commit, they may take a twentieth of the time.
_LISTS_SHARE = 19

#: Seconds that a writer asks what became of its commit.
SETTLE_SECONDS = 120.0
_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_TRIES_OF_MARKER = 4

#: Commits whose tokens a process remembers.
_REMEMBERED = 4 * MOST_COMMITS


def commit_key(number: int) -> str:
    """Key of a commit."""
    return f"{COMMITS}{number:020d}.json"


def number_of(key: str) -> int | None:
    """The number of the commit that a key is of, or None if it is of something else."""
    name = key.removeprefix(COMMITS).partition(".")[0]
    return int(name) if name.isdecimal() and commit_key(int(name)) == key else None


def _may_be_late(key: str) -> bool:
    """Whether an object may be of a writer that has outlived its log."""
    is_proposal = key == HOT or parsed_key(key) is not None
    return is_proposal or is_clock_key(key) or is_data_key(key)


class Mark(NamedTuple):
    """A commit that somebody has seen: a log with it is the one that they know.

    `seen_by`: the `Sequence.identity` that has seen it.
    """

    number: int = 0
    token: str = ""
    log_id: str = ""
    seen_by: str = ""


class Made(NamedTuple):
    """A commit that can follow a state, the bytes of its object, and the state after it."""

    commit: Commit
    data: bytes
    after: LogState


class _MisledError(Exception):
    """A checkpoint is not of the commits that are there."""


class Sequence:
    """The commits of one log, as far as this process knows them.  Threads may share it.

    `location`: for errors.  `settle_seconds`: how long a writer asks what became of its commit.
    """

    def __init__(
        self, objects: Objects, location: BucketLocation, settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        self.objects, self.location = objects, location
        self.identity = secrets.token_hex(8)  # another log at the place has another one
        self._settle_seconds = settle_seconds
        # Readers and writers of all threads follow the commits one after the other, under `_turn`:
        # only its holder changes what stands here up to the next comment.  Others read single
        # fields without it.  Each is one value that was right a moment ago, as any answer of a
        # store is.
        self._turn = threading.Lock()
        self._state: LogState | None = None
        self._e_tag = ""  # what lists call the commit of `_state`; empty if it is not known
        self._foreign = set[int]()  # later commits that are of other logs
        self._tokens = dict[int, tuple[str, ...]]()  # of the last commits, and of their parts
        self._list_after = 0.0  # where lists are long
        self._hot: str | None = None  # what the last list has called `HOT`
        self._seen = self._looked = -max(_RECENT_SECONDS, _LOOK_SECONDS)  # when it was the newest
        self._why_replaced = ""
        # Threads that create the log at once may each test the store: that is done once too often.
        self._is_checked = False
        self._writes = Writes(self)
        self.checkpoints = CheckpointObjects(objects, location)

    @property
    def known(self) -> LogState:
        """The state that was read last; read now if there was none."""
        return self._state or self.refresh()

    @property
    def is_replaced(self) -> bool:
        """Whether another log was found at the place."""
        return bool(self._why_replaced)

    def is_made(self) -> bool:
        """Whether there is a log; raises `LogDirectoryError` if its layout is not known here."""
        return self._state is not None or self.marker() is not None

    def marker(self) -> Marker | None:
        """The marker, or None if there is no log.

        Raises `LogDirectoryError` if a later version has made it: each user looks at it first.
        """
        data = self.objects.get(MARKER)
        return None if data is None else Marker.decode(data, str(self.location))

    def recent(self) -> LogState | None:
        """The newest state as this process has seen it a moment ago; None if it has not."""
        is_recent = time.monotonic() - self._seen < _RECENT_SECONDS
        is_near = isinstance(self.objects, DirectoryObjects)  # to look takes no time
        return self._state if is_recent and not is_near and not self.is_replaced else None

    def mark(self, state: LogState) -> Mark:
        """The mark of a state."""
        return Mark(state.number, state.token, state.log_id, self.identity)

    def check(self, mark: Mark) -> None:
        """Refuse a log that lacks a commit; raises `LogChangedError` if it is another one."""
        if mark.seen_by == self.identity:
            return
        state = self.known
        if mark.number == state.number or not mark.number:
            is_same = mark.token == state.token if mark.number else mark.log_id == state.log_id
        else:
            key = commit_key(mark.number)
            data = self.objects.get(key)
            is_same = data is not None and self._decoded(key, data).token == mark.token
        if not is_same and mark.seen_by:
            raise self._changed(self._why(mark.number))

    def _changed(self, reason: str) -> LogChangedError:
        return LogChangedError(str(self.location), -1, -1, reason)

    def _why(self, number: int) -> str:
        """Why the log is not the one that had a commit."""
        marker, log_id = self.marker(), self._state.log_id if self._state else ""
        if marker is None:
            return f"the log was removed since its commit {number} was seen"
        if log_id and marker.log_id != log_id:
            return f"another log was made here since commit {number} of the earlier one was seen"
        return (
            f"commit {number}, which was seen here, is gone or is another one: the place was "
            "emptied and made again, or filled from an earlier backup, or commits were removed"
        )

    def refresh(self, *, lists: bool = False, trusts_lists: bool = False) -> LogState:
        """The state after the newest commit.

        `lists`: whether a list has to show that no later commit is there.  `trusts_lists`: whether
        a list is enough, although some lack the newest commits: an append finds its number taken
        then.  Raises `LogDirectoryError` if there is no log; `LogChangedError` if it is not the
        one that was read before; `CorruptCheckpointError` if a commit is missing, or cannot be
        read; `StorageError` if the store cannot be asked.
        """
        with self._turn:
            if self._why_replaced:
                raise self._changed(self._why_replaced)
            begun = time.monotonic()
            if self._state is None:
                self._state = self._opened(lists=lists)
            else:
                known = self._state.number
                self._state = self._followed(self._state, lists=lists, trusts_lists=trusts_lists)
                if self._state.number > known and begun - self._looked < HOT_SECONDS:
                    self._writes.heat()  # others commit as often as this process looks
            self._seen = self._looked = begun
            return self._state

    def beside(self, work: Callable[[], object]) -> None:
        """Do some work, and meanwhile look whether the log is still there, and has grown.

        Raises the errors of `refresh`, and those of the work.
        """
        if isinstance(self.objects, DirectoryObjects):
            self.refresh()
            work()
        elif self._writes.is_hot and self._state is not None and self.has_looked:
            work()
        else:
            both: list[Callable[[], object]] = [partial(self.refresh, trusts_lists=True), work]
            side_by_side(lambda each: each(), both)

    def _opened(self, *, lists: bool) -> LogState:
        """The state of a log of which nothing is known here."""
        data, hint = side_by_side(self.checkpoints.get, [MARKER, HINT])
        if data is None:
            raise LogDirectoryError(str(self.location), "there is no log at this place")
        marker = Marker.decode(data, str(self.location))
        before = LogState(log_id=marker.log_id if marker.since == 1 else "")
        state = self.checkpoints.hinted(hint, marker) or self.checkpoints.newest(marker)
        if state is not None:
            try:
                return self._followed(state, lists=lists, is_known=False)
            except _MisledError:
                path = f"{self.location}/{checkpoint_key(state.number)}"
                logger.warning("%s is not of these commits; all commits are read instead", path)
        return self._followed(before, lists=True)

    def _listed(self, number: int) -> dict[int, str] | None:
        """The commits from a number on, with what the store calls each; None if it took long."""
        begun = time.monotonic()
        keys = [*self.objects.list(COMMITS, after=commit_key(number - 1) if number else "")]
        hot = next((each.e_tag for each in reversed(keys) if each.key == HOT), "")
        if self._hot not in (None, hot):
            self._writes.heat()
        self._hot = hot
        numbers = ((number_of(each.key), each.e_tag) for each in keys)
        found = {each: e_tag for each, e_tag in numbers if each is not None and each >= number}
        if self.objects.lists_all:
            ended = time.monotonic()
            self._list_after = ended + _LISTS_SHARE * (ended - begun)
        return found

    def _followed(
        self, state: LogState, *, lists: bool, trusts_lists: bool = False, is_known: bool = True
    ) -> LogState:
        """The state after all commits that are there.

        `is_known`: whether this process has seen the commit of `state`; else a checkpoint says so.
        Without a list, it asks for the next commit, and then for more.  After a list, it asks for
        the commit that would follow: some stores list an object only a while after its creation.
        """
        may_list = lists or not self.objects.lists_all or time.monotonic() >= self._list_after
        listed = self._listed(state.number) if may_list else None
        later = None
        if listed is not None:
            later = sorted(listed.keys() - self._foreign - {state.number})
        e_tags, at_once = listed or {}, 1
        e_tag = e_tags.get(state.number)
        is_checked = is_known and bool(e_tag) and e_tag == self._e_tag
        ahead = dict[str, bytes | None]()
        if is_known and later and run_of(later, state.number + 1, _FAR)[_FAR - 1 :]:
            nearer = self._nearer(state, later, ahead, is_checked=is_checked)
            if nearer is not None:
                state, is_known, is_checked = nearer, False, False
                e_tag = e_tags.get(state.number)
        while True:
            first = state.number + 1
            if later is None:
                numbers = [*range(first, first + at_once)]
            else:
                later = [each for each in later if each >= first]
                numbers = run_of(later, first, _AT_ONCE)
                is_hole, is_end = not numbers and later, not later[len(numbers) :]
                if is_hole or (is_end and not trusts_lists):
                    numbers.append(first + len(numbers))
            keys = [commit_key(each) for each in numbers]
            if not is_checked:  # before all commits, the marker says whether it is the same log
                keys.append(commit_key(state.number) if state.number else MARKER)
            found = self._all(keys, ahead)
            there = [each for each, data in zip(numbers, found, strict=False) if data is not None]
            if not is_checked:
                state = self._checked(state, found.pop(), later or there, is_known=is_known)
                is_checked, self._e_tag = True, e_tag or ""
            for number, given in zip(numbers, found, strict=True):
                others = [each for each in later or there if each > number]
                data = self._asked_again(state, number, others) if given is None else given
                if data is None:
                    return state
                state = self._after(state, self._decoded(commit_key(number), data))
                self._e_tag = e_tags.get(number, "")
            if not numbers:
                return state
            at_once = min(2 * at_once, _AT_ONCE)

    def _nearer(
        self,
        state: LogState,
        later: list[int],
        ahead: dict[str, bytes | None],
        *,
        is_checked: bool,
    ) -> LogState | None:
        """The state of a checkpoint between a state and the newest commit, or None.

        `ahead`: gets the commits from there on, which are asked for beside the checkpoint.
        """
        check = [] if is_checked else [commit_key(state.number) if state.number else MARKER]
        hint, *found = side_by_side(self.checkpoints.get, [HINT, *check])
        if check:
            self._checked(state, found[0], later, is_known=True)
        number = self.checkpoints.hinted_number(hint)
        last = state.number + len(run_of(later, state.number + 1, len(later)))
        if not state.number < number <= last:
            return None
        following = range(number, min(number + _AT_ONCE, last + 1) + 1)  # and what may come next
        keys = [checkpoint_key(number), *map(commit_key, following)]
        data, *commits = side_by_side(self.objects.get, keys, _AT_ONCE + 2)
        ahead.update(zip(keys[1:], commits, strict=True))
        marker = Marker(NEWEST_LAYOUT, state.log_id) if state.log_id else Marker(1)
        nearer = self.checkpoints.hinted(hint, marker, data)
        known = commits[0] and self._decoded(keys[1], commits[0])
        if nearer is None or not known or known.token != (nearer.token or known.token):
            return None
        return nearer

    def _all(self, keys: list[str], ahead: dict[str, bytes | None]) -> list[bytes | None]:
        """Objects; those that were asked for before come from there."""
        missing = [key for key in keys if key not in ahead]
        if len(missing) < 2:
            found = [self.objects.get(key) for key in missing]
        else:
            found = side_by_side(self.objects.get, missing, _AT_ONCE + 1)
        asked = dict(zip(missing, found, strict=True))
        return [asked[key] if key in asked else ahead[key] for key in keys]

    def _checked(
        self, state: LogState, data: bytes | None, others: list[int], *, is_known: bool
    ) -> LogState:
        """A state whose commit is still there; `data` is what was found in its place."""
        key = commit_key(state.number)
        if not state.number:
            if data is not None and self._is_of(state, Marker.decode(data, str(self.location))):
                return state
        elif data is not None:
            token = self._decoded(key, data).token
            if token == (state.token or token):
                return replace(state, token=token)  # a checkpoint of layout 1 does not have it
            if not is_known:
                raise _MisledError
        elif not is_known:
            reason = (
                "the commit is missing, although there is a checkpoint of the state after it: it "
                "was removed, or the place was filled from a backup in part"
            )
            remedy = (
                f"restore the object; or remove {HINT} and the checkpoints of missing commits: "
                "the log then ends with what is left"
            )
            raise self._missing(state, key, reason, remedy)
        elif self._asked_again(state, state.number, others) is not None:
            return state
        raise self._another(state)

    def _is_of(self, state: LogState, marker: Marker | None) -> bool:
        """Whether a marker may be that of a log: an upgrade replaces it after its commit."""
        return marker is not None and (not state.log_id or marker.log_id in {"", state.log_id})

    def _another(self, state: LogState) -> LogChangedError:
        """Take note that another log is at the place; the error that says so."""
        self._why_replaced = self._why(state.number)
        return self._changed(self._why_replaced)

    def _asked_again(self, state: LogState, number: int, others: list[int]) -> bytes | None:
        """A commit that was not there a moment ago; None if no later one is there."""
        later = next((each for each in others if self._is_ours(state, each)), None)
        if later is None:
            return None
        key = commit_key(number)
        data = self.objects.get(key)  # it may have come meanwhile, and the later one after it
        if data is None:
            reason = (
                f"the commit is missing, although there are later ones, such as "
                f"{commit_key(later)}: it was removed, and without it the later ones say nothing"
            )
            remedy = "restore the object from a version or a copy of the bucket"
            raise self._missing(state, key, reason, remedy)
        return data

    def _missing(
        self, state: LogState, key: str, reason: str, remedy: str
    ) -> CorruptCheckpointError:
        """The error about a commit that is missing.

        Raises `LogChangedError` if the place is being emptied, or was made again meanwhile: then
        nothing is damaged.
        """
        self._check_marker(state)
        return CorruptCheckpointError(f"{self.location}/{key}", 1, reason, remedy)

    def _is_ours(self, state: LogState, number: int) -> bool:
        """Whether a commit is there, and is not of a log that was at the place before."""
        key = commit_key(number)
        data = self.objects.get(key)  # a list may have it although it is gone
        if data is None:
            return False
        is_foreign = bool(state.log_id) and self._decoded(key, data).log_id != state.log_id
        if is_foreign:
            self._check_marker(state)
            self._foreign.add(number)
        return not is_foreign

    def _check_marker(self, state: LogState) -> None:
        """Find out whether the log of a state is still there; raises `LogChangedError` if not."""
        if not self._is_of(state, self.marker()):
            raise self._another(state)

    def _after(self, state: LogState, commit: Commit) -> LogState:
        if state.log_id and commit.log_id != state.log_id:
            self._check_marker(state)
        try:
            return self._noted(commit, state.after(commit))
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

    def create(self) -> None:
        """Make the log, unless it is there; refuse a store without conditional writes.

        Raises `LogDirectoryError` if other objects are there: they may be a copied log directory,
        which readers would no longer see; if the place lies in that of another log.
        """
        if self._is_checked:
            return
        marker = self.objects.get(MARKER)
        if marker is None:
            # First what a log without its marker has: there may be a million data objects.  Those
            # and proposals may be of a job that has outlived an earlier log; a sweep removes them.
            keys = chain(self.objects.list("segmentlog/"), self.objects.list(""))
            others = (key for key, *_ in keys if not _may_be_late(key))
            other = next(others, None)
            # Asked again: another writer may have made the log, and written to it, since.
            if other is not None and self.marker() is None:
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
            self._create_surely(MARKER, Marker.of_new_log().encode())
            marker = self.objects.get(MARKER)
        if marker is not None:
            Marker.decode(marker, str(self.location))
        # The same bytes: a store that ignores the condition is none the worse for it.
        if marker is not None and self._create_surely(MARKER, marker):
            if self._create_surely(MARKER, marker):
                reason = (
                    "the store has replaced an object that was to be created only if there was "
                    "none: it has no conditional writes (If-None-Match), and commits of two "
                    "writers would be lost; use another store, or another version of this one"
                )
                raise LogDirectoryError(str(self.location), reason)
            # The place was emptied since the marker was read.  That of the earlier log must not
            # stay: who knows that log would go on with it.
            self.objects.exchange(MARKER, marker, Marker.of_new_log().encode())
        self._is_checked = True

    def _create_surely(self, key: str, data: bytes) -> bool:
        """`Objects.create` of an object that may be any writer's.

        So it may be repeated after a request that has failed.
        """
        pause = _PAUSE_SECONDS
        for _ in range(_TRIES_OF_MARKER - 1):
            try:
                return self.objects.create(key, data) is not None
            except StorageError as error:
                if error.errno in REFUSALS or isinstance(error, UnsyncedError):
                    raise
            time.sleep(pause)
            pause *= 2
        return self.objects.create(key, data) is not None

    def refuse_ended(self, state: LogState, job: str, begun_ms: int) -> None:
        """Refuse a commit of a job after a state in which it has ended; or `LogDirectoryError`."""
        if job in state.ended or time.time() * 1000 - begun_ms > LONGEST_JOB_MS:
            reason = (
                "the job has ended: it has committed, a sweep has ended it, or it has taken more "
                f"than {LONGEST_JOB_MS // 86_400_000} days; run it again"
            )
            raise LogDirectoryError(str(self.location), reason)

    def refuse_features(self, state: LogState, features: Collection[str]) -> None:
        """Refuse a commit with features after a state of layout 1; or `LogDirectoryError`."""
        if features and not state.log_id:
            what = ", ".join(features)
            reason = (
                f"nothing was changed: a log of layout 1 cannot say that its readers have to know "
                f"{what}: segmentlog upgrade moves it to layout {NEWEST_LAYOUT}"
            )
            raise LogDirectoryError(str(self.location), reason)

    def append(
        self, make: "Callable[[LogState], Commit | None]", begun_ms: int | None = None
    ) -> LogState:
        """Append a commit.

        Returns a state that has it, or the newest one if `make` has returned None.

        `make`: the commit that follows a state, with the next number; it is called again with a
        later state if another writer was quicker.  None ends the attempt: nothing is to be done.
        Errors that it raises end it, too.  `begun_ms`: when the job of the commit began, if other
        writers may take the commit along, and it has the same token after each state.  Raises
        `CommitInDoubtError` if the store does not say whether the commit took place;
        `StorageError` if it certainly did not.
        """
        if begun_ms is not None:
            return self._writes.append(make, begun_ms)
        state, n_lost = self.looked_at(), 0
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
            begun = time.monotonic()
            if self.attempt(state, self.checked(state, commit)):
                break
            n_lost += 1
            self.pause(n_lost, time.monotonic() - begun)
            state = self.refresh()
        self.checkpoints.write(self.known, commit.number)
        return self.known

    def looked_at(self) -> LogState:
        """The newest state, which was looked at a moment ago.

        It may be old even so.  Then the number of the next commit is taken, and nothing is lost.
        """
        if self._state is not None and self.has_looked:
            return self._state
        return self.refresh(trusts_lists=True)

    @property
    def has_looked(self) -> bool:
        """Whether this process has seen the log a moment ago."""
        if self._why_replaced:
            raise self._changed(self._why_replaced)
        return time.monotonic() - self._looked < _LOOK_SECONDS

    def pause(self, n_lost: int, seconds: float) -> None:
        """Wait after a number was lost; `seconds`: that the attempt took."""
        # Who has lost most waits least.  With 16 writers and 20 ms for a create, a commit took
        # 2.1 s at the most, and 4.0 tries (3.4 s and 6.0 with pauses that grow).
        turns = _TURNS / n_lost * secrets.randbelow(1000) / 1000
        time.sleep(turns * min(seconds, _MOST_TURN_SECONDS))

    def attempt(self, state: LogState, made: Made) -> bool:
        """Append a commit to a state; whether it is there.

        If it is not, the one that has taken its number was read.  Raises the errors of `append`.
        """
        commit = made.commit
        begun = time.monotonic()
        first, e_tag = self._create(commit, made.data)
        is_mine = first.token == commit.token
        with self._turn:
            if self._state is state:  # no other thread has seen it before
                after = made.after if is_mine else self._after(state, first)
                self._state, self._e_tag = self._noted(first, after), e_tag
            if is_mine:
                self._seen = begun
        return is_mine

    def follow(self) -> bool:
        """Ask for the next commit, by one request; whether there is one.

        A commit that has followed since shows as well as a list that the log is still the same.
        """
        state, begun = self.known, time.monotonic()
        key = commit_key(state.number + 1)
        data = self.objects.get(key)
        if data is None:
            return False
        commit = self._decoded(key, data)
        with self._turn:
            if self._state is state:
                self._state, self._e_tag = self._after(state, commit), ""
                if commit.log_id == state.log_id:
                    self._looked = begun
        return True

    def token_of(self, number: int) -> str | None:
        """The token of a commit that this process has read; None if it has not."""
        state = self.known
        if number == state.number:
            return state.token
        tokens = self._tokens.get(number)
        return tokens[0] if tokens else None

    def has_named(self, token: str, first: int, last: int) -> bool:
        """Whether one of some commits has a write; those that this process has not read are read.

        Raises `StorageError`, or `CorruptCheckpointError` if one is missing or cannot be read.
        """
        for number in range(first, last + 1):
            tokens = self._tokens.get(number)
            if tokens is None:  # a checkpoint was nearer
                key = commit_key(number)
                data = self.objects.get(key)
                if data is None:
                    reason, remedy = "the commit is missing", "restore the object"
                    raise self._missing(self.known, key, reason, remedy)
                commit = self._decoded(key, data)
                is_ours = commit.log_id == self.known.log_id
                tokens = commit.tokens if is_ours else ()
            if token in tokens:
                return True
        return False

    def tokens_after(self, number: int) -> set[str]:
        """Tokens of the writes that commits after a number have, as far as they were read."""
        return {
            token for each, tokens in [*self._tokens.items()] if each > number for token in tokens
        }

    def _noted(self, commit: Commit, state: LogState) -> LogState:
        """The state after a commit, which is remembered for `has_named`."""
        is_ours = commit.log_id == state.log_id
        self._tokens[commit.number] = commit.tokens if is_ours else (commit.token,)
        if len(self._tokens) > 2 * _REMEMBERED:
            for number in sorted(self._tokens)[:-_REMEMBERED]:
                del self._tokens[number]
        return state

    def checked(self, state: LogState, commit: Commit) -> Made:
        """A commit that follows a state; one that readers could not follow would stay for ever.

        Raises `LogDirectoryError`.
        """
        log_id = commit.log_id or state.log_id  # that of an upgrade, or the log's
        if log_id:
            commit = replace(commit, log_id=log_id, previous=state.token)
        data = commit.encode()
        if len(data) > MOST_WHOLE_BYTES:
            reason = (
                f"the commit would have {len(data)} bytes, and readers take at the most "
                f"{MOST_WHOLE_BYTES}: write fewer partitions or topics at once"
            )
            raise LogDirectoryError(str(self.location), reason)
        if not commit.log_id:
            self.refuse_features(state, commit.features)
        try:
            path = f"{self.location}/{commit_key(commit.number)}"
            return Made(commit, data, state.after(Commit.decode(data, path)))
        except (ValueError, CorruptCheckpointError) as error:
            why = error.reason if isinstance(error, CorruptCheckpointError) else error
            reason = f"nothing was changed: readers could not follow this commit: {why}"
            raise LogDirectoryError(str(self.location), reason) from error

    def _create(self, commit: Commit, data: bytes) -> tuple[Commit, str]:
        """Try to take a number; the commit that has it in the end, ours or that of another writer.

        With what lists call it, if that is known.

        A request whose answer is lost may still be under way, and take the number later.  So the
        writer asks for the same number with the same bytes until somebody has it.
        """
        key = commit_key(commit.number)
        ends = time.monotonic() + self._settle_seconds
        pause, has_doubt = _PAUSE_SECONDS, False
        while True:
            found, is_absent = None, False
            reason = "the store refuses to create the object, and has none"
            try:
                if (e_tag := self.objects.create(key, data)) is not None:
                    return commit, e_tag
                # It may be ours even so: a request whose answer was lost.
                found = self.objects.get(key)
            except UnsyncedError as error:
                raise CommitInDoubtError(f"{self.location}/{key}", str(error)) from error
            except StorageError as error:
                reason = str(error)
                # A store that is too busy for writes may still answer reads.
                with contextlib.suppress(StorageError):
                    found = self.objects.get(key)
                    is_absent = found is None
                # The word of a store proves nothing alone: it may say 403 after it has acted.
                is_sure = is_absent or error.errno in NEVER_SENT
                if is_sure and error.errno in REFUSALS and not has_doubt:
                    raise
            if found is not None:
                return self._decoded(key, found), ""
            # A request is lost, or two conditional writes have met, and both were refused (409).
            has_doubt = True
            if time.monotonic() > ends:
                raise CommitInDoubtError(f"{self.location}/{key}", reason)
            time.sleep(pause * (0.5 + secrets.randbelow(100) / 100))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


_sequences: dict[int, Sequence] = {}


def sequence_at(location: BucketLocation) -> Sequence:
    """The sequence of a place; a process keeps it until it has found another log there."""
    objects = objects_at(location)
    found = _sequences.get(id(objects))
    if found is None or found.objects is not objects or found.is_replaced:
        found = _sequences[id(objects)] = Sequence(objects, location)
    return found


def opened_at(location: BucketLocation, *, creates: bool = False) -> Sequence:
    """The sequence of a place for new work, which takes the log as it is now.

    `creates`: whether a log is made if there is none.  Raises the errors of `Sequence.refresh` and
    `Sequence.create`, but for that of another log.
    """
    found = sequence_at(location)
    with contextlib.suppress(LogChangedError):
        if creates:
            found.create()
        found.refresh(trusts_lists=creates)
        return found
    found = sequence_at(location)
    if creates:
        found.create()
    found.refresh(trusts_lists=creates)
    return found
