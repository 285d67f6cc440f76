"""What is read from memory alone is what a walk over the file finds."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from kafka_protocol import RawClient, batches_of

import segmentlog
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.kernels.transactions import walk_headers
from segmentlog.serving.near import batches_in_memory
from segmentlog.testing.kafka_log import KafkaLog

_COLUMNS = [
    layout.POSITION,
    layout.SIZE,
    layout.BASE_OFFSET,
    layout.LAST_OFFSET,
    layout.ATTRIBUTES,
]


@pytest.fixture(autouse=True)
def says_what_is_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"a")
        file.flush()
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except (OSError, AttributeError):
            pytest.skip("this system does not say what is in memory")


@pytest.mark.parametrize("most_bytes", [300, 200_000])
def test_headers_are_those_of_a_walk(tmp_path: Path, most_bytes: int) -> None:
    """Of small batches, of large ones, and of ends of transactions, from every batch on."""
    log, rng = KafkaLog(tmp_path / "kafka"), random.Random(most_bytes)
    for i in range(12):
        rows = [rng.randbytes(rng.randrange(most_bytes)) for _ in range(rng.randrange(1, 4))]
        if i % 5 == 3:
            with log.transaction() as transaction:
                transaction.write("t", rows, num_partitions=1)
        else:
            log.write("t", rows, num_partitions=1)
    (segment,) = segmentlog.open_log_dir(log.path).log("t", 0).segments
    with segment.opened() as opened:
        data = np.fromfile(segment.path, np.uint8)
        headers: Int64s = np.empty((100, layout.N_HEADER_COLUMNS), np.int64)
        _, end, n_batches = walk_headers(data, 0, len(data), headers)
        assert end == len(data)
        for row in range(n_batches):
            begin, after = int(headers[row, layout.POSITION]), headers[row:n_batches]
            for n_bytes in (1, 5_000, 1 << 30):
                found = batches_in_memory(opened, begin, n_bytes)
                if found is None:  # it has to be whole
                    assert after[0, layout.ATTRIBUTES] & layout.CONTROL_MASK
                    assert n_bytes == 1
                    continue
                n = len(found.headers)
                expected = after[:n, _COLUMNS]
                expected[:, 0] -= begin
                assert (found.headers[:, _COLUMNS] == expected).all()
                assert n == len(after) or after[n, 0] + layout.HEADER_BYTES > begin + n_bytes


def test_batches_that_cannot_be_true_are_left_to_a_walk(tmp_path: Path) -> None:
    """Those before another length are found; wrong offsets may be those of any batch."""
    log = KafkaLog(tmp_path / "kafka")
    for i in range(3):
        log.write("t", [bytes([i]) * 70_000], num_partitions=1)
    (segment,) = segmentlog.open_log_dir(log.path).log("t", 0).segments
    path, size = Path(segment.path), segment.size // 3
    good = path.read_bytes()
    for at, data in (
        (layout.MAGIC_AT, b"\3"),
        (layout.BATCH_LENGTH_AT, b"\xff"),
        (layout.LAST_OFFSET_DELTA_AT, b"\x80"),
        (0, b"\x7f" + 7 * b"\xff"),
    ):
        path.write_bytes(good[: size + at] + data + good[size + at + len(data) :])
        with segment.opened() as opened:
            before = batches_in_memory(opened, 0, 1 << 20)
            is_length = at in (layout.MAGIC_AT, layout.BATCH_LENGTH_AT)
            assert (1 if is_length else 0) == (0 if before is None else len(before.headers))
            assert batches_in_memory(opened, size, 1 << 20) is None


def test_what_was_made_ready_is_not_sent_once_its_file_has_changed(tmp_path: Path) -> None:
    """A broker cuts its file, and writes other batches into it: the inode is the same."""
    log = KafkaLog(tmp_path / "kafka")
    for i in range(4):
        log.write("t", [bytes([i]) * 50_000], num_partitions=1)
    file = log.path / "t-0" / f"{0:020d}.log"
    data = file.read_bytes()
    size = len(data) // 4
    with (
        segmentlog.serve(log.path, read_up_to="logEnd") as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        for offset in (0, 1):
            found = client.fetch("t", 0, offset, max_bytes=size)
            assert data[offset * size : (offset + 1) * size] == found.records
        client.ask(3, 9, topics=None)  # what is next is ready
        other = bytearray(data[2 * size : 3 * size - 100])
        other[8:12] = (len(other) - 12).to_bytes(4, "big")
        with file.open("r+b") as opened:
            opened.seek(2 * size)
            opened.write(other + data[3 * size :] + bytes(100))
        found = client.fetch("t", 0, 2, max_bytes=size)

        assert [2] == [each.base_offset for each in batches_of(found.records)]
        assert bytes(other) == found.records
