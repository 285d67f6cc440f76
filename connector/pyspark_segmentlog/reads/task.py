"""The part of a task: a slice that was planned, or a range whose edges it looks up itself."""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark_segmentlog.options.offsets import LATEST
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.offset_ranges import available
from segmentlog.errors import LogChangedError, LogDirectoryError, UnknownTopicOrPartitionError
from segmentlog.model import LogSlice, OffsetRange
from segmentlog.native import check_compiled
from segmentlog.reads import scan_slice

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_segmentlog.reads.planner import LateRange, Part
    from segmentlog.reads import Log

logger = logging.getLogger(__name__)


def parts_of_task(
    parts: "Sequence[Part]", options: ReadOptions
) -> "Iterator[LogSlice | LateRange]":
    """The slices and ranges of a task; those of partitions that came since are found now."""
    for part in parts:
        if isinstance(part, LogSlice):
            yield part
        else:
            yield from part.ranges(options)


def read_part(
    part: "LogSlice | LateRange", columns: Sequence[str], options: ReadOptions
) -> "Iterator[pa.RecordBatch]":
    """Arrow batches of a slice, or of a range whose edges are looked up now."""
    if isinstance(part, LogSlice):
        return read_slice(part, columns, options)
    return read_late_range(part, columns, options)


def read_slice(
    log_slice: LogSlice, columns: Sequence[str], options: ReadOptions
) -> "Iterator[pa.RecordBatch]":
    """Arrow batches of a slice; a part that was deleted since planning may be left out."""
    # Retention may delete records while a query runs. A read that starts at earliest continues at
    # the new log start; with ``failOnDataLoss=false`` any read does, and logs the offsets.
    check_compiled()
    slices = [log_slice]
    while slices:
        log_slice = slices.pop(0)
        try:
            yield from scan_slice(log_slice, columns=columns, policy=options.policy)
        except LogChangedError as change:
            if change.end_offset < 0:
                raise
            slices = _rest(options, log_slice, change) + slices


def _rest(options: ReadOptions, log_slice: LogSlice, change: LogChangedError) -> list[LogSlice]:
    asked = OffsetRange(change.next_offset, log_slice.end_offset)
    log = _log(options, log_slice, asked)
    if log is None:
        return []
    left = _left(options, log, asked, log.log_end_offset)
    if left == asked:  # they are there: the log changes faster than it can be read
        raise change
    name = log_slice.topic_partition
    logger.info("%s: the read continues at offset %d: %s", name, left.start_offset, change)
    return log.slices(*left)


def _left(options: ReadOptions, log: "Log", asked: OffsetRange, end_offset: int) -> OffsetRange:
    """The part of a range that is there; see `available`."""
    return available(
        log.topic_partition,
        asked,
        OffsetRange(log.log_start_offset, end_offset),
        fail_on_data_loss=options.fail_on_data_loss,
        follows_retention=options.follows_retention(log.topic_partition),
    )


def read_late_range(
    late: "LateRange", columns: Sequence[str], options: ReadOptions
) -> "Iterator[pa.RecordBatch]":
    """Arrow batches of a range whose edges are looked up now."""
    asked, policy = OffsetRange(late.start_offset, late.end_offset), options.policy
    log = _log(options, late, asked)
    if log is None:
        return
    end_offset = log.end_offset(
        options.read_up_to,
        policy.isolation_level,
        policy.on_corrupt_batch,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    for log_slice in log.slices(*_left(options, log, asked, end_offset)):
        yield from read_slice(log_slice, columns, options)


def _log(options: ReadOptions, part: "LogSlice | LateRange", asked: OffsetRange) -> "Log | None":
    """The log as it is now; None if it or its topic is gone, and may be left out."""
    try:
        log = options.open_directory().log(*part.topic_partition)
        if part.topic_id:
            log.known_topic_id = part.topic_id
        _ = log.segments  # files of another topic may be listed before the check, not after it
        log.check_topic(asked)
    except (UnknownTopicOrPartitionError, LogDirectoryError, LogChangedError) as error:
        if options.fail_on_data_loss:
            raise
        end = "latest" if asked.end_offset == LATEST else asked.end_offset
        logger.warning(
            "%s: offsets [%d, %s) are skipped, because failOnDataLoss is false: %s",
            part.topic_partition,
            asked.start_offset,
            end,
            error,
        )
        return None
    return log
