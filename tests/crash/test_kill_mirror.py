"""Mirrors are killed at random moments: the destination is a beginning of the log."""

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog

N_KILLS = 100
N_PARTITIONS = 3

#: Waits for a line, so that the time of its start does not count.
MIRROR = """
import sys, segmentlog, segmentlog.cluster.mirror
print(flush=True)
segmentlog.mirror(sys.argv[1], to=sys.argv[2])
"""


def size_of(directory: Path) -> int:
    """Bytes of the logs, those that are being copied included."""
    found = 0
    for each in directory.glob("t-*/*.log*"):
        with contextlib.suppress(FileNotFoundError):
            found += each.stat().st_size
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_mirror_that_was_killed_many_times_is_identical(tmp_path: Path) -> None:
    """The source grows between the kills; in the end, each byte of each log is there."""
    source, to, rng = tmp_path / "source", tmp_path / "to", random.Random(N_KILLS)
    config = segmentlog.ProducerConfig(segmentlog.TopicConfig(segment_bytes=500_000))
    n_bytes = []
    for _ in range(N_KILLS):
        with segmentlog.open_writer(
            source, "t", num_partitions=N_PARTITIONS, config=config
        ) as writer:
            writer.append(pa.table({"value": [rng.randbytes(20_000) for _ in range(60)]}))
        mirror = subprocess.Popen(
            [sys.executable, "-c", MIRROR, str(source), str(to)], stdout=subprocess.PIPE
        )
        assert mirror.stdout is not None
        mirror.stdout.readline()
        missing = size_of(source) - size_of(to)
        enough = size_of(to) + rng.uniform(0, 1.2) * missing
        while mirror.poll() is None and size_of(to) < enough:
            time.sleep(0.001)
        mirror.send_signal(signal.SIGKILL)
        mirror.wait()
        mirror.stdout.close()
        n_bytes.append(size_of(to))
        for partition in range(N_PARTITIONS):
            end_of = segmentlog.open_log_dir(source).log("t", partition).log_end_offset
            if [*to.glob(f"t-{partition}/*.log")]:
                log = segmentlog.open_log_dir(to).log("t", partition)
                assert len(log.scan(read_up_to="logEnd").read_all()) <= end_of
    assert len(segmentlog.mirror(source, to=to)) == N_PARTITIONS
    for each in source.glob("t-*/*"):
        if each.suffix == ".log":
            assert each.read_bytes() == (to / each.parent.name / each.name).read_bytes()
    assert {each.comparison for each in segmentlog.compare(source, to)} == {"equal"}
    assert len({*n_bytes}) > N_KILLS // 3, "few kills met a mirror at work"
