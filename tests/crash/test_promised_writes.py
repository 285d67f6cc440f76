"""Random mirrors between two directories and a log in a store, beside jobs that may be repeated.

Each place has jobs of its own: numbered writes and a stream, new ones and repeated ones.  Mirrors
go up, down and across, of some topics or partitions, of older copies, and after compactions; many
are refused.  The query writes to several topics.  After each step, in each place:

- a version or a batch never goes back while all of its rows are there;
- a version or a batch that counts has its rows in all partitions that the place has, and the place
  has one of them.

In some sequences, directories forget where the records lie, as if an earlier version of segmentlog
had written them.  Then a version may go back.
"""

import itertools
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.errors import LogDirectoryError, StreamBatchError
from segmentlog.store.readable import survey
from segmentlog.txn.state import STATE_FILE, State, StreamBatch
from segmentlog.writes.config import WriteRequest
from segmentlog.writes.job import WriteJob

_SEED = int(os.environ.get("PROMISES_SEED", "1"))
_SECONDS = float(os.environ.get("PROMISES_SECONDS", "3600"))
_LENGTH = 25

_TOPICS = ("t", "s")
_N_PARTITIONS = 2
#: A write that counts once: the name of a numbered write, and its topic; or that of a query, and
#: an empty text.
_Name = tuple[str, str]
_NUMBERED: tuple[_Name, ...] = tuple(itertools.product("xy", _TOPICS))
_QUERY: _Name = ("query", "")


def rows_of(name: _Name, number: int) -> pa.Table:
    """The rows of a write, the same in each place, in one partition or in several."""
    rng = random.Random(f"{name} {number}")
    partitions = rng.choice(([0], [1], [0, 1], [0, 1, 1]))
    values = [f"{name[0]} {number} {n} {at}" for n, at in enumerate(partitions)]
    topics = rng.choice((*([each] for each in _TOPICS), _TOPICS))
    return pa.table(
        {
            "key": values,
            "value": values,
            "topic": [name[1] or rng.choice(topics) for _ in partitions],
            "partition": pa.array(partitions, pa.int32()),
        }
    )


class World:
    """The places, and what each of them promises."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng, self.counts, self.forgets = rng, Counter[str](), rng.random() < 0.3
        self.cut = ""  # the place in which the last mirror has cut off records
        self.directories = [root / "a", root / "b"]
        for each in self.directories:
            each.mkdir()
        self.old = root / "old"
        self.places = [*map(str, self.directories), f"bucket+file://{root}/u"]

    def state(self, place: str) -> State:
        if "://" in place:
            if not (Path(place.removeprefix("bucket+file://")) / "segmentlog").exists():
                return State()
            place = segmentlog.open_log_dir(place).paths[0]
            survey(place)
        return State.read(place)

    def promised(self, place: str) -> dict[_Name, int]:
        """The last number of each write that counts."""
        state = self.state(place)
        found = {key: version for key, (version, _) in state.versions.items()}
        batches = {(query, ""): batch.number for query, (batch, _) in state.streams.items()}
        return found | batches

    def rows(self, place: str) -> dict[tuple[str, int], Counter[str]]:
        """The values in each partition that the place has."""
        try:
            opened = segmentlog.open_log_dir(place)
        except LogDirectoryError:
            return {}
        return {
            (topic, partition): Counter(
                each.decode()
                for each in opened.log(topic, partition)
                .scan(columns=["value"])
                .read_all()["value"]
                .to_pylist()
            )
            for topic, partition in opened.topic_partitions()
        }

    def records(self, place: str) -> set[tuple[object, ...]]:
        """All records, each with its place and its time."""
        try:
            table = segmentlog.read(place)
        except LogDirectoryError:
            return set()
        columns = ("topic", "partition", "offset", "timestamp", "value")
        return {*zip(*(table[each].to_pylist() for each in columns), strict=True)}

    def has_all(self, rows: dict[tuple[str, int], Counter[str]], name: _Name, number: int) -> bool:
        """Whether a place has all rows of a write, as far as it has their partitions."""
        places = [
            (row["value"], found)
            for row in rows_of(name, number).to_pylist()
            if (found := rows.get((row["topic"], row["partition"]))) is not None
        ]
        return bool(places) and all(found[value] for value, found in places)

    def write(self, place: str) -> None:
        """A new numbered write, or the last one again."""
        name = self.rng.choice(_NUMBERED)
        last = self.promised(place).get(name, -1)
        version = max(last + self.rng.choice((0, 1, 1)), 0)
        with segmentlog.open_writer(
            place, name[1], num_partitions=_N_PARTITIONS, txn_app_id=name[0], txn_version=version
        ) as writer:
            writer.append(rows_of(name, version).drop_columns("topic"))

    def stream(self, place: str) -> None:
        """The next batch of the query, or the last one again."""
        last = self.promised(place).get(_QUERY, -1)
        number = max(last + self.rng.choice((0, 1, 1)), 0)
        request = WriteRequest(place, stream="/checkpoints/q", num_partitions=_N_PARTITIONS)
        job = WriteJob.begin(request)
        stager = job.stager(0)
        try:
            for batch in rows_of(_QUERY, number).to_batches():
                stager.add(batch)
            staged = stager.finish()
        except BaseException:
            stager.discard()
            raise
        job.commit([staged], batch=StreamBatch("query", number, "run"))

    def mirror(self) -> None:
        """A mirror of all or a part, from one place or from an older copy of one to another."""
        source, to = self.rng.sample(self.places, 2)
        if self.old.exists() and self.rng.random() < 0.3:
            source = str(self.old)
        topics = self.rng.choice(((), (), ("t",), ("s",)))
        partitions = self.rng.choice(((), (), (0,), (1,)))
        told: list[str] = []
        before = self.records(to)
        try:
            segmentlog.mirror(
                source,
                to=to,
                topics=topics,
                partitions=partitions,
                on_failure=self.rng.choice((None, lambda name, _: told.append(name))),
            )
        finally:
            # Also before an error of another topic.  Equal rows may come at once, with the other
            # log, which does not count them.
            self.cut = to if before - self.records(to) else ""
        if told:
            raise LogDirectoryError(to, f"{told} are refused")

    def keep_copy(self) -> None:
        """Keep a copy of a directory, as a snapshot of its disk."""
        shutil.rmtree(self.old, ignore_errors=True)
        shutil.copytree(self.rng.choice(self.directories), self.old)

    def compact(self) -> None:
        """A compaction: each key is there once, so it removes no row."""
        settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        path = self.rng.choice(self.places)
        if "://" not in path:
            segmentlog.compact(path, settings=settings, roll=True, purge=True)
        elif self.promised(path):
            segmentlog.compact(path, settings=self.rng.choice((None, settings)))

    def forget_spans(self) -> None:
        """Take from a directory what earlier versions of segmentlog have not noted."""
        path = self.rng.choice(self.directories) / STATE_FILE
        if self.forgets and path.exists():
            found = json.loads(path.read_bytes())
            found["spans"] = []
            path.write_text(json.dumps(found))

    def step(self) -> str:
        """One step; what it was."""
        what = self.rng.choice(
            ("write", "write", "write", "stream", "stream", "mirror", "mirror", "mirror", "mirror",
             "keep_copy", "compact", "compact", "forget_spans")
        )  # fmt: skip
        self.cut = ""
        before = {each: (self.promised(each), self.rows(each)) for each in self.places}
        try:
            if what in {"write", "stream"}:
                getattr(self, what)(self.rng.choice(self.places))
            else:
                getattr(self, what)()
        # A place may lack all logs or a partition, records may differ, a topic may have been made
        # in two places.
        except (
            LogDirectoryError,
            StreamBatchError,
            segmentlog.InvalidRecordError,
            segmentlog.OptionError,
        ) as error:
            what = f"refused {what}"
            self.counts[f"{what}: {type(error).__name__}"] += 1
        except segmentlog.UnknownTopicOrPartitionError:
            what = f"refused {what}"
        self.counts[what] += 1
        for place, (promised, rows) in before.items():
            after, now = self.promised(place), self.rows(place)
            for name, number in promised.items():
                is_there = self.has_all(rows, name, number) and self.has_all(now, name, number)
                may_go_back = self.forgets or place == self.cut
                assert after.get(name, -1) >= number or not is_there or may_go_back, (
                    f"{what}: {name} went back from {number} to {after.get(name)} in {place}"
                )
            for name, number in after.items():
                assert self.has_all(now, name, number), (
                    f"{what}: {name} counts up to {number} in {place}, and rows are missing"
                )
        return what


def played(root: Path, seed: int) -> Counter[str]:
    """One sequence; a failure names its seed."""
    world, done = World(root, random.Random(seed)), list[str]()
    try:
        while len(done) < _LENGTH:
            done.append(world.step())
    except AssertionError as error:
        message = f"seed {seed}, after {len(done)} steps: {error}"
        raise AssertionError(message) from error
    return world.counts


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 2))
def test_what_was_promised_stays(tmp_path: Path, seed: int) -> None:
    counts = played(tmp_path, seed)
    assert counts["mirror"] + counts["refused mirror"] > 1, counts


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_what_was_promised_stays_for_hours(tmp_path: Path, say: Callable[[str], None]) -> None:
    """Further seeds are played until the time is over."""
    counts, seed = Counter[str](), _SEED
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        root = tmp_path / str(seed)
        root.mkdir()
        counts += played(root, seed)
        shutil.rmtree(root)
        seed += 1
    say(f"{seed - _SEED:,} sequences from seed {_SEED}: {dict(counts)}")
    assert all(counts[each] for each in ("mirror", "refused mirror", "write", "stream"))
