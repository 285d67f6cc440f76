"""Copies of partitions on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

from broker_copies import broker, killed_in_sequence
from typer.testing import Result

Run = Callable[..., Result]


def test_the_table_shows_where_copies_differ(run: Run, tmp_path: Path) -> None:
    """The exit status is 1, because two copies have records that the log lacks."""
    shown = run("replicas", *killed_in_sequence(tmp_path), status=1).stdout.splitlines()
    assert shown[0].split() == [
        "topic", "partition", "broker", "epoch", "start", "end", "high", "watermark",
    ]  # fmt: skip
    assert shown[1].split()[:7] == ["t", "0", "1", "0", "0", "6", "5"]
    assert "diverges at 3: 3 records, " in shown[1]
    assert shown[1].endswith(", acknowledged")
    assert "diverges at 4: 1 records, " in shown[2]
    assert "the log: its last leader epoch is 2" in shown[3]


def test_json_has_a_line_for_each_partition(run: Run, tmp_path: Path) -> None:
    """A script finds the log by a flag."""
    done = run("replicas", *killed_in_sequence(tmp_path), "--json", status=1)
    (found,) = map(json.loads, done.stdout.splitlines())
    assert ("t", 0) == (found["topic"], found["partition"])
    assert [False, False, True] == [each["is_log"] for each in found["replicas"]]
    assert [3, 4, None] == [each["diverges_at"] for each in found["replicas"]]


def test_copies_that_agree(run: Run, tmp_path: Path) -> None:
    """A shorter copy is no problem."""
    paths = [broker(tmp_path, 1, [(0, "abc")]), broker(tmp_path, 2, [(0, "ab")])]
    done = run("replicas", *paths)
    assert "shorter" in done.stdout
    refused = run("replicas", *paths, "--topic", "u", status=2)
    assert "'u'" in refused.stderr
