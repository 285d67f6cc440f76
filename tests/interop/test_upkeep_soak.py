"""A writer, a stream, compaction and retention use one directory; a broker serves it at the end.

A checker knows the last value of every key. The writer and the upkeep are killed sometimes. The
long run takes an hour, or ``SOAK_SECONDS``; ``SOAK_SEED`` is the seed of the written data.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_here import Broker, JavaClient
from pyspark.sql import SparkSession
from soaking.checker import last_values
from soaking.history import History, Tail
from soaking.plan import PARTITIONS, Soak
from soaking.stream import Stream
from soaking.upkeep import Upkeep
from stressing.ledger import Ledger

import segmentlog

pytestmark = [pytest.mark.interop, pytest.mark.spark]

_SEED = int(os.environ.get("SOAK_SEED", "1"))
_PATIENCE = 240  # seconds that a slow machine has more, until all has happened
_MOST_FAULTS = 10  # that are printed
_SECONDS = float(os.environ.get("SOAK_SECONDS", "3600"))

SHORT = Soak(
    _SEED, seconds=10, n_keys=300, most_records=60, pause=0.05, compact_every=1.2,
    retain_every=3, poll_every=0.7, check_every=0.5, spark_every=3, writer_lives=5,
    delete_delay=3, tombstones_stay=4, timed_stay=4, sized_bytes=300_000,
    segment_bytes=30_000,
)  # fmt: skip
LONG = Soak(
    _SEED, seconds=_SECONDS, n_keys=3000, most_records=400, pause=0.4, compact_every=6,
    retain_every=10, poll_every=5, check_every=2, spark_every=4, writer_lives=30, delete_delay=15,
    tombstones_stay=45, timed_stay=40, sized_bytes=1_500_000, segment_bytes=150_000,
)  # fmt: skip


def made(directory: Path, version: str, run: Soak) -> Broker:
    """A stopped broker's directory with the topics."""
    broker = Broker(directory, version)
    common: dict[str, object] = {
        "internal_segment_bytes": run.segment_bytes,
        "file_delete_delay_ms": int(1000 * run.delete_delay),
        "index_interval_bytes": 500,
    }
    own: dict[str, dict[str, object]] = {
        "latest": {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": 0.05,
            "delete_retention_ms": int(1000 * run.tombstones_stay),
        },
        "sized": {"retention_bytes": run.sized_bytes, "retention_ms": -1},
        "timed": {"retention_ms": int(1000 * run.timed_stay)},
    }
    with broker, JavaClient(broker) as client:
        for topic, settings in own.items():
            client.create_topic(topic, PARTITIONS[topic], **common, **settings)
    return broker


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(SHORT, id="short", marks=pytest.mark.slow),
        pytest.param(
            LONG, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(_SECONDS + 900)]
        ),
    ],
)
def test_the_last_value_of_every_key_stays(
    new_version: str, spark: SparkSession, tmp_path: Path, say: Callable[[str], None], run: Soak
) -> None:
    broker = made(tmp_path / "kafka", new_version, run)
    directory, ledger = broker.log_dir, Ledger(tmp_path / "ledger")
    upkeep, notes = Upkeep(directory, ledger, run), Notes(ledger)
    stream = Stream(spark, directory, ledger, run)
    begun = time.monotonic()
    upkeep.start()
    try:
        n_polls = 0
        while is_on(time.monotonic() - begun, run, upkeep.counts + stream.counts, notes):
            stream.step()
            n_polls += 1
            if n_polls % run.spark_every == 0:
                stream.write()
            elif n_polls % run.spark_every == 1:
                stream.compact()
            time.sleep(run.poll_every)
        upkeep.end()
        stream.step()
    finally:
        upkeep.kill()
    for name in ("compact", "retain", "verify"):
        arguments = [name, str(directory), *(["--records", "--producers"] * (name == "verify"))]
        process = upkeep.command(*arguments)
        said, complained = process.communicate(timeout=120)
        if process.returncode:
            notes.bad.append(f"{name}: {said} {complained}")
    notes.update()
    counts = upkeep.counts + stream.counts + notes.checked
    history = History(run, ledger.path)
    since = history.update()
    counts += Counter({f"records written to {t}": n for t, n in history.n_records.items()})
    counts["commits"] = sum(each + 1 for each in since.values())
    counts["commits that a kill had interrupted after their decision"] = notes.n_again
    say(f"\nsoak {run}\n{table(counts)}")
    assert not notes.bad, "\n\n".join(notes.bad)
    assert not list(directory.glob("segmentlog.unfinished.*"))

    opened = segmentlog.open_log_dir(directory)
    logs = [opened.log("latest", each) for each in range(PARTITIONS["latest"])]
    found = last_values([each.scan(columns=["key", "value"]).read_all() for each in logs])
    assert since == history.begun
    assert not history.misfit(found, since)
    expected = {
        (each.topic, each.partition): opened.log(*each).bounds().end_offset
        for each in opened.topic_partitions()
        if each.topic in PARTITIONS
    }
    with broker, JavaClient(broker) as client:
        served = {each.key: each.value for each in client.consume("latest") if each.key}
        assert not history.misfit(served, since)
        for topic in PARTITIONS:
            for partition, (_, end) in client.offsets(topic).items():
                assert expected[topic, partition] == end
    assert not missing(counts)


class Notes:
    """Notes of the processes: faults, numbers of reads, repeated commits."""

    def __init__(self, ledger: Ledger) -> None:
        self._tail = Tail(ledger.path)
        self.bad: list[str] = []
        self.checked: Counter[str] = Counter()
        self.n_again = 0

    def update(self) -> None:
        for each in self._tail.events():
            self.bad += [each["text"]] if each["what"] == "bad" else []
            self.checked.update(each.get("counts", {}))
            self.n_again += bool(each.get("again"))


def is_on(past: float, run: Soak, counts: Counter[str], notes: Notes) -> bool:
    """Whether the run continues: for its time, and on a slow machine until enough has happened."""
    notes.update()
    is_enough = not missing(counts + notes.checked)
    is_due = past < run.seconds or (past < run.seconds + _PATIENCE and not is_enough)
    return is_due and len(notes.bad) < _MOST_FAULTS


def missing(counts: Counter[str]) -> list[str]:
    """Events that have not happened; the run does not test them."""
    wanted = (
        "compact: partitions", "compact: killed", "retain: segments", "kills of the writer",
        "stream: records", "jobs of Spark's", "reads, at once", "reads, held", "reads, dataset",
        "reads, retained", "records that retention has removed",
    )  # fmt: skip
    return [name for name in wanted if not counts[name]]


def table(counts: Counter[str]) -> str:
    """Counts, sorted by name."""
    return "\n".join(f"{counts[name]:12,d}  {name}" for name in sorted(counts))
