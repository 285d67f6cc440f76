"""The directories that a power cut may leave, after each step of a recording.

Synced steps are on the disk. Each other step may be on the disk or not, in any order: nothing is
lost (only the process died), everything is lost, each step alone is lost, each step alone is kept.
A write may also be torn: its first half only, or its size without its bytes, which are zeros.
"""

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from crash_disk.image import Image, Step, Sync, Tree, Write


class Fate(StrEnum):
    """The fate of a step that was not synced."""

    KEPT = "kept"
    LOST = "lost"
    HALF = "half"
    ZEROS = "zeros"


class CrashState(NamedTuple):
    """One directory that may be left.

    `index`, `fate`: that one, and what has become of it; -1 when there is none.
    """

    n_steps: int  # that had been made
    others: Fate  # what has become of all steps that were not synced, but for one
    index: int  # type: ignore[assignment]  # a tuple's own method, which nobody needs here
    fate: Fate
    tree: Tree  # what is on the disk

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost, because only the process has died."""
        return self.others == self.fate == Fate.KEPT


class CrashDisk:
    """Takes one step after the other, and knows what may be left each time."""

    def __init__(self, image: Image) -> None:
        self._durable = image.copy()
        self._pending: list[tuple[int, Step]] = []
        self._n_steps = 0

    def take(self, step: Step) -> None:
        """Take one more step."""
        if isinstance(step, Sync):
            for _, each in self._pending:
                if each.inode == step.inode:
                    self._durable.apply(each)
            self._pending = [each for each in self._pending if each[1].inode != step.inode]
        else:
            self._pending.append((self._n_steps, step))
        self._n_steps += 1

    def states(self) -> Iterator[CrashState]:
        """The states that may be left now; a directory may come several times."""
        yield self._state(Fate.KEPT, -1, Fate.KEPT)
        yield self._state(Fate.LOST, -1, Fate.LOST)
        for index, step in self._pending:
            yield self._state(Fate.KEPT, index, Fate.LOST)
            yield self._state(Fate.LOST, index, Fate.KEPT)
            if isinstance(step, Write):
                for others in (Fate.KEPT, Fate.LOST):
                    for fate in (Fate.HALF, Fate.ZEROS):
                        yield self._state(others, index, fate)

    def drawn(self, rng: random.Random) -> Tree:
        """What is left if each step that was not synced has a fate of its own."""
        shared = rng.choice((None, None, Fate.LOST, Fate.KEPT))
        image = self._durable.copy()
        for _, step in self._pending:
            fates = (Fate.KEPT, Fate.KEPT, Fate.KEPT, Fate.LOST, Fate.LOST, Fate.HALF, Fate.ZEROS)
            _apply(image, step, shared or rng.choice(fates))
        return image.tree()

    def _state(self, others: Fate, index: int, fate: Fate) -> CrashState:
        image = self._durable.copy()
        for i, step in self._pending:
            _apply(image, step, fate if i == index else others)
        return CrashState(self._n_steps, others, index, fate, image.tree())


def crash_states(image: Image, steps: Sequence[Step]) -> Iterator[CrashState]:
    """States after each number of steps, from none to all of them."""
    disk = CrashDisk(image)
    yield from disk.states()
    for step in steps:
        disk.take(step)
        yield from disk.states()


def _apply(image: Image, step: Step, fate: Fate) -> None:
    """Apply a step as far as it has reached the disk."""
    if fate == Fate.KEPT:
        image.apply(step)
    elif fate != Fate.LOST and isinstance(step, Write):
        half = len(step.data) // 2 | 1  # not between two entries of an index
        if fate == Fate.HALF:
            image.apply(step._replace(data=step.data[:half]))
        else:  # bytes that the file had stay as they were
            held = len(image.files.get(step.inode, b""))
            missing = max(step.position + len(step.data) - held, 0)
            image.apply(Write(step.inode, held, bytes(missing)))
