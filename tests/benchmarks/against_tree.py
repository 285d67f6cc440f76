"""Planning by this tree against planning by another commit's tree, in alternating processes.

``python tests/benchmarks/against_tree.py TREE [--partitions 3000] [--rounds 7]``; ``TREE`` is a
work tree of the other commit, from ``git worktree add --detach TREE COMMIT``.  Each round starts a
new interpreter for each tree, in an order of its own.  A ratio above 1 means that this tree is
quicker.  On a machine with other work, the processor's time counts, and not the clock's.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "storage"), str(Path(__file__).parent)]

from planning import make_directory  # noqa: E402

_PLAN = """
import os, resource, sys, time
import segmentlog
from segmentlog import model
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
start, cpu_start = time.perf_counter(), cpu()
directory = segmentlog.open_log_dir(sys.argv[1])
partitions = directory.topic_partitions()
ends = directory.end_offsets(partitions)
n_files = n_bytes = 0
for each in partitions:
    log = directory.log(*each)
    for log_slice in log.slices(log.log_start_offset, ends[each], 0):
        n_files += len(log_slice.files)
        n_bytes += log_slice.n_bytes
print(time.perf_counter() - start, cpu() - cpu_start, n_files, n_bytes)
"""


class Run(NamedTuple):
    """One plan: seconds by the clock and of the processor, and what was planned."""

    wall: float
    cpu: float
    files: float
    n_bytes: float


def plan(tree: Path, directory: Path) -> Run:
    """A plan of all partitions of a directory, in a new interpreter with a tree's engine."""
    environment = os.environ | {"PYTHONPATH": str(tree / "storage")}
    command = [sys.executable, "-c", _PLAN, str(directory)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Run(*map(float, done.stdout.split()))


def compare(trees: dict[str, Path], directory: Path, rounds: int) -> None:
    """Print the medians of both trees, and their ratio.

    Raises
    ------
    SystemExit
        If the trees plan different bytes.
    """
    warm = {name: plan(tree, directory) for name, tree in trees.items()}
    if len({run[2:] for run in warm.values()}) > 1:
        message = f"the trees disagree: {warm}"
        raise SystemExit(message)
    runs: dict[str, list[Run]] = {name: [] for name in trees}
    order = random.Random(rounds)
    for _ in range(rounds):
        for name in order.sample([*trees], len(trees)):
            runs[name].append(plan(trees[name], directory))
    for field in ("wall", "cpu"):
        middle = {
            name: statistics.median(getattr(run, field) for run in found)
            for name, found in runs.items()
        }
        spread = ", ".join(
            f"{name} {middle[name]:.3f} s "
            f"({min(getattr(run, field) for run in found):.3f} at best)"
            for name, found in runs.items()
        )
        print(f"  {field}: {middle['that'] / middle['this']:.2f}  {spread}")


def main() -> None:
    """Make the directories and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, help="work tree of the commit to compare with")
    parser.add_argument("--partitions", type=int, default=3000, help="of ten segments each")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    trees = {"this": TOP, "that": arguments.tree.resolve()}
    for has_checkpoints in (False, True):
        with tempfile.TemporaryDirectory() as scratch:
            make_directory(Path(scratch), arguments.partitions, has_checkpoints=has_checkpoints)
            print("with high watermarks" if has_checkpoints else "without high watermarks")
            compare(trees, Path(scratch), arguments.rounds)


if __name__ == "__main__":
    main()
