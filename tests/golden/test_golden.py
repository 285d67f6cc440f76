"""Directories that real brokers left: reads are right, and all damage is noticed."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from kafka_here.golden import Expected, checksums, read_expected
from kafka_here.records import rows_of

import segmentlog
from segmentlog.errors import SegmentLogError, TruncatedBatchError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes
from segmentlog.format.records.columns import record_schema
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.header import parse_header
from segmentlog.maintain.verification.findings import Severity
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.model import TopicPartition

HERE = Path(__file__).parent
MANIFEST = {
    name: part
    for name, part in tomllib.loads((HERE / "MANIFEST.toml").read_text()).items()
    if "files" in part
}
PARTITIONS = [
    pytest.param(name, topic, number, expected, id=f"{name}-{topic}-{number}")
    for name in MANIFEST
    for topic, partitions in read_expected(HERE / f"{name}.expected.json").items()
    for number, expected in partitions.items()
]
SCHEMA = record_schema(include_headers=True)


@pytest.mark.parametrize("name", MANIFEST)
def test_files_are_those_of_the_manifest(name: str) -> None:
    """No file is missing, none was added, and every byte is as the broker left it."""
    found = {path: digest for path, (_, digest) in checksums(HERE / name).items()}

    assert MANIFEST[name]["files"] == found


@pytest.mark.parametrize("name", MANIFEST)
def test_the_directory_holds_the_topics_of_the_manifest(name: str) -> None:
    """Each topic is described, and its expected records exist."""
    topics = set(MANIFEST[name]["topics"])

    assert topics == set(segmentlog.open_log_dir(HERE / name).topics())
    assert topics == set(read_expected(HERE / f"{name}.expected.json"))


@pytest.mark.parametrize(("name", "topic", "number", "expected"), PARTITIONS)
def test_rows_equal_the_consumers(name: str, topic: str, number: int, expected: Expected) -> None:
    """Every field of every record, and both ends of the log, equal those of the broker."""
    log = segmentlog.open_log_dir(HERE / name).log(topic, number)

    assert expected.records == rows_of(log.scan(include_headers=True).read_all())
    assert expected[:2] == (log.log_start_offset, log.log_end_offset)


@pytest.mark.parametrize(("name", "topic", "number", "expected"), PARTITIONS)
def test_committed_rows_equal_the_consumers(
    name: str, topic: str, number: int, expected: Expected
) -> None:
    """Aborted records are left out, and so are records after the first open transaction."""
    log = segmentlog.open_log_dir(HERE / name).log(topic, number)

    assert expected.last_stable_offset == log.last_stable_offset()
    found = log.scan(include_headers=True, isolation_level="read_committed").read_all()
    committed = set(expected.committed)

    assert [row for row in expected.records if row.offset in committed] == rows_of(found)


@pytest.mark.parametrize(("name", "topic", "number", "expected"), PARTITIONS)
def test_verifying_finds_nothing_wrong(
    name: str, topic: str, number: int, expected: Expected
) -> None:
    """Records, indexes and transactions of the directories are right, so there are only notes."""
    log = segmentlog.open_log_dir(HERE / name).log(topic, number)
    findings = LogCheck(log, with_records=True).findings()

    assert [] == [each for each in findings if each.severity != Severity.NOTE]


class Batch(NamedTuple):
    """A batch of a file, the least offset that it may have, and its number of rows."""

    start: int
    stop: int
    next_offset: int
    n_rows: int


class LogFile:
    """The bytes of one ``.log`` file, which can be damaged, and decoded from any batch on."""

    def __init__(self, path: Path, *, is_active: bool) -> None:
        self.path = str(path)
        self.is_active = is_active
        self.size = path.stat().st_size
        self.bytes: Bytes = np.zeros(self.size + COPY_SLACK, np.uint8)
        self.bytes[: self.size] = np.frombuffer(path.read_bytes(), np.uint8)
        topic, _, number = path.parent.name.rpartition("-")
        self.topic_partition = TopicPartition(topic, int(number))
        self.batches = list(self._batches(int(path.name.partition(".")[0])))

    def _batches(self, next_offset: int) -> Iterator[Batch]:
        start = 0
        while start < self.size:
            length = int.from_bytes(self.bytes[start + 8 : start + 12].tobytes(), "big")
            stop = start + layout.LOG_OVERHEAD + length
            table, following = self.decode(start, stop, next_offset)
            yield Batch(start, stop, next_offset, table.num_rows)
            start, next_offset = stop, following

    def decode(self, start: int, stop: int, next_offset: int) -> tuple[pa.Table, int]:
        """Rows of a range of bytes, and the offset after them."""
        scanner = BatchScanner(self.path, next_offset)
        decoder = RecordDecoder(self.topic_partition, SCHEMA)
        found = []
        while start < stop:
            batches = scanner.scan(self.bytes, start, stop, 0)
            if not len(batches.headers):
                raise TruncatedBatchError(self.path, start, -1, stop, stop - start)
            start = batches.end
            found += decoder.decode(batches)
        return pa.Table.from_batches(found, SCHEMA), scanner.next_offset

    def read(self, batch: Batch) -> tuple[pa.Table, int] | None:
        """The records from `batch` to the end of the file; None if they cannot be read.

        In the last file, the offset after them counts, because it is the end of the log.
        """
        try:
            table, end = self.decode(batch.start, self.size, batch.next_offset)
        except SegmentLogError:
            return None
        return table, end if self.is_active else 0

    def unseen(self) -> Iterator[tuple[int, int]]:
        """Bytes that can be changed without effect on a read, and the masks that change them."""
        for batch in self.batches:
            sound = self.read(batch)
            for at in range(batch.start, batch.stop):
                for mask in (0xFF, 1 << at % 8):
                    self.bytes[at] ^= mask
                    if self.read(batch) == sound:
                        yield at, mask
                    self.bytes[at] ^= mask

    def may_change_unseen(self) -> Iterator[tuple[int, int]]:
        """The bytes for which this is right, by Kafka's format, and the masks.

        No checksum covers the leader epoch and the base offset. The leader epoch is not read. A
        wrong base offset shows in the rows; a batch without rows (control, or emptied by
        compaction) has to lie between its neighbours.
        """
        for i, batch in enumerate(self.batches):
            if self.bytes[batch.start + layout.MAGIC_AT] != layout.MAGIC:
                continue
            for at in range(batch.start, batch.start + layout.LEADER_EPOCH_AT + 4):
                for mask in (0xFF, 1 << at % 8):
                    if at >= batch.start + layout.LEADER_EPOCH_AT or self._may_move(i, at, mask):
                        yield at, mask

    def _may_move(self, i: int, at: int, mask: int) -> bool:
        """Whether this change of the `i`th batch's base offset has no effect."""
        batch = self.batches[i]
        shift = 56 - 8 * (at - batch.start)
        if batch.n_rows or shift < 0:
            return False
        header = parse_header(self.bytes.data, batch.start)
        moved = np.uint64(header.base_offset) ^ np.uint64(mask << shift)
        last = int(moved.astype(np.int64)) + header.last_offset_delta
        if i + 1 < len(self.batches):
            limit = parse_header(self.bytes.data, self.batches[i + 1].start).base_offset
        else:
            limit = 0 if self.is_active else 2**63 - 1
        return batch.next_offset <= int(moved.astype(np.int64)) and last < limit


def log_files(name: str) -> Iterator[LogFile]:
    """Every ``.log`` file of a directory."""
    for partition in sorted(path for path in (HERE / name).iterdir() if path.is_dir()):
        paths = sorted(partition.glob("*.log"))
        for path in paths:
            yield LogFile(path, is_active=path == paths[-1])


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.slow] * (each != "kafka-4.3.1")) for each in MANIFEST],
)
def test_no_byte_can_change_without_notice(name: str) -> None:
    """Each byte of each log is changed.

    A read fails or returns other rows, unless no reader could notice.
    """
    seen = []
    for file in log_files(name):
        seen.append(file.size)

        assert set(file.may_change_unseen()) == set(file.unseen()), file.path
    assert sum(seen) > 20_000
