"""The verdict: the looks of readers, compared with the commits.

The ledger has the decisions of all writers in order, each with the token of the commit before it.
Followed back from the last state, these tokens give the chain of the commits that took place. Each
moment of the directory is the end of one of them. A look has to be one moment: not older than the
last acknowledged commit before its beginning, and not newer than its end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from numbered_jobs import Found

from stressing.plan import Op, op_of

__all__ = ["Failure", "Verdict", "tally"]

_Event = Mapping[str, Any]

_RECOVERED = ("undid ", "finished ", "removed ")


class Failure(NamedTuple):
    """A result that no promise allows."""

    what: str
    level: str
    at: int
    text: str


@dataclass(frozen=True)
class _Commit:
    """A commit that took place; `acknowledged` is its time, or nothing."""

    op: Op
    begun: int
    decided: int
    acknowledged: int | None


class _Topic(NamedTuple):
    """One topic at a moment; its partitions have the same jobs."""

    n_partitions: int
    start_offset: int
    end_offset: int
    jobs: tuple[int, ...]

    def then(self, op: Op) -> "_Topic":
        """The topic after one more job."""
        end, number = self.end_offset + op.job.n_rows, op.job.number
        if op.kind == "overwrite":
            return self._replace(start_offset=self.end_offset, end_offset=end, jobs=(number,))
        return self._replace(end_offset=end, jobs=(*self.jobs, number))


class Verdict:
    """All failures of a run.

    Parameters
    ----------
    events : of the ledger.
    seed, n_new_topics : of the operations.
    first_token, last_token : of the states before and after.
    delay_ms : for how long planned reads find the files of records that were overwritten.
    """

    def __init__(
        self, events: Iterable[_Event], *, seed: int, n_new_topics: int, first_token: str,
        last_token: str, delay_ms: int,
    ) -> None:  # fmt: skip
        self._events = list(events)
        self._of_job = partial(op_of, seed, n_new_topics=n_new_topics)
        self._delay = delay_ms * 10**6
        self._by_what: dict[str, list[_Event]] = {}
        for each in self._events:
            self._by_what.setdefault(each["what"], []).append(each)
        self.commits = self._chain(first_token, last_token)
        self._moments: list[dict[str, _Topic]] = [{}]
        for commit in self.commits:
            moment = dict(self._moments[-1])
            for topic, n_partitions in commit.op.job.topics.items():
                before = moment.get(topic, _Topic(n_partitions, 0, 0, ()))
                moment[topic] = before.then(commit.op)
            self._moments.append(moment)
        self.counts = tally(self._events, seed=seed, n_new_topics=n_new_topics)

    def of(self, what: str) -> list[_Event]:
        """Events of one kind."""
        return self._by_what.get(what, [])

    def failures(self) -> list[Failure]:
        """All failures, in the order of time."""
        found = [*self._of_writers(), *self._of_readers(), *self._of_looks(), *self._of_changes()]
        return sorted(found, key=lambda failure: failure.at)

    def final_look(self, seen: Mapping[str, Sequence[Any]]) -> str:
        """The fault of a look at the end; empty if there is none."""
        return _difference(seen, (), self._moments[-1])

    def _chain(self, first_token: str, last_token: str) -> list[_Commit]:
        decisions = {each["token"]: each for each in self.of("decision")}
        begun: dict[int, int] = {}
        for each in self.of("begun"):
            begun.setdefault(each["job"], each["at"])
        acknowledged = {each["job"]: each["at"] for each in reversed(self.of("acknowledged"))}
        chain: list[_Commit] = []
        while last_token != first_token:
            event = decisions[last_token]
            number = event["job"]
            commit = _Commit(
                self._of_job(number), begun[number], event["at"], acknowledged.get(number)
            )
            chain.append(commit)
            last_token = event["after"]
        return chain[::-1]

    def _of_writers(self) -> Iterator[Failure]:
        for each in [*self.of("unexpected"), *self.of("not recovered")]:
            text = each.get("text") or "\n".join(each["lines"])
            yield Failure(f"writer: {text.strip().splitlines()[-1][:60]}", "", each["at"], text)
        numbers = Counter(each.op.job.number for each in self.commits)
        for number, n_times in numbers.items():
            if n_times > 1:
                yield Failure("a job was committed twice", "", 0, f"job {number}: {n_times} times")
        for each in self.of("acknowledged"):
            if each["job"] not in numbers:
                text = f"job {each['job']}: {self._of_job(each['job'])}"
                yield Failure("an acknowledged job was not committed", "", each["at"], text)
        for each in [*self.of("failed"), *self.of("aborted")]:
            if each["job"] in numbers:
                text = f"job {each['job']}: {self._of_job(each['job'])}"
                yield Failure(f"a job that {each['what']} was committed", "", each["at"], text)

    def _of_readers(self) -> Iterator[Failure]:
        for each in self.of("bad read"):
            what = f"{each['kind']}: {each['error']}"
            yield Failure(what, each["level"], each["at"], each["text"])
        for each in self.of("bad warning"):
            yield Failure("a warning that recommends logEnd", "", each["at"], each["text"])

    def _of_looks(self) -> Iterator[Failure]:
        for each in self.of("look"):
            if not each["seen"]:
                continue
            first, last = self._between(each["begun"], each["planned"])
            wrong: list[tuple[int, int, str]] = []
            for at in range(first, last + 1):
                difference = _difference(each["seen"], each["changed"], self._moments[at])
                if not difference:
                    break
                wrong.append((difference.count("\n"), at, difference))
            else:
                _, at, difference = min(wrong)
                text = (
                    f"it is none of the moments {first} to {last} of {len(self.commits)}; "
                    f"against moment {at}{self._told(at)}:\n{difference}"
                )
                what = f"{each['kind']}: not one moment of the directory"
                yield Failure(what, each["level"], each["at"], text)

    def _of_changes(self) -> Iterator[Failure]:
        for each in self.of("changed"):
            self.counts["LogChangedError"] += 1
            if self._is_justified(each):
                self.counts["LogChangedError, justified"] += 1
            else:
                what = f"{each['kind']}: LogChangedError although nothing was overwritten"
                yield Failure(what, each["level"], each["at"], f"{each['topic']}: {each['text']}")

    def _is_justified(self, change: _Event) -> bool:
        """Whether an overwrite explains the error.

        Reads that are planned find the files of earlier records for as long as the delay.
        """
        delay = self._delay if change["is_planned"] else 0
        first, _ = self._between(change["begun"], change["at"])
        return any(
            commit.op.kind == "overwrite"
            and change["topic"] in commit.op.job.topics
            and commit.begun + delay <= change["at"]
            for commit in self.commits[first:]
        )

    def _between(self, begun: int, ended: int) -> tuple[int, int]:
        """The moments that a read from one time to another may see."""
        first = last = 0
        for at, commit in enumerate(self.commits, 1):
            if commit.acknowledged is not None and commit.acknowledged <= begun:
                first = at
            if commit.decided <= ended:
                last = at
        return first, max(first, last)

    def _told(self, at: int) -> str:
        """The commits around a moment."""
        around = [
            f"{name} {commit.op.kind} {commit.op.job.number} {dict(commit.op.job.topics)}"
            for name, i in (("after", at - 1), ("before", at))
            if 0 <= i < len(self.commits)
            for commit in [self.commits[i]]
        ]
        return f" ({', '.join(around)})" if around else ""


def _difference(
    seen: Mapping[str, Sequence[Any]], changed: Iterable[str], moment: Mapping[str, _Topic]
) -> str:
    """A line for each partition in which a look differs from this moment."""
    expected = {
        f"{name}-{partition}": (topic.start_offset, topic.jobs)
        for name, topic in moment.items()
        for partition in range(topic.n_partitions)
    }
    lines = []
    for name in sorted({*expected, *seen} - {*changed}):
        found = Found(*seen.get(name, (-1, ())))
        start_offset, jobs = expected.get(name, (-1, ()))
        if list(found.jobs) != list(jobs):
            missing = [each for each in jobs if each not in found.jobs]
            more = [each for each in found.jobs if each not in jobs]
            listed = "" if name in seen else " (not listed)"
            lines.append(f"  {name}{listed}: missing {missing[:9]}, more {more[:9]}")
        elif jobs and found.start_offset != start_offset:
            lines.append(f"  {name}: begins at {found.start_offset}, not at {start_offset}")
    return "\n".join(lines) + "\n" if lines else ""


def tally(events: Iterable[_Event], *, seed: int, n_new_topics: int) -> Counter[str]:
    """How often each thing has happened."""
    counts: Counter[str] = Counter()
    for each in events:
        what = each["what"]
        counts[f"event: {what}"] += 1
        if what == "acknowledged":
            counts[f"job: {op_of(seed, each['job'], n_new_topics).kind}"] += 1
        elif what == "begun":
            counts["job: numbered, again"] += each["again"]
        elif what in {"look", "bad read"}:
            counts[f"read: {each['kind']}, {each['level']}"] += 1
        elif what == "warning":
            if each["text"].startswith(_RECOVERED):
                counts[f"recovery: {each['text'].split()[0]}"] += 1
            counts["recovery: left out"] += "is not written" in each["text"]
    return counts
