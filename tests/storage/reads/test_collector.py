"""Python's collector of cyclic garbage waits while a directory is planned."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import segmentlog
from segmentlog.reads.snapshot import without_collector
from segmentlog.testing.reference import Record, encode_batch


@pytest.fixture(autouse=True)
def is_restored() -> Iterator[None]:
    """The collector is on after a test, even if the test fails."""
    yield
    gc.enable()


def test_the_collector_waits_and_is_on_again() -> None:
    """Only the outermost of nested contexts turns the collector on again."""
    with without_collector():
        with without_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()

    assert gc.isenabled()


def test_the_collector_is_on_again_after_an_error() -> None:
    """A plan that fails leaves the collector on."""
    with pytest.raises(KeyError), without_collector():
        raise KeyError

    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    """If the user has turned the collector off, a plan does not turn it on."""
    gc.disable()

    with without_collector():
        pass

    assert not gc.isenabled()


def test_a_large_directory_is_opened_and_measured_without_it(tmp_path: Path) -> None:
    """A large directory has many objects, and all of them stay."""
    for number in range(200):
        partition = tmp_path / f"t-{number}"
        partition.mkdir()
        (partition / f"{0:020d}.log").write_bytes(encode_batch([Record(0, 0, b"k", b"v")]))
    gc.collect()
    before = sum(each["collections"] for each in gc.get_stats())

    directory = segmentlog.open_log_dir(tmp_path)
    ends = directory.end_offsets(directory.topic_partitions())

    assert {1} == set(ends.values())
    # One collection may follow each of the two calls: the collector has counted their objects.
    assert sum(each["collections"] for each in gc.get_stats()) <= before + 2
    assert gc.isenabled()
