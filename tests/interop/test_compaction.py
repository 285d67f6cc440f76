"""The broker's cleaner and ours compact copies of real producers' logs; consumers read both.

`test_cleaner` has many random logs. A running broker uses its own clock, so our compaction uses
the time at which the broker cleaned the log, from the delete horizons.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from compaction.batches import lay_out, records_of
from compaction.leading import Leader
from crashing import CALLS, Crash, Forward, around_calls, copy_states, crash_at
from dirty_logs import Kind, dirty_log, write_segments
from kafka_here import Broker, JavaClient, KafkaRecord, assert_dump_is_sound, objections
from kafka_here.gateway import Gateway
from kafka_here.java import Outgoing
from kafka_here.log_classes import KafkaLogs
from kept_records import kept

import segmentlog
from segmentlog.errors import LogDirectoryError, LogLockedError
from segmentlog.format.names import CLEANER_OFFSET_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets
from segmentlog.maintain import clean_task
from segmentlog.model import TopicPartition
from segmentlog.store.lock import TaskLock

pytestmark = pytest.mark.interop

DELETE_RETENTION_MS = 7_200_000
SEGMENT_BYTES = 3000
OURS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "min.cleanable.dirty.ratio": "0.0001",
    "index.interval.bytes": "200",
}
BROKER = {"producer.id.expiration.ms": 2**31 - 1, "log.segment.delete.delay.ms": 100}


def records(n: int, first: int = 0) -> list[Outgoing]:
    """Records of a few keys, with some tombstones, and times that rise and fall."""
    now_ms = int(time.time() * 1000) - 1_000_000
    return [
        Outgoing(
            b"k%d" % (i * 7 % 23),
            None if i % 11 == 0 else b"%d " % i * (i % 9),
            [("h", b"%d" % i)][: i % 2],
            now_ms + i * 100 - (i % 5) * 3000,
            0,
        )
        for i in range(first, first + n)
    ]


def _plain(client: JavaClient, topic: str, first: int) -> None:
    client.produce(topic, records(150, first), batch_size=400, enable_idempotence="false")


def _idempotent(client: JavaClient, topic: str, first: int) -> None:
    for i in range(3):
        client.produce(topic, records(60, first + 50 * i), batch_size=300)


def _compressed(codec: str) -> Callable[[JavaClient, str, int], None]:
    def make(client: JavaClient, topic: str, first: int) -> None:
        client.produce(topic, records(200, first), batch_size=900, compression_type=codec)

    return make


def _transactions(client: JavaClient, topic: str, first: int) -> None:
    for i, end in enumerate(["commit", "abort", "commit", "abort", "commit"]):
        client.produce(
            topic,
            records(25, first + 20 * i),
            transactions=[end],
            batch_size=300,
            transactional_id=f"{topic}-{i % 2}",
        )


TOPICS: Mapping[str, Callable[[JavaClient, str, int], None]] = {
    "plain": _plain,
    "idempotent": _idempotent,
    "transactions": _transactions,
    **{codec: _compressed(codec) for codec in ("gzip", "snappy", "lz4", "zstd")},
}


def running(directory: Path, version: str, *, cleans: bool) -> Broker:
    settings = {**BROKER, "log.cleaner.enable": str(cleans).lower()}
    return Broker(directory, version, settings=settings)


@pytest.fixture(scope="module")
def filled(new_version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's directory without any compaction, stopped cleanly."""
    directory = tmp_path_factory.mktemp("filled") / "kafka"
    with running(directory, new_version, cleans=False) as broker, JavaClient(broker) as client:
        for topic, make in TOPICS.items():
            client.create_topic(
                topic,
                1,
                cleanup_policy="compact",
                internal_segment_bytes=SEGMENT_BYTES,
                index_interval_bytes=200,
                delete_retention_ms=DELETE_RETENTION_MS,
                min_cleanable_dirty_ratio=0.0001,
                segment_ms=10**12,
            )
            make(client, topic, 0)
    return directory


def copied(directory: Path, to: Path) -> Path:
    return Path(shutil.copytree(directory, to, copy_function=shutil.copy2))


def cleaned_to(directory: Path) -> dict[str, int]:
    found = read_offsets(str(directory / "logs0"), CLEANER_OFFSET_CHECKPOINT)
    return {topic: found.get(TopicPartition(topic, 0), 0) for topic in TOPICS}


def until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)


def active_bases(directory: Path) -> dict[str, int]:
    return {
        topic: max(int(path.stem) for path in (directory / "logs0" / f"{topic}-0").glob("*.log"))
        for topic in TOPICS
    }


def wait_until_cleaned(directory: Path) -> None:
    """Wait until the broker's cleaner has reached the active segment of each topic."""
    deadline = time.monotonic() + 60
    while cleaned_to(directory) != active_bases(directory):
        assert time.monotonic() < deadline, (cleaned_to(directory), active_bases(directory))
        time.sleep(0.1)


def cleaning_ms(partition: Path) -> int | None:
    """The time at which a log was cleaned, if a delete horizon shows it."""
    horizons = {
        batch.delete_horizon_ms
        for batches in kept(partition).values()
        for batch in batches
        if batch.delete_horizon_ms is not None
    }
    assert len(horizons) <= 1
    return min(horizons) - DELETE_RETENTION_MS if horizons else None


def consumed(client: JavaClient) -> dict[str, dict[str, list[KafkaRecord]]]:
    return {
        isolation: client.consume_each(TOPICS, isolation=isolation)
        for isolation in ("read_uncommitted", "read_committed")
    }


@pytest.mark.thorough
def test_a_brokers_cleaner_and_ours(new_version: str, filled: Path, tmp_path: Path) -> None:
    """Batches and consumers' rows are equal. Then the broker continues with our directory."""
    theirs, ours = copied(filled, tmp_path / "theirs"), copied(filled, tmp_path / "ours")
    with running(theirs, new_version, cleans=True) as broker, JavaClient(broker) as client:
        wait_until_cleaned(theirs)
        expected = consumed(client)
    for topic in TOPICS:
        partition = theirs / "logs0" / f"{topic}-0"
        (done,) = segmentlog.compact(
            ours / "logs0",
            [topic],
            now_ms=cleaning_ms(partition),
            settings=OURS,
            producer_expiration_ms=2**31 - 1,
        )
        assert done.records_after < done.records_before
        assert kept(partition) == kept(ours / "logs0" / f"{topic}-0"), topic
        assert expected["read_committed"][topic]
    assert cleaned_to(theirs) == cleaned_to(ours)
    with running(ours, new_version, cleans=True) as broker, JavaClient(broker) as client:
        assert expected == consumed(client)
        assert_dump_is_sound(broker, *(f"{topic}-0" for topic in TOPICS))
        ends = {topic: client.offsets(topic) for topic in TOPICS}
        for topic, make in TOPICS.items():
            make(client, topic, 1000)
        wait_until_cleaned(ours)
        after = consumed(client)
    for topic in TOPICS:
        keys = [each.key for each in after["read_committed"][topic]]
        assert ends[topic][0][1] < after["read_committed"][topic][-1].offset
        assert len(keys) < len(expected["read_committed"][topic]) + 400
        assert set(keys) == {each.key for each in after["read_uncommitted"][topic]}
    before = newest(ours)
    segmentlog.compact(ours / "logs0", [*TOPICS], settings=OURS)
    assert before == newest(ours)


def newest(directory: Path) -> dict[str, dict[Any, Any]]:
    """The newest value of each key that a reader of committed records finds."""
    opened = segmentlog.open_log_dir(directory / "logs0")
    found = {}
    for topic in TOPICS:
        scan = opened.log(topic, 0).scan(
            columns=["key", "value"], isolation_level="read_committed"
        )
        rows = scan.read_all().to_pylist()
        latest = {row["key"]: row["value"] for row in rows}
        found[topic] = {key: value for key, value in latest.items() if value is not None}
    return found


def test_a_broker_s_lock_beside_a_task_whose_leader_was_killed(
    java: Gateway, tmp_path: Path
) -> None:
    """A broker gets the directory only after the task has ended, and then keeps tasks out."""
    lay_out(tmp_path, {base: [records_of(base, (b"key", b"value"))] for base in range(3)})
    lock_file = java.jvm.java.io.File(str(tmp_path / ".lock"))
    lock = java.jvm.org.apache.kafka.server.util.FileLock(lock_file)
    with Leader(tmp_path, {}) as leader, TaskLock(leader.tasks[0].share, 1) as task:
        assert not lock.tryLock()
        assert task.take()
        leader.kill()
        assert not task.is_shared()
        assert not lock.tryLock()
        task.close()
        assert lock.tryLock()
        before = sorted(path.name for path in (tmp_path / "t-0").iterdir())
        with pytest.raises(LogDirectoryError, match="has ended"):
            clean_task(leader.tasks[0])
        with pytest.raises(LogLockedError) as caught:
            segmentlog.compact(tmp_path, settings=OURS)
        assert caught.value.process > 0
        lock.destroy()
    assert before == sorted(path.name for path in (tmp_path / "t-0").iterdir())


#: The logs of a compaction that is stopped.
STOPPED = ("transactions", "plain", "idempotent", "lz4")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n_starts", [40])
def test_a_broker_starts_after_every_step(
    new_version: str, filled: Path, tmp_path: Path, n_starts: int
) -> None:
    """It serves each log as before or as after the step, as our reader does, without errors.

    The broker deletes the leftovers of the compaction, so the next compaction finds nothing to
    finish.
    """
    log_dir = copied(filled, tmp_path / "whole") / "logs0"
    states = copy_states(
        log_dir,
        lambda: segmentlog.compact(log_dir, STOPPED, settings=OURS),
        tmp_path / "states",
        (".cleaned", ".lock"),
    )
    before, after = _read(states[0]), _read(states[-1])
    assert all(len(after[each]) < len(before[each]) for each in before)
    n_as_before = 0
    for i in range(n_starts):
        state = states[(i + 1) * len(states) // (n_starts + 1)]
        seen = _read(state)
        n_as_before += sum(seen[each] == before[each] for each in seen)
        assert all(seen[each] in (before[each], after[each]) for each in seen), state
        with running(state.parent, new_version, cleans=False) as broker:
            with JavaClient(broker) as client:
                assert seen == _served(client), state
            until(lambda: not _left_over(state))  # noqa: B023 - called at once
        assert [] == _left_over(state)
        assert [] == objections(broker), state
        assert_dump_is_sound(broker, *(f"{topic}-0" for topic in STOPPED))
        segmentlog.compact(state, STOPPED, settings=OURS)
        assert after == _read(state), state

    assert len(states) >= 40
    assert 0 < n_as_before < n_starts * len(before)


def _read(log_dir: Path) -> dict[tuple[str, str], list[tuple[int, bytes | None]]]:
    """Offsets and values of the stopped logs, by our reader."""
    opened, found = segmentlog.open_log_dir(log_dir), {}
    for topic in STOPPED:
        for isolation in ("read_uncommitted", "read_committed"):
            rows = opened.log(topic, 0).scan(isolation_level=isolation).read_all()
            pairs = zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True)
            found[topic, isolation] = list(pairs)
    return found


def _served(client: JavaClient) -> dict[tuple[str, str], list[tuple[int, bytes | None]]]:
    """Offsets and values of the logs, by a consumer."""
    return {
        (topic, isolation): [(each.offset, each.value) for each in records]
        for isolation in ("read_uncommitted", "read_committed")
        for topic, records in client.consume_each(STOPPED, isolation=isolation).items()
    }


def _left_over(log_dir: Path) -> list[str]:
    endings = (".cleaned", ".swap", ".deleted")
    return [path.name for path in log_dir.glob("*/*") if path.name.endswith(endings)]


NOW_MS = 1_800_000_000_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    "stride", [11, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_kafka_loads_the_log_after_every_step(java: Gateway, tmp_path: Path, stride: int) -> None:
    """Our reader finds the records that Kafka's loader finds, and no file is left over."""
    made = tmp_path / "made"
    kind = Kind(producers=2, n_keys=5, n_batches=40)
    write_segments(made / "t-0", dirty_log(4, kind, NOW_MS), NOW_MS)
    settings = {"t": {"cleanup.policy": "compact", "internal.segment.bytes": SEGMENT_BYTES}}
    with KafkaLogs(java, made, settings, NOW_MS):
        pass
    n_calls = _count_calls(copied(made, tmp_path / "counted"))
    outcomes, after = [], rows_of(tmp_path / "counted")
    end = segmentlog.open_log_dir(made).log("t", 0).log_end_offset
    for number in range(stride // 2, n_calls, stride):
        directory = copied(made, tmp_path / str(number))
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            with pytest.raises(Crash):
                _compact(directory)
        seen = rows_of(directory)
        with KafkaLogs(java, directory, settings, NOW_MS) as logs:
            assert end == logs.log("t").logEndOffset()
        assert seen == rows_of(directory), number
        assert not [*directory.glob("t-0/*.swap"), *directory.glob("t-0/*.cleaned")], number
        _compact(directory)
        assert rows_of(directory)[-1] == after[-1]
        outcomes.append(seen)
        shutil.rmtree(directory)

    assert n_calls > 40
    assert all(each in (rows_of(made), after) for each in outcomes)
    assert {len(after), len(rows_of(made))} == {len(each) for each in outcomes}


def rows_of(directory: Path) -> list[tuple[int, bytes | None]]:
    rows = segmentlog.open_log_dir(directory).log("t", 0).scan().read_all()
    return list(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))


def _compact(directory: Path) -> None:
    segmentlog.compact(directory, settings=OURS, now_ms=NOW_MS)


def _count_calls(directory: Path) -> int:
    made = 0

    def count(_: str, forward: Forward) -> object:
        nonlocal made
        made += 1
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, count)
        _compact(directory)
    return made
