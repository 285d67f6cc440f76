"""Two log directories, compared on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

from preserved_rows import make, rows
from typer.testing import Result

Run = Callable[..., Result]


def test_the_command(run: Run, tmp_path: Path) -> None:
    """The exit status is 1 unless all partitions are equal."""
    left = make(tmp_path / "a", rows(0, 100))
    right = make(tmp_path / "b", rows(0, 100, value=(61, b"other")))
    assert "t-0: equal: 100 records in [0, 100)\n" == run("compare", left, left).stdout
    shown = run("compare", left, right, status=1).stdout
    assert "t-0: differs at offset 61 in value: [0, 100), [0, 100)\n" == shown
    found = json.loads(run("compare", left, right, "--json", status=1).stdout)
    assert ("diverging", 61, ["value"], 100) == (
        found["comparison"],
        found["diverges_at"],
        found["differs_in"],
        found["left"]["n_records"],
    )
    lacks = make(tmp_path / "c", rows(0, 61), rows(62, 38))
    shown = run("compare", left, lacks, status=1).stdout
    expected = "t-0: differs at offset 61, where only one has a record: [0, 100), [0, 100)\n"
    assert expected == shown


def test_logs_without_a_common_offset(run: Run, tmp_path: Path) -> None:
    """The line does not say that they are equal."""
    left, right = make(tmp_path / "a", rows(0, 40)), make(tmp_path / "b", rows(40, 20))
    shown = run("compare", left, right, status=1).stdout
    assert "t-0: nothing in common: [0, 40), [40, 60)\n" == shown
