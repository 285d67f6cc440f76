"""The command ``placement``: command lines, and the file of a reassignment."""

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

import segmentlog

Run = Callable[..., Result]


def test_both_forms_of_a_placement(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic has a command line, and each partition an entry in the file."""
    found = {"a": [[1, 2], [2, 3]], "b": [[3, 1]]}
    monkeypatch.setattr(segmentlog, "propose_placement", lambda *_, **__: found)
    lines = run("placement", "/b1", "/new", "--replication-factor", 2).stdout.splitlines()
    assert ["1:2,2:3", "3:1"] == [each.split()[-1] for each in lines]
    printed = run("placement", "/b1", "/new", "--replication-factor", 2, "--json").stdout
    assert [("a", 0, [1, 2]), ("a", 1, [2, 3]), ("b", 0, [3, 1])] == [
        tuple(each.values()) for each in json.loads(printed)["partitions"]
    ]


def test_a_placement_needs_a_source_and_a_cluster(run: Run) -> None:
    """One path alone would be both."""
    run("placement", "/b1", "--replication-factor", 2, status=2)
