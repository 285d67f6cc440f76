"""A new user's first minute: from ``pip install`` to the first record, in an empty environment.

``python tests/benchmarks/first_record.py`` prints the seconds of each step.  The steps are those
of the README, in a clone of the last commit, without a cache of packages or of kernels.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import NamedTuple

from measure import Row, table

__all__ = ["FirstMinute", "first_minute", "rows"]

_TOP = Path(__file__).resolve().parents[2]
_RECORD = "payments-0:58 "


class FirstMinute(NamedTuple):
    """Seconds of the steps of a new user.

    Attributes
    ----------
    install : of ``pip install .``, with all that it downloads.
    again : of the same, when its requirements are installed already.
    commands : the README's commands up to the first record, with the seconds of each.
    """

    install: float
    again: float
    commands: dict[str, float]

    @property
    def all_of_it(self) -> float:
        """From the install to the first record."""
        return self.install + sum(self.commands.values())

    @property
    def ours(self) -> float:
        """`all_of_it` without the downloads and the installation of the requirements."""
        return self.again + sum(self.commands.values())


def first_minute(scratch: Path) -> FirstMinute:
    """Clone, install, and run the README's commands until one prints the record.

    Raises
    ------
    SystemExit
        If a command fails, or if no command of the README finds the record.
    """
    checkout = scratch / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(_TOP), str(checkout)], check=True)
    venv.create(scratch / "venv", with_pip=True)
    readme = (checkout / "README.md").read_text()
    if "\npip install . " not in readme:
        message = "the README does not begin with: pip install ."
        raise SystemExit(message)
    pip = ["pip", "install"]
    install, _ = _timed([*pip, "."], scratch)
    commands: dict[str, float] = {}
    for line in re.findall(r"^\$ (segmentlog .*)$", readme, re.MULTILINE):
        commands[line], printed = _timed(shlex.split(line), scratch)
        if _RECORD in printed:
            break
    else:
        message = f"no command of the README has found {_RECORD}"
        raise SystemExit(message)
    again, _ = _timed([*pip, "--force-reinstall", "--no-deps", "."], scratch)
    return FirstMinute(install, again, commands)


def rows() -> list[Row]:
    """The rows of the table about a new user."""
    with tempfile.TemporaryDirectory() as scratch:
        found = first_minute(Path(scratch))
    each = ", ".join(f"`{name}` {seconds:.1f} s" for name, seconds in found.commands.items())
    work = "from `pip install .` in an empty environment to the first found record"
    return [
        Row(
            work,
            "–",
            "≤ 60 s",
            f"{found.all_of_it:.0f} s",
            f"one run; pip {found.install:.0f} s; {each}; bound by the network, and by pip",
        ),
        Row(
            f"{work}: requirements installed",
            "–",
            "≤ 10 s",
            f"{found.ours:.1f} s",
            f"one run; pip {found.again:.1f} s; bound by pip, which builds the wheel in a "
            "separate environment, and by the imports of numpy and pyarrow",
        ),
    ]


def _timed(command: list[str], scratch: Path) -> tuple[float, str]:
    """Seconds and standard output of a command of a user who has no cache yet."""
    left_out = ("PYTHON", "PYSPARK", "SEGMENTLOG", "VIRTUAL_ENV")
    environment = {key: each for key, each in os.environ.items() if not key.startswith(left_out)}
    environment |= {
        "PATH": f"{scratch / 'venv' / 'bin'}{os.pathsep}{environment['PATH']}",
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "PIP_CACHE_DIR": str(scratch / "cache" / "pip"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "COLUMNS": "200",
    }
    program = shutil.which(command[0], path=environment["PATH"])  # not that of this process
    begin = time.perf_counter()
    done = subprocess.run(
        [program or command[0], *command[1:]],
        cwd=scratch / "checkout",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        message = f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        raise SystemExit(message)
    return seconds, done.stdout


if __name__ == "__main__":
    sys.stdout.write(table(rows(), "one run"))
