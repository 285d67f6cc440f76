"""The command ``mirror``: byte-identical copies, and the reports about them."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from broker_copies import killed_in_sequence
from typer.testing import Result

import segmentlog

Run = Callable[..., Result]


def test_each_partition_has_a_line(run: Run, tmp_path: Path) -> None:
    """The line names the copy that is the log, and the place of the cut."""
    killed, to = killed_in_sequence(tmp_path), tmp_path / "to"
    done = run("mirror", killed[0], to)
    assert done.stdout.startswith(f"t-0: [0, 6) of {killed[0]}/t-0, ")
    shown = run("mirror", *killed, to, "--dry-run")
    assert " to copy; is cut at offset 3\n" in shown.stdout
    done = run("mirror", *killed, to)
    assert f"t-0: [0, 5) of {killed[2]}/t-0, " in done.stdout
    assert f"; was cut at offset 3, kept in {to}/t-0/segmentlog." in done.stdout


def test_json_has_a_digest(run: Run, tmp_path: Path) -> None:
    """A second run copies nothing, and shows the same digest."""
    killed, to = killed_in_sequence(tmp_path), tmp_path / "to"
    rows = [json.loads(run("mirror", *killed, to, "--json").stdout) for _ in range(2)]
    assert rows[0]["bytes"] == rows[0]["copied"] > 0
    assert 0 == rows[1]["copied"]
    assert rows[0]["sha256"] == rows[1]["sha256"]


def test_segments_that_are_put_aside_are_counted(run: Run, tmp_path: Path) -> None:
    """The source has the records of a segment of the destination in other bytes."""
    source, to = tmp_path / "a", tmp_path / "to"
    with segmentlog.open_writer(source, "t", num_partitions=1) as writer:
        writer.append(pa.table({"key": ["k", "l"], "value": ["a", "b"]}))
    segmentlog.erase(source, "k", purge=True)
    with segmentlog.open_writer(source, "t", num_partitions=1) as writer:
        writer.append(pa.table({"key": ["m", "n"], "value": ["a", "b"]}))
    run("mirror", source, to)
    segmentlog.erase(source, "m", purge=True)
    assert 1 == json.loads(run("mirror", source, to, "--json", "--dry-run").stdout)["putAside"]
    assert run("mirror", source, to).stdout.endswith("; 1 segment put aside\n")


def test_a_mirror_needs_a_source_and_a_destination(run: Run, tmp_path: Path) -> None:
    """One path alone would be both."""
    done = run("mirror", tmp_path, status=2)
    assert "last the directory of the copy" in " ".join(done.stderr.split()).replace("│ ", "")


def test_a_mirror_of_nothing_shows_the_reason(
    run: Run, example_data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources are empty, or the metadata assigns their partitions to other directories."""
    monkeypatch.setattr(segmentlog, "mirror", lambda *_, **__: [])
    assert "the sources have no such partition\n" in run("mirror", example_data, "/to").stderr
    done = run("mirror", example_data, "/to", "--assigned")
    assert "the metadata assigns no partition of the sources to /to\n" in done.stderr
