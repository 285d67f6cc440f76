"""The processes of a soak: a writer, a checker, and repeated ``compact`` and ``retain``.

The writer and the commands are killed sometimes, and started again.
"""

import json
import os
import random
import re
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stressing.ledger import Ledger

from soaking.history import Tail
from soaking.plan import PARTITIONS, Soak

__all__ = ["Upkeep"]

_TICK = 0.05
_SECONDS_TO_END = 60
_KILLED = 0.25  # share of the commands
_LOOKS = 0.004  # seconds between two, for the moment to kill
_MOST_LOOKS = 4.0
_PASSING = [".cleaned", ".swap"]


class _Command:
    """One of the two commands, which runs again and again.

    Parameters
    ----------
    name : ``compact`` or ``retain``.
    every : mean seconds from an end to the next beginning.
    """

    def __init__(self, name: str, every: float) -> None:
        self.name, self.every = name, every
        self.process: subprocess.Popen[str] | None = None
        self.begun_at = self.kill_at = self.next_at = 0.0
        self.took = 1.0


class Upkeep:
    """All processes except Spark's, in a thread, from `start` to `end`.

    Parameters
    ----------
    directory : the log directory.
    ledger : where failures go.
    run : the soak.

    Attributes
    ----------
    counts : what has happened.
    """

    def __init__(self, directory: Path, ledger: Ledger, run: Soak) -> None:
        self._directory, self._ledger, self._run = directory, ledger, run
        self._rng = random.Random(f"{run.seed} kills")
        self._errors = ledger.path.with_suffix(".stderr")
        self.counts: Counter[str] = Counter()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="upkeep")
        self._commands = [
            _Command("compact", run.compact_every), _Command("retain", run.retain_every)
        ]  # fmt: skip
        self._tail = Tail(ledger.path)

    def start(self) -> None:
        """Start all processes."""
        self._start_writer()
        self._checker = self._start("soaking.checker")
        self._thread.start()

    def end(self) -> None:
        """Let all processes end."""
        self._is_over.set()
        self._thread.join()
        for each in self._commands:
            if each.process is not None:
                self._ended(each, *each.process.communicate(timeout=_SECONDS_TO_END))
        for name, process in (("writer", self._writer), ("checker", self._checker)):
            process.communicate("end\n", timeout=_SECONDS_TO_END)
            if process.returncode:
                self._bad(f"the {name} has ended with {process.returncode}")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.counts["seconds of processor time, children"] = round(used.ru_utime + used.ru_stime)

    def kill(self) -> None:
        """Kill every process that is left."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        commands = [each.process for each in self._commands if each.process]
        for each in (*commands, self._writer, self._checker):
            if each.poll() is None:
                each.kill()
                each.communicate()

    def command(self, *arguments: str) -> "subprocess.Popen[str]":
        """A started command of segmentlog's."""
        # The broker's own policy is Kafka's default, which no file of the directory contains.
        own = ["--kafka-defaults"] if arguments[0] == "retain" else []
        return subprocess.Popen(
            [sys.executable, "-m", "segmentlog", *arguments, *own],
            env=_environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _start_writer(self) -> None:
        self._writer = self._start("soaking.writer")
        self._kill_writer_at = float("inf")

    def _start(self, module: str) -> "subprocess.Popen[str]":
        how = json.dumps(self._run._asdict())
        with self._errors.open("a") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", module, str(self._directory), str(self._ledger.path), how],
                env=_environment(), text=True, stdin=subprocess.PIPE, stderr=errors,
            )  # fmt: skip

    def _soon(self, most: float) -> float:
        return time.monotonic() + self._rng.uniform(0.2, 1) * most

    def _loop(self) -> None:
        while not self._is_over.wait(_TICK):
            now = time.monotonic()
            if self._kill_writer_at == float("inf") and self._has_written():
                self._kill_writer_at = self._soon(2 * self._run.writer_lives)
            if now >= self._kill_writer_at:
                self._kill_writer()
            elif self._writer.poll() is not None:
                self._bad(f"the writer has ended with {self._writer.returncode}")
                return
            if self._checker.poll() is not None:
                self._bad(f"the checker has ended with {self._checker.returncode}")
                return
            for each in self._commands:
                if each.process is None and now >= each.next_at:
                    self._begin(each)
                elif each.process is not None:
                    self._look_after(each)

    def _kill_writer(self) -> None:
        self._writer.kill()
        self._writer.communicate()
        self.counts["kills of the writer"] += 1
        self._start_writer()

    def _has_written(self) -> bool:
        """Whether this writer has committed: on a slow machine it would be killed before."""
        return any(
            each["what"] == "committed" and each["pid"] == self._writer.pid
            for each in self._tail.events()
        )

    def _begin(self, of: _Command) -> None:
        of.process = self.command(of.name, str(self._directory))
        of.begun_at, of.kill_at = time.monotonic(), float("inf")
        if self._is_to_be_killed(of.name):
            if of.name == "compact" and self._rng.random() < 0.7:
                self._kill_in_a_pass(of.process)
            else:
                of.kill_at = of.begun_at + self._rng.uniform(0, of.took)

    def _is_to_be_killed(self, name: str) -> bool:
        """Whether to kill: not before something is done, then at least once, then sometimes."""
        if not self.counts[f"{name}: {_DONE[name][0][1]}"]:
            return False
        return not self.counts[f"{name}: killed"] or self._rng.random() < _KILLED

    def _kill_in_a_pass(self, process: "subprocess.Popen[str]") -> None:
        """Kill a compaction at a random moment after it has begun to write."""
        deadline = time.monotonic() + _MOST_LOOKS
        later = self._rng.choice([0, 0, 0.002, 0.01, 0.03])
        wanted = self._rng.choice(_PASSING)
        while time.monotonic() < deadline and process.poll() is None:
            if wanted in self._passing():
                time.sleep(later)
                process.kill()
                left = sorted(self._passing()) or "nothing"
                self.counts[f"compactions killed that left {left}"] += 1
                return
            time.sleep(_LOOKS)

    def _passing(self) -> set[str]:
        """Endings of the files of an unfinished pass."""
        paths = [self._directory / f"latest-{each}" for each in range(PARTITIONS["latest"])]
        return {each.suffix for path in paths for each in path.iterdir()} & {*_PASSING}

    def _look_after(self, of: _Command) -> None:
        assert of.process is not None
        if time.monotonic() >= of.kill_at:
            of.process.kill()
        if of.process.poll() is not None:
            self._ended(of, *of.process.communicate())

    def _ended(self, of: _Command, said: str, complained: str) -> None:
        assert of.process is not None
        code, of.process = of.process.returncode, None
        of.took = time.monotonic() - of.begun_at if code == 0 else of.took
        of.next_at = time.monotonic() + self._rng.uniform(0.2, 1.8) * of.every
        self.note(of.name, code, said, complained)
        if code > 0:  # the lock was held
            of.next_at = time.monotonic() + 0.1

    def note(self, name: str, code: int, said: str, complained: str) -> None:
        """Count what a command has done."""
        if code < 0:
            self.counts[f"{name}: killed"] += 1
        elif code and re.search("lock", complained):
            self.counts[f"{name}: another one held the lock"] += 1
        elif code:
            self._bad(f"{name} has ended with {code}: {said[-2000:]} {complained[-2000:]}")
        else:
            self.counts[f"{name}: done"] += 1
            # A line on when disk space is freed may follow the one that counts.
            lines = [line for line in said.splitlines() if re.search(_DONE[name][0][0], line)]
            for word, noun in _DONE[name]:
                found = re.search(word, lines[-1]) if lines else None
                if found:
                    self.counts[f"{name}: {noun}"] += int(found[1].replace(",", ""))
        for line in complained.splitlines():
            if "finished or undid" in line:
                self.counts[f"{name}: interrupted passes that were finished or undone"] += 1

    def _bad(self, text: str) -> None:
        tail = self._errors.read_text()[-2000:]
        self._ledger.note("bad", text=f"{text}\n{tail}")


_DONE: dict[str, Sequence[tuple[str, str]]] = {
    "compact": [
        (r"compacted ([\d,]+) partition", "partitions"), (r"removed ([\d,]+) bytes", "bytes"),
    ],
    "retain": [(r"removed ([\d,]+) segment", "segments"), (r", ([\d,]+) bytes", "bytes")],
}  # fmt: skip


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
