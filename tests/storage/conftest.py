"""Small logs, written by the reference encoder, and the files of logs that a read opens."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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


_LISTENING: list[list[str]] = []


def _listen(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _LISTENING and isinstance(arguments[0], str):
        for heard in _LISTENING:
            heard.append(arguments[0])


@pytest.fixture(scope="session")
def audited() -> None:
    """An audit hook of the interpreter, which cannot be removed again."""
    sys.addaudithook(_listen)


@pytest.fixture
def opening(audited: None) -> Callable[[], contextlib.AbstractContextManager[list[str]]]:
    """A context that notes the ``.log`` files that are opened in it: partition and base offset."""

    @contextlib.contextmanager
    def note() -> Iterator[list[str]]:
        heard, logs = [], []
        _LISTENING.append(heard)
        try:
            yield logs
        finally:
            _LISTENING.remove(heard)
            names = (Path(each) for each in heard if each.endswith(".log"))
            logs += sorted({f"{each.parent.name}/{int(each.stem)}" for each in names})

    return note
