"""One change with every effect is cut at every call: it takes place as a whole or not at all."""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from crashing import CALLS, Crash, crash_at, fail_at
from plain_writes import values, write
from soundness import assert_tidy

import segmentlog
from segmentlog import Producer
from segmentlog.errors import CommitInDoubtError, SyncFailedError
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE, LOG_START_CHECKPOINT
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_offsets
from segmentlog.log.producer_snapshot import list_snapshots
from segmentlog.model import TopicPartition
from segmentlog.store.durable import SyncTogether
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn.change import Change, hold
from segmentlog.txn.effects import (
    _EFFECTS,
    AlterSettings,
    Effect,
    Follow,
    KeepProducers,
    MoveBounds,
    PutAside,
    TakeOut,
    decode_effects,
    encode_effects,
)
from segmentlog.txn.guard import PartitionIntent, list_guards, recover_commits
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.state import NumberedWrite, State
from segmentlog.writes.append import create_segment
from segmentlog.writes.prepare import ready_to_append, visible_ends

ORDERS, ROWS = TopicPartition("orders", 0), [b"%d" % i for i in range(6)]


def begin(directory: Path) -> None:
    """Write a log whose records will be removed, and a topic that will be deleted."""
    table = pa.table({"value": ROWS})
    write(directory, table, topic="orders", producer=Producer(5, 0, 0))
    write(directory, table, topic="gone", num_partitions=2)
    segmentlog.alter_settings(directory, "gone", {"retention.ms": "1"})


def every_effect(end: int) -> list[Effect]:
    """One effect of each kind: ``orders`` is emptied to its end, and ``gone`` is deleted."""
    return [
        MoveBounds(),
        PutAside([(*ORDERS, end)]),
        KeepProducers(),
        TakeOut("gone"),
        AlterSettings("orders", {"retention.ms": "7"}),
    ]


def change(directory: Path, delay_ms: int = 60_000) -> None:
    """Empty ``orders`` to a new segment, keep its producer, number the write, delete ``gone``."""
    path = str(directory)
    config = TopicConfig(file_delete_delay_ms=delay_ms)
    with hold(path, 60, lambda _: config) as held:
        begun = Change.begin(held)
        if State.read(path).versions:  # the change is done
            return
        sizes, end = ready_to_append(held, [ORDERS], flush=True)[ORDERS]
        held.checkpoints.write()
        visible = visible_ends(held, {ORDERS: end})[ORDERS]
        partitions = [PartitionIntent(*ORDERS, sizes, end, visible, end, end)]

        def work(syncs: SyncTogether) -> None:
            create_segment(str(directory / "orders-0"), end)
            syncs.add_directory(str(directory / "orders-0"))

        begun.carry_out(
            partitions,
            every_effect(end),
            work,
            noted=lambda state: state.with_version(NumberedWrite("app", 1), {"orders": ""}, {}),
        )


def is_done(directory: Path) -> bool:
    """Whether a reader sees the change. The reader sees all of it or nothing."""
    topics = segmentlog.open_log_dir(directory).topics()
    seen = values(directory, "orders")
    assert (seen, topics) in [(ROWS, {"gone": [0, 1], "orders": [0]}), ([], {"orders": [0]})]
    is_new = not seen
    state = State.read(str(directory))
    assert is_new == (("app", "orders") in state.versions)
    assert is_new == (["gone"] == [each.topic for each in state.deleted])
    assert is_new == (segmentlog.topic_settings(directory, "orders")["retention.ms"].value == "7")
    return is_new


def assert_as_a_whole(directory: Path, *, is_new: bool) -> None:
    """The files are those before or after the whole change, and no guard is left."""
    path = str(directory)
    assert [] == list_guards(path)
    assert is_new == is_done(directory)
    assert is_new == (read_offsets(path, LOG_START_CHECKPOINT).get(ORDERS) == len(ROWS))
    assert is_new == ("gone" not in SettingsFile.read(path).topics)
    assert is_new == ("orders" in SettingsFile.read(path).topics)
    live = {each.name for each in (directory / "orders-0").glob("*.log")}
    assert {f"{len(ROWS) if is_new else 0:020d}.log"} == live
    assert [6] == list_snapshots(str(directory / "orders-0"))
    assert (directory / CLEAN_SHUTDOWN_FILE).exists()


@pytest.mark.addition("effect of a change")
def test_the_change_of_these_tests_has_every_effect() -> None:
    """A new kind of effect is cut at each call, too; tests of mirrors cut that of a mirror."""
    assert set(_EFFECTS) - {Follow.kind} == {each.kind for each in every_effect(0)}


@pytest.mark.addition("effect of a change")
def test_a_change_that_is_cut_at_any_call_is_whole_or_undone(tmp_path: Path) -> None:
    """Readers see a whole change or none, after each cut and after a recovery that is cut.

    The next recovery finishes or undoes the change, and a second attempt succeeds.
    """
    begin(tmp_path / "before")
    outcomes: list[bool] = []
    for number in range(1000):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "before", directory)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                change(directory)
            except Crash:
                is_cut = True
            else:
                is_cut = False
        is_new = is_done(directory)
        with pytest.MonkeyPatch.context() as patch, DirectoryLock(str(directory)):
            crash_at(patch, number % 7)
            try:
                recover_commits(str(directory))
            except Crash:
                assert is_cut
        assert is_new == is_done(directory), number
        with DirectoryLock(str(directory)):
            recover_commits(str(directory))
        assert_as_a_whole(directory, is_new=is_new)
        change(directory)
        assert_as_a_whole(directory, is_new=True)
        write(directory, pa.table({"value": ROWS}), topic="orders", producer=Producer(5, 0, 0))
        assert [] == values(directory, "orders")  # the log knows the producer's batch
        write(directory, pa.table({"value": ROWS}), topic="orders")
        assert values(directory, "orders") == ROWS
        assert_tidy(directory)
        shutil.rmtree(directory)
        outcomes.append(is_new)
        if not is_cut:
            break

    assert sorted(outcomes) == outcomes  # one call decides
    assert min(outcomes.count(False), outcomes.count(True)) > 10


@pytest.mark.parametrize(
    ("code", "calls"), [(errno.EIO, CALLS), (errno.ENOSPC, CALLS), (errno.EMFILE, ["open"])]
)
def test_a_call_that_fails_leaves_a_change_whole_or_undone(
    tmp_path: Path, code: int, calls: Sequence[str]
) -> None:
    """A failure after the decision is only a warning. On a full disk, the change frees space.

    An error that does not leave the decision in doubt means that the change has not taken place.
    """
    begin(tmp_path / "before")
    for number in range(1000):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "before", directory)
        with pytest.MonkeyPatch.context() as patch:
            made = fail_at(patch, number, code, is_final=False, calls=calls)
            is_acknowledged = is_refused = False
            try:
                change(directory, delay_ms=0)
            except (SyncFailedError, CommitInDoubtError):  # a disk that fails is left alone
                pass
            except (OSError, segmentlog.SegmentLogError):
                is_refused = True
                assert [] == list_guards(str(directory))
            else:
                is_acknowledged = True
        is_new = is_done(directory)
        assert not (is_new and is_refused), number
        assert is_new or not is_acknowledged
        with DirectoryLock(str(directory)):
            recover_commits(str(directory))
        assert is_new == is_done(directory), number
        assert [] == list_guards(str(directory))
        change(directory)
        assert is_done(directory)
        shutil.rmtree(directory)
        if len(made) < number:  # no call has failed
            break
    assert number > 20


def test_files_that_are_due_go_with_the_change(tmp_path: Path) -> None:
    """Files of a deleted topic are removed at once.

    Files of removed records are removed after their delay.
    """
    begin(tmp_path)
    change(tmp_path)
    assert [tmp_path / "orders-0"] == [path for path in tmp_path.iterdir() if path.is_dir()]
    assert [*tmp_path.glob("orders-0/*.log.deleted")]
    assert ["orders"] == State.read(str(tmp_path)).aside

    begin(tmp_path / "other")
    change(tmp_path / "other", delay_ms=0)
    assert not [*tmp_path.glob("other/orders-0/*.deleted")]


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"kind": "unknown"},
        {"kind": ["takeOut"]},
        {"kind": "moveBounds", "more": 1},
        {"kind": "takeOut"},
        {"kind": "takeOut", "topic": 7},
        {"kind": "takeOut", "topic": f"..{os.sep}elsewhere"},
        {"kind": "alterSettings", "topic": "t"},
        {"kind": "alterSettings", "topic": "t", "settings": {"retention.ms": 7}},
        {"kind": "alterSettings", "topic": "t", "settings": {"retention.ms": "never"}},
        {"kind": "putAside", "segments": None},
        {"kind": "putAside", "segments": "abc"},
        {"kind": "putAside", "segments": [["t", 0]]},
        {"kind": "putAside", "segments": [["t", 0, "1"]]},
        {"kind": "putAside", "segments": [[f"..{os.sep}t", 0, 1]]},
    ],
)
def test_an_effect_that_nobody_has_written_is_refused(found: dict[str, object]) -> None:
    """An effect of another version, or of a damaged file, must not be applied in part."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        decode_effects([found])


def test_effects_come_back_as_they_were_written() -> None:
    """Effects keep their order when they are written and read."""
    effects = [
        TakeOut("t"),
        PutAside([("t", 0, 7)]),
        KeepProducers(),
        MoveBounds(),
        AlterSettings("t", {"retention.ms": "7"}),
    ]
    assert effects == decode_effects(encode_effects(effects))
