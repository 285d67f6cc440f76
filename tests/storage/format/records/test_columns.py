"""Schemas and memory of columns: reused, but never while anybody holds the rows; bytes as text."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from both_ways import with_slack
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_writes import write

import segmentlog
from segmentlog.errors import InvalidUtf8Error
from segmentlog.format.kernels.memory import COPY_SLACK
from segmentlog.format.records import columns as arenas_module
from segmentlog.format.records import one_pass
from segmentlog.format.records.columns import (
    Arenas,
    Output,
    TextColumns,
    record_schema,
    scalar,
    where,
)
from segmentlog.format.records.one_pass import OnePassDecoder
from segmentlog.model import OnInvalidUtf8, TopicPartition
from segmentlog.testing.reference import Record, encode_batch

WHERE = TopicPartition("t", 0)
N_BYTES = 100 + COPY_SLACK
N_ROWS = 10_000
ALL = arenas_module._N_ARENAS


@pytest.fixture
def arenas(monkeypatch: pytest.MonkeyPatch) -> Arenas:
    """Two arenas of two parts."""
    monkeypatch.setattr(arenas_module, "_N_ARENAS", 2)
    return Arenas(N_BYTES, 2)


@pytest.fixture
def many_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of few rows, in new arenas."""
    monkeypatch.setattr(one_pass, "MOST_ROWS", 100)
    monkeypatch.setattr(one_pass, "_ARENAS", Arenas(one_pass._ROOM_BYTES + COPY_SLACK, 2))


def n_spare() -> int:
    """How many arenas nobody holds."""
    return len(one_pass._ARENAS._spare)


def log(n_rows: int = N_ROWS) -> bytes:
    """Batches of records, whose keys and values show their offsets."""
    return b"".join(
        encode_batch(
            [
                Record(
                    offset, 1_700_000_000_000, b"k%d" % offset, b"%d" % offset * (offset % 9), ()
                )
                for offset in range(base, base + 100)
            ]
        )
        for base in range(0, n_rows, 100)
    )


def read(data: bytes) -> Iterator[pa.RecordBatch]:
    decoder = OnePassDecoder(WHERE, record_schema(["key", "value", "offset"]))
    yield from decoder.decode(with_slack(data), 0, len(data), 0)
    yield from decoder.flush()


def are_whole(rows: pa.RecordBatch) -> bool:
    """Whether the rows still have the keys and values of their offsets."""
    offsets = rows["offset"].to_pylist()
    return rows["key"].to_pylist() == [b"k%d" % each for each in offsets] and (
        rows["value"].to_pylist() == [b"%d" % each * (each % 9) for each in offsets]
    )


def test_memory_is_lent_again_when_arrow_and_numpy_have_dropped_it(arenas: Arenas) -> None:
    """The last one to drop it may be a slice of Arrow's buffer, or a view of numpy's array."""
    (keys, _), (values, view) = arenas.lend()
    address = keys.address
    assert (values.address, view.nbytes) == (view.ctypes.data, N_BYTES)
    assert values.address == address + N_BYTES
    other = arenas.lend()
    assert arenas.lend() is None

    part = values.slice(10, 20)
    del keys, values, view, _
    assert arenas.lend() is None
    del part
    (keys, _), (values, view) = arenas.lend()
    assert address == keys.address

    part = view[10:]
    del keys, values, view, _
    assert arenas.lend() is None
    del part
    assert address == arenas.lend()[0][0].address
    assert other[0][0].address != address


def test_who_holds_more_than_all_arenas_gets_memory_of_arrow(arenas: Arenas) -> None:
    """No two outputs share memory."""
    schema = record_schema(["key", "value"])
    outputs = [Output(schema, 10, 100, 0, arenas) for _ in range(4)]
    for i, each in enumerate(outputs):
        each.arrays.keys.fill(i)
        each.arrays.values.fill(100 + i)

    assert 0 == len(arenas._spare)
    for i, each in enumerate(outputs):
        assert {i} == {*each.arrays.keys.tolist()}
        assert {100 + i} == {*each.arrays.values.tolist()}
    del outputs, each
    assert 2 == len(arenas._spare)


@pytest.mark.usefixtures("many_outputs")
def test_rows_that_are_held_stay_as_they_are() -> None:
    """Every ninth batch is held; the memory of the others is written again."""
    held, addresses, n_rows = [], [], 0
    for i, rows in enumerate(read(log())):
        n_rows += rows.num_rows
        addresses.append(rows["value"].buffers()[2].address)
        if i % 9 == 0:
            held.append(rows.slice(3))

    assert N_ROWS == n_rows
    assert len({*addresses}) < len(addresses) // 3
    assert all(are_whole(each) for each in held)
    del held, rows
    assert ALL == n_spare()


def test_threads_that_lend_at_the_same_time_never_share_memory(arenas: Arenas) -> None:
    """No lock is taken, because the memory may come back in the middle of `lend`."""
    shared = []

    def work(number: int) -> None:
        for _ in range(3000):
            lent = arenas.lend() or []
            for _, view in lent:
                view.fill(number)
            found = {byte for buffer, _ in lent for byte in buffer.to_pybytes()}
            if found not in ({number}, set()):
                shared.append(number)
            lent = view = _ = None

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(each,)) for each in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(interval)

    assert [] == shared
    assert 2 == len(arenas._spare)


@pytest.mark.usefixtures("many_outputs")
def test_memory_comes_back_from_the_threads_of_other_libraries() -> None:
    """DuckDB's and Arrow's threads drop batches without the interpreter's lock."""
    data = log()
    schema = record_schema(["key", "value", "offset"])
    rows = pa.RecordBatchReader.from_batches(schema, read(data))
    with duckdb.connect() as connection:
        connection.execute("set threads = 4")
        query = """select count(*), count(distinct key) from rows where octet_length("key") > 2"""
        assert (N_ROWS - 10, N_ROWS - 10) == connection.execute(query).fetchone()
    del rows
    gc.collect()
    assert ALL == n_spare()

    table = pa.Table.from_batches(read(data))
    counts = table.group_by("key").aggregate([("value", "count_distinct")])
    assert N_ROWS == counts.num_rows
    del table
    gc.collect()
    assert ALL == n_spare()


@pytest.mark.usefixtures("many_outputs")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_writes_into_memory_of_its_own() -> None:
    """The forked process drops rows that its parent still holds, and writes others in place."""
    held = [*read(log())]
    places = {each["value"].buffers()[2].address for each in held[:ALL]}
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        is_good = all(map(are_whole, held))
        held.clear()
        others = [*read(log()[len(log(5000)) :])]
        is_written = not places.isdisjoint(each["value"].buffers()[2].address for each in others)
        os._exit(7 if is_good and is_written and all(map(are_whole, others)) else 1)

    assert 7 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert all(map(are_whole, held))


ENDING = """
import atexit, sys, threading, polars, pyarrow as pa, segmentlog
from segmentlog.format.records import one_pass
log = segmentlog.open_log_dir(sys.argv[1]).log("t", 0)
held = [*log.scan(use_threads=False)]  # in a module
print(len(one_pass._ARENAS._spare))
atexit.register(held.__len__)
sys.held = held[0]["key"]  # until the very end
polars.held = polars.from_arrow(held[1])  # in another library
pa.lib.held = held[2]  # in Arrow's own module
cycle = [held[3]]
cycle.append(cycle)  # for the garbage collector
is_read = threading.Event()
def drop():
    while True:
        for each in segmentlog.dataset(sys.argv[1]).scanner(use_threads=False).to_batches():
            is_read.set()
threading.Thread(target=drop, daemon=True).start()
is_read.wait()
"""


@pytest.mark.slow
def test_a_process_ends_while_rows_are_held_and_dropped(tmp_path: Path) -> None:
    """Arrow frees some rows after the interpreter has ended, when nothing can be given back.

    The daemon thread takes batches from a generator: where it takes them from a
    `pyarrow.RecordBatchReader`, Arrow itself aborts the process, with any memory.
    """
    values = pa.array([b"%d" % each * 9 for each in range(200_000)], pa.binary())
    write(tmp_path, pa.table({"key": values, "value": values}))
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", ENDING, str(tmp_path)],
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert (0, b"") == (done.returncode, done.stderr)
        assert int(done.stdout) < ALL


PLACE = TopicPartition("t", 3)
BYTES = st.binary(max_size=6) | st.text(max_size=4).map(str.encode)
BAD = [b"\xff", b"a\xc3", b"\xed\xa0\x80b", b"\xc0\x80", b"\xf4\x90\x80\x80"]


def converted(
    values: list[bytes | None], on_invalid: OnInvalidUtf8, columns: tuple[str, ...] = ("value",)
) -> pa.RecordBatch:
    """Values at offsets from 100 on, as text; they are the second half of a larger batch."""
    text = TextColumns(columns, ("value",), on_invalid)
    rows = {
        "value": pa.array([*values, *values], pa.binary()),
        "offset": pa.array(range(100 - len(values), 100 + len(values)), pa.int64()),
        "partition": pa.array([3] * len(values) * 2, pa.int32()),
    }
    scanned = pa.RecordBatch.from_pydict({name: rows[name] for name in text.scanned})
    return text.convert(scanned.slice(len(values)), PLACE)


def is_text(value: bytes | None) -> bool:
    """Whether Python's decoder accepts the bytes; it refuses surrogates as Java does."""
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


@given(st.lists(st.none() | BYTES))
@settings(deadline=None)
def test_text_comes_as_it_is(values: list[bytes | None]) -> None:
    """Nulls stay null, and bytes that are not text become null.

    The type is string in both cases.
    """
    found = converted(values, OnInvalidUtf8.NULL).column("value")

    found.validate(full=True)
    assert pa.string() == found.type
    assert found.to_pylist() == [
        value.decode() if value is not None and is_text(value) else None for value in values
    ]


@given(st.lists(st.none() | BYTES))
@settings(deadline=None)
def test_the_first_bad_value_is_named(values: list[bytes | None]) -> None:
    """The error names topic, partition, offset and column, even without the offset column."""
    bad = [row for row, value in enumerate(values) if not is_text(value)]
    if not bad:
        assert len(values) == converted(values, OnInvalidUtf8.FAIL).num_rows
        return
    with pytest.raises(InvalidUtf8Error) as caught:
        converted(values, OnInvalidUtf8.FAIL)

    assert ("t", 3, 100 + bad[0], "value") == caught.value.args


@pytest.mark.parametrize("columns", [("value",), ("partition", "value", "offset")])
def test_the_columns_are_those_that_were_asked_for(columns: tuple[str, ...]) -> None:
    """The requested columns come in their order, without the offset that an error needs."""
    for on_invalid in OnInvalidUtf8:
        batch = converted([b"a", None], on_invalid, columns)

        assert list(columns) == batch.schema.names
        assert ["a", None] == batch.column("value").to_pylist()


def test_bad_bytes_are_replaced_as_in_java() -> None:
    """A surrogate that was encoded alone becomes one replacement character, not three."""
    found = converted([*BAD, None, b"good"], OnInvalidUtf8.REPLACE).column("value")

    bad = "\ufffd"
    assert [bad, "a" + bad, bad + "b", bad * 2, bad * 4, None, "good"] == found.to_pylist()


def test_values_of_a_log_become_text(tmp_path: Path) -> None:
    """Values are not copied: the bytes of the column are those of the scan."""
    with segmentlog.open_writer(tmp_path, "t", num_partitions=1) as writer:
        writer.append(pa.table({"key": [None, "k"], "value": ["ä", ""]}))
    text = TextColumns(("key", "value"), ("key", "value"), OnInvalidUtf8.FAIL)
    (scanned,) = segmentlog.open_log_dir(tmp_path).log("t", 0).scan(columns=text.scanned)
    batch = text.convert(scanned, TopicPartition("t", 0))

    assert {"key": [None, "k"], "value": ["ä", ""]} == batch.to_pydict()
    assert (
        scanned.column("value").buffers()[2].address == batch.column("value").buffers()[2].address
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("orders", pa.string()),
        ("", pa.string()),
        ("größer", pa.string()),
        (7, pa.int32()),
        (-(2**31), pa.int32()),
        (2**63 - 1, pa.int64()),
        (-(2**63), pa.timestamp("us", "UTC")),
        (1_700_000_000_000_000, pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_a_scalar_is_arrows(value: int | str, kind: pa.DataType) -> None:
    """The scalar has Arrow's type and value; repeated, it fills a column."""
    expected, found = pa.scalar(value, kind), scalar(value, kind)

    assert (kind, expected) == (found.type, found)
    assert pa.repeat(expected, 3) == pa.repeat(found, 3)


def test_a_number_that_the_type_cannot_hold_is_refused() -> None:
    """A number that does not fit is not changed into another number."""
    with pytest.raises(OverflowError):
        scalar(2**31, pa.int32())


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string()], ids=str)
@pytest.mark.parametrize("other", [None, "long"])
def test_a_slice_beside_a_scalar(kind: pa.DataType, other: str | None) -> None:
    """Before pyarrow 24, Arrow's own function gives wrong bytes of a slice."""
    rows = pa.array(["a", "bb", "ccc", None, "dd"]).cast(kind)[1:]
    found = where(pa.array([True, False, None, True]), rows, pa.scalar(other).cast(kind))

    assert ["bb", other, None, "dd"] == found.cast(pa.string()).to_pylist()
