"""``segmentlog recover`` and ``reindex``: a line for each step, or for each index file."""

import os
import sys
from collections import Counter
from collections.abc import Sequence

import segmentlog
from segmentlog.disk.paths import local_path
from segmentlog.disk.readable import is_directory
from segmentlog.layout.partitions import list_partitions
from segmentlog.recovery.reindex import IndexedSegment
from segmentlog.recovery.steps import RecoveryKind, RecoveryStep
from segmentlog.tools.progress import progress
from segmentlog.tools.text import as_given, counted, escape, json_fields, to_json

__all__ = ["recover_directory", "reindex_paths"]

_NOTHING = """\
nothing to do: the directory was cleanly stopped, and no commit is unfinished
only the ends of the logs were checked; segmentlog verify reads all bytes of the logs
"""


def recover_directory(
    path: str, interval_bytes: int, *, dry_run: bool, as_json: bool
) -> list[RecoveryStep]:
    """Recover a log directory, and write each step.

    Parameters
    ----------
    path : the log directory.
    interval_bytes : bytes of log from index entry to index entry.
    dry_run : whether nothing is changed, and the lines only name what would be done.
    as_json : whether each step is an object on a line, and nothing else is written.
    """
    directory = local_path(path)
    n_logs = len(list_partitions(directory)) if is_directory(directory) else 0
    with progress("recover", n_logs, is_bytes=False) as bar:

        def begin(name: str) -> None:
            bar.name(escape(name))
            bar.advance(1)

        def write(step: RecoveryStep) -> None:
            bar.write(to_json(json_fields(step)) if as_json else escape(step.message))

        steps = segmentlog.recover(
            path, index_interval_bytes=interval_bytes, dry_run=dry_run, on_step=write,
            on_log=begin,
        )  # fmt: skip
    if as_json:
        kinds = Counter(step.kind for step in steps)
        counts = {
            "logsRecovered": kinds[RecoveryKind.LOG_RECOVERED],
            "logsCut": kinds[RecoveryKind.LOG_CUT],
            "logsFailed": kinds[RecoveryKind.LOG_FAILED],
        }
        sys.stdout.write(to_json(counts) + "\n")
        return steps
    if not steps:
        sys.stdout.write(_NOTHING)
    if cut := [os.path.basename(step.path) for step in steps if step.has_lost_batches]:
        kept = "would keep" if dry_run else "keep"
        sys.stdout.write(
            f"{counted(logs=len(cut))} with whole batches after a damaged one, so this is not a "
            f"torn tail: {escape(', '.join(cut))}\nanother replica or a backup may have the "
            f"records; .broken files {kept} the bytes that are cut off\n"
        )
    return steps


def reindex_paths(paths: Sequence[str], interval_bytes: int, *, as_json: bool = False) -> bool:
    """Build index files again and write which changed; return whether every segment was readable.

    Parameters
    ----------
    paths : log directories, partition directories or ``.log`` files.
    interval_bytes : bytes of log from index entry to index entry.
    as_json : whether each file or damaged segment is an object on a line.
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
            *paths, index_interval_bytes=interval_bytes, on_segment=write, on_log=begin
        )
    n_segments = sum(each.error is None for each in found)
    n_changed = sum(len(each.changed) for each in found)
    if as_json:
        n_failed = len(found) - n_segments
        counts = {"segments": n_segments, "files": n_changed, "failed": n_failed}
        sys.stdout.write(to_json(counts) + "\n")
        return not n_failed
    sys.stdout.write(
        f"{n_segments:,} segments indexed, {n_changed:,} files were missing or wrong\n"
    )
    return n_segments == len(found)
