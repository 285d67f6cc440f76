"""A log directory of any size in 200 partitions, with transactions, made quickly.

``python tests/benchmarks/scale_data.py DIRECTORY BYTES`` makes one.  It is like the disk of a
broker that was killed: segments without indexes, snapshots and checkpoints, which ``segmentlog
recover`` makes.  Batches of 16 KiB belong to transactions, of which each fifth was aborted.  No
two partitions have a key in common.
"""

import concurrent.futures
import itertools
import multiprocessing
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import crc32c
import numpy as np
import pyarrow as pa

import segmentlog
from segmentlog.format.kernels import layout
from segmentlog.format.records.encoder import EncodedBatches, RecordEncoder, record_source
from segmentlog.testing.reference import Record, encode_batch

__all__ = ["KEY", "N_PARTITIONS", "TOPIC", "make"]

N_PARTITIONS = 200
TOPIC = "scale"
#: A key that some records of one partition have.
KEY = "p007-0000042"
_T0 = 1_700_000_000_000  # of the first record of a partition, in milliseconds
_N_SEGMENTS = 4  # of a partition
_VALUE_BYTES = 440
_RECORD_BYTES = _VALUE_BYTES + 12 + 8  # with its key and lengths
_REPEATED = 3  # records of one key
_BATCHES_OF_TRANSACTION = 20
_N_PRODUCERS = 3
_ABORTED = 5  # each fifth transaction
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_BLOCK = 50_000  # rows that are encoded at once


def make(directory: Path, n_bytes: int) -> None:
    """Fill `directory` with about `n_bytes` of segments; the same bytes each time."""
    directory.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    numbers = range(N_PARTITIONS)
    with concurrent.futures.ProcessPoolExecutor(mp_context=context) as pool:
        futures = [
            pool.submit(_fill, directory, each, n_bytes // N_PARTITIONS) for each in numbers
        ]
        for each in futures:
            each.result()
    metadata = f"version: 0\ntopic_id: {'A' * 21}Q\n"
    for number in numbers:
        (directory / f"{TOPIC}-{number}" / "partition.metadata").write_text(metadata)


def _fill(directory: Path, number: int, n_bytes: int) -> None:
    """The segments of one partition."""
    partition = directory / f"{TOPIC}-{number}"
    partition.mkdir()
    end = n_segments = 0
    file = None
    for first_offset, data in _transactions(number, n_bytes // _RECORD_BYTES):
        if end >= n_segments * n_bytes // _N_SEGMENTS:
            if file:
                file.close()
            file = (partition / f"{first_offset:020d}.log").open("wb")
            n_segments += 1
        assert file
        file.write(data)
        end += len(data)
    assert file
    file.close()


def _transactions(number: int, n_records: int) -> Iterator[tuple[int, bytes]]:
    """Each transaction of a partition with its end marker, and its first offset."""
    offset = 0
    sequences = [0] * _N_PRODUCERS
    n_transactions = 0
    for batches in _blocks(number, n_records):
        bounds = [*range(0, len(batches.table), _BATCHES_OF_TRANSACTION), len(batches.table)]
        for begin, stop in itertools.pairwise(bounds):
            producer = n_transactions % _N_PRODUCERS
            first = offset
            table = batches.table[begin:stop]
            shift = offset - int(table[0, layout.BASE_OFFSET])
            for line in table:
                at, size = int(line[layout.POSITION]), int(line[layout.SIZE])
                count = int(line[layout.RECORDS_COUNT])
                batch = batches.buffer[at : at + size].data
                struct.pack_into(">q", batch, 0, int(line[layout.BASE_OFFSET]) + shift)
                struct.pack_into(">h", batch, layout.ATTRIBUTES_AT, _TRANSACTIONAL)
                identity = (1000 + producer, 0, sequences[producer])
                struct.pack_into(">qhi", batch, layout.PRODUCER_ID_AT, *identity)
                checksum = crc32c.crc32c(batch[layout.ATTRIBUTES_AT :])
                struct.pack_into(">I", batch, layout.CRC_AT, checksum)
                sequences[producer] += count
                offset += count
            start = int(table[0, layout.POSITION])
            end = int(table[-1, layout.POSITION] + table[-1, layout.SIZE])
            commits = bool(n_transactions % _ABORTED)
            marker = encode_batch(
                [Record(offset, _T0 + offset, struct.pack(">hh", 0, commits), bytes(6))],
                attributes=_TRANSACTIONAL | _CONTROL,
                producer=(1000 + producer, 0, -1),
            )
            offset += 1
            n_transactions += 1
            yield first, batches.buffer[start:end].tobytes() + marker


def _blocks(number: int, n_records: int) -> Iterator[EncodedBatches]:
    """The batches of all records of a partition, not yet in transactions."""
    encoder = RecordEncoder(batch_size=16384)
    where = segmentlog.TopicPartition(TOPIC, number)
    random = np.random.default_rng(number)
    powers = 10 ** np.arange(6, -1, -1)
    text = np.frombuffer(b'{"customer":"name","state":"open","n":' * 8, np.uint8)[:240]
    n_keys = max(n_records // _REPEATED, 1)
    for start in range(0, n_records, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, n_records))
        keys = np.empty((len(rows), 12), np.uint8)
        keys[:, :5] = np.frombuffer(b"p%03d-" % number, np.uint8)
        keys[:, 5:] = (rows % n_keys)[:, None] // powers % 10 + ord("0")
        values = np.empty((len(rows), _VALUE_BYTES), np.uint8)
        values[:, :240] = text
        # Random digits: lines of a terminal, and of `grep`, stay lines.
        drawn = np.frombuffer(random.bytes(200 * len(rows)), np.uint8).reshape(-1, 200)
        np.add(drawn & 0x1F, ord("A"), out=values[:, 240:], casting="unsafe")
        batch = pa.RecordBatch.from_pydict({"key": _binary(keys), "value": _binary(values)})
        source = record_source(batch, _T0 + rows)
        yield encoder.encode(where, source, np.arange(len(rows)))


def _binary(rows: np.ndarray) -> pa.Array:
    """Values of one size, of a uint8 array of shape (n_rows, n_bytes)."""
    flat = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(rows.shape[1]), len(rows), [None, pa.py_buffer(rows)]
    )
    return flat.cast(pa.binary())


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(float(sys.argv[2])))
