"""The command ``restore``: its plan, its problems, and the file for the groups."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import segmentlog
from segmentlog import GroupOffset, Restoration, RestoredPartition

Run = Callable[..., Result]

PLAN = RestoredPartition("t", 0, "/b1/t-0", "AAAAAAAAAAAAAAAAAAAAAQ", 0, 60, 0, 2, 900, 0, ())


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Restoration]:
    """Results that the engine returns, one after the other."""
    results: list[Restoration] = []
    monkeypatch.setattr(segmentlog, "restore", lambda *_, **__: results.pop(0))
    return results


def test_the_report(run: Run, found: list[Restoration]) -> None:
    """Each partition has a line, and a problem leads to the exit status 1."""
    found += [
        Restoration((PLAN,), (), ()),
        Restoration((PLAN._replace(n_records=50),), (), ()),
        Restoration((PLAN._replace(n_records=50, n_ended=2, n_left_out=0),), (), ()),
        Restoration((PLAN._replace(problems=("too old",)),), (), ("no room",)),
    ]
    left_out = "[0, 60) of /b1/t-0; 2 offsets left out after an open transaction"
    assert f"t-0: {left_out}\n" == run("restore", "/b1", "/to", "--dry-run").stdout
    assert f"t-0: 50 records, {left_out}\n" == run("restore", "/b1", "/to").stdout
    ended = "t-0: 50 records, [0, 60) of /b1/t-0; 2 transactions ended\n"
    assert ended == run("restore", "/b1", "/to", "--open-transactions", "end").stdout
    done = run("restore", "/b1", "/to", "--dry-run", status=1)
    assert "t-0: cannot be restored: too old\n" == done.stdout
    assert "no room" in done.stderr


def test_several_targets(run: Run, found: list[Restoration]) -> None:
    """A line shows the directories of the replicas, in the order of the brokers."""
    placed = PLAN._replace(n_left_out=0, directories=("/to2", "/to1"))
    found += [
        Restoration((placed,), (), ()),
        Restoration((placed._replace(restored_before=("/to1",), missing_brokers=(3, 4)),), (), ()),
    ]
    to = ("--to", "/to1", "--to", "/to2")
    text = "t-0: [0, 60) of /b1/t-0, to /to2, /to1"
    assert f"{text}\n" == run("restore", "/b1", *to, "--dry-run").stdout
    done = run("restore", "/b1", *to, "--dry-run")
    assert f"{text}; /to1 had the records; left out on brokers 3, 4\n" == done.stdout


def test_places_of_groups(run: Run, found: list[Restoration], tmp_path: Path) -> None:
    """The file is written, and the command line that applies it is shown."""
    found.append(Restoration((PLAN,), (GroupOffset("g", "t", 0, 7),), ()))
    file = tmp_path / "groups.csv"
    done = run("restore", "/b1", "/to", "--offsets", file)
    assert "g,t,0,7\n" == file.read_text()
    assert f"--from-file {file} --group g --execute" in done.stderr


def test_the_command_line_is_one_for_a_shell(
    run: Run, found: list[Restoration], tmp_path: Path
) -> None:
    """A path with a space, and groups whose names have the words that stand for others."""
    groups = ["BOOTSTRAP x", "PROFILE-svc", "it's"]
    offsets = tuple(GroupOffset(each, "t", 0, 1) for each in groups)
    found.append(Restoration((PLAN,), offsets, ()))
    file = tmp_path / "my groups.csv"
    line = run("restore", "/b1", "/to", "--offsets", file).stderr.splitlines()[-1]
    words = shlex.split(line)
    assert str(file) == words[words.index("--from-file") + 1]
    assert groups == [words[at + 1] for at, word in enumerate(words) if word == "--group"]


def test_the_file_of_an_earlier_run_stays_if_the_restoration_fails(
    run: Run, tmp_path: Path
) -> None:
    """A path that cannot be a file is refused before the restoration."""
    file = tmp_path / "groups.csv"
    file.write_text("earlier")
    done = run("restore", "/b1", "/to", "--offsets", file, status=2)
    assert "/b1" in done.stderr
    assert ("earlier", [file]) == (file.read_text(), [*tmp_path.iterdir()])
    done = run("restore", "/b1", "/to", "--offsets", file, "--offset-map", file, status=2)
    assert "lead to one file" in done.stderr
    done = run("restore", "/b1", "/to", "--offsets", tmp_path, status=2)
    assert "is a directory" in done.stderr


def test_a_restoration_needs_a_source_and_a_target(run: Run, tmp_path: Path) -> None:
    """One path alone would be both."""
    run("restore", tmp_path, status=2)
