"""Memory of rows that later rows reuse, but never while anybody holds the earlier rows."""

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
from plain_writes import write

from segmentlog.format.kernels.memory import COPY_SLACK
from segmentlog.format.records import columns as arenas_module
from segmentlog.format.records import one_pass
from segmentlog.format.records.columns import Arenas, Output
from segmentlog.format.records.one_pass import OnePassDecoder
from segmentlog.format.records.schema import record_schema
from segmentlog.model import TopicPartition
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
        encode_batch([
            Record(offset, 1_700_000_000_000, b"k%d" % offset, b"%d" % offset * (offset % 9), ())
            for offset in range(base, base + 100)
        ])
        for base in range(0, n_rows, 100)
    )  # fmt: skip


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
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        assert (0, b"") == (done.returncode, done.stderr)
        assert int(done.stdout) < ALL
