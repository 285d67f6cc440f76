"""``segmentlog.analyze``: each figure of small logs, hostile ones, too."""

import errno
import json
import pickle
import shutil
import struct
from collections.abc import Sequence
from os import cpu_count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.analysis import plan_analysis, report_of_tasks, run_task, tasks_of
from segmentlog.analysis import scan_partition as scanning
from segmentlog.analysis.analyze import analyze_plan
from segmentlog.analysis.report import FindingCode, Urgency
from segmentlog.analysis.retention import Forecast
from segmentlog.errors import (
    LogDirectoryError,
    OptionError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from segmentlog.model import LogSlice
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.testing import codecs
from segmentlog.testing.damage import Damage, flip_bit, set_field
from segmentlog.testing.legacy import encode_message, encode_wrapper
from segmentlog.testing.reference import Record, encode_batch

NOW = 1_700_000_000_000
ABORT, COMMIT = 0, 1


def records(start: int, n: int, **fields: Any) -> list[Record]:
    """Records of which each field is a value, or a function of the offset."""
    made = []
    for offset in range(start, start + n):
        given: dict[str, Any] = {
            "timestamp_ms": NOW + offset,
            "key": b"k%d" % offset,
            "value": b"v",
        } | fields
        values = {name: each(offset) if callable(each) else each for name, each in given.items()}
        made.append(Record(offset, **values))
    return made


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    """An end marker."""
    record = Record(offset, NOW, struct.pack(">hh", 0, kind), bytes(6))
    return encode_batch([record], attributes=0x30, producer=(producer_id, 0, -1))


def write(path: Path, name: str, *batches: bytes, base: int = 0) -> Path:
    """A partition of one segment."""
    (path / name).mkdir(parents=True, exist_ok=True)
    (path / name / f"{base:020d}.log").write_bytes(b"".join(batches))
    return path


def figures(path: Path, topic: str = "t", **options: Any) -> Any:
    """Those of one topic that can be read."""
    found = segmentlog.analyze(path, topics=topic, **options)
    assert found.is_sound, (found.problems, [each.problems for each in found.topics])
    (report,) = found.topics
    return report.figures


def codes(path: Path, **options: Any) -> set[FindingCode]:
    """The codes of all findings."""
    return {each.code for each in segmentlog.analyze(path, **options).findings}


def test_batches_codecs_and_sizes(tmp_path: Path) -> None:
    """Each batch counts with its size, and each codec with its batches."""
    batches = [
        encode_batch(records(0, 3)),
        encode_batch(records(3, 200), codec=codecs.ZSTD),
        encode_batch(records(203, 2), codec=codecs.GZIP),
        encode_batch(records(205, 1)),
    ]
    found = figures(write(tmp_path, "t-0", *batches)).batches
    used = {each.codec: (each.n_batches, each.n_bytes) for each in found.codecs}

    assert (4, sum(map(len, batches))) == (found.n_batches, found.n_bytes)
    assert {
        "none": (2, len(batches[0]) + len(batches[3])),
        "zstd": (1, len(batches[1])),
        "gzip": (1, len(batches[2])),
    } == used
    assert 4 == sum(each.count for each in found.sizes)
    assert all(bar.least <= bar.most for bar in found.sizes)
    assert 4 * 61 == found.header_bytes


def test_what_zstd_would_save_is_what_it_saves(tmp_path: Path) -> None:
    """Small batches that are put together save more than each alone."""
    batches = [encode_batch(records(10 * i, 10, value=b"the same value")) for i in range(40)]
    found = figures(write(tmp_path, "t-0", *batches)).zstd
    smaller = [encode_batch(records(0, 10, value=b"the same value"), codec=codecs.ZSTD)]

    assert (40, sum(map(len, batches))) == (found.sampled_batches, found.sampled_bytes)
    assert 1 - len(smaller[0]) / len(batches[0]) == pytest.approx(found.saved, abs=0.1)
    assert found.saved_joined > found.saved + 0.2


def test_keys_values_and_the_heaviest_keys(tmp_path: Path) -> None:
    """Keys of null, of no byte, of bytes that are not UTF-8, and of a megabyte are keys."""
    keys = [None, b"", b"\xff\xfe", b"x" * 1_000_000, *[b"hot"] * 6]
    values = [None, None, b"", b"1", *[b"22"] * 6]
    batch = encode_batch(records(0, 10, key=keys.__getitem__, value=values.__getitem__))
    path = write(tmp_path, "t-0", batch)
    found = figures(path)

    assert (1, 4, 0.0, 1_000_000) == (
        found.keys.n_null,
        found.keys.distinct,
        found.keys.distinct_error,
        found.keys.largest,
    )
    assert (2, 1, 13) == (found.values.n_null, found.values.n_tombstones, found.values.n_bytes)
    (heaviest,) = found.keys.heaviest
    assert (6, 6, 6 / 9, 3, 0, 4, None) == (
        heaviest.n_records,
        heaviest.most_records,
        heaviest.share,
        heaviest.n_bytes,
        heaviest.partition,
        heaviest.offset,
        heaviest.key,
    )
    assert "hot" not in json.dumps(segmentlog.analyze(path).to_json())
    (shown,) = figures(path, show_keys=True).keys.heaviest
    assert (heaviest.id, b"hot") == (shown.id, shown.key)


def test_formats_schema_ids_and_headers(tmp_path: Path) -> None:
    """A value has the first format that fits; a schema's id counts in each value."""
    values = [
        b'{"a": 1}',
        b"[1, 2]",
        b"plain text",
        b"\0\1\2",
        b"\x1f\x8b\x08\0",
        b"\xff\xff",
        b"\0\0\0\0\7avro",
        b"\0\0\0\0\7more",
        b"\0\0\0\0\3x",
        None,
    ]
    headers = [((b"trace", b"1"), (b"trace", b"2"), (b"\xff<b>", b"")), *[()] * 9]
    batch = encode_batch(records(0, 10, value=values.__getitem__, headers=headers.__getitem__))
    found = figures(write(tmp_path, "t-0", batch))

    assert {"json": 2, "text": 1, "binary": 2, "compressed": 1, "registry": 3} == {
        each.format: each.n_records for each in found.formats.values
    }
    assert [(7, 2), (3, 1)] == [(each.id, each.n_records) for each in found.formats.schema_ids]
    assert ["text"] == [each.format for each in found.formats.keys]
    assert (10, 1) == (found.formats.sampled_records, found.headers.n_with_headers)
    assert {("trace", 1), ("\\xff<b>", 1)} == {
        (each.name, each.n_records) for each in found.headers.names
    }


def test_types_and_subjects_come_from_the_topic_of_a_registry(tmp_path: Path) -> None:
    """Ids that the topic `_schemas` has are described, and other ids are not."""
    key = json.dumps({"keytype": "SCHEMA", "subject": "t-value", "version": 1, "magic": 1})
    value = {"subject": "t-value", "version": 1, "id": 7, "deleted": False, "schema": "{}"}
    schema = records(0, 1, key=key.encode(), value=json.dumps(value).encode())
    write(tmp_path, "_schemas-0", encode_batch(schema))
    write(
        tmp_path,
        "t-0",
        encode_batch(records(0, 3, value=lambda i: b"\0\0\0\0" + b"\7\7\3"[i : i + 1])),
    )
    found = figures(tmp_path).formats.schema_ids

    assert [(7, "AVRO", "t-value"), (3, "", "")] == [
        (each.id, each.type, each.subject) for each in found
    ]


def test_clocks(tmp_path: Path) -> None:
    """Records in the future, at zero and before the one before them are counted."""
    far = 4_000_000_000_000
    times = [NOW, NOW + 5, NOW + 1, 0, far, NOW, NOW]
    path = write(tmp_path, "t-0", encode_batch(records(0, 7, timestamp_ms=times.__getitem__)))
    found = figures(path).clocks

    assert (0, far, 3, far - NOW) == (
        found.least_ms,
        found.largest_ms,
        found.n_back,
        found.most_back_ms,
    )
    assert (1, 1, 0) == (found.n_before_2000, found.n_in_future, found.n_without)
    assert {FindingCode.FUTURE_TIMES, FindingCode.OLD_TIMES} <= codes(path)


def test_transactions_that_reach_over_batches(tmp_path: Path) -> None:
    """Aborted records are those of aborted transactions; an open one is not aborted."""
    batches = [
        encode_batch(records(0, 4), attributes=0x10, producer=(1, 0, 0)),
        encode_batch(records(4, 3), attributes=0x10, producer=(2, 0, 0)),
        encode_batch(records(7, 5), attributes=0x10, producer=(1, 0, 4)),
        marker(12, 1, ABORT),
        marker(13, 2, COMMIT),
        encode_batch(records(14, 2), attributes=0x10, producer=(2, 0, 3)),
        encode_batch(records(16, 1), producer=(9, 0, 0)),
    ]
    path = write(tmp_path, "t-0", *batches)
    found = figures(path)
    producers = found.producers

    assert (3, 5, 4) == (
        producers.n_producers,
        producers.n_idempotent_batches,
        producers.n_transactional_batches,
    )
    assert (1, 1, 9) == (
        producers.n_committed,
        producers.n_aborted,
        producers.n_aborted_records,
    )
    assert (1, 2) == (producers.n_open, producers.n_open_records)
    assert (15, 2) == (found.offsets.n_records, found.offsets.n_markers)
    assert {FindingCode.ABORTED, FindingCode.OPEN_TRANSACTIONS} <= codes(path)


def test_every_offset_has_become_something(tmp_path: Path) -> None:
    """Records, markers, and gaps: before the start, in batches, and between them."""
    batches = [
        encode_batch([*records(10, 2), *records(17, 3)]),  # five are gone inside
        encode_batch([], base_offset=20, last_offset=24),  # and five in an emptied batch
        marker(25, 1, COMMIT),
        encode_batch(records(30, 1)),
    ]
    found = figures(write(tmp_path, "t-0", *batches, base=10))
    offsets = found.offsets

    assert (6, 1, 14, 10, 0, 0) == (
        offsets.n_records,
        offsets.n_markers,
        offsets.n_removed,
        offsets.n_deleted,
        offsets.n_lost,
        offsets.n_unreadable,
    )
    assert 1 == found.batches.n_empty
    assert 31 == sum((offsets.n_records, offsets.n_markers, offsets.n_removed, offsets.n_deleted))


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats(tmp_path: Path, magic: int) -> None:
    """Each message is a batch, and a wrapper has the codec of its messages."""
    wrapped = encode_wrapper(records(2, 5), codecs.GZIP, magic=magic)
    single = [encode_message(each, magic=magic) for each in records(0, 2)]
    found = figures(write(tmp_path, "t-0", *single, wrapped))

    assert (7, 3, 3) == (found.n_records, found.batches.n_batches, found.batches.n_legacy)
    assert {"none": 2, "gzip": 1} == {each.codec: each.n_batches for each in found.batches.codecs}
    assert (7 if magic == 0 else 0) == found.clocks.n_without
    assert 0 == found.offsets.n_removed


def test_a_topic_of_control_batches_alone(tmp_path: Path) -> None:
    """Nothing is divided by the number of records."""
    path = write(tmp_path, "t-0", marker(0, 1, COMMIT), marker(1, 1, COMMIT))
    found = figures(path)

    assert (0, 2, 2) == (
        found.n_records,
        found.batches.n_control_batches,
        found.offsets.n_markers,
    )
    assert found.clocks.least_ms is None
    assert found.zstd.saved is None


def test_tombstones_and_null_keys_alone(tmp_path: Path) -> None:
    """A topic of tombstones, and one without keys."""
    write(tmp_path, "gone-0", encode_batch(records(0, 200, value=None)))
    write(tmp_path, "keyless-0", encode_batch(records(0, 5, key=None)))
    gone, keyless = figures(tmp_path, "gone"), figures(tmp_path, "keyless")

    assert (200, 200, 0) == (gone.values.n_tombstones, gone.values.n_null, gone.values.n_bytes)
    assert (0, 5, ()) == (keyless.keys.distinct, keyless.keys.n_null, keyless.keys.heaviest)
    assert {FindingCode.TOMBSTONES} == codes(tmp_path, topics="gone")


def test_nothing_and_topics_without_records(tmp_path: Path) -> None:
    """A directory without topics has an empty report; a topic without records has zeros."""
    with segmentlog.open_writer(tmp_path, "empty", num_partitions=2) as writer:
        writer.append(pa.table({"value": pa.array([], pa.binary())}))
    (empty,) = segmentlog.analyze(tmp_path).topics

    assert (2, 0, ()) == (len(empty.partitions), empty.figures.n_records, empty.findings)
    shutil.rmtree(tmp_path / "empty-0")
    shutil.rmtree(tmp_path / "empty-1")
    found = segmentlog.analyze(tmp_path)
    assert ((), (), True) == (found.topics, found.findings, found.is_sound)


def test_a_missing_topic_and_wrong_arguments_are_refused(tmp_path: Path) -> None:
    """Nothing is scanned then."""
    write(tmp_path, "t-0", encode_batch(records(0, 1)))
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        segmentlog.analyze(tmp_path, topics=["t", "nowhere"])
    with pytest.raises(OptionError, match=r"retention\.ms"):
        segmentlog.analyze(tmp_path, settings={"retention.ms": "soon"})
    with pytest.raises(LogDirectoryError):
        segmentlog.analyze(tmp_path / "no-such-directory")


@pytest.mark.parametrize(
    ("damage", "use_threads"),
    [
        (flip_bit(batch=2, field="body"), True),
        (flip_bit(batch=2, field="body"), False),
        (set_field(batch=2, field="attributes", value=7, repair=True), True),
        (set_field(batch=2, field="magic", value=9), True),
    ],
)
def test_damage_is_named_and_all_else_is_analyzed(
    tmp_path: Path, damage: Damage, use_threads: bool
) -> None:
    """Other batches of the partition, and other partitions, have their figures."""
    batches = [encode_batch(records(10 * i, 10)) for i in range(6)]
    for number in range(3):
        write(tmp_path, f"t-{number}", *batches)
    damage(tmp_path / "t-1" / f"{0:020d}.log")
    found = segmentlog.analyze(tmp_path, use_threads=use_threads)
    (report,) = found.topics
    damaged = report.partitions[1]

    assert not found.is_sound
    assert [60, 50, 60] == [each.figures.n_records for each in report.partitions]
    assert (10, 0) == (damaged.figures.offsets.n_unreadable, damaged.figures.offsets.n_removed)
    assert len(damaged.problems) == 1
    assert f"byte {len(batches[0] + batches[1])} " in damaged.problems[0]
    assert damaged.figures.formats.sampled_records <= 50  # the second read samples them again
    assert (Urgency.PROBLEM, FindingCode.PROBLEM, 1) == (
        found.findings[0].urgency,
        found.findings[0].code,
        found.findings[0].partition,
    )
    assert 170 == report.figures.n_records


@pytest.mark.parametrize("use_threads", [True, False])
def test_an_error_ends_the_scan_of_its_own_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_threads: bool
) -> None:
    """A file is removed after its slices were planned; progress adds up all the same."""
    for number in range(4):
        write(tmp_path, f"t-{number}", *(encode_batch(records(10 * i, 10)) for i in range(6)))
    scan_slice = scanning.scan_slice

    def scan(log_slice: LogSlice, **others: Any) -> Any:
        if log_slice.partition == 1:
            (tmp_path / "t-1" / f"{0:020d}.log").unlink()
        return scan_slice(log_slice, **others)

    monkeypatch.setattr(scanning, "scan_slice", scan)
    n_bytes = sum(each.stat().st_size for each in tmp_path.rglob("*.log"))
    done = list[int]()
    found = segmentlog.analyze(tmp_path, use_threads=use_threads, on_bytes=done.append)
    (report,) = found.topics

    assert [60, 0, 60, 60] == [each.figures.n_records for each in report.partitions]
    assert [0, 1, 0, 0] == [len(each.problems) for each in report.partitions]
    assert n_bytes == sum(done)


def test_a_partition_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """Its batches have a format that is newer, for example."""
    good = encode_batch(records(0, 2))
    write(tmp_path, "t-0", good)
    write(tmp_path, "t-1", good[:16] + b"\7" + good[17:])
    found = segmentlog.analyze(tmp_path)
    (report,) = found.topics

    assert [2, 0] == [each.figures.n_records for each in report.partitions]
    assert not found.is_sound


def test_what_retention_will_remove(tmp_path: Path) -> None:
    """A segment that is too old is due; the next one has a time; defaults are said to be those."""
    old = encode_batch(records(0, 5, timestamp_ms=NOW))
    young = encode_batch(records(5, 5, timestamp_ms=4_000_000_000_000))
    write(tmp_path, "t-0", old)
    write(tmp_path, "t-0", young, base=5)
    found = figures(tmp_path).retention

    assert (1, len(old)) == (found.n_due_segments, found.due_bytes)
    assert (4_000_000_000_000 + 604_800_000, len(young)) == (found.next_ms, found.next_bytes)
    assert "default" in found.source
    kept = figures(tmp_path, settings={"retention.ms": "-1"}).retention
    assert (0, None) == (kept.n_due_segments, kept.next_ms)
    assert "retention.ms: as given" in kept.source
    policy = figures(tmp_path, settings={"cleanup.policy": "compact"}).retention
    assert ("compact", 0, None) == (policy.policy, policy.n_due_segments, policy.next_ms)


def test_retention_begins_at_the_largest_timestamp_also_at_zero(tmp_path: Path) -> None:
    """Only a segment without timestamps is as old as its file."""
    write(tmp_path, "t-0", encode_batch(records(0, 5, timestamp_ms=0)))
    long = {"retention.ms": "4000000000000"}
    found = figures(tmp_path, settings=long).retention
    assert (0, 4_000_000_000_000) == (found.n_due_segments, found.next_ms)
    without = write(tmp_path / "u", "t-0", encode_batch(records(0, 5, timestamp_ms=-1)))
    path = without / "t-0" / f"{0:020d}.log"
    found = figures(without, settings=long).retention
    assert path.stat().st_mtime_ns // 10**6 + 4_000_000_000_000 == found.next_ms
    assert path.stat().st_size == found.next_bytes


def test_retention_that_cannot_be_told_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else is there, and an error that the scan has met is told once."""
    write(tmp_path, "t-0", encode_batch(records(0, 5)))

    def refuse(*_: object) -> None:
        raise LogDirectoryError(str(tmp_path), "no settings")

    monkeypatch.setattr(Forecast, "of", refuse)
    (report,) = segmentlog.analyze(tmp_path).topics
    assert (f"{tmp_path}: no settings",) == report.problems
    assert (5, "unknown") == (report.figures.n_records, report.figures.retention.source)


def test_what_one_would_change(tmp_path: Path) -> None:
    """Small batches, a hot key, and keys that come again in a compacted topic."""
    hot = [
        encode_batch(records(10 * i, 10, key=lambda i: b"hot" if i % 2 else b"k%d" % (i % 40)))
        for i in range(200)
    ]
    write(tmp_path, "t-0", *hot)
    compact = {"cleanup.policy": "compact"}

    assert {FindingCode.SMALL_BATCHES, FindingCode.HOT_KEY} == codes(tmp_path)
    assert {FindingCode.SMALL_BATCHES, FindingCode.HOT_KEY, FindingCode.COMPACTION} == codes(
        tmp_path, settings=compact
    )
    small = next(
        each
        for each in segmentlog.analyze(tmp_path).findings
        if each.code == FindingCode.SMALL_BATCHES
    )
    assert 0 < small.saved_bytes < sum(map(len, hot))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic that several slices hold."""
    path = tmp_path_factory.mktemp("large")
    n = 120_000
    rows = pa.table(
        {
            "key": pa.array([b"key-%d" % (i % 7_919) for i in range(n)], pa.binary()),
            "value": pa.array([b"%0300d" % i for i in range(n)], pa.binary()),
        }
    )
    with segmentlog.open_writer(path, "t", num_partitions=2) as writer:
        writer.append(rows)
    return path


def test_threads_and_slices_change_nothing(large: Path) -> None:
    """The same figures come from one thread and from several, and progress adds up."""
    done = list[int]()
    found = [
        segmentlog.analyze(large, use_threads=use_threads, on_bytes=done.append)
        for use_threads in (True, False)
    ]
    (first, second) = (each.topics[0].figures for each in found)

    assert first == second
    assert 120_000 == first.n_records
    assert 2 * first.n_bytes == sum(done)
    assert abs(first.keys.distinct - 7_919) < 0.03 * 7_919
    assert first.batches.n_bytes == first.n_bytes
    assert 0 < first.formats.sampled_records < 20_000


def test_a_partition_that_has_failed_is_not_read_to_its_end(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails is not asked for every slice."""
    begun = list[int]()

    def scan(log_slice: LogSlice, **_: Any) -> Any:
        begun.append(log_slice.partition)
        raise StorageError(errno.EIO, "the disk fails", "a file")

    monkeypatch.setattr(scanning, "scan_slice", scan)
    monkeypatch.setattr(
        scanning, "cut_for_threads", lambda cut, offsets, **_: cut(*offsets, 1 << 18)
    )
    for use_threads in (False, True):
        found = segmentlog.analyze(large, use_threads=use_threads)

        assert [1, 1] == [len(each.problems) for each in found.topics[0].partitions]
    assert {0, 1} == {*begun}
    assert len(begun) <= 2 * 2 * ((cpu_count() or 1) + 2)  # those that are ahead of the failed one
    assert len(open_log_dir(large).log("t", 0).slices(0, 10**6, 1 << 18)) > 30


def test_partitions_add_up_to_the_topic(large: Path) -> None:
    """Numbers of a topic are sums of those of its partitions."""
    (report,) = segmentlog.analyze(large).topics
    parts: Sequence[Any] = [each.figures for each in report.partitions]

    for name in ("n_records", "n_bytes", "n_segments"):
        assert getattr(report.figures, name) == sum(getattr(each, name) for each in parts)
    assert report.figures.clocks.n_back == sum(each.clocks.n_back for each in parts)
    assert report.figures.batches.n_batches == sum(each.batches.n_batches for each in parts)


def test_json_has_every_field_and_only_plain_values(large: Path) -> None:
    """It can be written and read again."""
    found = segmentlog.analyze(large)
    written = json.loads(json.dumps(found.to_json()))

    assert {"version", "paths", "analyzedMs", "topics", "problems", "findings"} == written.keys()
    assert 1 == written["version"]
    assert 120_000 == written["topics"][0]["figures"]["records"]
    assert [0, 1] == [each["partition"] for each in written["topics"][0]["partitions"]]


@pytest.mark.parametrize("most", [1, 2, 5, 1000])
def test_tasks_of_other_processes_give_the_same_report(tmp_path: Path, most: int) -> None:
    """However many tasks there are: damage, transactions, and what was sampled, too."""
    batches = [encode_batch(records(10 * i, 10)) for i in range(6)]
    for number in range(5):
        write(tmp_path, f"t-{number}", *batches[: number + 1])
    write(tmp_path, "u-0", encode_batch(records(0, 4), attributes=0x10, producer=(1, 0, 0)))
    write(tmp_path, "u-1", encode_batch(records(0, 9)), marker(9, 1, ABORT))
    flip_bit(batch=2, field="body")(tmp_path / "t-3" / f"{0:020d}.log")
    plan = plan_analysis(tmp_path, show_keys=True)
    tasks = [pickle.loads(pickle.dumps(each)) for each in tasks_of(plan, most)]
    found = report_of_tasks(plan, map(run_task, tasks))

    assert plan.partitions == [
        (task.topic, number) for task in tasks for number in task.partitions
    ]
    assert {1: 2, 1000: 7}.get(most, len(tasks)) == len(tasks)
    assert analyze_plan(plan) == found


@pytest.mark.parametrize(
    "spoil", [lambda each: each.pop("figures"), lambda each: each.update(partition="x")]
)
def test_an_outcome_that_no_task_has_made_is_refused(tmp_path: Path, spoil: Any) -> None:
    """A worker sends plain values, of which the types are checked."""
    write(tmp_path, "t-0", encode_batch(records(0, 1)))
    plan = plan_analysis(tmp_path)
    outcome = json.loads(run_task(tasks_of(plan, 1)[0]))
    spoil(outcome["reports"][0])

    with pytest.raises(ValueError, match="no PartitionReport"):
        report_of_tasks(plan, [json.dumps(outcome)])


def _log_of(path: Path, topic: str, records: Sequence[Record]) -> None:
    directory = path / f"{topic}-0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}.log").write_bytes(encode_batch(list(records)))


def test_headers_that_fill_a_topic_are_explained(tmp_path: Path) -> None:
    headers = ((b"x-trace", b"0123456789abcdef"),) * 1000
    records = [Record(i, 1_760_000_000_000, b"k", b"v", headers) for i in range(20)]
    _log_of(tmp_path, "orders", records)
    (found,) = segmentlog.analyze(tmp_path).topics
    assert (20_000, 460_000) == (found.figures.headers.n_headers, found.figures.headers.n_bytes)
    (advice,) = [each for each in found.findings if each.code == FindingCode.HEADERS]
    assert "1,000 headers of 23,000 bytes in a record, most often 'x-trace'" in advice.text
    assert "several times" in advice.text


def test_numbers_are_no_schemas_and_long_ids_are(tmp_path: Path) -> None:
    """A long, a double, the id 0, and the eight bytes in which Apicurio writes an id."""
    values = [struct.pack(">q", 7), struct.pack(">d", 0.0), b"\0\0\0\0\0abc", b"\0" * 20]
    values += [
        b"\0" + struct.pack(">q", 7) + b"payload",
        b"\0" + struct.pack(">i", 7) + b"payload",
    ]
    records = [Record(i, 1_760_000_000_000, None, each) for i, each in enumerate(values)]
    _log_of(tmp_path, "t", records)
    (found,) = segmentlog.analyze(tmp_path).topics
    formats = {each.format: each.n_records for each in found.figures.formats.values}
    assert formats == {"binary": 4, "registry": 2}
    assert [(7, 1)] == [(each.id, each.n_records) for each in found.figures.formats.schema_ids]


def test_times_in_milliseconds_are_no_schemas(tmp_path: Path) -> None:
    """They begin with a zero and with what looks like an id of a schema."""
    values = [struct.pack(">q", 1_700_000_000_000 + i) for i in range(20)]
    records = [Record(i, 1_760_000_000_000, None, each) for i, each in enumerate(values)]
    _log_of(tmp_path, "t", records)
    (found,) = segmentlog.analyze(tmp_path).topics
    formats = found.figures.formats

    assert [("binary", 20)] == [(each.format, each.n_records) for each in formats.values]
    assert ((), 0) == (formats.schema_ids, formats.n_other_ids)


def test_the_largest_retention_is_never(tmp_path: Path) -> None:
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(pa.table({"value": ["a"]}))
    settings = {"retention.ms": str(2**63 - 1), "segment.ms": "1"}
    segmentlog.compact(tmp_path, settings=settings | {"cleanup.policy": "compact"}, roll=True)
    report = segmentlog.analyze(tmp_path, settings=settings)
    assert report.topics[0].figures.retention.next_ms is None
