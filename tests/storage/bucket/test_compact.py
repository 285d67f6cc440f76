"""Compaction in an object store: extents are joined, keys keep one record, and nothing is lost."""

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from faulty_store import DyingClient, FaultyClient, Killed, MemoryStore, client_at

import segmentlog
from segmentlog.bucket.objects import ListedObject
from segmentlog.bucket.rewriting import Replacement
from segmentlog.bucket.sequence import sequence_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import (
    LogChangedError,
    LogDirectoryError,
    RemoteSegmentError,
)
from segmentlog.reads.scan import scan_slice
from segmentlog.store.paths import BucketLocation

_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def _process(store: MemoryStore) -> BucketLocation:
    return client_at(FaultyClient(store))


def _write(root: str, n: int, first: int = 0, **options: Any) -> None:
    """`n` commits of two records for each of two partitions."""
    for i in range(first, first + n):
        with segmentlog.open_writer(root, "orders", num_partitions=2, **options) as writer:
            rows = {
                "key": [f"k{(i + j) % 5}" for j in range(4)],
                "value": [f"v{i}-{j}" for j in range(4)],
                "partition": pa.array([0, 0, 1, 1], pa.int32()),
            }
            writer.append(pa.table(rows))


def _rows(root: str, topic: str = "orders") -> list[dict[str, Any]]:
    found = segmentlog.read(root, topic)
    return found.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()


def _extents(location: BucketLocation, partition: int = 0) -> int:
    logs = sequence_at(location).refresh().logs
    return logs[segmentlog.TopicPartition("orders", partition)].n_extents


def _sweep(store: MemoryStore) -> None:
    """Remove all that can be; what stays is what the state names."""
    location = _process(store)
    sweep_objects(location, -1, -1, dry_run=False)
    held = {key for key in store.held if key.startswith("data/")}
    assert held == sequence_at(location).refresh().objects()


def test_small_extents_are_joined_and_every_reader_finds_the_same() -> None:
    store = MemoryStore()
    mine, beside = _process(store), _process(store)
    _write(mine.root, 8)
    with segmentlog.open_writer(mine.root, "orders") as writer:  # a large one in between
        noise = [random.Random(seed).randbytes(600_000) for seed in range(2)]
        writer.append(pa.table({"value": noise, "partition": pa.array([0, 0], pa.int32())}))
    _write(mine.root, 8, 8)
    before = _rows(beside.root)
    planned = segmentlog.compact(mine.root, dry_run=True)
    assert [each.segments_before for each in planned] == [16, 16]
    done = segmentlog.compact(mine.root)
    assert [(e.segments_before, e.segments_after) for e in done] == [(16, 2), (16, 1)]
    assert [e.bytes_before - e.bytes_after for e in done] == [0, 0]
    assert [_extents(mine, each) for each in (0, 1)] == [3, 1]
    store.requests.clear()
    assert segmentlog.read(_process(store).root, "orders").num_rows == len(before)
    assert [kind for kind, _ in store.requests].count("read") <= 8
    assert _rows(beside.root) == _rows(mine.root) == _rows(_process(store).root) == before
    assert [*segmentlog.verify(mine.root)] == []
    assert segmentlog.compact(beside.root) == []
    _sweep(store)
    _write(beside.root, 1, 16)
    assert _rows(mine.root)[: len(before) // 2] == before[: len(before) // 2]
    assert len(_rows(mine.root)) == len(before) + 4


def test_batches_are_copied_byte_for_byte_but_for_base_offsets() -> None:
    store = MemoryStore()
    location = _process(store)
    _write(location.root, 5)
    log = sequence_at(location).refresh().logs[segmentlog.TopicPartition("orders", 1)]
    at = segmentlog.TopicPartition("orders", 1)
    old = b"".join(
        store.held[each.object][each.start : each.start + each.size][8:] for each in log.placed(at)
    )
    assert segmentlog.compact(location.root)
    (new,) = sequence_at(location).known.logs[at].placed(at)
    data = store.held[new.object][new.start : new.start + new.size]
    n = len(data) // 5
    pieces = [data[begin : begin + n] for begin in range(0, len(data), n)]
    assert b"".join(each[8:] for each in pieces) == old
    assert [int.from_bytes(each[:8], "big") for each in pieces] == [0, 2, 4, 6, 8]


def _appended(root: str) -> None:
    _write(root, 2, 90)


def _deleted(root: str) -> None:
    segmentlog.delete_records(root, "orders", 0, offset=3)


def _remade(root: str) -> None:
    segmentlog.delete_topic(root, "orders")
    _write(root, 3)


def _joined(root: str) -> None:
    segmentlog.compact(root)


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize(
    ("meanwhile", "done"),
    [(_appended, {0, 1}), (_deleted, {1}), (_remade, set()), (_joined, set())],
)
def test_a_partition_that_has_changed_meanwhile_drops_out(
    meanwhile: Callable[[str], None],
    done: set[int],
    by_key: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    mine, other = _process(store), _process(store)
    _write(mine.root, 6)
    if by_key:
        segmentlog.compact(mine.root)
        segmentlog.alter_settings(mine.root, "orders", _COMPACT)
    seen: list[dict[str, Any]] = []
    commit = Replacement.commit

    def after(self: Replacement) -> Any:
        monkeypatch.setattr(Replacement, "commit", commit)
        meanwhile(other.root)
        seen.extend(_rows(other.root))
        return commit(self)

    monkeypatch.setattr(Replacement, "commit", after)
    found = {each.partition for each in segmentlog.compact(mine.root)}
    if by_key and meanwhile is _deleted:  # the start is within the only extent
        done = {0, 1}
    assert found == done
    rows = _rows(other.root)
    assert rows == _rows(_process(store).root)
    if by_key:
        newest = {(each["partition"], each["key"]): each for each in seen}
        assert {(each["partition"], each["key"]): each for each in rows} == newest
    else:
        assert rows == seen
    gaps = [each for each in segmentlog.verify(mine.root) if each.kind != "offset-gap"]
    assert gaps == []
    _sweep(store)
    assert _rows(_process(store).root) == rows


@pytest.mark.parametrize("by_key", [False, True])
def test_a_reader_in_the_middle_finds_its_place_or_says_why_not(by_key: bool) -> None:
    store = MemoryStore()
    reader, other = _process(store), _process(store)
    _write(reader.root, 6)
    log = segmentlog.open_log_dir(reader.root).log("orders", 0)
    whole = log.slices(0, 12)
    part = log.slices(0, 5)
    expected = {each["offset"]: each["value"] for each in _rows(reader.root)[:12]}
    settings = _COMPACT if by_key else None
    segmentlog.compact(other.root, settings=settings)
    _sweep(store)

    def read(slices: Any) -> dict[int, bytes]:
        tables = [
            pa.Table.from_batches(scan_slice(each, columns=["offset", "value"])) for each in slices
        ]
        rows = pa.concat_tables(tables).to_pylist()
        return {each["offset"]: each["value"] for each in rows}

    found = read(whole)
    assert found.items() <= expected.items()
    if not by_key:
        assert found == expected
        assert read(part) == {offset: expected[offset] for offset in range(5)}
        return
    assert len(found) == 5
    with pytest.raises(LogChangedError, match="records that were written later"):
        read(part)
    opened = segmentlog.open_log_dir(reader.root).log("orders", 1)
    _write(other.root, 1)
    assert len(opened.scan(columns=["offset"]).read_all()) == 5
    segmentlog.compact(other.root, settings=_COMPACT)
    assert len(opened.scan(columns=["offset"]).read_all()) == 5  # the old objects are there
    _sweep(store)
    with pytest.raises(LogChangedError, match="records that were written later"):
        opened.scan(columns=["offset"]).read_all()
    assert segmentlog.open_log_dir(reader.root).log("orders", 0).cleaned_to == 14


def test_no_record_outlives_its_retention_because_it_was_joined_to_later_ones() -> None:
    location, day_ms = _process(MemoryStore()), 24 * 3600 * 1000
    config = segmentlog.ProducerConfig(use_timestamps=True)
    for day in range(12):
        with segmentlog.open_writer(location.root, "orders", config=config) as writer:
            times = pa.array([day * day_ms, -1], pa.int64()).cast(pa.timestamp("ms", "UTC"))
            writer.append(pa.table({"value": ["a", "b"], "timestamp": times}))
        segmentlog.compact(location.root, settings={"segment.ms": str(5 * day_ms)})
    assert _extents(location) == 3
    (first, *_) = segmentlog.open_log_dir(location.root).log("orders", 0).segments[1:]
    assert first.base_offset == 10


def test_a_segment_is_never_looked_up_in_another_ones_bytes() -> None:
    location = _process(MemoryStore())
    _write(location.root, 3)
    segments = segmentlog.open_log_dir(location.root).log("orders", 0).segments
    assert next(segments[1].headers(0)).header.base_offset == 2
    segmentlog.compact(location.root)
    segmentlog.open_log_dir(location.root)
    for each in segments[:3]:  # the first name is that of the new segment, too
        with pytest.raises(FileNotFoundError):
            next(each.headers(0))


def test_a_mirror_follows_what_was_joined_and_compacted(tmp_path: Path) -> None:
    location = _process(MemoryStore())
    _write(location.root, 2)
    segmentlog.mirror(location.root, to=tmp_path / "copy")
    for settings in (None, _COMPACT):
        segmentlog.compact(location.root, settings=settings)
        segmentlog.mirror(location.root, to=tmp_path / "copy")
    found = segmentlog.compare(location.root, tmp_path / "copy")
    assert {each.comparison for each in found} == {"equal"}
    assert _rows(str(tmp_path / "copy")) == _rows(location.root)


def test_keys_are_compacted_as_in_a_directory(tmp_path: Path) -> None:
    root = _process(MemoryStore()).root
    for i in range(3):
        with segmentlog.open_writer(root, "orders") as writer:
            keys = [f"k{j % (i + 4)}" for j in range(20)] + ["gone"]
            values = [*(f"v{i}-{j}" for j in range(20)), None if i else "there"]
            writer.append(pa.table({"key": keys, "value": values}))
    segmentlog.mirror(root, to=tmp_path / "copy")
    now_ms = 2_000_000_000_000
    for time_ms in (now_ms, now_ms + 86_400_001):
        for place in (root, tmp_path / "copy"):
            segmentlog.compact(place, settings=_COMPACT, now_ms=time_ms, roll=True)
        assert _rows(root) == _rows(str(tmp_path / "copy"))
        assert ("gone" in {each["key"].decode() for each in _rows(root)}) is (time_ms == now_ms)
        _write_one(root)
        _write_one(str(tmp_path / "copy"))


def _write_one(root: str) -> None:
    config = segmentlog.ProducerConfig(use_timestamps=True)
    with segmentlog.open_writer(root, "orders", config=config) as writer:
        times = pa.array([1], pa.timestamp("ms", "UTC"))
        writer.append(pa.table({"key": ["k0"], "value": ["new"], "timestamp": times}))


def test_many_keys_take_several_passes() -> None:
    store = MemoryStore()
    root = _process(store).root
    for i in range(4):
        with segmentlog.open_writer(root, "orders") as writer:
            keys = [f"k{j}" for j in range(400)]
            writer.append(pa.table({"key": keys, "value": [str(i)] * 400}))
    (done,) = segmentlog.compact(root, settings=_COMPACT, dedupe_buffer_bytes=24 * 300)
    assert done.n_passes > 1
    assert (done.segments_before, done.records_before, done.clean_to) == (4, 1600, 1600)
    (done,) = segmentlog.compact(root, settings=_COMPACT | {"min.cleanable.dirty.ratio": "0"}) or [
        done
    ]
    assert {each["value"] for each in _rows(root)} == {b"3"}
    assert len(_rows(root)) == 400
    _sweep(store)


def test_ages_are_those_of_the_stores_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a machine that is years ahead removes no tombstone."""
    store = MemoryStore()
    location = _process(store)
    for value in ("a", None):
        with segmentlog.open_writer(location.root, "orders") as writer:
            writer.append(pa.table({"key": ["k"], "value": [value]}))
    segmentlog.compact(location.root, settings=_COMPACT)
    assert len(_rows(location.root)) == 1
    _write_one(location.root)
    ahead = 10**12
    listed = FaultyClient.list

    def ahead_of_us(self: FaultyClient, prefix: str, *, after: str = "") -> Iterator[ListedObject]:
        found = listed(self, prefix, after=after)
        return (each._replace(modified_ms=each.modified_ms + ahead) for each in found)

    segmentlog.compact(location.root, settings=_COMPACT)
    assert {each["key"] for each in _rows(location.root)} == {b"k", b"k0"}
    _write_one(location.root)
    monkeypatch.setattr(FaultyClient, "list", ahead_of_us)
    segmentlog.compact(location.root, settings=_COMPACT)
    assert {each["key"] for each in _rows(location.root)} == {b"k0"}
    assert not [key for key in store.held if key.startswith("segmentlog/clock/")]


def test_what_a_mirror_brings_stays_as_its_source_has_it(tmp_path: Path) -> None:
    store = MemoryStore()
    location = _process(store)
    for n in range(3):
        _write(str(tmp_path / "source"), 1, n)
        segmentlog.mirror(tmp_path / "source", to=location.root)
    n_extents = _extents(location)
    assert segmentlog.compact(location.root, settings=_COMPACT) == []
    assert _extents(location) == n_extents > 1


def test_layout_1_is_joined_and_not_compacted_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from segmentlog.bucket.marker import Marker

    monkeypatch.setattr(Marker, "of_new_log", classmethod(lambda cls: cls(1)))
    monkeypatch.setattr(
        Marker, "encode", lambda self: b'{"format":1,"layout":"segmentlog bucket"}'
    )
    location = _process(MemoryStore())
    _write(location.root, 3)
    rows = _rows(location.root)
    assert len(segmentlog.compact(location.root)) == 2
    with pytest.raises(LogDirectoryError, match="segmentlog upgrade"):
        segmentlog.compact(location.root, settings=_COMPACT)
    assert _rows(location.root) == rows


def test_a_missing_or_damaged_object_is_named_and_the_others_are_joined() -> None:
    store = MemoryStore()
    location = _process(store)
    _write(location.root, 3)
    at = segmentlog.TopicPartition("orders", 0)
    first, second, _ = sequence_at(location).refresh().logs[at].placed(at)
    data = bytearray(store.held[second.object])
    data[second.start + second.size - 1] ^= 1
    store.held[second.object] = bytes(data)
    with pytest.raises(segmentlog.CorruptLogError, match=second.object):
        segmentlog.compact(location.root)
    assert [_extents(location, each) for each in (0, 1)] == [3, 1]
    missing = store.held.pop(first.object)
    with pytest.raises(RemoteSegmentError, match=r"offsets \[0, 2\) of orders-0"):
        segmentlog.compact(location.root)
    store.held[first.object] = missing


@pytest.mark.parametrize("by_key", [False, True])
def test_a_kill_at_some_requests_loses_nothing(by_key: bool) -> None:
    _kill(by_key, range(9, 1000, 24))


@pytest.mark.slow
@pytest.mark.parametrize("by_key", [False, True])
def test_a_kill_at_any_request_loses_nothing(by_key: bool) -> None:
    _kill(by_key, range(1000))


def _kill(by_key: bool, numbers: range) -> None:
    """Kill compactions before and after some requests, until one of them is not killed."""
    store = MemoryStore()
    _write(_process(store).root, 3)
    compact = partial(segmentlog.compact, settings=_COMPACT if by_key else None)
    held, modified_ms = dict(store.held), dict(store.modified_ms)
    rows = _rows(_process(store).root)
    newest = {(each["partition"], each["key"]): each for each in rows}
    for number, after in itertools.product(numbers, (False, True)):
        store.held, store.modified_ms = dict(held), dict(modified_ms)
        is_killed = False
        try:
            compact(client_at(DyingClient(store, number, after=after)).root)
        except Killed:
            is_killed = True
        fresh = _process(store).root
        found = _rows(fresh)
        if by_key:
            assert all(each in rows for each in found)
            assert {(each["partition"], each["key"]): each for each in found} == newest
        else:
            assert found == rows
        _write(_process(store).root, 1, 50)
        compact(_process(store).root)
        _sweep(store)
        assert _rows(_process(store).root)[-1]["value"] == b"v50-3"
        if not is_killed:
            assert number > 10
            break
