"""Topic ids and ``meta.properties`` are read."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from segmentlog.errors import CorruptCheckpointError
from segmentlog.log import checkpoint
from segmentlog.log.checkpoint import known_topic_id, read_meta_properties, read_topic_id
from segmentlog.store.readable import read_whole


@pytest.mark.parametrize(
    "text",
    [
        "version: 0\ntopic_id: mZ-_3kXkQ5uH0sW9y1aBcD",
        "version: 0\ntopic_id: mZ-_3kXkQ5uH0sW9y1aBcD\n",
        "version: 0\r\ntopic_id: mZ-_3kXkQ5uH0sW9y1aBcD\r\n",
        "version: 1\ntopic_id: mZ-_3kXkQ5uH0sW9y1aBcD==\n",
        "version: 0\ntopic_id: mZ-_3kXkQ5uH0sW9y1aBcD\nmore: 1\n",
    ],
)
def test_the_topic_id_is_what_kafka_prints(tmp_path: Path, text: str) -> None:
    """Line ends and padding are not a part of the id."""
    (tmp_path / "partition.metadata").write_text(text, newline="")

    assert "mZ-_3kXkQ5uH0sW9y1aBcD" == read_topic_id(str(tmp_path))


def test_a_partition_without_metadata_has_no_topic_id(tmp_path: Path) -> None:
    """Brokers before 2.8 do not write this file."""
    assert read_topic_id(str(tmp_path)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 0\n",
        "topic_id: mZ-_3kXkQ5uH0sW9y1aBcD\n",
        "version: x\ntopic_id: mZ-_3kXkQ5uH0sW9y1aBcD\n",
        "version: 0\ntopic_id: short\n",
        "version: 0\ntopic_id: mZ-_3kXkQ5uH0sW9y1aBc!\n",
        "version: 0\ntopic_id: mZ-_3kXkQ5uH0sW9y1aBcD \n",
    ],
)
def test_metadata_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    """The message names the file."""
    (tmp_path / "partition.metadata").write_text(text)

    with pytest.raises(CorruptCheckpointError, match=r"partition\.metadata, line 1: .*topic_id"):
        read_topic_id(str(tmp_path))


def test_a_known_topic_id_is_read_again_only_if_the_file_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another topic with the name has another file, or none."""
    reads = []

    def counted(*args: Any) -> bytes:
        reads.append(args)
        return read_whole(*args)

    monkeypatch.setattr(checkpoint, "read_whole", counted)
    path = tmp_path / "partition.metadata"
    ids = ["mZ-_3kXkQ5uH0sW9y1aBcD", "AZ-_3kXkQ5uH0sW9y1aBcD"]
    for late, n_reads in ((False, 2), (True, 1)):
        if late:  # the clock of the file system has moved on since the file was written
            now = time.time_ns() + 100 * 10**9
            monkeypatch.setattr("segmentlog.store.fingerprint.time.time_ns", lambda now=now: now)
        for each in ids:
            replaced = tmp_path / "new"
            replaced.write_text(f"version: 0\ntopic_id: {each}\n")
            os.utime(replaced, ns=(10**18, 10**18))  # a copy may keep the times of files
            replaced.replace(path)
            reads.clear()
            assert [each, each] == [known_topic_id(str(tmp_path)) for _ in range(2)]
            assert n_reads == len(reads)
    path.write_text("version: x")
    assert "" == known_topic_id(str(tmp_path))
    path.unlink()
    assert "" == known_topic_id(str(tmp_path))


def test_properties_are_read_as_java_writes_them(tmp_path: Path) -> None:
    """Comments, escapes and all three separators of `java.util.Properties` are understood."""
    lines = [
        "#",
        "#Mon Jan 01 00:00:00 UTC 2024",
        "! a comment too",
        "",
        "node.id=1",
        r"cluster.id=abc\=\=\:d\#\!",
        "spaced = value with blanks ",
        "colon:x=y",
        "blank x",
        r"a\ key\=with\:all=1",
        r"path=C\:\\logs\\n",
        r"unicode=\u00e9\u4E2D",
        r"controls=a\tb\nc\rd\fe",
        "empty=",
        "alone",
        "latin=\xe9",
    ]
    (tmp_path / "meta.properties").write_bytes("\n".join(lines).encode("latin-1"))
    expected = {
        "node.id": "1",
        "cluster.id": "abc==:d#!",
        "spaced": "value with blanks",
        "colon": "x=y",
        "blank": "x",
        "a key=with:all": "1",
        "path": r"C:\logs\n",
        "unicode": "é中",
        "controls": "a\tb\nc\rd\fe",
        "empty": "",
        "alone": "",
        "latin": "é",
    }

    assert expected == read_meta_properties(str(tmp_path))


def test_a_directory_without_properties_has_none(tmp_path: Path) -> None:
    """A copied directory may lack the file."""
    assert {} == read_meta_properties(str(tmp_path))
