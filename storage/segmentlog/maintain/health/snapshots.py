"""The snapshots of the cluster's metadata: what a broker does with a damaged one, and we.

A broker reads the newest snapshot, and no older one in its place.  If an older snapshot, or none,
and the log have all that it has, it can be put aside.
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from segmentlog.errors import CorruptLogError, TruncatedBatchError, UnsupportedFormatError
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.log.swaps import keep_segment
from segmentlog.maintain.health.faults import StartAction
from segmentlog.maintain.health.kinds import Fault, FaultKind
from segmentlog.maintain.health.mend import Mend, RecoveryKind, RecoveryStep, Tense
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.reads.metadata_log import MetadataSnapshot, is_whole, list_metadata_snapshots
from segmentlog.store.durable import sync_directory
from segmentlog.store.readable import open_file, status_of

_Damage = CorruptLogError | UnsupportedFormatError | OSError | str


def snapshot_faults(path: str) -> Iterator[Fault]:
    """The damaged snapshots in the directory of the cluster's metadata, the newest first.

    The fault of the newest snapshot has the mend, if there is one.
    """
    snapshots = list_metadata_snapshots(path)[::-1]
    faults = [snapshot_fault(each.path) for each in snapshots]
    if not any(faults):
        return
    n_damaged = next((i for i, each in enumerate(faults) if each is None), len(faults))
    files = list_segments(path)
    begin = files[0].base_offset if files else 0
    end = find_log_end(Segment(files[-1], is_sealed=False)).offset if files else 0
    # The log must have all that the damaged snapshots had and the older one lacks.
    older = snapshots[n_damaged] if n_damaged < len(snapshots) else MetadataSnapshot(0, "")
    is_enough = older.end_offset >= begin and end >= snapshots[0].end_offset
    is_enough &= not any(  # nothing shows that these are damaged
        isinstance(each, OSError | UnsupportedFormatError) for each in faults[:n_damaged]
    )
    for i, (snapshot, fault) in enumerate(zip(snapshots, faults, strict=True)):
        if fault is None:
            continue
        # The snapshot that formats a directory (Kafka 4.4) may end early: the log goes on.
        is_read = not i and not (
            files and not begin and not snapshot.end_offset and _ends_early(snapshot.path)
        )
        mend, remedy = (
            None,
            (
                f"put the file back from another controller or a backup: the log, from offset "
                f"{begin} to {end}, does not join an older snapshot"
            ),
        )
        if i > n_damaged:
            remedy = "remove the file: a newer snapshot is sound"
        elif is_enough:
            remedy = "segmentlog recover puts it aside: an older snapshot and the log have all "
            remedy += "that it has"
        if not i and is_enough:
            mend = partial(_put_aside, path, snapshots[:n_damaged], older)
        yield FaultKind.SNAPSHOT.at(
            TopicPartition(METADATA_TOPIC, 0),
            snapshot.path,
            f"the snapshot is damaged: {fault_in_words(fault)}; "
            + ("an older snapshot is not read instead" if is_read else "it is not read"),
            remedy=remedy,
            action=StartAction.REFUSE if is_read else StartAction.KEEP,
            offset=snapshot.end_offset,
            mend=mend,
        )


def _put_aside(path: str, damaged: list[MetadataSnapshot], older: MetadataSnapshot) -> Mend:
    def put_aside() -> list[str]:
        kept = [keep_segment(each.path) for each in damaged]
        sync_directory(path)
        return kept

    names = ", ".join(os.path.basename(each.path) for each in damaged)
    same = "the log is whole from its begin"
    if older.path:
        same = f"{os.path.basename(older.path)} and the log have the same records"
    words = (
        f"{os.path.basename(path)}: ",
        Tense("put", "would put"),
        f" {names} aside, which is damaged: {same}",
    )
    step = RecoveryStep(RecoveryKind.SNAPSHOT_PUT_ASIDE, METADATA_TOPIC, 0, path, "")
    return Mend([(step, words)], put_aside)


def snapshot_fault(path: str) -> _Damage | None:
    """The first fault of a snapshot's batches; None if they are sound, and the last is the footer.

    A file that has no footer was not written to its end.  `UnsupportedFormatError` stands for a
    whole batch of a newer format, and `OSError` for a file that cannot be read.
    """
    try:
        end = end_of(path, 0)
        if end.error is not None:
            return end.error if end.is_newer else str(end.error)
        return (
            None
            if is_whole(MetadataSnapshot(0, path))
            else "its last batch, the footer, is missing"
        )
    except OSError as failure:
        return failure


def fault_in_words(fault: _Damage) -> str:
    """What is wrong with a snapshot."""
    return (fault.strerror if isinstance(fault, OSError) else None) or str(fault)


def _ends_early(path: str) -> bool:
    """Whether a snapshot has whole batches, and perhaps a part of one at its end."""
    error = end_of(path, 0).error
    if error is None or not error.position:
        return error is None
    return isinstance(error, TruncatedBatchError)


class End(NamedTuple):
    """Offset and leader epoch after the last good batch of a file, and the damage there."""

    offset: int
    epoch: int
    error: CorruptLogError | UnsupportedFormatError | None
    is_newer: bool = False  # whether the damage is a whole batch of a newer format


def end_of(path: str, base_offset: int) -> End:
    """The end of a file of the metadata, which is read to its first bad batch."""
    from segmentlog.format.kernels import layout
    from segmentlog.log.walk import Verdict, walk  # the compiled kernels load here

    end = End(base_offset, -1, None)
    size = status_of(path, follow=True).size
    with open_file(path) as file:
        for stretch in walk(path, file, 0, size, base_offset, goes_on=False):
            if (batches := stretch.batches) is None:
                is_newer = stretch.verdict is Verdict.NEWER
                return end._replace(error=stretch.error, is_newer=is_newer)
            at = int(batches.headers[-1, layout.POSITION]) + layout.LEADER_EPOCH_AT
            epoch = int.from_bytes(bytes(batches.buf[at : at + 4]), "big", signed=True)
            end = End(stretch.next_offset, epoch, None)
    return end
