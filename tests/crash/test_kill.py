"""Writers are killed at random moments: acknowledged jobs are there, once and in order."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from killing import N_PARTITIONS, N_ROWS, Reader, n_whole_jobs, step_of
from soundness import assert_settled

import segmentlog

#: Writes one job after the other and prints the number of each once it is committed.  The files of
#: every third job are large enough to be moved into the logs.
WRITER = f"""
import sys, pyarrow as pa, segmentlog
from segmentlog.format.topic_config import TopicConfig
config = segmentlog.ProducerConfig(topic_config=TopicConfig(segment_bytes=20_000))
for number in range(int(sys.argv[2]), 10**9):
    rows = {{"value": pa.array([b"%d" % number] * {N_ROWS * N_PARTITIONS}, pa.binary()),
            "partition": pa.array(list(range({N_PARTITIONS})) * {N_ROWS}, pa.int32())}}
    if number % 3 == 0:
        rows["key"] = pa.array([b"k" * 1000] * {N_ROWS * N_PARTITIONS}, pa.binary())
    with segmentlog.open_writer(
        sys.argv[1], "t", num_partitions={N_PARTITIONS}, config=config,
        txn_app_id="app", txn_version=number,
    ) as writer:
        writer.append(pa.table(rows))
    print(number, flush=True)
"""


@pytest.mark.parametrize(
    "n_kills", [3, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_killed_writers_lose_and_repeat_nothing(tmp_path: Path, n_kills: int) -> None:
    """After each kill, the directory is read as it is, and the next writer continues."""
    directory, rng = tmp_path / "logs", random.Random(n_kills)
    acknowledged, steps = -1, Counter()
    with segmentlog.open_writer(directory, "t", num_partitions=N_PARTITIONS):
        pass
    with Reader(directory) as reader:
        for _ in range(n_kills):
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, str(directory), str(acknowledged + 1)],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert writer.stdout is not None
            acknowledged = max(acknowledged, int(writer.stdout.readline()))
            time.sleep(rng.uniform(0, 0.1))
            writer.send_signal(signal.SIGKILL)
            printed = writer.stdout.read().split()
            writer.stdout.close()
            writer.wait()
            acknowledged = max([acknowledged, *map(int, printed)])
            steps[step_of(directory)] += 1
            assert n_whole_jobs(directory) - 1 in (acknowledged, acknowledged + 1)
            reader.await_look()
    print(dict(steps), reader.n_looks)

    with segmentlog.open_writer(directory, "t"):  # an empty job recovers, too
        pass
    assert_settled(directory)
    assert reader.n_looks >= n_kills
    segments = segmentlog.open_log_dir(directory).log("t", 0).segments
    assert {*range(0, acknowledged, 3)} <= {each.base_offset // N_ROWS for each in segments}
    if n_kills > 100:  # where a few kills come is a matter of luck
        assert n_kills - steps["no guard"] >= 0.3 * n_kills
