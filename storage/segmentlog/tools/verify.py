"""Findings of a verification, as lines or as JSON."""

import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import segmentlog
from segmentlog.errors import RemoteSegmentError
from segmentlog.logs.choose import partitions_of
from segmentlog.logs.log import Log
from segmentlog.logs.log_directory import open_log_dir
from segmentlog.tools.progress import progress
from segmentlog.tools.text import as_given, counted, escape, json_fields, to_json
from segmentlog.verification.findings import Finding, FindingKind, Severity

__all__ = ["verify_paths"]

_REINDEX = "segmentlog reindex builds them again from the batches"
_BY_ITSELF = "a broker does the same when it starts"

#: Remedies for findings, the worst first; a line for each remedy that applies.
_ADVICE: Mapping[str, Sequence[FindingKind]] = {
    "damage inside a log: restore the file from another replica or a backup. A read with "
    "onCorruptBatch=skip leaves the bad batches out. After an unclean stop, segmentlog recover "
    "and a starting broker cut a log at its first bad batch: segmentlog recover --dry-run shows "
    "where.": (
        FindingKind.CORRUPT_BATCH,
        FindingKind.CORRUPT_RECORDS,
    ),
    "missing partition: put its directory back from another replica or a backup. If the "
    "partition was moved, also name the log directory that now holds it. A read with "
    "failOnDataLoss=false (fail_on_data_loss=False) leaves it out.": (
        FindingKind.MISSING_PARTITION,
    ),
    "unfinished commit: if no writer is at work, segmentlog recover finishes or undoes it.": (
        FindingKind.UNFINISHED_COMMIT,
    ),
    "torn tail: segmentlog recover cuts the tail off and keeps it in a .broken file; "
    f"{_BY_ITSELF}.": (FindingKind.TORN_TAIL,),
    "sequences of producers: Log.producers() lists each gap and each repeat with its offsets. "
    "The application that produced the records can show which records are missing or doubled; "
    "another replica may be complete.": (
        FindingKind.SEQUENCE_GAP,
        FindingKind.SEQUENCE_REPEAT,
        FindingKind.PRODUCER_EPOCH,
    ),
    "tiered storage: a broker cannot read this segment either. Restore the objects from a replica "
    "or a version of the bucket.": (FindingKind.REMOTE_SEGMENT,),
    "copies that differ: the local log is what readers get. segmentlog dump shows the batches of "
    "both.": (FindingKind.REMOTE_COPY,),
    f"index files: {_REINDEX}.": (
        FindingKind.OFFSET_INDEX,
        FindingKind.TIME_INDEX,
        FindingKind.TRANSACTION_INDEX,
    ),
}

_MIB = 1 << 20

#: Modules whose warnings are findings, too: torn tails, and missing offsets of a tier.
_REPEATED = ("segments.log_end", "tiered.plan")

#: The place in the library's errors, after the path; a finding has fields of its own for it.
_PLACE = re.compile(r"^batch at byte \d+(?: \(base offset -?\d+\))?(:?) ")


def verify_paths(
    paths: Sequence[str],
    topics: Sequence[str] = (),
    partitions: Sequence[int] = (),
    *,
    with_records: bool = False,
    with_producers: bool = False,
    with_notes: bool = False,
    as_json: bool = False,
) -> bool:
    """Verify each partition and write the findings; return whether there is no error.

    Parameters
    ----------
    paths, topics, partitions, with_records, with_producers : see `segmentlog.verify`.
    with_notes : whether notes on legal states are written as well, not only counted.
    as_json : whether each finding is an object on a line; the summary is the last line.
    """
    directory = open_log_dir(paths[0], *paths[1:])
    logs = [directory.log(*each) for each in partitions_of(directory, topics, partitions)]
    with _findings_instead_of_warnings():
        sizes = [*filter(None, map(_size_of, logs))]
    n_bytes = sum(log_bytes for _, log_bytes in sizes)
    started = time.perf_counter()
    with _findings_instead_of_warnings(), progress("verify", n_bytes) as bar:

        def write(finding: Finding) -> None:
            if with_notes or finding.severity != Severity.NOTE:
                shown = _shown(finding, paths)
                bar.write(to_json(json_fields(shown)) if as_json else _line(shown))

        found = segmentlog.verify(
            directory, topics=topics, partitions=partitions, records=with_records,
            producers=with_producers, on_finding=write, on_bytes=bar.advance,
        )  # fmt: skip
    counts = Counter(finding.severity for finding in found)
    kinds = {finding.kind for finding in found if finding.severity != Severity.NOTE}
    read = {
        "partitions": len(logs),
        "segments": sum(n_segments for n_segments, _ in sizes),
        "bytes": n_bytes,
    }
    totals = {f"{severity}s": counts[severity] for severity in Severity}
    if as_json:
        _write_line(to_json(read | totals))
    else:
        hint = " (--notes lists them)" if counts[Severity.NOTE] and not with_notes else ""
        _write_line(f"{counted(**read)}: {counted(**totals)}{hint}")
        for advice, about in _ADVICE.items():
            if not kinds.isdisjoint(about):
                _write_line(advice)
    if sys.stderr.isatty():
        seconds = max(time.perf_counter() - started, 1e-9)
        sys.stderr.write(f"{seconds:.1f} s, {n_bytes / _MIB / seconds:,.0f} MiB/s\n")
    return not counts[Severity.ERROR]


def _size_of(log: Log) -> tuple[int, int] | None:
    """Numbers of segments and bytes of a log; None if it cannot be listed."""
    try:
        return len(log.segments), log.size_bytes
    except (RemoteSegmentError, OSError):  # a finding or an error says why
        return None


@contextmanager
def _findings_instead_of_warnings() -> Iterator[None]:
    """Suppress the library's warnings that findings repeat, and those of records left out."""
    loggers = [logging.getLogger(f"segmentlog.{name}") for name in _REPEATED]
    before = [each.disabled for each in loggers]
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        for each, is_disabled in zip(loggers, before, strict=True):
            each.disabled = is_disabled


def _shown(finding: Finding, paths: Sequence[str]) -> Finding:
    """The finding with the path as given, and a message that does not repeat the place."""
    message = finding.message.removeprefix(f"{finding.path}: ")
    message = _PLACE.sub(lambda match: "" if match[1] else "the batch ", message)
    return finding._replace(path=as_given(finding.path, paths), message=message)


def _line(finding: Finding) -> str:
    """Severity, kind, place and words, in the order in which a reader looks for them."""
    place = finding.path
    if finding.position >= 0:
        place += f", byte {finding.position}"
    if finding.offset >= 0:
        place += f", offset {finding.offset}"
    return f"{finding.severity:7} {finding.kind}: {escape(place)}: {escape(finding.message)}"


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
