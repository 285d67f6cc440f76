"""Erased keys: the records that go, the batches that stay, replicas, cuts, damage."""

import errno
import shutil
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from broker_lock import as_broker
from compaction.batches import (
    ABORT,
    COMMIT,
    HORIZON,
    TRANSACTIONAL,
    Batch,
    decode,
    encode,
    lay_out,
    marker,
    records_of,
    rest_of,
)
from crashing import CALLS, Crash, Forward, around_calls, crash_at, cut_loop
from dirty_logs import Kind, dirty_log, write_segments
from kept_records import kept
from tiers import Listed, announce, written

import segmentlog
from segmentlog.errors import (
    ChecksumMismatchError,
    CorruptIndexError,
    LogDirectoryError,
    LogLockedError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT
from segmentlog.log.checkpoint import write_offsets
from segmentlog.log.indexes import (
    AbortedTransaction,
    encode_transactions,
    read_transaction_index,
)
from segmentlog.log.producer_snapshot import snapshot_path, write_snapshot
from segmentlog.maintain.compaction import erase as module
from segmentlog.maintain.verification.findings import Severity
from segmentlog.model import TopicPartition
from segmentlog.store.readable import Entry
from segmentlog.testing.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from segmentlog.testing.legacy import encode_message, encode_wrapper
from segmentlog.testing.reference import Record
from segmentlog.txn.guard import GUARD_PREFIX

GOLDEN = Path(__file__).parents[3] / "golden"
NOW_MS = 1_700_000_000_000
KINDS = {
    "plain": Kind(unkeyed=0.3),
    "append-time": Kind(is_append_time=True, codecs=(NONE, LZ4)),
    "producers": Kind(producers=3, n_keys=4, n_records=3),
    "codecs": Kind(codecs=(NONE, GZIP, SNAPPY, LZ4, ZSTD), producers=2),
    "mixed": Kind(magics=(0, 1, 2), codecs=(NONE, GZIP, LZ4), producers=1),
}


def table_of(directory: Path, topic: str = "t", partition: int = 0) -> pa.Table:
    """All rows of a partition, with their headers; a message of magic 0 has no type of time."""
    columns = ["offset", "key", "value", "timestamp", "headers"]
    return (
        segmentlog.open_log_dir(directory).log(topic, partition).scan(columns=columns).read_all()
    )


def rows(directory: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offsets, keys and values that a reader finds."""
    table = table_of(directory)
    return list(
        zip(*(table[name].to_pylist() for name in ("offset", "key", "value")), strict=True)
    )


def without(table: pa.Table, keys: Sequence[bytes]) -> pa.Table:
    """The rows with other keys, or without a key."""
    return table.filter(pc.invert(pc.is_in(table["key"], pa.array(keys, pa.binary()))))


def files_in(directory: Path) -> dict[str, bytes]:
    """The contents of all files but the lock."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def errors_in(directory: Path) -> list[str]:
    """The messages of all errors that a verification finds."""
    found = segmentlog.verify(directory, records=True, producers=True)
    return [each.message for each in found if each.severity is Severity.ERROR]


def test_records_of_a_key_are_removed_from_all_segments(tmp_path: Path) -> None:
    """All other records keep their offsets, and whole batches keep their bytes.

    A log whose active segment has such records begins a new segment.
    """
    whole = records_of(3, (b"c", b"4"), (None, b"5"))
    other = records_of(5, (b"aa", b""), (b"", b""))
    cut = records_of(0, (b"a", b"1"), (b"b", None), (b"a", b"3"))
    active = [records_of(7, (b"a", b"7")), records_of(8, (b"d", b"a"))]
    partition = lay_out(tmp_path, {0: [cut], 3: [whole], 5: [other], 7: active})
    untouched = (partition / f"{3:020d}.log").stat().st_ino
    (done,) = segmentlog.erase(tmp_path, "a")

    assert [1, 3, 4, 5, 6, 8] == [offset for offset, *_ in rows(tmp_path)]
    rest = rest_of(partition)
    assert [0, 3, 5, 7, 9] == [*rest]
    assert [cut._replace(records=cut.records[1:2], base_ms=1001, max_ms=1001)] == rest[0]
    assert untouched == (partition / f"{3:020d}.log").stat().st_ino
    emptied, kept = rest[7]
    assert (7, 7, (), 1000) == (*emptied[:3], emptied.max_ms)
    assert records_of(8, (b"d", b"a")) == kept
    sizes = [(partition / f"{base:020d}.log").stat().st_size for base in (0, 7)]
    before = len(encode(cut)) + len(encode(records_of(7, (b"a", b"7")))) + len(encode(kept))
    assert ("t", 0, 3, 2, 1, 0, 7, (0, 7), before, sum(sizes)) == done[:-1]
    assert 9 == segmentlog.open_log_dir(tmp_path).log("t", 0).log_end_offset
    assert [] == segmentlog.erase(tmp_path, "a", purge=True)
    assert [] == errors_in(tmp_path)


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """A dry run returns the numbers of the erasure, without the bytes after it."""
    lay_out(tmp_path, {0: [records_of(0, (b"a", b"1"), (b"b", b"2"))], 2: []})
    before = files_in(tmp_path)
    (planned,) = segmentlog.erase(tmp_path, b"a", dry_run=True)
    assert before == files_in(tmp_path)
    (done,) = segmentlog.erase(tmp_path, b"a")

    assert planned == done._replace(bytes_after=-1, remaining=())
    assert (1, 1, 0, (0,)) == (done.records, done.batches, done.emptied_batches, done.segments)


def test_keys_of_all_kinds(tmp_path: Path) -> None:
    """Keys are compared as bytes: text stands for UTF-8, and an empty key is not a missing key."""
    keys = ["ä".encode(), b"\xff\x00", b"", None, b"\x00\x00\x00\x00", "ä".encode("latin-1")]
    lay_out(tmp_path, {0: [records_of(0, *((key, b"v") for key in keys))], 6: []})
    segmentlog.erase(tmp_path, ["ä", b"\xff\x00"])
    assert [2, 3, 4, 5] == [offset for offset, *_ in rows(tmp_path)]
    segmentlog.erase(tmp_path, b"")
    assert [3, 4, 5] == [offset for offset, *_ in rows(tmp_path)]


def test_very_many_keys(tmp_path: Path) -> None:
    """Each of thousands of keys is found, and no other key goes."""
    batches = [
        records_of(i, *((b"%d" % j, b"v") for j in range(i, i + 10))) for i in range(0, 5000, 10)
    ]
    lay_out(tmp_path, {0: batches, 5000: []})
    (done,) = segmentlog.erase(tmp_path, [b"%d" % i for i in range(0, 9000, 3)])

    assert (1667, 500) == (done.records, done.batches)
    assert [i for i in range(5000) if i % 3] == [offset for offset, *_ in rows(tmp_path)]


@pytest.mark.parametrize("version", ["2.8.2", "3.9.2", "4.3.1"])
def test_logs_of_real_brokers(tmp_path: Path, version: str) -> None:
    """Each other row stays as it is, in all formats; indexes are those of a rebuild.

    The keys are those of each seventh record, of all topics.
    """
    source = GOLDEN / f"kafka-{version}"
    directory = tmp_path / "logs"
    shutil.copytree(source, directory)
    opened = segmentlog.open_log_dir(source)
    before = {each: table_of(source, *each) for each in opened.topic_partitions()}
    keys = sorted(
        {key for table in before.values() for key in table["key"].to_pylist()[::7] if key}
    )
    found_before = errors_in(directory)
    done = segmentlog.erase(directory, keys, [*opened.topics(internal=True)])

    assert len(done) > 3
    for each, table in before.items():
        assert without(table, keys).equals(table_of(directory, *each)), each
        ends = [
            one.log(*each).log_end_offset for one in (opened, segmentlog.open_log_dir(directory))
        ]
        assert ends[0] == ends[1], each
    for erased in done:
        table = before[TopicPartition(*erased[:2])]
        removed = table.num_rows - without(table, keys).num_rows
        # DeleteRecords has left records below the log start.
        is_less = erased.topic == "deleted-records" and removed < erased.records
        assert removed == erased.records or is_less
    assert found_before == errors_in(directory)
    rewritten = [
        f"{erased.topic}-{erased.partition}/{base:020d}"
        for erased in done
        for base in erased.segments
    ]
    indexes = {
        name: data
        for name, data in files_in(directory).items()
        if name.endswith("index") and name.partition(".")[0] in rewritten
    }
    segmentlog.reindex(directory)
    after = files_in(directory)
    assert indexes == {name: after[name] for name in indexes}


def test_every_codec_and_format(tmp_path: Path) -> None:
    """A batch keeps its codec.

    Messages of magic 0 and 1 that lose a record become batches of magic 2, and others keep their
    bytes.
    """
    codecs = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
    batches = [
        records_of(3 * i, (b"a", b"v"), (b"k%d" % i, b"v"), (b"b", b"v"))._replace(
            attributes=codec
        )
        for i, codec in enumerate(codecs)
    ]
    at = 3 * len(codecs)
    old, whole = list[bytes](), list[bytes]()
    for magic in (0, 1):
        for codec in (NONE, GZIP, LZ4):
            for keys in ((b"a", b"x"), (b"y", b"z")):
                messages = [Record(at + i, 1000, key, b"v") for i, key in enumerate(keys)]
                at += 2
                if codec == NONE:
                    made = [encode_message(each, magic=magic) for each in messages]
                else:
                    made = [encode_wrapper(messages, codec, magic=magic)]
                old += made
                whole += made if b"y" in keys else made[1:]
    partition = lay_out(tmp_path, {0: [*batches, *old], at: []})
    before = rows(tmp_path)
    (done,) = segmentlog.erase(tmp_path, b"a")

    assert [each for each in before if each[1] != b"a"] == rows(tmp_path)
    assert (len(codecs) + 6, len(codecs) + 6, 2) == (
        done.records,
        done.batches,
        done.emptied_batches,
    )
    data = (partition / f"{0:020d}.log").read_bytes()
    assert all(each in data for each in whole)
    assert [] == errors_in(tmp_path)


def test_transactions_stay_as_they_are(tmp_path: Path) -> None:
    """Records of open, aborted and committed transactions go; markers and index entries stay.

    A marker has a key of four bytes, which is not the key of a record.
    """

    def part(batch: Batch, producer: int) -> Batch:
        return batch._replace(
            attributes=TRANSACTIONAL, producer_id=producer, epoch=3, sequence=batch.base_offset
        )

    batches = [
        part(records_of(0, (b"a", b"1"), (b"b", b"2")), 1),
        part(records_of(2, (b"a", b"3")), 2),
        marker(3, ABORT, 1, 3),
        marker(4, COMMIT, 2, 3),
        part(records_of(5, (b"a", b"4"), (b"c", b"5")), 4),
    ]
    partition = lay_out(tmp_path, {0: batches, 7: []})
    entry = AbortedTransaction(1, 0, 3, 4)
    index = partition / f"{0:020d}.txnindex"
    index.write_bytes(encode_transactions([entry]))
    segmentlog.erase(tmp_path, [b"a", b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"])

    rest = rest_of(partition)[0]
    assert [each[:2] for each in batches] == [each[:2] for each in rest]
    assert [(each.producer_id, each.epoch, each.sequence) for each in batches] == [
        (each.producer_id, each.epoch, each.sequence) for each in rest
    ]
    assert batches[2:4] == rest[2:4]
    assert [(b"b",), (), (b"c",)] == [
        tuple(record.key for record in rest[i].records) for i in (0, 1, 4)
    ]
    assert [entry] == [*read_transaction_index(str(index))]
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    assert 5 == log.last_stable_offset()


def test_tombstones_horizons_and_emptied_batches_stay(tmp_path: Path) -> None:
    """Batches that a cleaner has marked or emptied keep their bytes, and no clock counts."""
    tombstone = records_of(0, (b"b", None))
    marked = records_of(1, (b"c", None))._replace(attributes=HORIZON, base_ms=500)
    emptied = Batch(2, 3, (), HORIZON, 400, 900, 7, 1, 5)
    cut = records_of(4, (b"a", b"v"), (b"d", None))._replace(attributes=HORIZON, base_ms=600)
    partition = lay_out(tmp_path, {0: [tombstone, marked, encode(emptied), cut], 6: []})
    segmentlog.erase(tmp_path, b"a")

    data = (partition / f"{0:020d}.log").read_bytes()
    same = encode(tombstone) + encode(marked) + encode(emptied)
    assert same == data[: len(same)]
    (last,) = decode(data[len(same) :])
    assert cut._replace(records=cut.records[1:], max_ms=1001) == last


def test_two_replicas_have_the_same_batches(tmp_path: Path) -> None:
    """The segments of the replicas have other borders, other ages and other snapshots."""
    kind = Kind(producers=2, n_keys=5, n_batches=60, magics=(0, 1, 2), codecs=(NONE, GZIP, ZSTD))
    found = []
    segments = dirty_log(11, kind, NOW_MS)
    batches = [batch for segment in segments for batch in segment]
    for name, sizes in (("one", (3, 20, 60)), ("two", (11, 12, 40)), ("three", ())):
        bounds = [0, *(each for each in sizes if each < len(batches)), len(batches)]
        groups = [batches[a:b] for a, b in pairwise(bounds)]
        write_segments(tmp_path / name / "t-0", groups, NOW_MS)
        (tmp_path / name / ".kafka_cleanshutdown").write_bytes(b"")
        segmentlog.erase(tmp_path / name, [b"k1", table_of(tmp_path / name)["key"][0].as_py()])
        logs = sorted((tmp_path / name / "t-0").glob("*.log"))
        found.append(b"".join(each.read_bytes() for each in logs))

    assert len(set(found)) == 1
    assert len(found[0]) < sum(map(len, batches))


@pytest.mark.parametrize("kind", KINDS)
def test_random_logs_keep_all_but_the_records(tmp_path: Path, kind: str) -> None:
    """Each batch keeps its header, but for the number and the times of its records.

    A plain decoder reads the batches before and after.
    """
    partition = tmp_path / "t-0"
    write_segments(partition, dirty_log(7, KINDS[kind], NOW_MS), NOW_MS)
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"")
    before = [batch for segment in kept(partition).values() for batch in segment]
    keys = [key for _, key, _ in rows(tmp_path) if key is not None]
    erased = {keys[0], keys[len(keys) // 2]}
    (done,) = segmentlog.erase(tmp_path, list(erased))
    after = [batch for segment in kept(partition).values() for batch in segment]

    assert len(before) == len(after)
    n_records, removed = 0, []
    for old, new in zip(before, after, strict=True):
        is_control = len(old.fields) > 2 and bool(old.fields[1] & 0x20)
        stays = [each for each in old.records if is_control or each.key not in erased]
        removed += [each.offset for each in old.records if each not in stays]
        n_records += len(old.records)
        if len(stays) == len(old.records):
            assert old == new
            continue
        assert stays == new.records
        if len(old.fields) == 2:  # of magic 0 or 1, which became magic 2
            assert (-1, 0) == (new.fields[0], new.fields[1] & 0x30)
            continue
        epoch, attributes, delta, _, max_ms, *producer, _ = old.fields
        assert (epoch, delta, producer) == (new.fields[0], new.fields[2], list(new.fields[5:-1]))
        codec = 7 if stays else 0
        assert attributes & (0x38 | codec) == new.fields[1]
        is_append_time = bool(attributes & 0x08)
        largest = max((each.timestamp_ms for each in stays), default=max_ms)
        assert (max_ms if is_append_time else largest) == new.fields[4]
    assert (len(removed), removed[0], removed[-1]) == (
        done.records,
        done.first_offset,
        done.last_offset,
    )
    assert 0 < len(removed) < n_records


@cut_loop
def test_every_cut_leaves_each_other_record(tmp_path: Path, every: int) -> None:
    """The process ends before each call in turn.  The same command, or a writer, continues.

    A reader finds each segment before or after the erasure.
    """
    log = {
        0: [records_of(0, (b"a", b"1"), (b"b", b"2"))],
        2: [records_of(2, (b"c", b"3"))],
        3: [records_of(3, (b"a", b"4"))],
        4: [records_of(4, (b"d", b"5"), (b"a", b"6"))],
    }
    after = [(1, b"b", b"2"), (2, b"c", b"3"), (4, b"d", b"5")]
    outcomes, number, is_cut = [], 0, True
    while is_cut:
        directory = tmp_path / str(number)
        partition = lay_out(directory, log)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                segmentlog.erase(directory, b"a")
            except Crash:
                pass
            else:
                is_cut = False
        found = rows(directory)
        assert after == [each for each in found if each[1] != b"a"], number
        outcomes.append(len(found))
        if number % 2:
            segmentlog.erase(directory, b"a", purge=True)
            assert after == rows(directory), number
            assert not [*partition.glob("*.deleted")], number
        with segmentlog.open_writer(directory, "t") as writer:
            writer.append(pa.table({"key": [b"e"], "value": [b"7"]}))
        assert 6 == rows(directory)[-1][0], number
        assert not [*partition.glob("*.swap"), *partition.glob("*.cleaned")], number
        assert [] == errors_in(directory), number
        number += every

    assert {6, 5, 4, 3} == {*outcomes}
    assert sorted(outcomes, reverse=True) == outcomes


def test_a_damaged_batch_anywhere_stops_all(tmp_path: Path) -> None:
    """The error names the place, and no log is changed, not even one that was read before."""
    good = records_of(0, (b"a", b"1"), (b"b", b"2"))
    lay_out(tmp_path, {0: [good], 2: []}, "t-0")
    damaged = lay_out(tmp_path / "more", {0: [good, records_of(2, (b"c", b"3"))], 3: []}, "t-1")
    damaged.rename(tmp_path / "t-1")
    path = tmp_path / "t-1" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    before = files_in(tmp_path)
    with pytest.raises(ChecksumMismatchError) as caught:
        segmentlog.erase(tmp_path, b"a")

    assert (str(path), len(encode(good))) == (caught.value.path, caught.value.position)
    assert before == {name: data for name, data in files_in(tmp_path).items() if name in before}
    assert [(0, b"a", b"1"), (1, b"b", b"2")] == rows(tmp_path)


def test_a_damaged_transaction_index_stops_all(tmp_path: Path) -> None:
    """Entries that cannot be read would be lost, so that the index has to be built again first."""
    partition = lay_out(tmp_path, {0: [records_of(0, (b"a", b"1"))], 1: []})
    (partition / f"{0:020d}.txnindex").write_bytes(b"not an index")
    with pytest.raises(CorruptIndexError):
        segmentlog.erase(tmp_path, b"a")
    assert [(0, b"a", b"1")] == rows(tmp_path)


def test_records_below_the_log_start_go_too(tmp_path: Path) -> None:
    """Deleted records that share a segment with later ones are still on the disk."""
    partition = lay_out(
        tmp_path, {0: [records_of(0, (b"a", b"secret")), records_of(1, (b"b", b"2"))], 2: []}
    )
    segmentlog.delete_records(tmp_path, "t", 0, offset=1)
    (done,) = segmentlog.erase(tmp_path, b"a", purge=True)

    assert (1, 0) == (done.records, done.first_offset)
    assert not any(b"secret" in data for data in files_in(tmp_path).values())
    assert 1 == segmentlog.open_log_dir(tmp_path).log("t", 0).log_start_offset
    assert partition.is_dir()


def test_replaced_files_go_after_their_delay(tmp_path: Path) -> None:
    """A reader that has planned to read them finds them until then; a purge removes them all."""
    batches = [records_of(i, (b"k%d" % (i % 3), b"%d" % i)) for i in range(20)]
    partition = lay_out(tmp_path, {0: batches[:8], 8: batches[8:16], 16: batches[16:]})
    write_offsets(str(tmp_path), HIGH_WATERMARK_CHECKPOINT, {TopicPartition("t", 0): 20})
    stream = segmentlog.open_log_dir(tmp_path).log("t", 0).scan()
    first = stream.read_next_batch()
    segmentlog.erase(tmp_path, b"k1")

    rest = [offset for batch in stream for offset in batch["offset"].to_pylist()]
    assert [*range(20)] == first["offset"].to_pylist() + rest
    assert [i for i in range(20) if i % 3 != 1] == [offset for offset, *_ in rows(tmp_path)]
    assert 3 == len([*partition.glob("*.log.deleted")])
    assert [] == segmentlog.erase(tmp_path, b"k1", purge=True)
    assert not [*partition.glob("*.deleted")]


def test_snapshots_of_producers_stay(tmp_path: Path) -> None:
    """Each snapshot stays, as does the sequence of a producer whose records are all erased."""
    batch = records_of(0, (b"a", b"1"))._replace(producer_id=9, epoch=0, sequence=0)
    partition = lay_out(tmp_path, {0: [batch], 1: [records_of(1, (b"b", b"2"))], 2: []})
    for offset in (1, 2):
        write_snapshot(snapshot_path(str(partition), offset), [])
    segmentlog.erase(tmp_path, b"a")

    assert [1, 2] == [int(path.stem) for path in sorted(partition.glob("*.snapshot"))]
    (emptied,) = rest_of(partition)[0]
    assert (9, 0, 0, ()) == (emptied.producer_id, emptied.epoch, emptied.sequence, emptied.records)


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    """A dry run ends before the torn tail of an unclean directory; an erasure cuts it off."""
    partition = lay_out(tmp_path, {0: [records_of(0, (b"a", b"1")), b"\x00" * 7 + b"\x01"]})
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (planned,) = segmentlog.erase(tmp_path, b"a", dry_run=True)
    assert 1 == planned.records
    (done,) = segmentlog.erase(tmp_path, b"a")

    assert (1, 61) == (done.records, done.bytes_after)
    assert [0, 1] == [*rest_of(partition)]


def test_chosen_topics_and_partitions(tmp_path: Path) -> None:
    """Without topics, those of brokers stay; names and numbers choose partitions."""
    for name in ("t-0", "t-1", "u-0", "__consumer_offsets-0"):
        lay_out(tmp_path / name, {0: [records_of(0, (b"a", b"1"))], 1: []}, name).rename(
            tmp_path / "moved"
        )
        shutil.rmtree(tmp_path / name)
        (tmp_path / "moved").rename(tmp_path / name)
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"")

    def chosen(*topics: str, partitions: Sequence[int] = ()) -> list[tuple[str, int]]:
        found = segmentlog.erase(tmp_path, b"a", topics, partitions, dry_run=True)
        return [each[:2] for each in found]

    assert [("t", 0), ("t", 1), ("u", 0)] == chosen()
    assert [("t", 1)] == chosen(partitions=[1])
    assert [("t", 0)] == chosen("t", partitions=[0])
    assert [("__consumer_offsets", 0)] == chosen("__consumer_offsets")
    with pytest.raises(UnknownTopicOrPartitionError):
        chosen("v")


def copies(directory: Path, keys: str = "a", **options: Any) -> list[tuple[str, str, int]]:
    """The copies that an erasure names: kinds, paths in the directory, numbers of records."""
    return [
        (str(copy.kind), copy.path.removeprefix(f"{directory}/"), copy.records)
        for each in segmentlog.erase(directory, keys, **options)
        for copy in each.remaining
    ]


def test_files_that_still_have_erased_records_are_named(tmp_path: Path) -> None:
    """Each has its number of records and the time at which it goes, also in a repeated call.

    A call for other keys names the files that have records with these keys.
    """
    lay_out(
        tmp_path,
        {
            0: [records_of(0, (b"a", b"1"), (b"b", b"2"))],
            2: [records_of(2, (b"b", b"3"))],
            3: [records_of(3, (b"a", b"4"))],
            4: [],
        },
    )
    before_ms = int(time.time() * 1000)
    (done,) = segmentlog.erase(tmp_path, "a")
    names = [f"t-0/{base:020d}.log.deleted" for base in (0, 3)]

    assert [(str(tmp_path / name), 1, "") for name in names] == [
        (each.path, each.records, each.reason) for each in done.remaining
    ]
    assert all(0 <= each.removed_after_ms - before_ms - 60_000 < 60_000 for each in done.remaining)
    (again,) = segmentlog.erase(tmp_path, "a")
    assert (0, (), done.remaining) == (again.records, again.segments, again.remaining)
    assert [("deleted", names[0], 1)] == copies(tmp_path, "b", dry_run=True)
    assert [] == segmentlog.erase(tmp_path, "c")
    assert [] == segmentlog.erase(tmp_path, "a", purge=True)


@cut_loop
def test_an_erasure_after_a_cut_names_what_is_left(tmp_path: Path, every: int) -> None:
    """After the cut, each file that has a record of the key is part of a log, or is named."""
    number, is_cut, n_named = 0, True, 0
    while is_cut:
        directory = tmp_path / str(number)
        lay_out(
            directory,
            {
                0: [records_of(0, (b"a", b"secret"))],
                1: [records_of(1, (b"b", b"2"), (b"a", b"secret"))],
            },
        )
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                segmentlog.erase(directory, "a")
            except Crash:
                pass
            else:
                is_cut = False
        for dry_run in (True, False):
            if dry_run and [*directory.glob(f"{GUARD_PREFIX}*")]:
                continue  # a dry run is refused
            (found,) = segmentlog.erase(directory, "a", dry_run=dry_run) or [None]
            named = {each.path for each in found.remaining} if found else set()
            in_logs = {
                str(directory / "t-0" / f"{base:020d}.log{state}")
                for base in (found.segments if found and dry_run else ())
                for state in ("", ".swap")
            }
            holding = {
                str(path)
                for path in directory.rglob("*")
                if path.is_file() and b"secret" in path.read_bytes()
            }
            assert named <= holding <= named | in_logs, (number, dry_run)
            n_named += len(named)
        number += every
    assert n_named > number // every


def test_copies_of_all_kinds_are_named(tmp_path: Path) -> None:
    """Copies that have such records are named, and those that were searched and have none are not.

    A damaged copy may have more than those that were found.
    """
    partition = lay_out(tmp_path, {0: [records_of(0, (b"b", b"2"))], 1: []})
    batches = [encode(records_of(i, (b"a", b"%d" % i))) for i in range(3)]
    other = encode(records_of(0, (b"b", b"a")))
    for name, data in {
        f"segmentlog.{0:020d}.log.0.broken": batches[0] + batches[1][:-1] + b"?" + batches[2],
        f"segmentlog.{0:020d}.log.7.broken.2.broken": other,
        f"{0:020d}.log.cleaned": batches[0],
        f"{0:020d}.log.77.deleted": batches[0] + batches[1],
        f"{5:020d}.log.deleted": encode(records_of(5, (b"b", b"a"))),
    }.items():
        (partition / name).write_bytes(data)
    for state in ("future", "delete", "stray"):
        copied = tmp_path / f"t-3.{'0' * 32}-{state}"
        copied.mkdir()
        (copied / f"{0:020d}.log").write_bytes(batches[0] + batches[1])
        (copied / f"{2:020d}.log.deleted").write_bytes(batches[2])
    clean = tmp_path / f"u-0.{'1' * 32}-stray"
    clean.mkdir()
    (clean / f"{0:020d}.log").write_bytes(other)
    (tmp_path / "segmentlog.0123.4.5.stage").write_bytes(b"")
    deleted = ("deleted", f"t-0/{0:020d}.log.77.deleted", 2)
    broken = ("broken", f"t-0/segmentlog.{0:020d}.log.0.broken", 1)
    moved = [
        (kind, f"t-3.{'0' * 32}-{state}", 3)
        for kind, state in (
            ("deleted-partition", "delete"),
            ("future-replica", "future"),
            ("stray-partition", "stray"),
        )
    ]
    staged = ("staged", "segmentlog.0123.4.5.stage", -1)
    cleaned = ("unfinished", f"t-0/{0:020d}.log.cleaned", 1)

    assert [staged, deleted, cleaned, broken, *moved] == copies(tmp_path, dry_run=True)
    assert [staged, deleted, cleaned, broken] == copies(tmp_path, partitions=[0], dry_run=True)
    assert [staged, broken, *moved] == copies(tmp_path, topics="t", purge=True)
    (_, found, *_) = segmentlog.erase(tmp_path, "a", "t")
    assert "first bad batch" in found.remaining[0].reason
    with pytest.raises(LogDirectoryError, match="no topic has a partition 1 here"):
        segmentlog.erase(tmp_path, "a", partitions=[1])


def test_a_topic_of_which_only_renamed_directories_are_left(tmp_path: Path) -> None:
    """The topic can be named; a topic of which nothing is left is unknown."""
    lay_out(tmp_path, {0: [records_of(0, (b"a", b"1"))]}, "u-0")
    gone = lay_out(tmp_path, {0: [records_of(0, (b"a", b"1"))]}, "t-0")
    gone.rename(tmp_path / f"t-0.{'0' * 32}-delete")
    (tmp_path / f"t-1.{'0' * 32}-stray").write_bytes(b"a")
    expected = [
        ("deleted-partition", f"t-0.{'0' * 32}-delete", 1),
        ("stray-partition", f"t-1.{'0' * 32}-stray", -1),
    ]

    assert expected == copies(tmp_path, topics="t")
    assert 1 == segmentlog.open_log_dir(tmp_path).log("u", 0).scan().read_all().num_rows
    with pytest.raises(UnknownTopicOrPartitionError):
        segmentlog.erase(tmp_path, "a", ["t", "v"])


def test_a_directory_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The erasure is done by then, and its result is returned anyway."""
    lay_out(tmp_path, {0: [records_of(0, (b"a", b"1"))]})
    moved = tmp_path / f"t-1.{'0' * 32}-stray"
    moved.mkdir()
    usual = module.list_entries

    def refused(path: str) -> list[Entry]:
        if path == str(moved):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return usual(path)

    monkeypatch.setattr(module, "list_entries", refused)
    done, left = segmentlog.erase(tmp_path, "a", purge=True)

    assert (1, ()) == (done.records, done.remaining)
    ((kind, path, records, _, reason),) = left.remaining
    assert ("stray-partition", str(moved), -1) == (kind, path, records)
    assert "it cannot be listed: Permission denied" == reason


def test_links_that_readers_leave_out_are_named(tmp_path: Path) -> None:
    """A broker follows a link, and serves the records."""
    partition = lay_out(tmp_path / "logs", {0: [records_of(0, (b"a", b"1"))], 1: []})
    segment = partition / f"{0:020d}.log"
    segment.rename(tmp_path / "segment")
    segment.symlink_to(tmp_path / "segment")
    shutil.copytree(partition, tmp_path / "t-1")
    (tmp_path / "logs" / "t-1").symlink_to(tmp_path / "t-1")

    expected = [("link", f"t-0/{0:020d}.log", -1), ("link", "t-1", -1)]
    assert expected == copies(tmp_path / "logs")
    assert expected[1:] == copies(tmp_path / "logs", partitions=[0, 1])[1:]


def test_a_dry_run_names_what_a_finished_swap_has_replaced(tmp_path: Path) -> None:
    """Readers take the new segments for the log, and the old ones have the records."""
    partition = lay_out(
        tmp_path, {0: [records_of(0, (b"a", b"1"))], 1: [records_of(1, (b"b", b"2"))], 2: []}
    )
    emptied = encode(records_of(0, (b"a", b"1"))._replace(records=()))
    (partition / f"{0:020d}.log.swap").write_bytes(emptied)
    segmentlog.open_log_dir(tmp_path)

    assert [("unfinished", f"t-0/{0:020d}.log", 1)] == copies(tmp_path, dry_run=True)
    assert [("deleted", f"t-0/{0:020d}.log.deleted", 1)] == copies(tmp_path)


@pytest.mark.parametrize("purge", [True, False])
def test_a_purge_takes_the_space_of_one_segment(tmp_path: Path, purge: bool) -> None:
    """Each replaced segment is removed before the next one is written.

    Files whose delay is over are removed before the first one is.
    """
    log = {i: [records_of(i, (b"a", b"1"))] for i in range(5)}
    partition = lay_out(tmp_path, log)
    old = partition / f"{77:020d}.log.deleted"
    old.write_bytes(b"")
    settings = tmp_path / "server.properties"
    settings.write_text("log.segment.delete.delay.ms=1\n")
    time.sleep(0.002)
    most = 0

    def count(name: str, forward: Forward) -> object:
        nonlocal most
        if name == "pwrite" and [*partition.glob("*.cleaned")]:
            assert not old.exists()
            most = max(most, len([*partition.glob("*.log.deleted")]))
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, count)
        segmentlog.erase(tmp_path, "a", server_properties=settings, purge=purge)
    assert (0 if purge else 4) == most


def test_segments_in_tiered_storage_are_named(tmp_path: Path) -> None:
    """The broker's list has the segments of a log, which may have such records."""
    written(tmp_path)
    ids = [f"{letter * 21}A" for letter in "BCD"]
    announce(
        tmp_path,
        [Listed(ids[0], 0, 99, 1), Listed(ids[1], 100, 199, 1, 0), Listed(ids[2], 200, 299, 1, 3)],
    )
    (found,) = segmentlog.erase(tmp_path, "nobody")
    (copy,) = found.remaining

    assert ("t", 0, 0, "tier", -1) == (*found[:3], copy.kind, copy.records)
    assert copy.reason.startswith("2 segments with offsets from 0 to 199 in tiered storage")
    assert [] == segmentlog.erase(tmp_path, "nobody", "__remote_log_metadata")


def test_refusals(tmp_path: Path) -> None:
    """No key, keys of a wrong type, and a directory that is in use are refused."""
    lay_out(tmp_path, {0: [records_of(0, (b"k", b"v"))]})
    for keys in ([], [3], None, 7, "\udcff"):
        with pytest.raises(OptionError, match="keys"):
            segmentlog.erase(tmp_path, keys)  # type: ignore[arg-type]
    for frame in (pa.table({"k": ["v"]}), pd.DataFrame({"k": ["v"]}), np.array([], "S1")):
        with pytest.raises(OptionError, match="keys"):  # a name of a column is no key
            segmentlog.erase(tmp_path, frame)
    with pytest.raises(segmentlog.UnknownTopicOrPartitionError):  # and not all topics
        segmentlog.erase(tmp_path, "k", topics="")
    with pytest.raises(OptionError, match="partitions"):
        segmentlog.erase(tmp_path, "k", partitions="5")  # type: ignore[arg-type]
    with as_broker(tmp_path):
        for dry_run in (False, True):
            with pytest.raises(LogLockedError):
                segmentlog.erase(tmp_path, b"k", dry_run=dry_run, lock_timeout_seconds=0)
    with pytest.raises(LogDirectoryError):
        segmentlog.erase(tmp_path / "t-0", b"k")
