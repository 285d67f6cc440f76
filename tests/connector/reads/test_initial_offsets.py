"""The file with a stream's initial offsets, which ``kafka`` reads and writes, too."""

import os
from pathlib import Path

import pytest

from pyspark_segmentlog.reads.stream_offsets import InitialOffsets
from segmentlog.errors import CorruptCheckpointError, OptionError, StorageError
from segmentlog.model import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 10)


def test_the_file_has_the_bytes_of_kafka(tmp_path: Path) -> None:
    """The file is complete when its name appears, and no draft is left."""
    location = tmp_path / "c" / "sources" / "0"
    offsets = InitialOffsets(location.as_uri())
    assert offsets.read() is None
    offsets.write({B: 7, A: 5})

    assert b'\0v1\n{"a":{"0":5},"b":{"10":7}}' == (location / "0").read_bytes()
    assert ({A: 5, B: 7}, {}) == offsets.read()
    assert ["0"] == os.listdir(location)


def test_the_offsets_of_another_run_stay(tmp_path: Path) -> None:
    """Two runs may start at once. The second one reads the offsets of the first one."""
    first, second = InitialOffsets(str(tmp_path)), InitialOffsets(str(tmp_path))
    first.write({A: 5})
    second.write({A: 9})

    assert ({A: 5}, {}) == second.read()
    assert ["0"] == os.listdir(tmp_path)


def test_a_file_of_the_first_version_is_read(tmp_path: Path) -> None:
    """Spark 2.1.0 wrote no version, and the length of the text in the first byte."""
    (tmp_path / "0").write_bytes(b'\x0d{"a":{"0":5}}')

    assert ({A: 5}, {}) == InitialOffsets(str(tmp_path)).read()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected JSON"),
        (b'\0v1\n{"a":{"0', "expected JSON"),
        (b'\0v1\n{"a":{"0":-2}}', "no offsets.*remove the file"),
        (b"v1\n5", "no offsets.*remove the file"),
        (b"\0v1\n" + b"[" * 100_000, "expected JSON"),
        (b"\0v1\n\xff", "is not UTF-8"),
        (b'\0v2\n{"a":{"0":5}}', "the version is v2"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """Another start would lose or repeat records."""
    (tmp_path / "0").write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=said):
        InitialOffsets(str(tmp_path)).read()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error has the path of the file."""
    (tmp_path / "file").touch()
    offsets = InitialOffsets(str(tmp_path / "file"))
    with pytest.raises(StorageError, match="file/0"):
        offsets.write({A: 5})
    with pytest.raises(OptionError, match="give a local directory"):
        InitialOffsets("s3://bucket/c/sources/0")
    with pytest.raises(OptionError, match="give a local directory"):
        InitialOffsets("hdfs:/c/sources/0")  # would be a local directory of that name
