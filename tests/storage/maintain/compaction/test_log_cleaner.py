"""The cases of Kafka's LogCleanerTest and LogCleanerManagerTest that have a meaning here.

| case | test |
|---|---|
| a later record of a key replaces the earlier ones; tombstones; one commit marker; sequences; \
legacy sets; damage | `test_compact` |
| idempotent batches keep their last offsets and sequences, over reloads and further passes | \
`test_idempotent_batches_keep_their_ends` |
| a map of four keys, with aborts: several passes | `test_passes_of_four_keys_with_aborts` |
| committed and aborted records of one pass | `test_committed_records_win_over_aborted_ones` |
| a transaction that is open across segments | `test_an_open_transaction_bounds_a_pass` |
| a transaction in several segments keeps its marker | `test_a_marker_after_other_segments` |
| batches that are removed whole do not stop a pass | `test_unreadable_middle_does_not_stall` |
| a marker without records | `test_a_lone_marker_becomes_an_empty_batch` |
| an abort marker, its empty batch and its index entry are removed one by one | \
`test_an_abort_marker_goes_when_its_producer_writes_again` |
| a producer that begins again at sequence 0 | `test_a_new_epoch_lets_the_old_batch_go` |
| keys that equal the keys of markers | `test_keys_like_markers_remove_no_marker` |
| messages larger than the buffers | `test_a_record_larger_than_the_window` |
| a map of one key | `test_a_map_of_one_key_takes_many_passes` |
| the tail that may not be cleaned | `test_only_the_head_is_cleaned` |
| all keys deleted | `test_compact` (the last batch of a pass) |
| grouping | `test_segment_groups` |
| offsets that are missing | `test_the_pass_ends_after_a_gap` |
| crashes; the offset overflow of a segment that only old brokers could write | `tests/crash`, \
`test_swaps`; none |
| KAFKA-4298: wrappers whose records have another magic | none: reading refuses them |
| which log is the dirtiest, paused and concurrent partitions, metrics, rates | none: one process |
| cleanable offsets, minimum and maximum lag, checkpoints outside of the log | `test_cleanable` |
| policies | `test_policies` |
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from compaction.batches import (
    ABORT,
    COMMIT,
    TRANSACTIONAL,
    Batch,
    encode,
    lay_out,
    marker,
    records_of,
    rest_of,
)

import segmentlog
from segmentlog.format.names import CLEANER_OFFSET_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets
from segmentlog.log.indexes import read_transaction_index
from segmentlog.log.producer_snapshot import ProducerSnapshot, snapshot_path, write_snapshot
from segmentlog.model import TopicPartition

NOW_MS = 10**12
NEVER_MS = 2**62


class Story:
    """A log that gets segments, and is cleaned in between.

    Parameters
    ----------
    directory : the log directory.
    segments : the first segments; an empty active segment follows the last of them.
    map_slots : number of slots of the offset map.
    """

    def __init__(self, directory: Path, *segments: list[Batch], map_slots: int = 1000) -> None:
        self.directory, self.map_bytes = directory, map_slots * 24
        self.partition = lay_out(directory, {0: []})
        self.now_ms = NOW_MS
        for each in segments:
            self.add(*each)

    def add(self, *batches: Batch) -> None:
        """Add one segment, which is closed at once."""
        data = b"".join(map(encode, batches))
        (self.partition / f"{batches[0].base_offset:020d}.log").write_bytes(data)
        (self.partition / f"{batches[-1].last_offset + 1:020d}.log").write_bytes(b"")

    def clean(
        self, later_ms: int = 0, settings: Mapping[str, str] | None = None
    ) -> segmentlog.CompactedPartition | None:
        """Run one compaction, `later_ms` after the previous one."""
        self.now_ms += later_ms
        given = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": "1000",
            **(settings or {}),
        }
        done = segmentlog.compact(
            self.directory,
            settings=given,
            now_ms=self.now_ms,
            dedupe_buffer_bytes=self.map_bytes,
            producer_expiration_ms=NEVER_MS,
        )
        return done[0] if done else None

    @property
    def batches(self) -> list[Batch]:
        return [batch for batches in rest_of(self.partition).values() for batch in batches]

    @property
    def records(self) -> list[int]:
        """Offsets of all records, those of markers included."""
        return [record.offset for batch in self.batches for record in batch.records]

    @property
    def ends(self) -> list[int]:
        """Last offsets of all batches."""
        return [batch.last_offset for batch in self.batches]

    @property
    def aborted(self) -> list[tuple[int, ...]]:
        """Producers, first and last offsets in the transaction indexes."""
        return [
            (entry.producer_id, entry.first_offset, entry.last_offset)
            for path in sorted(self.partition.glob("*.txnindex"))
            for entry in read_transaction_index(str(path))
        ]


def data(
    offset: int, *keys: int, by: int | None = None, seq: int = 0, epoch: int = 0, txn: bool = False
) -> Batch:
    """A batch whose values are its offsets."""
    pairs = [(b"%d" % key, b"%d" % (offset + i)) for i, key in enumerate(keys)]
    batch = records_of(offset, *pairs)
    if by is None:
        return batch
    attributes = TRANSACTIONAL if txn else 0
    return batch._replace(attributes=attributes, producer_id=by, epoch=epoch, sequence=seq)


def test_idempotent_batches_keep_their_ends(tmp_path: Path) -> None:
    """Batches keep their last offsets and sequences, even if a later pass empties them."""
    story = Story(
        tmp_path,
        [data(0, 0, 1, 2, by=1), data(3, 0, 1, 3, by=3), data(6, 4, 5, by=2)],
        [data(8, 1, by=3, seq=3)],
    )
    story.clean()
    assert [(2, 1), (5, 3), (7, 2), (8, 3)] == [
        (each.last_offset, each.producer_id) for each in story.batches
    ]
    story.add(*(data(9 + i, key) for i, key in enumerate([0, 1, 2, 3, 4, 5])))
    story.clean()
    known = [
        (each.base_offset, each.last_offset, each.producer_id, each.sequence)
        for each in story.batches
        if each.producer_id > 0
    ]

    assert [(0, 2, 1, 0), (6, 7, 2, 0), (8, 8, 3, 3)] == known
    assert [9, 10, 11, 12, 13, 14] == story.records


def test_passes_of_four_keys_with_aborts(tmp_path: Path) -> None:
    """Aborted records are removed at once. Their markers are removed last."""
    story = Story(
        tmp_path,
        [
            data(0, 0),
            data(1, 1),
            data(2, 100, by=1, txn=True),
            data(3, 2),
            data(4, 101, by=2, txn=True),
            data(5, 3),
            marker(6, ABORT, 1),
            data(7, 0),
            marker(8, ABORT, 2),
            data(9, 1),
            data(10, 2),
            data(11, 4),
            data(12, 3),
        ],
        map_slots=5,
    )
    done = story.clean()

    assert done is not None
    assert done.n_passes > 1
    assert 13 == done.clean_to
    assert [6, 7, 8, 9, 10, 11, 12] == story.records
    assert [2, 4] == [each.base_offset for each in story.batches if not each.records]
    assert [(1, 2, 6), (2, 4, 8)] == story.aborted
    story.add(data(13, 5, by=1, seq=1), data(14, 6, by=2, seq=1))
    story.clean()
    story.add(data(15, 7))
    story.clean(later_ms=1000)
    story.add(data(16, 7))
    story.clean(later_ms=1000)
    assert not {6, 8} & {*story.records}
    assert [] == story.aborted


def test_committed_records_win_over_aborted_ones(tmp_path: Path) -> None:
    """The entry of the transaction index stays while its producer has a batch."""
    story = Story(
        tmp_path,
        [
            data(0, 1, by=1, txn=True),
            data(1, 2, by=2, txn=True),
            data(2, 2, 3, by=1, seq=1, txn=True),
            marker(4, ABORT, 1),
            marker(5, COMMIT, 2),
            data(6, 2, by=2, seq=1, txn=True),
            marker(7, COMMIT, 2),
        ],
    )
    story.clean()

    assert [4, 5, 6, 7] == story.records
    assert [(1, 0, 4)] == story.aborted


def test_an_open_transaction_bounds_a_pass(tmp_path: Path) -> None:
    """A pass stops at the first segment of an open transaction.

    Once it has ended, all segments are cleaned.
    """
    story = Story(
        tmp_path,
        [data(0, 1), data(1, 1)],
        [data(2, 2, by=1, txn=True), data(3, 2, by=2, txn=True)],
        [data(4, 2, by=1, seq=1, txn=True), data(5, 1)],
    )
    story.clean()
    assert [1, 2, 3, 4, 5] == story.records
    story.add(marker(6, ABORT, 1), marker(7, COMMIT, 2))
    story.clean()

    assert [3, 5, 6, 7] == story.records
    assert [3, 4, 5, 6, 7] == story.ends


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_a_marker_after_other_segments(tmp_path: Path, kind: int) -> None:
    """The marker stays as long as its record, or as long as the empty batch of its producer."""
    story = Story(
        tmp_path, [data(0, 1, by=1, txn=True)], [data(1, 2)], [marker(2, kind, 1)], [data(3, 2)]
    )
    for _ in range(4):
        story.clean(later_ms=2000)
        story.add(data(story.ends[-1] + 1, 3))
    first = [0] if kind == COMMIT else []

    assert [*first, 2, 3] == story.records[: len(first) + 2]
    assert [0, 2, 3] == story.ends[:3]


def test_unreadable_middle_does_not_stall(tmp_path: Path) -> None:
    """Whole segments consist of aborted batches."""
    aborted = [[data(2 * i, 1, 2, by=1, seq=2 * i, txn=True)] for i in range(5)]
    story = Story(tmp_path, *aborted, [marker(10, ABORT, 1)], [data(11, 1)])
    done = story.clean()

    assert done is not None
    assert 12 == done.clean_to
    assert [10, 11] == story.records
    assert [9, 10, 11] == story.ends


def test_a_lone_marker_becomes_an_empty_batch(tmp_path: Path) -> None:
    """A marker without records keeps its producer's epoch.

    It can be cleaned again without an error.

    A replay of the log learns nothing from the empty batch, but a broker's snapshots know the
    producer.
    """
    story = Story(tmp_path, [marker(0, COMMIT, 1, epoch=3)], [data(1, 1)])
    known = ProducerSnapshot(1, 3, -1, -1, 0, 1000, 0, -1)
    for _ in range(4):
        active = max(int(path.stem) for path in story.partition.glob("*.log"))
        write_snapshot(snapshot_path(str(story.partition), active), [known])
        story.clean(later_ms=1000)
        story.add(data(active, 2))
    (first, *_) = story.batches

    assert (0, 3, 0) == (first.last_offset, first.epoch, len(first.records))
    assert first.is_control
    assert first.horizon_ms is None


def test_an_abort_marker_goes_when_its_producer_writes_again(tmp_path: Path) -> None:
    """The empty batch is removed first.

    Then the marker gets a horizon, and is removed after it.
    """
    story = Story(
        tmp_path,
        [data(0, 1, by=1, txn=True), data(1, 2, 3, by=1, seq=1, txn=True), marker(3, ABORT, 1)],
    )
    story.clean()
    assert ([2, 3], [3], [(1, 0, 3)]) == (story.ends, story.records, story.aborted)
    story.add(data(4, 4, by=1, seq=3, txn=True), marker(5, COMMIT, 1))
    story.clean()
    assert ([3, 4, 5], [3, 4, 5]) == (story.ends, story.records)
    story.add(data(6, 5))
    story.clean()
    assert NOW_MS + 1000 == story.batches[0].horizon_ms
    story.add(data(7, 5))
    story.clean(later_ms=999)
    assert 3 in story.records
    story.add(data(8, 5))
    story.clean(later_ms=1)

    assert ([4, 5, 8], []) == (story.records, story.aborted)


def test_a_new_epoch_lets_the_old_batch_go(tmp_path: Path) -> None:
    """The producer of a group coordinator begins again with a new epoch in this way."""
    story = Story(tmp_path, [data(0, 1, by=1, seq=5, epoch=0)], [data(1, 1, by=1, epoch=1)])
    story.clean()
    story.add(data(2, 1, by=1, epoch=2))
    story.clean()

    assert [(2, 2)] == [(each.last_offset, each.epoch) for each in story.batches]


def test_keys_like_markers_remove_no_marker(tmp_path: Path) -> None:
    """Control records are not put into the offset map."""
    like = [bytes([0, 0, 0, kind]) for kind in (ABORT, COMMIT)]
    story = Story(
        tmp_path,
        [
            data(0, 1, by=1, txn=True),
            marker(1, COMMIT, 1),
            data(2, 2, by=2, txn=True),
            marker(3, ABORT, 2),
        ],
        [records_of(4, *((key, b"v") for key in like))],
    )
    story.clean()

    assert [0, 1, 3, 4, 5] == story.records


def test_a_record_larger_than_the_window(tmp_path: Path) -> None:
    """A record of 5 MB lies among small ones."""
    large = records_of(1, (b"large", bytes(5 << 20)), (b"gone", b"v"))
    story = Story(
        tmp_path, [records_of(0, (b"gone", b"u")), large], [records_of(3, (b"gone", b"w"))]
    )
    story.clean()

    assert [1, 3] == story.records
    assert bytes(5 << 20) == story.batches[0].records[0].value


def test_a_map_of_one_key_takes_many_passes(tmp_path: Path) -> None:
    """Each pass takes one key into its map and reaches a higher offset than the pass before."""
    story = Story(tmp_path, [data(i, i // 2) for i in range(10)], map_slots=3)
    done = story.clean()

    assert done is not None
    assert done.n_passes >= 3
    assert [1, 3, 5, 7, 9] == story.records


def test_only_the_head_is_cleaned(tmp_path: Path) -> None:
    """The pass ends at the first young segment.

    The dirty ratio counts only the bytes before it.
    """
    old = [
        records_of(0, (b"a", b"1"), time_ms=NOW_MS - 10_000),
    ]
    newer = [records_of(1, (b"a", b"2"), time_ms=NOW_MS - 9000)]
    young = [records_of(2, (b"a", b"3"), time_ms=NOW_MS - 10)]
    story = Story(tmp_path, old, newer, young)
    done = story.clean(settings={"min.compaction.lag.ms": "5000"})

    assert done is not None
    assert (2, 1.0, 2) == (done.clean_to, done.dirty_ratio, done.segments_before)
    assert [1, 2] == story.records


def test_the_pass_ends_after_a_gap(tmp_path: Path) -> None:
    """The next pass begins at the active segment, even if offsets are missing before it."""
    story = Story(tmp_path, [data(0, 1), data(1, 2)])
    (story.partition / f"{2:020d}.log").unlink()
    story.add(data(500, 1))
    (story.partition / f"{501:020d}.log").rename(story.partition / f"{900:020d}.log")
    done = story.clean()
    checkpoint = read_offsets(str(tmp_path), CLEANER_OFFSET_CHECKPOINT)

    assert done is not None
    assert 900 == done.clean_to == checkpoint[TopicPartition("t", 0)]
    assert [1, 500] == story.records
    assert story.clean() is None


@pytest.mark.parametrize(
    ("policy", "is_cleaned"), [("delete", False), ("compact", True), ("compact,delete", True)]
)
def test_policies(tmp_path: Path, policy: str, *, is_cleaned: bool) -> None:
    """Retention uses the setting `cleanup.policy`, too."""
    story = Story(tmp_path, [data(0, 1), data(1, 1)])
    done = story.clean(settings={"cleanup.policy": policy})
    settings = {"cleanup.policy": policy, "retention.ms": "1"}

    assert is_cleaned == (done is not None)
    removed = segmentlog.retain(tmp_path, dry_run=True, settings=settings)
    assert ("delete" in policy) == bool(removed)
