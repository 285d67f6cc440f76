"""Small commits, one after the other: what the thousandth takes against the tenth.

``python tests/benchmarks/committing.py`` prints these rows alone.
"""

import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from measure import Row, table

import segmentlog

__all__ = ["rows"]

_N_PARTITIONS = 3
#: 3 kB in 30 records.
_ROWS = pa.table(
    {
        "value": [bytes(90)] * 30,
        "partition": pa.array([*range(_N_PARTITIONS)] * 10, pa.int32()),
    }
)
_AROUND = 10  #: commits before and after, of which the median is taken


def rows(scratch: Path, n_commits: int = 1000) -> list[Row]:
    """A row for each value of ``flush``."""
    return [_row(scratch / name, flush=name == "commit", n=n_commits) for name in _GOALS]


_GOALS = {"commit": "≤ 1.2, ≤ 15 ms", "none": "≤ 1.2, ≤ 15 ms"}


def _row(directory: Path, *, flush: bool, n: int) -> Row:
    seconds = []
    config = segmentlog.ProducerConfig(flush=flush)
    with segmentlog.open_writer(
        directory, "t", num_partitions=_N_PARTITIONS, config=config
    ) as writer:
        for _ in range(n + _AROUND):
            begin = time.perf_counter()
            writer.append(_ROWS)
            writer.flush()
            seconds.append(time.perf_counter() - begin)
    early, late = (
        statistics.median(seconds[at - _AROUND : at + _AROUND]) for at in (_AROUND + 1, n)
    )
    detail = f"{late * 1e3:.1f} ms against {early * 1e3:.1f}; less is better; bound by "
    detail += "syncs" if flush else "the syncs of the intent, the state and the checkpoints"
    work = f"{n:,}th commit of 3 kB into 3 partitions, flush={directory.name}"
    return Row(work, "the 10th", _GOALS[directory.name], f"{late / early:.2f}", detail)


def main() -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as made:
        print(table(rows(Path(made)), ""))


if __name__ == "__main__":
    main()
