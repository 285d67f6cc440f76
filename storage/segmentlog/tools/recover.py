"""``segmentlog recover`` and ``reindex``: a line for each step, or for each index file."""

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import typer

import segmentlog
from segmentlog.maintain.health.mend import RecoveryKind, RecoveryStep
from segmentlog.maintain.recover import IndexedSegment, RecoverOptions, ReindexOptions
from segmentlog.store.partitions import list_partitions
from segmentlog.store.paths import local_path
from segmentlog.store.readable import is_directory
from segmentlog.times import iso_time
from segmentlog.tools import arguments
from segmentlog.tools.output import as_given, counted, escape, write_json
from segmentlog.tools.progress import progress
from segmentlog.tools.report import Report

#: Exit status of `recover` when acknowledged records may be gone.
_RECORDS_LOST = 3

_NOTHING = """\
nothing to do: the directory was cleanly stopped, and no commit is unfinished
only the ends of the logs were checked; segmentlog verify reads all bytes of the logs
"""

#: Steps that lose nothing and are alike: they are counted, and have no lines.
_COUNTED = {RecoveryKind.LOG_RECOVERED}

_MOST_LOSSES = 20  #: lines for losses at the end; all of them have had their lines before


@arguments.command(
    "segmentlog recover /var/lib/kafka --dry-run",
    "segmentlog recover /var/lib/kafka",
)
@arguments.flags(RecoverOptions, "dry_run", "index_interval_bytes", "metadata", "on_corrupt_batch")
def recover(
    directory: arguments.Directory,
    *,
    given: dict[str, Any],
    as_json: arguments.AsJson = False,
) -> None:
    """Bring a directory that was not cleanly stopped to the state after a clean stop.

    Unfinished commits are finished or undone. Logs are read from their recovery points on and cut
    at the first bad batch, and their indexes, snapshots and leader epochs are built again, as a
    broker does when it starts. Bytes that are cut off stay beside the log in .broken files.
    Damaged checkpoints, leader epochs and files with topic ids are derived from other files. The
    last lines are a summary, losses first.
    No broker may be running on the directory. The exit status is 1 when a log could not be
    recovered, or when a starting broker would end, or would not serve all logs: then the directory
    does not get the mark of a clean stop. It is 3 when acknowledged records may be gone:
    whole batches after a damaged one were cut off, damaged ones were left out (--on-corrupt-batch
    skip), or the log ends below its high watermark. With --dry-run, it is the status of the
    recovery.
    """
    path = local_path(directory)
    n_logs = None
    with contextlib.suppress(OSError):  # the recovery names the reason
        n_logs = len(list_partitions(path)) if is_directory(path) else 0
    report = Report[RecoveryStep](
        lambda step: () if step.kind in _COUNTED else escape(step.message), as_json=as_json
    )
    with progress("recover", n_logs, is_bytes=False) as bar:
        steps = segmentlog.recover(
            directory, on_step=partial(report.show, write=bar.write), on_log=bar.begin, **given
        )
    kinds = Counter(step.kind for step in steps)
    is_lost = any(step.has_lost_records for step in steps)
    if as_json:
        counts = {
            "logsRecovered": kinds[RecoveryKind.LOG_RECOVERED],
            "logsCut": kinds[RecoveryKind.LOG_CUT],
            "logsSalvaged": kinds[RecoveryKind.LOG_SALVAGED],
            "logsFailed": kinds[RecoveryKind.LOG_FAILED],
            "logsWithLosses": len(_losses(steps)[0]),
        }
        write_json(counts)
    elif not steps:
        sys.stdout.write(_NOTHING)
    else:
        sys.stdout.writelines(
            f"{escape(line)}\n" for line in _summary(steps, dry_run=given["dry_run"])
        )
    report.end()
    if is_lost:
        raise typer.Exit(_RECORDS_LOST)


def _summary(steps: Sequence[RecoveryStep], *, dry_run: bool) -> Iterator[str]:
    """The lines at the end: losses, failures, and then the numbers of all other steps."""
    lost, n_torn = _losses(steps)
    kinds = Counter(step.kind for step in steps)
    failed = {
        os.path.basename(step.path): None for step in steps if step.kind is RecoveryKind.LOG_FAILED
    }
    if lost:
        yield f"{counted(logs=len(lost))} {'would lose' if dry_run else 'lost'} records:"
        yield from lost[:_MOST_LOSSES]
        if len(lost) > _MOST_LOSSES:
            yield f"  and {len(lost) - _MOST_LOSSES:,} more"
        yield "another replica or a backup may have these records"
        if any(step.has_lost_batches for step in steps):
            yield (
                "to keep the whole batches, and lose the damaged ones alone: segmentlog recover "
                "--on-corrupt-batch skip"
            )
    elif dry_run and kinds[RecoveryKind.COMMIT_ENDED]:
        yield "the logs were not looked at: the end of the commit changes them"
    else:
        yield f"no loss of acknowledged records was found{' in the other logs' if failed else ''}"
    if failed:
        names = [*failed][:_MOST_LOSSES]
        more = f" and {len(failed) - len(names):,} more" if len(failed) > len(names) else ""
        yield f"{counted(logs=len(failed))} not recovered: {', '.join(names)}{more}"
    parts = [
        f"{counted(**{what: kinds[kind]})} {done}"
        for kind, (what, done) in _DONE.items()
        if kinds[kind]
    ]
    if n_torn:
        parts.append(f"{counted(**{'torn tails': n_torn})} cut off")
    if parts:
        yield f"{'would be done' if dry_run else 'done'}: {', '.join(parts)}"
    if failed:
        yield (
            f"the directory {'would not be' if dry_run else 'is not'} marked as cleanly stopped: "
            "mend these logs, and recover again"
        )


#: The words for the numbers of steps.
_DONE = {
    RecoveryKind.COMMIT_ENDED: ("commits", "ended"),
    RecoveryKind.LOG_RECOVERED: ("logs", "read and indexed"),
    RecoveryKind.SEGMENT_SPLIT: ("segments", "split"),
    RecoveryKind.CHECKPOINT_MENDED: ("checkpoints", "replaced"),
    RecoveryKind.LOG_START_LOWERED: ("log starts", "lowered"),
    RecoveryKind.LEADER_EPOCHS_BUILT: ("files", "of leader epochs built"),
    RecoveryKind.TOPIC_ID_WRITTEN: ("topic ids", "written"),
    RecoveryKind.SNAPSHOT_PUT_ASIDE: ("metadata snapshots", "put aside"),
    RecoveryKind.INDEXES_BUILT: ("logs", "indexed again"),
    RecoveryKind.INDEXES_REMOVED: ("logs", "freed of indexes without a segment"),
}


def _losses(steps: Sequence[RecoveryStep]) -> tuple[list[str], int]:
    """A line for each log that has lost records, and the number of tails that lost none."""
    cut = {step.path: step for step in steps if step.kind is RecoveryKind.LOG_CUT}
    whole = {path: step for path, step in cut.items() if step.has_lost_batches}
    lowered = {
        step.path: step for step in steps if step.kind is RecoveryKind.HIGH_WATERMARK_LOWERED
    }
    lines = []
    for path, step in {**lowered, **whole}.items():
        line = f"  {os.path.basename(path)}: offsets [{step.end_offset}, {step.cut_to})"
        if path in whole:
            line += f", with {counted(records=step.n_records)} in whole batches"
            if step.last_timestamp >= 0:
                line += f", {iso_time(step.first_timestamp)} to {iso_time(step.last_timestamp)}"
        if path in lowered:
            line += f"; acknowledged up to {lowered[path].cut_to}, the high watermark"
        lines.append(line + (f"; kept in {', '.join(step.kept)}" if step.kept else ""))
    lines += [
        f"  {step.message}"
        for step in steps
        if step.kind is RecoveryKind.LOG_SALVAGED
        or (step.kind is RecoveryKind.INDEXES_REMOVED and step.has_lost_records)
    ]
    n_torn = len(cut) - len(whole)
    return lines, n_torn


@arguments.command(
    "segmentlog reindex /var/lib/kafka/orders-0",
    "segmentlog reindex /backup --index-interval-bytes 1024",
)
@arguments.flags(ReindexOptions, "index_interval_bytes")
def reindex(
    paths: arguments.Paths,
    *,
    given: dict[str, Any],
    as_json: arguments.AsJson = False,
) -> None:
    """Build .index, .timeindex and .txnindex files again, as a broker's recovery would.

    All batches are read and their checksums verified, and each file is replaced in one step. Files
    that are already right are not rewritten, nor those of a segment with a bad batch. No broker
    may be running on the directory. The exit status is
    1 when a segment is too damaged to be indexed.
    """
    report = Report(
        partial(_indexed, paths=paths), partial(_indexed_rows, paths=paths), as_json=as_json
    )
    with progress("reindex", None, is_bytes=False) as bar:
        found = segmentlog.reindex(
            *paths, on_segment=partial(report.show, write=bar.write), on_log=bar.begin, **given
        )
    n_failed = sum(each.error is not None for each in found)
    n_segments = len(found) - n_failed
    n_changed = sum(len(each.changed) for each in found)
    if as_json:
        counts = {"segments": n_segments, "files": n_changed, "failed": n_failed}
        write_json(counts)
    else:
        sys.stdout.write(
            f"{n_segments:,} segments indexed, {n_changed:,} files were missing or wrong\n"
        )
    report.end()


def _indexed(indexed: IndexedSegment, paths: Sequence[str]) -> Iterator[str]:
    if indexed.error is not None:
        yield f"not indexed: {escape(str(indexed.error))}"
    for file in indexed.changed:
        yield f"built {escape(as_given(file, paths))} again"


def _indexed_rows(indexed: IndexedSegment, paths: Sequence[str]) -> Iterator[dict[str, object]]:
    error = indexed.error and str(indexed.error)
    for path in indexed.changed or ([indexed.path] if error else []):
        place = {"topic": indexed.topic, "partition": indexed.partition}
        yield {**place, "path": as_given(path, paths), "error": error}
