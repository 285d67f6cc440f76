"""Compiling ahead of time."""

import os
import subprocess
import sys
from pathlib import Path

USE = """
import sys, tempfile, segmentlog
from segmentlog.records.one_batch import BatchReader
from segmentlog.tools.warmup import _counts
log = segmentlog.open_log_dir(sys.argv[1]).log("orders", 0)
log.scan(include_headers=True).read_all()
log.offset_for_timestamp(log.offset_for_timestamp(0).timestamp_ms + 1)
with open(log.segments[0].path, "rb") as file:
    header = next(iter(log.segments[0].headers(0))).header
    list(BatchReader("f").records(file.read(header.size_in_bytes), 0))
with tempfile.TemporaryDirectory() as directory, segmentlog.open_writer(directory, "t") as writer:
    writer.append(log.scan(columns=["key", "value"], include_headers=True).read_all())
compiled, loaded = _counts()
print(compiled, loaded > 0)
"""


def python(cache: Path, *arguments: str) -> str:
    """What a new process prints, whose kernels are cached in `cache`."""
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_nothing_is_compiled_after_a_warmup(tmp_path: Path, example_data: str) -> None:
    """Scans, look-ups, dumps and writes find every kernel in the cache, which is where it said."""
    first = python(tmp_path, "-m", "segmentlog", "warmup")
    used = python(tmp_path, "-c", USE, example_data)
    second = python(tmp_path, "-m", "segmentlog", "warmup")

    assert " kernels compiled, " in first
    assert f"cache: {tmp_path}" in first
    assert "0 True\n" == used
    assert "were compiled before" in second
