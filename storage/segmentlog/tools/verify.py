"""Findings of a verification, as lines or as JSON."""

import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

from segmentlog.disk.readable import exists, is_directory
from segmentlog.disk.remote.location import is_url
from segmentlog.disk.system_errors import storage_errors
from segmentlog.errors import SegmentLogError
from segmentlog.layout.checkpoint import read_offsets
from segmentlog.logs.log import Log
from segmentlog.logs.log_directory import MissingPartition, open_log_dir
from segmentlog.names import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from segmentlog.recovery.recover_directory import plan_log
from segmentlog.tools.paths import as_given, missing_of, partitions_of
from segmentlog.tools.progress import progress
from segmentlog.tools.text import counted, escape, to_json
from segmentlog.verification.findings import Finding, FindingKind, Severity, unfinished_commits
from segmentlog.verification.verify_log import verify_log

__all__ = ["verify_paths"]

_REINDEX = "segmentlog reindex builds them again from the batches"
_BY_ITSELF = "a broker does it by itself when it starts"

#: Remedies for findings, the worst first; a line for each remedy that applies.
_ADVICE: Mapping[str, Sequence[FindingKind]] = {
    "damage inside a log: restore the file from another replica or a backup. A read with "
    "onCorruptBatch=skip leaves the bad batches out. After an unclean stop, segmentlog recover "
    "and a starting broker cut a log at its first bad batch: segmentlog recover --dry-run says "
    "where.": (
        FindingKind.CORRUPT_BATCH,
        FindingKind.CORRUPT_RECORDS,
    ),
    "missing partition: put its directory back from another replica or a backup. If it was moved, "
    "name the log directory that holds it now as well. A read with failOnDataLoss=false "
    "(fail_on_data_loss=False) leaves it out.": (FindingKind.MISSING_PARTITION,),
    "unfinished commit: if no writer is at work, segmentlog recover finishes or undoes it.": (
        FindingKind.UNFINISHED_COMMIT,
    ),
    f"torn tail: segmentlog recover cuts it off and keeps it aside; {_BY_ITSELF}.": (
        FindingKind.TORN_TAIL,
    ),
    "sequences of producers: Log.producers() lists each gap and each repeat with its offsets. Ask "
    "the producer's side which records are missing or doubled; another replica may be whole.": (
        FindingKind.SEQUENCE_GAP,
        FindingKind.SEQUENCE_REPEAT,
        FindingKind.PRODUCER_EPOCH,
    ),
    f"index files: {_REINDEX}.": (
        FindingKind.OFFSET_INDEX,
        FindingKind.TIME_INDEX,
        FindingKind.TRANSACTION_INDEX,
    ),
}

#: Batches at which a recovery cuts a log.
_CUT_AT = {FindingKind.CORRUPT_BATCH, FindingKind.UNSUPPORTED_BATCH}

_MIB = 1 << 20

#: The place in the library's errors, after the path; a finding has fields of its own for it.
_PLACE = re.compile(r"^batch at byte \d+(?: \(base offset -?\d+\))?(:?) ")


@storage_errors()
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
    paths : log directories, partition directories or ``.log`` files.
    topics, partitions : to verify; all if empty.
    with_records : whether records are inflated and parsed, too.
    with_producers : whether the sequences of producers are followed, too.
    with_notes : whether notes on legal states are written as well, not only counted.
    as_json : whether each finding is an object on a line; the summary is the last line.

    Raises
    ------
    SegmentLogError
        If a path is none of these, or a checkpoint cannot be read.
    """
    directory = open_log_dir(*paths)
    logs = [directory.log(*each) for each in partitions_of(directory, topics, partitions)]
    n_bytes = sum(log.size_bytes for log in logs)
    counts: Counter[Severity] = Counter()
    kinds, damaged = set(), set()
    started = time.perf_counter()
    with _torn_tails_are_findings(), progress("verify", n_bytes) as bar:
        found = (
            verify_log(
                log,
                with_records=with_records,
                with_producers=with_producers,
                progress=bar.advance,
            )
            for log in logs
        )
        missing = map(_missing, missing_of(directory, topics, partitions))
        guards = unfinished_commits(directory.unfinished_commits)
        for finding in chain(guards, missing, *found):
            counts[finding.severity] += 1
            if finding.severity != Severity.NOTE:
                kinds.add(finding.kind)
            if finding.kind in _CUT_AT:
                damaged.add((finding.topic, finding.partition))
            if with_notes or finding.severity != Severity.NOTE:
                shown = _shown(finding, paths)
                bar.write(to_json(_row(shown)) if as_json else _line(shown))
    read = {
        "partitions": len(logs),
        "segments": sum(len(log.segments) for log in logs),
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
        for log in logs:
            if log.topic_partition in damaged and (loss := _would_lose(log)):
                _write_line(f"{log.topic_partition}: {escape(loss)}")
    if sys.stderr.isatty():
        seconds = max(time.perf_counter() - started, 1e-9)
        sys.stderr.write(f"{seconds:.1f} s, {n_bytes / _MIB / seconds:,.0f} MiB/s\n")
    return not counts[Severity.ERROR]


def _would_lose(log: Log) -> str:
    """A sentence about the whole batches that a recovery would cut off, or nothing."""
    directory = os.path.dirname(log.path)
    if is_url(log.path) or not is_directory(log.path):
        return ""
    is_clean = exists(os.path.join(directory, CLEAN_SHUTDOWN_FILE))
    point, log_start = (
        read_offsets(directory, name).get(log.topic_partition, 0)
        for name in (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT)
    )
    try:
        plan = plan_log(log.path, point, log_start, is_clean=is_clean)
    except SegmentLogError:  # recovery leaves such a log as it is
        return ""
    if plan is None or plan.good_from is None:
        return ""
    return f"recovery would cut off {plan.loss.replace(' are cut off', '', 1)}"


def _missing(each: MissingPartition) -> Finding:
    return Finding(
        Severity.ERROR, FindingKind.MISSING_PARTITION, *each.topic_partition, each.checkpoint,
        -1, -1, f"{each.topic_partition}: {each.reason}",
    )  # fmt: skip


@contextmanager
def _torn_tails_are_findings() -> Iterator[None]:
    """Suppress the library's warnings that findings repeat, and those of records left out."""
    logger = logging.getLogger("segmentlog.segments.log_end")
    is_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = is_disabled


def _shown(finding: Finding, paths: Sequence[str]) -> Finding:
    """The finding with the path as given, and a message that does not repeat the place."""
    message = finding.message.removeprefix(f"{finding.path}: ")
    message = _PLACE.sub(lambda match: "" if match[1] else "the batch ", message)
    return finding._replace(path=as_given(finding.path, paths), message=message)


def _row(finding: Finding) -> dict[str, object]:
    row = finding._asdict()
    return {name: None if value in (-1, "") else value for name, value in row.items()}


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
