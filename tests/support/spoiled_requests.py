"""Each request of each operation on a log in an object store, spoiled in each way.

An operation runs once to count its requests.  Then it runs again at a new place for each request
and each fault (`proxies.FAULTS`), once with one spoiled request, which the client repeats by
itself, and once with all repetitions of the request spoiled.  It must be done, or end with one of
our errors, and the log must hold all of it or nothing of it.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from proxies import FAULTS, Fault, FaultyServer, Sent

import segmentlog
from segmentlog.bucket import checkpoint_objects, clients, objects, places, sequence
from segmentlog.bucket.objects import MARKER
from segmentlog.bucket.sequence import number_of, sequence_at
from segmentlog.bucket.upkeep import move_starts, sweep_objects
from segmentlog.errors import CommitInDoubtError, SegmentLogError, StorageError
from segmentlog.store.paths import BucketLocation, bucket_at
from segmentlog.txn.state import StreamBatch
from segmentlog.writes.config import WriteRequest
from segmentlog.writes.job import WriteJob

_N_PARTITIONS = 3
_ROWS = 60
_PART_BYTES = 4 << 10


def new_process() -> None:
    """Forget what this process knows of stores, as a new one."""
    clients._clients.clear()
    sequence._sequences.clear()
    places._known.clear()
    places._stores.clear()


@contextlib.contextmanager
def hasty_clients() -> Iterator[None]:
    """Clients that give up soon, checkpoints after two commits, and uploads in small parts."""
    backoff = {
        "init_backoff": timedelta(milliseconds=1),
        "max_backoff": timedelta(milliseconds=2),
        "base": 2,
    }
    retries = {"max_retries": 2, "retry_timeout": timedelta(seconds=5), "backoff": backoff}
    seconds = itertools.count(0.0, 40.0)
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None, time=time.time)
    with (
        mock.patch.object(clients, "_RETRIES", retries),
        mock.patch.object(clients, "_TIMEOUT", "1s"),  # any answer is faster on a busy machine
        mock.patch.object(objects, "PART_BYTES", _PART_BYTES),
        mock.patch.object(checkpoint_objects, "_EVERY", 2),
        mock.patch.object(sequence, "time", clock),
    ):
        yield


def location_of(url: str) -> BucketLocation:
    """The place of a URL."""
    found = bucket_at(url)
    assert found is not None
    return found


def _write(url: str, name: str, n_rows: int = _ROWS, **options: Any) -> None:
    rows = pa.table({"value": [f"{name}-{i}" for i in range(n_rows)]})
    given: dict[str, Any] = {"num_partitions": _N_PARTITIONS, **options}
    with segmentlog.open_writer(url, "orders", **given) as writer:
        writer.append(rows)


def _numbered(url: str) -> None:
    _write(url, "new", txn_app_id="app", txn_version=0)


def _parts(url: str) -> None:
    config = segmentlog.ProducerConfig(codec=segmentlog.Codec.NONE)
    _write(url, "new", 1000, config=config, txn_app_id="app", txn_version=0)


def _overwrite(url: str) -> None:
    _write(url, "new", overwrite=True)


def _sweep(url: str) -> None:
    sweep_objects(location_of(url), -1, -1, dry_run=False)


def _delete(url: str) -> None:
    segmentlog.delete_topic(url, "orders")


def _delete_records(url: str) -> None:
    """Of all partitions at once, as `retain` does."""
    location = location_of(url)
    state = sequence_at(location).refresh()
    topic_ids = dict.fromkeys(state.logs, state.topics["orders"].topic_id)
    move_starts(location, {at: log.end for at, log in state.logs.items()}, topic_ids)


def _read(url: str) -> None:
    assert segmentlog.read(url, "orders").num_rows == _ROWS


_source = tempfile.TemporaryDirectory()  # of all mirrors: a topic has one id


def _mirror_up(url: str) -> None:
    if not os.listdir(_source.name):
        _write(_source.name, "new")
    segmentlog.mirror(_source.name, to=url)


def _clone(url: str) -> None:
    """The ranges and the offsets that it tells are those of its commit."""
    if not os.listdir(_source.name):
        _write(_source.name, "new")
    with tempfile.TemporaryDirectory() as made:
        place = os.path.join(made, "map")
        options: dict[str, Any] = {"overwrite": True, "settings": {"retention.ms": "-1"}}
        found = segmentlog.clone(
            _source.name, "orders", "orders", to=url, offset_map=place, **options
        )
        told = pq.read_table(place).to_pylist()
    new_process()
    try:
        rows = segmentlog.read(url, "orders", columns=["partition", "offset"])
    except StorageError:
        return  # the request that is spoiled is one of this read
    there = {*zip(*(each.to_pylist() for each in rows.columns), strict=True)}
    ranges = [range(each.log_start_offset, each.log_end_offset) for each in found.partitions]
    assert there == {(i, offset) for i, each in enumerate(ranges) for offset in each}
    assert {each["target_offset"] for each in told if each["n_records"]} == {min(there)[1]}


def _mirror_down(url: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        segmentlog.mirror(url, to=made)
        assert segmentlog.read(made, "orders").num_rows == _ROWS


def _keyed(url: str, name: str) -> None:
    """Rows with keys of which each is once in a write, in one partition."""
    rows = pa.table({"key": [f"k{i}" for i in range(_ROWS)], "value": _names(name)})
    with segmentlog.open_writer(url, "orders", num_partitions=1) as writer:
        writer.append(rows)


def _mirror_again(url: str) -> None:
    """One that brings more, after one that has brought the first rows."""
    with tempfile.TemporaryDirectory() as held:
        shutil.copytree(_source.name, held, dirs_exist_ok=True)
        _write(held, "more")
        segmentlog.mirror(held, to=url)


def _batch_of_stream(url: str) -> None:
    """The first batch of a query."""
    request = WriteRequest(url, topic="orders", stream="/checkpoint", num_partitions=3)
    job = WriteJob.begin(request)
    stager = job.stager(0)
    for batch in pa.table({"value": _names("new")}).to_batches():
        stager.add(batch)
    job.commit([stager.finish()], batch=StreamBatch("query", 0, "run"))


def _configure(url: str) -> None:
    segmentlog.alter_settings(url, "orders", {"retention.ms": "-1"})


def _settings(url: str) -> list[str]:
    """The values that a log has, and the retention of its topic."""
    found = segmentlog.topic_settings(url, "orders")["retention.ms"]
    return sorted([*_values(url), str(found.value)])


def _clone_out(url: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        segmentlog.clone(url, "orders", "copy", to=os.path.join(made, "d"), keep_offsets=True)
        assert segmentlog.read(os.path.join(made, "d"), "copy").num_rows == _ROWS


def _nothing(_url: str) -> None:
    pass


def _join(url: str) -> None:
    segmentlog.compact(url)


def _two_writes(url: str) -> None:
    _keyed(url, "old")
    _keyed(url, "new")


def _by_key(url: str) -> None:
    segmentlog.compact(url, "orders", settings={"cleanup.policy": "compact"})


def _erase(url: str) -> None:
    segmentlog.erase(url, ["k1", "k7"], "orders")


def _layout_1(url: str) -> None:
    """What an earlier version has made."""
    _write(url, "old")
    store = clients.objects_at(location_of(url))
    for each in [*store.list("")]:
        commit = number_of(each.key)
        if "newest" in each.key or "checkpoints" in each.key:
            store.delete([each.key])
        elif commit is not None:
            found = json.loads(store.get(each.key) or b"") | {"format": 1}
            for name in ("log", "previous", "features"):
                found.pop(name, None)
            store.delete([each.key])
            store.put(each.key, [json.dumps(found).encode()])
    store.put(MARKER, [b'{"format":1,"layout":"segmentlog bucket"}'])


def _upgrade(url: str) -> None:
    segmentlog.upgrade(url)


def _layout(url: str) -> list[str]:
    """The values that a log has, and whether its commits know the log."""
    values = _values(url)
    return sorted([*values, str(bool(sequence_at(location_of(url)).refresh().log_id))])


def _old_rows(url: str) -> None:
    _write(url, "old")


def _leftovers(url: str) -> None:
    """Objects of a job that was killed, and of records that have left the log."""
    _write(url, "older")
    _overwrite(url)
    clients.objects_at(location_of(url)).put("data/abababababababab/0-cdcdcdcd.batches", [b"left"])


def _names(name: str, n_rows: int = _ROWS) -> list[str]:
    return [f"{name}-{i}" for i in range(n_rows)]


class Operation(NamedTuple):
    """What is played: `before` and `after` are the values that the log has then."""

    prepare: Callable[[str], None]
    run: Callable[[str], None]
    before: list[str]
    after: list[str]
    is_repeatable: bool = True  # whether running it again changes nothing more
    look: Callable[[str], list[str]] | None = None  # what it changes, if it is not the values


_OLD, _NEW = _names("old"), _names("new")

OPERATIONS = {
    "first write": Operation(_nothing, _numbered, [], _NEW),
    "write, and a checkpoint": Operation(_old_rows, _numbered, _OLD, _OLD + _NEW),
    "write in parts": Operation(_old_rows, _parts, _OLD, _OLD + _names("new", 1000)),
    "overwrite": Operation(_old_rows, _overwrite, _OLD, _NEW),
    "read": Operation(_old_rows, _read, _OLD, _OLD),
    "delete records": Operation(_old_rows, _delete_records, _OLD, []),
    "delete a topic": Operation(_old_rows, _delete, _OLD, [], is_repeatable=False),
    "sweep": Operation(_leftovers, _sweep, _NEW, _NEW),
    "batch of a stream": Operation(_old_rows, _batch_of_stream, _OLD, _OLD + _NEW),
    "join": Operation(_two_writes, _join, _OLD + _NEW, _OLD + _NEW),
    "compact": Operation(_two_writes, _by_key, _OLD + _NEW, _NEW),
    "erase": Operation(
        lambda url: _keyed(url, "old"),
        _erase,
        _OLD,
        [each for each in _OLD if each not in {"old-1", "old-7"}],
    ),
    "configure": Operation(
        _old_rows, _configure, [*_OLD, "604800000"], [*_OLD, "-1"], look=_settings
    ),
    "upgrade": Operation(_layout_1, _upgrade, [*_OLD, "False"], [*_OLD, "True"], look=_layout),
    "mirror into the store again": Operation(
        _mirror_up, _mirror_again, _NEW, _NEW + _names("more"), is_repeatable=False
    ),
    "clone to a directory": Operation(_old_rows, _clone_out, _OLD, _OLD),
    "mirror into the store": Operation(_nothing, _mirror_up, [], _NEW),
    "clone": Operation(_old_rows, _clone, _OLD, _NEW),
    "mirror to a directory": Operation(_old_rows, _mirror_down, _OLD, _OLD),
}


class Played(NamedTuple):
    """How an operation with a spoiled request has ended."""

    outcome: str  # "done", "in doubt", or the name of the error
    is_there: bool  # whether its effect is


def _values(url: str) -> list[str]:
    new_process()
    location = location_of(url)
    if (
        not sequence_at(location).is_made()
        or "orders" not in sequence_at(location).refresh().topics
    ):
        return []
    found = segmentlog.read(url, "orders", columns=["value"])["value"]
    return sorted(each.decode() for each in found.to_pylist())


def play_all(operation: Operation, url: str, every: int) -> str:
    """Play each `every`th case, and return a row of the table in ``storage/docs/bucket.md``.

    `url`: a place in a server, below which each case has a place of its own.
    """
    with FaultyServer(port_in(url)) as proxy, hasty_clients():
        place = new_place(url, proxy)
        operation.prepare(place)
        new_process()
        proxy.reset()
        operation.run(place)
        n_requests = len(proxy.requests)
        cases = itertools.product(range(n_requests), FAULTS.values(), (False, True))
        outcomes = Counter(
            play(operation, proxy, new_place(url, proxy), number, fault, stays=stays).outcome
            for number, fault, stays in itertools.islice(cases, 0, None, every)
        )
    new_process()
    done, doubt = outcomes["done"], outcomes["in doubt"]
    n_cases = outcomes.total()
    return f"{n_requests} | {n_cases} | {done} | {n_cases - done - doubt} | {doubt}"


def play(
    operation: Operation,
    proxy: FaultyServer,
    url: str,
    chosen: int | Callable[[int, Sent], bool],
    fault: Fault,
    *,
    stays: bool,
) -> Played:
    """Spoil one request of an operation, and check what is there then.

    `chosen`: the number of the request, from 0, or whether it is the one.  `stays`: whether
    repetitions of the request are spoiled, too.  Raises `AssertionError` if the log has something
    else than all of the operation or nothing of it, or than was promised.
    """
    operation.prepare(url)
    new_process()
    proxy.reset()
    spoiled: list[tuple[str, str]] = []

    def choose(at: int, sent: Sent) -> Fault | None:
        key = sent.method, sent.target.partition("?")[0]
        if not spoiled and (at == chosen if isinstance(chosen, int) else chosen(at, sent)):
            spoiled.append(key)
            return fault
        return fault if stays and key in spoiled else None

    proxy.choose = choose
    outcome = "done"
    try:
        operation.run(url)
    except CommitInDoubtError:
        outcome = "in doubt"
    except SegmentLogError as error:
        outcome = type(error).__name__
    proxy.reset()
    look = operation.look or _values
    found, before, after = look(url), sorted(operation.before), sorted(operation.after)
    assert found in (before, after), (outcome, len(found))
    if outcome == "done":
        assert found == after
    elif before != after:
        assert outcome == "in doubt" or found == before, outcome
    if operation.is_repeatable or found == before:
        new_process()
        operation.run(url)
        assert look(url) == after
    findings = [*segmentlog.verify(url)]
    findings = [each for each in findings if each.kind != "offset-gap"]  # of compacted keys
    assert findings == [], findings
    location = location_of(url)
    sweep_objects(location, -1, -1, dry_run=False)
    held = {each.key for each in clients.objects_at(location).list("data/")}
    assert held == sequence_at(location).refresh().objects()
    return Played(outcome, found == after)


_places = itertools.count()


def new_place(url: str, proxy: FaultyServer) -> str:
    """An empty place in the server of a place, by way of the proxy."""
    before, question, options = url.partition("?")
    options = options.replace(f":{port_in(url)}", f":{proxy.port}")
    return f"{before}/{os.getpid()}-{next(_places)}{question}{options}"


def port_in(url: str) -> int:
    """The port of the server in the URL of a place."""
    found = re.search(r"(?:127\.0\.0\.1|localhost):(\d+)", url.partition("?")[2])
    assert found is not None, url
    return int(found[1])
