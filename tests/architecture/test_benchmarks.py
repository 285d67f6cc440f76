"""Rows of the benchmarks that need neither Spark nor a broker, on small data."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"
ROWS = {"narrow-engine": 1, "parquet": 4, "threads": 2, "timeline": 1}


@pytest.mark.thorough
def test_rows_are_measured_alone() -> None:
    """Their contestants agree, and each line has a goal, a ratio and a bound."""
    asked = [word for row in ROWS for word in ("--row", row)]
    command = [sys.executable, str(RUN), "--quick", *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    line = re.compile(r"^\| .* \| .* \| ≥ [\d.]+ \| \*\*[\d.]+\*\* \| (.*) \|$", re.MULTILINE)
    details = line.findall(done.stdout)
    assert sum(ROWS.values()) == len(details)
    assert all("bound by" in detail or "checksum" in detail for detail in details)
