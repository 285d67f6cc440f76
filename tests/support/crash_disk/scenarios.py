"""What is run on the crash disk: a log directory to begin with, and operations in turn."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial

import pytest

from crash_disk.check import BEHIND_THE_LOG
from crash_disk.explore import Explorer
from crash_disk.image import Tree, read_tree
from crash_disk.operations import OPERATIONS, ROLLING, Operation, dies, fails, recovers, writes
from crash_disk.runs import Job, Run, same_names_again, write

__all__ = ["SEQUENCES", "SINGLES", "Scenario"]

_JOBS = (Job(1, {0: 10, 1: 10}),)
_MARK = "new/logs/.kafka_cleanshutdown"
_HIGH_WATERMARKS = "new/logs/replication-offset-checkpoint"
_LOG = f"new/logs/t-0/{0:020d}.log"
_INDEX = f"new/logs/t-0/{0:020d}.index"


@cache
def _written() -> Tree:
    """A log directory with one job in it."""
    explorer = Explorer()
    root = explorer.new_root()
    with pytest.MonkeyPatch.context() as patch:
        same_names_again(patch, 10**6)
        for job in _JOBS:
            write(root / "new" / "logs", job)
    tree = read_tree(root)
    explorer.close()
    return tree


@dataclass(frozen=True)
class Scenario:
    """Operations in turn.

    Attributes
    ----------
    name : for people.
    operations : what is done.
    begins_empty : whether nothing is there yet; else one job is.
    without : files that are missing in the beginning.
    behind_the_log : bytes that somebody's crash has left behind the last batch.
    """

    name: str
    operations: Sequence[Operation]
    begins_empty: bool = False
    without: Sequence[str] = ()
    behind_the_log: bytes = b""

    def record(
        self, explorer: Explorer, meanwhile: AbstractContextManager[object] | None = None
    ) -> Run:
        """Do it, `meanwhile` something else is so, and write down what happens to the disk."""
        tree = {} if self.begins_empty else dict(_written())
        for name in self.without:
            del tree[name]
        if self.behind_the_log:
            tree[_LOG] = (tree[_LOG] or b"") + self.behind_the_log
        root = explorer.new_root(tree)
        with pytest.MonkeyPatch.context() as patch:
            same_names_again(patch)
            run = Run(root, patch, () if self.begins_empty else _JOBS)
            with meanwhile or nullcontext():
                for operation in self.operations:
                    operation(run)
        return run


def _singles() -> Iterator[Scenario]:
    append = OPERATIONS["append to two partitions"]
    yield Scenario("first write", [append], begins_empty=True)
    for name, operation in OPERATIONS.items():
        yield Scenario(name, [operation])
    yield Scenario("append without syncs", [partial(writes, flush=False)])
    unsynced = [partial(writes, rows={0: 8, 1: 4}, flush=False), recovers]
    yield Scenario("recover what was not synced", unsynced)
    yield Scenario("recover a first write", unsynced, begins_empty=True)
    yield Scenario("append without high watermarks", [append], without=[_HIGH_WATERMARKS])
    for name, operation in (("append", append), ("recover", recovers)):
        yield Scenario(
            f"{name} after a crash",
            [operation],
            without=[_MARK, _INDEX],
            behind_the_log=BEHIND_THE_LOG,
        )
    for number in (33, 48):  # before the decision, and behind it
        yield Scenario(f"die at call {number}", [partial(dies, number=number, rows=ROLLING)])
    yield Scenario("fail", [partial(fails, number=33, rows=ROLLING)])


SINGLES: Mapping[str, Scenario] = {each.name: each for each in _singles()}

#: What may stand in a sequence: each ends with all of its promises on the disk.
_IN_SEQUENCE: Mapping[str, Operation] = {
    **OPERATIONS,
    "die appending": partial(dies, number=24),
    "fail appending": partial(fails, number=20),
}

#: Two and three operations in turn, in an order that mixes them.
SEQUENCES: Sequence[Scenario] = [
    Scenario("; ".join(names), [_IN_SEQUENCE[name] for name in names])
    for length in (2, 3)
    for names in itertools.product(_IN_SEQUENCE, repeat=length)
]
