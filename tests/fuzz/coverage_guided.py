"""Fuzz the plain reference, guided by its coverage, and keep inputs that reach new lines.

    pip install '.[fuzz]'
    PYTHONPATH=tests/support python tests/fuzz/coverage_guided.py --seconds 600

The script begins with ``corpus.zip`` and the seeds. It then replaces ``corpus.zip`` by the fewest
inputs that reach as many lines.  `test_corpus` reads these inputs with the compiled kernels.

The script prints a directory. The inputs of crashes are left there, and become tests in
`test_findings`.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import atheris

import segmentlog  # noqa: F401  # before the next lines, so that no more of it is instrumented

with atheris.instrument_imports(include=["segmentlog.testing"]):
    from segmentlog.testing.legacy import read_log
    from segmentlog.testing.reference import BadBatchError, UnknownFormatError

from fuzzing.mutate import MOST_INFLATED_BYTES, mutant
from fuzzing.seeds import load_seeds, read_corpus, write_corpus

from segmentlog.testing.legacy import split_batches

_MOST_BYTES = 4_096  # of an input: the corpus is a file of the repository
_HALF = 0.5


def read(data: bytes) -> None:
    """The target: any error except these two is a finding."""
    try:
        for _ in read_log(data, MOST_INFLATED_BYTES):
            pass
    except (BadBatchError, UnknownFormatError):
        pass


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Mutate half of the inputs with libFuzzer, and half with our mutations of the format."""
    rng = random.Random(seed)
    if rng.random() < _HALF:
        return atheris.Mutate(data, max_size)
    try:
        batches = tuple(batch for batch, _ in split_batches(data))
    except (BadBatchError, UnknownFormatError):
        batches = (data,)
    mutated = mutant([batches], rng).data if len(data) > 26 else data
    return mutated[:max_size]


def explore(arguments: list[str]) -> None:
    """Run libFuzzer in this process; it does not return."""
    itself = f"{sys.executable} {__file__} --step"  # libFuzzer minimizes in a shell
    atheris.Setup([itself, *arguments], read, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> None:
    """Explore in one process, minimize in the next, and pack."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--step", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        explore(options.step)
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-"))
    print(f"crashes are left in {scratch}")
    found, least = scratch / "found", scratch / "least"
    found.mkdir()
    least.mkdir()
    inputs = [*read_corpus(), *(b"".join(seed) for seed in load_seeds())]
    for i, data in enumerate(inputs):
        if len(data) <= _MOST_BYTES:
            (found / str(i)).write_bytes(data)
    artifacts = f"-artifact_prefix={scratch}/"
    for step in (
        [found, f"-max_total_time={options.seconds}", f"-max_len={_MOST_BYTES}", artifacts],
        [least, "-merge=1", artifacts, found],
    ):
        arguments = [sys.executable, __file__, "--step", *map(str, step)]
        subprocess.run(arguments, check=True)
    write_corpus(path.read_bytes() for path in least.iterdir())


if __name__ == "__main__":
    main()
