"""Segments below the log start on their way out: renamed as a broker does it (``….deleted``).

A starting broker removes files with such names.  No reader takes them for part of the log, but a
reader that has planned to read one finds it under its new name.
"""

from segmentlog.disk.aside import set_aside
from segmentlog.disk.durable import sync_directory
from segmentlog.disk.readable import list_names
from segmentlog.names import FileState, parse_segment_file
from segmentlog.segments.leader_epochs import EpochStarts
from segmentlog.segments.listing import list_segments

__all__ = ["put_aside"]


def put_aside(path: str, log_start: int) -> None:
    """Rename the files of segments that lie wholly below the log start, and cut leader epochs.

    The files of one segment are renamed together, and the segments from the oldest one on: a
    reader of the old log start that lists the segments meanwhile notices that the first one is
    gone.  Producer snapshots below the first segment that stays go as well.  All of it can be
    repeated.

    Parameters
    ----------
    path : of the partition's directory.
    log_start : the log start, which is on the disk as such.
    """
    kept = max(
        (each.base_offset for each in list_segments(path) if each.base_offset <= log_start),
        default=0,
    )
    found = {name: parse_segment_file(name) for name in list_names(path)}
    live = [(each.offset, name) for name, each in found.items()
            if each and each.state is FileState.LIVE and each.offset < kept]  # fmt: skip
    for _, name in sorted(live):
        set_aside(path, name)
    if live:
        sync_directory(path)
    epochs = EpochStarts(path)
    epochs.truncate_from_start(log_start)
    epochs.write()
