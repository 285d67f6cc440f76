"""Directories that earlier versions of segmentlog left: this version continues each of them."""

import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from other_cluster import restore_to
from pyspark.sql import SparkSession

import segmentlog
from segmentlog.commit.repeated_writes import StreamBatch
from segmentlog.verification.findings import Severity
from segmentlog.writes.job import WriteJob
from segmentlog.writes.request import WriteRequest

ARCHIVES = sorted(Path(__file__).parent.glob("written-*.tar.xz"))
STREAMED = sorted(Path(__file__).parent.glob("streamed-*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda each: each.name.split(".")[0])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The directories of one version."""
    with tarfile.open(request.param) as archive:
        # As an attribute, because Python 3.11.3 and older have no argument for it.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    return tmp_path


@pytest.fixture(params=STREAMED, ids=lambda each: each.name.split(".")[0])
def streamed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The restorations and the stream of one version."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def number(directory: Path, version: int) -> None:
    """A numbered write, as `make_written` makes it."""
    with segmentlog.open_writer(directory, "t", txn_app_id="app", txn_version=version) as writer:
        values = [f"number {version} {i} {'v' * 60}" for i in range(4)]
        writer.append(pa.table({"value": values, "partition": [0, 1, 0, 1]}))


def stream(directory: Path, batch: int) -> bool:
    """A batch of the query; whether it was written."""
    job = WriteJob.begin(WriteRequest(str(directory), topic="s", stream="/checkpoints/s"))
    stager = job.stager(0)
    values = pa.array([b"batch %d %d" % (batch, i) for i in range(2)], pa.binary())
    stager.add(pa.record_batch({"value": values}))
    return job.commit([stager.finish()], batch=StreamBatch("query", batch, "next")).is_new


def numbers(directory: Path) -> list[str]:
    """The numbered writes that a reader sees, one entry for each record."""
    values = segmentlog.read(directory, "t")["value"].to_pylist()
    return sorted(each.decode().split()[1] for each in values)


def assert_continues(directory: Path, last: int) -> None:
    """Repeated writes are left out, and new ones are written once."""
    number(directory, last)
    assert not stream(directory, 1)
    assert numbers(directory) == sorted(str(i) for i in {0, 1, last} for _ in range(4))
    assert stream(directory, 2)
    number(directory, last + 1)
    number(directory, last + 1)
    assert [str(last + 1)] * 4 == [each for each in numbers(directory) if each > str(last)]
    assert 6 == segmentlog.read(directory, "s").num_rows
    assert [] == [each.message for each in segmentlog.verify(directory)]


def test_numbered_writes_and_streams_continue(written: Path) -> None:
    """The state has versions and batches; a writer that was killed has left staged files."""
    for name in ("whole", "staged"):
        assert_continues(written / name, 1)


@pytest.mark.parametrize("recovers", [True, False])
def test_an_unfinished_commit_is_finished_or_undone(written: Path, recovers: bool) -> None:
    """At each of its steps, by a recovery or by the next writer; then it is repeated."""
    states = sorted((written / "commit").iterdir())
    assert len(states) > 10
    for state in states[:: 1 if recovers else 3]:
        directory = state / "logs"
        assert numbers(directory) in (sorted("01" * 4), sorted("012" * 4))
        if recovers:
            segmentlog.recover(directory)
        assert_continues(directory, 2)


def test_a_mirror_that_was_killed_is_continued(written: Path) -> None:
    """At each of its steps; records of a failover are not lost that had not been lost by then."""
    source = written / "mirrors" / "source"
    states = [each for each in sorted((written / "mirrors").iterdir()) if each != source]
    assert len(states) > 20
    for state in states:
        to = state / "mirrored"
        segmentlog.mirror(source, to=to)
        assert {"equal"} == {each.comparison for each in segmentlog.compare(source, to)}
        # A mirror of that version has put records of the failover aside.
        kept = b"".join(each.read_bytes() for each in to.rglob("*.log*") if each.suffix != ".log")
        assert {f"number 2 {i}" for i in range(4)} == {
            text for i in range(4) if (text := f"number 2 {i}").encode() in kept
        }
        segmentlog.reindex(to)
        number(to, 4)
        assert not stream(to, 1)
        assert numbers(to) == sorted("0134" * 4)


def test_a_restoration_that_was_killed_is_repeated(streamed: Path) -> None:
    """At each of its steps; all records of all topics are there at once, or none."""
    source = streamed / "restorations" / "source"
    states = [each for each in sorted((streamed / "restorations").iterdir()) if each != source]
    assert len(states) > 20
    for state in states:
        to = state / "restored"
        if [*to.glob("*-[0-9]/*.log")]:
            assert sum(len(log.scan().read_all()) for log in segmentlog.open_log_dir(to)) in (
                0,
                12,
            )
        restore_to(source, [to], {"t": [[1], [1]], "s": [[1]]})
        assert ["equal"] * 3 == [each.comparison for each in segmentlog.compare(source, to)]
        assert {Severity.NOTE} == {each.severity for each in segmentlog.verify(to)}


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize("repeats", [False, True])
def test_a_stream_continues_from_its_checkpoint(
    streamed: Path, spark: SparkSession, repeats: bool
) -> None:
    """Of the source and of the sink; a batch that was committed before a kill is left out."""
    place = streamed / "stream"
    if repeats:
        max((place / "checkpoint" / "commits").iterdir()).unlink()
    number(place / "source", 2)
    rows = spark.readStream.format("segmentlog").option("subscribe", "t")
    query = (
        rows.option("startingOffsets", "earliest").load(str(place / "source"))
        .select("key", "value").writeStream.format("segmentlog").option("topic", "copy")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True).start(str(place / "sink"))
    )  # fmt: skip
    query.awaitTermination()
    copied = segmentlog.read(place / "sink", "copy")["value"].to_pylist()
    assert sorted("012" * 4) == sorted(each.decode().split()[1] for each in copied)
