"""The notes of a run against the order of its commits: each read sees one moment of all logs.

The operations of the commits are planned again, in the order of the decisions, on a model that
needs no rows: so the verdict knows the rows of each commit, and the bounds of all logs after it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from random_operations.model import Model, NewRow, PlainLog, Row
from random_operations.operations import OPERATIONS
from random_operations.playing import Step, parse
from random_operations.reader import sum_of
from random_operations.run import Run, scene_of, spark_rows
from segmentlog.model import TopicPartition
from segmentlog.txn.state import State

_Event = Mapping[str, Any]
#: Log start and log end of each partition, by its name.
_Moment = Mapping[str, tuple[int, int]]

_NEVER = 2**62
_RECOVERED = ("undid", "finished", "removed")


class Failure(NamedTuple):
    """A result that no promise allows."""

    what: str
    at: int
    text: str


class _Commit(NamedTuple):
    """A part of a step that took place; `acknowledged` is its time, or None."""

    step: Step
    part: int
    begun: int
    decided: int
    acknowledged: int | None
    is_replaced: bool
    topics: frozenset[str]


class _History:
    """Every row that one partition ever had; rows at an offset never change."""

    def __init__(self) -> None:
        self.sums: list[int] = []
        self.times: list[int] = []
        self.decided: list[int] = []
        self.newer: list[int] = []  # the offset of the next row of the same key
        self.keys: list[int] = []
        self.tombstones: list[bool] = []
        self._total = [0]  # sums of all rows below each offset
        self._last: dict[bytes | None, int] = {}
        self._arrays: tuple[np.ndarray, ...] | None = None

    def append(self, row: Row, decided: int) -> None:
        offset = len(self.sums)
        assert row.offset == offset, "logs of these runs have no gaps"
        self.sums.append(sum_of(row.offset, row.key, row.value))
        self._total.append(self._total[-1] ^ self.sums[-1])
        self.times.append(row.timestamp_ms)
        self.decided.append(decided)
        self.newer.append(_NEVER)
        if row.key in self._last:
            self.newer[self._last[row.key]] = offset
        self._last[row.key] = offset
        self.keys.append(hash(row.key))
        self.tombstones.append(row.value is None)

    def sum(self, begin: int, end: int) -> int:
        return self._total[begin] ^ self._total[end]

    def arrays(self) -> tuple[np.ndarray, ...]:
        """`newer`, `keys`, `tombstones`, `decided` and `sums`."""
        if self._arrays is None or len(self._arrays[0]) != len(self.sums):
            columns = (self.newer, self.keys, self.tombstones, self.decided, self.sums)
            self._arrays = tuple(map(np.array, columns))
        return self._arrays


def _with_rows(topic: str, n_partitions: int, rows: Sequence[NewRow], model: Model) -> Model:
    return model.appended(topic, n_partitions, rows)


class Verdict:
    """All failures of a run.

    `first` and `last` are the states of the directory before and after it.
    """

    def __init__(self, events: Iterable[_Event], run: Run, first: State, last: State) -> None:
        self._events, self._run = [*events], run
        self._by_what: dict[str, list[_Event]] = {}
        for each in self._events:
            self._by_what.setdefault(each["what"], []).append(each)
        self.failures: list[Failure] = []
        self._history: dict[str, _History] = {}
        self.moments: list[_Moment] = [
            {
                f"{topic}-{number}": (0, 0)
                for topic in run.made
                for number in range(run.topics[topic])
            }
        ]
        self.commits: list[_Commit] = []
        self._model = Model()
        self._replay(first, last)
        self._judge_writers()
        self._judge_looks()
        self._judge_changes()
        self.counts = tally(self._events)

    def of(self, what: str) -> list[_Event]:
        """Events of one kind."""
        return self._by_what.get(what, [])

    def _fail(self, what: str, text: str, at: int = 0) -> None:
        self.failures.append(Failure(what, at, text))

    # The order of the commits.

    def _replay(self, first: State, last: State) -> None:
        """Apply all commits that took place.

        A writer notes a decision, and may be killed before it: the decision took place if its
        token, or one that counts it, is found later.  Jobs of Spark's note none, and only their
        order is known; at most one is between two others.
        """
        begun: dict[str, int] = {}
        for each in self.of("begun"):
            begun.setdefault(each["step"].partition("!")[0], each["at"])
        acknowledged = {
            (each["step"].partition("!")[0], each["part"]): each["at"]
            for each in reversed(self.of("acknowledged"))
        }
        spark = iter([*self.of("spark begun")])
        end = {"after": last.token, "sequence": last.sequence}
        # After an interrupt, a writer renames the state again if it does not know.
        decisions = [each for each in self.of("decision") if each["after"] != each["token"]]
        before = decisions[0]["sequence"] if decisions else last.sequence
        self._take_spark(spark, before - first.sequence)
        for each, later in zip(decisions, [*decisions[1:], end], strict=True):
            (step,) = parse(each["step"])
            key = str(step._replace(fault=None)), each["part"]
            n_commits = later["sequence"] - each["sequence"]
            took_place = later["after"] == each["token"] or (
                n_commits > 0 and (key in acknowledged or n_commits > 1)
            )
            is_empty = all(  # a segment was closed, or a flush was repeated
                end == new_end and new_start < 0
                for _, end, new_end, new_start in each["partitions"]
            )
            if took_place and not is_empty:
                self._take(step, each, begun.get(key[0], 0), acknowledged.get(key))
            self._take_spark(spark, n_commits - took_place)

    def _take(self, step: Step, event: _Event, begun: int, acknowledged: int | None) -> None:
        """One decision that took place."""
        if step.name in OPERATIONS:
            scene = scene_of(self._run, Path(), self._model, step, event["now_ms"])
            self._append(OPERATIONS[step.name].plan(scene).effects[event["part"]], event["at"])
        moment = self.moments[-1]
        is_replaced = False
        for name, end, new_end, new_start in event["partitions"]:
            topic, _, number = name.rpartition("-")
            log = self._model.log(topic, int(number))
            start = max(log.start, new_start) if step.name not in OPERATIONS else log.start
            is_replaced |= start > moment.get(name, (0, 0))[0]
            if (moment.get(name, (0, 0))[1], log.end) != (end, new_end) or start < new_start:
                what = f"{name}: from {end} to {new_end}, starting at {new_start}; the model has"
                self._fail("a commit has other offsets", f"{step}: {what} {log}", event["at"])
            if step.name == "retaining":
                self._judge_retention(event, topic, name, moment[name][0], start)
        logs = dict(self._model.logs)
        names = {each[0] for each in event["partitions"]}
        for where, log in logs.items():
            if str(where) not in names and (log.start, log.end) != moment.get(str(where), (0, 0)):
                self._fail("a commit leaves rows out", f"{step}: {where}", event["at"])
        for name, *_, new_start in event["partitions"]:
            where = TopicPartition(name.rpartition("-")[0], int(name.rpartition("-")[2]))
            if new_start >= 0 and where in logs:
                logs[where] = logs[where].starting_at(new_start)
        self._note(
            step,
            event["part"],
            begun,
            event["at"],
            acknowledged,
            replace(self._model, logs=logs),
            is_replaced=is_replaced,
        )

    def _take_spark(self, jobs: Iterator[_Event], n_jobs: int) -> None:
        ends = {each["number"]: each["at"] for each in self.of("spark committed")}
        for each in (next(jobs) for _ in range(n_jobs)):
            step = Step("append_to_spark", each["number"])
            rows = spark_rows(self._run, each["number"])
            topic = next(iter(self._run.topics))
            self._append(
                partial(_with_rows, topic, self._run.topics[topic], rows),
                each["at"],
            )
            self._note(
                step,
                0,
                each["at"],
                each["at"],
                ends.get(each["number"]),
                self._model,
                is_replaced=False,
            )

    def _append(self, effect: Callable[[Model], Model], decided: int) -> None:
        """Add the rows of a commit to the history; the model keeps none."""
        after = effect(self._model)
        for each, log in after.logs.items():
            history = self._history.setdefault(str(each), _History())
            for row in log.rows:
                history.append(row, decided)
        bare = {each: PlainLog(log.start, log.end) for each, log in after.logs.items()}
        self._model = replace(after, logs=bare)

    def _note(
        self,
        step: Step,
        part: int,
        begun: int,
        decided: int,
        acknowledged: int | None,
        model: Model,
        *,
        is_replaced: bool,
    ) -> None:
        self._model = model
        moment = {**self.moments[-1], **{str(k): (v.start, v.end) for k, v in model.logs.items()}}
        changed = {
            name.rpartition("-")[0]
            for name, bounds in moment.items()
            if bounds != self.moments[-1].get(name)
        }
        self.moments.append(moment)
        self.commits.append(
            _Commit(step, part, begun, decided, acknowledged, is_replaced, frozenset(changed))
        )

    # Writers.

    def _judge_retention(
        self, event: _Event, topic: str, name: str, start: int, new_start: int
    ) -> None:
        """Retention takes no record that is too young, and leaves as many bytes as it has to."""
        gone = self._history[name].times[start:new_start] if name in self._history else []
        if topic == "timed" and gone and max(gone) > event["by_ms"] - self._run.timed_ms:
            what = f"{name}: a record of {max(gone)} is gone at {event['by_ms']}"
            self._fail("retention by time", what, event["at"])
        left = event["left"].get(name, self._run.sized_bytes)
        if topic == "sized" and left < self._run.sized_bytes:
            self._fail("retention by size", f"{name}: {left} bytes are left", event["at"])
        if topic not in {"timed", "sized"} and gone:
            self._fail("retention of a topic that keeps all", name, event["at"])

    def _judge_writers(self) -> None:
        for each in self.of("unexpected"):
            what = f"writer: {each['text'].strip().splitlines()[-1][:60]}"
            self._fail(what, each["text"], each["at"])
        for each in self.of("death"):
            self._fail(f"death by {each['name']}", each["text"], each["at"])
        known = Counter((str(each.step._replace(fault=None)), each.part) for each in self.commits)
        for (step, part), n_times in known.items():
            if n_times > 1:
                self._fail("a job was committed twice", f"{step}, part {part}: {n_times} times")
        wrote = ("append", "append_large", "append_to_both", "overwrite")
        for each in self.of("acknowledged"):
            step, part = each["step"].partition("!")[0], each["part"]
            if step.partition(":")[0] in wrote and (step, part) not in known:
                self._fail("an acknowledged job was not committed", step, each["at"])
        for each in self.of("failed"):
            step = each["step"].partition("!")[0]
            if any((step, part) in known for part in range(each["part"], 4)):
                self._fail("a job that failed was committed", each["step"], each["at"])

    # Readers.

    def _judge_looks(self) -> None:
        for each in self.of("bad read"):
            what = f"{each['kind']} [{each['level']}]: {each['error']}"
            self._fail(what, each["text"], each["at"])
        for each in self.of("bad warning"):
            self._fail("a warning that recommends logEnd", each["text"], each["at"])
        for each in self.of("look"):
            if each["seen"]:
                self._judge_look(each)

    def _judge_look(self, event: _Event) -> None:
        first, last = self._between(event["begun"], event["planned"])
        fewest: tuple[int, str] | None = None
        for number in range(first, last + 1):
            lines = self.difference(event, self.moments[number])
            if not lines:
                return
            text = f"against moment {number}{self._told(number)}:\n" + "\n".join(lines)
            fewest = min(fewest or (len(lines) + 1, ""), (len(lines), text))
        assert fewest is not None
        what = f"it is none of the moments {first} to {last} of {len(self.commits)}; {fewest[1]}"
        title = f"{event['kind']} [{event['level']}]: not one moment of the directory"
        self._fail(title, what, event["at"])

    def difference(self, event: _Event, moment: _Moment) -> list[str]:
        """A line for each partition in which a look differs from a moment."""
        lines = []
        for name in sorted({*moment, *event["seen"]} - {*event["changed"]}):
            ranges, total = event["seen"].get(name, ([], 0))
            start, end = moment.get(name, (0, 0))
            start = max(start, event.get("from", {}).get(name, 0))
            topic = name.rpartition("-")[0]
            if event.get("topics") and topic not in event["topics"]:
                continue
            if topic in self._run.compacted:
                why = self._misfit(name, ranges, total, start, end, event["at"])
            elif [list(each) for each in ranges] != ([[start, end]] if start < end else []):
                why = f"offsets {ranges}, not [{start}, {end})"
            else:
                is_equal = start >= end or total == self._history[name].sum(start, end)
                why = "" if is_equal else f"other rows at the offsets {ranges}"
            if why:
                lines.append(f"  {name}{'' if name in event['seen'] else ' (not listed)'}: {why}")
        return lines

    def _misfit(
        self, name: str, ranges: Sequence[Sequence[int]], total: int, start: int, end: int, at: int
    ) -> str:
        """Why these rows are not what compaction may have left of a log."""
        if name not in self._history:
            return f"offsets {ranges}" if ranges else ""
        newer, keys, tombstones, decided, sums = self._history[name].arrays()
        seen = np.zeros(len(newer), bool)
        for begin, stop in ranges:
            seen[begin:stop] = True
        if seen[:start].any() or seen[end:].any():
            return f"offsets {ranges} are outside of [{start}, {end})"
        if int(np.bitwise_xor.reduce(sums[seen], initial=0)) != total:
            return "other rows at the same offsets"
        here = np.zeros(len(newer), bool)
        here[start:end] = True
        is_last = here & (newer >= end)
        is_old = tombstones & (decided + self._run.tombstones_ms * 10**6 <= at)
        lost = np.flatnonzero(is_last & ~seen & ~is_old)
        if len(lost):
            return f"the last rows of their keys are gone: {lost[:5].tolist()}"
        removed = keys[is_last & ~seen]
        back = np.flatnonzero(seen & np.isin(keys, removed))
        return f"deleted rows are back: {back[:5].tolist()}" if len(back) else ""

    def _judge_changes(self) -> None:
        for each in self.of("changed"):
            if not self._is_justified(each):
                what = f"{each['kind']} [{each['level']}]: LogChangedError without a reason"
                self._fail(what, f"{each['topic']}: {each['text']}", each["at"])

    def _is_justified(self, change: _Event) -> bool:
        """Whether an overwrite, retention or compaction explains the error.

        Reads that are planned find the files of earlier records for as long as the delay.
        """
        delay = self._run.delay_ms * 10**6 if change["is_planned"] else 0
        if change["topic"] in self._run.compacted and (delay or "compacted" in change["text"]):
            # When it ran is not noted.
            return bool(change["begun"] + 0.95 * delay <= change["at"])
        first, _ = self._between(change["begun"], change["at"])
        return any(
            each.is_replaced
            and change["topic"] in each.topics
            and each.begun + delay <= change["at"]
            for each in self.commits[first:]
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
            f"{name} {self.commits[i].step}, {sorted(self.commits[i].topics)}"
            for name, i in (("after", at - 1), ("before", at))
            if 0 <= i < len(self.commits)
        ]
        return f" ({'; '.join(around)})" if around else ""


def tally(events: Iterable[_Event]) -> Counter[str]:
    """How often each thing has happened."""
    counts: Counter[str] = Counter()
    for each in events:
        what = each["what"]
        counts[f"event: {what}"] += 1
        if what == "acknowledged":
            counts[f"job: {each['step'].partition(':')[0]}"] += 1
        elif what == "begun":
            counts["job: again"] += each["again"]
        elif what in {"look", "bad read"}:
            counts[f"read: {each['kind']}, {each['level']}"] += 1
        elif what == "kept up":
            counts[f"upkeep: {each['kind']}"] += 1
            counts[f"upkeep: {each['kind']}, partitions or files"] += each["n"]
        elif what == "warning" and each["text"].startswith(_RECOVERED):
            counts[f"recovery: {each['text'].split()[0]}"] += 1
    return counts


def table(counts: Counter[str]) -> str:
    """Counts, sorted by name."""
    return "\n".join(f"{counts[name]:12,d}  {name}" for name in sorted(counts))


def report(failures: Sequence[Failure], begun: int) -> str:
    """The failures of each kind: their number, the time of the first, and its text."""
    kinds: dict[str, list[Failure]] = {}
    for each in sorted(failures, key=lambda failure: failure.at):
        kinds.setdefault(each.what, []).append(each)
    lines = [f"{len(failures)} failures"]
    for what, found in kinds.items():
        seconds = (found[0].at - begun) / 1e9
        lines.append(f"\n{len(found)} x {what}, first after {seconds:.1f} s")
        lines += [f"    {line}" for line in found[0].text.splitlines()[-25:]]
    return "\n".join(lines)
