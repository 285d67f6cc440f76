"""Entries of indexes and snapshots, as text and as JSON."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from segmentlog.format.checksum import crc32c

Run = Callable[..., Result]
NAME = "00000000000000000100"


def entries(run: Run, path: Path, status: int = 0) -> list[dict]:
    """The lines of a file's dump, without the fields that are in every line."""
    printed = run("dump", path, "-f", "json", status=status).stdout
    found = [json.loads(line) for line in printed.splitlines()]
    return [{k: v for k, v in row.items() if k not in {"kind", "file"}} for row in found]


def test_an_offset_index_ends_at_its_zeros(run: Run, tmp_path: Path) -> None:
    """Offsets are absolute.

    Preallocated zeros are not entries, and a partial entry is a problem.
    """
    path = tmp_path / f"{NAME}.index"
    path.write_bytes(struct.pack(">iiii", 3, 500, 7, 900) + bytes(80))
    expected = [{"offset": 103, "position": 500}, {"offset": 107, "position": 900}]

    assert expected == entries(run, path)
    path.write_bytes(struct.pack(">ii", 3, 500) + b"abc")
    assert "3 bytes at the end" in entries(run, path, status=1)[-1]["problem"]


def test_a_time_index_has_times_and_offsets(run: Run, tmp_path: Path) -> None:
    """Times are epoch milliseconds, and offsets are absolute."""
    path = tmp_path / f"{NAME}.timeindex"
    path.write_bytes(struct.pack(">qi", 1_700_000_000_000, 5))

    assert [{"timestamp": 1_700_000_000_000, "offset": 105}] == entries(run, path)


def test_aborted_transactions_are_listed(run: Run, example_data: str) -> None:
    """The list has the transaction that the example's producer aborted."""
    path = Path(example_data, "payments-0", "00000000000000000060.txnindex")
    expected = {"version": 0, "producerId": 1, "firstOffset": 61, "lastOffset": 121}

    assert [expected | {"lastStableOffset": 122}] == entries(run, path)


def test_the_rest_of_a_transaction_index_is_a_problem(run: Run, tmp_path: Path) -> None:
    """The entries before the damage are listed."""
    entry = {"producerId": 7, "firstOffset": 5, "lastOffset": 8, "lastStableOffset": 9}
    path = tmp_path / f"{NAME}.txnindex"
    whole = struct.pack(">hqqqq", 0, *entry.values())

    for rest, problem in ((whole[:9], "43 bytes is not"), (b"\0\1" + whole[2:], "found 1")):
        path.write_bytes(whole + rest)
        first, last = entries(run, path, status=1)

        assert {"version": 0} | entry == first
        assert problem in last["problem"]


def test_producer_states_are_listed(run: Run, example_data: str) -> None:
    """One producer ends with a batch, the other with a marker."""
    idle = Path(example_data, "payments-0", "00000000000000000122.snapshot")
    busy = Path(example_data, "payments-0", "00000000000000000060.snapshot")
    empty = Path(example_data, "__transaction_state-1", "00000000000000000007.snapshot")

    assert [(1, 2, 0, None)] == [
        (
            row["producerId"],
            row["producerEpoch"],
            row["coordinatorEpoch"],
            row["currentTxnFirstOffset"],
        )
        for row in entries(run, idle)
    ]
    assert [(0, 59, 59)] == [
        (row["firstSequence"], row["lastSequence"], row["lastOffset"])
        for row in entries(run, busy)
    ]
    assert [] == entries(run, empty)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\0\1", "at least 10 bytes, but this file has 2"),
        (struct.pack(">hIi", 2, 0, 0), "expected version 1 of a snapshot, found 2"),
        (struct.pack(">hIi", 1, 0, 0), "its crc32c differs"),
        (struct.pack(">hIi", 1, crc32c(b"\0\0\0\5"), 5), "10 bytes does not fit its 5 producers"),
    ],
)
def test_damaged_snapshots_say_what_is_wrong(
    run: Run, tmp_path: Path, data: bytes, problem: str
) -> None:
    """The exit status is 1."""
    path = tmp_path / f"{NAME}.snapshot"
    path.write_bytes(data)

    assert problem in entries(run, path, status=1)[-1]["problem"]


def test_lines_to_read_have_the_same_fields(run: Run, example_data: str) -> None:
    """A heading names the file, and each value has its name."""
    path = Path(example_data, "orders-0", "00000000000000000000.index")

    assert f"{path}\n  offset=334 position=4986\n" == run("dump", path).stdout


def test_an_index_is_no_table(run: Run, example_data: str, tmp_path: Path) -> None:
    """Arrow and Parquet output is only for batches and records."""
    path = Path(example_data, "orders-0", "00000000000000000000.index")
    result = run("dump", path, "-f", "arrow", "-o", tmp_path / "x", status=2)

    assert "table or json" in result.stderr
    assert [] == list(tmp_path.iterdir())
