"""``segmentlog recover`` and ``reindex``: a line for each step, or for each index file."""

import os
import sys
from collections import Counter
from typing import Annotated

import typer

import segmentlog
from segmentlog.disk.paths import local_path
from segmentlog.disk.readable import is_directory
from segmentlog.layout.partitions import list_partitions
from segmentlog.model import INDEX_INTERVAL_BYTES
from segmentlog.recovery.reindex import IndexedSegment
from segmentlog.recovery.steps import RecoveryKind, RecoveryStep
from segmentlog.tools.arguments import (
    PROBLEM,
    WRITES,
    AsJson,
    Directory,
    IndexInterval,
    Paths,
    command,
)
from segmentlog.tools.progress import progress
from segmentlog.tools.text import as_given, counted, escape, json_fields, to_json

__all__ = ["recover", "reindex"]

#: Exit status of `recover` when whole batches were cut off.
_BATCHES_CUT = 3

_NOTHING = """\
nothing to do: the directory was cleanly stopped, and no commit is unfinished
only the ends of the logs were checked; segmentlog verify reads all bytes of the logs
"""


@command(
    WRITES,
    "segmentlog recover /var/lib/kafka --dry-run",
    "segmentlog recover /var/lib/kafka",
)
def recover(
    directory: Directory,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")
    ] = False,
    index_interval_bytes: IndexInterval = INDEX_INTERVAL_BYTES,
    as_json: AsJson = False,
) -> None:
    """Bring a directory that was not cleanly stopped to the state after a clean stop.

    Unfinished commits are finished or undone. Logs are read from their recovery points on and cut
    at the first bad batch, and their indexes, snapshots and leader epochs are built again, as a
    broker does when it starts. Bytes that are cut off stay beside the log in .broken files.
    No broker may be running on the directory. The exit status is 1 when a log could not be
    recovered, and 3 when whole batches after a damaged one were cut off: more than a torn tail.
    With --dry-run, it is 3 when such batches would be cut off.
    """
    path = local_path(directory)
    n_logs = len(list_partitions(path)) if is_directory(path) else 0
    with progress("recover", n_logs, is_bytes=False) as bar:

        def begin(name: str) -> None:
            bar.name(escape(name))
            bar.advance(1)

        def write(step: RecoveryStep) -> None:
            bar.write(to_json(json_fields(step)) if as_json else escape(step.message))

        steps = segmentlog.recover(
            directory, index_interval_bytes=index_interval_bytes, dry_run=dry_run,
            on_step=write, on_log=begin,
        )  # fmt: skip
    kinds = Counter(step.kind for step in steps)
    cut = [os.path.basename(step.path) for step in steps if step.has_lost_batches]
    if as_json:
        counts = {
            "logsRecovered": kinds[RecoveryKind.LOG_RECOVERED],
            "logsCut": kinds[RecoveryKind.LOG_CUT],
            "logsFailed": kinds[RecoveryKind.LOG_FAILED],
        }
        sys.stdout.write(to_json(counts) + "\n")
    elif not steps:
        sys.stdout.write(_NOTHING)
    elif cut:
        kept = "would keep" if dry_run else "keep"
        sys.stdout.write(
            f"{counted(logs=len(cut))} with whole batches after a damaged one, so this is not a "
            f"torn tail: {escape(', '.join(cut))}\nanother replica or a backup may have the "
            f"records; .broken files {kept} the bytes that are cut off\n"
        )
    if kinds[RecoveryKind.LOG_FAILED]:
        raise typer.Exit(PROBLEM)
    if cut:
        raise typer.Exit(_BATCHES_CUT)


@command(
    WRITES,
    "segmentlog reindex /var/lib/kafka/orders-0",
    "segmentlog reindex /backup --index-interval-bytes 1024",
)
def reindex(
    paths: Paths,
    index_interval_bytes: IndexInterval = INDEX_INTERVAL_BYTES,
    as_json: AsJson = False,
) -> None:
    """Build .index, .timeindex and .txnindex files again, as a broker's recovery would.

    Batch headers are read, but no records, and each file is replaced in one step. Files that are
    already right are not rewritten. No broker may be running on the directory. The exit status is
    1 when a segment is too damaged to be indexed.
    """
    with progress("reindex", None, is_bytes=False) as bar:

        def begin(name: str) -> None:
            bar.name(escape(name))
            bar.advance(1)

        def write(indexed: IndexedSegment) -> None:
            if as_json:
                place = {"topic": indexed.topic, "partition": indexed.partition}
                error = indexed.error and str(indexed.error)
                for path in indexed.changed or ([indexed.path] if error else []):
                    shown = as_given(path, paths)
                    bar.write(to_json({**place, "path": shown, "error": error}))
                return
            if indexed.error is not None:
                bar.write(f"not indexed: {escape(str(indexed.error))}")
            for file in indexed.changed:
                bar.write(f"built {escape(as_given(file, paths))} again")

        found = segmentlog.reindex(
            *paths, index_interval_bytes=index_interval_bytes, on_segment=write, on_log=begin
        )
    n_failed = sum(each.error is not None for each in found)
    n_segments = len(found) - n_failed
    n_changed = sum(len(each.changed) for each in found)
    if as_json:
        counts = {"segments": n_segments, "files": n_changed, "failed": n_failed}
        sys.stdout.write(to_json(counts) + "\n")
    else:
        sys.stdout.write(
            f"{n_segments:,} segments indexed, {n_changed:,} files were missing or wrong\n"
        )
    if n_failed:
        raise typer.Exit(PROBLEM)
