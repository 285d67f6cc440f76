"""Scenarios for the crash disk: a log directory at the beginning, and operations in turn."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial

import pytest

from crash_disk.check import AFTER_THE_LOG
from crash_disk.explore import Explorer
from crash_disk.image import Tree, read_tree
from crash_disk.operations import (
    OPERATIONS,
    ROLLING,
    Operation,
    compacts,
    deletes_records,
    dies,
    erases,
    fails,
    follows,
    recovers,
    retains,
    retains_by_size,
    writes,
)
from crash_disk.runs import Job, Run, same_names_again, write_job

#: After both, the next batch of partition 0 begins a new segment, at offset 20.
_JOBS = (Job(1, {0: 10, 1: 10}), Job(2, {0: 10}))
#: Some closed segments in partition 0, in which few rows are the last of their keys.
_KEYED_JOBS = (Job(1, {0: 40, 1: 2}, n_keys=4), Job(2, {0: 30, 1: 2}, n_keys=6))
_MARK = "new/logs/.kafka_cleanshutdown"
_HIGH_WATERMARKS = "new/logs/replication-offset-checkpoint"
_RECOVERY_POINTS = "new/logs/recovery-point-offset-checkpoint"
_LOG = f"new/logs/t-0/{0:020d}.log"
_INDEX = f"new/logs/t-0/{0:020d}.index"


#: A segment after torn bytes, which is cut off as a whole, with all of its indexes.
_CUT_OFF = {
    f"new/logs/t-0/{20:020d}.{kind}": content
    for kind, content in (
        ("log", AFTER_THE_LOG),
        ("index", b""),
        ("timeindex", bytes(12)),
        ("txnindex", b""),
    )
}


@cache
def _written(n_jobs: int, *, is_keyed: bool) -> Tree:
    """A log directory with this number of jobs in it."""
    explorer = Explorer()
    root = explorer.new_root()
    with pytest.MonkeyPatch.context() as patch:
        same_names_again(patch, 10**6)
        for job in (_KEYED_JOBS if is_keyed else _JOBS)[:n_jobs]:
            write_job(root / "new" / "logs", job)
    tree = read_tree(root)
    explorer.close()
    return tree


@dataclass(frozen=True)
class Scenario:
    """Operations in turn."""

    name: str  # for people
    operations: Sequence[Operation]  # what is done
    begins_empty: bool = False  # whether nothing is there yet; else some jobs are
    n_jobs: int = 1  # how many
    is_keyed: bool = False  # whether their rows have keys
    without: Sequence[str] = ()  # files that are missing in the beginning
    after_the_log: bytes = b""  # bytes that an earlier crash has left after the last batch
    # that it has left, and what is in them
    more_files: Mapping[str, bytes] = field(default_factory=dict)

    def record(
        self, explorer: Explorer, meanwhile: AbstractContextManager[object] | None = None
    ) -> Run:
        """Do it, `meanwhile` something else is so, and write down what happens to the disk."""
        jobs = (_KEYED_JOBS if self.is_keyed else _JOBS)[: self.n_jobs]
        written = {} if self.begins_empty else _written(self.n_jobs, is_keyed=self.is_keyed)
        tree = {**written, **({} if self.begins_empty else self.more_files)}
        for name in self.without:
            del tree[name]
        if self.after_the_log:
            tree[_LOG] = (tree[_LOG] or b"") + self.after_the_log
        root = explorer.new_root(tree)
        with pytest.MonkeyPatch.context() as patch:
            same_names_again(patch)
            run = Run(root, patch, () if self.begins_empty else jobs)
            with meanwhile or nullcontext():
                for operation in self.operations:
                    operation(run)
        return run


def _singles() -> Iterator[Scenario]:
    append = OPERATIONS["append to two partitions"]
    yield Scenario("first write", [append], begins_empty=True)
    for name, operation in OPERATIONS.items():
        yield Scenario(name, [operation])
    of_producers = [
        partial(writes, rows=rows, is_idempotent=True) for rows in ({0: 4}, {0: 8, 1: 2})
    ]
    yield Scenario("append of two producers", of_producers)
    yield Scenario("append without syncs", [partial(writes, flush=False)])
    unsynced: list[Callable[[Run], None]] = [
        partial(writes, rows={0: 8, 1: 4}, flush=False),
        recovers,
    ]
    yield Scenario("recover what was not synced", unsynced)
    yield Scenario("recover a first write", unsynced, begins_empty=True)
    yield Scenario("append without high watermarks", [append], without=[_HIGH_WATERMARKS])
    # Tasks take the place of their batches from there: without it, the commit changes each batch.
    moves = OPERATIONS["append that moves files"]
    yield Scenario("append that moves files to another place", [moves], without=[_HIGH_WATERMARKS])
    for name, operation in (("append", append), ("recover", recovers)):
        yield Scenario(
            f"{name} after a crash",
            [operation],
            without=[_MARK, _INDEX],
            after_the_log=AFTER_THE_LOG,
        )
        yield Scenario(
            f"{name} where a segment is cut off",
            [operation],
            n_jobs=2,
            without=[_MARK, _RECOVERY_POINTS],  # otherwise the torn bytes would count as synced
            after_the_log=AFTER_THE_LOG,
            more_files=_CUT_OFF,
        )
    yield Scenario("retain by size", [retains_by_size], n_jobs=2)
    yield Scenario("delete records", [deletes_records])
    yield Scenario(
        "retain after a crash", [retains], without=[_MARK, _INDEX], after_the_log=AFTER_THE_LOG
    )
    yield Scenario("compact", [compacts], n_jobs=2, is_keyed=True)
    yield Scenario(
        "compact, append and compact",
        [compacts, partial(writes, rows={0: 40}, n_keys=4), compacts],
        n_jobs=2,
        is_keyed=True,
    )
    yield Scenario("erase", [erases])
    yield Scenario("mirror", [follows])
    yield Scenario("mirror that adds segments", [partial(follows, rows=ROLLING)])
    yield Scenario("mirror of an erasure", [partial(follows, erases_one=True)])
    yield Scenario(
        "mirror of a compaction", [partial(follows, is_compacted=True)], n_jobs=2, is_keyed=True
    )
    yield Scenario("append of staged rows", [partial(writes, rows={0: 4, 1: 2}, is_staged=True)])
    for number in (30, 45):  # before the decision, and after it
        yield Scenario(f"die at call {number}", [partial(dies, number=number, rows=ROLLING)])
    yield Scenario("fail", [partial(fails, number=28, rows=ROLLING)])
    yield Scenario(
        "fail to remove staged files",
        [partial(fails, number=44, rows={0: 4, 1: 2}, is_staged=True)],
    )


SINGLES: Mapping[str, Scenario] = {each.name: each for each in _singles()}

#: Operations for a sequence: each ends with all of its promises on the disk.
_IN_SEQUENCE: Mapping[str, Operation] = {
    **OPERATIONS,
    "compact": compacts,
    "die appending": partial(dies, number=24),
    "fail appending": partial(fails, number=20),
}

#: Two and three operations in turn, in an order that mixes them.
SEQUENCES: Sequence[Scenario] = [
    Scenario("; ".join(names), [_IN_SEQUENCE[name] for name in names])
    for length in (2, 3)
    for names in itertools.product(_IN_SEQUENCE, repeat=length)
]
