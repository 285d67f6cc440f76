"""The quick start without Java: on Sail it runs, and where Spark is installed it names Sail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.py"


def run_it() -> subprocess.CompletedProcess[str]:
    """Run it where no Java is found."""
    return subprocess.run(
        [sys.executable, str(QUICKSTART)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "JAVA_HOME": "/nonexistent"},
        check=False,
    )


@pytest.mark.only_sail
def test_it_runs_on_sail() -> None:
    done = run_it()

    assert 0 == done.returncode, done.stderr
    assert "0 errors, 0 warnings" in done.stdout
    assert "customer-05" in done.stdout


def test_without_java_spark_names_sail(engine: str) -> None:
    """The error says what to install, and no traceback is in the way."""
    if engine != "spark":
        pytest.skip("Spark is not installed")
    done = run_it()

    assert 1 == done.returncode
    assert "pip install '.[sail]'" in done.stderr
    assert "Traceback" not in done.stderr
