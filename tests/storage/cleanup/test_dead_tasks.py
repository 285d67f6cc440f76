"""Tasks and leaders of a compaction that end at any moment: no key is lost, and nothing is raw."""

import fcntl
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from compaction.batches import lay_out, records_of
from compaction.leading import Leader, dies_at_call, in_child
from crashing import Forward, around_calls

import segmentlog
from segmentlog.cleanup.shared_compaction import clean_task
from segmentlog.errors import LogLockedError
from segmentlog.files.lock import DirectoryLock

pytestmark = pytest.mark.linux

#: Some segments are merged, and some new ones stand beside each other.
SETTINGS = {"segment.bytes": "400"}
N_KEYS, N_SEGMENTS = 8, 6


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of which compaction makes several segments."""
    directory = tmp_path_factory.mktemp("template")
    rng = random.Random(5)
    segments = {
        3 * number: [
            records_of(3 * number, *((b"%d" % rng.randrange(N_KEYS), b"v%d" % (3 * number + i))
                                     for i in range(3)))
        ]
        for number in range(N_SEGMENTS)
    }  # fmt: skip
    lay_out(directory, segments)
    return directory


def values(directory: Path) -> dict[bytes, bytes]:
    """The last value of each key that a reader finds."""
    table = segmentlog.open_log_dir(directory).log("t", 0).scan().read_all()
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def copies(template: Path, to: Path) -> Iterator[Path]:
    """Fresh copies of a directory, one after the other."""
    for number in range(10**6):
        yield Path(shutil.copytree(template, to / str(number)))
        shutil.rmtree(to / str(number))


def assert_compacted(directory: Path, expected: dict[bytes, bytes]) -> None:
    """All keys are there with their last values, and nothing is left of an attempt."""
    assert expected == values(directory)
    left = {path.name for path in (directory / "t-0").iterdir()}
    assert not [name for name in left if name.endswith((".swap", ".cleaned"))]
    assert len([name for name in left if name.endswith(".log")]) < N_SEGMENTS


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_second_attempt_after_one_that_was_killed_at_any_call(
    template: Path, tmp_path: Path, step: int
) -> None:
    """The second attempt finishes or undoes the swap of the first before it looks at the log."""
    expected, number = values(template), 0
    for directory in copies(template, tmp_path):
        with Leader(directory, SETTINGS) as leader:
            (task,) = leader.tasks
            was_killed = dies_at_call(lambda: clean_task(task), number)  # noqa: B023
            assert expected == values(directory)
            clean_task(task)
        assert_compacted(directory, expected)
        number += step
        if not was_killed:
            break
    assert number > 100


def is_refused(directory: Path) -> bool:
    """Whether a writer of ours and a broker, which locks the whole file, are both kept out."""
    try:
        with DirectoryLock(str(directory)):
            return False
    except LogLockedError:
        pass

    def lock_as_a_broker() -> None:
        with (directory / ".lock").open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    return bool(os.waitpid(in_child(lock_as_a_broker), 0)[1])


def test_nobody_takes_a_directory_in_which_a_task_outlives_its_leader(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is killed as soon as segments are replaced; the task ends that, alone."""
    directory = Path(shutil.copytree(template, tmp_path / "logs"))
    refused: list[bool] = []
    with Leader(directory, SETTINGS) as leader:

        def around(_: str, forward: Forward) -> object:
            leader.kill()
            refused.append(is_refused(directory))
            return forward()

        with monkeypatch.context() as patch:
            around_calls(patch, ("rename", "replace"), around)
            clean_task(leader.tasks[0])
    assert len(refused) > 10
    assert all(refused)
    assert not is_refused(directory)
    assert_compacted(directory, values(template))
