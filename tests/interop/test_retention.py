"""A broker's retention and ours remove equal segments, and a broker takes over our directory."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crashing import CALLS, Crash, Forward, around_calls, copy_states
from kafka_here import Broker, JavaClient, assert_dump_is_sound, objections
from kafka_here.java import Outgoing

import segmentlog
from segmentlog.log.checkpoint import read_leader_epochs, read_offsets
from segmentlog.log.producer_snapshot import read_snapshot
from segmentlog.model import TopicPartition

pytestmark = pytest.mark.interop

DAY_MS = 24 * 3600 * 1000
SETTINGS = {
    "log.segment.delete.delay.ms": 100,
    "log.flush.start.offset.checkpoint.interval.ms": 300,
    "producer.id.expiration.ms": 2**31 - 1,  # records of tests are old
}

#: By topic: its settings, and the ages of its records in days; a segment holds two of them.
TOPICS: dict[str, tuple[dict[str, object], list[float]]] = {
    "week": ({"retention_ms": 7 * DAY_MS}, [20, 19, 9, 8, 6, 5, 0, 0]),
    "all": ({"retention_ms": 3 * DAY_MS}, [20, 19, 9, 8, 6, 5]),
    "unsorted": ({"retention_ms": 7 * DAY_MS}, [20, 1, 9, 8, 6, 5, 0, 0]),
    "future": ({"retention_ms": 7 * DAY_MS}, [20, 20, 9, -30, 20, 20, 0, 0]),
    "never": ({"retention_ms": -1}, [900, 800, 700]),
    "size": ({"retention_bytes": 2500}, [0] * 10),
    "both": ({"retention_bytes": 3500, "retention_ms": 7 * DAY_MS}, [20, 19, 9, 8, 8, 8, 6, 5]),
    "compacted": ({"cleanup_policy": "compact", "retention_ms": DAY_MS}, [9, 8, 7, 6, 0]),
    "deleted": ({"retention_ms": -1}, [0] * 8),
}


def records(ages: list[float]) -> Iterator[Outgoing]:
    """A record of each age in days, each with another key."""
    now_ms = int(time.time() * 1000)
    for number, days in enumerate(ages):
        time_ms = now_ms - int(days * DAY_MS)
        yield Outgoing(b"%d" % number, b"x" * 480, timestamp_ms=time_ms, partition=0)


def bases(log_dir: Path) -> dict[str, list[int]]:
    """Base offsets of the live segments of each topic."""
    return {
        topic: sorted(int(path.stem) for path in (log_dir / f"{topic}-0").glob("*.log"))
        for topic in TOPICS
    }


def running(
    directory: Path, version: str, *, retains: bool, settings: dict[str, object] | None = None
) -> Broker:
    """A broker on a directory, with retention every fifth of a second, or none.

    The first retention comes after the initial delay, because it once overtook the records of a
    test.
    """
    delay, interval = (300, 200) if retains else (10**9, 10**9)
    when = {"log.initial.task.delay.ms": delay, "log.retention.check.interval.ms": interval}
    more = {**SETTINGS, **when, **(settings or {})}
    return Broker(directory, version, settings=more)


@pytest.fixture(scope="module")
def filled(new_version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's directory before any retention, stopped cleanly."""
    directory = tmp_path_factory.mktemp("filled") / "kafka"
    with running(directory, new_version, retains=False) as broker, JavaClient(broker) as client:
        for topic, (settings, ages) in TOPICS.items():
            client.create_topic(
                topic,
                1,
                internal_segment_bytes=1200,
                segment_ms=10**15,
                index_interval_bytes=50,
                **settings,
            )
            client.produce(topic, records(ages), one_by_one=True)
        client.delete_records("deleted", 0, 5)
        time.sleep(1)
    return directory


def copied(filled: Path, to: Path) -> Path:
    """A copy with its own paths."""
    shutil.copytree(filled, to, copy_function=shutil.copy2)
    return to


def until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.thorough
def test_the_same_segments_go(new_version: str, filled: Path, tmp_path: Path) -> None:
    """Ours runs on one copy, and the broker's on another. Then a broker starts on our copy."""
    before = bases(filled / "logs0")
    ours, theirs = copied(filled, tmp_path / "ours"), copied(filled, tmp_path / "theirs")
    told = segmentlog.retain(ours / "logs0", dry_run=True, kafka_defaults=True)
    assert told == segmentlog.retain(ours / "logs0", kafka_defaults=True)
    found = bases(ours / "logs0")
    with running(theirs, new_version, retains=True) as broker, JavaClient(broker) as client:
        until(lambda: bases(theirs / "logs0") == found)
        time.sleep(1)  # a broker that continues is noticed
        expected = bases(broker.log_dir)
        offsets = {topic: client.offsets(topic) for topic in TOPICS}
        values = {topic: client.consume(topic) for topic in TOPICS}

    assert expected == found
    gone = {topic: len({*before[topic]} - {*found[topic]}) for topic in TOPICS}
    assert {
        "week": 2,
        "all": 3,
        "unsorted": 0,
        "future": 1,
        "never": 0,
        "size": 2,
        "both": 3,
        "compacted": 0,
        "deleted": 2,
    } == gone
    assert sorted(base for topic in TOPICS for base in {*before[topic]} - {*found[topic]}) == (
        sorted(each.base_offset for each in told if each.topic in TOPICS)
    )
    for topic in TOPICS.keys() - {"all"}:  # a broker that starts on an empty log forgets epochs
        epochs = [
            read_leader_epochs(str(each / "logs0" / f"{topic}-0" / "leader-epoch-checkpoint"))
            for each in (ours, theirs)
        ]
        assert epochs[0] == epochs[1][: len(epochs[0])], topic
    with running(ours, new_version, retains=True) as broker, JavaClient(broker) as client:
        time.sleep(1)
        assert found == bases(broker.log_dir)
        assert offsets == {topic: client.offsets(topic) for topic in TOPICS}
        assert values == {topic: client.consume(topic) for topic in TOPICS}
        assert not list(broker.log_dir.glob("*/*.deleted"))
        client.produce("all", list(records([0])))
        assert {0: (6, 7)} == client.offsets("all")


@pytest.mark.slow
def test_producers_stay_known_to_a_broker(new_version: str, tmp_path: Path) -> None:
    """All records of a producer are gone, but its sequence is known."""
    directory = tmp_path / "kafka"
    with running(directory, new_version, retains=False) as broker, JavaClient(broker) as client:
        client.create_topic("t", 1, internal_segment_bytes=1200, retention_ms=DAY_MS)
        client.produce("t", records([3, 3]), one_by_one=True)
        client.produce("t", records([0, 0]), one_by_one=True)
    path = broker.log_dir / "t-0"
    at_the_end = path / f"{4:020d}.snapshot"
    (known,) = [each for each in read_snapshot(str(at_the_end)) if each.last_offset == 1]
    at_the_end.unlink()  # the snapshot of the last roll is left, at the log start
    assert [0] == [
        each.base_offset for each in segmentlog.retain(broker.log_dir, ["t"], kafka_defaults=True)
    ]
    assert known in read_snapshot(str(at_the_end))
    with running(directory, new_version, retains=False) as broker, JavaClient(broker) as client:
        assert {0: (2, 4)} == client.offsets("t")
        client.produce("t", records([0]))
    after = read_snapshot(str(path / f"{5:020d}.snapshot"))

    assert known.producer_id in {each.producer_id for each in after}


@pytest.mark.slow
def test_deleted_records_are_gone_for_a_broker(
    new_version: str, filled: Path, tmp_path: Path
) -> None:
    """The log start is inside a segment, and hides the records before it."""
    ours = copied(filled, tmp_path / "ours")
    segmentlog.delete_records(ours / "logs0", "never", 0, offset=1)
    (sixth_day,) = segmentlog.read(ours / "logs0", "week", columns=["timestamp"])["timestamp"][4:5]
    done = segmentlog.delete_records(ours / "logs0", "week", 0, before=sixth_day.as_py())
    assert (4, 2) == (done.new_start, done.segments)
    with running(ours, new_version, retains=False) as broker, JavaClient(broker) as client:
        assert {0: (1, 3)} == client.offsets("never")
        assert [1, 2] == [each.offset for each in client.consume("never")]
        assert {0: (4, 8)} == client.offsets("week")
        time.sleep(1)
    starts = read_offsets(str(broker.log_dir), "log-start-offset-checkpoint")

    assert 1 == starts[TopicPartition("never", 0)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stride", [1])
def test_a_broker_starts_after_every_step(
    new_version: str, filled: Path, tmp_path: Path, stride: int
) -> None:
    """The broker starts, or the guard keeps it out until the next retention."""
    n_calls = 0

    def count(_: str, forward: Forward) -> object:
        nonlocal n_calls
        n_calls += 1
        return forward()

    whole = copied(filled, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, count)
        segmentlog.retain(whole / "logs0", kafka_defaults=True)
    found, n_kept_out = bases(whole / "logs0"), 0
    for number in range(stride // 2, n_calls, stride):
        ours = copied(filled, tmp_path / str(number))
        _cut_at(ours / "logs0", number)
        if list((ours / "logs0").glob("segmentlog.unfinished.*")):
            n_kept_out += 1
            with pytest.raises(RuntimeError, match=r"segmentlog\.unfinished"):
                running(ours, new_version, retains=False).start()
            segmentlog.retain(ours / "logs0", kafka_defaults=True)
        with running(ours, new_version, retains=True) as broker, JavaClient(broker) as client:
            until(lambda: bases(ours / "logs0") == found)  # noqa: B023 - called at once
            assert found == bases(ours / "logs0"), number
            assert {0: (6, 6)} == client.offsets("all"), number
        shutil.rmtree(ours)

    assert n_kept_out


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n_starts", [40])
def test_a_broker_starts_after_every_step_of_a_deletion(
    new_version: str, filled: Path, tmp_path: Path, n_starts: int
) -> None:
    """The broker serves the log from the old start or from the new start, as our reader does.

    The guard keeps the broker out until the deletion is decided or undone.
    """
    log_dir = copied(filled, tmp_path / "whole") / "logs0"
    states = copy_states(
        log_dir,
        lambda: segmentlog.delete_records(log_dir, "deleted", 0, offset=7),
        tmp_path / "states",
        (".lock",),
    )
    starts, n_kept_out = [], 0
    chosen = sorted({(i + 1) * len(states) // (n_starts + 1) for i in range(n_starts)})
    for state in [states[each] for each in chosen]:
        if list(state.glob("segmentlog.unfinished.*")):
            n_kept_out += 1
            with pytest.raises(RuntimeError, match=r"segmentlog\.unfinished"):
                running(state.parent, new_version, retains=False).start()
            segmentlog.delete_records(state, "deleted", 0, offset=7)
        log = segmentlog.open_log_dir(state).log("deleted", 0)
        starts.append(log.log_start_offset)
        broker = running(state.parent, new_version, retains=False)
        with broker, JavaClient(broker) as client:
            assert {0: (log.log_start_offset, 8)} == client.offsets("deleted"), state
            seen = [each.offset for each in client.consume("deleted")]
            assert [*range(log.log_start_offset, 8)] == seen, state
            until(lambda: not list(state.glob("*/*.deleted")))  # noqa: B023 - called at once
        assert not list(state.glob("*/*.deleted")), state
        assert [] == objections(broker), state
        assert_dump_is_sound(broker, "deleted-0")
        segmentlog.delete_records(state, "deleted", 0, offset=7)
        assert 7 == segmentlog.open_log_dir(state).log("deleted", 0).log_start_offset

    assert {*starts} <= {5, 7}
    assert n_kept_out
    assert 7 in starts


def _cut_at(log_dir: Path, number: int) -> None:
    made = 0

    def around(_: str, forward: Forward) -> object:
        nonlocal made
        made += 1
        if made > number:
            raise Crash
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        with pytest.raises(Crash):
            segmentlog.retain(log_dir, kafka_defaults=True)
