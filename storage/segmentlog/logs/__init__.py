"""A log directory and its logs, to read.

The names below are the door for a caller that lists and plans by itself, such as a connector.
"""

from segmentlog.disk.paths import readable_path
from segmentlog.disk.readable import exists, keep_for
from segmentlog.disk.remote.location import is_url
from segmentlog.layout.stream_checkpoint import (
    made_again,
    offsets_as_json,
    offsets_as_topics,
    offsets_of_json,
    offsets_of_topics,
    read_initial,
    read_stream_checkpoint,
    topic_ids_of,
)
from segmentlog.logs.log import Log, find_offset
from segmentlog.logs.log_directory import (
    LogDirectory,
    open_log_dir,
    report_diskless,
    report_missing,
)
from segmentlog.tiered.location import tiered_paths

__all__ = [
    "Log",
    "LogDirectory",
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
    "read_initial",
    "read_stream_checkpoint",
    "readable_path",
    "report_diskless",
    "report_missing",
    "tiered_paths",
    "topic_ids_of",
]
