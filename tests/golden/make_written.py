"""Make ``written-<commit>.tar.xz``: directories as a version of segmentlog leaves them.

Run with the code of that version on the path, from the top of the checkout::

    PYTHONPATH=OLD/storage:OLD/tests/support python tests/golden/make_written.py 3f21d4f7

``OLD`` is an unpacked ``git archive`` of the commit.  Each directory in the archive is one log
directory, or has a log directory ``logs`` beside others; `test_written.py` says what they hold.
"""

import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import pyarrow as pa
from crashing import copy_states

import segmentlog
from segmentlog.commit.repeated_writes import StreamBatch
from segmentlog.writes.job import WriteJob
from segmentlog.writes.request import WriteRequest

HERE = Path(__file__).parent
CONFIG = segmentlog.ProducerConfig(segmentlog.TopicConfig(segment_bytes=300))


def number(directory: Path, version: int) -> None:
    """A numbered write of four records to two partitions."""
    with segmentlog.open_writer(
        directory, "t", num_partitions=2, config=CONFIG, txn_app_id="app", txn_version=version
    ) as writer:
        values = [f"number {version} {i} {'v' * 60}" for i in range(4)]
        writer.append(pa.table({"value": values, "partition": [0, 1, 0, 1]}))


def stream(directory: Path, batch: int) -> None:
    """A batch of a streaming query, of two records."""
    request = WriteRequest(str(directory), topic="s", stream="/checkpoints/s")
    job = WriteJob.begin(request)
    stager = job.stager(0)
    values = pa.array([b"batch %d %d" % (batch, i) for i in range(2)], pa.binary())
    stager.add(pa.record_batch({"value": values}))
    job.commit([stager.finish()], batch=StreamBatch("query", batch, "run"))


def whole(directory: Path) -> Path:
    """Two numbered writes and two batches of a stream."""
    for i in range(2):
        number(directory, i)
        stream(directory, i)
    return directory


def make(root: Path) -> None:
    """Make all directories."""
    whole(root / "whole")
    unfinished = whole(root / "scratch" / "logs")
    copy_states(unfinished, lambda: number(unfinished, 2), root / "commit")
    staged = whole(root / "staged")
    writer = segmentlog.open_writer(staged, "t", config=CONFIG)
    writer.append(pa.table({"value": ["staged"] * 100}))
    shutil.copytree(staged, root / "killed")  # while the writer is at work
    writer.abort()
    shutil.rmtree(staged)
    (root / "killed").rename(staged)
    source, to = whole(root / "mirrors" / "source"), root / "scratch" / "mirrored"
    segmentlog.mirror(source, to=to)
    number(to, 2)  # written to after a failover: the next mirror cuts it
    number(source, 3)
    number(source, 4)
    copy_states(to, lambda: segmentlog.mirror(source, to=to), root / "mirrors")
    shutil.rmtree(root / "scratch")


def main(version: str) -> None:
    """Make the archive, without times and owners."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
        return info

    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch))
        with tarfile.open(HERE / f"written-{version}.tar.xz", "w:xz") as archive:
            archive.add(scratch, ".", filter=plain)


if __name__ == "__main__":
    main(sys.argv[1])
