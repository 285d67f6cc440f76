"""Tasks and leaders of a compaction end at any moment. No key is lost, and errors are typed."""

import contextlib
import errno
import fcntl
import os
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from compaction.batches import lay_out, records_of
from compaction.leading import NOW_MS, Leader, act_at_call, dies_at_call, leading
from crashing import Forward, around_calls, in_child
from descriptors import descriptors_below

import segmentlog
from segmentlog.errors import LogDirectoryError, LogLockedError, SegmentLogError, StorageError
from segmentlog.log.swaps import swap_in
from segmentlog.maintain import CompactionTask, clean_task
from segmentlog.maintain.compaction import clean_segments
from segmentlog.store import durable
from segmentlog.store.lock import DirectoryLock

pytestmark = pytest.mark.linux

#: Some segments are merged, and several new ones are the result.
SETTINGS = {"segment.bytes": "400"}
COMPACT = {"cleanup.policy": "compact", **SETTINGS}
N_KEYS, N_SEGMENTS = 8, 6


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of which compaction makes several segments."""
    directory = tmp_path_factory.mktemp("template")
    rng = random.Random(5)
    segments = {}
    for base in range(0, 3 * N_SEGMENTS, 3):
        pairs = ((b"%d" % rng.randrange(N_KEYS), b"v%d" % (base + i)) for i in range(3))
        # The producer is idempotent, so that its snapshots are written and put aside, too.
        segments[base] = [records_of(base, *pairs)._replace(producer_id=5, epoch=0, sequence=base)]
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


#: Calls from one cut to the next.
STEPS = pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])


def assert_compacted(directory: Path, expected: dict[bytes, bytes]) -> None:
    """All keys have their last values, and no file of an attempt is left."""
    assert expected == values(directory)
    left = {path.name for path in (directory / "t-0").iterdir()}
    assert not [name for name in left if name.endswith((".swap", ".cleaned"))]
    assert len([name for name in left if name.endswith(".log")]) < N_SEGMENTS


@STEPS
def test_a_second_attempt_after_one_that_was_killed_at_any_call(
    template: Path, tmp_path: Path, step: int
) -> None:
    """The second attempt finishes or undoes the swap of the first before it reads the log."""
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


@STEPS
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()], ids=str)
@pytest.mark.parametrize("is_task", [True, False])
def test_an_attempt_that_fails_at_any_call(
    template: Path, tmp_path: Path, step: int, error: BaseException, is_task: bool
) -> None:
    """The error has one of our types, and no file stays open.

    A second attempt in the process succeeds.

    An attempt is a task of a shared compaction, or a compaction by one process.
    """
    expected, number = values(template), 0

    def fails() -> None:
        raise error

    for directory in copies(template, tmp_path):
        with contextlib.ExitStack() as stack:
            run: partial[Any] = partial(
                segmentlog.compact, directory, settings=COMPACT, now_ms=NOW_MS
            )
            if is_task:
                run = partial(clean_task, *stack.enter_context(leading(directory, SETTINGS)))
            with pytest.MonkeyPatch.context() as patch:
                made = act_at_call(patch, number, fails)
                with contextlib.suppress(SegmentLogError, KeyboardInterrupt):
                    run()
            assert 0 == descriptors_below(directory / "t-0"), number
            assert expected == values(directory), number
            run()
        assert_compacted(directory, expected)
        if len(made) <= number:
            break
        number += step
    assert number > 100


@pytest.mark.parametrize("number", range(4))
def test_a_file_of_a_new_segment_that_cannot_be_made(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The files of the segment that were created earlier are closed and removed."""
    directory = Path(shutil.copytree(template, tmp_path / "logs"))
    made: list[str] = []

    def create_file(path: str) -> int:
        if len(made) == number:
            raise OSError(errno.EMFILE, "Too many open files", path)
        made.append(path)
        return durable.create_file(path)

    monkeypatch.setattr(clean_segments, "create_file", create_file)
    with pytest.raises(StorageError, match="Too many open files"):
        segmentlog.compact(directory, settings=COMPACT, now_ms=NOW_MS)
    assert number == len(made)
    assert [] == list(directory.glob("*/*.cleaned"))
    assert 0 == descriptors_below(directory)


@pytest.mark.parametrize(
    "n_rounds",
    [
        4,
        pytest.param(200, marks=pytest.mark.slow),
    ],
)
def test_attempts_that_are_killed_one_after_the_other(
    template: Path, tmp_path: Path, n_rounds: int
) -> None:
    """Each attempt continues with the files of the attempts before it.

    It may be killed while it finishes their work.
    """
    expected, rng = values(template), random.Random(4)
    for _, directory in zip(range(n_rounds), copies(template, tmp_path), strict=False):
        with Leader(directory, SETTINGS) as leader:
            (task,) = leader.tasks
            for _ in range(5):
                dies_at_call(lambda: clean_task(task), rng.randrange(150))  # noqa: B023
                assert expected == values(directory)
            clean_task(task)
        assert_compacted(directory, expected)


@pytest.mark.parametrize(
    "n_rounds",
    [
        3,
        pytest.param(100, marks=pytest.mark.slow),
    ],
)
def test_attempts_at_once(template: Path, tmp_path: Path, n_rounds: int) -> None:
    """In Spark's speculation, some attempts are killed and the others take turns.

    Each of those succeeds.
    """
    expected, rng = values(template), random.Random(6)
    for _, directory in zip(range(n_rounds), copies(template, tmp_path), strict=False):
        with Leader(directory, SETTINGS) as leader:
            (task,) = leader.tasks

            def attempt(task: CompactionTask, number: int) -> None:
                act_at_call(pytest.MonkeyPatch(), number, lambda: os._exit(9))
                clean_task(task)

            numbers = [rng.randrange(150), rng.randrange(150), 10**9]
            children = [in_child(partial(attempt, task, number)) for number in numbers]
            ends = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children]
            assert {*ends[:2]} <= {0, 9}
            assert ends[2] == 0
        assert expected == values(directory)
        segmentlog.compact(directory, settings=COMPACT)  # the last attempt may be a killed one
        assert_compacted(directory, expected)


def is_refused(directory: Path) -> bool:
    """Whether the lock keeps out our writers and a broker, which locks the whole file."""
    try:
        with DirectoryLock(str(directory), 0):
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
    """The leader is killed as soon as segments are replaced.

    The task finishes the replacement alone.
    """
    directory = Path(shutil.copytree(template, tmp_path / "logs"))
    refused: list[bool] = []
    with Leader(directory, SETTINGS) as leader:

        def around(_: str, forward: Forward) -> object:
            if refused or forward.args[0].endswith(".cleaned"):
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


@pytest.mark.parametrize("suffix", ["swap", "cleaned"])
def test_files_of_another_compaction_are_not_taken_for_its_own(
    tmp_path: Path, suffix: str
) -> None:
    """No segment is replaced beside files of another compaction."""
    for name in (
        f"{0:020d}.log",
        f"{3:020d}.log",
        f"{0:020d}.log.cleaned",
        f"{3:020d}.log.{suffix}",
    ):
        (tmp_path / name).touch()
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(LogDirectoryError, match=rf"{3:020d}.log.{suffix}.*compact again"):
        swap_in(str(tmp_path), {0, 3}, {0})
    assert before == {path.name for path in tmp_path.iterdir()}


def test_settings_that_change_while_a_compaction_waits(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic is not compacted if its policy changes while the compaction waits for the lock."""
    directory = Path(shutil.copytree(template, tmp_path / "logs"))
    segmentlog.alter_settings(directory, "t", COMPACT)
    enter = DirectoryLock.__enter__

    def waits(lock: DirectoryLock) -> DirectoryLock:
        monkeypatch.undo()
        segmentlog.alter_settings(directory, "t", {"cleanup.policy": "delete"})
        return enter(lock)

    monkeypatch.setattr(DirectoryLock, "__enter__", waits)
    assert [] == segmentlog.compact(directory, now_ms=NOW_MS)
