"""The test of a mutant: it is decoded before an unreadable page, and compared."""

import ctypes
import mmap
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from fuzzing.mutate import MOST_INFLATED_BYTES, mutant
from fuzzing.seeds import Seed, load_seeds
from segmentlog.errors import (
    ChecksumMismatchError,
    MalformedBatchError,
    SegmentLogError,
    TimestampOverflowError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import status
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes
from segmentlog.format.records.columns import decode_as_java, record_schema
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.one_pass import OnePassDecoder
from segmentlog.log.batches import markers_among
from segmentlog.model import TopicPartition
from segmentlog.testing.legacy import read_log
from segmentlog.testing.reference import BadBatchError, Record, UnknownFormatError

_COLUMNS = ["offset", "timestamp", "timestampType", "key", "value"]
_NAMES = {
    reason: name
    for name, code in vars(status).items()
    if isinstance(code, int) and (reason := status.REASONS.get(code))
}
_CODECS = ("gzip", "snappy", "lz4", "zstd")

#: Every way in which the decoding of a mutant can end.
OUTCOMES = frozenset(
    {"same records", "other records", "cut short", "BAD_CRC", "TIMESTAMP_OVERFLOW"}
    | {"unsupported magic", "unsupported codec", "inflates beyond the bound"}
    | {f"cannot be inflated as {codec}" for codec in _CODECS}
    | set(_NAMES.values())
)

_MOST_MS = (2**63 - 1) // 1000
_ARENA_BYTES = 1 << 20
_GARBAGE = 0x81  # after a log; as a varint it does not end
_MEASURE_EVERY = 2_000  # mutants

#: Timestamp type, offset, timestamp, key, value and perhaps headers.
Row = tuple[Any, ...]


class Decoded(NamedTuple):
    """Rows, and the error after them if there is one."""

    batches: list[pa.RecordBatch]
    error: SegmentLogError | None
    is_cut_short: bool = False


class Decoder:
    """A decoder of logs that end where memory ends: reading one byte more is a SIGSEGV."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _ARENA_BYTES + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(start + _ARENA_BYTES), mmap.PAGESIZE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        self._bytes: Bytes = np.frombuffer(self._memory, np.uint8)[:_ARENA_BYTES]
        self._scanner = BatchScanner("fuzz.log", 0)
        self._one_pass = OnePassDecoder(
            TopicPartition("fuzz", 0),
            record_schema(_COLUMNS),
            max_inflated_batch_bytes=MOST_INFLATED_BYTES,
        )
        # Records with headers go through the careful loop, and most others through the quick one.
        self._decoders = [
            RecordDecoder(
                TopicPartition("fuzz", 0),
                record_schema(columns),
                max_inflated_batch_bytes=MOST_INFLATED_BYTES,
            )
            for columns in (_COLUMNS, [*_COLUMNS, "headers"])
        ]

    def decode(self, data: bytes, *, with_slack: bool, with_headers: bool) -> Decoded:
        """Rows of a log, with `COPY_SLACK` bytes after it as scans have them, or without.

        With this slack and without headers, usual batches are decoded in one pass.
        """
        n = len(data)
        window = self._bytes[_ARENA_BYTES - n - COPY_SLACK * with_slack :]
        window[:n] = np.frombuffer(data, np.uint8)
        window[n:] = _GARBAGE
        self._scanner.next_offset = 0
        decoder = self._decoders[with_headers]
        found: list[pa.RecordBatch] = []
        at = 0
        try:
            while at < n:
                if with_slack and not with_headers:
                    at = self._take_usual(window, at, n, found)
                    if at == n:
                        break
                batches = self._scanner.scan(window, at, n, 0)
                if not len(batches.headers):
                    return Decoded(found, None, is_cut_short=True)
                at, scanned = batches.end, batches._replace(headers=batches.headers.copy())
                found += decoder.decode(batches)
                markers_among(scanned)
        except SegmentLogError as error:
            return Decoded(found, error)
        return Decoded(found, None)

    def _take_usual(self, window: Bytes, at: int, n: int, found: list[pa.RecordBatch]) -> int:
        """Decode the usual batches from `at` on; return the byte after them."""
        one_pass = self._one_pass
        found += one_pass.decode(window, at, n, self._scanner.next_offset)
        found += one_pass.flush()
        self._scanner.next_offset = one_pass.next_offset
        return one_pass.position


def outcome(decoded: Decoded, of_seed: Decoded) -> str:
    """The outcome, one of `OUTCOMES`."""
    match decoded.error:
        case None if decoded.is_cut_short:
            return "cut short"
        case None:
            return "same records" if decoded.batches == of_seed.batches else "other records"
        case ChecksumMismatchError():
            return "BAD_CRC"
        case TimestampOverflowError():
            return "TIMESTAMP_OVERFLOW"
        case UnsupportedFormatError(what=what):
            return f"unsupported {what}"
        case MalformedBatchError(reason=reason) if reason in _NAMES:
            return _NAMES[reason]
        case MalformedBatchError(reason=reason) if "inflate beyond" in reason:
            return "inflates beyond the bound"
        case MalformedBatchError(reason=reason):
            return reason.removeprefix("its records ").partition(":")[0]
    return type(decoded.error).__name__


def check(data: bytes, decoded: Decoded, *, with_headers: bool) -> None:
    """Compare the decoded rows with the plain reference.

    Both return equal rows, or both refuse, and then the rows before the error are right. Kernels
    may refuse a little earlier: they inflate and check several batches before they fill.
    """
    expected: list[Row] = []
    refusal: Exception | None = None
    try:
        for batch in read_log(data, MOST_INFLATED_BYTES):
            expected += [_expected_row(batch.timestamp_type, each) for each in batch.records]
    except (BadBatchError, UnknownFormatError) as refused:
        refusal = refused
    rows = [row for batch in decoded.batches for row in _rows(batch)]
    if not with_headers:
        expected = [row[:-1] for row in expected]
    assert rows == expected[: len(rows)], f"other rows than the reference's: {data.hex()}"
    error = decoded.error
    if isinstance(error, TimestampOverflowError):
        is_due = refusal is not None or any(
            abs(row[2]) > _MOST_MS for row in expected[len(rows) :]
        )
    elif error is None and not decoded.is_cut_short:
        is_due = refusal is None and len(rows) == len(expected)
    elif isinstance(error, MalformedBatchError) and _NAMES.get(error.reason) == "BAD_MARKER":
        is_due = True  # the reference skips control batches without reading them
    else:
        is_unknown = isinstance(refusal, UnknownFormatError)
        is_due = refusal is not None and (
            len(decoded.batches) > 0 or is_unknown == isinstance(error, UnsupportedFormatError)
        )
    assert is_due, f"{error!r}, but the reference says {refusal!r}: {data.hex()}"


def _expected_row(timestamp_type: int, record: Record) -> Row:
    headers = tuple((decode_as_java(key), value) for key, value in record.headers)
    return (timestamp_type, *record[:4], headers)


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    columns = {name: batch.column(name) for name in batch.schema.names}
    milliseconds = pc.divide(columns["timestamp"].view(pa.int64()), 1000)
    order = [columns["timestampType"], columns["offset"], milliseconds]
    rows = zip(
        *(each.to_pylist() for each in (*order, columns["key"], columns["value"])), strict=True
    )
    if "headers" not in columns:
        yield from rows
        return
    for row, headers in zip(rows, columns["headers"].to_pylist(), strict=True):
        yield (*row, tuple((each["key"], each["value"]) for each in headers or ()))


class Report(NamedTuple):
    """The outcomes of several mutants."""

    outcomes: Counter[str]
    n_repaired: int
    n_compared: int
    slowest_seconds: float
    slowest_number: int
    most_growth_bytes: int  #: of a process, over all that it has read so far

    @property
    def n_mutants(self) -> int:
        """The number of mutants."""
        return self.outcomes.total()

    def __str__(self) -> str:
        lines = [f"{n:10,}  {name}" for name, n in self.outcomes.most_common()]
        lines.append(
            f"{self.n_mutants:,} mutants, {self.n_repaired:,} with right checksums, "
            f"{self.n_compared:,} compared with the reference; the slowest, number "
            f"{self.slowest_number}, took {self.slowest_seconds * 1000:.0f} ms; "
            f"memory grew by {self.most_growth_bytes / 2**20:.0f} MiB"
        )
        return "\n".join(lines)


def join(reports: Sequence[Report]) -> Report:
    """One report from several."""
    slowest = max(reports, key=lambda each: each.slowest_seconds)
    return Report(
        sum((each.outcomes for each in reports), Counter()),
        sum(each.n_repaired for each in reports),
        sum(each.n_compared for each in reports),
        slowest.slowest_seconds,
        slowest.slowest_number,
        max(each.most_growth_bytes for each in reports),
    )


class _Equipment(NamedTuple):
    """The equipment of a process, made once: compiled kernels, and large buffers."""

    seeds: list[Seed]
    decoder: Decoder
    of_seeds: list[list[Decoded]]  #: without headers, and with them
    resident_bytes: int


@cache
def _equipment() -> _Equipment:
    seeds, decoder = load_seeds(), Decoder()
    of_seeds = [
        [decoder.decode(b"".join(seed), with_slack=True, with_headers=each) for seed in seeds]
        for each in (False, True)
    ]
    return _Equipment(seeds, decoder, of_seeds, psutil.Process().memory_info().rss)


def fuzz(first: int, n_mutants: int, compare_every: int) -> Report:
    """Decode mutants `first`, `first` + 1, …; each is the same whenever it is made.

    `first`, `n_mutants`: the numbers of the mutants. `compare_every`: how many mutants come to one
    that the reference reads as well.
    """
    seeds, decoder, of_seeds, at_first = _equipment()
    process = psutil.Process()
    outcomes: Counter[str] = Counter()
    n_repaired = n_compared = growth = slowest_number = 0
    slowest = 0.0
    for number in range(first, first + n_mutants):
        data, index, is_repaired = mutant(seeds, random.Random(number))
        with_slack, with_headers = bool(number & 1), bool(number & 2)
        begun = time.thread_time()
        decoded = decoder.decode(data, with_slack=with_slack, with_headers=with_headers)
        seconds = time.thread_time() - begun
        if seconds > slowest:
            slowest, slowest_number = seconds, number
        outcomes[outcome(decoded, of_seeds[with_headers][index])] += 1
        n_repaired += is_repaired
        if number // 4 % compare_every == 0:  # all four ways of decoding
            n_compared += 1
            check(data, decoded, with_headers=with_headers)
        if number % _MEASURE_EVERY == 0:
            growth = max(growth, process.memory_info().rss - at_first)
    return Report(outcomes, n_repaired, n_compared, slowest, slowest_number, growth)
