"""A writer that is killed at random moments, again and again: ``writer DIRECTORY LEDGER HOW``.

The program forks a child, kills it after a while, and forks the next one, until its standard input
ends. A child does operation after operation. The numbers of begun operations are in memory that it
shares with its parent, so that no number comes twice. Only a numbered write comes again, until it
is acknowledged.
"""

import errno
import json
import logging
import mmap
import os
import random
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from held_commit import around_decision

import segmentlog
from segmentlog.errors import LogLockedError, SegmentLogError
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.maintain.recover import recover
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn.guard import list_guards
from segmentlog.txn.state import State
from segmentlog.txn.steps import RecoveryKind
from segmentlog.writes.append import LogAppender
from stressing.ledger import Ledger
from stressing.plan import NUMBERS_PER_SLOT, TOPICS, Op, op_of

_INTERVAL_BYTES = 100
_MOST_PATIENCE = 8
_LONGEST_CUT = 0.002  #: seconds before each of what may be hundreds


class InjectedError(OSError):
    """The disk is full, because the plan says so."""


class AbortedError(Exception):
    """The job gives up, because the plan says so."""


class _Heard(logging.Handler):
    """Warnings of the engine about recoveries."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.WARNING)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        self._ledger.note("warning", text=record.getMessage())


def _is_injected(error: BaseException | None) -> bool:
    """Whether an error is the plan's, or was raised because of it."""
    if error is None or isinstance(error, InjectedError):
        return error is not None
    return _is_injected(error.__cause__)


class Writer:
    """One child process.

    Parameters
    ----------
    directory : the log directory.
    ledger : what is written down.
    how : ``seed``, ``slot``, ``n_new_topics``.
    shared : two numbers: the last operation that was begun, and the numbered write that was begun
        and not acknowledged, or 0.
    """

    def __init__(
        self, directory: Path, ledger: Ledger, how: dict[str, int], shared: mmap.mmap
    ) -> None:
        self._directory = directory
        self._ledger = ledger
        self._how = how
        self._shared = shared
        self._op: Op | None = None
        self._n_appends = 0
        self._put_hooks()

    def run(self) -> None:
        """Do operation after operation, without end."""
        while True:
            last, pending = struct.unpack("qq", self._shared[:16])
            number = pending or last + 1
            self._shared[:8] = struct.pack("q", max(last, number))
            op = op_of(self._how["seed"], number, self._how["n_new_topics"])
            if op.is_numbered and op.is_write:
                self._shared[8:16] = struct.pack("q", number)
            self._op, self._n_appends = op, 0
            self._do(op, is_again=bool(pending))
            self._shared[8:16] = struct.pack("q", 0)

    def _do(self, op: Op, *, is_again: bool) -> None:
        number = op.job.number
        if op.kind == "recover":
            self._recover()
            return
        if op.kind == "forget watermarks":
            self._forget_watermarks(random.Random(number).choice(list(TOPICS)))
            return
        self._ledger.note("begun", job=number, again=is_again)
        try:
            self._write(op)
        except AbortedError:
            self._ledger.note("aborted", job=number)
        except (SegmentLogError, OSError) as error:
            if not _is_injected(error):
                raise
            self._ledger.note("failed", job=number)
        else:
            self._ledger.note("acknowledged", job=number)

    def _write(self, op: Op) -> None:
        with segmentlog.open_writer(
            self._directory, op.topic, config=op.config,
            num_partitions=max(op.job.topics.values()),
            overwrite=op.kind == "overwrite",
            txn_app_id=f"slot {self._how['slot']}" if op.is_numbered else None,
            txn_version=op.job.number if op.is_numbered else None,
        ) as writer:  # fmt: skip
            writer.append(op.job.rows())
            if op.kind == "abort":
                raise AbortedError

    def _recover(self) -> None:
        try:
            steps = recover(self._directory, index_interval_bytes=_INTERVAL_BYTES)
        except LogLockedError:
            self._ledger.note("busy")
            return
        has_failed = any(step.kind is RecoveryKind.LOG_FAILED for step in steps)
        lines = [f"{step.message}\n" for step in steps]
        self._ledger.note("not recovered" if has_failed else "recovered", lines=lines)

    def _forget_watermarks(self, topic: str) -> None:
        """Remove the high watermarks, so that logs are read to their ends."""
        path = str(self._directory)
        with DirectoryLock(path, 60):
            if list_guards(path):
                return
            offsets = dict(read_offsets(path, HIGH_WATERMARK_CHECKPOINT))
            kept = {each: offset for each, offset in offsets.items() if each.topic != topic}
            write_offsets(path, HIGH_WATERMARK_CHECKPOINT, kept)
            self._ledger.note("forgotten", topic=topic)

    def _put_hooks(self) -> None:
        real = LogAppender.append

        def append(appender: LogAppender, *arguments: Any) -> None:
            op = self._op
            assert op is not None
            self._n_appends += 1
            time.sleep(op.pause_seconds)
            real(appender, *arguments)
            if op.kind == "fail" and self._n_appends >= op.fails_at:
                self._pause()
                raise InjectedError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        LogAppender.append = append  # type: ignore[method-assign, assignment]
        around_decision(self._note_decision, self._pause)
        for name in ("ftruncate", "unlink"):  # of an undo, which is to take its time, too
            setattr(os, name, self._late(getattr(os, name)))

    def _pause(self) -> None:
        if self._op is not None:
            time.sleep(5 * self._op.pause_seconds)

    def _late(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: Any, **keywords: Any) -> object:
            if self._op is not None:
                time.sleep(min(self._op.pause_seconds, _LONGEST_CUT))
            return real(*arguments, **keywords)

        return call

    def _note_decision(self) -> None:
        """Note the decision while the lock is held, so that the ledger has decisions in order."""
        op = self._op
        assert op is not None
        self._pause()
        path = str(self._directory)
        token, after = list_guards(path)[-1].token, State.read(path).token
        self._ledger.note("decision", job=op.job.number, token=token, after=after)


def _warm_up(beside: Path) -> None:
    """Load and compile everything that the children need, before they are forked."""
    with tempfile.TemporaryDirectory(dir=beside.parent) as directory:
        for number in range(1, 12):
            op = op_of(0, number, 1)
            if op.is_write:
                with segmentlog.open_writer(
                    directory, op.topic, config=op.config, num_partitions=3
                ) as writer:
                    writer.append(op.job.rows())


def _child(directory: Path, ledger: Ledger, how: dict[str, int], shared: mmap.mmap) -> None:
    try:
        Writer(directory, ledger, how, shared).run()
    except (SegmentLogError, OSError, AssertionError, ValueError, TypeError):
        ledger.note("unexpected", text=traceback.format_exc())
    finally:
        os._exit(1)


def _last_begun(shared: mmap.mmap) -> int:
    number: int = struct.unpack("q", shared[:8])[0]
    return number


def main(directory: Path, ledger: Ledger, how: dict[str, int]) -> None:
    """Fork, wait, kill, and begin again."""
    _warm_up(directory)
    logging.getLogger("segmentlog").addHandler(_Heard(ledger))
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    shared[:8] = struct.pack("q", how["slot"] * NUMBERS_PER_SLOT)
    rng = random.Random(f"{how['seed']} kills of {how['slot']}")
    print("ready", flush=True)
    sys.stdin.readline()
    is_over, patience = False, 1.0
    while not is_over:
        before, child = _last_begun(shared), os.fork()
        if not child:
            _child(directory, ledger, how, shared)
        seconds = patience * rng.uniform(0.1, 2.5)
        is_over = bool(select.select([sys.stdin], [], [], seconds)[0])
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ledger.note("killed", child=child)
        # On a machine that is busy with other things, most would be killed in their first job.
        is_hasty = _last_begun(shared) < before + 2
        patience = min(1.5 * patience, _MOST_PATIENCE) if is_hasty else 1.0


if __name__ == "__main__":
    main(Path(sys.argv[1]), Ledger(Path(sys.argv[2])), json.loads(sys.argv[3]))
