"""``dump`` of a broker's text files: checkpoints, and ids of topics and directories."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from json_dumps import json_rows
from typer.testing import Result

Run = Callable[..., Result]


CHECKPOINTS: dict[str, dict[str, str | int]] = {
    "recovery-point-offset-checkpoint": {"topic": "payments", "partition": 0, "offset": 122},
    "replication-offset-checkpoint": {"topic": "payments", "partition": 0, "offset": 122},
    "cleaner-offset-checkpoint": {"topic": "customers", "partition": 0, "offset": 121},
    "log-start-offset-checkpoint": {"topic": "orders", "partition": 2, "offset": 7},
    "orders-0/leader-epoch-checkpoint": {"epoch": 0, "startOffset": 0},
    "orders-0/partition.metadata": {"topicId": "OG4LohzBQsuI6EMUrH2pRw"},
    "meta.properties": {"key": "cluster.id", "value": "segmentlogTestCluster1"},
}


@pytest.fixture
def copied(example_data: str, tmp_path: Path) -> Path:
    """A broker's directory in which DeleteRecords has moved a log start."""
    directory = shutil.copytree(example_data, tmp_path / "kafka")
    (directory / "log-start-offset-checkpoint").write_text("0\n1\norders 2 7\n")
    return directory


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_brokers_text_files_are_dumped(run: Run, copied: Path, name: str) -> None:
    """Fields have Kafka's names, in text and in JSON. The help names each file, or its kind."""
    fields = CHECKPOINTS[name]
    entry: dict[str, str | int] = {"kind": "entry", "file": str(copied / name), **fields}

    assert entry in json_rows(run("dump", copied / name, "-f", "json"))
    line = "  " + " ".join(f"{key}={value}" for key, value in fields.items())
    assert line in run("dump", copied / name).stdout.splitlines()


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if name != "meta.properties"])
@pytest.mark.parametrize("content", [b"0\n1\nno entry at all\n", b"\xff\x1b[31m\0"])
def test_damaged_text_files_are_errors(run: Run, copied: Path, name: str, content: bytes) -> None:
    """The error is one line, and has the number of the damaged line."""
    (copied / name).write_bytes(content)
    refused = run("dump", copied / name, status=2)

    assert f"{name}, line " in refused.stderr
    assert 1 == refused.stderr.count("\n")
    assert refused.stderr.strip().isprintable()
