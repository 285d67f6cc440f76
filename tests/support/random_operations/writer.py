"""A writer that is killed at random moments: ``writer DIRECTORY LEDGER RUN SLOT``.

The program forks a child, kills it after a while, and forks the next one, until its standard input
ends.  A child does step after step.  Memory that it shares with its parent has the number of the
last step that was begun, so that no number comes twice, and the model of its own writes.  A
numbered write, and the flush of a producer, are repeated until they are acknowledged, and now and
then once more.
"""

import json
import logging
import mmap
import os
import pickle
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from crashing import Forward, around_calls
from held_commit import around_decision

import segmentlog
from random_operations.faults import met
from random_operations.ledger import Ledger
from random_operations.model import Model
from random_operations.operations import OPERATIONS
from random_operations.playing import Step, parse
from random_operations.run import Run, scene_of
from segmentlog.errors import CommitInDoubtError, LogLockedError, SegmentLogError
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn.guard import list_guards
from segmentlog.txn.state import State

_REPEATED = ("produce", "number")
_MOST_PATIENCE = 8
_LATE = ("pwrite", "rename", "replace", "link", "unlink", "ftruncate")


class _Kept(NamedTuple):
    """What outlives a child: the last step that was begun, and one that has to be repeated."""

    number: int = 0
    model: Model = Model()
    pending: tuple[str, int] | None = None


class _Memory:
    """Memory that a parent and its children share; a kill leaves the old value or the new one."""

    def __init__(self) -> None:
        self._bytes = mmap.mmap(-1, 1 << 21)
        self._half = len(self._bytes) // 2
        self.put(_Kept())

    def put(self, kept: _Kept) -> None:
        data = pickle.dumps(kept)
        which = 1 - self._bytes[0]
        begin = 1 + which * self._half
        assert len(data) < self._half - 1
        self._bytes[begin : begin + len(data)] = data
        self._bytes[0] = which

    def get(self) -> _Kept:
        kept: _Kept = pickle.loads(self._bytes[1 + self._bytes[0] * self._half :])
        return kept


class Writer:
    """One child process."""

    def __init__(self, directory: Path, ledger: Ledger, run: Run, slot: int) -> None:
        self._directory, self._ledger, self._run = directory, ledger, run
        self._step_of = run.steps(slot)
        self._step, self._now_ms, self._n_done = Step("", 0), 0, 0
        self._pause_seconds = 0.0
        around_decision(self._note_decision, lambda: time.sleep(5 * self._pause_seconds))
        around_calls(pytest.MonkeyPatch(), _LATE, self._late)

    def work(self, memory: _Memory) -> None:
        """Do step after step, without end."""
        while True:
            kept = memory.get()
            if kept.pending is not None:
                text, self._now_ms = kept.pending
                (self._step,) = parse(text)
            else:
                kept = kept._replace(number=kept.number + 1)
                self._step, self._now_ms = self._step_of(kept.number), time.time_ns() // 10**6
                is_kept = self._step.name in _REPEATED
                pending = (str(self._step._replace(fault=None)), self._now_ms)
                memory.put(kept._replace(pending=pending if is_kept else None))
            rng = random.Random(f"{self._step} pauses")
            self._pause_seconds = rng.choice((0, 0, 0.0005, 0.004))
            if self._step.name in OPERATIONS:
                model = self._do(kept.model, is_again=kept.pending is not None)
                if model is None:  # nobody knows whether it is written
                    continue
                memory.put(_Kept(kept.number, replace(model, logs={})))
            else:
                self._keep_up(rng)

    def _do(self, model: Model, *, is_again: bool) -> Model | None:
        """One operation; its private model, or None if it has to be repeated."""
        plan = OPERATIONS[self._step.name].plan(
            scene_of(self._run, self._directory, model, self._step, self._now_ms)
        )
        self._ledger.note("begun", step=str(self._step), again=is_again)
        self._n_done = 0

        def done() -> None:
            self._ledger.note("acknowledged", step=str(self._step), part=self._n_done)
            self._n_done += 1

        try:
            with met(self._step.fault) as calls:
                plan.act(done)
        except (CommitInDoubtError, KeyboardInterrupt):
            self._ledger.note("in doubt")
            return None if self._step.name in _REPEATED else model
        except (SegmentLogError, OSError) as error:
            if not calls.is_met and not isinstance(error, LogLockedError):
                raise
            if not is_again:  # an earlier attempt may have been killed after its commit
                self._ledger.note("failed", step=str(self._step), part=self._n_done)
                return plan.states[0]
            return None
        if self._step.name in _REPEATED and random.random() < 0.2:
            self._ledger.note("once more")
            self._n_done = 0
            plan.act(done)
        return plan.states[-1]

    def _keep_up(self, rng: random.Random) -> None:
        """Recover, compact or retain; readers must notice nothing, or a log start that moves."""
        name, directory, n_done = self._step.name, self._directory, 0
        time.sleep(rng.uniform(0, 2 * self._run.rest))
        try:
            if name == "recovering":
                steps = segmentlog.recover(directory, index_interval_bytes=100)
                lines = [each.message for each in steps]
                is_failed = any(each.kind is segmentlog.RecoveryKind.LOG_FAILED for each in steps)
                if is_failed:
                    self._ledger.note("unexpected", text="\n".join(lines))
                n_done = len(lines)
            elif name == "compacting":
                n_done = len(segmentlog.compact(directory))
            elif name == "retaining":
                n_done = len(segmentlog.retain(directory, kafka_defaults=True))
            elif name == "forgetting":
                self._forget_watermarks(rng.choice([*self._run.made]))
        except LogLockedError:
            name = "busy"
        self._ledger.note("kept up", kind=name, n=n_done)

    def _forget_watermarks(self, topic: str) -> None:
        """Remove the high watermarks of a topic, so that its logs are read to their ends."""
        path = str(self._directory)
        with DirectoryLock(path, 60):
            if not list_guards(path):
                offsets = dict(read_offsets(path, HIGH_WATERMARK_CHECKPOINT))
                kept = {each: offset for each, offset in offsets.items() if each.topic != topic}
                write_offsets(path, HIGH_WATERMARK_CHECKPOINT, kept)

    def _late(self, name: str, forward: Forward) -> object:
        """A call that takes its time: of an undo, there may be hundreds."""
        is_short = name in {"unlink", "ftruncate"}
        time.sleep(min(self._pause_seconds, 0.002) if is_short else self._pause_seconds)
        return forward()

    def _note_decision(self) -> None:
        """Note the decision while the lock is held, so that the ledger has decisions in order."""
        path = str(self._directory)
        intent, state = list_guards(path)[-1].intent(), State.read(path)
        assert intent is not None
        time.sleep(5 * self._pause_seconds)
        left = {
            str(each): sum(
                log.stat().st_size
                for log in (self._directory / str(each)).glob("*.log")
                if int(log.stem) >= start
            )
            for each, start in intent.new_starts.items()
        }
        self._ledger.note(
            "decision",
            step=str(self._step),
            part=self._n_done,
            now_ms=self._now_ms,
            token=intent.token,
            after=state.token,
            sequence=state.sequence,
            by_ms=time.time_ns() // 10**6,
            left=left,
            partitions=[
                (str(each.topic_partition), each.end_offset, each.new_end, each.new_start)
                for each in intent.partitions
            ],
        )


class _Heard(logging.Handler):
    """Warnings of the engine about recoveries."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.WARNING)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        self._ledger.note("warning", text=record.getMessage())


def _child(work: Callable[[], None], ledger: Ledger) -> None:
    try:
        work()
    except BaseException:  # noqa: BLE001 - any error: the test reports it
        ledger.note("unexpected", text=traceback.format_exc())
    finally:
        os._exit(1)


def main(directory: Path, ledger: Ledger, run: Run, slot: int) -> None:
    """Fork, wait, kill, and begin again."""
    logging.getLogger("segmentlog").addHandler(_Heard(ledger))
    memory = _Memory()
    rng = random.Random(f"{run.seed} kills of {slot}")
    print("ready", flush=True)
    sys.stdin.readline()
    is_over, patience = False, 1.0
    while not is_over:
        before, child = memory.get().number, os.fork()
        if not child:
            _child(lambda: Writer(directory, ledger, run, slot).work(memory), ledger)
        seconds = patience * run.lives * rng.uniform(0.1, 1.9)
        is_over = bool(select.select([sys.stdin], [], [], seconds)[0])
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ledger.note("killed")
        # On a machine that is busy with other things, most would be killed in their first job.
        is_hasty = memory.get().number < before + 2
        patience = min(1.5 * patience, _MOST_PATIENCE) if is_hasty else 1.0


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Ledger(Path(sys.argv[2])),
        Run(**json.loads(sys.argv[3])),
        int(sys.argv[4]),
    )
