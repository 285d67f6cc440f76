"""How many requests reads of a log in a store take, and how many one after the other."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from faulty_store import FaultyClient, MemoryStore, client_at

import segmentlog
from segmentlog.bucket import checkpoint_objects
from segmentlog.bucket.checkpoint_objects import checkpoint_key, checkpoint_number
from segmentlog.bucket.checkpoints import encode_checkpoint
from segmentlog.bucket.commits import Commit
from segmentlog.bucket.disk import opened_extent
from segmentlog.bucket.extents import PlacedExtent, Topic
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import ListedObject
from segmentlog.bucket.sequence import Sequence, commit_key, sequence_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.model import TopicPartition
from segmentlog.store.paths import BucketLocation
from segmentlog.store.remote.object_store import PIECE_BYTES

_N_COMMITS = 40


class SlowOnce(FaultyClient):
    """A client whose first read is answered once so many others were."""

    def __init__(self, store: MemoryStore, n_others: int) -> None:
        super().__init__(store)
        self._turn, self._others = threading.Lock(), threading.Semaphore(0)
        self._n_others, self._is_first = n_others, True

    def read(self, key: str, start: int, n_bytes: int) -> bytes:
        with self._turn:
            is_first, self._is_first = self._is_first, False
        for _ in range(self._n_others if is_first else 0):
            assert self._others.acquire(timeout=60)
        found = super().read(key, start, n_bytes)
        self._others.release()
        return found


class OldLists(FaultyClient):
    """A client whose lists lack the third commit."""

    def list(self, prefix: str, *, after: str = "") -> Iterator[ListedObject]:
        return (each for each in super().list(prefix, after=after) if each.key != commit_key(3))


class Beside(FaultyClient):
    """A client whose checkpoints come once a commit was asked for."""

    def __init__(self, store: MemoryStore, number: int) -> None:
        super().__init__(store)
        self._number, self._is_asked = number, threading.Event()

    def get(self, key: str) -> bytes | None:
        if key == commit_key(self._number):
            self._is_asked.set()
        if key.startswith("segmentlog/checkpoints/"):
            assert self._is_asked.wait(60)
        return super().get(key)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    """A log of small commits, whose records are an hour younger from commit to commit."""
    store = MemoryStore()
    root = client_at(FaultyClient(store)).root
    config = segmentlog.ProducerConfig(use_timestamps=True)
    with segmentlog.open_writer(root, "orders", config=config) as writer:
        for number in range(_N_COMMITS):
            times = pa.array([number * 3_600_000], pa.timestamp("ms", "UTC"))
            writer.append(pa.table({"value": [str(number)], "timestamp": times}))
            writer.flush()
    return store


def test_small_extents_are_read_side_by_side(store: MemoryStore) -> None:
    """More are asked for than a process has requests under way: none waits for the slowest."""
    location = client_at(SlowOnce(store, _N_COMMITS - 1))
    found = segmentlog.open_log_dir(location.root).log("orders", 0).scan(use_threads=False)
    values = [each.decode() for each in found.read_all()["value"].to_pylist()]
    assert values == [str(number) for number in range(_N_COMMITS)]


@pytest.mark.parametrize(("damaged", "batch"), [(1, 0), (20, 1), (32, 1), (33, 0)])
def test_damage_in_a_small_extent_is_named_where_it_is(damaged: int, batch: int) -> None:
    """Small extents are decoded together, and all rows before the damage are found."""
    store = MemoryStore()
    writer, reader = (client_at(FaultyClient(store)) for _ in range(2))
    config = segmentlog.ProducerConfig(batch_size=100)
    with segmentlog.open_writer(writer.root, "orders", config=config) as opened:
        for number in range(_N_COMMITS):
            opened.append(pa.table({"value": [f"{number} {at}".ljust(60) for at in range(2)]}))
            opened.flush()
    key = sequence_at(writer).known.logs[TopicPartition("orders", 0)].objects[damaged]
    data = bytearray(store.held[key])
    assert len(data) % 2 == 0
    at = batch * len(data) // 2
    data[at + len(data) // 2 - 1] ^= 1
    store.put(key, bytes(data))
    rows = list[str]()
    log = segmentlog.open_log_dir(reader.root).log("orders", 0)

    def read() -> None:
        for found in log.scan(use_threads=False):
            rows.extend(each.decode().strip() for each in found["value"].to_pylist())

    with pytest.raises(segmentlog.CorruptLogError) as caught:
        read()
    expected = [f"{number} {at}" for number in range(_N_COMMITS) for at in range(2)]
    assert rows == expected[: 2 * damaged + batch]
    assert caught.value.path.endswith(f"orders-0/{2 * damaged:020d}.log")
    assert caught.value.position == at
    assert log.scan(2 * damaged + 2, use_threads=False).read_all().num_rows == 2 * (
        _N_COMMITS - damaged - 1
    )


@pytest.mark.parametrize("name", ["size", "end_offset", "base_offset"])
def test_what_does_not_fit_its_commit_is_decoded_alone(store: MemoryStore, name: str) -> None:
    log = sequence_at(client_at(FaultyClient(store))).known.logs[TopicPartition("orders", 0)]
    columns = {
        each: log.column(each)[5] for each in ("start", "size", "base_offset", "end_offset")
    }
    extent = PlacedExtent(
        "orders", 0, log.objects[5], n_records=1, max_timestamp=0, shift=5, **columns
    )
    data = store.held[extent.object]
    assert opened_extent(extent, data, "").whole() is not None
    other = extent._replace(**{name: getattr(extent, name) + (1 if name != "end_offset" else -1)})
    assert opened_extent(other, data, "").whole() is None
    assert opened_extent(extent, data[:-1], "").whole() is None


def test_a_scan_of_a_large_extent_asks_for_each_byte_once() -> None:
    """A window begins within a batch, whose header came with the window before."""
    store = MemoryStore()
    writer, reader = (client_at(FaultyClient(store)) for _ in range(2))
    config = segmentlog.ProducerConfig(codec=segmentlog.Codec.NONE)
    with segmentlog.open_writer(writer.root, "orders", config=config) as opened:
        opened.append(pa.table({"value": [b"x" * 1000] * 12_000}))
        opened.flush()
        store.requests.clear()
        opened.append(pa.table({"value": [b"x" * 1000] * 12_000}))
    log = segmentlog.open_log_dir(reader.root).log("orders", 0)
    store.requests.clear()
    assert log.scan(12_000, columns=["offset"], use_threads=False).read_all().num_rows == 12_000
    reads = [each for each in store.requests if each[0] == "read"]
    assert len(reads) <= 12_000_000 // PIECE_BYTES + 3  # the last piece, and two indexes


def test_a_look_up_by_time_reads_one_extent(store: MemoryStore) -> None:
    location = client_at(FaultyClient(store))
    log = segmentlog.open_log_dir(location.root).log("orders", 0)
    store.requests.clear()
    found = log.offset_for_timestamp(27 * 3_600_000 - 5)
    assert found == (27 * 3_600_000, 27)
    assert log.offset_for_timestamp(1 << 50) is None
    assert len(store.requests) <= 3


# --- many commits


def _grown(location: BucketLocation, n: int) -> None:
    """Append commits, each with an extent whose object nobody has written."""
    log = sequence_at(location)
    log.create()
    for _ in range(n):
        log.append(_next)


def _next(state: LogState) -> Commit:
    number = state.number + 1
    extent = PlacedExtent(
        "orders",
        0,
        f"data/abababababababab/{number}-cdcdcdcd.batches",
        0,
        70,
        number - 1,
        number,
        1,
        5,
        number - 1,
    )
    commit = Commit(number, f"token {number}", f"job {number}", number * 1000, extents=[extent])
    return commit if state.topics else replace(commit, created={"orders": Topic("A" * 22, 1)})


def test_who_is_far_behind_begins_with_a_checkpoint() -> None:
    store = MemoryStore()
    known, writer = client_at(Beside(store, 301)), client_at(FaultyClient(store))
    _grown(writer, 1)
    sequence_at(known).refresh()
    _grown(writer, 299)
    store.requests.clear()
    state = sequence_at(known).refresh()
    # The list, the hint, and the checkpoint beside the commits after it.
    kinds = [kind for kind, _ in store.requests]
    assert (state.number, kinds[0]) == (300, "list")
    assert store.requests[1] == ("get", "segmentlog/newest.json")
    assert len(kinds) <= 3 + 32
    assert encode_checkpoint(state) == encode_checkpoint(sequence_at(writer).known)
    store.requests.clear()
    found = Sequence(FaultyClient(store), known).refresh()
    assert encode_checkpoint(found) == encode_checkpoint(state)
    assert len(store.requests) <= 4 + 32  # the marker, the hint, its checkpoint, and the list


def test_a_commit_that_lists_do_not_show_yet_is_read() -> None:
    """Some stores list an object only a while after its creation."""
    store = MemoryStore()
    writer, known = client_at(FaultyClient(store)), client_at(OldLists(store))
    _grown(writer, 2)
    sequence_at(known).refresh()
    _grown(writer, 1)
    for each in (sequence_at(known), Sequence(OldLists(store), known)):
        assert 3 == each.refresh().number


def test_without_a_hint_the_newest_checkpoint_is_found_by_a_list() -> None:
    store = MemoryStore()
    location = client_at(FaultyClient(store))
    _grown(location, 100)
    expected = encode_checkpoint(sequence_at(location).known)
    del store.held["segmentlog/newest.json"]
    store.requests.clear()
    assert encode_checkpoint(Sequence(FaultyClient(store), location).refresh()) == expected
    assert len(store.requests) <= 5 + 8
    key = checkpoint_key(96)
    data = store.held[key]
    for at in (100, len(data) // 2, len(data) - 40, len(data) - 1):
        store.put(key, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert encode_checkpoint(Sequence(FaultyClient(store), location).refresh()) == expected


def test_checkpoints_are_the_rarer_the_larger_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took a hundred bytes a commit: after 500,000 commits, all had taken 391 GB."""
    monkeypatch.setattr(checkpoint_objects, "_ROWS_OF_COMMIT", 4)
    store = MemoryStore()
    location = client_at(FaultyClient(store))
    _grown(location, 300)
    numbers = sorted(filter(None, map(checkpoint_number, store.held)))
    # Two rows for each commit: an extent, and a job that has ended.
    assert numbers == [32, 64, 96, 128, 192, 256]
    assert Sequence(FaultyClient(store), location).refresh().number == 300
    swept = sweep_objects(location, 1e12, 0, dry_run=False)
    assert [*swept.keys] == [checkpoint_key(number) for number in numbers[:-3]]
    assert sorted(filter(None, map(checkpoint_number, store.held))) == numbers[-3:]
    store.put("segmentlog/newest.json", b"{}")
    assert Sequence(FaultyClient(store), location).refresh().number == 300


@pytest.mark.parametrize("damage", ["no hint", "no checkpoint", "another checkpoint"])
def test_who_is_far_behind_reads_all_commits_if_the_checkpoint_is_no_help(damage: str) -> None:
    store, other = MemoryStore(), MemoryStore()
    for each in (store, other):
        _grown(client_at(FaultyClient(each)), 1)
    known, writer = (client_at(FaultyClient(store)) for _ in range(2))
    sequence_at(known).refresh()
    _grown(writer, 99)
    if damage == "another checkpoint":
        _grown(client_at(FaultyClient(other)), 99)
    for key in [key for key in store.held if "newest" in key or "checkpoints" in key]:
        if damage == "another checkpoint":
            store.put(key, other.held[key])
        elif damage == "no checkpoint" or "newest" in key:
            del store.held[key]
    expected = encode_checkpoint(sequence_at(writer).known)
    assert encode_checkpoint(sequence_at(known).refresh()) == expected
    found = Sequence(FaultyClient(store), known).refresh()
    assert encode_checkpoint(found) == expected
    for key in [key for key in store.held if "checkpoints" in key]:
        del store.held[key]
    del store.held[commit_key(50)]
    with pytest.raises(segmentlog.CorruptCheckpointError, match="the commit is missing"):
        Sequence(FaultyClient(store), known).refresh()


def test_a_checkpoint_that_nobody_could_read_is_not_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint_objects, "MOST_WHOLE_BYTES", 2000)
    store = MemoryStore()
    location = client_at(FaultyClient(store))
    _grown(location, 40)
    assert "segmentlog compact joins small extents" in caplog.text
    assert not [key for key in store.held if "checkpoints" in key or "newest" in key]
    assert Sequence(FaultyClient(store), location).refresh().number == 40
