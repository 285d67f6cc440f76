"""Time contestants side by side: alternating rounds, medians, and a digest that must agree."""

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

__all__ = ["Digest", "Result", "Row", "compare", "table"]

#: Rows, sum of offsets, bytes of keys and values: what every contestant of a row must agree on.
Digest = tuple[int, ...]


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


class Row(NamedTuple):
    """One line of the table."""

    work: str
    against: str
    goal: str
    measured: str
    detail: str


def compare(
    contestants: Mapping[str, Callable[[], Digest]],
    rounds: int = 5,
    between: Callable[[], None] = lambda: None,
) -> dict[str, Result]:
    """Run each contestant once to warm up, then all of them in turn, `rounds` times.

    Each round has an order of its own: who always came behind the same one would pay for what
    that leaves to the machine, each time.
    `between` does the work before each turn, while nobody's clock runs.

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


def table(rows: list[Row], machine: str) -> str:
    """The rows as Markdown."""
    lines = [
        machine,
        "",
        "| work | measured against | goal | measured | |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.work} | {row.against} | {row.goal} | **{row.measured}** | {row.detail} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
