"""The power is cut after every step of a stream's batch: the next run repeats it, and it is once.

A batch goes to two topics.  After each cut a reader sees the batch in both topics or in neither.
The next run of the query then repeats the batch, whatever is left of it, and continues.
"""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from crash_disk.explore import Explorer
from crash_disk.image import Tree, read_tree
from crash_disk.recorder import Recorder
from crash_disk.runs import same_names_again
from crash_disk.states import crash_states
from plain_writes import values
from soundness import assert_tidy

from segmentlog.txn.state import State, StreamBatch
from segmentlog.writes.config import WriteRequest
from segmentlog.writes.job import WriteJob

TOPICS = ("a", "b")


def commit(directory: Path, number: int, run: str) -> bool:
    """Commit a batch as one run of the query, which writes its number to both topics."""
    job = WriteJob.begin(WriteRequest(str(directory), stream="/checkpoints/both"))
    stager = job.stager(0)
    stager.add(pa.record_batch({"topic": list(TOPICS), "value": [b"%d" % number] * 2}))
    return job.commit([stager.finish()], batch=StreamBatch("query", number, run)).is_new


def seen(directory: Path) -> list[int]:
    """The batches that a reader sees in both topics."""
    first, second = ([int(value) for value in values(directory, topic)] for topic in TOPICS)
    assert first == second
    return first


@pytest.fixture(scope="module")
def written(explorer: Explorer) -> Tree:
    """A log directory with one batch."""
    root = explorer.new_root()
    with pytest.MonkeyPatch.context() as patch:
        same_names_again(patch, 10**6)
        commit(root / "logs", 0, "first")
    return read_tree(root)


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.slow)])
def test_a_batch_is_written_once_whenever_the_power_is_cut(
    explorer: Explorer, written: Tree, every: int
) -> None:
    """One of `every` states is opened in which a step has another fate than the others."""
    root = explorer.new_root(written)
    with pytest.MonkeyPatch.context() as patch:
        same_names_again(patch)
        recorder = Recorder(root, patch)
        commit(root / "logs", 1, "second")
    opened = set[frozenset[tuple[str, bytes | None]]]()
    outcomes = {(0,): 0, (0, 1): 0}
    n_mixed = 0
    for state in crash_states(recorder.image, recorder.steps):
        n_mixed += state.index >= 0
        key = frozenset(state.tree.items())
        if key in opened or (state.index >= 0 and n_mixed % every):
            continue
        opened.add(key)
        left = explorer.new_root(state.tree)
        directory = left / "logs"
        where = f"after step {state.n_steps}, {recorder.calls[state.n_steps - 1]}"

        before = seen(directory)
        assert before in ([0], [0, 1]), where
        outcomes[tuple(before)] += 1
        assert (before == [0]) == commit(directory, 1, "third"), where
        assert [0, 1] == seen(directory), where
        assert commit(directory, 2, "third"), where
        assert [0, 1, 2] == seen(directory), where
        assert 2 == State.read(str(directory)).streams["query"][0].number
        assert_tidy(directory)
        shutil.rmtree(left)

    assert [0, 1] == before, "an acknowledged batch is gone"
    assert min(outcomes.values()) > 10, outcomes
