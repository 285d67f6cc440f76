"""A topic is cloned: its order, its values, its groups, and what is refused."""

import pickle
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from coordinator_logs import write_commits
from producer_batches import batch as producer_batch
from producer_batches import plant

import segmentlog
from segmentlog import Codec, GroupOffset, LogDirectoryError, OptionError, SplitKeyError
from segmentlog.errors import ColumnError
from segmentlog.maintain.cloning import job as module
from segmentlog.maintain.cloning.clone import CloneSettings
from segmentlog.maintain.cloning.job import group_table, places_of_groups
from segmentlog.maintain.cloning.split_keys import find_split_keys
from segmentlog.maintain.cloning.task import GroupPlaces, run_task

EPOCH_US = 1_700_000_000_000_000


def rows(n_records: int, n_keys: int = 50, seed: int = 1, null_share: float = 0.0) -> pa.Table:
    """Records of some keys, a millisecond after another; a value is the number of its record."""
    numbers = np.random.default_rng(seed)
    keys = pa.array(numbers.integers(0, n_keys, n_records)).cast(pa.string()).cast(pa.binary())
    is_null = numbers.random(n_records) < null_share
    times = EPOCH_US + 1000 * np.arange(n_records)
    return pa.table(
        {
            "key": pa.array(keys.to_pylist(), pa.binary(), mask=is_null),
            "value": pa.array(np.arange(n_records)).cast(pa.string()).cast(pa.binary()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def write(path: Path, table: pa.Table, n_partitions: int = 3, **config: Any) -> Path:
    """A log directory with the topic ``t``."""
    settings = segmentlog.ProducerConfig(use_timestamps=True, **config)
    with segmentlog.open_writer(path, "t", num_partitions=n_partitions, config=settings) as writer:
        writer.append(table)
    return path


def by_key(path: Path, topic: str) -> dict[Any, list[tuple[int, bytes]]]:
    """Partition and value of the records of each key, in the order of their partitions."""
    found = defaultdict(list)
    for row in segmentlog.read(path, topic, columns=["key", "partition", "value"]).to_pylist():
        found[row["key"]].append((row["partition"], row["value"]))
    return found


def values(path: Path, topic: str, **options: Any) -> list[Any]:
    return segmentlog.read(path, topic, columns=["value"], **options)["value"].to_pylist()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "source", rows(2000))


def test_each_key_keeps_its_order_and_goes_where_a_producer_puts_it(
    source: Path, tmp_path: Path
) -> None:
    """The clone has the records of a topic that was written with its number of partitions."""
    found = segmentlog.clone(source, "t", "u", to=tmp_path / "clone", num_partitions=7)

    write(tmp_path / "fresh", rows(2000), 7)
    assert by_key(tmp_path / "fresh", "t") == by_key(tmp_path / "clone", "u")
    assert 2000 == sum(each.n_records for each in found.partitions)
    assert ["u"] == list(segmentlog.open_log_dir(tmp_path / "clone").topics())


@pytest.mark.parametrize("n_partitions", [24, 1])
def test_a_hundred_thousand_records_keep_the_order_of_their_keys(
    tmp_path: Path, n_partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All windows of time together are the topic; each key rises in one partition."""
    monkeypatch.setattr(module, "_WINDOW_BYTES", 200_000)
    source = write(tmp_path / "source", rows(100_000, 5000), 6)
    segmentlog.clone(source, "t", "u", to=tmp_path / "c", num_partitions=n_partitions)
    check_order(tmp_path / "c", "u", 100_000)


def test_time_rises_in_a_clone_of_many_windows_if_it_rises_in_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many records of a time, which lie on both sides of a bound; a partition begins late."""
    table = rows(6000)
    table = table.set_column(
        2,
        "timestamp",
        pa.array(EPOCH_US + np.arange(6000) // 40 * 1000, pa.timestamp("us", "UTC")),
    )
    parts = np.where(np.arange(6000) < 3000, np.arange(6000) % 2, np.arange(6000) % 3)
    source = write(
        tmp_path / "s",
        table.append_column("partition", pa.array(parts, pa.int32())),
        batch_size=400,
    )
    monkeypatch.setattr(module, "_WINDOW_BYTES", 4_000)
    opened = segmentlog.open_log_dir(source)
    job = module.CloneJob(opened, CloneSettings("t", "u", num_partitions=1, dry_run=True))
    (task,) = job.tasks(1)
    assert 10 < len(task.windows)
    segmentlog.clone(
        source,
        "t",
        "u",
        to=tmp_path / "c",
        num_partitions=1,
        order="timestamp",
        null_keys="keep-order",
    )
    found = segmentlog.read(tmp_path / "c", "u", columns=["timestamp", "value"])
    times = found["timestamp"].cast(pa.int64()).to_numpy()
    assert (np.diff(times) >= 0).all()
    place_of = {value: place for place, value in enumerate(found["value"].to_pylist())}
    assert 6000 == len(place_of)
    for partition in range(3):
        old = values(source, "t", filter=pa.compute.field("partition") == partition)
        assert sorted(places := [place_of[each] for each in old]) == places


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_million_records_keep_the_order_of_their_keys(tmp_path: Path) -> None:
    """A million keys, over twelve partitions, and then over forty."""
    n_records, step = 10_000_000, 500_000
    numbers = np.random.default_rng(11)
    config = segmentlog.ProducerConfig(use_timestamps=True, codec=Codec.ZSTD, flush=False)
    with segmentlog.open_writer(tmp_path / "s", "t", num_partitions=12, config=config) as writer:
        for begin in range(0, n_records, step):
            times = EPOCH_US + 1000 * np.arange(begin, begin + step)
            columns = {
                "key": pa.array(numbers.integers(0, 1_000_000, step)).cast(pa.string()),
                "value": pa.array(np.arange(begin, begin + step)).cast(pa.string()),
                "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            }
            writer.append(pa.table(columns))
    segmentlog.clone(tmp_path / "s", "t", "u", to=tmp_path / "c", num_partitions=40)
    check_order(tmp_path / "c", "u", n_records)


def check_order(path: Path, topic: str, n_records: int) -> None:
    """The values of each key rise, in one partition, and none is missing."""
    table = segmentlog.read(path, topic, columns=["key", "partition", "value"])
    numbers = table["value"].cast(pa.string()).cast(pa.int64()).to_numpy()
    keys = table["key"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.argsort(keys, kind="stable")
    is_same = np.diff(keys[order]) == 0
    assert (np.diff(numbers[order])[is_same] > 0).all()
    assert (np.diff(table["partition"].to_numpy()[order])[is_same] == 0).all()
    assert np.array_equal(np.sort(numbers), np.arange(n_records))


def test_headers_times_tombstones_and_empty_values_stay(tmp_path: Path) -> None:
    """Also a name of a header that is not UTF-8."""
    headers = [[(b"h\xff", b"v"), (b"n", None)], [], None, []]
    kind = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    table = rows(4).set_column(1, "value", pa.array([b"", None, b"v", b"\x00"], pa.binary()))
    table = table.append_column("headers", pa.array(headers, kind))
    source = write(tmp_path / "s", table.set_column(0, "key", pa.array([b"", b"k", None, b"k"])))
    segmentlog.clone(source, "t", "u", to=tmp_path / "c", num_partitions=4)
    segmentlog.clone(source, "t", "t", to=tmp_path / "d", keep_offsets=True)

    columns = ["key", "value", "timestamp", "headers"]
    before, after = (
        segmentlog.read(path, topic, columns=columns).to_pylist()
        for path, topic in ((source, "t"), (tmp_path / "c", "u"))
    )
    assert sorted(before, key=str) == sorted(after, key=str)
    assert ["equal"] * 3 == [
        each.comparison for each in segmentlog.compare(source, tmp_path / "d")
    ]


def test_records_keep_their_partitions_without_a_number(tmp_path: Path) -> None:
    """Keys may stand in several partitions then, and nothing is merged."""
    table = rows(300).append_column("partition", pa.array(np.arange(300) % 3, pa.int32()))
    source = write(tmp_path / "s", table)
    segmentlog.clone(source, "t", "u", to=tmp_path / "c")
    columns = ["partition", "offset", "key", "value"]
    assert segmentlog.read(source, "t", columns=columns).equals(
        segmentlog.read(tmp_path / "c", "u", columns=columns)
    )


def test_the_codec_is_that_of_the_source_or_of_the_setting(tmp_path: Path) -> None:
    source = write(tmp_path / "s", rows(2000), codec=Codec.ZSTD)
    for name, given, codec in (
        ("a", {}, Codec.ZSTD),
        ("b", {"codec": Codec.GZIP}, Codec.GZIP),
        ("c", {"settings": {"compression.type": "lz4"}}, Codec.LZ4),
    ):
        segmentlog.clone(source, "t", name, num_partitions=2, **given)
        log = segmentlog.open_log_dir(source).log(name, 0)
        header = log.segments[0].header_at(0, up_to_offset=2**62)
        assert header is not None
        assert codec == header.codec
    assert "lz4" == segmentlog.topic_settings(source, "c")["compression.type"].value


def test_the_topics_own_settings_come_along(source: Path, tmp_path: Path) -> None:
    """Retention would remove the old records of a clone without them; times stay in any case."""
    own = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    segmentlog.alter_settings(source, "t", own)
    clone = tmp_path / "c"
    segmentlog.clone(source, "t", "u", to=clone, num_partitions=2, settings={"segment.ms": "7"})
    found = segmentlog.topic_settings(clone, "u")
    for name, value in (own | {"segment.ms": "7"}).items():
        assert value == found[name].value
    times = segmentlog.read(clone, "u", columns=["timestamp"])["timestamp"]
    assert EPOCH_US == min(times.cast(pa.int64()).to_pylist())


def split(tmp_path: Path) -> Path:
    """A topic to which partitions were added once: many keys stand in two."""
    table = rows(1000)
    source = write(tmp_path / "split", table.slice(0, 500), 3)
    for number in (3, 4):
        (source / f"t-{number}").mkdir()
    with segmentlog.open_writer(
        source, "t", config=segmentlog.ProducerConfig(use_timestamps=True)
    ) as writer:
        writer.append(table.slice(500))
    return source


def test_keys_in_several_partitions_are_refused_or_ordered_by_time(tmp_path: Path) -> None:
    """The error has the number of keys and the places of some, and keys only on request."""
    source, clone = split(tmp_path), tmp_path / "c"
    in_several = {
        key for key, places in by_key(source, "t").items() if len({p for p, _ in places}) > 1
    }
    with pytest.raises(SplitKeyError) as caught:
        segmentlog.clone(source, "t", "u", to=clone, num_partitions=4)
    assert len(in_several) == caught.value.n_keys > 10
    assert "b'" not in str(caught.value)
    with pytest.raises(SplitKeyError) as caught:
        segmentlog.clone(source, "t", "u", to=clone, num_partitions=4, show_keys=True)
    records = {
        f"t-{row['partition']} offset {row['offset']}": row["key"]
        for row in segmentlog.read(source, "t", columns=["partition", "offset", "key"]).to_pylist()
    }
    for example in caught.value.examples:
        places, _, key = example.rpartition(", ")
        assert [key, key] == [repr(records[place]) for place in places.split(" and ")]
    assert not list(clone.glob("segmentlog.*"))

    segmentlog.clone(source, "t", "u", to=clone, num_partitions=4, order="timestamp")
    check_order(clone, "u", 1000)


def test_keys_in_other_partitions_than_a_producers_are_cloned_if_each_is_in_one(
    tmp_path: Path,
) -> None:
    """Another partitioner has put them there; the search through hashes finds none twice."""
    table = rows(1000)
    numbers = table["key"].cast(pa.string()).cast(pa.int32())
    parts = pa.array(numbers.to_numpy() % 3, pa.int32())
    source = write(tmp_path / "s", table.append_column("partition", parts))
    segmentlog.clone(source, "t", "u", to=tmp_path / "c", num_partitions=4)
    check_order(tmp_path / "c", "u", 1000)


def test_the_search_finds_every_key_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables and many files find what a dictionary finds; null is no key, empty is one."""
    from segmentlog.maintain.cloning import split_keys

    monkeypatch.setattr(split_keys, "_MOST_KEYS", 64)
    monkeypatch.setattr(split_keys, "_FILE_BYTES", 1000)
    chance = random.Random(5)
    pieces: list[tuple[int, list[bytes | None]]] = [
        (
            number // 3,
            [None, b"", *(b"%d" % chance.randrange(900 * (1 + number)) for _ in range(500))],
        )
        for number in range(9)
    ]
    seen = defaultdict(set)
    for partition, keys in pieces:
        for key in keys:
            seen[key].add(partition)
    wanted = {key for key, found in seen.items() if len(found) > 1 and key is not None}

    def read() -> list[Any]:
        return [
            (partition, pa.array(keys, pa.binary()).slice(1), np.arange(1, len(keys)))
            for partition, keys in pieces
        ]

    found = find_split_keys(read, 5000)
    assert len(wanted) == found.n_keys > 100
    assert 3 == len(found.examples)
    for *places, key in found.examples:
        assert key in wanted
        assert 2 == len({partition for partition, _ in places})
        for partition, offset in places:
            assert any(p == partition and keys[offset] == key for p, keys in pieces)


def test_records_without_a_key_are_spread_or_keep_their_order_or_are_refused(
    tmp_path: Path,
) -> None:
    source = write(tmp_path / "s", rows(3000, null_share=0.5), batch_size=200)
    clone = tmp_path / "c"
    with pytest.raises(OptionError, match="a record without a key at offset"):
        segmentlog.clone(source, "t", "u", to=clone, num_partitions=2, null_keys="refuse")
    segmentlog.clone(source, "t", "a", to=clone, num_partitions=2)
    segmentlog.clone(source, "t", "b", to=clone, num_partitions=2, null_keys="keep-order")
    assert len(by_key(source, "t")[None]) == len(by_key(clone, "a")[None])
    olds = defaultdict(list)
    for partition, value in by_key(source, "t")[None]:
        olds[partition].append(value)
    news = by_key(clone, "b")[None]
    for partition, old in olds.items():
        kept = set(old)
        assert old == [value for p, value in news if p == partition % 2 and value in kept]


def test_a_clone_never_joins_records(source: Path) -> None:
    """The name must be free, or the records are replaced, and offsets go on."""
    segmentlog.clone(source, "t", "u", num_partitions=2)
    with pytest.raises(LogDirectoryError, match="has records of a topic 'u'"):
        segmentlog.clone(source, "t", "u", num_partitions=2)
    with pytest.raises(LogDirectoryError, match="has records of a topic 't'"):
        segmentlog.clone(source, "t", "t")
    before = values(source, "u")
    found = segmentlog.clone(source, "t", "u", num_partitions=2, overwrite=True)
    assert before == values(source, "u")
    log = segmentlog.open_log_dir(source).log("u", 1)
    assert (log.log_start_offset, log.log_end_offset) == found.partitions[1][3:]
    assert found.partitions[1].n_records == log.log_start_offset


def test_records_that_come_meanwhile_are_not_mixed_with_the_clone(
    source: Path, tmp_path: Path
) -> None:
    """A clone that another writer overtakes leaves nothing, also no setting."""
    segmentlog.alter_settings(source, "t", {"segment.ms": "7"})

    def overtake(_: int) -> None:
        if not (tmp_path / "c" / "u-0").exists():
            with segmentlog.open_writer(tmp_path / "c", "u", num_partitions=2) as writer:
                writer.append(pa.table({"value": ["first"]}))

    with pytest.raises(LogDirectoryError, match="has changed while its records were staged"):
        segmentlog.clone(
            source, "t", "u", to=tmp_path / "c", num_partitions=2, on_records=overtake
        )
    assert [b"first"] == values(tmp_path / "c", "u")
    assert "7" != segmentlog.topic_settings(tmp_path / "c", "u")["segment.ms"].value
    assert not list((tmp_path / "c").glob("segmentlog.*.stage"))


def test_a_clone_that_fails_leaves_nothing_and_can_be_run_again(
    source: Path, tmp_path: Path
) -> None:
    class _KilledError(Exception):
        pass

    def kill(_: int) -> None:
        raise _KilledError

    clone = tmp_path / "c"
    with pytest.raises(_KilledError):
        segmentlog.clone(source, "t", "u", to=clone, num_partitions=2, on_records=kill)
    assert {} == segmentlog.open_log_dir(clone).topics()
    segmentlog.clone(source, "t", "u", to=clone, num_partitions=2)
    assert 2000 == len(values(clone, "u"))


def test_a_dry_run_writes_nothing(source: Path, tmp_path: Path) -> None:
    found = segmentlog.clone(source, "t", "u", to=tmp_path / "c", num_partitions=2, dry_run=True)
    assert 2000 == sum(each.n_records for each in found.partitions)
    assert not (tmp_path / "c").exists()


def test_open_transactions_are_refused_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "s"
    plant(
        path,
        producer_batch(3, 0, 0, 10),
        producer_batch(4, 0, 0, 2, base_offset=10, is_transactional=True),
        producer_batch(3, 0, 10, 5, base_offset=12),
    )
    with pytest.raises(LogDirectoryError, match="open since offset 10"):
        segmentlog.clone(path, "t", "u", to=tmp_path / "c")
    segmentlog.clone(path, "t", "u", to=tmp_path / "c", open_transactions="leave-out")
    assert 10 == len(values(tmp_path / "c", "u"))


@pytest.mark.parametrize(("until_ms", "is_whole"), [(9, True), (10, False), (500, False)])
def test_a_part_before_an_open_transaction_is_whole(
    tmp_path: Path, until_ms: int, is_whole: bool
) -> None:
    """With a later time, it would lack the records of that transaction before that time."""
    path = tmp_path / "s"
    plant(
        path,
        producer_batch(3, 0, 0, 10),
        producer_batch(4, 0, 0, 2, base_offset=10, is_transactional=True),
        producer_batch(3, 0, 10, 5, base_offset=12),
    )
    given: Any = {"to": tmp_path / "c", "until": EPOCH_US // 1000 + until_ms}
    if is_whole:
        segmentlog.clone(path, "t", "u", **given)
    else:
        with pytest.raises(LogDirectoryError, match="open since offset 10"):
            segmentlog.clone(path, "t", "u", **given)
        segmentlog.clone(path, "t", "u", open_transactions="leave-out", **given)
    assert min(until_ms, 10) == len(values(tmp_path / "c", "u"))


Rows = Callable[[pa.RecordBatch], Any]


def test_a_transform_changes_values_and_leaves_out_rows(source: Path, tmp_path: Path) -> None:
    """The new keys choose the partitions; the offset map shows what is left."""

    def mask(rows: pa.RecordBatch) -> pa.Table:
        kept = rows.filter(pa.array(rows["offset"].to_numpy() % 2 == 0))
        keys = pa.compute.binary_join_element_wise(kept["key"], b"new", b"-")
        at = kept.schema.get_field_index("key")
        return pa.Table.from_batches([kept.set_column(at, "key", keys)])

    where = tmp_path / "map.parquet"
    found = segmentlog.clone(
        source, "t", "u", to=tmp_path / "c", num_partitions=5, transform=mask, offset_map=where
    )
    olds, news = by_key(source, "t"), by_key(tmp_path / "c", "u")
    assert 1000 == found.n_left_out == sum(map(len, news.values()))
    assert {key + b"-new" for key in olds} == set(news)
    numbered = segmentlog.read(source, "t", columns=["partition", "offset", "value"])
    old_values = {(r["partition"], r["offset"]): r["value"] for r in numbered.to_pylist()}
    numbered = segmentlog.read(tmp_path / "c", "u", columns=["partition", "offset", "value"])
    new_values = {(r["partition"], r["offset"]): r["value"] for r in numbered.to_pylist()}
    mapped = pq.read_table(where).to_pylist()
    assert 1000 == sum(row["n_records"] for row in mapped)
    for row in mapped:
        for i in range(row["n_records"]):
            old = row["partition"], row["source_offset"] + i
            new = row["target_partition"], row["target_offset"] + i
            assert old_values[old] == new_values.pop(new)
    assert {} == new_values
    assert 3 * 5 == sum(row["n_records"] == 0 for row in mapped)


@pytest.mark.parametrize(
    ("transform", "error", "match"),
    [
        (lambda rows: rows.to_pylist(), OptionError, "has to return a record batch"),
        (lambda rows: rows.select(["key", "value"]), ColumnError, "'partition' is missing"),
        (lambda rows: rows.append_column("key", rows["key"]), ColumnError, "more than once"),
        (lambda rows: rows.take(pa.array([1, 0])), OptionError, "2 rows for"),
        (lambda rows: pa.concat_batches([rows, rows]), OptionError, "adds, repeats or moves"),
        (lambda rows: _with_offset(rows, 5000), OptionError, "adds, repeats or moves"),
        (lambda rows: _with_offset(rows, None), ColumnError, "unchanged"),
    ],
)
def test_a_transform_returns_only_rows_that_it_got(
    source: Path, transform: Rows, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        segmentlog.clone(source, "t", "u", num_partitions=2, transform=transform)
    assert ["t"] == list(segmentlog.open_log_dir(source).topics())


def _with_offset(rows: pa.RecordBatch, first: int | None) -> pa.RecordBatch:
    offsets = [first, *rows["offset"].to_pylist()[1:]]
    return rows.set_column(3, "offset", pa.array(offsets, pa.int64()))


@pytest.mark.parametrize("n_partitions", [1, 2, 7, None])
def test_groups_skip_nothing_and_repeat_what_is_said(
    tmp_path: Path, n_partitions: int | None
) -> None:
    """A group reads, from its places, all records that it has not read, and exactly n_repeated."""
    source = write(tmp_path / "s", rows(900, 200))
    chance = random.Random(n_partitions)
    ends = {p: segmentlog.open_log_dir(source).log("t", p).log_end_offset for p in range(3)}
    committed = [
        (f"g{number}", partition, chance.randrange(end + 1))
        for number in range(20)
        for partition, end in ends.items()
        if chance.random() < 0.9
    ]
    committed += [("behind", 0, 0), *(("done", *each) for each in ends.items()), ("far", 1, 10**9)]
    write_commits(source, committed)
    clone = tmp_path / "c"
    found = segmentlog.clone(source, "t", "u", to=clone, num_partitions=n_partitions)

    read_in = {(group, partition): offset for group, partition, offset in committed}
    old = segmentlog.read(source, "t", columns=["partition", "offset", "value"]).to_pylist()
    new = segmentlog.read(clone, "u", columns=["partition", "offset", "value"]).to_pylist()
    places = {(each.group, each.partition): each.offset for each in found.offsets}
    for group in found.groups:
        was_read = {
            row["value"]
            for row in old
            if row["offset"] < read_in.get((group.group, row["partition"]), 0)
        }
        comes = {
            row["value"] for row in new if row["offset"] >= places[group.group, row["partition"]]
        }
        assert {row["value"] for row in old} == was_read | comes
        assert (len(was_read), len(was_read & comes)) == (group.n_read, group.n_repeated)
        # The bound: each place is that of a record which the group has not read, or the end.
        for partition in range(n_partitions or 3):
            offset = places[group.group, partition]
            at = [r["value"] for r in new if (r["partition"], r["offset"]) == (partition, offset)]
            assert not was_read.intersection(at)
        if n_partitions is None:
            assert 0 == group.n_repeated
    assert 0 == next(each for each in found.groups if each.group == "done").n_repeated
    text, _ = segmentlog.offsets_csv(found.offsets)
    assert len(found.groups) * (n_partitions or 3) == len(text.splitlines())


def test_groups_keep_their_offsets_if_records_do(source: Path, tmp_path: Path) -> None:
    write_commits(source, [("g", 0, 5), ("g", 1, 10**9)])
    found = segmentlog.clone(source, "t", "u", to=tmp_path / "c", keep_offsets=True)
    end = found.partitions[1].log_end_offset
    wanted = [("g", "u", 0, 5), ("g", "u", 1, end), ("g", "u", 2, 0)]
    assert [GroupOffset(*each) for each in wanted] == [*found.offsets]


def test_places_of_several_tasks_are_those_of_one() -> None:
    """Each task counts its own rows."""
    numbers = np.random.default_rng(3)
    partitions = numbers.integers(0, 3, 600).astype(np.int32)
    offsets = np.zeros(600, np.int64)
    for partition in range(3):
        offsets[partitions == partition] = np.arange((partitions == partition).sum())
    targets = numbers.integers(0, 4, 600).astype(np.int32)
    committed = [(f"g{i}", p, int(numbers.integers(0, 250))) for i in range(9) for p in range(3)]
    names, of_groups = group_table(committed, {}, 3)

    def in_tasks(bounds: list[int]) -> Any:
        outcomes = []
        for begin, end in zip([0, *bounds], [*bounds, 600], strict=True):
            task = GroupPlaces(of_groups, 4)
            for at in range(begin, end, 50):
                part = slice(at, min(at + 50, end))
                found = task.numbers(targets[part])
                task.add(partitions[part], offsets[part], targets[part], found)
            outcomes.append(task)
        places, groups = places_of_groups(outcomes, names)
        return places.tolist(), groups

    assert in_tasks([]) == in_tasks([100, 130, 400, 400])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"order": "time"}, "'order'"),
        ({"null_keys": "x"}, "'null_keys'"),
        ({"num_partitions": 0}, "'num_partitions'"),
        ({"keep_offsets": True, "num_partitions": 3}, "leave out num_partitions"),
        ({"keep_offsets": True, "overwrite": True}, "leave out overwrite"),
        ({"transform": "mask"}, "give a function"),
        ({"codec": "zst"}, "give a Codec"),
        ({"settings": {"retention": "1"}}, "no such topic setting"),
        ({"schema_ids": {1: "x"}}, "give old and new ids"),
        ({"schema_ids": {"x": "y"}}, "give old and new ids"),
        ({"key_schema_ids": {1: 2**31}}, "give ids from 0"),
        ({"schema_ids": [1]}, "give old and new ids"),
    ],
)
def test_options_are_checked_before_anything_is_read(given: Any, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        segmentlog.clone("/does/not/exist", "t", "u", **given)


@pytest.mark.parametrize("names", [("__consumer_offsets", "u"), ("t", "__transaction_state")])
def test_topics_of_brokers_are_no_clones(names: tuple[str, str]) -> None:
    with pytest.raises(OptionError, match="brokers write their own"):
        segmentlog.clone("/does/not/exist", *names)


def test_a_destination_lies_apart_from_the_source(source: Path, tmp_path: Path) -> None:
    """It may be an empty directory, which somebody has made for it."""
    (tmp_path / "empty").mkdir()
    segmentlog.clone(source, "t", "u", to=tmp_path / "empty")
    with pytest.raises(LogDirectoryError, match="is a partition directory"):
        segmentlog.clone(source, "t", "v", to=tmp_path / "empty" / "u-0", dry_run=True)
    (source / "inner").mkdir()
    for name in ("inner", "none/yet"):
        with pytest.raises(LogDirectoryError, match="lies in the source"):
            segmentlog.clone(source, "t", "u", to=source / name)
    with pytest.raises(segmentlog.UnknownTopicOrPartitionError):
        segmentlog.clone(source, "x", "u")


def test_a_clone_that_was_killed_ends_when_it_is_run_again(source: Path, tmp_path: Path) -> None:
    """Its files go at once, and it cannot commit beside the other one any more."""
    given = CloneSettings("t", "u", to=tmp_path / "c", num_partitions=2)
    killed = module.CloneJob(segmentlog.open_log_dir(source), given)
    outcomes = [run_task(each) for each in killed.tasks(1)]
    assert {} == segmentlog.open_log_dir(tmp_path / "c").topics()
    assert 2 <= len(list((tmp_path / "c").glob("segmentlog.*")))
    segmentlog.clone(source, "t", "u", to=tmp_path / "c", num_partitions=2)
    assert {"segmentlog.state"} == {each.name for each in (tmp_path / "c").glob("segmentlog.*")}
    with pytest.raises(LogDirectoryError):
        killed.commit(outcomes)
    assert 2000 == len(values(tmp_path / "c", "u"))


def test_a_clone_that_was_killed_after_its_commit_is_named(source: Path, tmp_path: Path) -> None:
    """It is whole; the offset map is not, and comes with another run."""
    given = CloneSettings("t", "u", to=tmp_path / "c", num_partitions=2)
    killed = module.CloneJob(segmentlog.open_log_dir(source), given)
    killed.commit([run_task(each) for each in killed.tasks(1)])
    said = (
        r"\(2,000 offsets; the source has 2,000\). A clone becomes visible as a whole: if an "
        r"earlier run was killed after that, these are all of its records. Otherwise"
    )
    with pytest.raises(LogDirectoryError, match=said):
        segmentlog.clone(source, "t", "u", to=tmp_path / "c", num_partitions=2)
    path = tmp_path / "map.parquet"
    again: dict[str, Any] = {
        "to": tmp_path / "c",
        "num_partitions": 2,
        "overwrite": True,
        "offset_map": path,
    }
    segmentlog.clone(source, "t", "u", **again)
    assert 2000 == len(values(tmp_path / "c", "u"))
    assert 2000 == sum(pq.read_table(path)["n_records"].to_pylist())


def test_logs_in_object_stores_are_sources_and_clones(source: Path, tmp_path: Path) -> None:
    """There, too, a clone joins no records."""
    bucket, back = f"bucket+file://{tmp_path}/bucket", tmp_path / "back"
    segmentlog.clone(source, "t", "u", to=bucket, num_partitions=4)
    with pytest.raises(LogDirectoryError, match="has records"):
        segmentlog.clone(source, "t", "u", to=bucket, num_partitions=4)
    with pytest.raises(OptionError, match="'to'"):
        segmentlog.clone(bucket, "u", "v")
    segmentlog.clone(bucket, "u", "v", to=back, num_partitions=3)
    write(tmp_path / "fresh", rows(2000), 3)
    assert by_key(tmp_path / "fresh", "t") == by_key(back, "v")


def test_a_tier_is_a_source(tmp_path: Path) -> None:
    """What `open_log_dir` has opened is cloned."""
    tier, topic = Path(__file__).parents[4] / "examples" / "tier", "visits"
    opened = segmentlog.open_log_dir(tier / "logs", remote_storage=tier / "bucket")
    segmentlog.clone(opened, topic, "u", to=tmp_path / "c", num_partitions=2, order="timestamp")
    columns = ["key", "value"]
    tables = (
        segmentlog.read(opened, topic, columns=columns),
        segmentlog.read(tmp_path / "c", "u", columns=columns),
    )
    before, after = (sorted(each.to_pylist(), key=str) for each in tables)
    assert before
    assert before == after


def test_append_times_stay_in_the_same_partitions_and_become_producers_times_in_others(
    tmp_path: Path,
) -> None:
    source = write(
        tmp_path / "s",
        rows(100),
        topic_config=segmentlog.TopicConfig.parse({"message.timestamp.type": "LogAppendTime"}),
    )
    segmentlog.clone(source, "t", "same", to=tmp_path / "c")
    segmentlog.clone(source, "t", "other", to=tmp_path / "c", num_partitions=2)
    columns = ["value", "timestamp", "timestampType"]
    tables = {
        name: segmentlog.read(path, name, columns=columns).sort_by("value")
        for path, name in ((source, "t"), (tmp_path / "c", "same"), (tmp_path / "c", "other"))
    }
    assert tables["t"].equals(tables["same"])
    assert {1} == set(tables["t"]["timestampType"].to_pylist())
    assert {0} == set(tables["other"]["timestampType"].to_pylist())
    assert tables["t"]["timestamp"].equals(tables["other"]["timestamp"])


def test_a_part_between_two_times_is_cloned(source: Path, tmp_path: Path) -> None:
    since, until = (EPOCH_US // 1000 + each for each in (500, 700))
    segmentlog.clone(
        source, "t", "u", to=tmp_path / "c", num_partitions=1, since=since, until=until
    )
    wanted = [b"%d" % number for number in range(500, 700)]
    assert wanted == values(tmp_path / "c", "u")


def test_an_empty_topic_is_cloned(tmp_path: Path) -> None:
    source = write(tmp_path / "s", rows(0), 3)
    found = segmentlog.clone(
        source, "t", "u", to=tmp_path / "c", num_partitions=2, offset_map=tmp_path / "map"
    )
    assert [0, 0] == [each.n_records for each in found.partitions]
    assert {"u": (0, 1)} == {
        name: tuple(each)
        for name, each in segmentlog.open_log_dir(tmp_path / "c").topics().items()
    }
    assert 6 == pq.read_table(tmp_path / "map").num_rows


def test_a_broker_has_to_know_the_clone(source: Path, tmp_path: Path) -> None:
    """It would move the directories of another topic aside; a topic without records will do."""
    broker = tmp_path / "broker"
    write(broker, rows(0), 2)
    (broker / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    with pytest.raises(segmentlog.UnknownTopicOrPartitionError, match="--partitions 2"):
        segmentlog.clone(source, "t", "u", to=broker, num_partitions=2)
    with pytest.raises(OptionError, match="has 2 partitions"):
        segmentlog.clone(source, "t", "t", to=broker, num_partitions=3)
    segmentlog.clone(source, "t", "t", to=broker, num_partitions=2)
    assert 2000 == len(values(broker, "t"))


def test_what_a_transform_changes_is_counted(tmp_path: Path) -> None:
    """Also beside rows that it leaves out, in other types, and where a null comes or goes."""
    table = pa.table(
        {"key": [b"a", b"b", None, b"d", b"e"], "value": [b"1", None, b"3", b"4", b"5"]}
    )
    write(
        tmp_path / "s",
        table.append_column("timestamp", pa.array([0] * 5, pa.timestamp("ms", "UTC"))),
        1,
    )

    def transform(rows: pa.RecordBatch) -> pa.Table:
        found = rows.to_pydict()
        found["key"] = [None if each == b"b" else each for each in found["key"]]
        found["value"] = [
            "x" if each in (None, b"4") else each.decode() for each in found["value"]
        ]
        fields = [*rows.schema]
        fields[1] = pa.field("value", pa.string())
        return pa.table(found, schema=pa.schema(fields)).take([0, 1, 3, 4])

    found = segmentlog.clone(tmp_path / "s", "t", "u", to=tmp_path / "c", transform=transform)
    assert (1, 2, 1) == (found.n_changed_keys, found.n_changed_values, found.n_left_out)


@pytest.mark.parametrize("is_other", [False, True])
def test_a_transform_that_changes_nothing_is_named(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_other: bool
) -> None:
    """A mask whose pattern is wrong would let all records out; headers count as a change."""

    def transform(rows: pa.RecordBatch) -> pa.RecordBatch:
        if not is_other:
            return rows
        times = pa.array([0] * len(rows), rows["timestamp"].type)
        return rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", times)

    segmentlog.clone(source, "t", "u", to=tmp_path / "c", transform=transform)
    assert is_other == ("t: the transform has changed no key, no value" not in caplog.text)


def test_a_transform_that_raises_is_one_sentence(source: Path, tmp_path: Path) -> None:
    """It says what was raised, where, and for which rows; the error survives a pickle."""

    def transform(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows["partition"][0].as_py() == 1:
            raise ValueError("two\nlines")
        return rows

    with pytest.raises(
        OptionError, match=r"it raised ValueError: two lines at .*test_clone.py:"
    ) as caught:
        segmentlog.clone(source, "t", "u", to=tmp_path / "c", transform=transform)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "for the batch with partition 1 offset 0 to partition 1 " in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert {} == segmentlog.open_log_dir(tmp_path / "c").topics()


def test_records_that_come_meanwhile_into_a_store(source: Path, tmp_path: Path) -> None:
    """The clone is refused, and its next run returns the offsets that its commit has given."""
    url, path = f"bucket+file://{tmp_path}/b", tmp_path / "map.parquet"

    def append(phase: str) -> None:
        if phase == "becomes visible":
            with segmentlog.open_writer(url, "u", num_partitions=2) as writer:
                writer.append(pa.table({"value": [b"other"] * 3}))

    given: dict[str, Any] = {"num_partitions": 2, "offset_map": path}
    with pytest.raises(LogDirectoryError, match="run it again"):
        segmentlog.clone(source, "t", "u", to=url, on_phase=append, **given)
    assert not path.exists()
    found = segmentlog.clone(source, "t", "u", to=url, overwrite=True, **given)
    opened = segmentlog.open_log_dir(url)
    for each in found.partitions:
        log = opened.log("u", each.partition)
        bounds = each.log_start_offset, each.log_end_offset
        assert bounds == (log.log_start_offset, log.log_end_offset)
    rows = pq.read_table(path).to_pylist()
    ends = {row["target_partition"]: row["target_offset"] for row in rows if not row["n_records"]}
    assert ends == {each.partition: each.log_end_offset for each in found.partitions}
