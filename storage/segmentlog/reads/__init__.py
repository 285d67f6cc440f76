"""A log directory, its logs, and a range of offsets as Arrow: list, look up, plan, scan.

The names below are the door for a caller whose tasks read in other processes, such as a connector:
it lists and plans, and a `segmentlog.model.LogSlice` travels to a task, which scans it.
"""

from typing import TYPE_CHECKING

from segmentlog.reads.choose import report_missing
from segmentlog.reads.diskless import report_diskless
from segmentlog.reads.log import Log, find_offset
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.snapshot import without_collector
from segmentlog.reads.stream_checkpoint import (
    made_again,
    offsets_as_json,
    offsets_as_topics,
    offsets_of_json,
    offsets_of_topics,
    read_initial,
    read_stream_checkpoint,
    topic_ids_of,
)
from segmentlog.store.paths import opened_path, readable_path, tiered_paths
from segmentlog.store.readable import exists, is_url, keep_for

if TYPE_CHECKING:
    from segmentlog.format.records.columns import TextColumns
    from segmentlog.reads.scan import scan_slice

__all__ = [
    "Log",
    "LogDirectory",
    "TextColumns",
    "exists",
    "find_offset",
    "is_url",
    "keep_for",
    "made_again",
    "offsets_as_json",
    "offsets_as_topics",
    "offsets_of_json",
    "offsets_of_topics",
    "open_log_dir",
    "opened_path",
    "read_initial",
    "read_stream_checkpoint",
    "readable_path",
    "report_diskless",
    "report_missing",
    "scan_slice",
    "tiered_paths",
    "topic_ids_of",
    "without_collector",
]


def __getattr__(name: str) -> object:
    """Names that load the kernels and Arrow, when first asked for."""
    if name == "scan_slice":
        from segmentlog.reads.scan import scan_slice

        return scan_slice
    if name == "TextColumns":
        from segmentlog.format.records.columns import TextColumns

        return TextColumns
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
