"""Directories that keep a broker from its start, and what the documents tell a stranger to type.

Each case damages a copy of a directory that a broker has cleanly stopped.  The tests then know
only the output of `preflight` and `verify`, and recovery.md.
"""

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from segmentlog.tools.cli import app

LOG = f"{0:020d}.log"
_PAGE = Path(__file__).parents[2] / "storage" / "docs" / "recovery.md"
_DELETED = ".0123456789abcdef0123456789abcdef-delete"


class Case(NamedTuple):
    """A damage of a partition, words of the output that tells it, and the command that mends it.

    `status` is the exit status of the command: 3 if acknowledged records are lost.
    """

    damage: Callable[[Path], object]
    partition: str
    told: str
    command: str
    status: int = 0

    def harm(self, directory: Path) -> None:
        """Damage the partition in a log directory."""
        self.damage(directory / self.partition)


def _torn(partition: Path) -> None:
    (partition.parent / ".kafka_cleanshutdown").unlink(missing_ok=True)
    path = partition / LOG
    path.write_bytes(path.read_bytes()[:-3])


def _zeroed(partition: Path) -> None:
    path = partition / LOG
    data = bytearray(path.read_bytes())
    data[30:50] = bytes(20)
    path.write_bytes(data)


#: Those that one command mends; the tests have the others.
CASES = {
    "a torn tail": Case(_torn, "invoices-0", "torn-tail", "segmentlog recover DIR", 3),
    "a zeroed block": Case(
        _zeroed, "invoices-0", "corrupt-batch", "segmentlog recover DIR --on-corrupt-batch skip", 3
    ),
    "a missing index": Case(
        lambda to: (to / LOG).with_suffix(".index").unlink(),
        "orders-0",
        "the index is missing",
        "segmentlog reindex DIR",
    ),
    "garbage in leader epochs": Case(
        lambda to: (to / "leader-epoch-checkpoint").write_bytes(bytes(range(60))),
        "orders-1",
        "leader-epoch-checkpoint: a starting broker takes the log directory offline",
        "segmentlog recover DIR",
    ),
    "an empty partition.metadata": Case(
        lambda to: (to / "partition.metadata").write_bytes(b""),
        "invoices-1",
        "partition.metadata: a starting broker ends here",
        "segmentlog recover DIR",
    ),
    "a half-deleted topic": Case(
        lambda to: to.rename(f"{to}{_DELETED}"),
        "orders-2",
        "rename the directory to orders-2",
        f"mv DIR/orders-2{_DELETED} DIR/orders-2",
    ),
}


def type_in(command: str, directory: Path, status: int = 0) -> str:
    """Run a command as it is printed, with a path in place of DIR; returns its output."""
    words = [each.replace("DIR", str(directory)) for each in shlex.split(command)]
    if words[0] == "segmentlog":
        done = CliRunner().invoke(app, words[1:])
        assert status == done.exit_code, (command, done.output, done.exception)
        return done.output
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def looked_up(directory: Path) -> str:
    """The text in which a stranger finds what to type."""
    found = [CliRunner().invoke(app, [each, str(directory)]) for each in ("preflight", "verify")]
    page = re.sub(r"\s+", " ", _PAGE.read_text())
    return "\n".join([*(each.output for each in found), page])
