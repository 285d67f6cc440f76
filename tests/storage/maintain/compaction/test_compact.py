"""Compaction of a directory: the records that stay, the logs that are due, readers beside it."""

import hashlib
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from broker_lock import as_broker
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
from coordinator_logs import Coordinator, framed
from crashing import Crash, crash_at, cut_loop

import segmentlog
from segmentlog.errors import (
    ChecksumMismatchError,
    LogLockedError,
    MalformedBatchError,
    OptionError,
)
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from segmentlog.log import checkpoint
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.log.index_builder import rebuild_indexes
from segmentlog.log.indexes import read_transaction_index
from segmentlog.log.producer_snapshot import snapshot_path, write_snapshot
from segmentlog.model import TopicPartition
from segmentlog.reads import snapshot
from segmentlog.testing.codecs import GZIP, LZ4, NONE
from segmentlog.testing.legacy import encode_message, encode_wrapper
from segmentlog.testing.reference import Record

COMPACT = {"cleanup.policy": "compact"}


def compact(directory: Path, **how: Any) -> list[segmentlog.CompactedPartition]:
    """Compact all of a directory, with settings besides the policy."""
    settings = {**COMPACT, **how.pop("settings", {})}
    return segmentlog.compact(directory, settings=settings, **how)


def cleaned_to(directory: Path) -> dict[TopicPartition, int]:
    """The offsets of the cleaner's checkpoint."""
    return dict(read_offsets(str(directory), CLEANER_OFFSET_CHECKPOINT))


def rows(directory: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offsets, keys and values that a reader finds."""
    table = segmentlog.open_log_dir(directory).log("t", 0).scan().read_all()
    return list(
        zip(*(table[name].to_pylist() for name in ("offset", "key", "value")), strict=True)
    )


def test_the_last_record_of_each_key_stays(tmp_path: Path) -> None:
    """Records keep their offsets and move into one segment. The active segment is not changed."""
    partition = lay_out(
        tmp_path,
        {
            0: [records_of(0, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))],
            3: [records_of(3, (b"c", b"4"), (None, b"5")), records_of(5, (b"b", b"6"))],
            6: [records_of(6, (b"a", b"7"))],
        },
    )
    (done,) = compact(tmp_path)

    assert [(2, b"a", b"3"), (3, b"c", b"4"), (5, b"b", b"6"), (6, b"a", b"7")] == rows(tmp_path)
    assert [0, 6] == list(rest_of(partition))
    assert (0, 6, 1, 2, 1) == (
        done.first_dirty_offset,
        done.clean_to,
        done.n_passes,
        done.segments_before,
        done.segments_after,
    )
    assert (6, 3, 1) == (done.records_before, done.records_after, done.records_without_key)
    assert done.bytes_after == (partition / f"{0:020d}.log").stat().st_size < done.bytes_before
    assert {TopicPartition("t", 0): 6} == cleaned_to(tmp_path)
    assert [] == compact(tmp_path)  # nothing is dirty any more


def test_batches_that_keep_all_records_keep_their_bytes(tmp_path: Path) -> None:
    """A batch that loses some records keeps its offsets and the fields of its header."""
    whole, cut = (
        records_of(0, (b"a", b"1"), (b"b", b"2")),
        records_of(2, (b"c", b"3"), (b"d", b"4")),
    )
    partition = lay_out(tmp_path, {0: [whole, cut], 4: [records_of(4, (b"c", b"5"))], 5: []})
    compact(tmp_path)

    kept = rest_of(partition)[0]
    assert whole == kept[0]
    assert cut._replace(records=cut.records[1:], base_ms=1001) == kept[1]


def test_keys_of_all_lengths(tmp_path: Path) -> None:
    """A key of any length stays once, at its last offset."""
    keys = [bytes([length]) * length for length in range(200)]
    logs = {
        begin: [records_of(begin, *((key, b"%d" % begin) for key in keys[:: -1 if begin else 1]))]
        for begin in (0, 200)
    }
    lay_out(tmp_path, {**logs, 400: [records_of(400, (keys[60], b"new"))], 401: []})
    compact(tmp_path)

    expected = [(200 + i, key, b"200") for i, key in enumerate(reversed(keys)) if key != keys[60]]
    assert [*expected, (400, keys[60], b"new")] == rows(tmp_path)


def test_keys_of_one_md5(tmp_path: Path) -> None:
    """Two keys with equal MD5 hashes are two keys.

    The keys are a published collision (Wang and others, 2004).
    """
    key = bytes.fromhex(
        "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f89"
        "55ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5b"
        "d8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0"
        "e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
    )
    other = bytearray(key)
    for at in (19, 45, 59, 83, 109, 123):
        other[at] ^= 0x80
    digests = {hashlib.md5(each, usedforsecurity=False).digest() for each in (key, other)}
    assert 1 == len(digests)
    records = [records_of(0, (key, b"1")), records_of(1, (bytes(other), b"2"))]
    lay_out(tmp_path, {0: records, 2: []})
    compact(tmp_path)

    assert [(0, key, b"1"), (1, bytes(other), b"2")] == rows(tmp_path)


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """A dry run reports the segments that a compaction would read."""
    partition = lay_out(
        tmp_path,
        {0: [records_of(0, (b"a", b"1"), (b"a", b"2"))], 2: [records_of(2, (b"a", b"3"))]},
    )
    size = (partition / f"{0:020d}.log").stat().st_size
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (planned,) = compact(tmp_path, dry_run=True)

    assert ("t", 0, 0, 2, 1.0, 0, 1, size) == (*planned[:7], planned.bytes_before)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_log_larger_than_the_map_takes_several_passes(tmp_path: Path) -> None:
    """Each pass ends where the offset map was full."""
    keys = [b"k%d" % (i % 7) for i in range(40)]
    batches = [records_of(i, (key, b"%d" % i)) for i, key in enumerate(keys)]
    lay_out(tmp_path, {0: batches[:20], 20: batches[20:39], 39: batches[39:]})
    (done,) = compact(
        tmp_path, dedupe_buffer_bytes=24 * 6, settings={"min.cleanable.dirty.ratio": "0"}
    )

    assert done.n_passes > 1
    assert (39, 39, 7) == (done.clean_to, done.records_before, done.records_after)
    assert [*range(32, 40)] == [offset for offset, _, _ in rows(tmp_path)]


@pytest.mark.parametrize("clean_to", [0, 20])
def test_a_damaged_batch_stops_the_pass(tmp_path: Path, clean_to: int) -> None:
    """The damage lies in the clean part or in the dirty part.

    The error names its place, and no segment of the log is replaced.
    """
    batches = [records_of(i, (b"k", b"%d" % i)) for i in range(30)]
    partition = lay_out(
        tmp_path, {0: batches[:10], 10: batches[10:20], 20: batches[20:29], 29: []}
    )
    damaged = partition / f"{10:020d}.log"
    data = bytearray(damaged.read_bytes())
    data[-2] ^= 1  # in the value of the last record
    damaged.write_bytes(data)
    write_offsets(str(tmp_path), CLEANER_OFFSET_CHECKPOINT, {TopicPartition("t", 0): clean_to})
    before = {path.name: path.read_bytes() for path in partition.iterdir()}
    with pytest.raises(ChecksumMismatchError) as caught:
        compact(tmp_path, settings={"min.cleanable.dirty.ratio": "0", "segment.bytes": "14"})

    assert str(damaged) == caught.value.path
    assert len(data) * 9 // 10 == caught.value.position
    after = {path.name: path.read_bytes() for path in partition.iterdir()}
    assert before == {name: after[name] for name in before}
    assert not any("cleaned" in name or "swap" in name for name in after)
    assert {TopicPartition("t", 0): clean_to} == cleaned_to(tmp_path)


def test_offsets_that_no_batch_has(tmp_path: Path) -> None:
    """A pass continues at the base of the next segment when the offsets before it are missing."""
    partition = lay_out(
        tmp_path,
        {0: [records_of(0, (b"a", b"1"))], 5: [records_of(7, (b"a", b"2"))], 20: []},
    )
    (done,) = compact(tmp_path)

    assert (20, 1) == (done.clean_to, done.n_passes)
    assert [7] == [each.base_offset for each in rest_of(partition)[0]]


def test_replaced_files_go_after_their_delay(tmp_path: Path) -> None:
    """The next compaction removes the replaced files after the delay, which may be zero."""
    batches = [records_of(i, (b"k", b"%d" % i)) for i in range(4)]
    partition = lay_out(tmp_path, {0: batches[:2], 2: batches[2:3], 3: batches[3:]})
    compact(tmp_path)
    assert [f"{0:020d}.log.deleted", f"{2:020d}.log.deleted"] == sorted(
        path.name for path in partition.glob("*.log.deleted")
    )

    compact(tmp_path, settings={"file.delete.delay.ms": "0"})
    assert not [*partition.glob("*.deleted")]


def test_refusals(tmp_path: Path) -> None:
    """A map without room for a key and a directory that is in use are refused."""
    lay_out(tmp_path, {0: [records_of(0, (b"k", b"v"))]})
    with pytest.raises(OptionError, match="dedupe_buffer_bytes"):
        compact(tmp_path, dedupe_buffer_bytes=24)
    with pytest.raises(OptionError, match="load_factor"):
        compact(tmp_path, load_factor=1.0)
    with as_broker(tmp_path), pytest.raises(LogLockedError):
        compact(tmp_path)


def test_a_topic_of_our_writer(tmp_path: Path) -> None:
    """A topic that our writer has written is compacted by the settings of the directory.

    A topic with another policy is not changed.
    """
    segmentlog.alter_settings(
        tmp_path, "t", {"cleanup.policy": "compact", "segment.bytes": "5000"}
    )
    keys = [b"k%d" % (i % 50) for i in range(2000)]
    table = pa.table({"key": keys, "value": [b"%d" % i for i in range(2000)]})
    config = segmentlog.ProducerConfig(batch_size=200)
    for topic in ("t", "other"):
        with segmentlog.open_writer(tmp_path, topic, config=config) as writer:
            writer.append(table)
    (done,) = segmentlog.compact(tmp_path)

    assert ("t", 50) == (done.topic, done.records_after)
    found = rows(tmp_path)
    assert {key: value for _, key, value in found} == dict(
        zip(keys, table["value"].to_pylist(), strict=True)
    )
    with segmentlog.open_writer(tmp_path, "t", config=config) as writer:
        writer.append(table)
    assert 2000 == segmentlog.open_log_dir(tmp_path).log("other", 0).log_end_offset
    assert sorted(keys[:50]) == sorted(key for _, key, _ in rows(tmp_path)[-50:])


@cut_loop
def test_every_cut_leaves_the_log_before_or_after(tmp_path: Path, every: int) -> None:
    """After a cut, a reader sees the log before or after the compaction.

    The next job finishes or undoes the rest.
    """
    log = {
        0: [records_of(0, (b"a", b"1"), (b"b", b"2"))],
        2: [records_of(2, (b"a", b"3")), records_of(3, (b"c", b"4"))],
        4: [records_of(4, (b"c", b"5"))],
        5: [records_of(5, (b"d", b"6"))],
    }
    small = {"segment.bytes": "75"}  # two segments stay
    outcomes = []
    for number in range(0, 200, every):
        directory = tmp_path / str(number)
        partition = lay_out(directory, log)
        before = rows(directory)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                compact(directory, settings=small)
            except Crash:
                is_cut = True
            else:
                is_cut = False
        found = rows(directory)
        after = [before[1], before[2], before[4], before[5]]
        assert found in (before, after), number
        if number % 2:
            segmentlog.compact(directory, settings={**COMPACT, **small})
            assert after == rows(directory), number
            assert {TopicPartition("t", 0): 5} == cleaned_to(directory), number
        with segmentlog.open_writer(directory, "t") as writer:
            writer.append(pa.table({"key": [b"e"], "value": [b"7"]}))
        assert (after if number % 2 else found) == rows(directory)[:-1], number
        assert not [*partition.glob("*.swap")], number
        outcomes.append(found == after)
        if not is_cut:
            break

    assert [False, True] == sorted(set(outcomes))
    assert sorted(outcomes) == outcomes
    assert not is_cut


def test_a_reader_continues_beside_a_compaction(tmp_path: Path) -> None:
    """The reader finds all records of its snapshot in the files that were put aside."""
    batches = [records_of(i, (b"k%d" % (i % 3), b"%d" % i)) for i in range(20)]
    lay_out(tmp_path, {0: batches[:8], 8: batches[8:16], 16: batches[16:]})
    opened = segmentlog.open_log_dir(tmp_path).log("t", 0)
    stream = segmentlog.open_log_dir(tmp_path).log("t", 0).scan()
    first = stream.read_next_batch()
    compact(tmp_path)

    assert [*range(20)] == opened.scan().read_all()["offset"].to_pylist()
    rest = [offset for batch in stream for offset in batch["offset"].to_pylist()]
    assert [*range(20)] == first["offset"].to_pylist() + rest
    assert [13, 14, 15, 16, 17, 18, 19] == [offset for offset, _, _ in rows(tmp_path)]


def test_tombstones_go_after_their_horizon(tmp_path: Path) -> None:
    """The first pass sets the horizon by the clock, not by the timestamps of records.

    A later pass removes the tombstones.
    """
    partition = lay_out(
        tmp_path,
        {
            0: [records_of(0, (b"a", b"1"), (b"a", None), (b"b", b"2"), time_ms=1)],
            3: [records_of(3, (b"c", b"3"))],
        },
    )
    how = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1000"}
    compact(tmp_path, settings=how, now_ms=5000)
    (kept, *_) = rest_of(partition)[0]
    assert (6000, [(1, 2), (2, 3)]) == (
        kept.horizon_ms,
        [(each.offset, each.timestamp_ms) for each in kept.records],
    )
    assert [(1, b"a", None), (2, b"b", b"2"), (3, b"c", b"3")] == rows(tmp_path)

    for now_ms, n_left, offset in ((5999, 2, 4), (6000, 1, 5)):
        active = records_of(offset, (b"c", b"3"))
        (partition / f"{offset:020d}.log").write_bytes(encode(active))
        compact(tmp_path, settings=how, now_ms=now_ms)
        (kept, *_) = rest_of(partition)[0]
        assert (n_left, 6000) == (len(kept.records), kept.horizon_ms)


def transactional(batch: Batch, producer_id: int, sequence: int = 0) -> Batch:
    """The batch as a part of a transaction."""
    return batch._replace(
        attributes=TRANSACTIONAL, producer_id=producer_id, epoch=0, sequence=sequence
    )


def test_a_commit_marker_goes_two_passes_after_its_records(tmp_path: Path) -> None:
    """The last batch of the producer stays, empty, with its sequence.

    Kafka's LogCleanerTest specifies this.
    """
    first = [
        transactional(records_of(0, (b"1", b"v")), 1),
        marker(1, COMMIT, 1),
        transactional(records_of(2, (b"2", b"v")), 1, 1),
        marker(3, COMMIT, 1),
        records_of(4, (b"1", b"w")),
        records_of(5, (b"2", b"w")),
    ]
    partition = lay_out(tmp_path, {0: first, 6: [records_of(6, (b"3", b"v"))]})
    how = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "10"}

    def passed(now_ms: int, offset: int) -> list[tuple[int, int, int | None]]:
        """Base offset, number of records and horizon of the batches below offset 6."""
        compact(tmp_path, settings=how, now_ms=now_ms)
        active = records_of(offset, (b"3", b"v"))
        (partition / f"{offset:020d}.log").write_bytes(encode(active))
        return [
            (each.base_offset, len(each.records), each.horizon_ms)
            for each in rest_of(partition)[0]
            if each.base_offset < 6
        ]

    rest = [(2, 0, None), (3, 1, None), (4, 1, None), (5, 1, None)]
    assert [(1, 1, None), *rest] == passed(1000, 7)  # its records are removed
    assert [(1, 1, 1019), *rest] == passed(1009, 8)
    assert [(1, 1, 1019), *rest] == passed(1018, 9)
    assert rest == passed(1019, 10)


def test_aborted_records_go_and_their_marker_stays_with_the_last_batch(tmp_path: Path) -> None:
    """An earlier record stays although an aborted record has the same key."""
    aborted = [
        records_of(0, (b"1", b"v")),
        transactional(records_of(1, (b"1", b"a")), 1),
        transactional(records_of(2, (b"1", b"b"), (b"2", b"c")), 1, 1),
        marker(4, ABORT, 1),
    ]
    partition = lay_out(tmp_path, {0: aborted, 5: [records_of(5, (b"3", b"v"))]})
    compact(tmp_path, now_ms=2000)

    assert [(0, 1), (2, 0), (4, 1)] == [
        (each.base_offset, len(each.records)) for each in rest_of(partition)[0]
    ]
    (emptied,) = [each for each in rest_of(partition)[0] if not each.records]
    assert (3, 1, 0, 1) == (
        emptied.last_offset,
        emptied.sequence,
        emptied.epoch,
        emptied.producer_id,
    )
    entries = [*read_transaction_index(str(partition / f"{0:020d}.txnindex"))]
    assert [(1, 1, 4, 5)] == [tuple(each) for each in entries]
    scan = segmentlog.open_log_dir(tmp_path).log("t", 0).scan(isolation_level="read_committed")
    assert [0, 5] == scan.read_all()["offset"].to_pylist()


def test_transactions_of_producers_that_no_broker_would_name(tmp_path: Path) -> None:
    """A marker ends only its own producer's transaction, even if the producer id is negative."""
    aborted = records_of(0, (b"a", b"1"))._replace(attributes=TRANSACTIONAL, producer_id=-2)
    partition = lay_out(
        tmp_path,
        {
            0: [aborted, marker(1, ABORT, -1), marker(2, ABORT, -2)],
            3: [records_of(3, (b"z", b""))],
        },
    )
    compact(tmp_path)

    assert [3] == [offset for offset, _, _ in rows(tmp_path)]
    assert [1, 2] == [each.base_offset for each in rest_of(partition)[0]]
    assert [-2] == [
        each.producer_id for each in read_transaction_index(str(partition / f"{0:020d}.txnindex"))
    ]


def test_sequences_of_active_producers_stay(tmp_path: Path) -> None:
    """The last sequence of an active producer is kept. The sequence of an idle producer is not."""

    def idempotent(offset: int, key: bytes, producer_id: int) -> Batch:
        batch = records_of(offset, (key, b"v"), time_ms=10**12)
        return batch._replace(producer_id=producer_id, epoch=0, sequence=0)

    batches = [
        records_of(0, (b"0", b"v")),
        idempotent(1, b"0", 1),
        idempotent(2, b"0", 2),
        idempotent(3, b"0", 3),
        idempotent(4, b"1", 2),
    ]
    for days, kept in ((0, [(1, 0), (3, 1), (4, 1)]), (2, [(3, 1), (4, 1)])):
        directory = tmp_path / str(days)
        partition = lay_out(directory, {0: batches, 5: [records_of(5, (b"2", b"v"))]})
        compact(directory, now_ms=10**12 + days * 86_400_000)

        assert kept == [(each.base_offset, len(each.records)) for each in rest_of(partition)[0]]


def test_the_last_batch_of_a_pass_stays_for_its_offset(tmp_path: Path) -> None:
    """The batch stays even if all of its records are removed."""
    partition = lay_out(
        tmp_path,
        {
            0: [records_of(0, (None, b"1")), records_of(1, (None, b"2"))],
            2: [],
        },
    )
    (done,) = compact(tmp_path)

    assert [(1, 1, ())] == [(*each[:2], each.records) for each in rest_of(partition)[0]]
    assert 2 == done.records_without_key


def test_each_phase_of_a_pass_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The phases are those of Kafka's cleaner, in its order, with what remains at the end."""
    lay_out(tmp_path, {i: [records_of(i, (b"k", b"%d" % i))] for i in range(3)})
    with caplog.at_level(logging.INFO, "segmentlog.maintain"):
        compact(tmp_path)

    begun, building, built, cleaning, cleaned, swapping, ended = caplog.messages
    assert "beginning cleaning of log t-0" == begun
    assert "in range [0, 2)" in building
    assert "1 keys" in built
    assert "prior to offset 2, 2 segments into 1," in cleaning
    assert "cleaned 2 segments of log t-0, from offset 0 on" in cleaned
    assert "1 cleaned segments of log t-0" in swapping
    assert "cleaned log t-0 up to offset 2: 1 of 2 records" in ended


@pytest.mark.parametrize(("level", "n_kept"), [(30, 1), (31, 0)])
def test_kafka_4_4_keeps_an_empty_batch_only_at_the_high_watermark(
    tmp_path: Path, level: int, n_kept: int
) -> None:
    """The `metadata.version` of the directory chooses; at the high watermark, the batch stays."""
    metadata = "__cluster_metadata"
    feature = framed(metadata, 12, {"name": "metadata.version", "feature_level": level})
    Coordinator().add(feature).write(tmp_path, 0, metadata)
    gone = [records_of(0, (None, b"1")), records_of(1, (None, b"2"))]
    partition = lay_out(tmp_path, {0: gone, 2: [records_of(2, (b"k", b"v"))]})
    compact(tmp_path)
    assert n_kept == len(rest_of(partition)[0])

    at_the_end = lay_out(tmp_path, {0: gone, 2: []}, "u-0")
    compact(tmp_path)
    assert [(1, ())] == [(each.base_offset, each.records) for each in rest_of(at_the_end)[0]]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4])
def test_older_formats_become_batches_of_magic_2(tmp_path: Path, magic: int, codec: int) -> None:
    """Wrappers keep their codec, and records keep their offsets and timestamps."""

    def message(*records: Record) -> bytes:
        if codec == NONE:
            return b"".join(encode_message(each, magic=magic) for each in records)
        return encode_wrapper(records, codec, magic=magic)

    keys = [b"a", b"b", b"a", b"c"]
    records = [Record(i, 1000 + i, key, b"v%d" % i) for i, key in enumerate(keys)]
    tombstones = [Record(4, 1004, b"d", None), Record(5, 1005, None, b"v")]
    partition = lay_out(
        tmp_path,
        {0: [message(*records), message(*tombstones)], 6: [records_of(6, (b"b", b"w"))]},
    )
    compact(tmp_path, now_ms=5000, settings={"delete.retention.ms": "10"})

    kept = rest_of(partition)[0]
    times = {i: 1000 + i if magic else -1 for i in range(6)}
    assert [(2, times[2], b"a", b"v2"), (3, times[3], b"c", b"v3"), (4, times[4], b"d", None)] == [
        each[:4] for batch in kept for each in batch.records if each.key != b"b"
    ]
    assert {codec} == {each.codec for each in kept}
    assert [5010] == [each.horizon_ms for each in kept if each.horizon_ms]
    assert {(-1, -1, -1, -1)} == {
        (each.producer_id, each.epoch, each.sequence, each.leader_epoch) for each in kept
    }
    expected = [(1, 3), (4, 4)]
    if codec == NONE:  # the last message ends the pass, and leaves an empty batch
        expected = [(i, i) for i in range(1, 6)]
    assert expected == [(each.base_offset, each.last_offset) for each in kept]


def test_old_tombstones_go_by_the_time_of_their_file(tmp_path: Path) -> None:
    """A segment loses its tombstones if it is old compared with the last clean segment.

    The times of the two files must differ by more than `delete.retention.ms`.
    """
    old = [
        encode_message(Record(0, 1000, b"a", None)),
        encode_message(Record(1, 1000, b"b", None)),
    ]
    partition = lay_out(
        tmp_path,
        {
            0: old[:1],
            1: old[1:],
            2: [records_of(2, (b"c", b"v"))],
            3: [records_of(3, (b"d", b"v"))],
        },
    )
    write_offsets(str(tmp_path), CLEANER_OFFSET_CHECKPOINT, {TopicPartition("t", 0): 2})
    for base, seconds in ((0, 100), (1, 200), (2, 300)):
        os.utime(partition / f"{base:020d}.log", (seconds, seconds))
    settings = {"delete.retention.ms": "50000", "min.cleanable.dirty.ratio": "0"}
    compact(tmp_path, settings=settings)

    assert [1, 2] == [each.base_offset for each in rest_of(partition)[0]]
    assert 300 == (partition / f"{0:020d}.log").stat().st_mtime


def test_indexes_are_those_of_a_broker(tmp_path: Path) -> None:
    """The indexes have the bytes that a rebuild from the new segment gives them."""
    batches = [
        records_of(i, (b"k%d" % i, bytes(300)), time_ms=10**6 - i if i % 10 else 10**6 + i)
        for i in range(100)
    ]
    partition = lay_out(tmp_path, {0: batches, 100: [records_of(100, (b"k", b"v"))]})
    compact(tmp_path)
    indexes = [path for path in sorted(partition.iterdir()) if path.name.endswith("index")]
    found = {path.name: path.read_bytes() for path in indexes}
    reindex(tmp_path)

    assert 2 <= len([*found])
    assert found == {path.name: path.read_bytes() for path in indexes}
    assert 8 == len(found[f"{0:020d}.index"]) // 8


def reindex(directory: Path) -> None:
    """Build the indexes of the closed segments again."""
    log = segmentlog.open_log_dir(directory).log("t", 0)
    for segment in log.segments[:-1]:
        rebuild_indexes(segment, 4096)


def test_a_base_offset_that_no_checksum_covers(tmp_path: Path) -> None:
    """A batch whose offsets reach into the next segment is refused as damaged."""
    batches = [records_of(i, (b"k%d" % i, b"v")) for i in range(4)]
    data = encode(batches[0]) + encode(records_of(2, (b"k1", b"v")))
    partition = lay_out(tmp_path, {0: [data], 2: batches[2:3], 3: batches[3:]})
    with pytest.raises(MalformedBatchError, match="reaches beyond 2") as caught:
        compact(tmp_path)

    assert len(encode(batches[0])) == caught.value.position
    assert data == (partition / f"{0:020d}.log").read_bytes()


def test_snapshots_of_segments_that_are_merged_go(tmp_path: Path) -> None:
    """Snapshots at the base of a segment that stays, and at the log end, are kept."""
    batches = [records_of(i, (b"k%d" % i, b"v")) for i in range(4)]
    partition = lay_out(tmp_path, {i: [batch] for i, batch in enumerate(batches)})
    for offset in (1, 2, 3, 4):
        write_snapshot(snapshot_path(str(partition), offset), [])
    (partition / f"{1:020d}.txnindex").write_bytes(b"not an index")
    compact(tmp_path)

    assert [3, 4] == [int(path.stem) for path in sorted(partition.glob("*.snapshot"))]
    deleted = sorted(partition.glob("*.snapshot.deleted"))
    assert [1, 2] == [int(path.name[:20]) for path in deleted]


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where possible, because thousands of syncs take long on a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as path:
        yield Path(path)


@pytest.mark.parametrize("is_clean", [True, False])
def test_very_many_partitions_do_not_take_the_square_of_their_number(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, is_clean: bool
) -> None:
    """The files at the top of the directory are read and written only a few times.

    The checkpoints have an entry for each partition in the end.
    """
    n_partitions = 150
    rows = pa.table(
        {
            "key": [b"k"] * 2 * n_partitions,
            "value": [b"v"] * 2 * n_partitions,
            "partition": pa.array([*range(n_partitions)] * 2, pa.int32()),
        }
    )
    with segmentlog.open_writer(quick_path, "t", num_partitions=n_partitions) as writer:
        writer.append(rows)
        writer.roll()
        writer.append(rows.slice(0, n_partitions))
    if not is_clean:
        (quick_path / CLEAN_SHUTDOWN_FILE).unlink()
        (quick_path / RECOVERY_POINT_CHECKPOINT).unlink(missing_ok=True)
    used: Counter[str] = Counter()

    def counted(module: ModuleType, name: str) -> None:
        real = getattr(module, name)

        def count(path: str, *more: object) -> object:
            used[name] += Path(path) in (quick_path, *quick_path.iterdir())
            return real(path, *more)

        monkeypatch.setattr(module, name, count)

    counted(checkpoint, "_entries")
    counted(checkpoint, "_write")
    counted(snapshot, "list_inodes")
    done = compact(quick_path)

    assert n_partitions == len(done)
    assert {TopicPartition("t", each): 2 for each in range(n_partitions)} == cleaned_to(quick_path)
    assert used.total() < 2 * n_partitions, used
    if not is_clean:
        points = read_offsets(str(quick_path), RECOVERY_POINT_CHECKPOINT)
        assert {TopicPartition("t", each): 3 for each in range(n_partitions)} == points


@cut_loop
def test_every_cut_of_a_roll_and_a_compaction_leaves_each_last_record(
    tmp_path: Path, every: int
) -> None:
    """The process ends before each call in turn. The next job finishes or undoes what is left."""
    number, is_cut = 0, True
    while is_cut:
        directory = tmp_path / str(number)
        with segmentlog.open_writer(directory, "t", num_partitions=2) as writer:
            keys = [b"a", b"a", b"b"]
            writer.append(pa.table({"key": keys, "value": [b"1", b"2", b"3"]}))
        policy = {"cleanup.policy": "compact"}
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                segmentlog.compact(directory, settings=policy, roll=True, purge=True)
            except Crash:
                pass
            else:
                is_cut = False
        assert {b"a": b"2", b"b": b"3"} == last_values(directory), number
        segmentlog.compact(directory, settings=policy, roll=True, purge=True)
        assert {b"a": b"2", b"b": b"3"} == last_values(directory), number
        assert 2 == records_in(directory), number
        assert not [*directory.rglob("*.deleted")], number
        number += every

    assert number > 40


def records_in(directory: Path) -> int:
    """Number of records in all partitions."""
    opened = segmentlog.open_log_dir(directory)
    return sum(opened.log("t", each).scan().read_all().num_rows for each in (0, 1))


def last_values(directory: Path) -> dict[bytes, bytes]:
    """The last value of each key."""
    opened = segmentlog.open_log_dir(directory)
    found = {}
    for partition in (0, 1):
        rows = opened.log("t", partition).scan().read_all()
        found |= dict(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
    return found


def test_nothing_joins_a_segment_whose_index_is_preallocated(tmp_path: Path) -> None:
    """Kafka counts the bytes of indexes; a broker that stops leaves one without entries so."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        for number in range(5):
            for _ in range(3):  # two of the batches get entries
                writer.append(pa.table({"key": [f"k{number}"], "value": ["v" * 5000]}))
                writer.flush()
            writer.roll()
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    joined = tmp_path / "joined"
    shutil.copytree(tmp_path / "t-0", joined / "t-0")
    os.truncate(tmp_path / "t-0" / f"{3:020d}.index", 10 << 20)
    for directory in (tmp_path, joined):
        segmentlog.compact(directory, ["t"], settings=settings)
    found = [
        [int(each.stem) for each in sorted(directory.glob("t-0/*.log"))]
        for directory in (joined, tmp_path)
    ]
    assert [[0, 12], [0, 3, 6, 12]] == found
