"""The checks of sequences are compared with a leader in plain Python."""

import random
from collections import Counter

import numpy as np

from segmentlog.format.kernels import producer_table, sequences
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.kernels.sequences import check_sequences
from segmentlog.testing.reference import ClientBatch, Leader

NAMES = {
    sequences.ACCEPTED: "accepted",
    sequences.DUPLICATE: "duplicate",
    sequences.OUT_OF_ORDER: "out of order",
    sequences.FENCED: "fenced",
}
START = 2**31 - 12  # so that sequences wrap


def random_batch(rng: random.Random, sent: list[ClientBatch]) -> ClientBatch:
    """The next batch of a producer, a batch that was sent before, or a wrong batch."""
    producer_id = rng.choice([-1, 1, 2])
    n_records = rng.randrange(1, 5)
    mine = [each for each in sent if each.producer_id == producer_id]
    if producer_id < 0 or not mine:
        return ClientBatch(producer_id, 0, START if producer_id >= 0 else -1, n_records)
    last, dice = mine[-1], rng.random()
    if dice < 0.3:
        return rng.choice(mine)
    if dice < 0.4:
        return ClientBatch(producer_id, max(last.epoch + rng.choice([-1, 1]), 0), 0, n_records)
    skipped = rng.choice([0, 0, 0, 0, 0, 1, -1])
    return ClientBatch(producer_id, last.epoch, (last.last + 1 + skipped) % 2**31, n_records)


def fields(batch: ClientBatch) -> list[int]:
    """One line of a table of batches."""
    last = batch.last if batch.producer_id >= 0 else -1
    producer = batch.producer_id, batch.epoch, batch.first, last
    return [*producer, 0, batch.n_records - 1, 0, batch.n_records]


def accepted(flush: list[ClientBatch], fates: Int64s) -> list[list[int]]:
    """Lines for the batches with a producer that a flush has appended."""
    return [
        [each.producer_id - 1, each.epoch, each.first, each.last, *fate[1:].tolist()]
        for each, fate in zip(flush, fates, strict=False)
        if each.producer_id > 0 and fate[0] == sequences.ACCEPTED
    ]


def decide(
    flush: list[ClientBatch], end: int, states: Int64s, known: list[list[int]]
) -> tuple[int, Int64s, Int64s]:
    """Number of batches that are decided, states and fates. A flush may repeat its own batches."""
    batches = np.array([fields(each) for each in flush])
    rows = np.array([max(each.producer_id, 0) - 1 for each in flush])
    fates: Int64s = np.full((len(flush), sequences.FATE_COLUMNS), -1, np.int64)
    n_decided, n_before, after = 0, -1, states
    while n_before < n_decided < len(flush):
        n_before, after = n_decided, states.copy()
        lines = [*known, *accepted(flush[:n_decided], fates)]
        table: Int64s = np.array(sorted(lines), np.int64).reshape(-1, sequences.KNOWN_COLUMNS)
        n_decided = check_sequences(batches, rows, end, after, table, fates)
    return n_decided, after, fates


def test_the_kernel_decides_as_a_leader_does() -> None:
    """Each flush is compared up to its first refused batch."""
    seen: Counter[str] = Counter()
    for seed in range(150):
        rng, leader, sent = random.Random(seed), Leader(), list[ClientBatch]()
        states: Int64s = np.full((2, producer_table.STATE_COLUMNS), -1, np.int64)
        known: list[list[int]] = []
        for _ in range(12):
            flush = list[ClientBatch]()
            for _ in range(rng.randrange(1, 4)):
                flush.append(random_batch(rng, [*sent, *flush]))
            n_decided, states, fates = decide(flush, leader.end, states, known)
            for each, found in zip(flush[: n_decided + 1], fates.tolist(), strict=False):
                fate, first, last = leader.append(each)
                seen[fate] += 1
                assert [NAMES[found[0]], *found[1:]] == [fate, first, last], seed
            sent += flush[:n_decided]
            known += accepted(flush[:n_decided], fates)

    assert min(seen[name] for name in NAMES.values()) > 30, seen
