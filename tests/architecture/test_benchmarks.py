"""Benchmark rows run on small data."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from measure import Row, figures, rows_of

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"
ROWS = {
    "narrow-engine": 1,
    "parquet": 4,
    "threads": 4,
    "counting": 4,
    "search": 3,
    "timeline": 1,
    "offset-commits": 1,
    "consumer-lag": 1,
    "replicas": 2,
}


@pytest.mark.slow
def test_rows_are_measured_alone() -> None:
    """The contestants agree, and each line has a goal, a figure and a bound."""
    asked = [word for row in ROWS for word in ("--row", row)]
    command = [sys.executable, str(RUN), "--quick", *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    line = re.compile(
        r"^\| .* \| .* \| [≥≤] [\d.]+(?: s)?(?:, < [\d.]+ MB)? \| \*\*[\d.]+(?: s)?\*\* "
        r"\| (?:yes|\*\*no\*\*) \| (.*) \|$",
        re.MULTILINE,
    )
    details = line.findall(done.stdout)
    assert sum(ROWS.values()) == len(details)
    assert all("bound by" in detail or "checksum" in detail for detail in details)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "part",
    [
        "reads",
        "queries",
        "decoding",
        "audits",
        "writes",
        "streams",
        "polls",
        "compaction",
        "topics",
        "installs",
        "stores",
        "serving",
        "scale",
    ],
)
def test_each_part_is_measured_on_small_data(part: str) -> None:
    """Every row of a part is measured: a row that nobody runs for weeks may no longer run."""
    command = [sys.executable, str(RUN), "--quick", "--only", part]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    assert "| goal met |" in done.stdout


@pytest.mark.slow
def test_a_new_user_finds_a_record_with_the_first_commands_of_the_readme() -> None:
    """Clone, `pip install .` and the commands of the README find the record, without Spark.

    The benchmark measures the times: here, other tests run beside it.
    """
    script = RUN.with_name("first_record.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    for reason in ("No matching distribution", "Could not find a version", "not a git repository"):
        if reason in done.stderr:
            pytest.skip(f"nothing can be installed here: {reason}")

    assert done.returncode == 0, done.stderr[-3000:]
    assert "`segmentlog grep order-58 examples/data`" in done.stdout
    assert 2 == len(re.findall(r"^\| from `pip install \.`.*bound by", done.stdout, re.MULTILINE))


def test_the_modules_of_each_walk_are_counted() -> None:
    """A commit carries out a change of the directory; a scan does not."""
    command = [sys.executable, str(RUN.with_name("walks.py")), "--names"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    walks = {
        title: names.split()
        for title, names in re.findall(r"^(.*): \d+\n((?:\S+\n)+)", done.stdout, re.MULTILINE)
    }

    assert 5 == len(walks)
    assert "txn/change" in walks["a commit"]
    assert {"reads/log", "reads/scan"} <= {*walks["a scan"]}
    assert "txn/change" not in walks["a scan"]


def test_the_figures_of_the_readme_are_those_of_the_tables() -> None:
    """`run.py --write` takes them from there."""
    top = RUN.parents[2]
    expected = figures(rows_of((top / "storage" / "docs" / "speed.md").read_text()))

    assert expected in (top / "README.md").read_text()


@pytest.mark.parametrize(
    ("goal", "measured", "detail", "is_met"),
    [
        ("≥ 3", "2.98", "", False),
        ("≥ 2.0×", "2.0×", "40 against 20 M records/s", True),
        ("≤ 1.5", "1.51", "", False),
        ("< 3 s, < 500 MB", "1.6 s", "131 MB at most", True),
        ("< 3 s, < 500 MB", "1.6 s", "531 MB at most", False),
        ("≤ 1.2, ≤ 15 ms", "1.05", "12.4 ms against 11.9", True),
        ("≤ 1.2, ≤ 15 ms", "1.05", "16.4 ms against 15.9", False),
        ("≤ 40 ms", "41 ms", "", False),
        ("≥ 0.85 on Intel, 0.55 on AMD", "0.58", "", False),
        ("≥ 0.55 on AMD, 0.85 on Intel", "0.58", "", True),
        ("–", "0.61", "", None),
    ],
)
def test_the_table_says_whether_a_goal_is_met(
    goal: str, measured: str, detail: str, is_met: bool | None
) -> None:
    """Each bound of a goal is compared with the figure of its unit."""
    assert Row("work", "contestant", goal, measured, detail).is_met is is_met
