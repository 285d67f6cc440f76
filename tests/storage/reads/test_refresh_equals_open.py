"""A refreshed directory equals the directory that is opened at that moment."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from crashing import Crash, act_at, crash_at
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from plain_writes import write

import segmentlog
from segmentlog.errors import SegmentLogError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_CHECKPOINT,
)
from segmentlog.model import IsolationLevel, ReadUpTo
from segmentlog.store import fingerprint as look
from segmentlog.testing.reference import Record, encode_batch

TOPICS = ("a", "b")
UNFLUSHED = segmentlog.ProducerConfig(segmentlog.TopicConfig(segment_bytes=400), flush=False)
FLUSHED = segmentlog.ProducerConfig(segmentlog.TopicConfig(segment_bytes=400))
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
RETAIN = {"retention.ms": "-1", "retention.bytes": "100", "file.delete.delay.ms": "0"}


class Choice(NamedTuple):
    """Drawn with a change: which topic, which partition, and a number for other choices."""

    topic: str
    partition: int
    number: int


def rows(number: int) -> pa.Table:
    """A few records for two partitions."""
    return pa.table(
        {
            "key": [b"%d" % (each % 3) for each in range(4)],
            "value": [bytes(30 + number % 40)] * 4,
            "partition": pa.array([0, 1, 0, 1], pa.int32()),
        }
    )


def append(directory: Path, choice: Choice, **options: Any) -> None:
    config = FLUSHED if choice.number % 2 else UNFLUSHED
    write(
        directory,
        rows(choice.number),
        topic=choice.topic,
        num_partitions=2,
        config=config,
        **options,
    )


def overwrite(directory: Path, choice: Choice) -> None:
    append(directory, choice, overwrite=True)


def retain(directory: Path, choice: Choice) -> None:
    segmentlog.retain(directory, choice.topic, settings=RETAIN)


def delete_records(directory: Path, choice: Choice) -> None:
    offset = choice.number % 5
    segmentlog.delete_records(directory, choice.topic, choice.partition, offset=offset)


def compact(directory: Path, choice: Choice) -> None:
    segmentlog.compact(directory, choice.topic, settings=COMPACT)


def delete_topic(directory: Path, choice: Choice) -> None:
    segmentlog.delete_topic(directory, choice.topic)


def crash(directory: Path, choice: Choice) -> None:
    """A commit, a deletion or retention dies at some call; the next one finishes or undoes it."""
    operation = (append, overwrite, delete_topic, retain)[choice.number % 4]
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Crash):
        crash_at(patch, choice.number)
        operation(directory, choice)


def lines_of(directory: Path, name: str) -> list[str]:
    path = directory / name
    return path.read_text().splitlines()[2:] if path.exists() else []


def replace_checkpoint(directory: Path, name: str, lines: list[str]) -> None:
    """Replace a checkpoint as a broker does it."""
    text = "\n".join(["0", str(len(lines)), *lines, ""])
    (directory / f"{name}.tmp").write_text(text)
    (directory / f"{name}.tmp").replace(directory / name)


def move_checkpoint(directory: Path, choice: Choice) -> None:
    """One entry of a checkpoint moves, or none, or an entry comes or goes."""
    name = (HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT)[
        choice.number % 3
    ]
    entry = f"{choice.topic} {choice.partition} "
    lines = lines_of(directory, name)
    others = [line for line in lines if not line.startswith(entry)]
    if choice.number % 4 == 1:
        lines = others
    elif choice.number % 4 > 1:
        lines = [*others, f"{entry}{choice.number % 7}"]
    replace_checkpoint(directory, name, lines)


def damage_checkpoint(directory: Path, choice: Choice) -> None:
    path = directory / (HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT)[choice.number % 2]
    path.write_text("0\n1\nnonsense\n")


def remove_checkpoints(directory: Path, _: Choice) -> None:
    """A copy of the partitions alone."""
    for path in directory.glob("*-checkpoint"):
        path.unlink()


def add_partition(directory: Path, choice: Choice) -> None:
    """A broker makes a partition, before any checkpoint names it."""
    partition = directory / f"{choice.topic}-{2 + choice.partition}"
    if partition.exists():
        return
    partition.mkdir()
    metadata = f"version: 0\ntopic_id: {'ABC'[choice.number % 3] * 22}\n"
    (partition / "partition.metadata").write_text(metadata)
    (partition / f"{0:020}.log").touch()


def remove_partition(directory: Path, choice: Choice) -> None:
    shutil.rmtree(directory / f"{choice.topic}-{choice.partition}", ignore_errors=True)


def put_another_in_its_place(directory: Path, choice: Choice) -> None:
    """A partition is moved away and made again, between two looks, without a checkpoint.

    The earlier one keeps its inode.
    """
    place = directory / f"{choice.topic}-{choice.partition}"
    other = directory / f"{choice.topic}-{1 - choice.partition}"
    if place.exists() and other.exists():
        place.rename(Path(tempfile.mkdtemp(dir=directory.parent)) / "moved")
        shutil.copytree(other, place)


def mark(directory: Path, choice: Choice) -> None:
    """The mark of a clean stop, or a broker's own file, comes or goes."""
    path = directory / (CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE)[choice.number % 2]
    if path.exists():
        path.unlink()
    else:
        path.touch()


def logs_of(directory: Path, choice: Choice) -> list[Path]:
    return sorted((directory / f"{choice.topic}-{choice.partition}").glob("*.log"))


def grow(directory: Path, choice: Choice) -> None:
    """A broker appends, beyond the high watermark; sometimes to a new segment."""
    for active in logs_of(directory, choice)[-1:]:
        end = segmentlog.open_log_dir(active).log(choice.topic, choice.partition).log_end_offset
        data = encode_batch([Record(end, 1, b"k", bytes(choice.number % 9))])
        if choice.number % 2 or end == int(active.stem):
            with active.open("ab") as file:
                file.write(data)
        else:
            active.with_name(f"{end:020}.log").write_bytes(data)


def lose_segments(directory: Path, choice: Choice) -> None:
    """A broker's retention removes the first segment, without a new log start."""
    for first in logs_of(directory, choice)[:-1][:1]:
        first.rename(f"{first}.deleted")


def pause(_: Path, __: Choice) -> None:
    """The clock of the file system moves on, so that looks prove something."""
    time.sleep(0.035)


CHANGES = (
    append, overwrite, retain, delete_records, compact, delete_topic, crash, move_checkpoint,
    damage_checkpoint, remove_checkpoints, add_partition, remove_partition,
    put_another_in_its_place, mark, pause,
)  # fmt: skip
#: Changes inside of partitions, which a refresh finds if it is to look at log ends.
INSIDE = (grow, lose_segments)

steps = st.lists(
    st.tuples(
        st.sampled_from(CHANGES + INSIDE),
        st.builds(Choice, st.sampled_from(TOPICS), st.integers(0, 1), st.integers(0, 40)),
        st.sampled_from(["none", "top", "log ends", "log ends"]),
    ),
    min_size=1,
    max_size=10,
)


def attempted(look_up: Callable[[], Any]) -> Any:
    """The result of a look-up, or its error."""
    try:
        return look_up()
    except SegmentLogError as error:
        return type(error), str(error)


def shown(directory: segmentlog.LogDirectory) -> dict[object, Any]:
    """Everything that a directory shows."""
    found: dict[object, Any] = {
        "missing": directory.missing_partitions(),
        "unfinished": directory.unfinished_commits,
        "named": repr(directory),
    }
    for each in directory.topic_partitions():
        found[each] = attempted(partial(shown_at, directory, each))
    return found


def shown_at(directory: segmentlog.LogDirectory, place: segmentlog.TopicPartition) -> Any:
    """Everything that a log of a directory shows."""
    return shown_log(directory.log(*place))


def shown_log(log: segmentlog.Log) -> tuple[Any, ...]:
    """Everything that a log shows."""
    return (
        [attempted(partial(log.end_offset, *how)) for how in product(ReadUpTo, IsolationLevel)],
        attempted(lambda: log.log_start_offset),
        attempted(lambda: log.scan(read_up_to="logEnd").read_all().to_pydict()),
        [(segment.base_offset, segment.size) for segment in log.segments],
        attempted(lambda: log.topic_id),
        log.known_topic_id,
    )


@pytest.fixture(scope="module", autouse=True)
def _quick_clock() -> Any:
    """The clock of the file system of the tests moves on every 30 ms at the latest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(look, "_STEP_NS", 30_000_000)
        yield


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps)
@example(  # offsets that were lost after a clean stop, and are not once a job has taken the mark
    steps=[
        (mark, Choice("a", 1, 0), "none"),
        (move_checkpoint, Choice("b", 0, 3), "log ends"),
        (append, Choice("a", 0, 10), "log ends"),
    ]
)
def test_a_refreshed_directory_equals_an_opened_one(steps: list[Any]) -> None:
    """Only changes inside of partitions need a look at log ends."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "logs"
        for topic in TOPICS:
            append(path, Choice(topic, 0, 0))
        directory = segmentlog.open_log_dir(path)
        shown(directory)
        is_grown = False
        for change, choice, refresh in steps:
            with contextlib.suppress(SegmentLogError):
                change(path, choice)
            is_grown |= change in INSIDE
            if refresh == "none" or (refresh == "top" and is_grown):
                continue
            directory = directory.refresh(log_ends=refresh == "log ends")
            is_grown = False

            assert shown(segmentlog.open_log_dir(path)) == shown(directory)
            assert shown(directory.refresh(log_ends=True)) == shown(directory)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(number=st.integers(0, 60), operation=st.sampled_from(CHANGES[:6]))
def test_a_refresh_in_the_middle_of_a_change_equals_an_opening(
    number: int, operation: Callable[[Path, Choice], None]
) -> None:
    """The change is visible in all of its partitions or in none."""
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        path = Path(made) / "logs"
        for topic in TOPICS:
            append(path, Choice(topic, 0, 0))
        directory = segmentlog.open_log_dir(path)
        shown(directory)

        def refreshed() -> None:
            nonlocal directory
            directory = directory.refresh(log_ends=bool(number % 2))
            assert shown(segmentlog.open_log_dir(path)) == shown(directory)

        act_at(patch, number, refreshed)
        with contextlib.suppress(SegmentLogError):
            operation(path, Choice("a", 0, number))
        patch.undo()
        refreshed()
