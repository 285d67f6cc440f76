"""Make ``written-<commit>.tar.xz`` and ``streamed-…``: directories as a version leaves them.

Run with the code of that version on the path, from the top of the checkout::

    PYTHONPATH=OLD/storage:OLD/connector:tests/support python tests/golden/make_written.py 3f21d4f7

``OLD`` is an unpacked ``git archive`` of the commit.  Each directory in ``written`` is one log
directory, or has a log directory ``logs`` beside others.  ``streamed`` has restorations that were
killed, and a stream between two log directories with its checkpoint.  `test_written.py` says what
they hold.
"""

import shutil
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

import pyarrow as pa
from crashing import copy_states
from golden_manifest import MANIFEST, digest_of, write_manifest
from other_cluster import format_brokers, restore_to
from written_jobs import CONFIG, copy_stream, number, stream

import segmentlog

HERE = Path(__file__).parent
#: What is in the archives.
MADE = {
    "written": "segmentlog's own directories: whole ones, a commit and a mirror cut at each step",
    "streamed": "segmentlog's own directories: restorations cut at each step, and a Spark stream",
}


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


def make_streamed(root: Path) -> None:
    """Make restorations that were killed, and a stream with its checkpoint."""
    source, to = whole(root / "restorations" / "source"), root / "scratch" / "restored"
    to.parent.mkdir()
    format_brokers(to)
    replicas = {"t": [[1], [1]], "s": [[1]]}
    copy_states(to, lambda: restore_to(source, [to], replicas), root / "restorations")
    shutil.rmtree(root / "scratch")

    from pyspark.sql import SparkSession

    from pyspark_segmentlog.source import SegmentLogDataSource

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = spark.getOrCreate()
    session.dataSource.register(SegmentLogDataSource)
    place = root / "stream"
    for i in range(2):
        number(place / "source", i)
        copy_stream(session, place)
    session.stop()
    for each in place.rglob(".*.crc"):
        each.unlink()


def main(version: str) -> None:
    """Make the archives, without times and owners."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
        return info

    parts = tomllib.loads(MANIFEST.read_text())
    for name, makes in {"written": make, "streamed": make_streamed}.items():
        with tempfile.TemporaryDirectory() as scratch:
            makes(Path(scratch))
            path = HERE / f"{name}-{version}.tar.xz"
            with tarfile.open(path, "w:xz") as archive:
                archive.add(scratch, ".", filter=plain)
        parts[path.name] = {"version": version, "made": MADE[name], "sha256": digest_of(path)}
    write_manifest(parts)


if __name__ == "__main__":
    main(sys.argv[1])
