"""A log knows itself: whoever knows another log at its place is refused, or takes it as it is."""

import errno
import itertools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from faulty_store import FaultyClient, MemoryStore, client_at

import segmentlog
from segmentlog.bucket import checkpoint_objects, commits, sequence
from segmentlog.bucket.checkpoints import decode_checkpoint, encode_checkpoint
from segmentlog.bucket.commits import Commit
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import MARKER
from segmentlog.bucket.sequence import commit_key, opened_at, sequence_at
from segmentlog.bucket.upkeep import Upgraded, upgrade_layout
from segmentlog.errors import (
    CommitInDoubtError,
    CorruptCheckpointError,
    LogChangedError,
    LogDirectoryError,
    SegmentLogError,
    StorageError,
)
from segmentlog.reads.scan import scan_slice
from segmentlog.store.paths import BucketLocation, parse_bucket
from segmentlog.writes.bucket_job import BucketJob
from segmentlog.writes.config import WriteRequest


class Process:
    """A process with a client of its own, and a writer that it keeps open."""

    def __init__(self, store: MemoryStore) -> None:
        self.location: BucketLocation = client_at(FaultyClient(store))
        self.writer: segmentlog.LogWriter | None = None

    def write(self, *values: str, topic: str = "orders") -> None:
        with segmentlog.open_writer(self.location.root, topic) as writer:
            writer.append(pa.table({"value": [*values]}))

    def flush(self, *values: str) -> None:
        if self.writer is None:
            self.writer = segmentlog.open_writer(self.location.root, "orders")
        self.writer.append(pa.table({"value": [*values]}))
        self.writer.flush()

    def read(self) -> list[str]:
        found = segmentlog.read(self.location.root, "orders").sort_by("offset")
        return [each.decode() for each in found["value"].to_pylist()]


def _fresh(store: MemoryStore) -> list[str]:
    return Process(store).read()


def _remake(store: MemoryStore, n: int) -> None:
    store.held.clear()
    for number in range(n):
        Process(store).write(f"new-{number}")


def _restore(store: MemoryStore, kept: int, n: int) -> None:
    """Bring back the place as it was after some commits; then others go on."""
    named = {key for number in range(1, kept + 1) for key in _objects(store, number)}
    for key in [*store.held]:
        number = sequence.number_of(key)
        is_later = number is not None and number > kept
        if is_later or (key.startswith("data/") and key not in named) or "newest" in key:
            del store.held[key]
    for number in range(n):
        Process(store).write(f"new-{number}")


def _objects(store: MemoryStore, number: int) -> list[str]:
    return list(json.loads(store.held[commit_key(number)])["objects"])


_REPLACED: dict[str, Callable[[MemoryStore], None]] = {
    "emptied": lambda store: store.held.clear(),
    "made again, shorter": lambda store: _remake(store, 1),
    "made again, as long": lambda store: _remake(store, 4),
    "made again, longer": lambda store: _remake(store, 7),
    "restored": lambda store: _restore(store, 2, 0),
    "restored, as long": lambda store: _restore(store, 2, 2),
    "restored, longer": lambda store: _restore(store, 2, 5),
}


class _Emptied(FaultyClient):
    """A client at whose first request for a commit the place is emptied, or made again."""

    def __init__(self, store: MemoryStore, n_new: int) -> None:
        super().__init__(store)
        self._n_new: int | None = n_new

    def get(self, key: str) -> bytes | None:
        if self._n_new is not None and sequence.number_of(key) is not None:
            n_new, self._n_new = self._n_new, None
            _remake(self.store, n_new)
        return super().get(key)


@pytest.mark.parametrize("n_new", [0, 2])
def test_a_place_that_is_emptied_while_it_is_opened_has_no_damage(
    n_new: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its checkpoint was read, the commits that follow it are gone."""
    monkeypatch.setattr(checkpoint_objects, "_EVERY", 2)
    store = MemoryStore()
    writer = Process(store)
    for number in range(3):
        writer.flush(str(number))
    root = client_at(_Emptied(store, n_new)).root
    if n_new:
        found = segmentlog.read(root, "orders").sort_by("offset")["value"].to_pylist()
        assert found == [b"new-0", b"new-1"]
    else:
        with pytest.raises(LogDirectoryError, match="there is no log"):
            segmentlog.open_log_dir(root)


class _EmptiedBeforeTheCheck(FaultyClient):
    """A client whose place is emptied after it has read the marker, before it writes it again."""

    def create(self, key: str, data: bytes) -> str | None:
        if key == MARKER and MARKER in self.store.held:
            self.store.held.clear()
            self.create = super().create  # type: ignore[method-assign]
        return super().create(key, data)


def test_the_check_of_a_store_brings_no_earlier_log_back() -> None:
    """The marker that it writes again would be that of the log that was there."""
    store = MemoryStore()
    old = Process(store)
    old.flush("a")
    marker = store.held[MARKER]
    new = Process(store)
    new.location = client_at(_EmptiedBeforeTheCheck(store))
    new.flush("new")

    assert marker != store.held[MARKER]
    with pytest.raises(LogChangedError):
        old.flush("late")
    assert ["new"] == _fresh(store)


@pytest.mark.parametrize("replace", _REPLACED.values(), ids=_REPLACED)
def test_what_was_begun_in_an_earlier_log_is_refused(
    replace: Callable[[MemoryStore], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledged write is in the log; a refused one is not, and harms nobody."""
    if replace in (_REPLACED["made again, as long"], _REPLACED["restored"]):  # nothing is recent
        monkeypatch.setattr(sequence, "_RECENT_SECONDS", 0.0)
        monkeypatch.setattr(sequence, "_LOOK_SECONDS", 0.0)
    store = MemoryStore()
    old, reader, staging = Process(store), Process(store), Process(store)
    for number in range(4):
        old.flush(f"old-{number}")
    opened = segmentlog.open_log_dir(reader.location.root)
    log = opened.log("orders", 0)
    slices = log.slices(0, 4)
    request = WriteRequest(staging.location.root, topic="orders")
    job = BucketJob.begin_in_bucket(request)
    replace(store)
    after = dict(store.held)
    for _ in range(2):
        with pytest.raises(SegmentLogError):
            old.flush("mine")
    with pytest.raises(LogChangedError):
        job.commit([])
    assert store.held.keys() - after.keys() <= {MARKER}
    with pytest.raises((LogChangedError, LogDirectoryError)):
        [*scan_slice(slices[0])]
    # What is opened from now on takes the log as it is.
    expected = _fresh(store) if any(map(sequence.number_of, store.held)) else []
    old.write("again")
    assert _fresh(store) == reader.read() == old.read() == [*expected, "again"]


def test_a_log_without_commits_that_was_made_again() -> None:
    """All commits of the new one seemed to be late ones of another log."""
    store = MemoryStore()
    old = Process(store)
    opened_at(old.location, creates=True)
    before = sequence_at(old.location)
    _remake(store, 3)
    with pytest.raises(LogChangedError):
        before.refresh()
    assert old.read() == ["new-0", "new-1", "new-2"]


@pytest.mark.parametrize("n_removed", [1, 2, 31])
def test_a_hole_of_any_length_is_refused_by_who_knows_the_log(n_removed: int) -> None:
    store = MemoryStore()
    reader, writer, late = Process(store), Process(store), Process(store)
    writer.flush("a")
    assert reader.read() == ["a"]
    for number in range(n_removed + 1):
        late.write(str(number))
    for number in range(2, n_removed + 2):
        del store.held[commit_key(number)]
    before = {*store.held}
    for key in [key for key in store.held if "newest" in key or "checkpoints" in key]:
        del store.held[key]  # it would spare what is missing
    for act in (reader.read, lambda: writer.flush("b"), lambda: _fresh(store)):
        with pytest.raises(CorruptCheckpointError, match="the commit is missing") as failed:
            act()
        assert failed.value.path.endswith(commit_key(2))
    assert {key for key in store.held if key not in before and "data/" not in key} == set()


def test_a_late_request_of_an_earlier_log_has_no_effect() -> None:
    """It takes a number of the log that was made meanwhile, and everybody passes it over."""
    store = MemoryStore()
    old = Process(store)
    for number in range(5):
        old.write(f"old-{number}")
    state = sequence_at(old.location).known
    late = Commit(6, "late", "", 0, log_id=state.log_id, previous=state.token, deleted=["orders"])
    known, reader = Process(store), Process(store)
    _remake(store, 2)
    assert known.read() == ["new-0", "new-1"]
    store.put(commit_key(6), late.encode())
    assert known.read() == _fresh(store) == ["new-0", "new-1"]
    for number in range(5):
        known.write(f"more-{number}")
        Process(store).write(f"other-{number}")
    wanted = {"new-0", "new-1"} | {f"{who}-{i}" for who in ("more", "other") for i in range(5)}
    assert {*known.read()} == {*_fresh(store)} == {*reader.read()} == wanted
    (finding,) = segmentlog.verify(reader.location.root, shallow=True)
    assert finding.path.endswith(commit_key(6))
    assert finding.severity is segmentlog.Severity.WARNING


def test_commits_of_two_logs_side_by_side_are_refused() -> None:
    store, other = MemoryStore(), MemoryStore()
    for each in (store, other):
        Process(each).write("a")
    reader = Process(store)
    reader.read()
    Process(other).write("b")
    commit = json.loads(other.held[commit_key(2)])
    commit["log"] = json.loads(store.held[MARKER])["id"]
    store.put(commit_key(2), json.dumps(commit).encode())
    for act in (reader.read, lambda: _fresh(store)):
        with pytest.raises(CorruptCheckpointError, match="two logs, or of two backups"):
            act()


def test_a_feature_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    writer, reader = Process(store), Process(store)
    writer.write("a")
    assert reader.read() == ["a"]
    with monkeypatch.context() as later:
        later.setattr(commits, "KNOWN_FEATURES", frozenset({"merged"}))
        known = sequence_at(writer.location)

        def make(state: LogState) -> Commit:
            return Commit(state.number + 1, "t", "", 0, features=["merged"])

        known.append(make)
        checkpoint = encode_checkpoint(known.known)
    for act in (
        reader.read,
        lambda: reader.write("b"),
        lambda: decode_checkpoint(checkpoint, "c"),
    ):
        with pytest.raises(CorruptCheckpointError, match="merged; update segmentlog"):
            act()


# --- layout 1


def _as_layout_1(store: MemoryStore) -> None:
    """Turn a log into what earlier versions have made."""
    for key, data in store.held.items():
        if sequence.number_of(key) is not None:
            commit = json.loads(data) | {"format": 1}
            for name in ("log", "previous", "features"):
                commit.pop(name, None)
            store.held[key] = json.dumps(commit).encode()
    store.held[MARKER] = b'{"format":1,"layout":"segmentlog bucket"}'
    for key in [key for key in store.held if "newest" in key or "checkpoints" in key]:
        del store.held[key]


@pytest.mark.parametrize("n", [0, 3])
def test_layout_1_is_appended_to_as_it_is_until_it_is_upgraded(n: int) -> None:
    store = MemoryStore()
    first = Process(store)
    opened_at(first.location, creates=True)
    for number in range(n):
        first.write(str(number))
    _as_layout_1(store)
    beside, idle = Process(store), Process(store)
    beside.write("a")
    assert idle.read()[-1] == "a"
    made = (data for key, data in store.held.items() if sequence.number_of(key) is not None)
    assert {json.loads(data)["format"] for data in made} == {1}
    (finding,) = segmentlog.verify(beside.location.root, shallow=True)
    assert finding.severity is segmentlog.Severity.WARNING
    assert "segmentlog upgrade" in finding.message
    done = segmentlog.upgrade(Process(store).location.root)
    assert done == (2, json.loads(store.held[MARKER])["id"], n + 2, True)
    assert segmentlog.upgrade(beside.location.root) == done._replace(is_new=False)
    for number in range(35):
        beside.write(str(number))
    idle.write("b")
    assert len(beside.read()) == len(idle.read()) == len(_fresh(store)) == n + 37
    assert segmentlog.verify(beside.location.root, shallow=True) == []
    del store.held["segmentlog/newest.json"]
    assert len(_fresh(store)) == n + 37


@pytest.mark.parametrize("replace", ["made again, longer", "restored, longer", "emptied"])
def test_layout_1_is_told_from_another_log_by_the_tokens_of_its_commits(replace: str) -> None:
    store = MemoryStore()
    for number in range(4):
        Process(store).write(f"old-{number}")
    _as_layout_1(store)
    old = Process(store)
    old.flush("old-4")
    _REPLACED[replace](store)
    with pytest.raises(LogChangedError):
        old.flush("mine")


def test_an_upgrade_that_ended_before_the_marker_is_made_up_for() -> None:
    store = MemoryStore()
    Process(store).write("a")
    _as_layout_1(store)
    marker = store.held[MARKER]
    done = upgrade_layout(Process(store).location)
    store.held[MARKER] = marker
    Process(store).write("b")
    assert _fresh(store) == ["a", "b"]
    assert upgrade_layout(Process(store).location) == done
    assert json.loads(store.held[MARKER])["id"] == done.log_id


class _Upgrading(FaultyClient):
    """A client beside whose upgrade others act, just before the marker is replaced."""

    def __init__(self, store: MemoryStore, act: Callable[[MemoryStore], None]) -> None:
        super().__init__(store)
        self._act: Callable[[MemoryStore], None] | None = act

    def exchange(self, key: str, before: bytes, data: bytes) -> bool:
        act, self._act = self._act, None
        if act:
            act(self.store)
        return super().exchange(key, before, data)


def _as_older_log(store: MemoryStore) -> None:
    _remake(store, 2)
    _as_layout_1(store)


@pytest.mark.parametrize(
    "act", [lambda store: _remake(store, 2), _as_older_log, lambda store: store.held.clear()]
)
def test_an_upgrade_replaces_no_other_marker(act: Callable[[MemoryStore], None]) -> None:
    """The place was emptied and made again, by this version or an earlier one."""
    store = MemoryStore()
    Process(store).write("a")
    _as_layout_1(store)
    after = dict[str, bytes]()

    def replace(store: MemoryStore) -> None:
        act(store)
        after.update(store.held)

    with pytest.raises(LogChangedError):
        upgrade_layout(client_at(_Upgrading(store, replace)))
    assert store.held == after


def test_an_upgrade_whose_commit_is_there_is_no_definite_error() -> None:
    """The store refuses the marker: readers of earlier versions are kept out by the commit."""
    store = MemoryStore()
    Process(store).write("a")
    _as_layout_1(store)

    def refuse(_: MemoryStore) -> None:
        raise StorageError(errno.EACCES, "not permitted", MARKER)

    with pytest.raises(CommitInDoubtError, match="its marker is to follow: run it again"):
        upgrade_layout(client_at(_Upgrading(store, refuse)))
    assert upgrade_layout(Process(store).location).is_new
    assert _fresh(store) == ["a"]


def test_two_upgrades_at_once_give_one_id() -> None:
    store, done = MemoryStore(), list[Upgraded]()
    Process(store).write("a")
    _as_layout_1(store)

    def other(_: MemoryStore) -> None:
        done.append(upgrade_layout(Process(store).location))

    done.append(upgrade_layout(client_at(_Upgrading(store, other))))
    assert [each.is_new for each in done] == [True, False]
    assert done[0].log_id == done[1].log_id == json.loads(store.held[MARKER])["id"]


def test_what_is_no_log_cannot_be_upgraded(tmp_path: Path) -> None:
    with pytest.raises(LogDirectoryError, match="no log in an object store"):
        segmentlog.upgrade(tmp_path)
    with pytest.raises(SegmentLogError):
        segmentlog.upgrade(f"bucket+file://{tmp_path}/none")


def test_random_places_that_are_emptied_restored_and_upgraded() -> None:
    """Each acknowledged write is in the log that was there, and no log is broken by another."""
    _play(0, 10)


@pytest.mark.slow
def test_many_random_places() -> None:
    for seed in range(1, 200):
        _play(seed, 60)


def _forget_the_look(process: Process) -> None:
    """Let the second pass for which the last look at the log counts."""
    sequence_at(process.location)._looked = float("-inf")


def _play(seed: int, n_deeds: int) -> None:
    chance, store = random.Random(seed), MemoryStore()
    expected, backup = list[str](), (dict(store.held), list[str]())
    processes = [Process(store) for _ in range(4)]
    names = (f"w{number}" for number in itertools.count())
    for _ in range(n_deeds):
        at, deed = chance.randrange(4), chance.random()
        if deed < 0.1:  # emptied, or restored
            store.held.clear()
            store.held.update(backup[0] if deed > 0.05 else {})
            expected = [*backup[1]] if deed > 0.05 else []
            for each in processes:
                _forget_the_look(each)
        elif deed < 0.2:
            backup = dict(store.held), [*expected]
        elif deed < 0.25:
            processes[at] = Process(store)
        elif deed < 0.3 and MARKER in store.held:
            segmentlog.upgrade(Process(store).location.root)
        elif deed < 0.4 and any(map(sequence.number_of, store.held)):
            assert processes[at].read() == expected
        else:
            name = next(names)
            try:
                (processes[at].flush if deed < 0.7 else processes[at].write)(name)
                expected.append(name)
            except SegmentLogError:
                processes[at].writer = None
        if any(map(sequence.number_of, store.held)):
            assert _fresh(store) == expected
    assert expected == (_fresh(store) if any(map(sequence.number_of, store.held)) else [])


def test_a_mirror_refuses_a_destination_that_was_made_again_meanwhile(tmp_path: Path) -> None:
    with segmentlog.open_writer(tmp_path / "source", "orders") as writer:
        writer.append(pa.table({"value": ["a"]}))
    url = f"bucket+file://{tmp_path}/log"
    phases = list[str]()

    def on_progress(*given: object) -> None:
        phases.append(str(given))
        if len(phases) == 2:
            shutil.rmtree(tmp_path / "log")
            with segmentlog.open_writer(url, "other") as other:
                other.append(pa.table({"value": ["x"]}))

    location = parse_bucket(segmentlog.open_log_dir(_made(url)).paths[0])[0]
    from segmentlog.cluster.mirror_up import mirror_up
    from segmentlog.cluster.replicated import open_replicas
    from segmentlog.store.system_errors import Failures

    source = open_replicas(tmp_path / "source")
    chosen = [*source.topic_partitions()]
    with pytest.raises(LogChangedError):
        mirror_up(
            location,
            source,
            chosen,
            dry_run=False,
            on_bytes=lambda _: None,
            on_phase=on_progress,
            failures=Failures(None),
        )
    assert segmentlog.read(url, "other").num_rows == 1


def _made(url: str) -> str:
    with segmentlog.open_writer(url, "old") as writer:
        writer.append(pa.table({"value": ["o"]}))
    return url
