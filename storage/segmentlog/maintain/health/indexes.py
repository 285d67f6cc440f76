"""Indexes of times that a starting broker believes, and that are missing or end in zeros.

A start builds the indexes of a segment again only if it has no index of offsets, or is read after
an unclean stop.  Retention then goes by the time of the file, or by 1970.
"""

import contextlib
from collections.abc import Sequence

from segmentlog.errors import UnsupportedFormatError
from segmentlog.log.segment import Segment
from segmentlog.maintain.health.kinds import FaultKind
from segmentlog.maintain.health.mend import Mend, RecoveryKind, RecoveryStep, Tense
from segmentlog.model import LARGEST_LONG
from segmentlog.store.readable import exists

_WRONG_TIMES = (
    "those of times were missing, or ended in zeros, by which retention would delete the segments"
)


def times_fault(segment: Segment) -> FaultKind | None:
    """What is wrong with the index of times, if the start believes it."""
    if not segment.size or not exists(segment.offset_index_path):
        return None
    if not exists(segment.time_index_path):
        return FaultKind.TIMES_GONE
    return FaultKind.TIMES_ZEROED if segment.has_zeroed_times() else None


def times_mend(
    step: RecoveryStep,
    name: str,
    segments: Sequence[Segment],
    log_start: int,
    interval_bytes: int,
) -> Mend | None:
    """Build the indexes of such segments again, if they are sound.

    `step`: without kind and message.  `name`: of the log's directory.  `segments`: that no planned
    recovery reads.  `interval_bytes`: ``index.interval.bytes``.
    """
    from segmentlog.log.index_builder import rebuild_indexes
    from segmentlog.log.walk import find_good_end  # the compiled kernels load here

    ends = [*(each.base_offset for each in segments[1:]), LARGEST_LONG]
    lost = []
    for each, end in zip(segments, ends, strict=False):
        if end <= log_start or times_fault(each) is None:
            continue
        # `verify` names the damage: where nothing has to be read, it is no failure here.  The
        # other index leads around the damage.
        with contextlib.suppress(UnsupportedFormatError):
            if find_good_end(each, end).error is None:
                lost.append(each)
    if not lost:
        return None

    def build() -> None:
        for each in lost:
            rebuild_indexes(each, interval_bytes)

    words = (
        f"{name}: ",
        Tense("built", "would build"),
        f" the indexes of {len(lost)} segment{'s' if len(lost) > 1 else ''} again: {_WRONG_TIMES}",
    )
    return Mend([(step._replace(kind=RecoveryKind.INDEXES_BUILT), words)], build)
