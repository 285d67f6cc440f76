"""``segmentlog produce`` makes records of lines, all of them or none."""

import io
import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import Result

import segmentlog
from segmentlog.errors import OptionError
from segmentlog.store.lock import DirectoryLock
from segmentlog.tools import produce
from segmentlog.tools.produce import records_of

Run = Callable[..., Result]


def rows(directory: Path, topic: str = "orders") -> list[tuple]:
    """Keys and values, in the order of partitions and offsets."""
    table = segmentlog.read(directory, topic, read_up_to="logEnd")
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("options", "lines", "expected"),
    [
        ((), "a\n\nb", [(None, b"a"), (None, b"b")]),
        (("-K", ":"), "k:v\nv\n:\n", [(b"k", b"v"), (None, b"v"), (b"", b"")]),
        (("-K", ":", "-Z"), "k:\n:v\n", [(b"k", None), (None, b"v")]),
        (("-k", "f", "-K", ":"), "k:v\nv\n", [(b"k", b"v"), (b"f", b"v")]),
        (("-D", ",", "-c", 2), "a,b,c", [(None, b"a"), (None, b"b")]),
        (("-z", "zstd", "-K", r"\t"), "k\tv\n", [(b"k", b"v")]),
    ],
)
def test_lines_become_records(
    run: Run, tmp_path: Path, options: tuple, lines: str, expected: list
) -> None:
    """Delimiters, nulls, keys and the count are those of kcat."""
    done = run("produce", tmp_path, "orders", *options, input=lines)
    n_records = f"{len(expected)} record{'s' if len(expected) > 1 else ''}"

    assert f"orders: {n_records}\n" == done.stdout
    assert expected == rows(tmp_path)


def test_partitions_and_headers(run: Run, tmp_path: Path) -> None:
    """A missing topic gets the number of partitions, and every record has the headers."""
    options = ("--num-partitions", 3, "-p", 2, "-H", "source=web", "-H", "flag", "--json")
    done = run("produce", tmp_path, "orders", *options, input="a\nb\n")
    log = segmentlog.open_log_dir(tmp_path).log("orders", 2)
    headers = log.scan(columns=["headers"]).read_all()["headers"].to_pylist()

    assert {"topic": "orders", "records": 2} == json.loads(done.stdout)
    assert [[{"key": "source", "value": b"web"}, {"key": "flag", "value": None}]] * 2 == headers


def test_another_writer_is_waited_for(run: Run, tmp_path: Path) -> None:
    """The lines are not lost if the directory is locked when the input ends."""
    with ExitStack() as held:
        held.enter_context(DirectoryLock(str(tmp_path)))
        threading.Timer(0.2, held.close).start()
        run("produce", tmp_path, "orders", input="a\n")

    assert [(None, b"a")] == rows(tmp_path)


def test_files_are_records_or_lines(run: Run, tmp_path: Path) -> None:
    """An empty file is left out, as an empty line is."""
    for name, text in (("a", "x:1\ny:2\n"), ("b", "z:3"), ("c", "")):
        (tmp_path / name).write_text(text)
    files = [tmp_path / name for name in "abc"]
    run("produce", tmp_path / "logs", "orders", "-K", ":", *files)
    run("produce", tmp_path / "logs", "lines", "-K", ":", "-l", *files)

    assert [(None, b"x:1\ny:2\n"), (None, b"z:3")] == rows(tmp_path / "logs")
    assert [(b"x", b"1"), (b"y", b"2"), (b"z", b"3")] == rows(tmp_path / "logs", "lines")


def test_nothing_is_written_if_the_input_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is missing, and a record without an end, write no record."""
    monkeypatch.setattr(produce, "_MOST_BYTES", 10)
    monkeypatch.setattr(produce, "_PIECE_BYTES", 6)
    (tmp_path / "a").write_text("short\n" + "x" * 20)
    for files in ([tmp_path / "a", tmp_path / "missing"], [tmp_path / "a"]):
        run("produce", tmp_path / "logs", "orders", "-l", *files, status=2)

    assert not [*(tmp_path / "logs").glob("orders*")]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("-D", ""), "--delimiter"),
        (("-H", "=x"), "--header"),
        (("-H", "\udcff=x"), "--header"),
        (("-p", 7), "partition"),
    ],
)
def test_wrong_options_are_refused(run: Run, tmp_path: Path, options: tuple, named: str) -> None:
    """The error names the option."""
    assert named in run("produce", tmp_path, "orders", *options, status=2, input="a").stderr


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"b", b"--", b"-", b"abc" * 5]), max_size=20).map(b"".join),
    st.sampled_from([b"-", b"--", b"ab", b"c"]),
    st.integers(1, 7),
)
def test_texts_are_split_at_delimiters(data: bytes, delimiter: bytes, piece_bytes: int) -> None:
    """Delimiters may lie on the edges of the pieces that are read."""

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(piece_bytes)

    found = [each for piece in records_of(Slow(data), delimiter) for each in piece.to_pylist()]

    assert [each for each in data.split(delimiter) if each] == found


def test_a_text_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the command is bounded, whatever the input is."""
    monkeypatch.setattr(produce, "_MOST_BYTES", 10)
    monkeypatch.setattr(produce, "_PIECE_BYTES", 4)
    with pytest.raises(OptionError, match="delimiter of its records"):
        list(records_of(io.BytesIO(b"x" * 20), b"\n"))
