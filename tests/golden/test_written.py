"""Directories that earlier versions of segmentlog left: this version continues each of them."""

import tarfile
import tomllib
from pathlib import Path

import pytest
from golden_manifest import MANIFEST, digest_of
from other_cluster import restore_to
from pyspark.sql import SparkSession
from written_jobs import copy_stream, number, stream

import segmentlog
from segmentlog.maintain.verification.findings import Severity

HERE = Path(__file__).parent
SOURCE = "source"  #: what was mirrored and restored, beside what kills have left


def extracted(archive: Path, to: Path, place: str, every: int = 1) -> list[Path]:
    """One of so many directories of a place of one version, in their order; and its source."""
    with tarfile.open(archive) as opened:
        # As an attribute, because Python 3.11.3 and older have no argument for it.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        below = {
            each: path[1]
            for each in opened.getmembers()
            if len(path := Path(each.name).parts) > 1 and path[0] == place
        }
        names = sorted({*below.values()} - {SOURCE})
        wanted = {*names[::every], SOURCE}
        opened.extractall(to, [each for each, name in below.items() if name in wanted])
    return [to / place / name for name in names[::every]]


each_written = pytest.mark.parametrize(
    "written", sorted(HERE.glob("written-*.tar.xz")), ids=lambda each: each.stem
)
each_streamed = pytest.mark.parametrize(
    "streamed", sorted(HERE.glob("streamed-*.tar.xz")), ids=lambda each: each.stem
)


def test_archives_are_those_of_the_manifest() -> None:
    """None is missing, none was added, and each says how it was made."""
    known = tomllib.loads(MANIFEST.read_text())
    found = {path.name: digest_of(path) for path in HERE.glob("*.tar.xz")}

    assert {name: known[name]["sha256"] for name in known if name.endswith(".xz")} == found
    assert all(known[name]["version"] in name and known[name]["made"] for name in found)


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


@each_written
@pytest.mark.parametrize("name", ["whole", "staged"])
def test_numbered_writes_and_streams_continue(written: Path, name: str, tmp_path: Path) -> None:
    """The state has versions and batches; a writer that was killed has left staged files."""
    assert extracted(written, tmp_path, name)
    assert_continues(tmp_path / name, 1)


#: A plain run continues every sixth directory that a kill has left, and each night all of them.
every = pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])


@every
@each_written
@pytest.mark.parametrize("recovers", [True, False])
def test_an_unfinished_commit_is_finished_or_undone(
    written: Path, recovers: bool, every: int, tmp_path: Path
) -> None:
    """At each of its steps, by a recovery or by the next writer; then it is repeated."""
    states = extracted(written, tmp_path, "commit", every)
    assert len(states) > 10 / every
    for state in states:
        directory = state / "logs"
        assert numbers(directory) in (sorted("01" * 4), sorted("012" * 4))
        if recovers:
            segmentlog.recover(directory)
        assert_continues(directory, 2)


@every
@each_written
def test_a_mirror_that_was_killed_is_continued(written: Path, every: int, tmp_path: Path) -> None:
    """At each of its steps; records of a failover are not lost that had not been lost by then."""
    states = extracted(written, tmp_path, "mirrors", every)
    source = tmp_path / "mirrors" / SOURCE
    assert len(states) > 20 / every
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


@every
@each_streamed
def test_a_restoration_that_was_killed_is_repeated(
    streamed: Path, every: int, tmp_path: Path
) -> None:
    """At each of its steps; all records of all topics are there at once, or none."""
    states = extracted(streamed, tmp_path, "restorations", every)
    source = tmp_path / "restorations" / SOURCE
    assert len(states) > 20 / every
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
@each_streamed
@pytest.mark.parametrize("repeats", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_stream_continues_from_its_checkpoint(
    streamed: Path, spark: SparkSession, repeats: bool, tmp_path: Path
) -> None:
    """Of the source and of the sink; a batch that was committed before a kill is left out."""
    assert extracted(streamed, tmp_path, "stream")
    place = tmp_path / "stream"
    if repeats:
        max((place / "checkpoint" / "commits").iterdir()).unlink()
    number(place / "source", 2)
    copy_stream(spark, place)
    copied = segmentlog.read(place / "sink", "copy")["value"].to_pylist()
    assert sorted("012" * 4) == sorted(each.decode().split()[1] for each in copied)
