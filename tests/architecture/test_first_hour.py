"""A new user's first hour prints its transcript, in a bare virtual environment.

``python tests/support/first_hour/make.py`` makes the transcripts again.
"""

import subprocess
from pathlib import Path

import pytest
from first_hour.bare import TOP, Bare
from first_hour.parts import PARTS, Hour

TRANSCRIPTS = Path(__file__).parent / "first_hour"


@pytest.mark.spark
@pytest.mark.slow  # Spark starts several times, and each kernel is compiled
@pytest.mark.parametrize("part", PARTS)
def test_it_reads_as_its_transcript(bare: Bare, tmp_path: Path, part: str) -> None:
    """All output is compared, without noise, places and times."""
    printed = PARTS[part](Hour.begin(bare, tmp_path / "checkout"))
    expected = (TRANSCRIPTS / f"{part}.txt").read_text()

    again = f"python tests/support/first_hour/make.py {part}"
    assert expected.splitlines() == printed.splitlines(), f"to accept it: {again}"


def test_a_transcript_stands_for_each_part() -> None:
    """No transcript is missing, and none is left over."""
    assert sorted(PARTS) == sorted(path.stem for path in TRANSCRIPTS.iterdir())


def test_git_does_not_see_what_the_hour_leaves() -> None:
    """Git ignores logs, Spark's warehouse, and the lock file of `recover` and `reindex`."""
    left = ["build/a", "derby.log", "examples/data/.lock", "metastore_db/a", "spark-warehouse/a"]
    done = subprocess.run(
        ["git", "check-ignore", *left], cwd=TOP, capture_output=True, text=True, check=False
    )
    if done.returncode == 128:
        pytest.skip("not a checkout of Git")

    assert left == done.stdout.split()
