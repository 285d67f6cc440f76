"""Random logs, compacted repeatedly, have the bytes that a cleaner in plain Python gives them."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from compaction.batches import (
    ABORT,
    APPEND_TIME,
    COMMIT,
    HORIZON,
    TRANSACTIONAL,
    Batch,
    decode,
    encode,
    marker,
)
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


class Aborted(NamedTuple):
    """An aborted transaction: its producer, its first offset, and its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class Rules(NamedTuple):
    """The rules of a pass."""

    now_ms: int
    most_keys: int = 10**9
    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30
    expiration_ms: int = 86_400_000


@dataclass
class PlainLog:
    """A log of batches of magic 2, by segment; the last one is active.

    It is cleaned one record at a time, as ``Cleaner``, ``CleanedTransactionMetadata`` and
    ``MemoryRecords.filterTo`` are described, without any code of the engine.
    """

    segments: dict[int, list[Batch]]
    aborted: list[Aborted] = field(default_factory=list)  # its transaction indexes
    clean_to: int = 0  # its checkpoint

    def append(self, segments: Mapping[int, Sequence[Batch]]) -> None:
        """Add segments after the active one; their transactions are decided here."""
        self.segments.update({base: list(batches) for base, batches in segments.items()})
        opened: dict[int, int] = {}
        known = {each.last_offset for each in self.aborted}
        for batch in self.batches():
            if batch.is_control:
                first = opened.pop(batch.producer_id, None)
                if _kind(batch) == ABORT and first is not None and batch.base_offset not in known:
                    self.aborted.append(Aborted(batch.producer_id, first, batch.base_offset))
            elif batch.attributes & TRANSACTIONAL:
                opened.setdefault(batch.producer_id, batch.base_offset)
        self.aborted.sort(key=lambda each: each.last_offset)

    def batches(self) -> Iterable[Batch]:
        """All of them, in order."""
        return (batch for base in sorted(self.segments) for batch in self.segments[base])

    def clean(self, rules: Rules) -> None:
        """One pass over all but the active segment."""
        end = max(self.segments)
        known, latest = self._map(end, rules.most_keys)
        transactions = _Transactions(self.aborted)
        active = self._active(rules.now_ms - rules.expiration_ms)
        cleaned: dict[int, list[Batch]] = {}
        bases = [base for base in sorted(self.segments) if base < latest + 1]
        for group in self._groups(bases, rules.segment_bytes):
            cleaned[group[0]] = [
                kept
                for base in group
                for batch in self.segments[base]
                for kept in _filtered(batch, transactions, active, known, latest, end, rules)
            ]
        left = {base: batches for base, batches in self.segments.items() if base not in bases}
        reached = max(bases)
        later = [each for each in self.aborted if each.last_offset > self._last(reached)]
        self.segments, self.clean_to = {**cleaned, **left}, latest + 1
        self.aborted = sorted([*transactions.kept, *later], key=lambda each: each.last_offset)

    def _last(self, base: int) -> int:
        later = [each for each in self.segments if each > base]
        return min(later, default=2**62) - 1

    def _groups(self, bases: Sequence[int], most: int) -> list[list[int]]:
        groups: list[list[int]] = []
        size = 0
        for base in bases:
            n_bytes = sum(len(encode(each)) for each in self.segments[base])
            if groups and size + n_bytes <= most:
                groups[-1].append(base)
                size += n_bytes
            else:
                groups.append([base])
                size = n_bytes
        return groups

    def _map(self, end: int, most_keys: int) -> tuple[dict[bytes, int], int]:
        dirty = [each for each in self.aborted if each.last_offset >= self.clean_to]
        transactions = _Transactions(dirty)
        known: dict[bytes, int] = {}
        latest = -1
        bases = sorted(self.segments)
        for base, end_offset in pairwise(bases):
            if end_offset <= self.clean_to:
                continue
            for batch in self.segments[base]:
                if batch.is_control:
                    transactions.read_control(batch)
                elif not transactions.read_data(batch):
                    for record in batch.records:
                        if record.key is None or record.offset < self.clean_to:
                            continue
                        if len(known) >= most_keys:
                            return known, latest
                        known[record.key] = latest = record.offset
                if batch.last_offset >= self.clean_to:
                    latest = batch.last_offset
            latest = min(end_offset, end) - 1
        return known, latest

    def _active(self, since_ms: int) -> dict[int, tuple[int, int]]:
        """Last data offset, or -1, and epoch of each producer that is active at the log end."""
        last: dict[int, tuple[int, int]] = {}
        seen: dict[int, int] = {}
        for batch in self.batches():
            if batch.producer_id < 0 or (batch.is_control and not batch.records):
                continue
            seen[batch.producer_id] = batch.max_ms
            if not batch.is_control:
                last[batch.producer_id] = batch.last_offset, batch.epoch
            elif last.get(batch.producer_id, (-1, -1))[1] != batch.epoch:
                last[batch.producer_id] = -1, batch.epoch
        return {each: found for each, found in last.items() if seen[each] > since_ms}


def _kind(marker: Batch) -> int | None:
    if not marker.records:
        return None
    return int.from_bytes((marker.records[0].key or b"")[2:4], "big")


class _Transactions:
    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._waiting = sorted(aborted, key=lambda each: each.first_offset)
        self._aborting: dict[int, list[Aborted | bool]] = {}
        self._committing: set[int] = set()
        self.kept: list[Aborted] = []

    def _consume(self, offset: int) -> None:
        while self._waiting and self._waiting[0].first_offset <= offset:
            each = self._waiting.pop(0)
            self._aborting.setdefault(each.producer_id, [each, False])

    def read_control(self, batch: Batch) -> bool:
        """Whether the marker may be removed."""
        self._consume(batch.last_offset)
        kind = _kind(batch)
        if kind is None:
            return True
        if kind == ABORT:
            found = self._aborting.pop(batch.producer_id, None)
            if found is not None and found[1]:
                assert isinstance(found[0], Aborted)
                self.kept.append(found[0])
                return False
            return True
        if kind == COMMIT:
            is_seen = batch.producer_id in self._committing
            self._committing.discard(batch.producer_id)
            return not is_seen
        return False

    def read_data(self, batch: Batch) -> bool:
        """Whether the batch is of an aborted transaction."""
        self._consume(batch.last_offset)
        if not batch.attributes & TRANSACTIONAL:
            return False
        if batch.producer_id in self._aborting:
            self._aborting[batch.producer_id][1] = True
            return True
        self._committing.add(batch.producer_id)
        return False


def _filtered(
    batch: Batch,
    transactions: _Transactions,
    active: Mapping[int, tuple[int, int]],
    known: Mapping[bytes, int],
    latest: int,
    end: int,
    rules: Rules,
) -> list[Batch]:
    """The remaining part of a batch; empty if nothing of it stays."""
    horizon = batch.horizon_ms
    if batch.is_control:
        may_go = transactions.read_control(batch)
        drops = may_go and horizon is not None and horizon <= rules.now_ms
    else:
        may_go = drops = transactions.read_data(batch)
    stays = batch.last_offset + 1 == end
    if batch.producer_id >= 0 and batch.producer_id in active:
        last, epoch = active[batch.producer_id]
        if last >= 0:
            stays = stays or batch.last_offset == last
        else:
            stays = stays or (batch.is_control and batch.epoch == epoch)
    keeps_tombstones = horizon is None or rules.now_ms < horizon
    kept = [
        each
        for each in batch.records
        if not drops
        and (
            batch.is_control
            or each.offset > latest
            or (
                each.key is not None
                and each.offset >= known.get(each.key, -1)
                and (each.value is not None or keeps_tombstones)
            )
        )
    ]
    if not kept:
        bits = batch.attributes & ~(HORIZON | 7)
        return [batch._replace(records=(), attributes=bits, base_ms=-1)] if stays else []
    has_tombstone = any(each.value is None for each in kept)
    is_new = horizon is None and (has_tombstone or (may_go and batch.is_control))
    if len(kept) == len(batch.records) and not is_new:
        return [batch]
    if is_new:
        horizon = rules.now_ms + rules.delete_retention_ms
    max_ms = max(each.timestamp_ms for each in kept)
    if batch.attributes & APPEND_TIME:
        max_ms = batch.max_ms
    base_ms = kept[0].timestamp_ms if horizon is None else horizon
    bits = batch.attributes | (HORIZON if horizon is not None else 0)
    return [batch._replace(records=tuple(kept), attributes=bits, base_ms=base_ms, max_ms=max_ms)]


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
            first,
            self._offset - 1,
            records,
            attributes,
            base_ms,
            largest,
            producer,
            epoch,
            sequence,
            3,
        )


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
