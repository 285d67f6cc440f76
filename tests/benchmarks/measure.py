"""Time contestants side by side: alternating rounds, medians, and a digest that must agree."""

import operator
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Digest",
    "Result",
    "Row",
    "compare",
    "figures",
    "goal_here",
    "processor",
    "rows_of",
    "table",
]

#: Rows, sum of offsets, bytes of keys and values: what every contestant of a row must agree on.
Digest = tuple[int, ...]


def processor() -> str:
    """The model of the processor."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def goal_here(**least: float) -> str:
    """The goal of a row whose ratio depends on the processor: this one's, then the others.

    Parameters
    ----------
    least : the smallest ratio that is good enough, by the maker's name in the processor's.
    """
    here = next((maker for maker in least if maker in processor()), min(least, key=least.get))
    others = [f"{bound} on {maker}" for maker, bound in least.items() if maker != here]
    return ", ".join([f"≥ {least[here]} on {here}", *others])


class Result(NamedTuple):
    """Seconds of the counted rounds of one contestant, and what it found."""

    seconds: list[float]
    digest: Digest

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the slowest and the quickest round, to the median."""
        return (max(self.seconds) - min(self.seconds)) / 2 / self.median


_UNITS = r"commits/s|requests|round trips|GETs|ms|s|MB|×|R\b"


class Row(NamedTuple):
    """One line of the table."""

    work: str
    against: str
    goal: str
    measured: str
    detail: str

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None without a goal.

        A goal with several bounds finds the first figure of each unit in `measured` and `detail`.
        """
        bounds = re.findall(rf"([<≤≥]) ([\d.]+)(?: ?({_UNITS}))?", self.goal)
        compared = {"<": operator.lt, "≤": operator.le, "≥": operator.ge}
        met = []
        for sign, bound, unit in bounds:
            figure = re.search(rf"([\d.]+) ?{unit}", f"{self.measured}; {self.detail}")
            met.append(figure is not None and compared[sign](float(figure[1]), float(bound)))
        return all(met) if met else None


def compare(
    contestants: Mapping[str, Callable[[], Digest]],
    rounds: int = 5,
    between: Callable[[], None] = lambda: None,
) -> dict[str, Result]:
    """Run each contestant once to warm up, then all of them in turn, `rounds` times.

    Each round has a random order: a contestant that always came after the same one would pay each
    time for what that one leaves to the machine.  `between` does work before each turn, and is not
    timed.

    Raises
    ------
    SystemExit
        If two contestants found different things.
    """
    digests = {name: run() for name, run in contestants.items()}
    if len(set(digests.values())) > 1:
        message = f"the contestants disagree: {digests}"
        raise SystemExit(message)
    for name, digest in digests.items():
        print(f"{name}: digest {digest}", file=sys.stderr)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    order = random.Random(rounds)
    for _ in range(rounds):
        for name in order.sample([*contestants], len(contestants)):
            between()
            start = time.perf_counter()
            found = contestants[name]()
            seconds[name].append(time.perf_counter() - start)
            if found != digests[name]:
                message = f"{name} found {found} after {digests[name]}"
                raise SystemExit(message)
    return {name: Result(seconds[name], digests[name]) for name in contestants}


_MET = {True: "yes", False: "**no**", None: ""}

#: The rows of the README: how the work is called there, and the beginnings of two columns here.
_FIGURES = (
    ("scan through Spark", "scan through Spark", "Spark's `kafka` source"),
    ("1 % of a log by time, through Spark", "1 % of a log by time, through Spark", "Spark's"),
    ("write through Spark", "write through Spark", "Spark's `kafka` sink"),
    ("write through Spark", "write through Spark", "Spark's Parquet writer"),
    ("decode, one core", "decode, one core", "memcpy"),
    ("DuckDB over `segmentlog.dataset`", "DuckDB: all rows", "the same query over Parquet"),
    ("compact, uncompressed, one core", "compact, uncompressed", "Kafka's cleaner"),
)


def table(rows: list[Row], machine: str) -> str:
    """The rows as Markdown."""
    lines = [
        machine,
        "",
        "| work | measured against | goal | measured | goal met | |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.work} | {row.against} | {row.goal} | **{row.measured}** | {_MET[row.is_met]} "
        f"| {row.detail} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def rows_of(text: str) -> list[Row]:
    """The rows of the tables of a document, as `table` has written them."""
    lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    cells = [re.split(r" \| ", line) for line in lines]
    return [
        Row(work, against, goal, measured.strip("*"), detail)
        for work, against, goal, measured, _, detail in (each for each in cells if len(each) == 6)
    ]


def figures(rows: list[Row]) -> str:
    """The few rows of the README, as Markdown."""
    lines = ["| work | measured against | ratio |", "|---|---|---|"]
    for name, work, against in _FIGURES:
        row = next(r for r in rows if r.work.startswith(work) and r.against.startswith(against))
        lines.append(f"| {name} | {row.against} | {row.measured} |")
    return "\n".join(lines) + "\n"
