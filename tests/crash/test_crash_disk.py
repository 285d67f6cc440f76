"""The power is cut after every step: acknowledged jobs survive, and no job survives in part.

These defects broke a promise here and were repaired. Their scenarios run with the others:

| defect | what was wrong | scenario |
|---|---|---|
| unsynced directory | a new log directory could vanish with its name | first write |
| half a topic | a topic kept only the partitions created before the cut | first write |
| empty partition | a partition without a log stopped all writers | first write |
| random times | rebuilt time indexes contained uninitialized memory | first write |
| orphan index | no writer could roll after a recovery removed a segment | a segment is cut off |
| failed and visible | a job could not remove its staged files | fail to remove staged files |
"""

import itertools
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from crash_disk.explore import Explorer
from crash_disk.image import Image, read_tree
from crash_disk.operations import dies, fails
from crash_disk.recorder import Recorder
from crash_disk.runs import Run
from crash_disk.scenarios import SEQUENCES, SINGLES, Scenario
from crash_disk.states import crash_states

Table = list[tuple[str, int, int]]


@pytest.fixture(scope="module", autouse=True)
def table(explorer: Explorer, say: Callable[[str], None]) -> Iterator[Table]:
    """The counts of all scenarios, printed at the end."""
    rows: Table = []
    yield rows
    say(f"\n{'operations':80} {'prefixes':>8} {'states':>7}")
    for name, n_prefixes, n_states in rows:
        say(f"{name:80} {n_prefixes:8,} {n_states:7,}")
    total = sum(n_prefixes for _, n_prefixes, _ in rows)
    say(f"{'all of them, each state once':80} {total:8,} {explorer.n_opened:7,}")


#: A plain run, and `.ci/run`, open one of this many states in which a step has its own fate.
EVERY = 80
ALL_OR_SOME = pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.slow)])

#: Only `.ci/run` explores these, because each takes seconds.
THOROUGH = {"append that moves files to another place", "erase"}


def explore(explorer: Explorer, table: Table, scenario: Scenario, every: int) -> Run:
    """Explore one scenario and add its row."""
    run = scenario.record(explorer)
    n_prefixes = len(run.recorder.steps) + 1
    n_met = explorer.n_met
    n_states = explorer.explore(run, every)
    table.append((scenario.name, n_prefixes, n_states))
    # Another operation may have left each of the few states that `every` leaves over, so new
    # states prove nothing: which they are depends on the order of calls in threads.
    assert explorer.n_met > n_met, scenario.name
    return run


@ALL_OR_SOME
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if name in THOROUGH else ())
        for name in SINGLES
    ],
)
@pytest.mark.addition("step of a commit")
def test_each_operation_alone(explorer: Explorer, table: Table, name: str, every: int) -> None:
    """The operation is cut off after any step, and any step that was not synced may be lost."""
    explore(explorer, table, SINGLES[name], every)


@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.parametrize(
    ("n_sequences", "every"),
    [
        (2, EVERY),
        pytest.param(100, 1, marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
    ],
)
def test_operations_in_turn(
    explorer: Explorer, table: Table, length: int, n_sequences: int, every: int
) -> None:
    """Each operation ends in a sync. Unsynced steps of one operation do not harm the next one."""
    all_of_them = [each for each in SEQUENCES if len(each.operations) == length]
    for scenario in random.Random(1).sample(all_of_them, min(n_sequences, len(all_of_them))):
        explore(explorer, table, scenario, every)


@pytest.mark.parametrize(
    ("stride", "every"), [(7, EVERY), pytest.param(1, 1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("operation", [dies, fails])
def test_any_call_is_the_last_or_fails(
    explorer: Explorer, table: Table, operation: Callable[..., None], stride: int, every: int
) -> None:
    """The process dies at a call, or the call fails and the process continues.

    Then the power is cut.
    """
    for number in itertools.count(stride // 2, stride):
        name = f"{operation.__name__} at call {number}"
        scenario = Scenario(name, [partial(operation, number=number)])
        if not explore(explorer, table, scenario, every).is_disturbed:
            break

    assert number > 30


@pytest.mark.parametrize(
    ("name", "depth", "every"),
    [
        ("append", 1, EVERY),
        ("delete the topic", 1, EVERY),
        ("retain by size", 1, EVERY),
        ("compact", 1, EVERY),
        pytest.param("erase", 1, EVERY, marks=pytest.mark.thorough),
        pytest.param("append", 2, 1, marks=pytest.mark.slow),
        pytest.param("delete the topic", 1, 1, marks=pytest.mark.slow),
        pytest.param("retain by size", 1, 1, marks=pytest.mark.slow),
        pytest.param("compact", 2, 1, marks=pytest.mark.slow),
        pytest.param("overwrite", 2, 1, marks=pytest.mark.slow),
        pytest.param("append that rolls", 2, 1, marks=pytest.mark.slow),
        pytest.param("append that moves files", 1, 1, marks=pytest.mark.slow),
        pytest.param("fail", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_recoveries_that_are_cut_off(
    explorer: Explorer, table: Table, name: str, depth: int, every: int
) -> None:
    """A recovery is cut off in every state that needs one.

    The states that it leaves are recovered and cut off, too.
    """
    run = SINGLES[name].record(explorer)
    n_met = explorer.n_met
    n_states = explorer.explore_recoveries(run, depth, every)
    table.append((f"recoveries, {depth} in turn: {name}", len(run.recorder.steps) + 1, n_states))

    assert explorer.n_met > n_met


def test_nothing_escapes_the_recorder(tmp_path: Path) -> None:
    """The next recorded call notices a change that an unknown call has made."""
    (tmp_path / "old").write_bytes(b"old")
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(tmp_path, patch)
        (tmp_path / "new").mkdir()
        descriptor = os.open(tmp_path / "new" / "file", os.O_WRONLY | os.O_CREAT)
        os.pwrite(descriptor, b"bytes", 3)
        (tmp_path / "old").replace(tmp_path / "new" / "old")
        os.link(tmp_path / "new" / "old", tmp_path / "linked")
        os.ftruncate(descriptor, 4)
        os.fsync(descriptor)
        os.close(descriptor)
        image = Image(recorder.image.files, recorder.image.directories)
        for step in recorder.steps:
            image.apply(step)
        assert read_tree(tmp_path) == image.tree()
        assert b"old" == image.tree()["linked"]
        mapped = np.memmap(tmp_path / "linked", np.uint8, "r+")
        mapped[1] = ord("!")
        with pytest.raises(AssertionError, match="changed by more than unlink"):
            (tmp_path / "linked").unlink()


def test_a_rename_before_the_sync_leaves_any_of_the_known_outcomes(tmp_path: Path) -> None:
    """A file that is renamed over another without a sync is whole, torn, empty or the old one."""
    (tmp_path / "file").write_bytes(b"old")
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(tmp_path, patch)
        descriptor = os.open(tmp_path / "tmp", os.O_WRONLY | os.O_CREAT)
        os.pwrite(descriptor, b"news", 0)
        os.close(descriptor)
        (tmp_path / "tmp").replace(tmp_path / "file")
    states = [*crash_states(recorder.image, recorder.steps)]
    last = [state.tree for state in states if state.n_steps == len(recorder.steps)]

    assert {b"old", b"news", b"new", b"", bytes(4)} == {tree["file"] for tree in last}
    assert {b"old"} == {state.tree["file"] for state in states if state.n_steps < 3}
