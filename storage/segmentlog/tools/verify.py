"""``segmentlog verify`` and ``preflight``: what is wrong; what a starting broker does with it."""

import logging
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer

import segmentlog
from segmentlog.errors import CorruptCheckpointError, SegmentLogError
from segmentlog.log.segment import TORN_TAIL_LOGGER
from segmentlog.maintain.health.faults import StartAction, StartStep, is_within
from segmentlog.maintain.start.preflight import BrokerSettings, PreflightOptions
from segmentlog.maintain.verification.findings import REMEDIES, Finding, Severity
from segmentlog.maintain.verification.verify import VerifyOptions
from segmentlog.model import TopicPartition
from segmentlog.reads.choose import missing_of, partitions_of
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.metadata_log import metadata_path
from segmentlog.store.paths import local_path
from segmentlog.tools import arguments
from segmentlog.tools.output import as_given, counted, escape, json_fields, write_json
from segmentlog.tools.progress import progress
from segmentlog.tools.report import Report

_MIB = 1 << 20
_MOST_AT_A_GLANCE = 6  #: lines about losses, and about remedies
_MOST_NAMED = 10  #: logs or files in a line

#: Loggers whose warnings are findings, too: of torn tails, and of missing offsets of a tier.
_REPEATED = (TORN_TAIL_LOGGER, "segmentlog.tiered.plan")

#: The place in the library's errors, after the path; a finding has fields of its own for it.
_PLACE = re.compile(r"^batch at byte \d+(?: \(base offset -?\d+\))?(:?) ")


@arguments.command(
    "segmentlog verify /var/lib/kafka",
    "segmentlog verify /backup --topic orders --records --json",
    "segmentlog verify /var/lib/kafka/orders-0 --notes",
    "segmentlog verify /var/lib/kafka --topic payments --producers",
    "segmentlog verify /var/lib/kafka --remote-storage s3://tier/prefix/",
    "segmentlog verify s3://bucket/logs --shallow",
)
@arguments.tiered
@arguments.flags(VerifyOptions, "records", "producers", "shallow")
def verify(
    paths: arguments.PathsOrTier = None,
    topic: arguments.Topics = None,
    partition: arguments.Partitions = None,
    *,
    given: dict[str, Any],
    notes: Annotated[
        bool, typer.Option(help="Also list findings that are legal but worth knowing.")
    ] = False,
    as_json: arguments.AsJson = False,
    tier: arguments.Tier,
) -> None:
    """Read everything and report what does not fit: checksums, indexes, gaps, transactions.

    An error is damage that cannot be read or would mislead a broker; the exit status is then 1.  A
    warning, such as a torn tail, is repaired by a broker when it starts.  A note is legal, such as
    a gap that compaction left or an open transaction.  The command repairs nothing.  While a
    broker writes to the directory, findings may appear and be gone a moment later.

    With --remote-storage, all segments of the tier are read, and compared with the broker's list
    of them (__remote_log_metadata), if the directory has it, and with the local segments.

    Of a log in an object store, all commits are read, too, and compared with the checkpoint, with
    the objects that they name, and with the batches there.
    """
    located = tier.beside(paths, fail_on_data_loss=False)
    topics, partitions = topic or (), partition or ()
    directory, chosen, sizes = None, list[TopicPartition](), list[tuple[int, int]]()
    try:
        directory = open_log_dir(*located)
    except CorruptCheckpointError:
        if not any("://" in each for each in located):
            raise  # else the findings name the commit
    if directory is not None:
        missing = missing_of(directory, topics, partitions)
        chosen = partitions_of(directory, topics, partitions, missing)
        with _findings_instead_of_warnings():
            sizes += filter(None, (_size_of(directory, each) for each in chosen))
    n_bytes = 0 if given["shallow"] else sum(log_bytes for _, log_bytes in sizes)
    started = time.perf_counter()
    report = Report[Finding](_line, as_json=as_json)
    with _findings_instead_of_warnings(), progress("verify", n_bytes) as bar:

        def write(finding: Finding) -> None:
            if notes or finding.severity != Severity.NOTE:
                report.show(_shown(finding, located), bar.write)

        found = segmentlog.verify(
            *([directory] if directory is not None else located),
            topics=topics,
            partitions=partitions,
            **given,
            on_finding=write,
            on_bytes=bar.advance,
        )
    n_segments = sum(of_log for of_log, _ in sizes)
    read = {"partitions": len(chosen), "segments": n_segments, "bytes": n_bytes}
    counts = Counter(finding.severity for finding in found)
    totals = {f"{severity}s": counts[severity] for severity in Severity}
    if as_json:
        write_json(read | totals)
    else:
        hint = " (--notes lists them)" if counts[Severity.NOTE] and not notes else ""
        sys.stdout.write(f"{counted(**read)}: {counted(**totals)}{hint}\n")
        kinds = {finding.kind for finding in found if finding.severity != Severity.NOTE}
        for remedy in dict.fromkeys(kind.remedy for kind in REMEDIES if kind in kinds):
            sys.stdout.write(f"{remedy}\n")
    if sys.stderr.isatty():
        seconds = max(time.perf_counter() - started, 1e-9)
        sys.stderr.write(f"{seconds:.1f} s, {n_bytes / _MIB / seconds:,.0f} MiB/s\n")
    report.end()


def _size_of(directory: LogDirectory, each: TopicPartition) -> tuple[int, int] | None:
    """Numbers of segments and bytes of a log; None if it cannot be listed."""
    try:
        log = directory.log_without_checkpoints(each)
        return len(log.segments), log.size_bytes
    except (SegmentLogError, OSError):  # a finding or an error says why
        return None


@contextmanager
def _findings_instead_of_warnings() -> Iterator[None]:
    """Suppress the library's warnings that findings repeat, and those of records left out."""
    loggers = [logging.getLogger(name) for name in _REPEATED]
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


@arguments.command(
    "segmentlog preflight /var/lib/kafka",
    "segmentlog preflight --server-properties server.properties",
    "segmentlog preflight /disk2/kafka --metadata-dir /disk1/kafka --kafka-version 4.3 --json",
)
@arguments.flags(PreflightOptions, "metadata", "server_properties", "kafka_version")
def preflight(
    directories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DIR",
            help="All log directories of one broker; by default those of --server-properties.",
        ),
    ] = None,
    topic: arguments.Topics = None,
    *,
    given: dict[str, Any],
    as_json: arguments.AsJson = False,
) -> None:
    """Show what a starting broker would do with its log directories. Nothing is changed.

    The first lines are the verdict: whether the broker starts, what is lost, and what to do next.
    Then each line is a step of the start: refuse, offline, unserved, stray, empty, truncate,
    split, recover, rebuild, drop, delete, missing or keep; with the file that decides it, the
    reason, the loss and the remedy. Lines that differ in the log alone are one line. The lines
    "unknown" name what the disks of one broker do not tell. The exit status is 1 if the broker
    would end, would not serve a log, or would lose offsets in a way that nobody has set, and if a
    log cannot be read.
    """
    paths = tuple(directories or ())

    report = Report[StartStep](
        lambda _: (),  # steps that differ in the log alone are one line, after the verdict
        lambda step: json_fields(step._replace(path=as_given(step.path, paths))),
        as_json=as_json,
    )
    with progress("preflight", None, is_bytes=False) as bar:
        steps = segmentlog.preflight(
            *paths,
            topics=topic or (),
            on_step=partial(report.show, write=bar.write),
            on_log=bar.begin,
            **given,
        )
    if as_json:
        counts = Counter(step.action for step in steps)
        write_json({each: counts[each] for each in StartAction})
    else:
        verdict = verdict_of(steps, paths, given["metadata"], given["server_properties"])
        lines = (*verdict, *_step_lines(steps, paths))
        sys.stdout.writelines(f"{escape(line)}\n" for line in lines)
    report.end()


def verdict_of(
    steps: Sequence[StartStep],
    paths: Sequence[str],
    metadata: str | None,
    server_properties: str | None,
) -> Iterator[str]:
    """Whether the broker starts, what is lost, and what to type next: at most one screen."""
    static = BrokerSettings.read(server_properties)
    directories = [*paths] or [*static.log_dirs]
    holders = (each for each in directories if metadata_path(local_path(each)) is not None)
    holder = metadata or next(holders, static.metadata_log_dir)
    undecided = [step for step in steps if step.is_undecided]
    harm = [step for step in steps if step.has_problem and not step.is_undecided]
    counts = Counter(step.action for step in steps)
    told = ", ".join(f"{counts[each]} {each}" for each in StartAction if counts[each])
    offline = sum(step.action == StartAction.OFFLINE for step in steps)
    if counts[StartAction.REFUSE] or (offline and len(directories) < 2):
        verdict = "the broker would not start"
    elif harm:
        logs = dict.fromkeys(f"{step.topic}-{step.partition}" for step in harm if step.topic)
        without = _few([*logs]) or "everything that it had"
        verdict = f"the broker would start, but without {without}"
    elif undecided:
        verdict = "nothing here keeps a broker from its start, as far as the logs can be read"
    else:
        verdict = "nothing here keeps a broker from its start"
    yield f"{verdict}: {told}" if told else verdict
    for loss, found in _grouped(harm, lambda step: step.loss)[:_MOST_AT_A_GLANCE]:
        yield f"  lost: {loss} ({_few([_place(step, directories) for step in found])})"
    for remedy, found in _grouped(harm, lambda step: step.remedy)[:_MOST_AT_A_GLANCE]:
        yield f"  next: {remedy} ({_few([_place(step, directories) for step in found])})"
    for each in directories:
        own = [step for step in harm if is_within(step.path, local_path(each))]
        if any("segmentlog recover" in step.remedy for step in own):
            is_beside = holder is not None and local_path(holder) != local_path(each)
            beside = f" --metadata {shlex.quote(str(holder))}" if is_beside else ""
            yield f"  next: segmentlog recover {shlex.quote(each)}{beside}"


def _grouped(
    steps: Sequence[StartStep], text: Callable[[StartStep], str]
) -> list[tuple[str, list[StartStep]]]:
    """The steps by a text of theirs that is not empty, in their order."""
    found: dict[str, list[StartStep]] = {}
    for step in steps:
        if text(step):
            found.setdefault(text(step), []).append(step)
    return [*found.items()]


def _few(names: Sequence[str]) -> str:
    """Some names, and the number of the others."""
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _place(step: StartStep, directories: Sequence[str]) -> str:
    return f"{step.topic}-{step.partition}" if step.topic else as_given(step.path, directories)


def _step_lines(steps: Sequence[StartStep], directories: Sequence[str]) -> Iterator[str]:
    """A line for each step, or for all steps that differ in the log alone."""
    remedies: set[str] = set()
    grouped: dict[tuple[object, ...], list[StartStep]] = {}
    for step in steps:
        if step.action != StartAction.RECOVER or step.n_bytes:
            name = f"{step.topic}-{step.partition}"
            words = tuple(each.replace(name, "") for each in (step.reason, step.loss, step.remedy))
            grouped.setdefault((step.action, step.offset, *words), []).append(step)
    for found in grouped.values():
        step = found[0]
        if step.remedy in remedies:  # a remedy for many logs is printed once
            step = step._replace(remedy="")
        remedies.add(step.remedy)
        place = as_given(step.path, directories)
        place += f", offset {step.offset}" if step.offset >= 0 else ""
        others = [_place(each, directories) for each in found[1:]]
        also = f" (also {_few(others)})" if others else ""
        yield f"{step.action:8} {place}{also}: {step.message}"
