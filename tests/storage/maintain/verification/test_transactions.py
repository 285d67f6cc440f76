"""Transactions are followed in the same way, however many batches come in one call."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from segmentlog.format.records.decoder import BatchScanner
from segmentlog.log.indexes import AbortedTransaction, encode_transactions
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment
from segmentlog.maintain.verification.checks import TransactionCheck
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding
from segmentlog.model import TopicPartition
from segmentlog.testing.reference import Record, encode_batch

DATA, ABORT, COMMIT = -1, 0, 1


def batch(offset: int, producer_id: int, epoch: int, kind: int) -> bytes:
    """A transactional batch of one record, or an end marker."""
    key, attributes = b"k", 0x10
    if kind != DATA:
        key, attributes = struct.pack(">hh", 0, kind), 0x30
    record = Record(offset, 0, key, bytes(6))
    return encode_batch([record], attributes=attributes, producer=(producer_id, epoch, -1))


def followed(data: bytes, pieces: list[int], path: str = "/nowhere/f.log") -> list[Finding]:
    """The findings if this many batches come at a time."""
    found: list[Finding] = []
    check = TransactionCheck(MakeFinding(TopicPartition("t", 0)))
    buf = np.frombuffer(data, np.uint8)
    batches = BatchScanner("f", 0).scan(buf, 0, len(buf), 0)
    begin = 0
    for n_batches in pieces:
        found += check.follow(batches.only(slice(begin, begin + n_batches)))
        begin += n_batches
    assert begin >= len(batches.headers)
    found += check.index_of(Segment(SegmentFiles(0, path, len(data)), is_sealed=True))
    return [*found, *check.at_the_end()]


@pytest.mark.parametrize("seed", range(30))
def test_many_batches_a_call_are_as_one_by_one(seed: int) -> None:
    """The findings are the same, in the same order."""
    draw = random.Random(seed)
    kinds = [DATA] * draw.randrange(1, 6) + [ABORT] * draw.randrange(2) + [COMMIT]
    data = b"".join(
        batch(offset, draw.randrange(1, 4), draw.choice([0, 0, 0, 0, 1]), draw.choice(kinds))
        for offset in range(draw.randrange(1, 80))
    )
    expected = followed(data, [1] * 80)
    pieces = [draw.randrange(1, 30) for _ in range(80)]

    assert expected == followed(data, [80])
    assert expected == followed(data, pieces)


def test_all_kinds_of_findings_come_out_of_it() -> None:
    """A marker lacks data, data has an earlier epoch, one transaction aborts, one stays open."""
    story = [
        (1, 0, COMMIT),
        (1, 0, DATA),
        (1, 0, DATA),
        (1, 0, COMMIT),
        (1, 0, DATA),
        (1, 1, DATA),
        (2, 0, DATA),
        (1, 1, COMMIT),
        (2, 0, ABORT),
        (3, 0, DATA),
    ]
    found = followed(b"".join(batch(i, *each) for i, each in enumerate(story)), [80])

    assert [
        (FindingKind.MARKER_WITHOUT_DATA, 0),
        (FindingKind.DATA_WITHOUT_MARKER, 5),
        (FindingKind.TRANSACTION_INDEX, 8),
        (FindingKind.OPEN_TRANSACTION, 9),
    ] == [(each.kind, each.offset) for each in found]


@pytest.mark.parametrize("pieces", [[80], [1] * 80])
@pytest.mark.parametrize(
    ("first_offset", "is_right"), [(0, False), (1, False), (2, True), (3, True), (4, False)]
)
def test_an_index_may_begin_before_what_compaction_has_left(
    tmp_path: Path, pieces: list[int], first_offset: int, *, is_right: bool
) -> None:
    """The index begins after the producer's last transaction, which does not count as aborted."""
    story = {0: DATA, 1: COMMIT, 3: DATA, 5: ABORT}
    entries = encode_transactions([AbortedTransaction(7, first_offset, 5, 6)])
    (tmp_path / "f.txnindex").write_bytes(entries)
    data = b"".join(batch(offset, 7, 0, kind) for offset, kind in story.items())
    found = followed(data, pieces, str(tmp_path / "f.log"))

    assert is_right == (not found)
