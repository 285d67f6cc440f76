"""``segmentlog reindex``: a line for each index file that is built again."""

import sys
from collections.abc import Sequence

import segmentlog
from segmentlog.recovery.reindex import IndexedSegment
from segmentlog.tools.paths import as_given
from segmentlog.tools.progress import progress
from segmentlog.tools.text import escape

__all__ = ["reindex_paths"]


def reindex_paths(paths: Sequence[str], interval_bytes: int) -> bool:
    """Build index files again and write which changed; return whether every segment was readable.

    Parameters
    ----------
    paths : log directories, partition directories or ``.log`` files.
    interval_bytes : bytes of log from index entry to index entry.
    """
    with progress("reindex", None, is_bytes=False) as bar:

        def begin(name: str) -> None:
            bar.name(escape(name))
            bar.advance(1)

        def write(indexed: IndexedSegment) -> None:
            if indexed.error is not None:
                bar.write(f"not indexed: {escape(str(indexed.error))}")
            for file in indexed.changed:
                bar.write(f"built {escape(as_given(file, paths))} again")

        found = segmentlog.reindex(
            *paths, index_interval_bytes=interval_bytes, on_segment=write, on_log=begin
        )
    n_segments = sum(each.error is None for each in found)
    n_changed = sum(len(each.changed) for each in found)
    sys.stdout.write(
        f"{n_segments:,} segments indexed, {n_changed:,} files were not there or not right\n"
    )
    return n_segments == len(found)
