"""Costs of a write apart from its rows: the commit of large jobs, and the memory of a task."""

import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from measure import Row
from planning import run_program

from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob

_EXTRAPOLATED_BYTES = 100e9
_PARTITIONS = 4


class _Commit(NamedTuple):
    """One job, and the time of its commit."""

    n_bytes: int
    n_batches: int
    seconds: float


def commit_time(scratch: Path, most_bytes: int) -> list[Row]:
    """Commits of staged jobs of up to `most_bytes`, and the line through them."""
    return [
        _commit_row(scratch, most_bytes, flush=flush, is_shared=is_shared)
        for flush in (False, True)
        for is_shared in (True, False)
    ]


def _commit_row(scratch: Path, most_bytes: int, *, flush: bool, is_shared: bool) -> Row:
    # Two sizes of job and two of batch, so that the fit can separate them. Rows that a task stages
    # before their partition gets a separate file are copied, equally many in each job.
    shapes = [(most_bytes // 5, bits) for bits in (17, 14, 17, 14)] + [(most_bytes, 17)]
    runs = [
        _commit(
            scratch,
            n_bytes,
            ProducerConfig(batch_size=1 << bits, flush=flush),
            is_shared=is_shared,
        )
        for n_bytes, bits in shapes
    ]
    fixed, per_byte, per_batch = _fit(runs)
    largest = runs[-1]
    n_batches = _EXTRAPOLATED_BYTES * largest.n_batches / largest.n_bytes
    seconds = fixed + per_byte * _EXTRAPOLATED_BYTES + per_batch * n_batches
    detail = (
        f"{fixed:.2f} s + {per_byte * 1e9:.2f} s a GB + {per_batch * 1e6:.1f} s a million "
        f"batches, of {len(runs)} jobs in 2 tasks; {largest.n_bytes / 1e9:.1f} GB in "
        f"{largest.n_batches:,} batches took {largest.seconds:.2f} s"
    )
    name = "commit" if flush else "none"
    by = "each task to all partitions" if is_shared else "each task to its own partitions"
    return Row(
        f"commit of 100 GB in batches of 128 KiB, `flush={name}`, {by}",
        f"a fit of commits of up to {largest.n_bytes / 1e9:.1f} GB",
        "≤ 10 s" if is_shared else "≤ 5 s",
        f"{seconds:.1f} s",
        detail,
    )


def _commit(scratch: Path, n_bytes: int, config: ProducerConfig, *, is_shared: bool) -> _Commit:
    """Stage rows as two tasks do, commit them, and remove everything."""
    directory = scratch / "logs"
    _write_one_each(directory, config)
    job = WriteJob.begin(WriteRequest(str(directory), config, topic="t"))
    values = _values(10_000, 1000)
    extents = []
    for task in range(2):
        numbers = np.arange(len(values)) % (_PARTITIONS if is_shared else _PARTITIONS // 2)
        partitions = pa.array(numbers if is_shared else numbers * 2 + task, pa.int32())
        rows = pa.RecordBatch.from_pydict({"value": values, "partition": partitions})
        stager = job.stager(task)
        for _ in range(1 + n_bytes // 2 // values.nbytes):
            stager.add(rows)
        extents.append(stager.finish())
    os.sync()  # a real job's tasks have written their files long before the commit
    start = time.perf_counter()
    job.commit(extents)
    seconds = time.perf_counter() - start
    staged = sum(path.stat().st_size for path in directory.glob("*/*.log"))
    shutil.rmtree(directory)
    os.sync()
    return _Commit(staged, staged // config.batch_size, seconds)


def _write_one_each(directory: Path, config: ProducerConfig) -> None:
    """Put a record into each partition, because batches for an empty one need no rewrite."""
    job = WriteJob.begin(
        WriteRequest(str(directory), config, topic="t", num_partitions=_PARTITIONS)
    )
    columns = {
        "value": pa.array([b"first"] * _PARTITIONS),
        "partition": pa.array(range(_PARTITIONS), pa.int32()),
    }
    stager = job.stager(0)
    stager.add(pa.RecordBatch.from_pydict(columns))
    job.commit([stager.finish()])


def _values(n_rows: int, size: int) -> pa.Array:
    """Random values of one size."""
    data = pa.py_buffer(np.random.default_rng(1).bytes(n_rows * size))
    ends = pa.py_buffer(np.arange(0, (n_rows + 1) * size, size, dtype=np.int32).tobytes())
    return pa.Array.from_buffers(pa.binary(), n_rows, [None, ends, data])


def _fit(runs: list[_Commit]) -> tuple[float, float, float]:
    """Seconds of a commit, of a byte and of a batch; none of them is below 0."""
    facts = np.array([[1.0, run.n_bytes, run.n_batches] for run in runs])
    seconds = np.array([run.seconds for run in runs])
    best: tuple[float, tuple[float, ...]] = (float("inf"), (0.0, 0.0, 0.0))
    for chosen in range(1, 8):
        columns = [i for i in range(3) if chosen >> i & 1]
        weights = np.zeros(3)
        # Relative to the measured times; otherwise the largest job alone would decide.
        weights[columns] = np.linalg.lstsq(
            facts[:, columns] / seconds[:, None], np.ones(len(runs)), rcond=None
        )[0]
        miss = float(np.square(facts @ weights / seconds - 1).sum())
        if weights.min() >= 0 and miss < best[0]:
            best = miss, tuple(weights)
    return best[1]  # type: ignore[return-value]


_STAGE = """
before = peak()
import dataclasses
import numpy as np, pyarrow as pa
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob
directory, n_partitions, size, n_bytes = sys.argv[1], *map(int, sys.argv[2:])
n_rows = max(1, (1 << 20) // size)
config = ProducerConfig(flush=False)
job = WriteJob.begin(WriteRequest(directory, config, topic="t"))
topics = dataclasses.replace(job.topics, partitions={"t": n_partitions})
job = dataclasses.replace(job, topics=topics)  # a task does not look for the partitions
stager = job.stager(0)
value, staged = pa.array([bytes(size)] * n_rows), 0
while staged < n_bytes:
    keys = np.arange(staged, staged + n_rows).astype(bytes)
    stager.add(pa.RecordBatch.from_pydict({"key": pa.array(keys), "value": value}))
    staged += n_rows * size
stager.finish()
print(peak() - before)
"""

_SHAPES = {
    "1 partition": (1, 100),
    "100 partitions": (100, 100),
    "10,000 partitions": (10_000, 100),
    "values of 1 MB": (100, 1_000_000),
}


def memory(scratch: Path, n_bytes: int) -> Row:
    """Staging of keyed rows in new interpreters, for some numbers of partitions."""
    found = {}
    for name, (n_partitions, size) in _SHAPES.items():
        arguments = str(scratch / "logs"), str(n_partitions), str(size), str(n_bytes)
        (found[name],) = run_program(_STAGE, os.environ, *arguments)
        shutil.rmtree(scratch / "logs")
    each = ", ".join(f"{name} {most:.0f} MB" for name, most in found.items())
    detail = f"{n_bytes / 1e6:,.0f} MB of rows each: {each}"
    work = "memory of a writing task over the interpreter"
    return Row(work, "–", "< 400 MB", f"{max(found.values()):.0f} MB", detail)
