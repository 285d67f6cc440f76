"""Kernels are compiled ahead of the first query."""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

import segmentlog.kernels
from segmentlog.kernel_cache import KernelStore

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
with tempfile.TemporaryDirectory() as directory:
    with segmentlog.open_writer(directory, "t") as writer:
        rows = log.scan(columns=["key", "value"], include_headers=True).read_all()
        writer.append(rows)
        writer.append(rows.set_column(0, "key", rows["key"].cast("large_binary")))
    segmentlog.erase(directory, rows["key"][0].as_py())
compiled, loaded = _counts()
print(compiled, loaded > 0)
"""


def python(cache: Path, *arguments: str) -> str:
    """The output of a new process whose kernels are cached in `cache`."""
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    return done.stdout


def kernels() -> set[str]:
    """Functions of all modules that are compiled."""
    found = set()
    for info in pkgutil.iter_modules(segmentlog.kernels.__path__):
        module = importlib.import_module(f"segmentlog.kernels.{info.name}")
        found |= {
            f"{info.name}.{name}"
            for name, value in vars(module).items()
            if isinstance(value, Dispatcher) and value.py_func.__module__ == module.__name__
        }
    return found


#: Kernels that each process needs before its first row take seconds on a machine without a cache.
RARE = """
import sys, segmentlog
from segmentlog.tools.warmup import _kernels
log = segmentlog.open_log_dir(sys.argv[1]).log("orders", 0)
log.scan().read_all()
first = log.offset_for_timestamp(0).offset
print(*sorted(name for name in sys.modules if name.startswith("numba.np.linalg")))
names = [(k.py_func.__module__.rpartition(".")[2], k.py_func.__name__, len(k.signatures))
         for k in _kernels() if k.signatures]
print(first, *(f"{module}.{name}" for module, name, _ in names))
print(*(f"{module}.{name}" for module, name, n_signatures in names if n_signatures > 1))
"""


def test_a_first_scan_and_look_up_need_few_kernels(example_data: str) -> None:
    """Kernels for unusual batches, old messages and writes are compiled when they are needed."""
    done = subprocess.run(
        [sys.executable, "-c", RARE, example_data], capture_output=True, text=True, check=True
    )
    of_compiler, loaded, twice = done.stdout.splitlines()
    first, *names = loaded.split()

    assert "" == of_compiler, "declarations for a compiler, which take 0.1 s to load"
    assert "0" == first
    assert {"windows"} == {name.partition(".")[0] for name in names}
    assert "" == twice, "compiled once for buffers that may be written to, and once for others"


#: The command on a terminal; this process copies its output.
ON_A_TERMINAL = """
import pty, sys
sys.exit(pty.spawn([sys.executable, "-m", "segmentlog", "warmup"]) >> 8)
"""


@pytest.mark.slow
def test_nothing_is_compiled_after_a_warmup(tmp_path: Path, example_data: str) -> None:
    """Scans, look-ups, dumps and writes find every kernel in the cache.

    A bar counts the kernels during the warmup, and no line recommends a warmup.
    """
    first = python(tmp_path, "-c", ON_A_TERMINAL)
    used = python(tmp_path, "-c", USE, example_data)
    second = python(tmp_path, "-m", "segmentlog", "warmup")
    third = json.loads(python(tmp_path, "-m", "segmentlog", "warmup", "--json"))
    rows = map(json.loads, python(tmp_path, "-m", "segmentlog", "doctor", "--json").splitlines())
    (cache,) = (row for row in rows if row["name"] == "kernel cache")
    n_kernels = len(list(tmp_path.rglob("*.nbc")))
    counted = {int(n) for n in re.findall(rf"(\d+)/{len(kernels())}\b", first)}

    assert f"compiled {n_kernels} kernels in " in first
    assert f"the cache is warm: {n_kernels} kernels, in {tmp_path}" in first
    assert kernels() == {path.name.rpartition("-")[0] for path in tmp_path.rglob("*.nbc")}
    assert "0 True\n" == used
    assert f"the cache is warm: {n_kernels} kernels, in {cache['directory']}\n" == second
    assert (0, n_kernels, None) == (third["compiled"], third["kernels"], third["obstacle"])
    assert cache["found"].startswith(f"warm: {n_kernels} kernels")
    assert len(counted) > 10
    assert max(counted) == len(kernels())
    assert "segmentlog warmup" not in first


def test_kernels_are_announced_once_for_each_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of processes and the time between them do not matter."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    stores = [KernelStore("segmentlog.kernels") for _ in range(3)]
    stores[0].announce()
    stores[0].announce()
    for path in tmp_path.rglob("compiling"):
        os.utime(path, (0, 0))
    stores[1].announce()
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "other"))
    stores[2].announce()

    assert 2 == caplog.text.count("compiling segmentlog's kernels")
    assert 2 == caplog.text.count("their cache is empty")
