"""Readers meet a commit at its worst moment: a job is visible as a whole or not at all.

Another process makes each commit. It is held in the middle, or commits during a listing. See
`test_stress` for readers and writers without such control.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from crashing import Crash, Forward, around_calls
from held_commit import Holder, write_job
from numbered_jobs import (
    LEVELS,
    Found,
    Job,
    Look,
    look,
    options_of,
    read_slices,
    whole_jobs,
)

import segmentlog
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.planner import plan_slices
from segmentlog.errors import LogChangedError
from segmentlog.model import LogSlice, TopicPartition
from segmentlog.reads.snapshot import DirectorySnapshot


class _Scan:
    """The entries of `os.scandir`, with one call in between."""

    def __init__(self, path: str, real: Callable[..., Any], after: str, act: Callable[[], object]):
        self._entries = self._list(path, real, after, act)

    @staticmethod
    def _list(
        path: str, real: Callable[..., Any], after: str, act: Callable[[], object]
    ) -> Iterator[os.DirEntry[str]]:
        with real(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name != after)
        seen = {entry.name for entry in found}
        if after:
            yield found.pop(0)
            act()
            with real(path) as entries:
                found += [entry for entry in entries if entry.name not in seen]
        yield from found
        if not after:
            act()

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self._entries

    def __next__(self) -> os.DirEntry[str]:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for _ in self._entries:
            pass


def act_in_scan(
    patch: pytest.MonkeyPatch, directory: Path, act: Callable[[], object], *, after: str = ""
) -> list[str]:
    """Have `act` called once, in the middle or at the end of the next scan of `directory`.

    Parameters
    ----------
    after : name of the entry after which it is called; names that it adds are listed, too.
        By default it is called when all entries have been listed.

    Returns
    -------
    done : the directory, once it has been done.
    """
    real, real_listdir = os.scandir, os.listdir
    done: list[str] = []

    def act_once() -> None:
        done.append(str(directory))
        act()

    def scan(path: Any = ".") -> Any:
        if done or os.fspath(path) != str(directory):
            return real(path)
        return _Scan(os.fspath(path), real, after, act_once)

    def listdir(path: Any = ".") -> list[str]:
        names = real_listdir(path)
        if done or os.fspath(path) != str(directory):
            return names
        act_once()
        if after:
            names += [name for name in real_listdir(path) if name not in names]
        return names

    patch.setattr(os, "scandir", scan)
    patch.setattr(os, "listdir", listdir)
    return done


pytestmark = pytest.mark.linux

#: A segment has only a few batches, so that a commit appends to the active segment and rolls.
SMALL: dict[str, Any] = {"segment_bytes": 2000, "batch_size": 200}
FIRST = Job(1, {"t": 2}, n_rows=3)
SECOND = Job(2, {"t": 2}, n_rows=60)
SECOND_AND_NEW = Job(2, {"t": 2, "new": 3}, n_rows=20)
THIRD = Job(3, {"t": 2}, n_rows=5)
JOBS = (FIRST, SECOND, THIRD)

each_level = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(scope="module")
def holder() -> Iterator[Holder]:
    """One process for the commits of all tests, unless it is killed."""
    with Holder() as holder:
        yield holder


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with one job. Its segments are small, and their indexes have no entry."""
    path = tmp_path / "logs"
    write_job(path, FIRST, **SMALL)
    return path


@pytest.fixture(params=["watermarks", "no watermarks"])
def with_or_without_watermarks(request: pytest.FixtureRequest, directory: Path) -> Path:
    """The directory with high watermarks or without. Without them, reads end at the log end."""
    if request.param == "no watermarks":
        (directory / "replication-offset-checkpoint").unlink()
    return directory


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The warnings that are logged. Other tests of this folder log nothing."""
    before = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    yield caplog
    logging.disable(before)


def plan(directory: Path, level: str, max_bytes: int = 500) -> list[LogSlice]:
    return plan_slices(ReadOptions.parse(options_of(directory, level, max_bytes)))


def touch_all(opened: segmentlog.LogDirectory) -> None:
    """Make the directory look up its logs without reading them."""
    for each in opened.topic_partitions():
        opened.log(*each)


# A commit that is not decided


@each_level
def test_a_directory_opened_before_a_commit_shows_nothing_of_it_until_it_is_decided(
    holder: Holder, with_or_without_watermarks: Path, level: str
) -> None:
    directory = with_or_without_watermarks
    opened = segmentlog.open_log_dir(directory)
    touch_all(opened)
    with holder.hold(directory, SECOND, **SMALL) as commit:
        assert whole_jobs(look(opened, level), JOBS) == {1}
        commit.decide()
    assert whole_jobs(look(opened, level), JOBS) == {1}
    assert whole_jobs(look(segmentlog.open_log_dir(directory), level), JOBS) == {1, 2}


@each_level
@pytest.mark.parametrize("is_killed", [False, True], ids=["at work", "killed"])
def test_an_undecided_commit_is_not_read_and_no_warning_offers_to_read_it(
    holder: Holder,
    directory: Path,
    warnings: pytest.LogCaptureFixture,
    level: str,
    *,
    is_killed: bool,
) -> None:
    with holder.hold(directory, SECOND, **SMALL) as commit:
        if is_killed:
            commit.kill()
        assert whole_jobs(look(segmentlog.open_log_dir(directory), level), JOBS) == {1}
        assert whole_jobs(read_slices(plan(directory, level), level), JOBS) == {1}
    assert [] == [each for each in warnings.messages if "logEnd" in each]


@each_level
def test_a_guard_that_is_taken_over_while_names_are_listed_is_not_missed(
    holder: Holder, directory: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """A listing may contain neither the old nor the new name of a file that is being renamed."""
    with holder.hold(directory, SECOND, **SMALL) as commit:
        commit.kill()
        real, missed = os.listdir, []

        def listdir(path: str) -> list[str]:
            names = real(path)
            guards = [name for name in names if name.startswith("segmentlog.unfinished.")]
            if not guards or missed:
                return names
            missed.append(guards[0])
            (directory / guards[0]).rename(directory / f"{guards[0]}.recovering")
            return [name for name in names if name != guards[0]]

        monkeypatch.setattr(os, "listdir", listdir)
        assert whole_jobs(look(segmentlog.open_log_dir(directory), level), JOBS) == {1}
        assert missed


@each_level
def test_slices_of_before_a_commit_are_the_same_rows_once_it_is_undone(
    holder: Holder, directory: Path, level: str
) -> None:
    with holder.hold(directory, SECOND, **SMALL) as commit:
        slices = plan(directory, level, 1)
        commit.fail()
    write_job(directory, THIRD, **SMALL)
    assert whole_jobs(read_slices(slices, level), JOBS) == {1}


# A commit that falls into a listing


@each_level
def test_a_segment_that_grows_and_rolls_while_it_is_listed_is_read_whole(
    with_or_without_watermarks: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    directory = with_or_without_watermarks
    done = act_in_scan(
        monkeypatch,
        directory / "t-0",
        lambda: write_job(directory, SECOND, **SMALL),
        after="00000000000000000000.log",
    )
    seen = whole_jobs(look(segmentlog.open_log_dir(directory), level), JOBS)
    assert seen in ({1}, {1, 2})
    assert done


@each_level
def test_a_topic_that_comes_while_a_directory_is_opened_brings_its_whole_job_or_none_of_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    done = act_in_scan(monkeypatch, directory, lambda: write_job(directory, SECOND_AND_NEW))
    seen = whole_jobs(read_slices(plan(directory, level), level), [FIRST, SECOND_AND_NEW])
    assert seen in ({1}, {1, 2})
    assert done


@each_level
def test_a_topic_that_comes_later_leaves_its_job_out_of_a_directory_that_is_open(
    directory: Path, level: str
) -> None:
    opened = segmentlog.open_log_dir(directory)
    write_job(directory, SECOND_AND_NEW)
    whole_jobs(look(opened, level), [FIRST, SECOND_AND_NEW])
    assert whole_jobs(look(segmentlog.open_log_dir(directory)), [FIRST, SECOND_AND_NEW]) == {1, 2}


# A commit that is undone beside a reader

#: Plans the smallest possible slices of t-0, and prints a line when an index is mapped.
MAPPER = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from numbered_jobs import Job, read_slices
import segmentlog
from segmentlog.log import indexes

indexes.SMALL_BYTES = 0  # a small index is not mapped

real, asked = os.open, []

def open_(path, *arguments, **keywords):
    with real_open("/proc/self/maps") as maps:
        is_mapped = sys.argv[1] + "/t-0/" in maps.read()
    if is_mapped and not asked:
        asked.append(True)
        print("mapped", flush=True)
        sys.stdin.readline()
    return real(path, *arguments, **keywords)

real_open, os.open = open, open_
log = segmentlog.open_log_dir(sys.argv[1]).log("t", 0)
print("open", flush=True)
sys.stdin.readline()
slices = log.slices(log.log_start_offset, log.end_offset(), 1)
print("planned", flush=True)
sys.stdin.readline()
print(read_slices(slices))
"""


def test_a_reader_does_not_die_of_an_index_that_an_undo_cuts(
    holder: Holder, directory: Path
) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", MAPPER, str(directory)]
    with subprocess.Popen(command, **pipes) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"  # the directory has the mark of a clean stop
        with holder.hold(directory, SECOND, **SMALL) as commit:
            reader.stdin.write("\n")
            reader.stdin.flush()
            assert reader.stdout.readline() in {"mapped\n", "planned\n"}
            commit.fail()
        output, _ = reader.communicate("\n\n")
    assert reader.returncode != -signal.SIGBUS, "the index of a closed segment was mapped"
    assert reader.returncode == 0
    assert str({TopicPartition("t", 0): Found(0, (1,))}) in output


@each_level
def test_planning_continues_when_an_undo_takes_the_last_segments_away(
    holder: Holder, directory: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    with holder.hold(directory, SECOND, **SMALL) as commit:
        done = act_in_scan(monkeypatch, directory / "t-0", commit.fail)
        assert whole_jobs(read_slices(plan(directory, level), level), JOBS) == {1}
    assert done


@each_level
def test_a_log_listed_beside_a_commit_is_read_once_it_is_undone(
    holder: Holder, directory: Path, level: str
) -> None:
    opened = segmentlog.open_log_dir(directory)
    with holder.hold(directory, SECOND, **SMALL) as commit:
        for each in opened.topic_partitions():
            opened.log(*each).segments  # noqa: B018 - it is listed now
        commit.fail()
    assert whole_jobs(look(opened, level), JOBS) == {1}


def test_a_listing_is_compared_with_its_own_moment_beside_another_thread(
    holder: Holder, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread takes a later moment: the commit is undone, and another topic is new."""
    opened, real = segmentlog.open_log_dir(directory), DirectorySnapshot._list_at_a_moment
    sizes = [path.stat().st_size for path in sorted((directory / "t-0").glob("*.log"))]
    with holder.hold(directory, SECOND, **SMALL) as commit:

        def list_beside(snapshot: DirectorySnapshot, *where: Any) -> Any:
            found = real(snapshot, *where)
            commit.fail()
            write_job(directory, Job(3, {"new": 1}, n_rows=1))
            real(snapshot, *where)
            return found

        monkeypatch.setattr(DirectorySnapshot, "_list_at_a_moment", list_beside)
        assert sizes == [each.size for each in opened.log("t", 0).segments]


@each_level
@pytest.mark.parametrize("looks_at_end_first", [False, True])
def test_a_look_up_by_time_continues_when_a_commit_is_undone(
    holder: Holder, directory: Path, level: str, *, looks_at_end_first: bool
) -> None:
    log = segmentlog.open_log_dir(directory).log("t", 0)
    with holder.hold(directory, SECOND, **SMALL) as commit:
        log.segments  # noqa: B018 - it is listed now
        if looks_at_end_first:
            log.end_offset(*LEVELS[level])
        commit.fail()
    for late in range(-1, 80):
        found = log.offset_for_timestamp(FIRST.first_ms + late, *LEVELS[level])
        expected = max(late, 0) if late < FIRST.n_rows else None
        assert expected == (found.offset if found else None), late


# Records that an overwrite has taken away


def overwrite(directory: Path) -> None:
    """Replace the first job by two others, and delete its files."""
    segmentlog.alter_settings(directory, None, {"file.delete.delay.ms": "0"})
    write_job(directory, SECOND, overwrite=True, **SMALL)
    time.sleep(0.01)
    write_job(directory, THIRD, **SMALL)


def rows_or_changed(opened: segmentlog.LogDirectory, level: str) -> Look | None:
    try:
        return look(opened, level)
    except LogChangedError:
        return None


@each_level
def test_records_that_are_gone_are_an_error_and_not_left_out(directory: Path, level: str) -> None:
    opened = segmentlog.open_log_dir(directory)
    touch_all(opened)
    overwrite(directory)
    seen = rows_or_changed(opened, level)
    assert seen is None or whole_jobs(seen, JOBS) in ({1}, {2}, {2, 3})


@each_level
def test_a_directory_of_which_one_log_was_read_shows_no_other_moment_later(
    directory: Path, level: str
) -> None:
    opened = segmentlog.open_log_dir(directory)
    first = opened.log("t", 0).scan(**LEVELS[level]._asdict()).read_all()
    assert first.num_rows == FIRST.n_rows
    overwrite(directory)
    with pytest.raises(LogChangedError):
        opened.log("t", 1).scan(**LEVELS[level]._asdict()).read_all()


@each_level
def test_records_that_are_gone_in_part_are_an_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """Segments are put aside one by one, and the writer dies in between."""
    write_job(directory, SECOND, **SMALL)  # it has several segments
    opened = segmentlog.open_log_dir(directory)
    touch_all(opened)
    with monkeypatch.context() as patch:
        around_calls(patch, ["rename"], die_after_a_segment)
        with pytest.raises(Crash):
            write_job(directory, THIRD, overwrite=True, **SMALL)
    assert not (directory / "t-0" / "00000000000000000000.log").exists()
    assert len([*(directory / "t-0").glob("*.log")]) > 1
    seen = rows_or_changed(opened, level)
    assert seen is None or whole_jobs(seen, JOBS) in ({1, 2}, {3})


def die_after_a_segment(_: str, forward: Forward) -> object:
    """Put the first segment aside, then crash."""
    path, aside = map(str, forward.args[:2])
    if aside.endswith(".deleted") and f"{0:020d}." not in path:
        raise Crash(path)
    return forward()


@each_level
def test_slices_whose_records_are_gone_are_an_error(directory: Path, level: str) -> None:
    slices = plan(directory, level)
    overwrite(directory)
    with pytest.raises(LogChangedError):
        read_slices(slices, level)
