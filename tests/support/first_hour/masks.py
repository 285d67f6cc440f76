"""Masks for the parts that differ from run to run in the output of the first hour."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

__all__ = ["mask"]

#: Spark's own words about itself and the machine; our warnings stay.
NOISE = re.compile(
    r"WARNING: |Using Spark's default log4j|Setting default log level|To adjust logging level|"
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?!(WARN|ERROR) .*segmentlog)|\tat |\t\.\.\. \d+ more|"
    # A heartbeat of Spark's that comes after the end of its session.
    r"(Caused by: )?org\.apache\.spark\.\S*Exception: (Exception thrown in await|RpcEnv )|"
    r"Spark Web UI available|Output: |Spark master: |Time taken: |\s*$|"
    r".*FutureWarning: PySpark does not yet fully support pandas|  require_minimum_pandas_version"
)
PROGRESS = re.compile(r"\[Stage \d+:[=> ]*\(\d+ \+ \d+\) / \d+\]")
FRAME = re.compile(r'^ *File ".*", line \d+(, in .*)?$')


def mask(text: str, places: Iterable[tuple[Path, str]]) -> str:
    """`text` without noise, and with names instead of places, times and durations.

    Parameters
    ----------
    text
        what was printed, standard output and standard error as they came.
    places
        directories, with what to call each; those inside others come first.
    """
    for place, name in places:
        text = text.replace(str(place), name)
    text = PROGRESS.sub("", text.replace("\r\n", "\n"))
    lines = (line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n"))
    kept = "\n".join(_without_frames(line for line in lines if not NOISE.match(line)))
    today = datetime.now(UTC)
    for day in (today - timedelta(days=1), today):
        kept = re.sub(rf"{day:%Y-%m-%d}[ T]\d\d:\d\d:\d\d(\.\d+)?Z?", "<now>", kept)
    for pattern, name in MASKS:
        kept = pattern.sub(name, kept)
    return re.sub(r"(?m)^(?=# )", "\n", kept).strip() + "\n"


MASKS = (
    (re.compile(r"\bkernels-[0-9a-f]{16}\b"), "kernels-<hash>"),
    (re.compile(r"\b\d+ (?=kernels\b)"), "<n> "),
    (re.compile(r"/python3\.\d+/"), "/python3/"),
    (re.compile(r"^(ok +\w+: )\d+(?:\.\w+)+", re.M), r"\1<version>"),
    (re.compile(r"^(ok +java: .*, ).*", re.M), r"\1<java>"),
    (re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d", re.M), "<time>"),
    (re.compile(r'^\{"ts": .*?"level": "(\w+)", "logger": "(\w+)".*$', re.M), r"{\1 \2 …}"),
    (re.compile(r"/\S*/tmp\w{8}\b"), "<scratch>"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:s|ms|seconds)\b"), "<seconds>"),
)


def _without_frames(lines: Iterable[str]) -> Iterable[str]:
    """Tracebacks with one line for each run of frames that are ours, or that are not."""
    said, inside = "", False
    for line in lines:
        if FRAME.match(line):
            whose = "segmentlog" if "segmentlog/" in line else "others"
            if whose != said:
                yield f"  … {whose}"
            said, inside = whose, True
        elif not ((inside and line.startswith("    ")) or re.match(r"^\s*[~^]+$", line)):
            said, inside = "", False
            yield line
