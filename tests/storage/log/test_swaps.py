"""An interrupted compaction is finished or undone, even if that is interrupted at any step."""

from collections.abc import Callable
from pathlib import Path

import pytest
from crash_disk.image import write_tree
from crash_disk.recorder import Recorder
from crash_disk.states import crash_states

from segmentlog.log.swaps import finish_swaps, has_swaps
from segmentlog.testing.reference import Record, encode_batch

OLD, NEW = b"old", b"new"


def write(partition: Path, name: str, offsets: range, value: bytes) -> None:
    """A segment with one record in each batch, and an index."""
    batches = [encode_batch([Record(offset, 1, None, value)]) for offset in offsets]
    (partition / name).write_bytes(b"".join(batches))
    (partition / name.replace(".log", ".index")).write_bytes(value)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Three segments; compaction has merged the first two of them."""
    for base in (0, 10, 20):
        write(tmp_path, f"{base:020d}.log", range(base, base + 10), OLD)
    return tmp_path


def contents(partition: Path) -> dict[str, bytes]:
    """Whether each file of the log is an old file or a new one."""
    return {
        path.name.lstrip("0") or "0": NEW if NEW in path.read_bytes() else OLD
        for path in partition.iterdir()
        if path.suffix != ".deleted"
    }


FINISHED_THREE = {
    name: NEW for base in ("", "10", "20") for name in (f"{base}.log", f"{base}.index")
}
FINISHED = {".log": NEW, ".index": NEW, "20.log": OLD, "20.index": OLD}
UNDONE = {name: OLD for base in ("", "10", "20") for name in (f"{base}.log", f"{base}.index")}


def merged(partition: Path) -> None:
    """All new files exist, under the names of finished files."""
    write(partition, f"{0:020d}.log.swap", range(0, 20, 3), NEW)


def three_new(partition: Path) -> None:
    """Three new segments replace three old ones."""
    for base in (0, 10, 20):
        write(partition, f"{base:020d}.log.swap", range(base, base + 10, 3), NEW)


def half_cleaned(partition: Path) -> None:
    """Two new segments, of which only the last one has the name of a finished file."""
    write(partition, f"{0:020d}.log.cleaned", range(0, 10, 3), NEW)
    write(partition, f"{10:020d}.log.swap", range(10, 20, 3), NEW)


CASES = [(merged, FINISHED), (three_new, FINISHED_THREE), (half_cleaned, UNDONE)]


@pytest.mark.parametrize(("before", "after"), CASES)
def test_a_compaction_is_finished_or_undone(
    partition: Path, before: Callable[[Path], None], after: dict[str, bytes]
) -> None:
    """No file of the compaction is left."""
    assert not has_swaps(str(partition))
    before(partition)
    assert has_swaps(str(partition))
    finish_swaps(str(partition))

    assert after == contents(partition)
    assert not has_swaps(str(partition))
    left = [path.name.lstrip("0") for path in partition.glob("*.log.deleted")]
    assert len(left) == sum(value == NEW for value in after.values()) // 2 + (before is merged)


@pytest.mark.parametrize(("before", "after"), CASES)
def test_a_power_cut_at_any_step_is_made_good_by_the_next_recovery(
    partition: Path, tmp_path: Path, before: Callable[[Path], None], after: dict[str, bytes]
) -> None:
    """Any unsynced change may be lost.

    No state returns to an earlier one, and no index is lost.
    """
    before(partition)
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(partition, patch)
        finish_swaps(str(partition))
    states = {
        frozenset(each.tree.items()) for each in crash_states(recorder.image, recorder.steps)
    }
    assert len(states) > 5
    for number, state in enumerate(states):
        root = tmp_path.with_name(f"{tmp_path.name}-{number}")
        write_tree(dict(state), root)
        finish_swaps(str(root))

        assert after == contents(root), sorted(name for name, _ in state)
