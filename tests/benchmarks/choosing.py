"""The choice among the copies of many partitions of three brokers, and their differences."""

import os
import statistics
import tempfile
from pathlib import Path

import pyarrow as pa
from measure import Row
from planning import run_program
from query_data import QueryData

import segmentlog
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT
from segmentlog.log.checkpoint import write_offsets
from segmentlog.model import TopicPartition

__all__ = ["choose"]

_N_BROKERS = 3

_CHOOSE = """
import segmentlog
start = time.perf_counter()
directory = segmentlog.open_replicas(*sys.argv[1:])
chosen = [directory.log(*each) for each in directory.topic_partitions()]
chosen_after = time.perf_counter() - start
start = time.perf_counter()
shown = sum(1 for _ in segmentlog.replicas(*sys.argv[1:]))
print(chosen_after, peak(), len(chosen), time.perf_counter() - start, shown)
"""


def _brokers(place: Path, n_partitions: int) -> list[Path]:
    """Log directories of brokers; each was the last leader of a third of the partitions."""
    with segmentlog.open_writer(place / "seed", "t", num_partitions=1) as writer:
        writer.append(pa.table({"value": ["a", "b"]}))
        writer.flush()
        writer.append(pa.table({"value": ["c"]}))
    files = {each.name: each.read_bytes() for each in (place / "seed" / "t-0").iterdir()}
    paths = [place / f"broker{each}" for each in range(_N_BROKERS)]
    for node, path in enumerate(paths):
        path.mkdir()
        (path / "meta.properties").write_text(f"version=1\nnode.id={node}\ncluster.id=c\n")
        for number in range(n_partitions):
            partition = path / f"t-{number}"
            partition.mkdir()
            epoch = (number + node) % _N_BROKERS + 1
            for name, data in files.items():
                (partition / name).write_bytes(data)
            (partition / LEADER_EPOCH_CHECKPOINT).write_text(f"0\n2\n0 0\n{epoch} 2\n")
        ends = {TopicPartition("t", number): 3 for number in range(n_partitions)}
        write_offsets(str(path), HIGH_WATERMARK_CHECKPOINT, ends)
    return paths


def choose(data: QueryData, rounds: int) -> list[Row]:
    """Choose the log of each partition among three copies, each time in a new interpreter."""
    n_partitions = 10_000 if data.n_small > 1_000_000 else 200
    with tempfile.TemporaryDirectory() as made:
        paths = [str(each) for each in _brokers(Path(made), n_partitions)]
        runs = [run_program(_CHOOSE, os.environ, *paths) for _ in range(rounds + 1)][1:]
    assert {(run[2], run[4]) for run in runs} == {(n_partitions, n_partitions)}
    chosen, shown = (statistics.median(run[at] for run in runs) for at in (0, 3))
    most = max(run[1] for run in runs)
    copies = f"{_N_BROKERS} copies of {n_partitions:,} partitions"
    detail = f"{most:.0f} MB at most; bound by opening files of {_N_BROKERS * n_partitions:,} logs"
    tails = (
        f"each partition has {_N_BROKERS - 1} copies that diverge, by one batch; "
        "bound by opening files"
    )
    return [
        Row(f"choose among {copies}", "–", "≤ 10 s", f"{chosen:.1f} s", detail),
        Row(f"compare {copies} (`replicas`)", "–", "≤ 10 s", f"{shown:.1f} s", tails),
    ]
