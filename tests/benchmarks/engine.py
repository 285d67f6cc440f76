"""Decoding on one core against rooflines, Kafka's Java classes, and the codecs alone."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa
from kafka_here.artifacts import java
from measure import Digest, Row, compare

import segmentlog
from segmentlog.format.records.columns import RECORD_SCHEMA
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.encoder import RecordEncoder, record_source
from segmentlog.format.records.one_pass import OnePassDecoder, Stop
from segmentlog.maintain.verification.findings import Severity
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.reads.scan import scan_slice

_WINDOW = 4 << 20
_DECODE_WINDOW = 1 << 20  # as in scans of files
_ROWS = 50_000  # of an Arrow batch
_JIT_ROUNDS = 10  # until Java's compiler is done with its hot loops


def load(log: segmentlog.Log) -> np.ndarray:
    """All bytes of a log's segments, in memory; as of a window, kernels may write them."""
    return np.concatenate([np.fromfile(segment.path, np.uint8) for segment in log.segments])


def digest_of(batches) -> Digest:
    """Rows, sum of offsets, bytes of keys, bytes of values."""
    rows = offsets = keys = values = 0
    for batch in batches:
        rows += batch.num_rows
        at = np.frombuffer(batch.column("offset").buffers()[1], np.int64, batch.num_rows)
        offsets += int(at.sum())
        keys += _n_bytes(batch.column("key"))
        values += _n_bytes(batch.column("value"))
    return rows, offsets, keys, values


def _n_bytes(column: pa.Array) -> int:
    ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)
    return int(ends[-1] - ends[0])


def decode(data: np.ndarray) -> Digest:
    """Every record of the batches in `data`, as Arrow columns."""
    scanner = BatchScanner("memory", 0)
    decoder = RecordDecoder(segmentlog.TopicPartition("t", 0), RECORD_SCHEMA)
    one_pass = OnePassDecoder(segmentlog.TopicPartition("t", 0), RECORD_SCHEMA)

    def batches():
        at = 0
        while at < len(data):
            end = min(at + _DECODE_WINDOW, len(data))
            yield from one_pass.decode(data, at, end, scanner.next_offset)
            at, scanner.next_offset = one_pass.position, one_pass.next_offset
            if one_pass.stop == Stop.UNUSUAL:
                found = scanner.scan(data, at, end, 0)
                at = found.end
                yield from decoder.decode(found)
        yield from one_pass.flush()

    return digest_of(batches())


def copy(data: np.ndarray) -> None:
    """Memcpy of every byte into warm pooled memory."""
    for at in range(0, len(data), _WINDOW):
        piece = data[at : at + _WINDOW]
        np.frombuffer(pa.allocate_buffer(len(piece)), np.uint8)[:] = piece


def checksum(data: Any) -> None:
    """CRC-32C of every byte, by the quickest installed library."""
    for at in range(0, len(data), _WINDOW):
        crc32c.crc32c(data[at : at + _WINDOW])


def against_roofline(name: str, log: segmentlog.Log, goal: str, bound: str, rounds: int) -> Row:
    """Decode, against memcpy plus checksum of these bytes."""
    data = load(log)
    known = decode(data)

    def timed(run):
        return lambda: (run(data), known)[1]

    results = compare(
        {"decode": lambda: decode(data), "memcpy": timed(copy), "crc": timed(checksum)}, rounds
    )
    roofline = results["memcpy"].median + results["crc"].median
    rate = known[0] / results["decode"].median / 1e6
    detail = (
        f"{rate:.0f} M records/s of {len(data) / known[0]:.0f} B; {known[0]:,} rows; "
        f"±{results['decode'].spread:.0%}; bound by {bound}"
    )
    against = "memcpy + CRC-32C of the same bytes"
    return Row(name, against, goal, f"{roofline / results['decode'].median:.2f}", detail)


def _columns(n_rows: int) -> list[tuple[pa.RecordBatch, np.ndarray]]:
    """Keys and values of about 100 bytes, and their timestamps in milliseconds."""
    blob = np.random.default_rng(1).bytes(1 << 20)
    text = b'{"customer":"name","state":"open","n":' * 2
    found = []
    for start in range(0, n_rows, _ROWS):
        rows = range(start, min(start + _ROWS, n_rows))
        keys = pa.array([b"key-%06d" % (row % 1_000_000) for row in rows])
        values = pa.array([text[:48] + blob[row * 37 % 1_000_000 :][:40] for row in rows])
        batch = pa.RecordBatch.from_pydict({"key": keys, "value": values})
        found.append((batch, 1_700_000_000_000 + np.arange(rows.start, rows.stop) // 8))
    return found


def encode_against_roofline(n_rows: int, goal: str, rounds: int) -> Row:
    """Encode columns as batches of 16 KiB, against memcpy plus checksum of these bytes."""
    source, encoder = _columns(n_rows), RecordEncoder(batch_size=16384)
    where = segmentlog.TopicPartition("t", 0)
    all_rows = np.arange(_ROWS)  # in a writer, the partitioner measures them

    def batches() -> Iterator[np.ndarray]:
        for batch, timestamps in source:
            rows = all_rows[: batch.num_rows]
            yield encoder.encode(where, record_source(batch, timestamps), rows).buffer

    data = np.concatenate(list(batches()))
    known = (sum(batch.num_rows for batch, _ in source), len(data))

    def timed(run):
        return lambda: (run(data), known)[1]

    def gather() -> Digest:
        """The keys and values alone, copied in the order of the rows."""
        for batch, _ in source:
            for column in batch.columns:
                column.take(pa.array(all_rows[: batch.num_rows]))
        return known

    results = compare(
        {
            "encode": lambda: (known[0], sum(map(len, batches()))),
            "memcpy": timed(copy),
            "crc": timed(checksum),
            "gather": gather,
        },
        rounds,
    )
    roofline = results["memcpy"].median + results["crc"].median
    bound = results["gather"].median + results["crc"].median
    encode = results["encode"]
    detail = (
        f"{known[0] / encode.median / 1e6:.0f} M records/s of {len(data) / known[0]:.0f} B; "
        f"{known[0]:,} rows; ±{encode.spread:.0%}; bound by memory: gathering keys and values "
        f"with Arrow's `take`, and the checksum, take {bound / encode.median:.0%} of the time"
    )
    against = "memcpy + CRC-32C of the same bytes"
    return Row("encode, one core", against, goal, f"{roofline / encode.median:.2f}", detail)


def read_and_checksum(files: list[str]) -> Digest:
    """Read every byte, as `verify` does, and compute its CRC-32C; the result has no errors."""
    window = memoryview(bytearray(_WINDOW))
    n_bytes = 0
    for name in files:
        with Path(name).open("rb", buffering=0) as file:
            while n := file.readinto(window):
                crc32c.crc32c(window[:n])
                n_bytes += n
    return n_bytes, 0


def verify(logs: list[segmentlog.Log]) -> Digest:
    """Bytes that were verified, and errors that were found."""
    n_bytes = n_errors = 0

    def count(done: int) -> None:
        nonlocal n_bytes
        n_bytes += done

    for log in logs:
        found = LogCheck(log, progress=count).findings()
        n_errors += sum(each.severity == Severity.ERROR for each in found)
    return n_bytes, n_errors


def against_checksum(logs: list[segmentlog.Log], goal: str, rounds: int) -> Row:
    """Verify against the checksum alone, both from files."""
    files = [segment.path for log in logs for segment in log.segments]
    results = compare(
        {"verify": lambda: verify(logs), "crc": lambda: read_and_checksum(files)}, rounds
    )
    ours, theirs = results["verify"], results["crc"]
    n_bytes = ours.digest[0]
    detail = (
        f"{n_bytes / ours.median / 1e9:.1f} GB/s; {n_bytes / 1e6:,.0f} MB; ±{ours.spread:.0%}; "
        "bound by the copy out of the page cache, and the checksum"
    )
    against = "reading the same files + CRC-32C"
    return Row("verify, one core", against, goal, f"{theirs.median / ours.median:.2f}", detail)


def _has_compiler() -> bool:
    """Whether this Java runs a source file: a runtime without a compiler does not."""
    command = [java(), "--list-modules"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "jdk.compiler" in done.stdout


@contextlib.contextmanager
def _file_records(jars: Path, files: list[str]) -> Iterator[Callable[[], Digest]]:
    """A JVM that reads `files` once for each request."""
    source = str(Path(__file__).with_name("FileRecordsBench.java"))
    command = [java(), "-Xmx2g", "-cp", f"{jars}/*", source, *files]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:

        def ask() -> Digest:
            process.stdin.write("\n")
            line = process.stdout.readline()
            if not line:
                message = f"FileRecordsBench ended with status {process.wait()}"
                raise SystemExit(message)
            return tuple(map(int, line.split()))

        try:
            yield ask
        finally:
            process.stdin.close()  # which ends it


def against_java(jars: Path, logs: list[segmentlog.Log], goal: str, rounds: int) -> Row:
    """Scan files, against Kafka's own `FileRecords` over these files, in turn."""
    work, against = "scan files, one core", "Kafka's Java `FileRecords`, nothing copied"
    if not _has_compiler():
        return Row(work, against, goal, "–", "not measured: this Java has no compiler")
    files = [segment.path for log in logs for segment in log.segments]
    slices = [s for log in logs for s in log.slices(0, log.log_end_offset)]

    def ours() -> Digest:
        return digest_of(batch for each in slices for batch in scan_slice(each))

    with _file_records(jars, files) as theirs:
        for _ in range(_JIT_ROUNDS):
            theirs()
        results = compare({"ours": ours, "theirs": theirs}, rounds)
    rates = {name: each.digest[0] / each.median / 1e6 for name, each in results.items()}
    detail = (
        f"{rates['ours']:.0f} against {rates['theirs']:.0f} M records/s; "
        f"{results['ours'].digest[0]:,} rows; "
        f"±{results['ours'].spread:.0%}, ±{results['theirs'].spread:.0%}; "
        "bound by the copy out of the page cache, the checksum, and the copy of each key and value"
    )
    return Row(work, against, goal, f"{rates['ours'] / rates['theirs']:.1f}×", detail)
