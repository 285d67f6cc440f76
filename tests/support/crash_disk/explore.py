"""The exploration of everything that a run may leave; each directory is opened once."""

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from crash_disk.check import BrokenPromiseError, check, check_unsynced
from crash_disk.image import Tree, write_tree
from crash_disk.runs import Promise, Run, outcome, read, recover_as_a_writer, same_names_again
from crash_disk.states import CrashState, crash_states

#: Odd, because states in which nothing is lost alternate with states in which everything is.
SHARED_EVERY = 5

_UNFINISHED = re.compile(r"\.unfinished\.|\.(cleaned|swap)$")


class Explorer:
    """An explorer of crash states; a state that has kept its promise is not opened again.

    `n_met`: states so far that were checked, here or when another operation had left the same.
    `n_opened`: states so far, no two of them the same.
    """

    def __init__(self) -> None:
        memory = Path("/dev/shm")  # a few hundred thousand files are made and removed
        self._scratch = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.n_met = 0
        self.n_opened = 0
        self._n_made = 0
        self._kept: set[tuple[object, ...]] = set()
        self._recovered: set[frozenset[tuple[str, bytes | None]]] = set()

    def close(self) -> None:
        """Remove the directories that were made."""
        shutil.rmtree(self._scratch)

    def new_root(self, tree: Tree | None = None) -> Path:
        """A new directory with this content."""
        self._n_made += 1
        root = self._scratch / str(self._n_made)
        write_tree(tree or {}, root)
        return root

    def explore(self, run: Run, every: int = 1) -> int:
        """Check everything that a power cut during a run may leave; count the new states.

        With `every`, one of so many states is opened in which one step has another fate than the
        others.  States in which all steps share a fate are more likely, and fewer: of these, one
        of `SHARED_EVERY` is opened, unless `every` is 1.

        Raises `BrokenPromiseError`, with the step, and with what was lost.
        """
        before = self.n_opened
        for state, promise in _promised_states(run, every):
            try:
                self._open(run, state, promise)
            except BrokenPromiseError as error:
                what = f"{error.what}\n{_describe(run, state)}"
                raise BrokenPromiseError(error.who, what) from error
        return self.n_opened - before

    def explore_recoveries(self, run: Run, depth: int, every: int = 1) -> int:
        """Check recoveries from all of these states, and recoveries from their states.

        With `every`, also one of so many recoveries is cut off.
        """
        before = self.n_opened
        states = [(state.tree, promise) for state, promise in _promised_states(run, every)]
        for _ in range(depth):
            runs = [*self._recoveries(run, states)][::every]
            for each in runs:
                self.explore(each, every)
            states = [
                (state.tree, promise)
                for each in runs
                for state, promise in _promised_states(each, every)
            ]
        return self.n_opened - before

    def _recoveries(self, run: Run, states: Iterable[tuple[Tree, Promise]]) -> Iterator[Run]:
        """Recoveries with a guard or an interrupted compaction; each is recorded once."""
        for tree, promise in states:
            key = frozenset(tree.items())
            if key in self._recovered or not any(map(_UNFINISHED.search, tree)):
                continue
            self._recovered.add(key)
            root = self.new_root(tree)
            with pytest.MonkeyPatch.context() as patch:
                same_names_again(patch, 500)
                directory = root / run.directory.relative_to(run.recorder.root)
                jobs = outcome(promise, read(directory))
                recovery = Run(root, patch, jobs, is_at_rest=False)
                recover_as_a_writer(directory)
            shutil.rmtree(root)
            yield recovery

    def _open(self, run: Run, state: CrashState, promise: Promise) -> None:
        """Check one directory, unless it was checked before."""
        self.n_met += 1
        is_whole = promise.is_synced or state.is_whole
        key = (frozenset(state.tree.items()), repr(promise), is_whole)
        if key in self._kept:
            return
        self.n_opened += 1
        root = self.new_root(state.tree)
        directory = root / run.directory.relative_to(run.recorder.root)
        try:
            (check if is_whole else check_unsynced)(directory, promise)
        finally:
            shutil.rmtree(root)
        self._kept.add(key)


def _promised_states(run: Run, every: int) -> Iterator[tuple[CrashState, Promise]]:
    """States of a run, with their promises."""
    counts = {"mixed": 0, "shared": 0}
    for state in crash_states(run.recorder.image, run.recorder.steps):
        kind = "shared" if state.index < 0 else "mixed"
        counts[kind] += 1
        if counts[kind] % (every if kind == "mixed" else min(every, SHARED_EVERY)):
            continue
        for promise in run.promises_at(state.n_steps):
            yield state, promise


def _describe(run: Run, state: CrashState) -> str:
    """The steps before the power cut, and those of them that were not on the disk."""
    calls = run.recorder.calls
    done = f"after step {state.n_steps} of {len(calls)}, {calls[state.n_steps - 1]}; "
    others = f"what was not synced is {state.others}"
    alone = f", but step {state.index + 1}, {calls[state.index]}, is {state.fate}"
    return (done if state.n_steps else "") + others + (alone if state.index >= 0 else "")
