"""The first read of a new machine, without the compiler."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "data"


def test_a_small_read_of_a_new_machine_compiles_nothing(tmp_path: Path) -> None:
    """The cache of kernels stays empty, and the record is found."""
    done = subprocess.run(
        [sys.executable, "-m", "segmentlog", "grep", "order-58", str(EXAMPLE)],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("payments-0:58 ")
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_a_command_in_another_program_keeps_the_compiler() -> None:
    """The program may read more afterwards."""
    code = (
        "from typer.testing import CliRunner\n"
        "from segmentlog.tools.cli import app\n"
        f"print(CliRunner().invoke(app, ['grep', 'order-58', {str(EXAMPLE)!r}]).exit_code)\n"
        "import numba\n"
        "print(numba.config.DISABLE_JIT)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ["0", "0"] == done.stdout.split()
