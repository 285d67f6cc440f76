"""Readers, writers and upkeep work on one log directory at the same time, as hard as they can.

Writers append, move files, overwrite, create topics, fail in the middle, and are killed; so is a
process that compacts and retains, and recoveries.  Readers read in every possible way.  Their
results are compared with the order of the commits: each read sees one moment of the whole
directory.  `test_reads_beside_commits` has the single interleavings, `test_sequences` the
operations one after the other.

The work of each process comes from a seed, ``STRESS_SEED``.  The times of the work, and of the
kills, depend on the machine.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from numbered_jobs import LEVELS
from random_operations.ledger import Ledger, now
from random_operations.reader import READS, look
from random_operations.run import Processes, Run, run_command
from random_operations.verdict import Verdict, report, table, tally
from soundness import assert_tidy

import segmentlog
from segmentlog.txn.state import State

_WEEK = 8 * 24 * 3600
_SEED = int(os.environ.get("STRESS_SEED", "1"))

_WRITES = {
    "append": 22,
    "append_large": 6,
    "append_to_both": 6,
    "overwrite": 8,
    "number": 14,
    "produce": 14,
    "abort": 4,
    "recovering": 3,
    "forgetting": 3,
}
_UPKEEP = {"compacting": 4, "retaining": 4, "recovering": 1, "append": 2}

#: A run to try a change; on a slow machine, it continues until each kind of work was done.
SHORT = Run(
    _SEED, seconds=16, n_readers=3, writers=[_WRITES, _WRITES, _UPKEEP],
    topics={"few": 3, "more": 2, "latest": 2, "sized": 1, "timed": 1,
            **{f"new{number}": 3 for number in range(8)}},
    made=["few", "more", "latest", "sized", "timed"], compacted=["latest"], sized_bytes=20_000,
)  # fmt: skip
#: A run that is longer than Kafka's delay for files of overwritten records.
LONG = SHORT._replace(
    seconds=240,
    n_readers=4,
    writers=[_WRITES, _WRITES, _WRITES, _UPKEEP],
    delay_ms=60_000,
    longest_ms=75_000,
    least=5,
    topics={**SHORT.topics, **{f"new{number}": 3 for number in range(40)}},
)


def make_topics(directory: Path, run: Run) -> None:
    """The topics that exist from the beginning, with their settings."""
    of_topic = {
        "latest": {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.05",
            "delete.retention.ms": str(run.tombstones_ms),
        },
        "sized": {"retention.bytes": str(run.sized_bytes), "retention.ms": "-1"},
        "timed": {"retention.ms": str(run.timed_ms)},
    }
    for topic in run.made:
        with segmentlog.open_writer(directory, topic, num_partitions=run.topics[topic]):
            pass
        segmentlog.alter_settings(directory, topic, of_topic.get(topic, {"retention.ms": "-1"}))
    delay = {"file.delete.delay.ms": str(run.delay_ms), "index.interval.bytes": "100"}
    segmentlog.alter_settings(directory, None, delay)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory where possible: nothing here loses power, and syncs cost time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("run", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long")])
def test_each_look_is_one_moment_of_the_whole_directory(
    scratch: Path, say: Callable[[str], None], run: Run
) -> None:
    directory, ledger = scratch / "logs", Ledger(scratch / "ledger")
    make_topics(directory, run)
    first, begun = State.read(str(directory)), now()
    counts = Counter[str]()

    def is_enough() -> bool:
        counts.update(tally(ledger.events()))
        return not missing(counts, run)

    processes = Processes(directory, ledger, run)
    try:
        processes.watch(is_enough, lambda: time.sleep(0.2))
        processes.end()
    finally:
        processes.kill()
    for command in ("recover", "verify --records --producers"):
        run_command(command, directory)
    verdict = Verdict(Ledger(ledger.path).events(), run, first, State.read(str(directory)))
    say(f"\nstress {run}\n{table(verdict.counts)}")
    assert not verdict.failures, report(verdict.failures, begun)
    opened = segmentlog.open_log_dir(directory)
    for level in LEVELS:
        event = {"seen": look(opened, level), "changed": [], "at": now()}
        assert not verdict.difference(event, verdict.moments[-1]), level
    sweep(directory)
    assert_tidy(directory)
    assert not missing(verdict.counts, run)


def sweep(directory: Path) -> None:
    """Files of killed writers are removed when two jobs, a week apart, have found them old."""
    for _ in range(2):
        for path in directory.glob("segmentlog.*"):
            if path.is_file():
                os.utime(path, (time.time() - _WEEK, time.time() - _WEEK))
        with segmentlog.open_writer(directory, "few"):
            pass


def missing(counts: Counter[str], run: Run) -> dict[str, int]:
    """Events that were too rare. A run without them would prove nothing about them."""
    wanted = {
        f"job: {name}": 2 * run.least for each in run.writers for name in each if "ing" not in name
    }
    wanted |= {f"read: {kind}, {level}": run.least for kind in READS for level in LEVELS}
    wanted |= dict.fromkeys(["event: failed", "recovery: undid", "job: again"], run.least)
    wanted |= {f"upkeep: {kind}": run.least for kind in ("recovering", "forgetting")}
    wanted |= {
        f"upkeep: {kind}, partitions or files": run.least for kind in ("compacting", "retaining")
    }
    wanted["event: killed"] = 8 * run.least
    return {name: counts[name] for name, least in wanted.items() if counts[name] < least}
