"""A holder that is held up until another writer has its lock changes nothing of that writer."""

import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from crashing import CALLS, Crash, Forward, around_calls, cut_loop, refuse_copies
from lost_lock import lock_is_lost
from soundness import assert_settled

import segmentlog
from segmentlog.errors import SegmentLogError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.txn.state import STATE_FILE

pytestmark = pytest.mark.linux

COMPACT = {"cleanup.policy": "compact", "segment.bytes": "300", "min.cleanable.dirty.ratio": "0"}
CONFIG = segmentlog.ProducerConfig(
    batch_size=1, topic_config=TopicConfig(segment_bytes=300, index_interval_bytes=1)
)


def write(directory: Path, *values: bytes, topic: str = "t", overwrite: bool = False) -> None:
    """Commit records, each in a batch of its own and with its value as its key."""
    with segmentlog.open_writer(
        directory, topic, num_partitions=1, config=CONFIG, overwrite=overwrite
    ) as writer:
        writer.append(pa.table({"key": values, "value": values}))


def values_of(directory: Path) -> list[bytes]:
    """What a reader finds."""
    found: list[bytes] = segmentlog.read(directory, "t")["value"].to_pylist()
    return found


def torn(directory: Path) -> None:
    """The last append was torn by a power cut."""
    write(directory, *[b"a", b"b"] * 4)
    last = max((directory / "t-0").glob("*.log"))
    with last.open("ab") as file:
        file.write(b"torn" * 5)
    (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)


def dies_at(directory: Path, act: Callable[[Path], object], end: str, *, is_done: bool) -> None:
    """A process dies before or after its first rename to or from a name that ends so."""
    write(directory, *[b"a", b"b"] * 8)
    is_dead = False

    def around(name: str, forward: Forward) -> object:
        nonlocal is_dead
        is_last = name == "rename" and any(str(each).endswith(end) for each in forward.args[:2])
        if is_last and is_done and not is_dead:
            forward()
        is_dead = is_dead or is_last
        if is_dead:
            raise Crash
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        with pytest.raises(Crash):
            act(directory)


def compact(directory: Path) -> None:
    """Compact the log up to its end."""
    segmentlog.compact(directory, settings=COMPACT, roll=True)


def fail_to_write(directory: Path) -> None:
    """A commit of a writer that dies."""
    write(directory, *[b"dead"] * 5)


BEGIN: dict[str, Callable[[Path], None]] = {
    "whole": lambda directory: write(directory, *[b"a", b"b"] * 4),
    "torn": torn,
    "empty": lambda directory: directory.mkdir(exist_ok=True),
    "undecided": lambda directory: dies_at(directory, fail_to_write, STATE_FILE, is_done=False),
    "decided": lambda directory: dies_at(directory, fail_to_write, STATE_FILE, is_done=True),
    "swapping": lambda directory: dies_at(directory, compact, ".deleted", is_done=True),
}

ACT: dict[str, Callable[[Path], object]] = {
    "append": lambda directory: write(directory, *[b"late"] * 5),
    "overwrite": lambda directory: write(directory, *[b"late"] * 5, overwrite=True),
    "compact": compact,
    "erase": lambda directory: segmentlog.erase(directory, b"a", "t"),
    "retain": lambda directory: segmentlog.retain(
        directory, settings={"retention.bytes": "1", "segment.bytes": "300"}
    ),
    "delete-records": lambda directory: segmentlog.delete_records(directory, "t", 0, offset=-1),
    "delete-topic": lambda directory: segmentlog.delete_topic(directory, "t"),
    "recover": segmentlog.recover,
}


def act_beside_another(act: Callable[[], object], number: int, other: Callable[[], object]) -> int:
    """Let another writer act after a call of an operation; the number of its calls."""
    n_made = 0

    def around(_: str, forward: Forward) -> object:
        nonlocal n_made
        n_made += 1
        is_now = n_made == number
        try:
            return forward()
        finally:
            if is_now:
                with lock_is_lost():
                    other()

    with pytest.MonkeyPatch.context() as patch:
        refuse_copies(patch)
        around_calls(patch, CALLS, around)
        with contextlib.suppress(SegmentLogError):
            act()
    return n_made


@cut_loop
@pytest.mark.parametrize(
    ("begin", "act"),
    [
        *[("whole", each) for each in ACT if each != "recover"],
        *[("torn", each) for each in ("append", "compact", "erase", "recover")],
        ("empty", "append"),
        *[
            (each, act)
            for each in ("undecided", "decided", "swapping")
            for act in ("append", "compact", "recover")
        ],
    ],
)
def test_what_another_has_committed_meanwhile_stays(
    tmp_path: Path, begin: str, act: str, every: int
) -> None:
    """The other writer commits after any call of the first one, which continues then."""
    whole = tmp_path / "whole"
    BEGIN[begin](whole)
    for number in range(1, 10_000, every):
        directory = tmp_path / f"{number}"
        shutil.copytree(whole, directory)
        run, other = partial(ACT[act], directory), partial(write, directory, b"other")
        if act_beside_another(run, number, other) < number:
            break
        assert b"other" in values_of(directory)
        write(directory, b"next")
        assert values_of(directory).count(b"other") == 1
        assert values_of(directory)[-1] == b"next"
        assert_settled(directory)
        shutil.rmtree(directory)
    assert number > 1


@cut_loop
def test_a_mirror_that_is_overtaken_by_a_later_one(tmp_path: Path, every: int) -> None:
    """The later one has copied more of the same segment, and of the next one."""
    source, begun = tmp_path / "source", tmp_path / "begun"
    write(source, b"a")
    segmentlog.mirror(source, to=begun)
    write(source, b"b")
    for number in range(1, 10_000, every):
        growing, to = tmp_path / f"source-{number}", tmp_path / f"{number}"
        shutil.copytree(source, growing)
        shutil.copytree(begun, to)

        def overtake() -> None:
            write(growing, *[b"c"] * 4)  # noqa: B023 - called in this turn
            segmentlog.mirror(growing, to=to)  # noqa: B023

        run = partial(segmentlog.mirror, growing, to=to)
        if act_beside_another(run, number, overtake) < number:
            break
        assert values_of(to) == [b"a", b"b"] + [b"c"] * 4, number
        assert_settled(to)
    assert number > 20
