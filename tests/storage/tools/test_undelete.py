"""The command ``undelete``, and the renamed directories that other commands list and read."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import Result

import segmentlog
from segmentlog.txn.topics import take_out

Run = Callable[..., Result]


@pytest.fixture
def deleted(tmp_path: Path) -> tuple[Path, str]:
    """A directory with a deleted topic of one partition, and the name of its directory."""
    directory = tmp_path / "logs"
    for topic in ("orders", "kept"):
        with segmentlog.open_writer(directory, topic, num_partitions=1) as writer:
            writer.append(pa.table({"value": [f"{topic}{i}" for i in range(3)]}))
    take_out(str(directory), "orders")
    (renamed,) = directory.glob("*-delete")
    return directory, renamed.name


def test_the_report(run: Run, deleted: tuple[Path, str]) -> None:
    """A line or an object for each partition; a problem of a dry run is the exit status 1."""
    directory, name = deleted
    to = directory.parent / "saved"
    plan = run("undelete", directory, "orders", "--to", to, "--dry-run").stdout
    assert f"orders-0: [0, 3) of {directory / name}\n" == plan
    done = run("undelete", directory, "orders", "--to", to, "--as", "again", "--json").stdout
    assert ("again", 3) == tuple(json.loads(done)[each] for each in ("topic", "records"))
    repeated = ("undelete", directory, "orders", "--as", "again", "--to", to, "--dry-run")
    assert run(*repeated).stdout.endswith(f"{to} had the records\n")
    with segmentlog.open_writer(to, "again") as writer:
        writer.append(pa.table({"value": ["later"]}))
    again = run(*repeated, status=1)
    assert "only an empty partition can take the offsets" in again.stderr
    assert "DIR... TOPIC" in run("undelete", directory, status=2).stderr
    swapped = run("undelete", "orders", directory, status=2).stderr
    assert "segmentlog undelete DIR TOPIC" in swapped


@pytest.mark.parametrize("command", ["topics", "describe"])
def test_renamed_directories_are_listed(run: Run, deleted: tuple[Path, str], command: str) -> None:
    """In a table of their own, and as objects with the field ``kind``."""
    directory, name = deleted
    shown = run(command, directory)
    assert shown.stdout.splitlines()[-1].split()[0:3] == ["-delete", "orders", "0"]
    assert shown.stdout.splitlines()[-1].endswith(f"  {directory / name}")
    assert "-delete: removed by a broker, 90 s after its next start, " in shown.stderr
    objects = [json.loads(line) for line in run(command, directory, "--json").stdout.splitlines()]
    (found,) = [each for each in objects if "kind" in each]
    assert ("-delete", 3, None) == (found["kind"], found["logEndOffset"], found["problem"])
    assert "-delete" not in run(command, directory, "--topic", "kept").stdout


def test_cat_takes_the_name_of_a_directory(run: Run, deleted: tuple[Path, str]) -> None:
    """In place of the topic, or as a path."""
    directory, name = deleted
    assert "orders0\norders1\norders2\n" == run("cat", directory, name).stdout
    assert "orders0\norders1\norders2\n" == run("cat", directory / name).stdout
    assert "segmentlog undelete" in run("cat", directory, "orders", status=2).stderr
