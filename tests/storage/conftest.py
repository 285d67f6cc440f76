"""Small logs, written by the reference encoder, and the files of logs that a read opens."""

import builtins
import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from segmentlog.testing.reference import Record, encode_batch

WriteLog = Callable[..., Path]


@pytest.fixture
def write_log(tmp_path: Path) -> WriteLog:
    """Write a partition: a list of segments, each a list of (offset, timestamp) batches."""

    def write(
        segments: Sequence[Sequence[tuple[int, int]]], name: str = "t-0", interval: int = 1
    ) -> Path:
        partition = tmp_path / name
        partition.mkdir()
        for segment in segments:
            base = segment[0][0]
            data, offsets, times, newest = b"", b"", b"", -1
            for i, (offset, timestamp_ms) in enumerate(segment):
                if i and i % interval == 0:
                    offsets += (offset - base).to_bytes(4, "big") + len(data).to_bytes(4, "big")
                data += encode_batch([Record(offset, timestamp_ms, b"k", b"v%d" % offset)])
                if timestamp_ms > newest:
                    newest = timestamp_ms
                    times += timestamp_ms.to_bytes(8, "big") + (offset - base).to_bytes(4, "big")
            stem = partition / f"{base:020d}"
            stem.with_suffix(".log").write_bytes(data)
            stem.with_suffix(".index").write_bytes(offsets)
            stem.with_suffix(".timeindex").write_bytes(times)
        return partition

    return write


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files that Python opens from here on."""
    # An audit hook would see them, too, but stay, and be called millions of times.
    paths: list[str] = []

    def noting(to_open: Callable[..., Any]) -> Callable[..., Any]:
        def note(path: object, *arguments: object, **more: object) -> object:
            if isinstance(path, str | os.PathLike):
                paths.append(os.fspath(path))
            return to_open(path, *arguments, **more)

        return note

    for module, name in ((os, "open"), (io, "open"), (builtins, "open")):
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    return paths


@pytest.fixture
def opening(opened: list[str]) -> Callable[[], contextlib.AbstractContextManager[list[str]]]:
    """A context that notes the ``.log`` files that are opened in it: partition and base offset."""

    @contextlib.contextmanager
    def note() -> Iterator[list[str]]:
        logs: list[str] = []
        opened.clear()
        yield logs
        names = (Path(each) for each in opened if each.endswith(".log"))
        logs += sorted({f"{each.parent.name}/{int(each.stem)}" for each in names})

    return note
