"""Print the files of tests that take longest: ``python tests/support/durations.py report.xml``.

The report is that of ``pytest --junitxml=report.xml``.
"""

import sys
from collections import Counter
from xml.etree import ElementTree

_ROWS = 25


def table(report: str) -> str:
    """A Markdown table of the files that take longest.

    `report`: path of a JUnit report. Returns seconds and number of tests of each file, the longest
    first, and of all the others.
    """
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["classname"].replace(".", "/") + ".py"
        seconds[name] += round(1000 * float(case.attrib["time"]))
        tests[name] += 1
    longest = seconds.most_common(_ROWS)
    rows = [(f"`{name}`", ms, tests[name]) for name, ms in longest]
    rest = seconds.keys() - {name for name, _ in longest}
    rows.append(("all others", sum(seconds[n] for n in rest), sum(tests[n] for n in rest)))
    lines = [f"| {name} | {ms / 1000:.0f} | {n} |" for name, ms, n in rows]
    return "\n".join(["| file | seconds | tests |", "|---|---|---|", *lines])


if __name__ == "__main__":
    print(table(sys.argv[1]))
