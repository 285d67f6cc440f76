"""Processor time of ``pip install WHEEL``, beside that of its requirements without pip.

``python tests/benchmarks/installing.py [WHEEL]`` prints the rows; without a wheel, it builds one.
"""

import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from measure import Row, table

__all__ = ["rows"]

_TOP = Path(__file__).resolve().parents[2]

#: The least that an installer does with wheels: it writes their files, with a digest of each.
_UNPACK = """
import hashlib, sys, zipfile
for path in sys.argv[2:]:
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(sys.argv[1])
        for name in wheel.namelist():
            hashlib.sha256(wheel.read(name))
"""

#: The columns that Spark takes, and the arrays below them: there is no engine without these two.
_ARRAYS = ("numpy-", "pyarrow-")


def rows(scratch: Path, rounds: int, wheel: Path | None = None) -> list[Row]:
    """An install into an empty environment, and one beside the requirements."""
    wheel = wheel or _built(scratch / "built")
    environment = scratch / "environment"
    venv.create(environment, with_pip=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    # From here on, the cache of pip has what the wheel requires.
    _run([*pip, "download", "--quiet", "--dest", str(scratch / "required"), str(wheel)])
    required = [each for each in (scratch / "required").iterdir() if each.name != wheel.name]

    def install(*options: str) -> float:
        return _seconds([*pip, "install", "--quiet", *options, str(wheel)])

    def into_an_empty_one(*options: str) -> float:
        venv.create(environment, with_pip=True, clear=True)
        return install(*options)

    def alone(*names: str) -> tuple[float, float]:
        wheels = [each for each in required if each.name.startswith(names)]
        with tempfile.TemporaryDirectory(dir=scratch) as target:
            unpack = _seconds([sys.executable, "-c", _UNPACK, target, *map(str, wheels)])
            # Some packages have templates and tests that are no Python of this version.
            return unpack, _seconds([sys.executable, "-m", "compileall", "-qq", target])

    contestants: list[Callable[[], float]] = [
        into_an_empty_one,
        lambda: into_an_empty_one("--no-compile"),
        lambda: install("--force-reinstall", "--no-deps"),
        lambda: _seconds([*pip, "--version"]),
    ]
    took = [[each() for each in contestants] for _ in range(rounds)]
    whole, copied, ours, nothing = (statistics.median(each) for each in zip(*took, strict=True))
    unpack, compile_all = alone("")
    arrays = sum(alone(*_ARRAYS))
    version = re.search(r"pip (\S+)", _run([*pip, "--version"]))
    others = {each.name.partition("-")[0] for each in required}
    shares = sorted(((sum(alone(f"{name}-")), name) for name in others), reverse=True)
    listed = ", ".join(f"`{name}` {seconds:.1f} s" for seconds, name in shares if seconds >= 0.1)
    runs = "one run" if rounds == 1 else f"median of {rounds} runs"
    by = f"{runs}; processor time, with pip {version[1] if version else ''}"
    return [
        Row("`pip install WHEEL` in an empty environment, with the requirements in pip's cache",
            "unpacking and compiling the same wheels without pip", "≤ 6 s", f"{whole:.1f} s",
            f"{by}; {unpack + compile_all:.1f} s without pip: {unpack:.1f} s unpack "
            f"{len(required)} wheels, and {compile_all:.1f} s compile their modules ({listed}); "
            f"bound by these wheels: numpy and pyarrow alone take {arrays:.1f} s"),
        Row("the same with `--no-compile`: the first import of a module compiles it",
            "unpacking the same wheels without pip", "–", f"{copied:.1f} s",
            f"{by}; {unpack:.1f} s without pip; bound by pip, which chooses versions and checks "
            "digests"),
        Row("`pip install WHEEL` where the requirements are installed", "`pip --version`",
            "≤ 6 s", f"{ours:.1f} s",
            f"{by}; {nothing:.1f} s for `pip --version`; bound by pip, and compiling our modules"),
    ]  # fmt: skip


def _built(directory: Path) -> Path:
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir",
          str(directory), str(_TOP)])  # fmt: skip
    (wheel,) = directory.iterdir()
    return wheel


def _seconds(command: Sequence[str]) -> float:
    """Processor time of a command, with that of its own processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run(command: Sequence[str]) -> str:
    kept = {key: each for key, each in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=False)
    if done.returncode and "compileall" not in command:
        message = f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        raise SystemExit(message)
    return done.stdout


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        given = [Path(each) for each in sys.argv[1:2]]
        sys.stdout.write(table(rows(Path(made), 3, *given), "alternating rounds"))
