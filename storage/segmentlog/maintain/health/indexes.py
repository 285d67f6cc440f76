"""Indexes of times that a starting broker believes, and those of transactions that end a start.

A start builds the indexes of a segment again only if it has no index of offsets, or is read after
an unclean stop.  If its index of times is missing or ends in zeros, retention then goes by the
time of the file, or by 1970.  An index of transactions of a version that the broker does not know
ends the start.
"""

import contextlib
import struct
from collections.abc import Sequence

from segmentlog.errors import CorruptIndexError, UnsupportedFormatError
from segmentlog.log.indexes import read_transaction_index
from segmentlog.log.segment import Segment
from segmentlog.maintain.health.kinds import FaultKind
from segmentlog.maintain.health.mend import Mend, RecoveryKind, RecoveryStep, Tense
from segmentlog.model import LARGEST_LONG
from segmentlog.store.readable import exists, read_whole

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


def transactions_fault(segment: Segment) -> str:
    """Why a start does not take the index of transactions; empty if it does."""
    path = segment.transaction_index_path
    try:
        for _ in read_transaction_index(path):
            pass
    except CorruptIndexError as error:
        if "version" in error.reason and _first_version(path) > 0:
            return error.reason
    return ""


def _first_version(path: str) -> int:
    """The first version above 0 in a transaction index, or 0."""
    data = read_whole(path, lambda reason: CorruptIndexError(path, reason))
    versions = (struct.unpack_from(">h", data, at)[0] for at in range(0, len(data) - 33, 34))
    return next((each for each in versions if each > 0), 0)


def transactions_mend(
    step: RecoveryStep, name: str, segments: Sequence[Segment], n_trusted: int, interval_bytes: int
) -> Mend | None:
    """Build the indexes of such segments again, if they are sound.

    `segments`: of the log, of which no planned recovery reads the first `n_trusted`.
    """
    from segmentlog.log.index_builder import rebuild_indexes
    from segmentlog.log.producers import ProducerStates  # the compiled kernels load here

    wrong = [each for each in segments[:n_trusted] if transactions_fault(each) and _is_sound(each)]
    if not wrong:
        return None

    def build() -> None:
        for each in wrong:
            producers = ProducerStates.load(step.path, each.base_offset)
            producers.follow_to(segments, each.base_offset)
            producers.advance(each.base_offset)
            rebuild_indexes(each, interval_bytes, producers)

    again = f"{len(wrong)} segment{'s' if len(wrong) > 1 else ''} again"
    why = "that of transactions had another version"
    words = (f"{name}: ", Tense("built", "would build"), f" the indexes of {again}: {why}")
    return Mend([(step._replace(kind=RecoveryKind.INDEXES_BUILT), words)], build)


def _is_sound(segment: Segment, committed_to: int = -1) -> bool:
    """Whether indexes can be built: the other ones lead around damage, which `verify` names."""
    from segmentlog.log.walk import find_good_end  # the compiled kernels load here

    # Where nothing has to be read, a batch of a newer format is no failure.
    with contextlib.suppress(UnsupportedFormatError):
        return find_good_end(segment, committed_to).error is None
    return False


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
    from segmentlog.log.index_builder import rebuild_indexes  # the compiled kernels load here

    ends = [*(each.base_offset for each in segments[1:]), LARGEST_LONG]
    lost = []
    for each, end in zip(segments, ends, strict=False):
        if end <= log_start or times_fault(each) is None:
            continue
        if _is_sound(each, end):
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
