"""The writes of a soak: seed, writer and number determine each commit."""

import random
import zlib
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["PARTITIONS", "SPARK", "WRITER", "Record", "Soak", "key_of", "records_of", "topic_of"]

#: Topics with their partitions: the last value of each key stays; some bytes; some seconds.
PARTITIONS: Mapping[str, int] = {"latest": 4, "sized": 2, "timed": 2}

WRITER, SPARK = 1, 2  #: the writers: the plain writer, and jobs of Spark's
_IN_TURN = ("latest", "latest", "sized", "latest", "timed")


class Soak(NamedTuple):
    """One run; times in seconds.

    Attributes
    ----------
    seconds : that it lasts, beside its beginning and its end.
    n_keys : that each of the two writers has.
    most_records : of a commit.
    pause : of the plain writer between commits.
    compact_every, retain_every, poll_every, check_every : means between two of them.
    spark_every : polls of the stream between jobs of Spark's.
    writer_lives : mean before it is killed.
    delete_delay : ``file.delete.delay.ms``.
    tombstones_stay : ``delete.retention.ms``.
    timed_stay : ``retention.ms`` of one topic.
    sized_bytes : ``retention.bytes`` of another.
    segment_bytes : of all.
    """

    seed: int
    seconds: float
    n_keys: int
    most_records: int
    pause: float
    compact_every: float
    retain_every: float
    poll_every: float
    check_every: float
    spark_every: int
    writer_lives: float
    delete_delay: float
    tombstones_stay: float
    timed_stay: float
    sized_bytes: int
    segment_bytes: int


class Record(NamedTuple):
    """A record; `value` is None for a tombstone."""

    partition: int
    key: bytes | None
    value: bytes | None


def topic_of(slot: int, number: int) -> str:
    """The topic of a commit."""
    return "latest" if slot == SPARK else _IN_TURN[number % len(_IN_TURN)]


def key_of(slot: int, number: int) -> bytes:
    """A key; only one writer writes it."""
    return b"%d-%05d" % (slot, number)


def records_of(
    run: Soak, slot: int, number: int, sequences: Mapping[int, int]
) -> tuple[str, list[Record]]:
    """The topic and the records of a commit.

    Parameters
    ----------
    sequences : how many records each partition of the topic has from this writer; a value of the
        topics that are not compacted begins with its number.
    """
    rng = random.Random(f"{run.seed} {slot} {number}")
    topic = topic_of(slot, number)
    n_partitions, n_records = PARTITIONS[topic], rng.randint(20, run.most_records)
    if topic == "latest":
        picked = [
            min(int(rng.expovariate(3 / run.n_keys)), run.n_keys - 1) for _ in range(n_records)
        ]
        if slot == SPARK:
            picked = sorted(set(picked))
        made = []
        for i, each in enumerate(picked):
            key = key_of(slot, each)
            value = None if rng.random() < 0.1 else b"%d/%d/%d/" % (slot, number, i)
            if value:
                value += b"abcdefgh" * rng.randint(0, 60)
            made.append(Record(zlib.crc32(key) % n_partitions, key, value))
        return topic, made
    counts = dict(sequences)
    made = []
    for _ in range(n_records):
        partition = rng.randrange(n_partitions)
        filler = b"abcdefgh" * rng.randint(0, 100)
        made.append(Record(partition, None, b"%d/%d/" % (slot, counts[partition]) + filler))
        counts[partition] += 1
    return topic, made
