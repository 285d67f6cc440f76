"""A table is compared with its log, offset by offset."""

import random
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from checkpoints import write_checkpoint

import segmentlog
from segmentlog.audits import bitmaps, comparison, log_offsets, spill, table_offsets
from segmentlog.audits.audit import FINDINGS
from segmentlog.errors import (
    ColumnError,
    CorruptLogError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.testing.legacy import encode_message, encode_wrapper
from segmentlog.testing.reference import Record, encode_batch


def rows_of(offsets: Sequence[int], partition: int = 0) -> pa.Table:
    """A table with rows of one partition."""
    return pa.table(
        {
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
        }
    )


def found(audit: segmentlog.Audit, partition: int = 0) -> dict[str, list[int]]:
    """The offsets of each finding that there is."""
    result: dict[str, list[int]] = {}
    for row in audit.ranges().read_all().to_pylist():
        if row["partition"] == partition and row["end_offset"] - row["start_offset"] < 10_000:
            result.setdefault(row["finding"], []).extend(
                range(row["start_offset"], row["end_offset"])
            )
    return result


@pytest.fixture
def log(tmp_path: Path) -> KafkaLog:
    """An empty directory."""
    return KafkaLog(tmp_path / "logs")


def test_each_kind_of_row_is_found(log: KafkaLog) -> None:
    """Offsets 0-9 committed, 10-12 aborted, 13 its marker, 14-15 gone, 16-18 open."""
    log.write("t", [b"v"] * 10)
    with log.transaction() as transaction:
        transaction.write("t", [b"a"] * 3)
        transaction.abort()
    log.gap("t", 2)
    log.write("t", [b"v"])
    log.delete_records("t", 2)

    table = rows_of([0, 2, 3, 3, 3, 5, 6, 7, 8, 9, 11, 13, 15, 16, -4, 17, 99])
    audit = segmentlog.audit(log, "t", table)

    assert found(audit) == {
        "missing": [4],
        "duplicates": [3],
        "aborted": [11],
        "markers": [13],
        "nonexistent": [-4, 17, 99],
        "removed": [15],
        "possibly_missing": [14],
        "below_log_start": [0],
    }
    (partition,) = audit.partitions
    assert (2, 17, 9, 17) == (
        partition.start_offset,
        partition.end_offset,
        partition.n_records,
        partition.n_rows,
    )
    assert 2 == partition.duplicates.n_rows
    assert not audit.is_complete
    assert [4] == audit.missing(["offset"]).read_all()["offset"].to_pylist()


def test_a_complete_table_is_complete(log: KafkaLog) -> None:
    """Uncommitted reads are complete with the records of aborted transactions."""
    log.write("t", [b"v"] * 4)
    with log.transaction() as transaction:
        transaction.write("t", [b"a"])
        transaction.abort()

    assert segmentlog.audit(log, "t", rows_of(range(4))).is_complete
    everything = rows_of(range(5))
    assert {"aborted": [4]} == found(segmentlog.audit(log, "t", everything))
    uncommitted: Any = {"isolation_level": "read_uncommitted"}
    assert segmentlog.audit(log, "t", everything, **uncommitted).is_complete
    assert [4] == found(segmentlog.audit(log, "t", rows_of(range(4)), **uncommitted))["missing"]


def test_open_transactions_are_not_audited(tmp_path: Path) -> None:
    """Their records, and those after them, are neither missing nor wrong."""
    log = KafkaLog(tmp_path)
    log.write("t", [b"v"] * 2)
    transaction = log.transaction().__enter__()
    transaction.write("t", [b"a"] * 3)
    log.write("t", [b"v"])

    without = segmentlog.audit(log, "t", rows_of(range(2)))
    with_rows = segmentlog.audit(log, "t", rows_of(range(6)))

    assert (True, {}) == (without.is_complete, found(without))
    assert (True, {"not_audited": [2, 3, 4, 5]}) == (with_rows.is_complete, found(with_rows))


def test_rows_of_records_that_are_written_meanwhile(log: KafkaLog) -> None:
    """The bounds are fixed before the table is read, and a sink goes on writing."""
    log.write("t", [b"v"] * 3)

    def batches() -> Any:
        yield rows_of([0, 1]).to_batches()[0]
        log.write("t", [b"v"] * 2)
        yield rows_of([2, 3, 4, 5]).to_batches()[0]

    audit = segmentlog.audit(segmentlog.open_log_dir(log.path), "t", batches())

    assert {"not_audited": [3, 4], "nonexistent": [5]} == found(audit)


def test_records_that_are_deleted_meanwhile(tmp_path: Path) -> None:
    """Nothing is known about them any more."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    for first in range(0, 15, 5):
        records = [Record(first + i, 0, b"k", b"v") for i in range(5)]
        (directory / f"{first:020d}.log").write_bytes(encode_batch(records))

    def batches() -> Any:
        yield rows_of([1, 12]).to_batches()[0]
        for first in (0, 5):
            (directory / f"{first:020d}.log").unlink()

    audit = segmentlog.audit(directory, "t", batches())

    assert {"missing": [10, 11, 13, 14], "below_log_start": [1]} == found(audit)
    assert not audit.partitions[0].error


def test_bounds_by_offsets_and_times(log: KafkaLog) -> None:
    """Other rows are not audited, unless they can never have been records."""
    log.write("t", [b"v"] * 5, timestamp=1_700_000_000_000)
    log.write("t", [b"v"] * 5, timestamp=1_800_000_000_000)
    table = rows_of([0, 0, 7, 20])

    by_offset = segmentlog.audit(
        log, "t", table, starting_offsets={("t", 0): 6}, ending_offsets={("t", 0): 9}
    )
    by_time = segmentlog.audit(log, "t", table, until="2025-01-01")

    assert {"missing": [6, 8], "not_audited": [0], "nonexistent": [20]} == found(by_offset)
    expected = {
        "missing": [1, 2, 3, 4],
        "duplicates": [0],
        "not_audited": [7],
        "nonexistent": [20],
    }
    assert expected == found(by_time)


def test_partitions_topics_and_nulls(log: KafkaLog) -> None:
    """Rows of other topics do not matter; rows that name no record of the log do."""
    log.create_topic("t", 3)
    for partition in range(3):
        log.write("t", [b"v"] * 2, partition=partition)
    log.write("u", [b"v"])
    table = pa.table(
        {
            "TOPIC": ["t", "t", "u", "t", "t", None, "t", "z"],
            "partition": [0, 0, 0, 1, 9, 0, None, 0],
            "offset": [0, 1, 0, 1, 5, 0, 0, 0],
        }
    )

    audit = segmentlog.audit(log, "t", table, topic_column="topic", partitions=[0, 1])

    assert ({}, {"missing": [0]}) == (found(audit), found(audit, 1))
    assert {("t", 9): 1} == audit.unknown_partitions
    assert not segmentlog.audit(log, "t", rows_of([0, 1], 9), partitions=[0]).is_complete
    nulls = pa.table({"partition": [0, 0, 0], "offset": [0, 1, None]})
    assert not segmentlog.audit(log, "t", nulls, partitions=[0]).is_complete
    of_another = pa.concat_tables([rows_of([0, 1]), rows_of([0], 2)])
    assert segmentlog.audit(log, "t", of_another, partitions=[0]).is_complete
    assert (8, 2, 2) == (
        audit.n_rows,
        audit.n_rows_of_other_topics,
        audit.n_rows_without_offset,
    )
    both = segmentlog.audit(log, ["t", "u"], table, topic_column="topic")
    assert 4 == len(both.partitions)
    assert 3 == both.count("missing")
    with pytest.raises(OptionError, match="partitions 0, 1, 2"):
        segmentlog.audit(log, "t", table, partitions=[7])
    (one,) = segmentlog.audit(log, "t", table, partitions=2).partitions
    assert 2 == one.partition


def test_an_audit_of_no_topic_is_refused(log: KafkaLog) -> None:
    """It would be complete, whatever the table has."""
    table = rows_of([0, 1]).append_column("topic", pa.array(["t", "t"]))
    with pytest.raises(OptionError, match="no topic proves nothing"):
        segmentlog.audit(log, None, table)
    log.write("t", [b"v"])
    with pytest.raises(OptionError, match="no topic proves nothing"):
        segmentlog.audit(log, [], table)


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(),
        pa.decimal128(20),
        pa.decimal32(9),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.float64(),
        pa.dictionary(pa.int32(), pa.int64()),
        pa.int16(),
    ],
    ids=str,
)
def test_types_of_columns(log: KafkaLog, kind: pa.DataType) -> None:
    """Whole numbers are found in columns of any type that can hold them."""
    log.write("t", [b"v"] * 3)
    values = pa.array(["0", "2"]) if "string" in str(kind) else pa.array([0, 2])
    if pa.types.is_decimal32(kind):
        column = pa.array([Decimal(0), Decimal(2)], kind)
    else:
        is_encoded = pa.types.is_dictionary(kind)
        column = values.dictionary_encode() if is_encoded else values.cast(kind)
    zeros = pa.array([0, 0]).cast(pa.string()).cast(pa.int8())
    table = pa.table({"partition": zeros, "offset": column})

    assert {"missing": [1]} == found(segmentlog.audit(log, "t", table))


@pytest.mark.parametrize(
    ("table", "error", "said"),
    [
        pytest.param(
            pa.table({"part": [0], "offset": [0]}),
            ColumnError,
            "column 'partition' is missing; the table has 'part', 'offset'",
            id="name",
        ),
        pytest.param(
            pa.table({"partition": [0], "offset": [True]}),
            ColumnError,
            "'offset' is bool",
            id="type",
        ),
        pytest.param(
            pa.table({"partition": [0], "offset": ["x"]}),
            ColumnError,
            "whole numbers of 64 bits",
            id="text",
        ),
        pytest.param(
            pa.table({"partition": [0], "offset": [0.5]}),
            ColumnError,
            "whole numbers of 64 bits",
            id="fraction",
        ),
        pytest.param(
            pa.table({"partition": [0], "offset": pa.array([2**63], pa.uint64())}),
            ColumnError,
            "whole numbers of 64 bits",
            id="too large",
        ),
        pytest.param(
            pa.table({"partition": [0], "offset": [0], "topic": [1]}),
            ColumnError,
            "names of topics",
            id="topic",
        ),
        pytest.param("/nowhere", OptionError, "no such file or directory.*Iceberg", id="path"),
        pytest.param(7, OptionError, "Iceberg", id="object"),
    ],
)
def test_what_is_no_table_is_refused(
    log: KafkaLog, table: Any, error: type[Exception], said: str
) -> None:
    """The error names the column, or what a table may be."""
    log.write("t", [b"v"])

    with pytest.raises(error, match=said):
        segmentlog.audit(log, "t", table)


def test_columns_inside_of_others(log: KafkaLog, tmp_path: Path) -> None:
    """Names with dots; the topic beside them is found, and capitals do not matter."""
    log.write("t", [b"v"] * 3)
    kind = pa.struct([("Topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    places = [("t", 0, 0), ("t", 0, 1), ("u", 0, 2), None, ("t", 0, None)]
    rows = [
        each and dict(zip(("Topic", "partition", "offset"), each, strict=True)) for each in places
    ]
    table = pa.table({"topic": ["sports"] * 5, "kafka": pa.array(rows, kind), "x.y": [1] * 5})
    pq.write_table(table, tmp_path / "a.parquet")
    names: Any = {"partition_column": "kafka.partition", "offset_column": "KAFKA.offset"}

    for each in (table, tmp_path / "a.parquet", tmp_path):
        if each is tmp_path:  # of two files
            pq.write_table(table.slice(5), tmp_path / "b.parquet")
            (tmp_path / "logs").rename(tmp_path / ".logs")
            log.path = tmp_path / ".logs"
        audit = segmentlog.audit(log.path, "t", each, **names)
        assert {"missing": [2]} == found(audit)
        assert (2, 1) == (audit.n_rows_without_offset, audit.n_rows_of_other_topics)
    dotted = table.rename_columns(["topic", "kafka", "kafka.offset"])
    with pytest.raises(ColumnError, match=r"'kafka.part' is missing.*'kafka.partition'"):
        segmentlog.audit(log.path, "t", dotted, **{**names, "partition_column": "kafka.part"})
    audit = segmentlog.audit(
        log.path,
        "t",
        dotted,
        topic_column="",
        partition_column="kafka.partition",
        offset_column="kafka.offset",
    )
    assert (2, 1) == (audit.count("missing"), audit.n_rows_without_offset)


def test_a_column_topic_of_another_meaning(log: KafkaLog, tmp_path: Path) -> None:
    """It is refused with the option that helps, unless it names a topic of the log."""
    log.write("t", [b"v"] * 2)
    log.write("u", [b"v"] * 2)
    table = rows_of([0, 1]).append_column("Topic", pa.array(["sports", "news"]))

    with pytest.raises(OptionError, match=r"no topic of the log, but 'sports'.*empty name"):
        segmentlog.audit(log, "t", table)
    assert segmentlog.audit(log, "t", table, topic_column="").is_complete
    assert 2 == segmentlog.audit(log, "t", table, topic_column="topic").count("missing")
    of_u = rows_of([0, 1]).append_column("topic", pa.array(["u", "u"]))
    assert 2 == segmentlog.audit(log, "t", of_u).count("missing")
    with pytest.raises(ColumnError, match="empty name"):
        segmentlog.audit(log, "t", rows_of([0]).append_column("topic", pa.array([1])))
    views = pa.array(["t", "t", None]).cast(pa.string_view())
    categories = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.uint32()), views)
    for topics in (pa.array([b"t", b"t", None]), views, views.cast(pa.binary_view()), categories):
        audit = segmentlog.audit(log, "t", rows_of([0, 1, 2]).append_column("topic", topics))
        assert (0, 1) == (audit.count("missing"), audit.n_rows_without_offset)


def test_each_file_has_a_schema_of_its_own(log: KafkaLog, tmp_path: Path) -> None:
    """Rows of another topic count only if their own file does not say so."""
    log.write("t", [b"v"] * 6)
    table = tmp_path / "table"
    table.mkdir()
    pq.write_table(rows_of([0, 1]), table / "a.parquet")
    topics = pa.array(["u", "u", "t"])
    pq.write_table(rows_of([2, 3, 4]).append_column("topic", topics), table / "b.parquet")
    of_text = pa.table({"PARTITION": ["0"], "Offset": pa.array([5], pa.int16())})
    pq.write_table(of_text, table / "c.parquet")

    for each in (table, ds.dataset([table / "a.parquet", table / "b.parquet"])):
        audit = segmentlog.audit(log, "t", each)
        assert [2, 3] == [each for each in found(audit)["missing"] if each < 5]
        assert 2 == audit.n_rows_of_other_topics
    log.write("t2", [b"v"])
    with pytest.raises(ColumnError, match=r"2 topics are audited.*in .*a.parquet"):
        segmentlog.audit(log, ["t", "t2"], table)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, None, 1]).dictionary_encode(),
        pa.DictionaryArray.from_arrays([0, 1, 2], pa.array([0, None, 1])),
        pa.array([None] * 3, pa.null()),
        pa.DictionaryArray.from_arrays(pa.array([0, 0, 0]), pa.nulls(1)),
    ],
    ids=["a null among indices", "a null among values", "nothing", "a dictionary of nothing"],
)
def test_nulls_in_any_form(log: KafkaLog, column: pa.Array) -> None:
    """They are rows without an offset."""
    log.write("t", [b"v"] * 2)

    audit = segmentlog.audit(log, "t", pa.table({"partition": [0] * 3, "offset": column}))

    assert not audit.is_complete
    decoded = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    n_nulls = decoded.null_count
    assert (n_nulls, n_nulls - 1) == (audit.n_rows_without_offset, audit.count("missing"))


def test_a_partition_of_a_large_number(log: KafkaLog) -> None:
    """A directory may have any name; rows are looked up without a table of so many partitions."""
    log.write("t", [b"v"] * 2)
    (log.path / "t-0").rename(log.path / "t-2147483647")
    rows = pa.concat_tables([rows_of([0], 2**31 - 1), rows_of([0], 2**31 - 2), rows_of([1], -1)])

    audit = segmentlog.audit(log, "t", rows, fail_on_data_loss=False)

    assert {"missing": [1]} == found(audit, 2**31 - 1)
    assert {("t", -1): 1, ("t", 2**31 - 2): 1} == audit.unknown_partitions


def test_topics_that_are_empty_or_not_there(log: KafkaLog) -> None:
    """An empty topic is complete; any row of it never existed."""
    log.create_topic("t")

    assert segmentlog.audit(log, "t", rows_of([])).is_complete
    assert {"nonexistent": [0]} == found(segmentlog.audit(log, "t", rows_of([0])))
    with pytest.raises(UnknownTopicOrPartitionError):
        segmentlog.audit(log, "u", rows_of([]))


def test_damage_is_told(log: KafkaLog) -> None:
    """A log that cannot be read is not complete; its missing records are not certain."""
    log.write("t", [b"v"] * 5)
    (path,) = (log.path / "t-0").glob("*.log")
    content = bytearray(path.read_bytes())
    content[20] ^= 0xFF  # the checksum
    content[26] += 1  # the number of offsets, which now differs from that of records
    path.write_bytes(content)

    audit = segmentlog.audit(log, "t", rows_of(range(5)))

    assert not audit.is_complete
    assert "checksum" in audit.partitions[0].error


def test_pieces_in_order_that_leave_a_gap(log: KafkaLog) -> None:
    """Only the bounds of such pieces are kept, and those between two of them are missing."""
    log.write("t", [b"v"] * 7)
    pieces = [*rows_of([0, 1]).to_batches(), *rows_of([3, 4]).to_batches()]

    audit = segmentlog.audit(log, "t", iter(pieces))

    assert {"missing": [2, 5, 6]} == found(audit)
    assert 2 == audit.partitions[0].missing.n_ranges


def test_the_largest_offsets(log: KafkaLog) -> None:
    """The end of a range is a number, too: such rows are found, and nothing overflows."""
    log.write("t", [b"v"])
    most = 2**63 - 1

    for offsets in ([0, most - 1, most], [most, 0], [0, -(2**63)]):
        (partition,) = segmentlog.audit(log, "t", rows_of(offsets)).partitions
        n_wrong = len(offsets) - 1
        assert (0, n_wrong) == (partition.missing.n_offsets, partition.nonexistent.n_rows)
    pieces = [*rows_of([0]).to_batches(), *rows_of([most - 1, most]).to_batches()]
    assert 1 == segmentlog.audit(log, "t", iter(pieces)).partitions[0].nonexistent.n_ranges


def write_batches(directory: Path, *batches: Sequence[int]) -> None:
    """A segment of a partition: batches of records with these offsets."""
    (directory / "t-0").mkdir(exist_ok=True)
    data = b"".join(
        encode_batch([Record(offset, 0, b"k", b"v") for offset in offsets]) for offsets in batches
    )
    (directory / "t-0" / f"{min(batches[0]):020d}.log").write_bytes(data)


def test_a_whole_batch_between_two_that_compaction_has_thinned(tmp_path: Path) -> None:
    """It is decoded with its neighbours, and counts once."""
    write_batches(tmp_path, [0, 2], [3, 4, 5], [6, 8])

    audit = segmentlog.audit(tmp_path, "t", rows_of([0]))

    assert {"missing": [2, 3, 4, 5, 6, 8], "possibly_missing": [1, 7]} == found(audit)
    assert 7 == audit.partitions[0].n_records


def test_headers_that_do_not_fit_each_other_are_not_believed(tmp_path: Path) -> None:
    """The log cannot be read there, and the audit says the same as a read."""
    write_batches(tmp_path, [0, 1, 2], [1, 2, 3])
    write_batches(tmp_path, [4, 5])

    audit = segmentlog.audit(tmp_path, "t", rows_of(range(6)))

    with pytest.raises(CorruptLogError) as read:
        segmentlog.read(tmp_path, "t")
    assert str(read.value) == audit.partitions[0].error
    assert not audit.is_complete


def test_aborted_records_after_damage(log: KafkaLog) -> None:
    """What is read around a damaged batch has no headers, but transactions as before."""
    log.write("t", [b"v"] * 2)
    with log.transaction() as transaction:
        transaction.write("t", [b"a"] * 2)
        transaction.abort()
    log.write("t", [b"v"])
    options: Any = {"on_corrupt_batch": "skip"}

    audit = segmentlog.audit(log, "t", rows_of([0, 3]), **options)

    assert {"missing": [1, 5], "aborted": [3]}.items() <= found(audit).items()


def test_thinned_aborted_batches(log: KafkaLog) -> None:
    """An aborted record stays one in a batch that has lost another record."""
    with log.transaction() as transaction:
        transaction.write("t", [{"key": each, "value": "v"} for each in "abc"])
        transaction.abort()
    log.write("t", [b"v"])
    segmentlog.erase(log.path, [b"b"], topics=["t"])

    audit = segmentlog.audit(log, "t", rows_of(range(5)))

    assert {"aborted": [0, 2], "removed": [1], "markers": [3]} == found(audit)


def test_a_sound_log_is_the_same_with_skip(log: KafkaLog) -> None:
    """Leaving out damage changes nothing where there is none."""
    log.write("t", [b"v"] * 2)
    with log.transaction() as transaction:
        transaction.write("t", [b"a"] * 2)
        transaction.abort()
    log.write("t", [b"v"])
    options: Any = {"on_corrupt_batch": "skip"}
    table = rows_of([0, 3, 4, 5])

    assert {"missing": [1], "aborted": [3], "markers": [4]} == found(
        segmentlog.audit(log, "t", table, **options)
    )
    assert found(segmentlog.audit(log, "t", table)) == found(
        segmentlog.audit(log, "t", table, **options)
    )


@pytest.mark.parametrize("on_corrupt_batch", ["fail", "skip"])
def test_an_end_before_the_marker_of_a_transaction(
    log: KafkaLog, on_corrupt_batch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The headers after the end decide, and nothing has to be read for it."""
    with log.transaction() as transaction:
        transaction.write("t", [b"a"] * 5)
        transaction.abort()
    with log.transaction() as transaction:
        transaction.write("t", [b"c"] * 5)
    options: Any = {"on_corrupt_batch": on_corrupt_batch}
    if on_corrupt_batch == "fail":
        monkeypatch.setattr(log_offsets, "_checked", lambda *_: pytest.fail("the log was read"))

    for end, expected in ((3, {"aborted": [1]}), (8, {"aborted": [1], "missing": [6]})):
        table = rows_of([1, *range(7, end)])
        audit = segmentlog.audit(log, "t", table, ending_offsets={("t", 0): end}, **options)
        assert expected == found(audit)


def test_damage_that_is_left_out_is_lost(log: KafkaLog) -> None:
    """What the table should have there is not known, whether it has a row or not."""
    for n in (2, 3, 1):
        log.write("t", [b"v" * 9] * n)
    with log.transaction() as transaction:
        transaction.write("t", [b"c"])
    (path,) = (log.path / "t-0").glob("*.log")
    content = bytearray(path.read_bytes())
    second = 12 + int.from_bytes(content[8:12], "big")
    content[second + 70] ^= 0xFF
    path.write_bytes(content)
    options: Any = {"on_corrupt_batch": "skip"}

    audit = segmentlog.audit(log, "t", rows_of([0, 2, 3, 5, 7]), **options)

    assert {"missing": [1, 6], "lost": [2, 3, 4], "markers": [7]} == found(audit)
    assert (3, 2) == (audit.partitions[0].lost.n_offsets, audit.partitions[0].lost.n_rows)
    audit = segmentlog.audit(log, "t", rows_of([0, 1, 2, 3, 4, 5, 6]), **options)
    assert not audit.is_complete


def test_damage_in_a_thinned_batch_is_lost(tmp_path: Path) -> None:
    """Nobody knows which of its offsets had a record."""
    write_batches(tmp_path, [0, 1], [2, 4, 5], [6])
    (path,) = (tmp_path / "t-0").glob("*.log")
    content = bytearray(path.read_bytes())
    content[12 + int.from_bytes(content[8:12], "big") + 70] ^= 0xFF
    path.write_bytes(content)
    options: Any = {"on_corrupt_batch": "skip"}

    audit = segmentlog.audit(tmp_path, "t", rows_of([0, 3]), **options)

    assert {"missing": [1, 6], "lost": [2, 3, 4, 5]} == found(audit)


def test_a_damaged_count_of_records_is_no_empty_batch(log: KafkaLog) -> None:
    """Compaction leaves batches without records, but with the right checksum."""
    for n in (2, 2, 1):
        log.write("t", [b"v"] * n)
    (path,) = (log.path / "t-0").glob("*.log")
    content = bytearray(path.read_bytes())
    second = 12 + int.from_bytes(content[8:12], "big")
    content[second + 60] = 0  # the last byte of the number of its records
    path.write_bytes(content)

    (partition,) = segmentlog.audit(log, "t", rows_of([0, 1, 4])).partitions
    assert "checksum" in partition.error
    audit = segmentlog.audit(log, "t", rows_of([0, 1, 4]), on_corrupt_batch="skip")
    assert {"lost": [2, 3]} == found(audit)
    assert not audit.is_complete


@pytest.mark.parametrize("gone", [0, 1], ids=["first", "middle"])
def test_a_segment_that_is_known_to_be_gone(log: KafkaLog, gone: int) -> None:
    """Its index is there: nobody can say that the table is complete."""
    directory = log.path / "t-0"
    directory.mkdir(parents=True)
    for first in (0, 5, 10):
        records = [Record(first + i, 0, b"k", b"v") for i in range(5)]
        (directory / f"{first:020d}.log").write_bytes(encode_batch(records))
        (directory / f"{first:020d}.index").touch()
    (directory / f"{5 * gone:020d}.log").unlink()

    audit = segmentlog.audit(log.path, "t", rows_of([*range(15)]))

    assert {"lost": [*range(5 * gone, 5 * gone + 5)]} == found(audit)
    assert not audit.is_complete
    later = segmentlog.audit(log.path, "t", rows_of([11]), starting_offsets={("t", 0): 11})
    assert "lost" not in found(later)


def test_nothing_that_was_audited_is_not_complete(log: KafkaLog) -> None:
    """Bounds may leave nothing of a log that has records, or of a table that has rows."""
    log.write("t", [b"v"] * 5)
    log.create_topic("u")
    table = pa.table({"topic": ["t", "u"], "partition": [0, 0], "offset": [0, 0]})

    audit = segmentlog.audit(log, "t", rows_of([]), ending_offsets={("t", 0): 0})
    assert (("t",), False) == (audit.topics_not_audited, audit.is_complete)
    assert "nothing was audited" in repr(audit)
    audit = segmentlog.audit(log, "t", rows_of([7]), until="2000-01-01")
    assert not audit.is_complete
    audit = segmentlog.audit(log, "u", table)
    assert ("u",) == audit.topics_not_audited
    audit = segmentlog.audit(log, "u", table.slice(0, 1))
    assert ((), True) == (audit.topics_not_audited, audit.is_complete)


def test_an_end_at_a_checkpoint_is_that_of_its_query(log: KafkaLog, tmp_path: Path) -> None:
    """The query has read nothing of a partition that its checkpoint lacks."""
    log.create_topic("t", 2)
    log.write("t", [b"v"] * 5, partition=0)
    log.write("t", [b"v"] * 5, partition=1)
    place = write_checkpoint(tmp_path / "query", {0: '{"t":{"0":3}}'}, committed=0)
    ends = segmentlog.checkpoint_offsets(place)

    audit = segmentlog.audit(log, "t", rows_of([0, 1, 2]), ending_offsets=ends)

    assert audit.is_complete
    assert [3, 0] == [each.end_offset for each in audit.partitions]
    assert 3 == segmentlog.read(log, "t", ending_offsets=ends).num_rows
    assert 8 == segmentlog.read(log, "t", ending_offsets=dict(ends)).num_rows
    for i, text in enumerate(('{"t":{}}', "{}", '{"t":{"0":-2,"1":-2}}')):
        place = write_checkpoint(tmp_path / f"q{i}", {0: text}, committed=0)
        none = segmentlog.checkpoint_offsets(place)
        assert 0 == segmentlog.read(log, "t", ending_offsets=none).num_rows
        audit = segmentlog.audit(log, "t", rows_of([]), ending_offsets=none)
        assert ([0, 0], ("t",)) == (
            [each.end_offset for each in audit.partitions],
            audit.topics_not_audited,
        )


@pytest.mark.parametrize("seed", range(12))
def test_findings_are_those_of_every_offset(
    log: KafkaLog, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Random logs and tables, compared with sets; runs of a table go to the file at once."""
    draw = random.Random(seed)
    if seed % 3:
        monkeypatch.setattr(bitmaps, "_LEAST_ROWS", draw.choice([1, 4]))
        monkeypatch.setattr(bitmaps, "_MANY_ROWS", draw.choice([1, 4]))
        monkeypatch.setattr(bitmaps, "_MOST_WINDOWS", draw.choice([1, 2]))
    if seed % 2:
        monkeypatch.setattr(table_offsets, "_MOST_COLLECTED", 16)
        monkeypatch.setattr(table_offsets, "_MOST_IN_MEMORY", draw.choice([8, 64]))
        monkeypatch.setattr(table_offsets, "_MOST_RUNS", 3)
        monkeypatch.setattr(table_offsets, "_MOST_MERGED", draw.choice([1, 20]))
        monkeypatch.setattr(spill, "_MOST_IN_MEMORY", draw.choice([0, 300]))
        monkeypatch.setattr(log_offsets, "_NEAR", draw.choice([0, 4]))
        monkeypatch.setattr(comparison, "_NEAR", draw.choice([0, 4]))
    aborted: set[int] = set()
    for _ in range(draw.randint(5, 20)):
        n = draw.randint(1, 9)
        records = [{"key": str(draw.randint(0, 6)), "value": b"v"} for _ in range(n)]
        step = draw.random()
        if step < 0.2:
            log.gap("t", n) if (log.path / "t-0").exists() else log.write("t", records)
        elif step < 0.5 and (log.path / "t-0").exists():
            begin = segmentlog.open_log_dir(log).log("t", 0).log_end_offset
            with log.transaction() as transaction:
                transaction.write("t", records)
                if draw.random() < 0.5:
                    transaction.abort()
                    aborted |= {*range(begin, begin + n)}
        else:
            log.write("t", records)
        if draw.random() < 0.1:
            log.compact("t")
    if draw.random() < 0.3:
        log.delete_records("t", draw.randint(0, 12))
    end = segmentlog.open_log_dir(log).log("t", 0).log_end_offset
    offsets = [draw.randint(-3, end + 3) for _ in range(draw.randint(0, 2 * end))]
    offsets += draw.choice([[], [*range(end)], [*range(end)] * 2])
    if draw.random() < 0.5:
        offsets.sort()
    table = rows_of(offsets)
    pieces = [
        batch
        for at in range(0, len(offsets), 7)
        for batch in table.slice(at, 7).combine_chunks().to_batches()
    ]

    audit = segmentlog.audit(log, "t", iter(pieces), spill_directory=tmp_path)

    start = segmentlog.open_log_dir(log).log("t", 0).log_start_offset
    every = segmentlog.read(log, "t")["offset"].to_pylist()
    decided = segmentlog.read(log, "t", isolation_level="read_committed")
    committed = {*decided["offset"].to_pylist()}
    times = Counter(offsets)
    told = found(audit)
    inside = range(start, end)
    assert [each for each in sorted(committed) if not times[each]] == told.get("missing", [])
    assert sorted(each for each, n in times.items() if n > 1) == sorted(told.get("duplicates", []))
    assert [o for o in inside if times[o] and o in {*every} - committed] == told.get("aborted", [])
    assert sorted(o for o in times if o < 0 or o >= end) == told.get("nonexistent", [])
    assert [o for o in range(start) if times[o]] == told.get("below_log_start", [])
    others = [o for o in inside if o not in every]
    rows = sorted([*told.get("removed", []), *told.get("markers", [])])
    assert [o for o in others if times[o]] == rows
    assert {*told.get("possibly_missing", [])} <= {o for o in others if not times[o]}
    assert len(committed) == audit.partitions[0].n_records
    missing = audit.missing(["offset", "value"]).read_all()
    assert told.get("missing", []) == missing["offset"].to_pylist()
    for name in FINDINGS:
        of_name = told.get(name, [])
        n_ranges = sum(offset - 1 not in of_name for offset in of_name)
        counted = getattr(audit.partitions[0], name)
        assert (len(of_name), n_ranges) == (counted.n_offsets, counted.n_ranges), name


def test_ranges_that_a_second_attempt_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in the file go with those in memory."""
    monkeypatch.setattr(spill, "_MOST_IN_MEMORY", 0)
    file = spill.SpillFile()
    ranges = spill.RangeList(file)
    ranges.add(np.array([1, 5]), np.array([2, 9]))
    assert [[1, 2], [5, 9]] == np.concatenate([*ranges]).tolist()

    ranges.clear()

    assert ([], 0) == ([*ranges], file.n_in_memory)


def test_messages_of_magic_0_and_1(tmp_path: Path) -> None:
    """A compressed message has relative offsets, and compaction may have removed some."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    inside = [Record(offset, 0, b"k", b"v") for offset in (3, 5, 6)]
    first = encode_message(Record(0, 0, b"k", b"v"), magic=0)
    content = first + encode_wrapper(inside, magic=1, codec=1)
    (directory / f"{0:020d}.log").write_bytes(content)

    audit = segmentlog.audit(directory, "t", rows_of([0, 4, 5]))

    assert found(audit) == {"missing": [3, 6], "removed": [4], "possibly_missing": [1, 2]}


@pytest.mark.parametrize("time_ms", [-1, -86_400_000 * 365 * 100, 9_300_000_000_000, 253 * 10**12])
def test_times_in_every_unit(tmp_path: Path, time_ms: int) -> None:
    """Also before 1970, and beyond the year 2262, in which nanoseconds end, as Spark's INT96."""
    log = tmp_path / "t-0"
    log.mkdir()
    (log / f"{0:020d}.log").write_bytes(encode_batch([Record(0, time_ms, None, b"v")]))
    place = {"partition": [0], "offset": [0]}
    columns = [pa.array([time_ms + late], pa.timestamp("ms")) for late in (0, 1)]
    table, late = (pa.table({**place, "timestamp": column}) for column in columns)
    pq.write_table(table, tmp_path / "int96.parquet", use_deprecated_int96_timestamps=True)
    same = [table, tmp_path / "int96.parquet", pa.table({**place, "timestamp": [time_ms]})]
    if abs(time_ms) < 9 * 10**12:
        nanoseconds = columns[0].cast(pa.timestamp("ns", "Asia/Tokyo"))
        same.append(pa.table({**place, "timestamp": nanoseconds}))
    found = [segmentlog.audit(log, "t", each, columns="timestamp") for each in [*same, late]]

    assert [True] * len(same) + [False] == [each.is_complete for each in found]


def test_a_directory_of_parquet(log: KafkaLog, tmp_path: Path) -> None:
    """The partition may be in the names of directories, as Spark and Hive write it."""
    for partition in range(2):
        log.write("t", [b"v"] * 3, partition=partition, num_partitions=2)
        directory = tmp_path / "table" / f"partition={partition}"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"offset": [0, 2]}), directory / "a.parquet")

    audit = segmentlog.audit(log, "t", tmp_path / "table")

    assert [{"missing": [1]}, {"missing": [1]}] == [found(audit, 0), found(audit, 1)]


def test_a_range_that_ends_where_no_batch_is(tmp_path: Path) -> None:
    """Its last offsets are known, too: the log has nothing there."""
    (tmp_path / "t-0").mkdir()
    batches = (
        encode_batch([Record(base + i, 1000, None, b"v") for i in range(n)])
        for base, n in ((0, 3), (10, 2))
    )
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
    audit = segmentlog.audit(
        tmp_path, "t", rows_of([0, 1, 2, 5, 11]), ending_offsets={("t", 0): 7}
    )

    assert {"possibly_missing": [3, 4, 6], "removed": [5], "not_audited": [11]} == found(audit)
    assert 3 == audit.partitions[0].n_records
    assert audit.is_complete
    audit = segmentlog.audit(
        tmp_path, "t", rows_of([5]), starting_offsets={("t", 0): 4}, ending_offsets={("t", 0): 7}
    )
    assert {"possibly_missing": [4, 6], "removed": [5]} == found(audit)
