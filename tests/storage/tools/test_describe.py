"""The description of directories."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import segmentlog
from segmentlog.testing.reference import Record, encode_batch

Run = Callable[..., Result]
T0 = 1_700_000_000_000


def described(result: Result) -> dict[str, dict]:
    """Objects of the JSON output, by partition."""
    found = map(json.loads, result.stdout.splitlines())
    return {f"{row['topic']}-{row['partition']}": row for row in found}


def test_every_partition_of_a_directory_is_described(run: Run, example_data: str) -> None:
    """Offsets, sizes and counts are those of the library, also for internal topics."""
    found = described(run("describe", example_data, "--json"))
    directory = segmentlog.open_log_dir(example_data)

    assert list(map(str, directory.topic_partitions())) == list(found)
    for name, row in found.items():
        topic, _, partition = name.rpartition("-")
        log = directory.log(topic, int(partition))

        assert (
            log.topic_id,
            log.log_start_offset,
            log.high_watermark,
            log.log_end_offset,
            len(log.segments),
            log.size_bytes,
            None,
        ) == (
            row["topicId"],
            row["logStartOffset"],
            row["highWatermark"],
            row["logEndOffset"],
            row["segments"],
            row["bytes"],
            row["problem"],
        )


def test_formats_and_codecs_come_from_headers(run: Run, tmp_path: Path) -> None:
    """The first and last batches count by default, and every batch with `--all`."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    codecs = [0, 4, 2]  # only `--all` reads the middle batch
    data = b"".join(
        encode_batch([Record(i, T0 + offset, b"k", b"v")], attributes=codec)
        for i, (codec, offset) in enumerate(zip(codecs, [0, 50, 9], strict=True))
    )
    (partition / f"{0:020d}.log").write_bytes(data)
    (partition / f"{0:020d}.index").write_bytes(bytes(8))
    row = described(run("describe", partition, "--json"))["t-0"]
    every = described(run("describe", partition, "--json", "--all"))["t-0"]

    assert ([2], ["none", "snappy"], None) == (row["formats"], row["codecs"], row["batches"])
    assert (["none", "snappy", "zstd"], 3) == (every["codecs"], every["batches"])
    assert (T0, T0 + 50) == (every["firstTimestamp"], every["lastTimestamp"])
    assert "from the first and last batches" in run("describe", partition).stderr
    assert "" == run("describe", partition, "--all").stderr


def test_only_few_headers_are_read_by_default(
    run: Run, write_log: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost does not depend on the number of indexed batches."""
    from segmentlog.log.segment import Segment

    path = write_log([[(i, T0 + i) for i in range(500)], [(i, T0 + i) for i in range(500, 900)]])
    read, original = [], Segment.headers

    def counted(self: Segment, *arguments: Any, **named: Any) -> object:
        for placed in original(self, *arguments, **named):
            read.append(placed)
            yield placed

    monkeypatch.setattr(Segment, "headers", counted)
    row = described(run("describe", path, "--json"))["t-0"]

    assert (T0, T0 + 899) == (row["firstTimestamp"], row["lastTimestamp"])
    assert len(read) < 20


def test_a_topic_can_be_chosen(run: Run, example_data: str) -> None:
    """A topic is chosen by its whole name; several may be chosen."""
    found = described(
        run("describe", example_data, "--json", "--topic", "orders", "--topic", "customers")
    )

    assert ["customers-0", "orders-0", "orders-1", "orders-2"] == list(found)
    assert "did you mean" in run("describe", example_data, "--topic", "ordrs", status=2).stderr


def test_a_damaged_partition_hides_no_other(run: Run, write_log: Callable[..., Path]) -> None:
    """The row of the damaged partition has the reason.

    Other rows are complete, and the status is 1.
    """
    good = write_log([[(0, T0), (1, T0)]])
    bad = write_log([[(0, T0), (1, T0), (2, T0)]], name="u-0")
    file = bad / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    data[16] = 9
    file.write_bytes(data)
    found = described(run("describe", good.parent, "--json", status=1))
    printed = run("describe", good.parent, status=1)

    assert (None, 2) == (found["t-0"]["problem"], found["t-0"]["logEndOffset"])
    assert found["u-0"]["problem"]
    assert len(data) == found["u-0"]["bytes"]
    assert "u-0: " in printed.stderr


def test_one_segment_need_not_reach_the_watermark(
    run: Run, write_log: Callable[..., Path]
) -> None:
    """A file of a longer log is as it should be; a log that ends too early is a problem."""
    path = write_log([[(0, T0)], [(1, T0)]])
    (path.parent / "replication-offset-checkpoint").write_text("0\n1\nt 0 9\n")
    run("describe", path / f"{0:020d}.log")

    row = described(run("describe", path, "--json", status=1))["t-0"]
    assert row["problem"].startswith("offsets [2, 9) are missing: the high watermark is 9")


def test_a_damaged_end_is_a_problem(run: Run, write_log: Callable[..., Path]) -> None:
    """Good batches follow bad ones. The log continues there, and reads fail."""
    path = write_log([[(i, T0 + i) for i in range(9)]], interval=100)
    file = path / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    row = described(run("describe", path, "--json", status=1))["t-0"]

    assert "damaged from offset 4 on" in row["problem"]


@pytest.mark.parametrize("tail", [bytes(1 << 20), b"\x02" * 300])
def test_a_torn_tail_is_no_problem(run: Run, write_log: Callable[..., Path], tail: bytes) -> None:
    """Bytes that a killed broker has preallocated, or written in part, have no headers."""
    path = write_log([[(0, 5), (1, 6)]])
    with (path / f"{0:020d}.log").open("ab") as file:
        file.write(tail)
    for more in ([], ["--all"]):
        row = described(run("describe", path, "--json", *more))["t-0"]
        assert (2, None) == (row["logEndOffset"], row["problem"])


def test_an_empty_directory_of_a_broker_has_no_rows(run: Run, tmp_path: Path) -> None:
    """The output is only a heading. A directory that is not a broker's is refused."""
    run("describe", tmp_path, status=2)
    (tmp_path / "meta.properties").write_text("version=1\n")

    assert 1 == run("describe", tmp_path).stdout.count("\n")


def test_columns_are_aligned_in_a_pipe(run: Run, example_data: str) -> None:
    """The output has no lines, no colours and no limit of width."""
    lines = run("describe", example_data, "--topic", "orders").stdout.splitlines()
    ends = {
        line.index(value) + len(value)
        for line, value in zip(lines[1:], ("335", "317", "248"), strict=True)
    }

    assert 4 == len(lines)
    assert 1 == len(ends)
    assert "\x1b" not in "".join(lines)


def shown(example_data: str, columns: int, *arguments: str) -> tuple[str, str]:
    """The output on a terminal with this many columns, and standard error."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "segmentlog", "describe", example_data, *arguments]
    with subprocess.Popen(
        command,
        stdout=follower,
        stderr=subprocess.PIPE,
        env=os.environ | {"COLUMNS": str(columns), "TERM": "xterm"},
    ) as process:
        os.close(follower)
        printed = b""
        while piece := _read(leader):
            printed += piece
        assert process.stderr is not None
        errors = process.stderr.read().decode()
    os.close(leader)
    assert 0 == process.returncode
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.decode()), errors


def test_a_terminal_gets_a_table_that_is_not_cut(example_data: str) -> None:
    """On a narrow terminal, no cell is shortened. Markup in names is printed as text."""
    printed, _ = shown(example_data, 20)

    assert "__transaction_state" in printed
    assert "─" in printed


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [
        (40, "format, codec, batches, from, segments, bytes, to"),
        (80, "format, codec, batches, from"),
        (100, "format, codec, batches"),
        (140, ""),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns(
    example_data: str, columns: int, left_out: str
) -> None:
    """No row is broken, and a line names the columns that are left out."""
    printed, errors = shown(example_data, columns, "--topic", "orders", "--all")
    lines = printed.splitlines()
    rows = [line.split() for line in lines if line.startswith(" orders")]

    assert max(map(len, lines)) <= columns
    assert ["335", "317", "248"] == [row[4] for row in rows]
    expected = (
        f"not shown, because the terminal is too narrow: {left_out}\n--json shows all columns\n"
    )
    assert errors == (expected if left_out else "")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(("command", "indexes"), [("describe", 1), ("topics", 2)])
def test_a_small_log_is_opened_once(
    run: Run, example_data: str, opened: list[str], command: str, indexes: int
) -> None:
    """Its end is searched from its first batch on, which shows all that an index would show."""
    run(command, example_data, "--topic", "orders")
    kinds = [Path(each).suffix for each in opened if Path(each).parent.name == "orders-0"]

    assert (1, indexes) == (kinds.count(".log"), sum(each.endswith("index") for each in kinds))
