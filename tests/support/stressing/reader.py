"""A reader without a pause: ``reader DIRECTORY LEDGER HOW``; it ends with its standard input.

It checks at once that its reads agree with each other, and notes what it has seen, for
`stressing.verdict`. Long reads begin, are put aside, and continue later.
"""

import faulthandler
import itertools
import json
import logging
import os
import pickle
import random
import select
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numbered_jobs import LEVELS, Found, Look, RowsError, options_of, read_partition, scan_log

import segmentlog
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.planner import plan_slices
from segmentlog.errors import LogChangedError
from segmentlog.model import LogSlice, TopicPartition
from segmentlog.reads.log import Log
from stressing.ledger import Ledger, now
from stressing.plan import READS, SHORT_READS

_MOST_PENDING = 4
_Steps = Iterator[None]


def _scan_of(opened: segmentlog.LogDirectory, of: TopicPartition, level: str) -> Found:
    return scan_log(opened.log(*of), level)


class _Warnings(logging.Handler):
    """Counts of log lines, and of lines that advise to read undecided data."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.WARNING)
        self._ledger = ledger
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.counts[str(record.msg)] += 1
        if "logEnd" in text:
            self._ledger.note("bad warning", text=text)


class _Read:
    """One read, from its beginning to its note."""

    def __init__(self, ledger: Ledger, kind: str, level: str) -> None:
        self._ledger = ledger
        self.kind, self.level, self.begun = kind, level, now()
        self.planned = 0  # when its bounds were fixed, if that was not at its end
        self._seen: Look = {}
        self._changed: dict[str, str] = {}

    def partition(self, key: TopicPartition, read: Callable[[], Found]) -> None:
        """Read one partition, which may be gone."""
        try:
            self._seen[key] = read()
        except LogChangedError as error:
            self.changed(key, error)

    def changed(self, key: TopicPartition, error: LogChangedError) -> None:
        """Note that records of the read are gone, as the error says."""
        self._changed[str(key)] = str(error)
        fields = {"kind": self.kind, "level": self.level, "begun": self.begun}
        is_planned = bool(self.planned)
        self._ledger.note(
            "changed", topic=key.topic, text=str(error), is_planned=is_planned, **fields
        )

    def end(self) -> None:
        """Note the read."""
        self._ledger.note(
            "look", kind=self.kind, level=self.level, begun=self.begun,
            planned=self.planned or now(), changed=self._changed,
            seen={str(key): found for key, found in self._seen.items()},
        )  # fmt: skip

    def fail(self, what: str, text: str) -> None:
        """Note a result that no reader may get."""
        self._ledger.note(
            "bad read", kind=self.kind, level=self.level, begun=self.begun, error=what, text=text
        )


class Reader:
    """Reads of all kinds, at all levels.

    Parameters
    ----------
    directory : the log directory.
    ledger : what is written down.
    rng : what comes when.
    longest_seconds : that a read is put aside.
    """

    def __init__(
        self, directory: Path, ledger: Ledger, rng: random.Random, longest_seconds: float
    ) -> None:
        self._directory = directory
        self._ledger = ledger
        self._rng = rng
        self._longest = longest_seconds
        self._pending: list[tuple[int, _Read, _Steps]] = []
        self._kinds = self._in_turn()

    def _in_turn(self) -> Iterator[tuple[str, str]]:
        """Each kind at each level, in a random order each time; short kinds come more often."""
        while True:
            kinds = [*READS, *SHORT_READS]
            together = list(itertools.product(kinds, LEVELS))
            self._rng.shuffle(together)
            yield from together

    def step(self) -> None:
        """Continue a read that has waited long enough, or begin one."""
        due = [each for each in self._pending if each[0] <= now()]
        if due:
            self._pending.remove(due[0])
            self._go_on(*due[0][1:])
            return
        if len(self._pending) >= _MOST_PENDING:
            kind, level = self._rng.choice(SHORT_READS), self._rng.choice(list(LEVELS))
        else:
            kind, level = next(self._kinds)
        read = _Read(self._ledger, kind, level)
        begin = {
            "scan": self._scan, "slices": self._slices, "time": self._time, "held": self._held,
            "held time": self._time, "later": self._slices,
        }  # fmt: skip
        self._go_on(read, begin[kind](read))

    def finish(self) -> None:
        """Finish the reads that are put aside."""
        while self._pending:
            self._go_on(*self._pending.pop()[1:])

    def _go_on(self, read: _Read, steps: _Steps) -> None:
        """Continue a read until it is put aside, or to its end."""
        try:
            for _ in steps:
                due = now() + int(self._rng.uniform(0, self._longest) * 1e9)
                self._pending.append((due, read, steps))
                return
            read.end()
        except RowsError as error:
            read.fail("wrong rows", str(error))
        except Exception as error:  # noqa: BLE001 - any error: the test reports it
            read.fail(type(error).__name__, traceback.format_exc())

    # Each generator yields where it is put aside.

    def _scan(self, read: _Read) -> _Steps:
        opened = segmentlog.open_log_dir(self._directory)
        for each in opened.topic_partitions():
            read.partition(each, partial(_scan_of, opened, each, read.level))
        return
        yield

    def _held(self, read: _Read) -> _Steps:
        opened = segmentlog.open_log_dir(self._directory)
        listed = opened.topic_partitions()
        self._rng.shuffle(listed)
        touch = self._rng.choice(["nothing", "one", "all", "ends"])
        if touch == "ends":
            for each in listed:  # an overwrite may come between the opening and the look
                try:
                    opened.end_offsets([each], *LEVELS[read.level])
                except LogChangedError as error:
                    read.changed(each, error)
        elif touch != "nothing":
            for each in listed[: 1 if touch == "one" else len(listed)]:
                opened.log(*each)
        yield
        cut = self._rng.randrange(len(listed))
        for i, each in enumerate(listed):
            if i == cut:
                yield
            if self._rng.random() < 0.2:
                time.sleep(self._rng.uniform(0, 0.03))
            read.partition(each, partial(_scan_of, opened, each, read.level))

    def _slices(self, read: _Read) -> _Steps:
        max_bytes = self._rng.choice([200, 2000, 20_000, 200_000])
        options = ReadOptions.parse(options_of(self._directory, read.level, max_bytes))
        slices = plan_slices(options)
        read.planned = now()
        if read.kind == "later":
            pickled = pickle.dumps(slices)
            yield
            slices = pickle.loads(pickled)
        for key, group in itertools.groupby(slices, lambda each: TopicPartition(*each[:2])):
            planned: list[LogSlice] = list(group)
            read.partition(key, lambda: read_partition(key, planned, read.level))  # noqa: B023

    def _time(self, read: _Read) -> _Steps:
        opened = segmentlog.open_log_dir(self._directory)
        listed = opened.topic_partitions()
        is_first = self._rng.random() < 0.5
        wanted = self._rng.sample(listed, 2)
        for each in wanted:
            opened.log(*each)
        if read.kind == "held time":
            yield
        for each in wanted:
            try:
                self._look_up(opened.log(*each), read.level, is_first=is_first)
            except LogChangedError as error:
                read.changed(each, error)

    def _look_up(self, log: Log, level: str, *, is_first: bool) -> None:
        asked = [1_700_000_000_000 + self._rng.randint(-10, 100_200) for _ in range(8)]
        answers = {}
        if is_first:
            answers = {each: log.offset_for_timestamp(each, *LEVELS[level]) for each in asked}
        columns = ["offset", "timestamp"]
        rows = log.scan(columns=columns, **LEVELS[level]._asdict()).read_all()
        if not is_first:
            answers = {each: log.offset_for_timestamp(each, *LEVELS[level]) for each in asked}
        times = rows["timestamp"].cast("int64").to_numpy() // 1000
        for asked_ms, answer in answers.items():
            late = np.flatnonzero(times >= asked_ms)
            expected = rows["offset"][int(late[0])].as_py() if len(late) else None
            found = answer.offset if answer else None
            if found != expected:
                of = f"{len(rows)} rows, looked up {'before' if is_first else 'after'} the scan"
                what = f"{found} was found for {asked_ms}, a scan finds {expected}"
                raise RowsError(f"{log.topic_partition}: {what}; {of}")


def main(directory: Path, ledger: Ledger, how: dict[str, int]) -> None:
    """Read until standard input ends."""
    faulthandler.enable()
    os.nice(5)  # the writers and their parents need the processors more
    warnings = _Warnings(ledger)
    logger = logging.getLogger("segmentlog")
    logger.addHandler(warnings)
    rng = random.Random(f"{how['seed']} reader {how['slot']}")
    reader = Reader(directory, ledger, rng, how["longest_ms"] / 1000)
    print("ready", flush=True)
    sys.stdin.readline()
    while not select.select([sys.stdin], [], [], 0)[0]:
        reader.step()
    reader.finish()
    ledger.note("warnings", counts=warnings.counts)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Ledger(Path(sys.argv[2])), json.loads(sys.argv[3]))
