"""Random kills, lost answers and late requests, compared with a model of what was promised."""

import contextlib
import itertools
import random
from collections.abc import Callable

import pytest
from faulty_store import FaultyClient, Killed, MemoryStore, client_at, quick_settling

from segmentlog.bucket.data_objects import RELATIVE, StagedExtent, StagedObjects
from segmentlog.bucket.sequence import sequence_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import CommitInDoubtError, LogDirectoryError, StorageError
from segmentlog.txn.state import NumberedWrite, StreamBatch
from segmentlog.writes.bucket_job import BucketJob
from segmentlog.writes.config import WriteRequest

_TOPICS = ("orders", "clicks")
_PARTITIONS = 2


class _World:
    """A store, and what its clients were promised."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = MemoryStore()
        self.n_records = itertools.count(1)
        self.numbers = itertools.count()
        self.batches = itertools.count()
        self.certain: set[str] = set()  # writes that are in the log
        self.open: set[str] = set()  # writes of which nobody knows
        self.refused: set[str] = set()  # writes that certainly are not
        self.n_kills = 0

    def client(self) -> FaultyClient:
        client = FaultyClient(self.store, self.random)
        client.others = self.meanwhile
        return client

    def meanwhile(self) -> None:
        """Act as another client: write, or sweep so early that jobs are ended that still live."""
        if self.random.random() < 0.7:
            self.write(FaultyClient(self.store))
            return
        client = FaultyClient(self.store, self.random)
        client.share = 0.5
        client.others = self._staged_before()
        try:
            sweep_objects(client_at(client), -1, -1, dry_run=False)
        except (LogDirectoryError, StorageError):
            pass  # there is no log yet, or the store has failed
        except Killed:
            self.n_kills += 1

    def _staged(
        self, client: FaultyClient, job: BucketJob, name: str, sizes: int
    ) -> list[StagedObjects]:
        """Two tasks' objects; their bytes are the name of the write, once for each record.

        `sizes`: chooses their numbers of records, which are the same if a write is repeated.
        """
        found = []
        for task in range(2):
            key = f"data/{job.token}/{task}-{next(self.n_records):08x}.batches"
            extents, data = [], b""
            for topic in _TOPICS:
                for partition in range(_PARTITIONS):
                    sizes, n = sizes // 3, sizes % 3 + 1
                    line = f"{name}/{topic}-{partition}/{task}\n".encode() * n
                    extents.append(
                        StagedExtent(
                            topic, partition, key, len(data), len(line), n, RELATIVE, RELATIVE, 0
                        )
                    )
                    data += line
            client.put(key, [data])
            found.append(StagedObjects(tuple(extents)))
        return found

    def _staged_before(self) -> Callable[[], None]:
        """Commits a job whose objects are there already, once: a sweep may have ended it."""
        client, name = FaultyClient(self.store), f"staged{next(self.batches)}"
        request = WriteRequest(client_at(client).root, num_partitions=_PARTITIONS)
        job = BucketJob.begin_in_bucket(request)
        staged = self._staged(client, job, name, 5)

        def commit() -> None:
            with contextlib.suppress(LogDirectoryError):
                job.commit(staged)
                self.certain.add(name)

        return commit

    def write(self, client: FaultyClient) -> None:
        """A write of one client; repeated by new processes until it is done, if it may be."""
        kind = self.random.choice(["plain", "numbered", "stream"])
        number = next(self.batches)
        name = f"{kind}{number}"
        numbered = NumberedWrite(name, 0) if kind == "numbered" else None
        batch = StreamBatch(name, 0, "run") if kind == "stream" else None
        sizes = self.random.getrandbits(30)
        while True:
            location = client_at(client)
            request = WriteRequest(location.root, num_partitions=_PARTITIONS, numbered=numbered)
            try:
                job = BucketJob.begin_in_bucket(request)
                job.commit(self._staged(client, job, name, sizes), batch=batch)
            except CommitInDoubtError:
                self.open.add(name)
            except StorageError:
                self.refused.add(name)
            except LogDirectoryError:  # a sweep has ended the job
                self.refused.add(name)
            except Killed:
                self.n_kills += 1
                self.open.add(name)
            else:
                self.open.discard(name)
                self.refused.discard(name)
                self.certain.add(name)
                return
            if kind == "plain":
                if name in self.open:
                    self.refused.discard(name)
                return
            client = FaultyClient(self.store, self.random)  # the next process
            client.share = 0.1

    def check(self) -> None:
        """Compare what a new reader finds with what was promised.

        A sweep finds all objects that no record lies in.
        """
        location = client_at(FaultyClient(self.store))
        sweep_objects(location, -1, -1, dry_run=False)
        state = sequence_at(location).refresh()
        assert state.objects() == {key for key in self.store.held if key.startswith("data/")}
        found: dict[str, int] = {}
        for at, log in state.logs.items():
            columns, end = log.extents.columns, 0
            for i, key in enumerate(log.objects):
                assert columns["base_offset"][i] == end
                end = columns["end_offset"][i]
                start = columns["start"][i]
                data = self.store.held[key][start : start + columns["size"][i]]
                lines = data.decode().splitlines()
                assert len(lines) == columns["n_records"][i] == end - columns["base_offset"][i]
                assert len(set(lines)) == 1
                name, place, _ = lines[0].split("/")
                assert place == str(at)
                found[name] = found.get(name, 0) + 1
            assert end == log.end
        # Each write has two tasks with an extent for each partition: all of them once, or none.
        assert set(found.values()) <= {2 * len(_TOPICS) * _PARTITIONS}
        assert self.certain <= found.keys()
        assert found.keys() <= self.certain | self.open


def _play(seed: int, n_writes: int) -> _World:
    world = _World(seed)
    for _ in range(n_writes):
        world.write(world.client())
    while world.store.late:
        world.store.late.pop()()
    world.check()
    return world


@pytest.mark.parametrize("seed", range(32))
def test_each_write_is_there_once_or_not_at_all(seed: int, monkeypatch) -> None:
    quick_settling(monkeypatch)
    _play(seed, 12)


@pytest.mark.slow
def test_ten_thousand_kills(monkeypatch) -> None:
    quick_settling(monkeypatch)
    n_kills = 0
    for seed in itertools.count(1_000_000):
        n_kills += _play(seed, 60).n_kills
        if n_kills >= 10_000:
            break
