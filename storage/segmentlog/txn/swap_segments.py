"""Put compacted or split segments in the place of old ones (``LocalLog.replaceSegments``).

Each step is on the disk before the next begins, and a crash between two steps is met by any
starting broker, by `segmentlog recover`, and by the next compaction or job
(`segmentlog.log.swaps`).

1. The new segments stand there as ``.cleaned`` files, synced.  A crash up to here, or in step 2,
   undoes the compaction.
2. They are renamed to ``.swap``, the last one first.  Once no ``.cleaned`` file is left, readers
   and brokers take them for the log: they replace all segments in the range of their offsets.
3. The old segments are renamed to ``.deleted``, the oldest first.  A reader that has planned to
   read one finds it under its new name.
4. The new segments get their names: logs first, and then indexes, which a recovery would take for
   those of an old segment.
5. The ``.deleted`` files are removed ``file.delete.delay.ms`` later: by the next compaction, the
   next retention, or a broker when it starts.
"""

import os
from collections.abc import Set

from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import LOG_AND_ALL_INDEXES, FileKind, FileState, parse_segment_file
from segmentlog.log.swaps import take_places
from segmentlog.store.aside import put_file_aside
from segmentlog.store.durable import rename, sync_directory
from segmentlog.store.readable import list_names

__all__ = ["swap_in"]

_LOG_CLEANED = f".{FileKind.LOG}.{FileState.CLEANED}"


def swap_in(path: str, old_bases: Set[int], new_bases: Set[int]) -> None:
    """Replace segments by those that stand beside them as ``.cleaned`` files, synced.

    Parameters
    ----------
    path : of the partition's directory; the caller holds the lock of its log directory.
    old_bases : base offsets of the segments to replace.
    new_bases : base offsets of the new ones.  A producer snapshot at another base goes.

    Raises
    ------
    LogDirectoryError
        If a ``.cleaned`` file is missing, or if files of another compaction stand there: nothing
        is replaced.
    SyncFailedError, OSError
        If the disk fails; what is done then is finished or undone by a recovery.
    """
    found = {name: parse_segment_file(name) for name in list_names(path)}
    cleaned = [
        (-each.offset, LOG_AND_ALL_INDEXES.index(each.kind), name)
        for name, each in found.items()
        if each and each.state is FileState.CLEANED and each.kind in LOG_AND_ALL_INDEXES
    ]
    old = [
        (each.offset, name)
        for name, each in found.items()
        if each
        and each.state is FileState.LIVE
        and each.offset in old_bases
        and (each.kind in LOG_AND_ALL_INDEXES or each.offset not in new_bases)
    ]
    bases = {-minus_base for minus_base, _, name in cleaned if _LOG_CLEANED in name}
    swaps = {name for name, each in found.items() if each and each.state is FileState.SWAP}
    if wrong := swaps | {f"{each:020d}{_LOG_CLEANED}" for each in bases ^ new_bases}:
        reason = (
            f"either {min(wrong)} is missing, or the file comes from another compaction, which "
            "is running or was interrupted; nothing was replaced: recover or compact again"
        )
        raise LogDirectoryError(path, reason)
    sync_directory(path)
    names = [name.removesuffix(f".{FileState.CLEANED}") for _, _, name in sorted(cleaned)]
    # A recovery that finds a .cleaned file undoes all new segments that are not older.  So the
    # oldest segment's files are renamed last: they decide that the new segments count.
    oldest = f"{min(new_bases):020d}."
    for is_oldest in (False, True):
        for name in names:
            if name.startswith(oldest) is is_oldest:
                _rename(path, f"{name}.{FileState.CLEANED}", f"{name}.{FileState.SWAP}")
        sync_directory(path)
    for _, name in sorted(old):
        put_file_aside(path, name)
    sync_directory(path)
    take_places(path, [f"{name}.{FileState.SWAP}" for name in names])


def _rename(path: str, before: str, after: str) -> None:
    rename(os.path.join(path, before), os.path.join(path, after))
