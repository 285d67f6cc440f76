"""Random logs as brokers write them, for compaction: batches with their offsets, by segments.

Keys come again and again.  Producers are plain, idempotent or transactional; transactions commit,
abort, or stay open.  Everything follows from a seed.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from producer_batches import ABORT, COMMIT, marker

from segmentlog.testing.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from segmentlog.testing.legacy import encode_message, encode_wrapper, read_message
from segmentlog.testing.reference import Record, encode_batch

_TRANSACTIONAL, _APPEND_TIME = 0x10, 0x08
_CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)


class Producer(NamedTuple):
    """The producer's fields of a batch."""

    id: int
    epoch: int = 0
    sequence: int = 0


_NOBODY = Producer(-1, -1, -1)


class Kind(NamedTuple):
    """The recipe of a random log.

    `n_batches`, `n_records`: in the log, and most in a batch.
    """

    codecs: Sequence[int] = (NONE,)  # of its batches
    magics: Sequence[int] = (2,)  # of its batches
    n_keys: int = 12  # different keys; few keys leave many batches empty
    tombstones: float = 0.2  # share of null values
    unkeyed: float = 0.0  # share of records without a key
    producers: int = 0  # number of idempotent producers, and number of transactional ones
    is_append_time: bool = False  # whether timestamps are the broker's
    n_batches: int = 60
    n_records: int = 6
    age_ms: int = 100_000  # age of the oldest record


def dirty_log(seed: int, kind: Kind, now_ms: int) -> list[list[bytes]]:
    """Segments of a random log, each a list of batches; the last one stays active."""
    return _Maker(random.Random(seed), kind, now_ms).make()


def write_segments(partition: Path, segments: Sequence[Sequence[bytes]], modified_ms: int) -> None:
    """Segments as ``.log`` files without indexes, which a broker makes when it recovers the log.

    The files were last written a second after each other, the last one at `modified_ms`.
    """
    partition.mkdir(parents=True, exist_ok=True)
    for age, batches in enumerate(reversed(segments)):
        path = partition / f"{first_offset(batches[0]):020d}.log"
        path.write_bytes(b"".join(batches))
        os.utime(path, (modified_ms // 1000 - age,) * 2)


def first_offset(batch: bytes) -> int:
    """Offset of the first record of a batch; a wrapper has the offset of its last record."""
    if batch[16] == 2:
        return int.from_bytes(batch[:8], "big")
    return read_message(batch, 0, 1 << 26)[1][0].offset


class _Maker:
    """A log that is being made."""

    def __init__(self, rng: random.Random, kind: Kind, now_ms: int) -> None:
        self.rng, self.kind, self.now_ms = rng, kind, now_ms
        self.offset, self.epoch = 0, 0
        self.made = 0
        self.segments: list[list[bytes]] = [[]]
        ids = range(100, 100 + kind.producers)
        self.idempotent = {each: Producer(each) for each in ids}
        self.transactional = {each + 100: Producer(each + 100) for each in ids}
        self.opened: set[int] = set()

    def make(self) -> list[list[bytes]]:
        for number in range(self.kind.n_batches):
            self.made = number
            self._one()
            if self.segments[-1] and self.rng.random() < 0.12:
                self.segments.append([])
            if self.rng.random() < 0.03:
                self.epoch += 1
        if not self.segments[-1]:
            self._plain()
        if len(self.segments) == 1:
            self.segments = [self.segments[0][:-1], self.segments[0][-1:]]
        return self.segments

    def _one(self) -> None:
        roll = self.rng.random()
        if not self.kind.producers or roll < 0.3:
            self._plain()
        elif roll < 0.55:
            self._idempotent()
        elif roll < 0.8 or not self.opened:
            self._in_transaction()
        else:
            self._end()

    def _put(self, batch: bytes, n_offsets: int) -> None:
        self.segments[-1].append(batch)
        self.offset += n_offsets
        if self.rng.random() < 0.05:
            self.offset += self.rng.randrange(1, 2000)  # a gap, as compaction leaves it

    def _time(self) -> int:
        share = self.made / self.kind.n_batches
        age = self.kind.age_ms * (1 - share)
        return self.now_ms - int(age * self.rng.uniform(0.8, 1.1))

    def _records(self) -> list[Record]:
        rng, kind = self.rng, self.kind
        found = []
        for i in range(rng.randrange(1, kind.n_records + 1)):
            key = rng.randrange(kind.n_keys)
            value = rng.choice([b"", rng.randbytes(rng.randrange(60)), b"same text " * 9])
            headers = rng.choice([(), (), ((b"h", b"1"), (b"h", None))])
            found.append(
                Record(
                    self.offset + i,
                    self._time(),
                    None if rng.random() < kind.unkeyed else _key(key),
                    None if rng.random() < kind.tombstones else value,
                    headers,
                )
            )
        return found

    def _put_data(self, producer: Producer, attributes: int = 0) -> int:
        records = self._records()
        attributes |= _APPEND_TIME if self.kind.is_append_time else 0
        batch = encode_batch(
            records,
            attributes=attributes,
            codec=self.rng.choice(self.kind.codecs),
            leader_epoch=self.epoch,
            producer=producer,
        )
        self._put(batch, len(records))
        return len(records)

    def _plain(self) -> None:
        magic = self.rng.choice(self.kind.magics)
        if magic == 2:
            self._put_data(_NOBODY)
            return
        records = [each._replace(headers=()) for each in self._records()]
        codec = self.rng.choice(self.kind.codecs)
        if codec in (NONE, ZSTD):
            for record in records:
                self.segments[-1].append(encode_message(record, magic=magic))
            self.offset += len(records)
        else:
            self._put(encode_wrapper(records, codec, magic=magic), len(records))

    def _idempotent(self) -> None:
        number = self.rng.choice([*self.idempotent])
        producer = self.idempotent[number]
        if self.rng.random() < 0.05:
            producer = Producer(number, producer.epoch + 1)
        n_records = self._put_data(producer)
        self.idempotent[number] = producer._replace(sequence=producer.sequence + n_records)

    def _in_transaction(self) -> None:
        number = self.rng.choice([*self.transactional])
        producer = self.transactional[number]
        n_records = self._put_data(producer, _TRANSACTIONAL)
        self.transactional[number] = producer._replace(sequence=producer.sequence + n_records)
        self.opened.add(number)

    def _end(self) -> None:
        """End a transaction, with the next epoch (transaction version 2) or the same epoch."""
        number = self.rng.choice(sorted(self.opened))
        producer = self.transactional[number]
        if self.rng.random() < 0.5:
            producer = self.transactional[number] = Producer(number, producer.epoch + 1)
        end = marker(
            producer.id,
            producer.epoch,
            base_offset=self.offset,
            timestamp_ms=self._time(),
            kind=COMMIT if self.rng.random() < 0.5 else ABORT,
            leader_epoch=self.epoch,
        )
        self._put(end, 1)
        self.opened.remove(number)


def _key(number: int) -> bytes:
    """A key; they have different lengths, one is empty, and one is like a marker's."""
    if number < 2:
        return (b"", b"\0\0\0\1")[number]
    return b"k%d" % number * (1 if number % 5 else 40)
