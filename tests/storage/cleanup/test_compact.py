"""Compaction in a directory: what stays of a log, where it is due, and who may look on."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from compaction.batches import lay_out, records_of, rest_of

import segmentlog
from segmentlog.errors import ChecksumMismatchError, LogLockedError, OptionError
from segmentlog.files.checkpoint import read_offsets
from segmentlog.files.lock import DirectoryLock
from segmentlog.files.names import CLEANER_OFFSET_CHECKPOINT
from segmentlog.model import TopicPartition

COMPACT = {"cleanup.policy": "compact"}


def compact(directory: Path, **how: Any) -> list[segmentlog.CompactedPartition]:
    """All of a directory, with settings besides the policy."""
    settings = {**COMPACT, **how.pop("settings", {})}
    return segmentlog.compact(directory, settings=settings, **how)


def cleaned_to(directory: Path) -> dict[TopicPartition, int]:
    """The checkpoint."""
    return dict(read_offsets(str(directory), CLEANER_OFFSET_CHECKPOINT))


def rows(directory: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offsets, keys and values that a reader finds."""
    table = segmentlog.open_log_dir(directory).log("t", 0).scan().read_all()
    return list(
        zip(*(table[name].to_pylist() for name in ("offset", "key", "value")), strict=True)
    )


def test_the_last_record_of_each_key_stays(tmp_path: Path) -> None:
    """At its offset, in one segment; the active segment is not touched."""
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
    assert (0, 6, 1, 2, 1) == (done.first_dirty_offset, done.clean_to, done.n_passes,
                               done.segments_before, done.segments_after)  # fmt: skip
    assert (6, 3, 1) == (done.records_before, done.records_after, done.records_without_key)
    assert done.bytes_after == (partition / f"{0:020d}.log").stat().st_size < done.bytes_before
    assert {TopicPartition("t", 0): 6} == cleaned_to(tmp_path)
    assert [] == compact(tmp_path)  # nothing is dirty any more


def test_batches_that_keep_all_records_keep_their_bytes(tmp_path: Path) -> None:
    """A batch that loses some keeps its offsets and the fields of its header."""
    whole, cut = (
        records_of(0, (b"a", b"1"), (b"b", b"2")),
        records_of(2, (b"c", b"3"), (b"d", b"4")),
    )
    partition = lay_out(tmp_path, {0: [whole, cut], 4: [records_of(4, (b"c", b"5"))], 5: []})
    compact(tmp_path)

    kept = rest_of(partition)[0]
    assert whole == kept[0]
    assert cut._replace(records=cut.records[1:], base_ms=1001) == kept[1]


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """It says what would be gone through."""
    partition = lay_out(
        tmp_path,
        {0: [records_of(0, (b"a", b"1"), (b"a", b"2"))], 2: [records_of(2, (b"a", b"3"))]},
    )
    size = (partition / f"{0:020d}.log").stat().st_size
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (told,) = compact(tmp_path, dry_run=True)

    assert ("t", 0, 0, 2, 1.0, 0, 1, size) == (*told[:7], told.bytes_before)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_log_larger_than_the_map_takes_several_passes(tmp_path: Path) -> None:
    """Each of which ends where the map was full."""
    keys = [b"k%d" % (i % 7) for i in range(40)]
    batches = [records_of(i, (key, b"%d" % i)) for i, key in enumerate(keys)]
    lay_out(tmp_path, {0: batches[:20], 20: batches[20:39], 39: batches[39:]})
    (done,) = compact(
        tmp_path, dedupe_buffer_bytes=24 * 6, settings={"min.cleanable.dirty.ratio": "0"}
    )

    assert done.n_passes > 1
    assert (39, 39, 7) == (done.clean_to, done.records_before, done.records_after)
    assert [*range(32, 40)] == [offset for offset, _, _ in rows(tmp_path)]


def test_a_damaged_batch_stops_the_pass(tmp_path: Path) -> None:
    """The error names its place; no segment of the log is replaced."""
    batches = [records_of(i, (b"k", b"%d" % i)) for i in range(30)]
    partition = lay_out(
        tmp_path, {0: batches[:10], 10: batches[10:20], 20: batches[20:29], 29: []}
    )
    damaged = partition / f"{10:020d}.log"
    data = bytearray(damaged.read_bytes())
    data[-2] ^= 1  # in the value of the last record
    damaged.write_bytes(data)
    before = {path.name: path.read_bytes() for path in partition.iterdir()}
    with pytest.raises(ChecksumMismatchError) as caught:
        compact(tmp_path)

    assert str(damaged) == caught.value.path
    assert len(data) * 9 // 10 == caught.value.position
    after = {path.name: path.read_bytes() for path in partition.iterdir()}
    assert before == {name: after[name] for name in before}
    assert not any("cleaned" in name or "swap" in name for name in after)
    assert {} == cleaned_to(tmp_path)


def test_replaced_files_go_after_their_delay(tmp_path: Path) -> None:
    """By the next compaction, or at once if the topic says so."""
    batches = [records_of(i, (b"k", b"%d" % i)) for i in range(4)]
    partition = lay_out(tmp_path, {0: batches[:2], 2: batches[2:3], 3: batches[3:]})
    compact(tmp_path)
    assert [f"{0:020d}.log.deleted", f"{2:020d}.log.deleted"] == sorted(
        path.name for path in partition.glob("*.log.deleted")
    )

    compact(tmp_path, settings={"file.delete.delay.ms": "0"})
    assert not [*partition.glob("*.deleted")]


def test_refusals(tmp_path: Path) -> None:
    """A map without room, and a directory that somebody holds."""
    lay_out(tmp_path, {0: [records_of(0, (b"k", b"v"))]})
    with pytest.raises(OptionError, match="dedupe_buffer_bytes"):
        compact(tmp_path, dedupe_buffer_bytes=24)
    with pytest.raises(OptionError, match="load_factor"):
        compact(tmp_path, load_factor=1.0)
    with DirectoryLock(str(tmp_path)), pytest.raises(LogLockedError):
        compact(tmp_path)


def test_what_a_writer_of_ours_has_written(tmp_path: Path) -> None:
    """By the settings of the directory; a topic with another policy stays as it is."""
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
