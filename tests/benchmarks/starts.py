"""Processor time of commands that do little, and of lists of a large directory."""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from measure import Row

_TOP = Path(__file__).resolve().parents[2]
_DATA = str(_TOP / "examples" / "data")
_BASE = "import numpy, pyarrow"

#: What is started, how, and the most that it may take of the time of `_BASE`.
_STARTS = {
    "`import segmentlog`": (["-c", "import segmentlog"], 0.4),
    "`segmentlog --help`": (["-m", "segmentlog", "--help"], 1.4),
    "`segmentlog topics examples/data`": (["-m", "segmentlog", "topics", _DATA], 2.2),
    "`segmentlog grep order-58 examples/data`": (
        ["-m", "segmentlog", "grep", "order-58", _DATA],
        2.8,
    ),
}

#: The system calls that a list of partitions cannot do without: the names and the sizes of the
#: files, and the bytes of those that end the log, with their checksum.
_BOUND = """
import os, sys
from crc32c import crc32c
for partition in os.scandir(sys.argv[1]):
    if partition.is_dir():
        for name in os.listdir(partition.path):
            path = os.path.join(partition.path, name)
            size = os.stat(path).st_size
            if name.endswith(("log", "index")):
                descriptor = os.open(path, os.O_RDONLY)
                crc32c(os.pread(descriptor, 16384, max(0, size - 16384)))
                os.close(descriptor)
"""


def _environment(bytecode: str) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if name[:14] != "PYTHONDONTWRIT"}
    return kept | {"PYTHONPYCACHEPREFIX": bytecode}


def _seconds(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    """Processor time of a new interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(scratch: Path, n_partitions: int, rounds: int) -> list[Row]:
    """Starts beside two imports, and lists of partitions beside their system calls."""
    with tempfile.TemporaryDirectory() as bytecode:
        environment = _environment(bytecode)
        return [*_starts(environment, rounds), *_lists(scratch, n_partitions, environment)]


def _starts(environment: Mapping[str, str], rounds: int) -> list[Row]:
    contestants = {"": ["-c", _BASE], **{name: how for name, (how, _) in _STARTS.items()}}
    took: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, arguments in contestants.items():
            seconds = _seconds(arguments, environment)
            if number:  # the first round writes the bytecode
                took[name].append(seconds)
    base = statistics.median(took[""])
    found = []
    for name, (_, most) in _STARTS.items():
        seconds = statistics.median(took[name])
        detail = f"{seconds:.2f} against {base:.2f} s of processor time; bound by imports"
        found.append(
            Row(name, f"`python -c '{_BASE}'`", f"≤ {most}", f"{seconds / base:.2f}", detail)
        )
    return found


def _lists(scratch: Path, n_partitions: int, environment: Mapping[str, str]) -> list[Row]:
    directory = str(scratch / "many")
    _fill(Path(directory), n_partitions)
    bound = _seconds(["-c", _BOUND, directory], environment) * 1000 / n_partitions
    found = []
    for command in ("topics", "describe", "usage"):
        seconds = _seconds(["-m", "segmentlog", command, directory], environment)
        detail = (
            f"{seconds:.1f} s of processor time; bound by the work of Python for each file: the "
            f"system calls alone take {bound:.2f} ms a partition"
        )
        found.append(
            Row(
                f"`segmentlog {command}`, {n_partitions:,} partitions",
                "–",
                "–",
                f"{seconds * 1000 / n_partitions:.2f} ms a partition",
                detail,
            )
        )
    return found


def _fill(directory: Path, n_partitions: int) -> None:
    """A hundred partitions in each topic, with the files of one of a broker."""
    source = Path(_DATA) / "orders-0"
    files = {each.name: each.read_bytes() for each in source.iterdir()}
    del files["partition.metadata"]
    places = [(f"topic{number // 100:03}", number % 100) for number in range(n_partitions)]
    for topic, partition in places:
        made = directory / f"{topic}-{partition}"
        made.mkdir(parents=True)
        for name, data in files.items():
            (made / name).write_bytes(data)
    entries = "".join(f"{topic} {partition} 335\n" for topic, partition in places)
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (directory / name).write_text(f"0\n{n_partitions}\n{entries}")
    (directory / ".kafka_cleanshutdown").touch()
