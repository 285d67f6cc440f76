"""All partitions of a topic in windows of time, which can be read side by side.

A window begins in each partition at the first record of its time or later.  So all records before
it are older, and the windows, each merged by time, are together the timeline of all partitions
(`segmentlog.arrow_dataset.log_scanner`).
"""

from segmentlog.arrow_dataset.bounds import DatasetBounds, PartitionBounds
from segmentlog.model import IsolationLevel, OffsetRange, ReadUpTo

_MOST_LOOKUPS = 4096  #: of a time in a partition


def time_windows(snapshot: DatasetBounds, n_bytes: int) -> list[DatasetBounds]:
    """The partitions, cut at the same times, into windows of about `n_bytes` of log.

    Raises `CorruptLogError`, `UnsupportedFormatError` or `LogChangedError` if it cannot be read.
    """
    whole = [each.log.slices(*each.offsets) for each in snapshot.partitions]
    total = sum(piece.n_bytes for pieces in whole for piece in pieces)
    n_partitions = max(len(snapshot.partitions), 1)
    n_windows = min(total // n_bytes, _MOST_LOOKUPS // n_partitions)
    if n_windows < 2:
        return [snapshot]
    times = sorted(
        (newest, piece.n_bytes)
        for each, pieces in zip(snapshot.partitions, whole, strict=True)
        # In each partition as many pieces: all end at other times, although they grow alike.
        for piece in each.log.slices(
            *each.offsets, max(sum(one.n_bytes for one in pieces) // n_windows // 2, 1)
        )
        if (newest := each.log.newest_timestamp(piece)) is not None
    )
    bounds, so_far = list[int](), 0
    for time, length in times:
        so_far += length
        if so_far * n_windows >= total * (len(bounds) + 1):
            bounds.append(time)
    bounds = sorted({*bounds[:-1]})
    cuts = [_cuts(each, bounds, snapshot) for each in snapshot.partitions]
    return [
        snapshot._replace(
            partitions=tuple(
                PartitionBounds(each.log, ranges[number])
                for each, ranges in zip(snapshot.partitions, cuts, strict=True)
                if ranges[number].start_offset < ranges[number].end_offset
            )
        )
        for number in range(len(bounds) + 1)
    ]


def _cuts(
    partition: PartitionBounds, times: list[int], snapshot: DatasetBounds
) -> list[OffsetRange]:
    """The offsets of a partition in each window."""
    start, end = partition.offsets
    ranges = []
    for time in times:
        found = partition.log.offset_for_timestamp(
            time, ReadUpTo.LOG_END, IsolationLevel.READ_UNCOMMITTED,
            snapshot.policy.on_corrupt_batch,
        )  # fmt: skip
        bound = end if found is None else min(max(found.offset, start), end)
        ranges.append(OffsetRange(start, bound))
        start = bound
    return [*ranges, OffsetRange(start, end)]
