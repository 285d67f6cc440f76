"""Random compactions, erasures and sweeps beside writers and readers, with kills and lost answers.

No record is lost but for a newer one of its key or for an erasure, none is repeated or moved, and
an erased one never comes back.
"""

import itertools
import math
import random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from faulty_store import FaultyClient, Killed, MemoryStore, client_at, quick_settling

import segmentlog
from segmentlog.bucket.sequence import sequence_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import CommitInDoubtError, LogChangedError, SegmentLogError
from segmentlog.model import LogSlice
from segmentlog.reads.scan import scan_slice

_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001"}
_KEYS = 4


class _Row(NamedTuple):
    key: str
    partition: int
    begun: int  # when the write began, and ended if it was acknowledged
    ended: float


class _Held(NamedTuple):
    """A read that was planned, and what it has to find."""

    client: FaultyClient
    slices: list[LogSlice]
    rows: dict[int, str]
    begun: int


class _World:
    def __init__(self, seed: int) -> None:
        self.random, self.store = random.Random(seed), MemoryStore()
        self.clock = itertools.count()
        self.rows: dict[str, _Row] = {}
        self.places: dict[str, tuple[int, int]] = {}  # partition and offset of what was seen
        self.erased: list[tuple[str, int, float, bool]] = []  # key, begin, end, and if it is done
        self.compacted: list[float] = []  # when compactions by key ended
        self.held: list[_Held] = []
        self.told: list[str] = []

    def client(self) -> FaultyClient:
        found = FaultyClient(self.store, self.random)
        found.share = self.random.choice([0.0, 0.05, 0.2])
        found.others = self.meanwhile
        return found

    def meanwhile(self) -> None:
        """Act as another client."""
        self.act(FaultyClient(self.store))

    def act(self, client: FaultyClient) -> None:
        """One operation; repeated by nobody."""
        location, begun = client_at(client), next(self.clock)
        root = location.root
        name = self.random.choice(["write"] * 4 + ["join", "join", "compact", "erase", "sweep"])
        key, ending = f"k{self.random.randrange(_KEYS)}", "done"
        new = {}
        if name == "write":
            parts = [self.random.randrange(2) for _ in range(3)]
            keys = [f"k{self.random.randrange(_KEYS)}" for _ in parts]
            new = {f"v{begun}.{i}": (keys[i], parts[i]) for i in range(3)}
            self.rows |= {each: _Row(*at, begun, math.inf) for each, at in new.items()}
        try:
            if name == "write":
                if self.random.random() < 0.3:  # as a writer does that has lost a number
                    sequence_at(location)._writes.heat()
                with segmentlog.open_writer(root, "t", num_partitions=2) as writer:
                    columns = {
                        "value": [*new],
                        "key": keys,
                        "partition": pa.array(parts, pa.int32()),
                    }
                    writer.append(pa.table(columns))
            elif not sequence_at(client_at(FaultyClient(self.store))).is_made():
                return
            elif name == "erase":
                self.erased.append((key, begun, math.inf, False))
                mine = len(self.erased) - 1
                segmentlog.erase(root, key, "t")
                self.erased[mine] = (key, begun, next(self.clock), True)
            elif name == "sweep":
                sweep_objects(client_at(client), -1, -1, dry_run=False)
            elif name == "join":
                segmentlog.compact(root)
            else:
                self.compacted.append(math.inf)
                mine = len(self.compacted) - 1
                segmentlog.compact(root, settings=_COMPACT)
                self.compacted[mine] = next(self.clock)
        except CommitInDoubtError:
            ending = "in doubt"
        except SegmentLogError as error:
            ending = f"refused: {error}"
            if name == "write":  # it certainly is not there, or a late request of it will come
                ending = "in doubt"
        except Killed:
            ending = "killed"
        if ending == "done" and name == "write":
            ended = next(self.clock)
            self.rows |= {each: _Row(*at, begun, ended) for each, at in new.items()}
        self.told.append(f"{begun} {name} {key if name == 'erase' else ''}: {ending}")

    def look(self) -> None:
        """Compare what a new process finds with what was promised."""
        location = client_at(FaultyClient(self.store))
        if not sequence_at(location).is_made() or not sequence_at(location).refresh().topics:
            return
        now, seen = next(self.clock), set[str]()
        for partition in range(2):
            log = segmentlog.open_log_dir(location.root).log("t", partition)
            found = log.scan(columns=["offset", "key", "value"]).read_all().to_pylist()
            offsets = [each["offset"] for each in found]
            assert offsets == sorted({*offsets})
            for each in found:
                value = each["value"].decode()
                assert value not in seen
                seen.add(value)
                row = self.rows[value]
                assert (row.key, row.partition) == (each["key"].decode(), partition)
                place = self.places.setdefault(value, (partition, each["offset"]))
                assert place == (partition, each["offset"])
            if found and self.random.random() < 0.5:
                client = FaultyClient(self.store)
                log = segmentlog.open_log_dir(client_at(client).root).log("t", partition)
                end = self.random.choice([log.log_end_offset, log.log_end_offset // 2])
                rows = {e["offset"]: e["value"].decode() for e in found if e["offset"] < end}
                self.held.append(_Held(client, log.slices(0, end), rows, now))
        for value, row in self.rows.items():
            ends = [end for key, _, end, _ in self.erased if key == row.key]
            may_be_erased = max(ends, default=0) > row.begun
            must_be = any(
                key == row.key and is_done and row.ended < begin
                for key, begin, _, is_done in self.erased
            )
            if value in seen:
                assert not must_be, value
                continue
            if row.ended == math.inf or may_be_erased:
                continue
            newer = [
                other
                for other, at in self.places.items()
                if self.rows[other].key == row.key
                and at[0] == row.partition
                and at[1] > self.places.get(value, at)[1] - (value not in self.places)
                and other != value
            ]
            assert newer, value
            assert max(self.compacted, default=0) > row.begun, value

    def read_held(self) -> None:
        """Go on with a read that was planned before."""
        if not self.held:
            return
        held = self.held.pop(self.random.randrange(len(self.held)))
        ends = [*self.compacted, *(end for _, _, end, _ in self.erased)]
        is_less = max(ends, default=0) > held.begun
        try:
            batches = (scan_slice(each, columns=["offset", "value"]) for each in held.slices)
            found = {
                row["offset"]: row["value"].decode()
                for batch in itertools.chain(*batches)
                for row in batch.to_pylist()
            }
        except LogChangedError:
            assert self.compacted, self.told
            return
        found = {offset: value for offset, value in found.items() if offset in held.rows}
        assert found.items() <= held.rows.items()
        if not is_less:
            assert found == held.rows


def _play(seed: int, n: int) -> Any:
    world = _World(seed)
    try:
        for _ in range(n):
            world.act(world.client())
            world.look()
            world.read_held()
        while world.store.late:
            world.store.late.pop()()
        world.look()
        while world.held:
            world.read_held()
        location = client_at(FaultyClient(world.store))
        sweep_objects(location, -1, -1, dry_run=False)
        objects = {key for key in world.store.held if key.startswith("data/")}
        assert objects == sequence_at(location).refresh().objects()
        world.look()
        found = segmentlog.verify(location.root) if objects else []
        assert [each for each in found if each.kind != "offset-gap"] == []
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}", *world.told]))
        raise
    return world


@pytest.mark.parametrize("seed", [1])
def test_upkeep_beside_writers_and_readers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_settling(monkeypatch)
    _play(seed, 5)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_upkeep_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_settling(monkeypatch)
    for seed in range(1000, 1200):
        _play(seed, 30)
