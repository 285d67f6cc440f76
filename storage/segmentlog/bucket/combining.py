"""Writes of many writers in one commit: flat combining.

The order of commits is one conditional create after the other, so what many writers can do is
bound by how many writes a commit has.  Two rules put more than one into it.

- Threads of a process that wait commit together: one of them leads, and takes all that wait.
- A writer that has lost a number, or sees commits of others, publishes its write as a proposal
  (`segmentlog.bucket.proposals`).  Whoever creates the next commit takes all open proposals along,
  each placed after the ones before it.  The oldest proposal's writer goes first.  The others wait
  for its commit, each a little longer than the one before it, and go themselves if it does not
  come.  So nobody waits for a writer that has died.

Why nothing is lost or there twice:

- What decides stays the conditional create, by somebody who has read all commits before.
- A job takes effect once.  `LogState.ended` has the jobs that did, whoever has named them, and a
  commit that names one of them again is not valid.  A sweep that ends a job ends its proposals.
- A write is acknowledged only if a commit that its writer has read has its token.
- A combiner only takes what can follow as it is.  It refuses nothing in the name of others: a
  proposal that it passes over stays open until its `MOST_COMMITS` are past.
- Only the writer itself gives its write up, once its proposal cannot be named any more: those
  commits are past without it, or the writer has ended its own job by a commit.
- Proposals of a log that was at the place before are not taken: the token of the commit that they
  follow has to be that of the log.
- Lists only say which proposals there are.  One that a list lacks is named later, at the latest by
  its own writer.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from segmentlog.bucket.commits import Commit
from segmentlog.bucket.directory_objects import DirectoryObjects
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import ListedObject
from segmentlog.bucket.proposals import (
    HOT,
    MOST_BYTES,
    MOST_COMMITS,
    Key,
    Proposal,
    folders,
    parsed_key,
)
from segmentlog.errors import (
    CommitInDoubtError,
    LogChangedError,
    LogDirectoryError,
    StorageError,
)
from segmentlog.store.remote.requests import side_by_side

if TYPE_CHECKING:
    from segmentlog.bucket.sequence import Made, Sequence

logger = logging.getLogger(__name__)

#: Seconds after a commit of others, or a lost number, for which a log counts as hot; or requests.
HOT_SECONDS = 1.0
_HOT_PACES = 20

#: Seconds that a request takes until this process has measured it, and at the most.
_FIRST_PACE, _MOST_PACE = 0.05, 1.0

#: Proposals that a commit takes along.
_MOST_PARTS = 128


@dataclass(slots=True, eq=False)
class _Write:
    """A write of this process, and what became of it."""

    make: Callable[[LogState], Commit | None]
    begun_ms: int
    proposals: list[Proposal] = field(default_factory=list)  # that were published
    read_to: int = 0  # the last commit that does not name it
    is_done: bool = False
    error: BaseException | None = None
    #: what the last state made of it: a commit, nothing to do (None), or an error
    commit: Commit | None = None
    refusal: Exception | None = None
    is_fenced: bool = False  # whether the next commit ends its job, as it is given up

    def judge(self, state: LogState) -> Commit | None:
        """The commit that follows a state; None if there is none."""
        self.commit, self.refusal, self.is_fenced = None, None, False
        try:
            self.commit = self.make(state)
        except Exception as error:  # noqa: BLE001 - the end of this write, and of no other
            self.refusal = error
        return self.commit

    def finish(self, error: BaseException | None = None) -> None:
        """Take note of the end."""
        self.is_done, self.error = True, error

    def is_open(self, number: int) -> bool:
        """Whether the commit after a number may name its proposal."""
        return bool(self.proposals) and number < self.proposals[-1].made_at + MOST_COMMITS


class Writes:
    """The writes of this process to one log."""

    def __init__(self, sequence: "Sequence") -> None:
        self._sequence = sequence
        self._waiting = list[_Write]()
        self._taking = threading.Lock()  # for `_waiting`
        self._leading = threading.Lock()  # whoever has it commits for all that wait
        # Any thread that reads the sequence may set these two, and read them, without a lock: they
        # say whether to hurry, and decide nothing.
        self._hot_until = float("-inf")
        self._asks = False  # to ask others for turns
        # Only the leader changes what follows.
        self._asked = float("-inf")  # when it has asked
        self._pace = _FIRST_PACE
        self._last_listed = list[tuple[Key, ListedObject]]()
        self._passed_over = set[str]()  # tokens of proposals that no commit can have
        self._bodies = dict[str, bytes]()  # of proposals that are too large for their keys

    @property
    def is_hot(self) -> bool:
        """Whether others have committed a moment ago."""
        return time.monotonic() < self._hot_until

    def heat(self) -> None:
        """Take note that others commit."""
        self._asks |= not self.is_hot
        self._hot_until = time.monotonic() + max(HOT_SECONDS, _HOT_PACES * self._pace)

    def append(self, make: Callable[[LogState], Commit | None], begun_ms: int) -> LogState:
        """See `Sequence.append`."""
        write = _Write(make, begun_ms)
        with self._taking:
            self._waiting.append(write)
        with self._leading:
            if not write.is_done:
                with self._taking:
                    group, self._waiting = self._waiting, []
                self._lead(group)
        if write.error is not None:
            raise write.error
        return self._sequence.known

    def _lead(self, group: list[_Write]) -> None:
        """Commit writes; each has its own end."""
        while left := [each for each in group if not each.is_done]:
            try:
                self._commit(left)
            except BaseException as error:
                is_end = not isinstance(error, Exception)
                for each in left:
                    # The others have not been tried yet.
                    is_tried = each.commit is not None or each.proposals or each is left[0]
                    if not each.is_done and (is_end or is_tried):
                        each.finish(self._end_of(each, error))
                if is_end:
                    raise

    def _end_of(self, write: _Write, error: BaseException) -> BaseException:
        """What the writer is told once the store has failed."""
        is_known = isinstance(error, (CommitInDoubtError, LogChangedError)) or not write.proposals
        if is_known and isinstance(error, Exception):
            return error
        # Another writer may yet name it.
        path = str(self._sequence.location)
        return CommitInDoubtError(path, f"the write was proposed to others, and then: {error}")

    def _commit(self, group: list[_Write]) -> None:
        sequence, n_lost, most = self._sequence, 0, len(group)
        state, fresh = sequence.looked_at(), cast("LogState | None", None)
        while True:
            self._settle(group, state)
            group = [each for each in group if not each.is_done]
            if not group:
                return
            mine = group[: most if state.log_id else 1]  # layout 1 has no parts
            combines = bool(state.log_id) and not isinstance(sequence.objects, DirectoryObjects)
            others = list[Proposal]()
            if combines and self.is_hot:
                queued, before = self._queued(mine, state, n_lost), state.number
                state = sequence.looked_at()
                if queued is None or state.number > before:
                    self._settle(mine, state)
                    mine = [each for each in mine if not each.is_done]
                if queued is None or not mine:
                    continue
                others = queued
            try:
                made = self._made(mine, state, others)
            except _NotTogetherError:
                most = 1
                continue
            if made is None:  # a state decides that which was read since the writers have asked
                if fresh is None:
                    fresh = sequence.refresh()
                if state.number >= fresh.number:
                    for each in mine:
                        each.finish(each.refusal)
                else:
                    state = fresh
                continue
            begun = time.monotonic()
            if sequence.attempt(state, made):
                for each in mine:
                    if each.commit is not None or each.is_fenced:
                        each.finish(each.refusal)
                sequence.checkpoints.write(sequence.known, made.commit.number)
                state = sequence.known
                continue
            n_lost += 1
            self.heat()
            if combines:
                state = sequence.looked_at()
            else:
                sequence.pause(n_lost, time.monotonic() - begun)
                state = sequence.refresh()

    def _settle(self, mine: list[_Write], state: LogState) -> None:
        """End the writes that a commit of another writer has named."""
        for each in mine:
            if each.proposals:
                first = max(each.proposals[0].made_at, each.read_to) + 1
                last = min(each.proposals[-1].made_at + MOST_COMMITS, state.number)
                token = each.proposals[0].commit.token
                if self._sequence.has_named(token, first, last):
                    each.finish()
                each.read_to = last

    # --- the commit

    def _made(self, mine: list[_Write], state: LogState, others: list[Proposal]) -> "Made | None":
        """The commit of writes, and of proposals of others; None if there is nothing to commit.

        Each of `mine` has what became of it.  Raises `_NotTogetherError` if one of several writes
        makes a commit that readers could not follow.
        """
        judged = _Judged(state)
        for each in mine:
            judged.judge(each)
        while True:
            commit = judged.commit(others)
            if commit is None:
                return None
            try:
                return self._sequence.checked(state, commit)
            except LogDirectoryError as error:
                if others:
                    self._passed_over |= {each.commit.token for each in others}
                    others = []
                elif len(mine) > 1:
                    raise _NotTogetherError from None
                else:
                    judged = _Judged(state)
                    judged.refuse(mine[0], error)

    # --- proposals

    def _queued(self, mine: list[_Write], state: LogState, n_lost: int) -> list[Proposal] | None:
        """Publish writes, and wait for their turn: the proposals of others that are open then.

        None if a commit has come before.
        """
        new, is_urgent = list[Proposal](), False
        for each in mine:
            if each.is_open(state.number):
                continue
            commit = each.judge(state)
            proposal = commit and Proposal.of(commit, state, each.begun_ms)
            if proposal:  # from now on, it counts as published: its request may come late
                each.proposals.append(proposal)
                new.append(proposal)
            else:
                is_urgent = True
        if new:
            acts = [each.encode() for each in new]
            if (n_lost or self._asks) and time.monotonic() - self._asked > HOT_SECONDS:
                # The others may not know yet that they are not alone.
                self._asks, self._asked = False, time.monotonic()
                acts.append((HOT, secrets.token_bytes(8)))
            side_by_side(self._put, acts)
        # After a commit without them, the last list still says who comes before; only who goes
        # first makes another one, which takes the others more time to wait.
        is_fresh = bool(new or n_lost)
        listed = self._listed_and_followed() if is_fresh else self._last_listed
        newest = max((key.made_at for key, _ in listed), default=0)
        while self._sequence.known.number < newest and self._followed():
            pass
        found, n_before = self._open(listed, mine)
        pause = 0.75 if is_fresh else 1.5
        for _ in range(0 if is_urgent or not n_before else 1 + n_before // 2):
            time.sleep(pause * self._pace)
            pause = 0.75
            if self._followed():
                return None
        if not is_fresh:
            found, _ = self._open(self._listed(), mine)
        return self._proposals(found)

    def _put(self, named: tuple[str, bytes]) -> None:
        key, data = named
        try:
            self._sequence.objects.put(key, [data])
        except StorageError as error:  # the writer goes on by itself
            logger.debug("%s: %s was not written: %s", self._sequence.location, key, error)

    def _followed(self) -> bool:
        """Whether the next commit is there, which was read then."""
        begun = time.monotonic()
        try:
            found = self._sequence.follow()
        except StorageError as error:
            logger.debug("%s: the next commit was not read: %s", self._sequence.location, error)
            return False
        self._pace += (min(time.monotonic() - begun, _MOST_PACE) - self._pace) / 4
        if found:
            self.heat()
        return found

    def _listed_and_followed(self) -> list[tuple[Key, ListedObject]]:
        listed = list[tuple[Key, ListedObject]]()
        acts: list[Callable[[], object]] = [lambda: listed.extend(self._listed()), self._followed]
        side_by_side(lambda act: act(), acts)
        return listed

    def _listed(self) -> list[tuple[Key, ListedObject]]:
        sequence, found = self._sequence, list[tuple[Key, ListedObject]]()
        try:
            for folder, after in folders(sequence.known.number):
                for each in sequence.objects.list(folder, after=after):
                    if (key := parsed_key(each.key)) is not None:
                        found.append((key, each))
        except StorageError as error:
            logger.debug("%s: proposals were not listed: %s", sequence.location, error)
        self._last_listed = found
        return found

    def _open(
        self, listed: list[tuple[Key, ListedObject]], mine: list[_Write]
    ) -> tuple[list[tuple[Key, ListedObject]], int]:
        """The open proposals of others, the oldest first, and how many are older than `mine`."""
        number = self._sequence.known.number
        named = self._sequence.tokens_after(number - MOST_COMMITS) | self._passed_over
        tokens = {each.proposals[0].commit.token for each in mine if each.proposals}
        others, n_before, is_before = list[tuple[Key, ListedObject]](), 0, True
        for key, each in sorted(
            listed, key=lambda row: (row[0].made_at, row[1].modified_ms, row[0].token)
        ):
            is_open = number - MOST_COMMITS < key.made_at <= number
            if key.token in tokens:
                is_before = False
            elif is_open and key.token not in named and self._sequence.token_of(key.made_at):
                n_before += is_before
                others.append((key, each))
        return others[:_MOST_PARTS], n_before

    def _proposals(self, found: list[tuple[Key, ListedObject]]) -> list[Proposal]:
        """The proposals with some keys; nobody waits once more for those that no commit can have.

        Only whoever creates a commit reads them: it is one writer of many.
        """
        sequence, proposals = self._sequence, dict[str, Proposal]()
        bodies = self._bodies_of([each for _, each in found])
        for key, each in found:
            proposal = Proposal.decode(key, bodies.get(each.key, b""))
            if (
                proposal is not None
                and proposal.seen == sequence.token_of(key.made_at)
                and proposal.commit.job not in sequence.known.ended
            ):
                proposals.setdefault(key.token, proposal)
            elif not each.size or each.key in bodies:
                self._passed_over.add(key.token)
        return [*proposals.values()]

    def _bodies_of(self, found: list[ListedObject]) -> dict[str, bytes]:
        """The bytes of proposals that are too large for their keys."""
        large = [each for each in found if 0 < each.size <= MOST_BYTES][:_MOST_PARTS]
        missing = [each.key for each in large if each.key not in self._bodies]
        if missing:
            with contextlib.suppress(StorageError):
                data = side_by_side(self._sequence.objects.get, missing)
                self._bodies |= {
                    key: each for key, each in zip(missing, data, strict=True) if each
                }
        keys = {each.key for each in large}
        self._bodies = {key: data for key, data in self._bodies.items() if key in keys}
        return self._bodies


class _NotTogetherError(Exception):
    """One of several writes makes a commit that readers could not follow."""


class _Judged:
    """Writes that follow a state one after the other."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._now: LogState | None = None  # after what has been taken
        self._taken = list[Commit]()
        self._fenced = list[str]()  # jobs of writes that are given up, although they are proposed

    def judge(self, write: _Write) -> None:
        """Let a write follow the ones before, if it can."""
        if self._taken and self._now is None:
            try:
                self._now = self._after(self._taken)
            except ValueError:
                raise _NotTogetherError from None
        commit = write.judge(self._now or self._state)
        if commit is None:
            self._give_up(write)
        elif not self._takes(replace(commit, number=self._state.number + 1)):
            write.commit = None  # later, and alone: then it is refused

    def refuse(self, write: _Write, error: Exception) -> None:
        """Give a write up."""
        write.commit, write.refusal = None, error
        self._give_up(write)

    def _give_up(self, write: _Write) -> None:
        write.is_fenced = write.is_open(self._state.number)
        if write.is_fenced:
            self._fenced.append(write.proposals[0].commit.job)

    def _takes(self, commit: Commit) -> bool:
        """Whether a commit follows; then it is taken."""
        if self._now is not None:
            try:
                self._now.take_part(commit)
            except ValueError:
                self._now = self._after(self._taken)
                return False
        self._taken.append(commit)
        return True

    def _after(self, taken: list[Commit]) -> LogState:
        state = self._state
        whole = replace(taken[0], log_id=state.log_id, previous=state.token)
        return state.after(whole.with_parts(taken[1:]))

    def commit(self, others: list[Proposal]) -> Commit | None:
        """The commit of what was taken, and of the proposals that can follow; None if empty."""
        taken = [*self._taken]
        if not taken:
            if not self._fenced:
                return None
            now_ms = max(int(time.time() * 1000), 0)
            taken = [Commit(self._state.number + 1, secrets.token_hex(16), "", now_ms)]
        taken[0] = replace(taken[0], retired=[*taken[0].retired, *self._fenced])
        try:
            now = self._after(taken) if others else self._state
        except ValueError:  # `Sequence.checked` says why
            others = []
        for each in others:
            part = each.after(now)
            if part is not None:
                try:
                    now.take_part(part)
                except ValueError:
                    now = self._after(taken)
                else:
                    taken.append(part)
        return taken[0].with_parts(taken[1:])
