"""Copies of log directories in a store are read as on a disk, with few requests."""

import logging
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from plain_writes import write
from stores_here import CountingStore, serve, store_of

from segmentlog import LogDirectory, ProducerConfig, open_log_dir
from segmentlog.errors import (
    ChecksumMismatchError,
    LogChangedError,
    LogDirectoryError,
    SegmentLogError,
    StorageError,
)
from segmentlog.log.indexes import OFFSET_ENTRY, OffsetIndex
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.store.readable import exists, open_file, survey
from segmentlog.store.remote import object_store, requests

GOLDEN = Path(__file__).parents[3] / "golden"
DIRECTORIES = ["examples", "kafka-4.3.1", "kafka-3.9.2", "kafka-2.8.2"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits between requests."""
    monkeypatch.setattr(requests, "_PAUSE_SECONDS", 0.0)


@pytest.fixture
def copied(example_data: str, tmp_path: Path) -> Path:
    """A copy of the example data, to be changed."""
    return Path(shutil.copytree(example_data, tmp_path / "bucket" / "kafka"))


@pytest.fixture
def store(copied: Path) -> CountingStore:
    """A store that counts requests, with the copied directory."""
    return CountingStore(store_of(copied.parent))


@pytest.fixture
def url(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of the copied directory."""
    return serve(monkeypatch, store, "bucket") + "/kafka"


def read_all(directory: LogDirectory) -> dict:
    """Everything that a reader can ask of a directory."""
    found = {}
    for topic_partition in directory.topic_partitions():
        log = directory.log(*topic_partition)
        end = log.end_offset()
        found[topic_partition] = (
            log.topic_id,
            log.log_start_offset,
            end,
            log.log_end_offset,
            log.high_watermark,
            log.size_bytes,
            log.end,
            [log.offset_for_timestamp(time) for time in (0, 1_760_000_000_000, 2**60)],
            [each.offsets for each in log.slices(log.log_start_offset, end, 1000)],
            log.scan(include_headers=True).read_all(),
            log.scan(isolation_level="read_committed").read_all(),
            [finding[:4] + finding[5:] for finding in LogCheck(log).findings()],
        )
    return found


@pytest.mark.parametrize("name", DIRECTORIES)
def test_every_answer_is_that_of_a_disk(
    name: str, example_data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories of three broker generations give equal answers from a store and a disk."""
    directory = Path(example_data) if name == "examples" else GOLDEN / name
    path = serve(monkeypatch, store_of(directory.parent), "bucket")

    there = read_all(open_log_dir(f"{path}/{directory.name}"))

    assert there == read_all(open_log_dir(directory))
    assert there


def test_a_partition_or_a_file_is_opened_by_its_url(url: str, example_data: str) -> None:
    """The checkpoints of the directory apply to a partition or a file that is opened alone."""
    file = "orders-0/00000000000000000000.log"
    for name in ("orders-0", file):
        there, here = open_log_dir(f"{url}/{name}"), open_log_dir(f"{example_data}/{name}")
        assert there.topic_partitions() == here.topic_partitions()
        assert read_all(there) == read_all(here)


def test_a_missing_path_is_an_error(url: str) -> None:
    """A missing directory, partition or file is an error that names it."""
    for name in ("nope", "nope-0", "orders-0/5.log"):
        with pytest.raises(LogDirectoryError, match="no such file"):
            open_log_dir(f"{url}/{name}")
    with pytest.raises(LogDirectoryError, match="neither a directory named"):
        open_log_dir(os.path.dirname(url))


def test_a_directory_whose_name_contains_that_of_a_kind_of_file(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed alone: the bucket may be large, and a user may not be allowed to list it."""
    copied.rename(copied.parent / "kafka.logs")
    store = CountingStore(store_of(copied.parent))
    directory = open_log_dir(serve(monkeypatch, store, "bucket") + "/kafka.logs")
    read_all(directory)
    assert {"kafka.logs"} == {each[1] for each in store.requests if each[0] == "list"}


def test_planning_lists_once_and_reads_ends(url: str, store: CountingStore) -> None:
    """A plan lists the directory once, and opens only the checkpoints and the last segment."""
    directory = open_log_dir(url)
    assert [("list", "kafka", 0, 0)] == [each for each in store.requests if each[0] == "list"]
    read = {each[1] for each in store.requests if each[0] == "read"}
    assert {"kafka/log-start-offset-checkpoint", "kafka/replication-offset-checkpoint"} == read
    store.requests.clear()

    log = directory.log("customers", 0)
    log.slices(log.log_start_offset, log.end_offset(), 128 << 20)

    names = [Path(each[1]).name for each in store.requests]
    last = log.segments[-1].base_offset
    assert len(log.segments) == 2
    assert {f"{last:020d}.index", f"{last:020d}.log"} >= set(names)
    assert len(names) <= 4


def test_a_narrow_range_reads_its_bytes_alone(
    url: str, copied: Path, store: CountingStore
) -> None:
    """The read ends at the second index entry after the range."""
    many = pa.table({"value": [b"%0100d" % i for i in range(8000)]})
    write(copied.parent / "new", many, topic="many", config=ProducerConfig(batch_size=2000))
    log = open_log_dir(url.replace("kafka", "new")).log("many", 0)
    (planned,) = log.slices(4000, 4020)
    store.requests.clear()

    assert [b"%0100d" % i for i in range(4000, 4020)] == log.scan(4000, 4020).read_all()[
        "value"
    ].to_pylist()

    (file,) = planned.files
    read = [each[2:] for each in store.requests if each[0] == "read"]
    assert [(file.start, file.end)] == read
    assert file.end - file.start < log.segments[0].size / 20


def test_large_ranges_are_in_flight_side_by_side(
    url: str, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte is requested once, in pieces that are under way at the same time."""
    monkeypatch.setattr(object_store, "PIECE_BYTES", 500)
    log = open_log_dir(url).log("orders", 0)
    rows = log.end_offset() - log.log_start_offset
    store.requests.clear()

    assert rows == log.scan().read_all().num_rows

    read = sorted(each[2:] for each in store.requests if each[0] == "read")
    assert list(range(0, 6381, 500)) == [begin for begin, _ in read]
    assert 6381 == read[-1][1]


def test_a_lost_answer_is_asked_for_again(url: str, store: CountingStore) -> None:
    """A truncated answer is repeated, and is not taken for the end of the file."""
    seen = set()

    def spoil(key: str, position: int, found: bytes) -> bytes:
        is_first = (key, position) not in seen
        seen.add((key, position))
        return found[: len(found) // 2] if is_first else found

    store.spoil = spoil
    directory = open_log_dir(url)

    assert 335 == directory.log("orders", 0).scan().read_all().num_rows


@pytest.mark.parametrize("name", ["0.log", "checkpoint"])
def test_an_answer_that_stays_cut_off_is_an_error(
    url: str, store: CountingStore, name: str
) -> None:
    """The error has the URL and the range. No read returns fewer rows."""
    store.spoil = lambda key, _, found: found[:-1] if key.endswith(name) else found

    with pytest.raises(
        StorageError, match=rf"{url}/.*{name}: reading bytes \d+ to \d+ failed: .*of"
    ):
        open_log_dir(url).log("orders", 0).scan().read_all()


def test_an_index_that_stays_cut_off_costs_a_scan(url: str, store: CountingStore) -> None:
    """An index is a hint: without it, the log is read from the beginning of the segment."""
    store.spoil = lambda key, _, found: found[:-1] if key.endswith("0.index") else found

    assert 335 == open_log_dir(url).log("orders", 0).scan().read_all().num_rows


def test_other_bytes_are_a_wrong_checksum(url: str, store: CountingStore) -> None:
    """Changed bytes raise the error that they raise on a disk."""
    log = open_log_dir(url).log("orders", 0)
    assert log.end_offset()
    store.spoil = lambda key, _, found: found[:200] + b"\1" + found[201:]

    with pytest.raises(ChecksumMismatchError):
        log.scan().read_all()


def replaced(path: Path, change: Callable[[bytes], bytes] = lambda found: found) -> None:
    """Replace an object by another one with another time."""
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, (1_700_000_000, 1_700_000_000))


def test_an_object_that_was_replaced_before_it_is_read_is_an_error(url: str, copied: Path) -> None:
    """The open directory is a snapshot of the past, and has to be opened again."""
    directory = open_log_dir(url)
    log = directory.log("orders", 0)
    slices = log.slices(0, log.end_offset())
    replaced(copied / "orders-0" / "00000000000000000000.log")

    with pytest.raises(LogChangedError, match="load the path again"):
        log.scan().read_all()
    assert slices
    assert open_log_dir(url).log("orders", 0).scan().read_all().num_rows == 335


def test_an_object_that_was_replaced_before_its_end_is_known(url: str, copied: Path) -> None:
    """Sizes of the listing are never mixed with bytes of another object."""
    log = open_log_dir(url).log("orders", 0)
    replaced(copied / "orders-0" / "00000000000000000000.log")

    with pytest.raises(LogChangedError, match="load the path again"):
        log.end_offset()


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(
    url: str, copied: Path, store: CountingStore
) -> None:
    """Ranges of two objects are never joined, even if all checksums are right."""
    log = open_log_dir(url).log("orders", 0)
    assert log.end_offset()
    path = copied / "orders-0" / "00000000000000000000.log"

    def spoil(key: str, position: int, found: bytes) -> bytes:
        replaced(path)
        return found

    store.spoil = spoil

    with pytest.raises(StorageError, match="the object was replaced by another one"):
        log.scan().read_all()


def test_a_task_that_finds_another_object_looks_its_place_up_again(
    url: str, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction has replaced the object. A process without a survey asks the store again."""
    from segmentlog.reads.scan import scan_slice

    log = open_log_dir(url).log("orders", 0)
    (planned,) = log.slices(0, log.end_offset())
    replaced(copied / "orders-0" / "00000000000000000000.log")
    monkeypatch.setattr(object_store, "_disks", {})

    assert 335 == sum(batch.num_rows for batch in scan_slice(planned))


def test_a_store_that_cannot_be_asked_is_no_missing_file(
    url: str, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error contains the message of the store."""

    def listing(key: str, *, deep: bool) -> None:
        raise OSError("AWS Error SLOW_DOWN")

    def facts(key: str) -> None:
        raise OSError("AWS Error SLOW_DOWN")

    monkeypatch.setattr(store, "listing", listing)
    monkeypatch.setattr(store, "facts", facts)

    with pytest.raises(StorageError, match="listing failed: AWS Error SLOW_DOWN"):
        open_log_dir(url)
    with pytest.raises(StorageError, match="looking up failed"):
        exists(f"{url}/orders-0")


def test_guards_and_states_of_a_copy_are_honoured(
    url: str, copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The guard of an unfinished commit in a copy is read, so a damaged intent is an error."""
    guard = copied / "segmentlog.unfinished.abc"
    guard.mkdir()
    (guard / "intent").write_text("{}")

    with caplog.at_level(logging.WARNING), pytest.raises(SegmentLogError, match="intent"):
        open_log_dir(url)


def test_kept_bytes_are_bounded(
    url: str, copied: Path, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequential reads request larger ranges, and the oldest ranges are dropped."""
    monkeypatch.setattr(object_store, "_KEPT_BYTES", 6 << 20)
    data = bytes(range(256)) * (64 << 10)
    (copied / "large").write_bytes(data)
    survey(url)
    store.requests.clear()

    with open_file(f"{url}/large") as file:
        found = b"".join(file.read(at, 1000) for at in range(0, len(data), 1000))

    assert found == data
    read = [each[3] - each[2] for each in store.requests if each[0] == "read"]
    assert len(read) < 13
    assert object_store.remote_disk(url)._surveys[0].kept.n_bytes <= 6 << 20


def test_a_large_index_is_not_read_whole(url: str, copied: Path, store: CountingStore) -> None:
    """A search reads the last block, the first block and a few blocks between them."""
    n_entries = 1_000_000
    entries = np.empty(n_entries, OFFSET_ENTRY)
    entries["offset"] = np.arange(1, n_entries + 1)
    entries["position"] = 2 * entries["offset"]
    (copied / "orders-0" / "00000000000000000000.index").write_bytes(entries.tobytes())
    survey(url)
    store.requests.clear()

    path = f"{url}/orders-0/00000000000000000000.index"
    for offset in (400_003, 999_999):  # the second search finds its block among those kept
        with OffsetIndex(path, 0, mapped=False) as index:
            assert n_entries == index.n_entries
            assert (offset, 2 * offset) == index.lookup(offset)
        read = [each[3] - each[2] for each in store.requests if each[0] == "read"]
        assert len(read) <= 8
        assert sum(read) < entries.nbytes // 3


def test_an_index_is_one_read(url: str, copied: Path, store: CountingStore) -> None:
    """A small index is requested once, however many entries are used."""
    entries = b"".join(struct.pack(">ii", i, 4096 * i) for i in range(1, 40_000))
    (copied / "orders-0" / "00000000000000000000.index").write_bytes(entries)
    survey(url)
    store.requests.clear()

    with OffsetIndex(f"{url}/orders-0/00000000000000000000.index", 0, mapped=False) as index:
        assert [(7, 7 * 4096), (39_000, 39_000 * 4096)] == [*map(index.lookup, (7, 39_000))]

    assert [(0, len(entries))] == [each[2:] for each in store.requests if each[0] == "read"]
