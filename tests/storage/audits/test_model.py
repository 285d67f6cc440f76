"""Random logs beside random tables with planted faults: an audit finds exactly these.

A log has transactions, gaps, compaction, erased keys, deleted records, and may be that of a topic
that was made again.  A table has the rows of its records, with faults, in one of the forms in
which people keep tables.  Each form also has rows that its own format says are not part of it.

The findings follow from reads of the log, and from the control bits in its files.  Some rows have
other contents than the records of their offsets, as those of a former topic have.
"""

import json
import os
import random
import re
import shutil
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import iceberg_deletes
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import segmentlog
from segmentlog.testing.kafka_log import KafkaLog

_SEED = int(os.environ.get("AUDIT_SEED", "1"))
#: Duration of the slow test.
_SECONDS = float(os.environ.get("AUDIT_SECONDS", "3600"))
_TOPIC, _OTHER = "orders", "other"
_STEPS = ("write", "write", "commit", "abort", "abort", "gap", "compact", "erase")
_FINDINGS = (
    "missing",
    "different",
    "duplicates",
    "aborted",
    "markers",
    "nonexistent",
    "removed",
    "possibly_missing",
    "below_log_start",
    "not_audited",
)

_CONTENTS = ("timestamp", "key", "value")
Contents = tuple[int, bytes | None, bytes | None]  # microseconds, key, value
Row = tuple[str | None, int | None, int | None, Contents]  # topic, partition, offset
_NOTHING: Contents = (0, None, b"")


class Written(NamedTuple):
    """What a partition has."""

    start: int
    stable: int  # the last stable offset
    end: int
    committed: dict[int, Contents]
    aborted: frozenset[int]
    markers: frozenset[int]


def write_log(draw: random.Random, log: KafkaLog, n_partitions: int) -> None:
    """Random operations on a topic, and perhaps an open transaction at its end."""
    if draw.random() < 0.2:  # the former incarnation
        log.create_topic(_TOPIC, n_partitions)
        log.write(_TOPIC, [b"former"] * draw.randint(1, 20))
        log.delete_topic(_TOPIC)
    log.create_topic(_TOPIC, n_partitions)
    log.write(_OTHER, [b"v"] * draw.randint(1, 9))
    for _ in range(draw.randint(3, 14)):
        partition, n = draw.randrange(n_partitions), draw.randint(1, 8)
        records = [{"key": str(draw.randint(0, 5)), "value": b"v"} for _ in range(n)]
        match draw.choice(
            ["write", "write", "commit", "abort", "abort", "gap", "compact", "erase"]
        ):
            case "write":
                log.write(_TOPIC, records, partition=partition)
            case "commit" | "abort" as how:
                with log.transaction() as transaction:
                    transaction.write(_TOPIC, records, partition=partition)
                    if draw.random() < 0.3:  # others between its records
                        log.write(_TOPIC, records[:2], partition=partition)
                        transaction.write(_TOPIC, records, partition=partition)
                    if how == "abort":
                        transaction.abort()
            case "gap":
                log.gap(_TOPIC, n, partition=partition)
            case "compact":
                log.compact(_TOPIC)
            case _:
                segmentlog.erase(log.path, [str(draw.randint(0, 5)).encode()], topics=[_TOPIC])
    if draw.random() < 0.2:
        transaction = log.transaction().__enter__()
        transaction.write(_TOPIC, [b"open"] * draw.randint(1, 3))
        log.write(_TOPIC, [b"v"] * draw.randint(0, 3) or [b"v"])
    elif draw.random() < 0.3:
        ends = segmentlog.open_log_dir(log)
        for partition in range(n_partitions):
            end = ends.log(_TOPIC, partition).log_end_offset
            log.delete_records(_TOPIC, draw.randint(0, end), partition=partition)


def written(log: KafkaLog, partition: int) -> Written:
    """What a partition has, by reads of it and by the bytes of its headers."""
    opened = segmentlog.open_log_dir(log).log(_TOPIC, partition)
    markers = set[int]()
    for path in Path(opened.path).glob("*.log"):
        data, at = path.read_bytes(), 0
        while at < len(data):
            base, length = struct.unpack_from(">qi", data, at)
            attributes, last = struct.unpack_from(">hi", data, at + 21)
            if attributes & 0x20:
                markers |= {*range(base, base + last + 1)}
            at += 12 + length

    def records(isolation_level: str) -> dict[int, Contents]:
        rows = opened.scan(
            columns=["offset", *_CONTENTS], isolation_level=isolation_level, read_up_to="logEnd"
        ).read_all()
        times = rows["timestamp"].cast(pa.int64()).to_pylist()
        contents = zip(times, rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        return dict(zip(rows["offset"].to_pylist(), contents, strict=True))

    stable = opened.last_stable_offset()
    committed = records("read_committed")
    others = records("read_uncommitted").keys() - committed.keys()
    aborted = frozenset(each for each in others if each < stable)
    return Written(
        opened.log_start_offset,
        stable,
        opened.log_end_offset,
        committed,
        aborted,
        frozenset(markers),
    )


def rows_of(draw: random.Random, partitions: list[Written]) -> list[Row]:
    """The rows of a table: those of the log, with faults, in some order."""
    rows: list[Row] = []
    for number, each in enumerate(partitions):
        offsets = sorted(each.committed)
        for _ in range(draw.choice([0, 0, 1, 3])):
            if offsets:
                offsets.pop(draw.randrange(len(offsets)))
        for _ in range(draw.choice([0, 0, 1, 3])):
            wrong = [*range(-2, each.end + 3), *each.aborted, *each.markers, *each.committed]
            offsets.append(draw.choice(wrong))
        differing = draw.choice([0.0, 0.0, 0.2, 1.0])
        for offset in offsets:
            time, key, value = each.committed.get(offset, _NOTHING)
            if draw.random() < differing:
                change = draw.choice(["time", "key", "no key", "value", "all"])
                time += 1000 * (change in ("time", "all"))
                key = None if change == "no key" else (key or b"") + b"k" * (change == "key")
                value = (value or b"") + b"v" * (change in ("value", "all"))
            rows.append((_TOPIC, number, offset, (time, key, value)))
    order = draw.choice(["sorted", "sorted", "shuffled", "reversed"])
    if order == "shuffled":
        draw.shuffle(rows)
    elif order == "reversed":
        rows.reverse()
    return rows


def wanted(
    written: Written, rows: list[Row], compared: list[int], start: int, end: int
) -> dict[str, set[int]]:
    """The findings of an audit of some offsets; `compared`: places of contents."""
    found: dict[str, set[int]] = {name: set() for name in _FINDINGS}
    times = Counter(row[2] for row in rows if row[2] is not None)
    for _, _, offset, contents in rows:
        if offset is not None and start <= offset < end and offset in written.committed:
            record = written.committed[offset]
            if any(contents[each] != record[each] for each in compared):
                found["different"].add(offset)
    for offset in {*times, *range(start, end)}:
        n = times[offset]
        kind = "removed"
        if offset < 0 or offset >= written.end:
            kind = "nonexistent"
        elif offset < written.start:
            kind = "below_log_start"
        elif not start <= offset < end:
            kind = "not_audited"
        elif offset in written.committed:
            kind = "" if n else "missing"
        elif offset in written.aborted or offset in written.markers:
            kind = "aborted" if offset in written.aborted else "markers"
            kind = kind if n else ""
        elif not n:
            kind = "possibly_missing"
        if kind:
            found[kind].add(offset)
        if n > 1 and kind != "not_audited":
            found["duplicates"].add(offset)
    return found


def found_in(audit: segmentlog.Audit, partition: int) -> dict[str, set[int]]:
    """The findings of a partition, offset by offset."""
    found: dict[str, set[int]] = {name: set() for name in (*_FINDINGS, "lost")}
    for row in audit.ranges().read_all().to_pylist():
        if row["partition"] == partition:
            found.setdefault(row["finding"], set()).update(
                range(row["start_offset"], row["end_offset"])
            )
    return found


class Shape(NamedTuple):
    """Where a table is, and how its columns are named."""

    table: Any
    options: dict[str, Any]


def arrow(rows: list[Row], *, is_junk: bool = False) -> pa.Table:
    """Rows with a column that tells whether they are part of the table."""
    topics, partitions, offsets, contents = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            **columns(contents),
            "junk": pa.array([is_junk] * len(rows), pa.bool_()),
        }
    )


def columns(contents: Sequence[Contents]) -> dict[str, pa.Array]:
    """The contents of rows as columns."""
    times, keys, values = zip(*contents, strict=True) if contents else ((), (), ())
    return {
        "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }


def other_types(draw: random.Random, table: pa.Table) -> pa.Table:
    """The same contents in other types."""
    for name, kinds in {
        "timestamp": [pa.timestamp("ms"), pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us")],
        "key": [pa.string(), pa.large_binary(), pa.dictionary(pa.int32(), pa.binary())],
        "value": [pa.large_string()],
    }.items():
        if draw.random() < 0.4:
            kind = draw.choice(kinds)
            column = table[name].cast(kind.value_type if pa.types.is_dictionary(kind) else kind)
            column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column
            table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def pieces(draw: random.Random, rows: list[Row]) -> list[list[Row]]:
    """The rows in one to four pieces, some of which may be empty."""
    cuts = sorted(draw.randint(0, len(rows)) for _ in range(draw.randint(0, 3)))
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def junk(draw: random.Random, partitions: list[Written]) -> list[Row]:
    """Rows that are not part of the table: they would hide what is missing."""
    return [
        (_TOPIC, number, offset, _NOTHING)
        for number, each in enumerate(partitions)
        for offset in {*each.committed, each.end + draw.randint(0, 2)}
    ]


Make = Callable[[random.Random, Path, list[Row], list[Row]], Shape]


def parquet(draw: random.Random, path: Path, rows: list[Row], junk: list[Row]) -> Shape:
    """Files with schemas of their own, and files that names hide."""
    path.mkdir()
    for number, some in enumerate(pieces(draw, rows)):
        table = other_types(draw, arrow(some).drop_columns("junk"))
        if all(row[0] == _TOPIC for row in some) and draw.random() < 0.4:
            table = table.drop_columns("topic")
        if draw.random() < 0.4:
            offsets = table["offset"]
            kind = draw.choice([pa.int32(), pa.string(), pa.float64(), pa.decimal32(9, 0)])
            if kind == pa.decimal32(9, 0):
                numbers = offsets.to_pylist()
                offsets = pa.array([None if n is None else Decimal(n) for n in numbers], kind)
            table = table.set_column(
                table.schema.get_field_index("offset"), "Offset", offsets.cast(kind)
            )
        if draw.random() < 0.3:
            column = table["partition"].combine_chunks().dictionary_encode()
            table = table.drop_columns("partition").append_column("PARTITION", column)
        within = draw.choice([path, path / "more"])
        within.mkdir(exist_ok=True)
        pq.write_table(table, within / f"part-{number}.parquet", row_group_size=draw.randint(1, 9))
    for hidden in ("_temporary/0/a.parquet", ".staging/b.parquet", "_c.parquet"):
        (path / hidden).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(arrow(junk), path / hidden)
    return Shape(str(path), {})


def nested(draw: random.Random, path: Path, rows: list[Row], junk: list[Row]) -> Shape:
    """The place of a record in a struct, beside a topic of another meaning."""
    kind = pa.struct(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("key", pa.binary()),
        ]
    )
    places = [
        None
        if row[2] is None and draw.random() < 0.5
        else dict(zip(("topic", "partition", "offset", "key"), (*row[:3], row[3][1]), strict=True))
        for row in rows
    ]
    contents = columns([row[3] for row in rows])
    contents["key"] = pa.array([b"another"] * len(rows), pa.binary())
    table = pa.table(
        {"topic": ["sports"] * len(rows), "kafka": pa.array(places, kind), **contents}
    )
    pq.write_table(table, path)
    names = {"partition_column": "kafka.partition", "offset_column": "kafka.offset"}
    return Shape(path, names)


def hive(draw: random.Random, path: Path, rows: list[Row], junk: list[Row]) -> Shape:
    """Directories that are named after topics and partitions."""
    by_place: dict[tuple[str | None, int | None], list[Row]] = {}
    for row in rows:
        by_place.setdefault(row[:2], []).append(row)
    path.mkdir()
    for (topic, partition), some in by_place.items():
        of_topic = "__HIVE_DEFAULT_PARTITION__" if topic is None else topic
        of_partition = "__HIVE_DEFAULT_PARTITION__" if partition is None else partition
        within = path / f"topic={of_topic}" / f"partition={of_partition}"
        within.mkdir(parents=True)
        table = arrow(some).drop_columns(["topic", "partition", "junk"])
        pq.write_table(other_types(draw, table), within / "a.parquet")
    if not by_place:
        pq.write_table(arrow([]), path / "a.parquet")
    return Shape(path, {})


def spark_sink(draw: random.Random, path: Path, rows: list[Row], junk: list[Row]) -> Shape:
    """Files that a log lists, some of it compacted, and a file that no entry names."""
    (path / "_spark_metadata").mkdir(parents=True)
    entries: list[list[str]] = []
    for number, some in enumerate(pieces(draw, rows)):
        file = path / f"part-{number}.snappy.parquet"
        pq.write_table(arrow(some).drop_columns("junk"), file)
        entries.append([json.dumps({"path": file.as_uri(), "size": 1, "action": "add"})])
    pq.write_table(arrow(junk).drop_columns("junk"), path / "part-9.snappy.parquet")
    if draw.random() < 0.3:  # files that were added, and deleted later
        for action in ("add", "delete"):
            gone = (path / "part-8.snappy.parquet").as_uri()
            entries.append([json.dumps({"path": gone, "size": 1, "action": action})])
    compacted = draw.randint(0, len(entries))
    for number, entry in enumerate(entries):
        lines, name = entry, str(number)
        if number == compacted - 1:
            lines, name = [*chain(*entries[:compacted])], f"{number}.compact"
        (path / "_spark_metadata" / name).write_text("\n".join(["v1", *lines]))
    return Shape(path, {})


def delta(draw: random.Random, path: Path, rows: list[Row], junk: list[Row]) -> Shape:
    """Several versions; rows that a later one has deleted or replaced."""
    deltalake = pytest.importorskip("deltalake")
    if draw.random() < 0.5:
        deltalake.write_deltalake(path, arrow(junk, is_junk=True))
    parts = pieces(draw, rows)
    for some in parts:
        deltalake.write_deltalake(path, arrow(some), mode="append")
    if draw.random() < 0.5:
        deltalake.write_deltalake(path, arrow(junk, is_junk=True), mode="append")
    table = deltalake.DeltaTable(path)
    table.delete("junk = true")
    if draw.random() < 0.3:
        table.optimize.compact()
    if draw.random() < 0.3:
        table.create_checkpoint()
    elif draw.random() < 0.5:  # a clone, which names the files of another table
        others = path.rename(path.with_name("source"))
        (path / "_delta_log").mkdir(parents=True)
        for log in (others / "_delta_log").glob("*.json"):
            text = re.sub(r'"path":"', f'"path":"{others.as_uri()}/', log.read_text())
            (path / "_delta_log" / log.name).write_text(text)
        table = deltalake.DeltaTable(path)
    return Shape(draw.choice([path, table, f"delta:{path}"]), {})


def places_of_junk(files: Sequence[str]) -> dict[str, list[int]]:
    """The places of rows that are not part of a table, by file."""
    found = {}
    for file in files:
        is_junk = pq.read_table(file.removeprefix("file://"))["junk"].to_pylist()
        if places := [i for i, is_deleted in enumerate(is_junk) if is_deleted]:
            found[file] = places
    return found


def iceberg(draw: random.Random, path: Path, rows: list[Row], junk: list[Row]) -> Shape:
    """Several versions behind a hint that may lag; or the metadata file."""
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    path.mkdir()
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{path}/c.db", warehouse=path.as_uri())
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", arrow([]).schema)
    versions = [table.metadata_location]
    steps: list[Callable[[], object]] = [
        lambda: table.append(arrow(junk, is_junk=True)),
        *(lambda some=some: table.append(arrow(some)) for some in pieces(draw, rows)),
    ]
    how = draw.choice(["files", "positions", "vectors"])
    if how == "files":
        steps.append(lambda: table.delete("junk = true"))
    for step in steps:
        step()
        versions.append(table.metadata_location)
    if how != "files":
        delete = getattr(iceberg_deletes, f"delete_by_{how}")
        delete(table, places_of_junk(iceberg_deletes.data_files(table)))
        table = table.refresh()
    catalog.close()
    if draw.random() < 0.3:
        return Shape(draw.choice([versions[-1].removeprefix("file://"), table]), {})
    directory = Path(table.location().removeprefix("file://"))
    paths = [Path(each.removeprefix("file://")) for each in dict.fromkeys(versions)]
    for number, each in enumerate(paths, 1):
        each.rename(each.with_name(f"v{number}.metadata.json"))
    for left in (directory / "metadata").glob("0*.metadata.json"):
        left.unlink()
    hint = draw.choice([None, *range(1, len(paths) + 1)])
    if hint is not None:
        (directory / "metadata" / "version-hint.text").write_text(str(hint))
    return Shape(directory, {})


def in_memory(draw: random.Random, path: Path, rows: list[Row], junk: list[Row]) -> Shape:
    """An object of Arrow."""
    table = arrow(rows).drop_columns("junk")
    if draw.random() < 0.5:
        return Shape(table, {})
    batches = table.to_batches(max_chunksize=draw.randint(1, 9))
    return Shape(iter(batches or [pa.RecordBatch.from_pylist([], table.schema)]), {})


SHAPES: dict[str, Make] = {
    each.__name__: each for each in (parquet, nested, hive, spark_sink, delta, iceberg, in_memory)
}


def play(seed: int, path: Path, shape: str | None = None) -> None:
    """One log, one table, and some audits of them."""
    draw = random.Random(seed)
    log = KafkaLog(path / "logs")
    n_partitions = draw.choice([1, 1, 2])
    write_log(draw, log, n_partitions)
    partitions = [written(log, each) for each in range(n_partitions)]
    rows = rows_of(draw, partitions)
    n_others, n_unknown, n_null = (draw.choice([0, 0, 2]) for _ in range(3))
    rows += (
        [(_OTHER, 0, 0, _NOTHING)] * n_others
        + [(_TOPIC, 77, 1, _NOTHING)] * n_unknown
        + [(_TOPIC, 0, None, _NOTHING)] * n_null
    )
    made = SHAPES[shape or draw.choice([*SHAPES])](
        draw, path / "table", rows, junk(draw, partitions)
    )
    options: dict[str, Any] = {**made.options}
    compared = draw.choice([[], [0, 1], [0, 1], [1, 2], [2, 0, 1]])
    options["columns"] = [_CONTENTS[each] for each in compared]
    if draw.random() < 0.3:
        options["on_corrupt_batch"] = "skip"
    audited = [(each.start, each.stable) for each in partitions]
    if draw.random() < 0.3:
        audited = []
        for each in partitions:
            start, end = sorted(draw.randint(each.start, each.stable) for _ in range(2))
            audited.append((start, end))
        for option, at in (("starting_offsets", 0), ("ending_offsets", 1)):
            options[option] = {(_TOPIC, i): each[at] for i, each in enumerate(audited)}

    audit = segmentlog.audit(log, _TOPIC, made.table, most_ranges=3, **options)

    is_right = not n_unknown and not n_null
    for number, (each, (start, end)) in enumerate(zip(partitions, audited, strict=True)):
        own = [row for row in rows if row[:2] == (_TOPIC, number)]
        expected = wanted(each, own, compared, start, end)
        assert {**expected, "lost": set()} == found_in(audit, number)
        faults = ("missing", "different", "duplicates", "aborted", "markers", "nonexistent")
        is_right &= not any(expected[name] for name in faults)
        assert len([o for o in each.committed if start <= o < end]) == (
            audit.partitions[number].n_records
        )
        assert not audit.partitions[number].error
    has_any = any(each.start < each.end for each in partitions)
    has_any |= any(row[:1] == (_TOPIC,) and row[1] in range(n_partitions) for row in rows)
    is_audited = any(start < end for start, end in audited)
    assert audit.compared == ("partition", "offset", *options["columns"])
    assert audit.is_complete == (is_right and (is_audited or not has_any))
    assert (len(rows), n_others, n_null) == (
        audit.n_rows,
        audit.n_rows_of_other_topics,
        audit.n_rows_without_offset,
    )
    missing = audit.missing(["partition", "offset"]).read_all().to_pylist()
    assert sorted((each["partition"], each["offset"]) for each in missing) == sorted(
        (number, offset)
        for number in range(n_partitions)
        for offset in found_in(audit, number)["missing"]
    )


def play_damage(seed: int, path: Path) -> None:
    """A flipped bit in a batch that an audit leaves out: its offsets are lost, and no others."""
    draw = random.Random(seed)
    log = KafkaLog(path / "logs")
    write_log(draw, log, 1)
    log.write(_TOPIC, [b"v"])  # there is a batch
    before = written(log, 0)
    file = draw.choice(
        [each for each in log.path.glob(f"{_TOPIC}-0/*.log") if each.stat().st_size]
    )
    data, batches, at = bytearray(file.read_bytes()), [], 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        (last,) = struct.unpack_from(">i", data, at + 23)
        batches.append((at, 12 + length, range(base, base + last + 1)))
        at += 12 + length
    at, size, offsets = draw.choice(batches)
    data[at + draw.randrange(17, size)] ^= 1 << draw.randrange(8)  # what its checksum covers
    # Its header may be damaged, too: only the batches around it say for sure which offsets it has.
    earlier = [each.stop for _, _, each in batches if each.stop <= offsets.start]
    later = [each.start for _, _, each in batches if each.start >= offsets.stop]
    segments = sorted(int(each.stem) for each in file.parent.glob("*.log"))
    ends = [each for each in [*segments, before.end] if each > int(file.stem)]
    may_be_lost = range(max(earlier, default=int(file.stem)), min([*later, *ends]))
    file.write_bytes(data)
    options: Any = {"on_corrupt_batch": "skip"}

    (partition,) = (audit := segmentlog.audit(log, _TOPIC, arrow([]), **options)).partitions
    if partition.error:
        assert before.start > partition.log_end_offset or at == batches[-1][0]
        return  # the last batch has ended the log before its log start
    rows = (
        segmentlog.open_log_dir(log)
        .log(_TOPIC, 0)
        .scan(columns=["offset"], isolation_level="read_committed", **options)
    )
    there = {*rows.read_all()["offset"].to_pylist()}
    found = found_in(audit, 0)
    assert there == found["missing"]
    inside = {each for each in before.committed.keys() - there if each < partition.end_offset}
    assert inside & {*offsets} <= found["lost"] <= {*may_be_lost}


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 4))
def test_damage_that_is_left_out(tmp_path: Path, seed: int) -> None:
    """A few logs."""
    play_damage(seed, tmp_path)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_of_tables(tmp_path: Path, shape: str) -> None:
    """One of each."""
    play(_SEED, tmp_path, shape)


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 8))
def test_random_logs_and_tables(tmp_path: Path, seed: int) -> None:
    """A few of any shape."""
    play(1000 + seed, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_random_logs_and_tables_for_long(tmp_path: Path) -> None:
    """As many as there is time for (`AUDIT_SECONDS`, `AUDIT_SEED`)."""
    ends, seed = time.monotonic() + _SECONDS, 1_000_000 * _SEED
    while time.monotonic() < ends:
        try:
            (play if seed % 4 else play_damage)(seed, tmp_path / str(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        shutil.rmtree(tmp_path / str(seed))
        seed += 1
    print(f"{seed - 1_000_000 * _SEED:,} tables")
