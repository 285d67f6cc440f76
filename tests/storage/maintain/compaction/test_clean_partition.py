"""Random logs, compacted repeatedly, have the bytes that a cleaner in plain Python gives them."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from compaction.batches import (
    ABORT,
    APPEND_TIME,
    COMMIT,
    TRANSACTIONAL,
    Batch,
    decode,
    encode,
    marker,
)
from compaction.plain_cleaner import Aborted, PlainLog, Rules
from hypothesis import given, settings
from hypothesis import strategies as st

import segmentlog
from segmentlog.log.indexes import (
    AbortedTransaction,
    encode_transactions,
    read_transaction_index,
)
from segmentlog.testing.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from segmentlog.testing.reference import Record

START_MS = 1_700_000_000_000
RETENTION_MS = 1000
#: Syncs take most of the time of a small compaction.
QUICK_DISK = next((each for each in ("/dev/shm",) if os.access(each, os.W_OK)), None)

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"", b"key" * 30, None])
VALUES = st.sampled_from([b"v", None, b"", b"value" * 40])
HEADERS = st.sampled_from([(), ((b"h", b"1"),), ((b"h", None), (b"", b""))])
RECORDS = st.lists(st.tuples(KEYS, VALUES, HEADERS, st.integers(-5, 70)), min_size=1, max_size=4)
#: A batch: its records, its producer, whether it is in a transaction, its attributes, a gap.
BATCHES = st.tuples(
    RECORDS,
    st.sampled_from([-1, -1, 1, 2, 3]),
    st.booleans(),
    st.sampled_from([0, 0, APPEND_TIME]),
    st.sampled_from([0, 0, 0, 5]),
)
ENDS = st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([ABORT, COMMIT]))
ROLL = st.just("roll")
STEPS = st.lists(st.one_of(BATCHES, BATCHES, ENDS, ROLL), min_size=1, max_size=12)
ROUNDS = st.lists(
    st.tuples(STEPS, st.sampled_from([1, 600, 1000, 86_400_000])), min_size=1, max_size=4
)


class Producers:
    """Turns steps into segments as a broker would write them."""

    def __init__(self, codec: int) -> None:
        self._codec = codec
        self._offset = 0
        self._sequences: dict[int, int] = {}
        self._open: set[int] = set()

    def segments(self, steps: Sequence[Any], now_ms: int) -> dict[int, list[Batch]]:
        """The next segments. All transactions end in them, and an active segment follows."""
        base = self._offset
        made: dict[int, list[Batch]] = {base: []}
        ended = [(each, COMMIT) for each in (1, 2, 3)]
        for step in [*steps, *ended, "roll"]:
            if step == "roll":
                if self._offset > base:
                    base = self._offset
                    made[base] = []
            elif len(step) == 2:
                producer, kind = step
                if producer in self._open:
                    made[base].append(self._end(producer, kind, now_ms))
            else:
                made[base].append(self._batch(step, now_ms))
        return made

    def _end(self, producer: int, kind: int, now_ms: int) -> Batch:
        self._open.remove(producer)
        self._offset += 1
        return marker(self._offset - 1, kind, producer, 0, now_ms)

    def _batch(self, step: Any, now_ms: int) -> Batch:
        rows, producer, is_open, attributes, gap = step
        first = self._offset = self._offset + gap
        self._offset += len(rows)
        append_ms = now_ms + 7
        records = tuple(
            Record(first + i, append_ms if attributes else now_ms + late, key, value, headers)
            for i, (key, value, headers, late) in enumerate(rows)
        )
        attributes |= self._codec
        sequence, epoch = -1, -1
        if producer >= 0:
            sequence, epoch = self._sequences.get(producer, 0), 0
            self._sequences[producer] = sequence + len(rows)
            if is_open or producer in self._open:
                attributes |= TRANSACTIONAL
                self._open.add(producer)
        base_ms = append_ms if attributes & APPEND_TIME else records[0].timestamp_ms
        largest = append_ms if attributes & APPEND_TIME else max(r.timestamp_ms for r in records)
        return Batch(
            first, self._offset - 1, records, attributes, base_ms, largest,
            producer, epoch, sequence, 3,
        )  # fmt: skip


def write(partition: Path, log: PlainLog, bases: Sequence[int]) -> None:
    """Put segments of the plain log into the directory."""
    for base in bases:
        batches = log.segments[base]
        (partition / f"{base:020d}.log").write_bytes(b"".join(map(encode, batches)))
        markers = {each.base_offset for each in batches}
        ended = [each for each in log.aborted if each.last_offset in markers]
        if ended:
            entries = [AbortedTransaction(*each, each.last_offset + 1) for each in ended]
            index = partition / f"{base:020d}.txnindex"
            index.write_bytes(encode_transactions(entries))


def compare(log: PlainLog, partition: Path, *, is_compressed: bool) -> None:
    """The directory has the segments of the plain log and, without a codec, their bytes."""
    files = {int(path.stem): path for path in partition.glob("*.log")}
    assert sorted(log.segments) == sorted(files)
    for base, batches in log.segments.items():
        data = files[base].read_bytes()
        assert batches == decode(data)
        if not is_compressed:
            assert b"".join(map(encode, batches)) == data
    indexed = [
        Aborted(*each[:3])
        for path in sorted(partition.glob("*.txnindex"))
        for each in read_transaction_index(str(path))
    ]
    assert [each for each in log.aborted if each.last_offset < log.clean_to] == indexed


def play(rounds: Any, codec: int, most_keys: int, segment_bytes: int) -> None:
    """Rounds of writing and compacting, in a directory and in plain Python."""
    directory = Path(tempfile.mkdtemp(dir=QUICK_DISK))
    try:
        partition = directory / "t-0"
        partition.mkdir()
        (directory / ".kafka_cleanshutdown").touch()
        log, producers, now_ms = PlainLog({}), Producers(codec), START_MS
        for steps, pause_ms in rounds:
            active = max(log.segments, default=0)
            made = producers.segments(steps, now_ms)
            if min(made) > active:
                made = {active: made.pop(min(made)), **made}
            log.append(made)
            write(partition, log, list(made))
            now_ms += pause_ms
            rules = Rules(now_ms, most_keys, RETENTION_MS, segment_bytes)
            segmentlog.compact(
                directory,
                settings={
                    "cleanup.policy": "compact",
                    "min.cleanable.dirty.ratio": "0",
                    "segment.bytes": str(segment_bytes),
                    "delete.retention.ms": str(RETENTION_MS),
                },
                now_ms=now_ms,
                dedupe_buffer_bytes=24 * (most_keys + 1),
                load_factor=most_keys / (most_keys + 1) + 1e-6,
            )
            while log.clean_to < max(log.segments):
                log.clean(rules)
            compare(log, partition, is_compressed=codec != NONE)
        scan = segmentlog.open_log_dir(directory).log("t", 0).scan(read_up_to="logEnd")
        offsets = scan.read_all()["offset"].to_pylist()
        assert all(a < b for a, b in pairwise(offsets))
    finally:
        shutil.rmtree(directory)


@given(ROUNDS, st.sampled_from([2, 5, 1000]), st.sampled_from([14, 400, 1 << 30]))
@settings(max_examples=40, deadline=None)
def test_uncompressed_logs_to_the_byte(rounds: Any, most_keys: int, segment_bytes: int) -> None:
    """Logs have tombstones, horizons, transactions, sequences, gaps, and both timestamp types."""
    play(rounds, NONE, most_keys, segment_bytes)


@given(ROUNDS, st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]))
@settings(max_examples=15, deadline=None)
def test_compressed_logs_to_the_record(rounds: Any, codec: int) -> None:
    """Records are compared and not bytes, because the output of a codec depends on its library."""
    play(rounds, codec, 1000, 1 << 30)


@pytest.mark.slow
@given(ROUNDS, st.sampled_from([2, 5, 1000]), st.sampled_from([14, 400, 1 << 30]))
@settings(max_examples=200, deadline=None)
def test_more_logs(rounds: Any, most_keys: int, segment_bytes: int) -> None:
    """Uncompressed logs are compared with more examples."""
    play(rounds, NONE, most_keys, segment_bytes)
