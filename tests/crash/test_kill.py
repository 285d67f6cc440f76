"""Writers that are killed at random moments: what was acknowledged is there, once and in order."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import segmentlog
from segmentlog.log.findings import Severity
from segmentlog.log.journal import State, list_guards
from segmentlog.log.verify import verify_log

#: Writes job after job and prints the number of each once it is committed.
WRITER = """
import sys, pyarrow as pa, segmentlog
from segmentlog.log.config import TopicConfig
config = segmentlog.ProducerConfig(topic_config=TopicConfig(segment_bytes=20_000))
for number in range(int(sys.argv[2]), 10**9):
    rows = {"value": pa.array([b"%d" % number] * 40, pa.binary()),
            "partition": pa.array(list(range(4)) * 10, pa.int32())}
    with segmentlog.open_writer(
        sys.argv[1], "t", num_partitions=4, config=config, txn=("app", number)
    ) as writer:
        writer.append(pa.table(rows))
    print(number, flush=True)
"""


def step_of(directory: Path) -> str:
    """How far the commit had come that was killed."""
    guards = list_guards(str(directory))
    if not guards:
        return "no guard"
    if guards[0].intent() is None:
        return "guard without intent"
    is_decided = State.read(str(directory)).token == guards[0].token
    return "decided" if is_decided else "appending"


def check(directory: Path, acknowledged: int) -> int:
    """Whole jobs only, none twice, none missing; the number behind the last one that is there."""
    opened = segmentlog.open_log_dir(directory)
    seen = []
    for partition in range(4):
        values = opened.log("t", partition).scan(columns=["value"]).read_all()["value"]
        numbers = [int(value) for value in values.to_pylist()]
        assert numbers == sorted(numbers)
        assert {10} >= set(Counter(numbers).values())
        seen.append(set(numbers))
    assert all(each == seen[0] for each in seen)
    last = max(seen[0], default=-1)
    assert seen[0] == set(range(last + 1))
    assert last in (acknowledged, acknowledged + 1)
    return last + 1


@pytest.mark.parametrize(
    "n_kills", [20, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_killed_writers_lose_and_repeat_nothing(tmp_path: Path, n_kills: int) -> None:
    """Each is killed, the directory looked at as it lies, and the next one goes on."""
    directory, rng = tmp_path / "logs", random.Random(n_kills)
    acknowledged, steps = -1, Counter()
    for _ in range(n_kills):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), str(acknowledged + 1)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert writer.stdout is not None
        acknowledged = max(acknowledged, int(writer.stdout.readline()))
        time.sleep(rng.uniform(0, 0.1))
        writer.send_signal(signal.SIGKILL)
        printed = writer.stdout.read().split()
        writer.stdout.close()
        writer.wait()
        acknowledged = max([acknowledged, *map(int, printed)])
        steps[step_of(directory)] += 1
        check(directory, acknowledged)
    print(dict(steps))

    with segmentlog.open_writer(directory, "t"):  # an empty job recovers, too
        pass
    opened = segmentlog.open_log_dir(directory)
    for partition in range(4):
        found = verify_log(opened.log("t", partition), with_records=True)
        assert [] == [each for each in found if each.severity != Severity.NOTE]
    assert not list_guards(str(directory))
    assert n_kills - steps["no guard"] >= (0.3 * n_kills if n_kills > 100 else 1)
