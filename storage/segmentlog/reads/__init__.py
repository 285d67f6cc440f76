"""A log directory, its logs, and a range of offsets as Arrow: list, look up, plan, scan.

The names below are the door for a caller whose tasks read in other processes, such as a connector:
it lists and plans, and a `segmentlog.model.LogSlice` travels to a task, which scans it.
"""

from typing import TYPE_CHECKING

from segmentlog.exports import exported

if TYPE_CHECKING:
    from segmentlog.format.records.columns import TextColumns
    from segmentlog.reads.choose import report_missing
    from segmentlog.reads.diskless import report_diskless
    from segmentlog.reads.log import Log, find_offset
    from segmentlog.reads.log_directory import LogDirectory, open_log_dir
    from segmentlog.reads.scan import scan_slice
    from segmentlog.reads.snapshot import without_collector
    from segmentlog.reads.stream_checkpoint import (
        OF_LOG,
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
    from segmentlog.store.readable import exists, has_mark, is_url, keep_for, newest_mark

__all__ = [
    "OF_LOG",
    "Log",
    "LogDirectory",
    "TextColumns",
    "exists",
    "find_offset",
    "has_mark",
    "is_url",
    "keep_for",
    "made_again",
    "newest_mark",
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

__getattr__, __dir__ = exported(
    __name__,
    {
        "format.records.columns": "TextColumns",
        "reads.choose": "report_missing",
        "reads.diskless": "report_diskless",
        "reads.log": "Log find_offset",
        "reads.log_directory": "LogDirectory open_log_dir",
        "reads.scan": "scan_slice",
        "reads.snapshot": "without_collector",
        "reads.stream_checkpoint": (
            "OF_LOG made_again offsets_as_json offsets_as_topics offsets_of_json "
            "offsets_of_topics read_initial read_stream_checkpoint topic_ids_of"
        ),
        "store.paths": "opened_path readable_path tiered_paths",
        "store.readable": "exists has_mark is_url keep_for newest_mark",
    },
)
