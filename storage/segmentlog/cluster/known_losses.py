"""What a log promises and does not have, as checkpoints, indexes and the metadata show it."""

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import cast

from segmentlog.errors import CorruptCheckpointError, SegmentLogError
from segmentlog.log.listing import list_segments
from segmentlog.model import INTERNAL_TOPICS
from segmentlog.reads.cluster_image import BROKER, RECORDS, Image
from segmentlog.reads.diskless import diskless_partitions, elsewhere
from segmentlog.reads.listed import LostSegments
from segmentlog.reads.log import Log, log_start_beyond
from segmentlog.reads.metadata_log import metadata_path, read_metadata
from segmentlog.store.readable import is_file, is_url, list_names


def known_losses(log: Log) -> tuple[LostSegments, ...]:
    """Offsets before a segment whose segments are gone, by its indexes or the metadata.

    A gap between two segments of a log that was never compacted is a loss.  Bytes that a recovery
    has put aside are not.
    """
    found = {each.end_offset: each for each in log.lost_segments}
    if is_url(log.path) or len(log.segments) < 2 or log.cleaned_to >= 0:
        return tuple(found.values())
    path = metadata_path(os.path.dirname(log.path))
    if path is None:
        return tuple(found.values())
    newest = max(list_segments(path), default=None)
    try:
        topics = _never_compacted(path, newest)
    except (SegmentLogError, OSError):  # the findings about the metadata name its damage
        topics = frozenset()
    if log.topic_partition.topic not in topics:
        return tuple(found.values())
    aside = [
        int(parts[1])
        for name in list_names(log.path)
        if name.endswith(".broken") and len(parts := name.split(".")) > 2 and parts[1].isdecimal()
    ]
    why = "the metadata of the cluster shows that the topic was never compacted"
    for gap in log.segment_gaps:
        if not any(gap.start_offset <= each < gap.end_offset for each in aside):
            found.setdefault(gap.end_offset, LostSegments(*gap, why))
    return tuple(found[each] for each in sorted(found))


@lru_cache(maxsize=8)
def _never_compacted(path: str, _: object) -> frozenset[str]:
    """Topics whose ``cleanup.policy`` was delete all along, as far as the metadata goes back.

    The second argument changes with the metadata.
    """
    image, compacted, is_default = Image(), set[str](), False
    for record in read_metadata(path, RECORDS["configs"]):
        for change in image.apply(record):
            if change.table != "configs" or change.row is None:
                continue
            kind, resource, name = cast("tuple[int, str, str]", change.key)
            if name.endswith("cleanup.policy") and "compact" in change.row["value"]:
                compacted.add(resource)
                is_default |= kind == BROKER
    every = {row["topic"] for row in image.tables["topics"].values()}
    return frozenset() if is_default else frozenset(every - compacted - INTERNAL_TOPICS)


def missing_offsets(log: Log, losses: Iterable[LostSegments] | None = None) -> Iterator[str]:
    """The offsets that a log promises and does not have, and a way on, in words.

    `losses`: its `known_losses`, if the caller has them.
    """
    remedy = "put the files back from another replica or a backup; segmentlog verify shows more"
    found = diskless_partitions([os.path.dirname(log.path)])
    if log.topic_partition in found:
        yield elsewhere(found[log.topic_partition], log.log_end_offset)
    for lost in known_losses(log) if losses is None else losses:
        yield f"{lost}; {remedy}"
    if reason := log_start_beyond(log):
        yield reason
    if lost_end := log.lost_offsets:
        yield f"{lost_end}; {remedy}"
        return
    try:
        promised = log.high_watermark_checkpoint
    except CorruptCheckpointError as error:
        yield f"whether records are missing at the end is not known: {error}"
        return
    end = log.log_end_offset
    if promised is not None and promised > end and not is_file(log.path):
        yield (
            f"offsets [{end}, {promised}) are missing: the high watermark is {promised}, and the "
            f"log ends at {end}; a crash has lost them, the end is damaged, or the checkpoint is "
            "newer than this copy; segmentlog verify shows more"
        )
