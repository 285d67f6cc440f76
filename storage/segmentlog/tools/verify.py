"""What verifying finds, as lines or as JSON, with a progress bar on a terminal."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from segmentlog.log.findings import Finding, Severity
from segmentlog.log.logdir import open_log_dir
from segmentlog.log.verify import verify_log
from segmentlog.tools.dump import partitions_of
from segmentlog.tools.text import escape, to_json

__all__ = ["verify_paths"]

_MIB = 1 << 20


def verify_paths(
    paths: Sequence[str],
    topics: Sequence[str] = (),
    partitions: Sequence[int] = (),
    *,
    with_records: bool = False,
    with_notes: bool = False,
    as_json: bool = False,
) -> bool:
    """Verify each partition and write what is found; whether there is no error.

    Parameters
    ----------
    paths : log directories, partition directories or ``.log`` files.
    topics, partitions : which ones; all when there are none.
    with_records : whether records are inflated and parsed, too.
    with_notes : whether what is legal is written as well, not only counted.
    as_json : one object a line, and the summary as the last one.

    Raises
    ------
    SegmentLogError
        If a path is none of these, or a checkpoint cannot be read.
    """
    directory = open_log_dir(*paths)
    logs = [directory.log(*each) for each in partitions_of(directory, topics, partitions)]
    n_bytes = sum(log.size_bytes for log in logs)
    counts: Counter[Severity] = Counter()
    started = time.perf_counter()
    with _progress(n_bytes) as advance:
        for log in logs:
            for finding in verify_log(log, with_records=with_records, progress=advance):
                counts[finding.severity] += 1
                if with_notes or finding.severity != Severity.NOTE:
                    sys.stdout.write(
                        (to_json(_row(finding)) if as_json else _line(finding)) + "\n"
                    )
    seconds = time.perf_counter() - started
    n_segments = sum(len(log.segments) for log in logs)
    _write_summary(len(logs), n_segments, n_bytes, seconds, counts, as_json=as_json)
    return not counts[Severity.ERROR]


def _row(finding: Finding) -> dict[str, object]:
    row = finding._asdict()
    return {name: None if value == -1 else value for name, value in row.items()}


def _line(finding: Finding) -> str:
    """Severity, kind, place and words, in the order in which one looks for them."""
    place = finding.path
    if finding.position >= 0:
        place += f", byte {finding.position}"
    if finding.offset >= 0:
        place += f", offset {finding.offset}"
    message = finding.message.removeprefix(f"{finding.path}: ")
    return f"{finding.severity:7} {finding.kind}: {escape(place)}: {escape(message)}"


def _write_summary(
    n_logs: int,
    n_segments: int,
    n_bytes: int,
    seconds: float,
    counts: Counter[Severity],
    *,
    as_json: bool,
) -> None:
    """What was read and how much of each severity was found."""
    found = {f"{severity}s": counts[severity] for severity in Severity}
    if as_json:
        read = {"partitions": n_logs, "segments": n_segments, "bytes": n_bytes}
        sys.stdout.write(to_json({**read, **found}) + "\n")
        return
    said = ", ".join(f"{number} {name}" for name, number in found.items())
    sys.stdout.write(f"{n_logs} partitions, {n_segments} segments, {n_bytes:,} bytes: {said}\n")
    if sys.stderr.isatty():
        sys.stderr.write(f"{seconds:.1f} s, {n_bytes / _MIB / max(seconds, 1e-9):,.0f} MiB/s\n")


@contextmanager
def _progress(n_bytes: int) -> Iterator[Callable[[int], object]]:
    """A bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verify", total=n_bytes)
        yield lambda done: bar.advance(task, done)
