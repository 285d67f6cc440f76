"""A reader without a pause: ``reader DIRECTORY LEDGER RUN SLOT``; it ends with its standard input.

It notes what it has seen, for `random_operations.verdict`.  Long reads begin, are put aside, and
continue later.
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
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numbered_jobs import LEVELS, RowsError, options_of

import segmentlog
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.planner import plan_slices
from random_operations.ledger import Ledger, now
from random_operations.run import Run
from segmentlog.errors import LogChangedError
from segmentlog.model import LogSlice, ScanPolicy, TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.scan import scan_slice

#: Short kinds of reads; other kinds begin, are put aside, and continue later.
_SHORT = ("scan", "slices", "time", "dataset")
READS = (*_SHORT, "held", "held time", "later")

_MOST_PENDING = 4
_COLUMNS = ["offset", "key", "value"]
_Steps = Iterator[None]


class Seen(NamedTuple):
    """The rows of one partition: ranges of their offsets, and a sum of their contents."""

    ranges: list[tuple[int, int]]
    sum: int


def sum_of(offset: int, key: bytes | None, value: bytes | None) -> int:
    """What a row adds, by exclusive or, to the sum of a partition."""
    return zlib.crc32(repr((offset, key, value)).encode())


def seen_in(name: object, batches: Iterable[pa.RecordBatch]) -> Seen:
    """The rows with the columns ``offset``, ``key`` and ``value``.

    Raises `RowsError` if their offsets do not rise.
    """
    offsets: list[int] = []
    total = 0
    for each in batches:
        rows = [each.column(column).to_pylist() for column in _COLUMNS]
        offsets += rows[0]
        for row in zip(*rows, strict=True):
            total ^= sum_of(*row)
    if not offsets:
        return Seen([], 0)
    steps = np.diff(offsets)
    if (steps < 1).any():
        raise RowsError(f"{name}: offsets do not rise: {offsets[:40]}")
    cuts = [0, *(np.flatnonzero(steps > 1) + 1).tolist(), len(offsets)]
    return Seen([(offsets[a], offsets[b - 1] + 1) for a, b in itertools.pairwise(cuts)], total)


def _scan(log: Log, level: str) -> Seen:
    scan = log.scan(columns=_COLUMNS, **LEVELS[level]._asdict())
    return seen_in(log.topic_partition, scan)


def look(opened: segmentlog.LogDirectory, level: str) -> dict[str, Seen]:
    """All partitions, read by scans."""
    return {str(each): _scan(opened.log(*each), level) for each in opened.topic_partitions()}


class _Warnings(logging.Handler):
    """Finds log lines that advise to read undecided data."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.WARNING)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        if "logEnd" in record.getMessage():
            self._ledger.note("bad warning", text=record.getMessage())


class _Read:
    """One read, from its beginning to its note."""

    def __init__(self, ledger: Ledger, kind: str, level: str) -> None:
        self._ledger = ledger
        self.kind, self.level, self.begun = kind, level, now()
        self.planned = 0  # when its bounds were fixed, if that was not at its end
        self._seen: dict[str, Seen] = {}
        self._changed: dict[str, str] = {}

    def partition(self, key: TopicPartition, read: Callable[[], Seen]) -> None:
        """Read one partition, which may be gone."""
        try:
            self._seen[str(key)] = read()
        except LogChangedError as error:
            self.changed(key, error)

    def changed(self, key: TopicPartition, error: LogChangedError) -> None:
        """Note that records of the read are gone, as the error says."""
        self._changed[str(key)] = str(error)
        self._ledger.note(
            "changed",
            topic=key.topic,
            text=str(error),
            is_planned=bool(self.planned),
            kind=self.kind,
            level=self.level,
            begun=self.begun,
        )

    def end(self) -> None:
        """Note the read."""
        self._ledger.note(
            "look",
            kind=self.kind,
            level=self.level,
            begun=self.begun,
            planned=self.planned or now(),
            changed=[*self._changed],
            seen=self._seen,
        )

    def fail(self, what: str, text: str) -> None:
        """Note a result that no reader may get."""
        self._ledger.note("bad read", kind=self.kind, level=self.level, error=what, text=text)


class Reader:
    """Reads of all kinds, at all levels."""

    def __init__(self, directory: Path, ledger: Ledger, run: Run, rng: random.Random) -> None:
        self._directory, self._ledger, self._run, self._rng = directory, ledger, run, rng
        self._pending: list[tuple[int, _Read, _Steps]] = []
        self._kinds = self._in_turn()

    def _in_turn(self) -> Iterator[tuple[str, str]]:
        """Each kind at each level, in a random order each time; short kinds come more often."""
        while True:
            together = [*itertools.product([*READS, *_SHORT], LEVELS)]
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
            kind, level = self._rng.choice(_SHORT), self._rng.choice(list(LEVELS))
        else:
            kind, level = next(self._kinds)
        read = _Read(self._ledger, kind, level)
        begin = {
            "scan": self._scan,
            "slices": self._slices,
            "time": self._time,
            "held": self._held,
            "held time": self._time,
            "later": self._slices,
            "dataset": self._dataset,
        }
        self._go_on(read, begin[kind](read))

    def finish(self) -> None:
        """Finish the reads that are put aside."""
        while self._pending:
            self._go_on(*self._pending.pop()[1:])

    def _go_on(self, read: _Read, steps: _Steps) -> None:
        """Continue a read until it is put aside, or to its end."""
        try:
            for _ in steps:
                longest = self._run.longest_ms / 1000
                due = now() + int(self._rng.uniform(0, longest) * 1e9)
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
            read.partition(each, lambda: _scan(opened.log(*each), read.level))  # noqa: B023
        return
        yield

    def _dataset(self, read: _Read) -> _Steps:
        """One topic: a dataset raises an error for all of its partitions."""
        topic = self._rng.choice([*self._run.made])
        opened = segmentlog.open_log_dir(self._directory)
        others = [each for each in opened.topic_partitions() if each.topic != topic]
        try:
            table = segmentlog.dataset(
                opened, topics=topic, **LEVELS[read.level]._asdict()
            ).to_table(columns=["partition", *_COLUMNS])
        except LogChangedError as error:
            others = opened.topic_partitions()
            for each in others:
                if each.topic == topic:
                    read.changed(each, error)
            return
        for number in range(self._run.topics[topic]):
            rows = table.filter(pa.array(table["partition"].to_numpy() == number))
            rows = rows.sort_by("offset").to_batches()
            of = TopicPartition(topic, number)
            read.partition(of, partial(seen_in, of, rows))
        for each in others:
            read.partition(each, lambda: _scan(opened.log(*each), read.level))  # noqa: B023
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
            read.partition(each, lambda: _scan(opened.log(*each), read.level))  # noqa: B023

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
            read.partition(key, partial(self._tasks, key, [*group], read.level))

    def _tasks(self, key: TopicPartition, slices: list[LogSlice], level: str) -> Seen:
        """One partition, read as tasks read it."""
        batches: list[pa.RecordBatch] = []
        for each in slices:
            policy = ScanPolicy(LEVELS[level].isolation_level)
            rows = list(scan_slice(each, columns=_COLUMNS, policy=policy))
            n_rows, start, end = sum(batch.num_rows for batch in rows), *each[2:4]
            if n_rows != end - start and key.topic not in self._run.compacted:
                what = f"{n_rows} rows of the {end - start} of [{start}, {end}) were read"
                raise RowsError(f"{key}: {what}")
            batches += rows
        return seen_in(key, batches)

    def _time(self, read: _Read) -> _Steps:
        opened = segmentlog.open_log_dir(self._directory)
        exact = [
            each for each in opened.topic_partitions() if each.topic not in self._run.compacted
        ]
        is_first = self._rng.random() < 0.5
        wanted = self._rng.sample(exact, 2)
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
        """Look times up, and compare the answers with a scan."""
        asked = [time.time_ns() // 10**6 - self._rng.randint(-10, 6000) for _ in range(8)]
        answers = {}
        if is_first:
            answers = {each: log.offset_for_timestamp(each, *LEVELS[level]) for each in asked}
        rows = log.scan(columns=["offset", "timestamp"], **LEVELS[level]._asdict()).read_all()
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


def main(directory: Path, ledger: Ledger, run: Run, slot: int) -> None:
    """Read until standard input ends."""
    faulthandler.enable()
    os.nice(5)  # the writers and their parents need the processors more
    logging.getLogger("segmentlog").addHandler(_Warnings(ledger))
    reader = Reader(directory, ledger, run, random.Random(f"{run.seed} reader {slot}"))
    print("ready", flush=True)
    sys.stdin.readline()
    while not select.select([sys.stdin], [], [], 0)[0]:
        reader.step()
    reader.finish()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Ledger(Path(sys.argv[2])),
        Run(**json.loads(sys.argv[3])),
        int(sys.argv[4]),
    )
