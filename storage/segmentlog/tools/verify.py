"""``segmentlog verify``: the findings of a verification, as lines or as JSON."""

import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

import segmentlog
from segmentlog.errors import SegmentLogError
from segmentlog.maintain.verification.findings import Finding, FindingKind, Severity
from segmentlog.model import TopicPartition
from segmentlog.reads.choose import missing_of, partitions_of
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.tools.arguments import (
    PROBLEM,
    READS,
    AsJson,
    Partitions,
    PathsOrTier,
    RemoteKeyFile,
    RemoteLayout,
    RemoteStorage,
    Topics,
    command,
    with_tier,
)
from segmentlog.tools.progress import progress
from segmentlog.tools.text import as_given, counted, escape, json_fields, to_json

_REINDEX = "segmentlog reindex builds them again from the batches"
_BY_ITSELF = "a broker does the same when it starts after an unclean stop"

#: Remedies for findings, the worst first; a line for each remedy that applies.
_ADVICE: Mapping[str, Sequence[FindingKind]] = {
    "damage inside a log: restore the file from another replica or a backup. A read with "
    "onCorruptBatch=skip leaves the bad batches out. After an unclean stop, segmentlog recover "
    "and a starting broker cut a log at its first bad batch: segmentlog recover --dry-run shows "
    "where. segmentlog recover --on-corrupt-batch skip leaves out the bad batches alone.": (
        FindingKind.CORRUPT_BATCH,
        FindingKind.CORRUPT_RECORDS,
    ),
    "missing partition: put its directory back from another replica or a backup. If the "
    "partition was moved, also name the log directory that now holds it. A read with "
    "failOnDataLoss=false (fail_on_data_loss=False) leaves it out.": (
        FindingKind.MISSING_PARTITION,
    ),
    "missing segment: put its .log file back from another replica or a backup. Its index files "
    "show the loss, and the next writer, segmentlog recover and a starting broker remove them: "
    "keep a copy. A read leaves the offsets out.": (FindingKind.MISSING_SEGMENT,),
    "damaged checkpoint: the logs were verified without it. Each finding says what to do.": (
        FindingKind.CHECKPOINT,
    ),
    "unreadable file: the rest of the directory was verified. Make the file readable to this "
    "user, or run the command as the broker's user.": (FindingKind.UNREADABLE_FILE,),
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
_REPEATED = ("log.log_end", "tiered.plan")

#: The place in the library's errors, after the path; a finding has fields of its own for it.
_PLACE = re.compile(r"^batch at byte \d+(?: \(base offset -?\d+\))?(:?) ")


@command(
    READS,
    "segmentlog verify /var/lib/kafka",
    "segmentlog verify /backup --topic orders --records --json",
    "segmentlog verify /var/lib/kafka/orders-0 --notes",
    "segmentlog verify /var/lib/kafka --topic payments --producers",
    "segmentlog verify /var/lib/kafka --remote-storage s3://tier/prefix/",
)
def verify(
    paths: PathsOrTier = None,
    topic: Topics = None,
    partition: Partitions = None,
    records: Annotated[
        bool, typer.Option("--records", help="Also decompress and parse the records.")
    ] = False,
    producers: Annotated[
        bool,
        typer.Option("--producers", help="Also check the sequences of idempotent producers."),
    ] = False,
    notes: Annotated[
        bool, typer.Option("--notes", help="Also list findings that are legal but worth knowing.")
    ] = False,
    as_json: AsJson = False,
    remote_storage: RemoteStorage = None,
    remote_storage_layout: RemoteLayout = None,
    remote_storage_key_file: RemoteKeyFile = None,
) -> None:
    """Read everything and report what does not fit: checksums, indexes, gaps, transactions.

    An error is damage that cannot be read or would mislead a broker; the exit status is then 1.  A
    warning, such as a torn tail, is repaired by a broker when it starts.  A note is legal, such as
    a gap that compaction left or an open transaction.  The command repairs nothing.  While a
    broker writes to the directory, findings may appear and be gone a moment later.

    With --remote-storage, all segments of the tier are read, and compared with the broker's list
    of them (__remote_log_metadata), if the directory has it, and with the local segments.
    """
    tier = remote_storage, remote_storage_layout, remote_storage_key_file
    given = with_tier(paths, *tier, fail_on_data_loss=False)
    topics, partitions = topic or (), partition or ()
    directory = open_log_dir(*given)
    missing = missing_of(directory, topics, partitions)
    chosen = partitions_of(directory, topics, partitions, missing)
    with _findings_instead_of_warnings():
        sizes = [*filter(None, (_size_of(directory, each) for each in chosen))]
    n_bytes = sum(log_bytes for _, log_bytes in sizes)
    started = time.perf_counter()
    with _findings_instead_of_warnings(), progress("verify", n_bytes) as bar:

        def write(finding: Finding) -> None:
            if notes or finding.severity != Severity.NOTE:
                shown = _shown(finding, given)
                bar.write(to_json(json_fields(shown)) if as_json else _line(shown))

        found = segmentlog.verify(
            directory, topics=topics, partitions=partitions, records=records,
            producers=producers, on_finding=write, on_bytes=bar.advance,
        )  # fmt: skip
    n_segments = sum(of_log for of_log, _ in sizes)
    read = {"partitions": len(chosen), "segments": n_segments, "bytes": n_bytes}
    counts = Counter(finding.severity for finding in found)
    totals = {f"{severity}s": counts[severity] for severity in Severity}
    if as_json:
        _write_line(to_json(read | totals))
    else:
        hint = " (--notes lists them)" if counts[Severity.NOTE] and not notes else ""
        _write_line(f"{counted(**read)}: {counted(**totals)}{hint}")
        kinds = {finding.kind for finding in found if finding.severity != Severity.NOTE}
        for advice, about in _ADVICE.items():
            if not kinds.isdisjoint(about):
                _write_line(advice)
    if sys.stderr.isatty():
        seconds = max(time.perf_counter() - started, 1e-9)
        sys.stderr.write(f"{seconds:.1f} s, {n_bytes / _MIB / seconds:,.0f} MiB/s\n")
    if counts[Severity.ERROR]:
        raise typer.Exit(PROBLEM)


def _size_of(directory: LogDirectory, each: TopicPartition) -> tuple[int, int] | None:
    """Numbers of segments and bytes of a log; None if it cannot be listed."""
    try:
        log = directory.log(*each)
        return len(log.segments), log.size_bytes
    except (SegmentLogError, OSError):  # a finding or an error says why
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
