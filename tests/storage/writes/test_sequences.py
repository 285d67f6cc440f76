"""Batches of producers are checked in the way that the leader of a partition checks them.

These are the cases of Kafka's ``ProducerStateManagerTest`` that have a meaning without a
coordinator. The names of the errors are Kafka's.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from crashing import Crash, crash_at, cut_loop
from plain_writes import values, write
from producer_batches import ABORT, COMMIT, batch, marker, plant
from soundness import assert_tidy, assert_verified

import segmentlog
from segmentlog import Appended, Producer
from segmentlog.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.listing import list_segments
from segmentlog.log.producer_snapshot import list_snapshots, read_snapshot, snapshot_path
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn.guard import list_guards, recover_commits
from segmentlog.writes.config import ProducerConfig

LARGEST = 2**31 - 1


def send(directory: Path, *batches: bytes, partition: int = 0) -> tuple[Appended, ...]:
    """Write ready-made batches in one flush, and return the answers."""
    with segmentlog.open_writer(directory, "t") as writer:
        writer.append_batches(b"".join(batches), partition)
    return writer.appended


def rows(first: int, n_rows: int) -> pa.Table:
    """A table with these numbers as values."""
    return pa.table({"value": [b"%d" % i for i in range(first, first + n_rows)]})


def end(directory: Path) -> int:
    """The log end of partition 0."""
    return segmentlog.open_log_dir(directory).log("t", 0).log_end_offset


def test_the_next_sequence_is_appended_and_any_other_is_refused(tmp_path: Path) -> None:
    """Sequence 5 is a gap. Sequence 0 with another last sequence matches no batch of the log."""
    send(tmp_path, batch(1, 0, 0))
    (answer,) = send(tmp_path, batch(1, 0, 1, 2))
    assert (1, 2, 1, 2, 2, 0) == answer[4:]

    with pytest.raises(OutOfOrderSequenceError) as caught:
        send(tmp_path, batch(1, 0, 5))
    assert ("t", 0, 1, 0, 5, 3) == caught.value.args
    with pytest.raises(OutOfOrderSequenceError, match="sends sequence 0, but 3 is next"):
        send(tmp_path, batch(1, 0, 0, 3))

    assert [b"1:0", b"1:1", b"1:2"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_repeated_batch_is_answered_with_its_first_offsets(tmp_path: Path) -> None:
    """Nine batches are repeated; a broker remembers five.

    Batches of another producer lie between them.
    """
    sent = [batch(1, 0, 3 * i, 3) for i in range(9)]
    for number, each in enumerate(sent):
        send(tmp_path, each)
        send(tmp_path, batch(2, 0, number))
    before = end(tmp_path)
    for number, each in enumerate(sent):
        (answer,) = send(tmp_path, each)
        first = 4 * number
        assert Appended("t", 0, 1, 0, first, first + 2, 3 * number, 3 * number + 2, 3, 3) == answer

    assert before == end(tmp_path) == 36
    assert_tidy(tmp_path)


def test_new_batches_after_repeated_ones_are_appended(tmp_path: Path) -> None:
    """A flush that begins with repeated batches appends the new batches after them.

    This holds whether staged bytes are copied or moved.
    """
    send(tmp_path, batch(1, 0, 0, 2), batch(1, 0, 2, 2))
    (answer,) = send(tmp_path, *(batch(1, 0, 2 * i, 2) for i in range(4)))
    assert (0, 7, 0, 7, 8, 4) == answer[4:]

    config = ProducerConfig(topic_config=TopicConfig(segment_bytes=4000), batch_size=200)
    for n_rows in (300, 500):
        producer = Producer(2, 0, 0)
        write(tmp_path, rows(0, n_rows), config=config, producer=producer)
    new = [b"%d" % i for i in range(500)]

    assert [*(b"1:%d" % i for i in range(8)), *new] == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_flush_is_recognized_when_retention_has_taken_it(tmp_path: Path) -> None:
    """The snapshot at the log end has the last batch of the flush.

    The batches before it arrive in the same flush.
    """
    send(tmp_path, batch(1, 0, 0, 4))
    sent = [batch(1, 0, 4, 3), batch(2, 0, 0, 2), batch(1, 0, 7, 2), batch(1, 0, 9, 5)]
    first = send(tmp_path, *sent)
    segmentlog.retain(tmp_path, settings={"retention.ms": "1000"})
    assert [] == values(tmp_path)

    again = send(tmp_path, *sent)

    assert [each._replace(n_duplicates=each.n_records) for each in first] == [*again]
    (answer,) = send(tmp_path, *sent[2:], batch(1, 0, 14))
    assert (9, 16, 7, 14, 8, 7) == answer[4:]
    assert [b"1:14"] == values(tmp_path)
    for others in ([batch(1, 0, 4, 2), *sent[2:]], [sent[0], sent[3]], [batch(1, 1, 9, 5)]):
        with pytest.raises(OutOfOrderSequenceError):
            send(tmp_path, *others)
    assert 17 == end(tmp_path)


def test_a_flush_is_recognized_when_compaction_has_taken_a_part(tmp_path: Path) -> None:
    """Compaction removes the first batches of the flush and one from its middle."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    config = ProducerConfig(batch_size=1)
    keys = [b"a", b"b", b"a", b"c", b"b", b"d"]
    table = pa.table({"key": keys, "value": [b"%d" % i for i in range(len(keys))]})
    for n_again in (0, 6):
        writer = segmentlog.open_writer(tmp_path, "t", config=config, producer=Producer(1, 0, 0))
        with writer:
            writer.append(table)
        (answer,) = writer.appended
        assert (0, 5, 0, 5, 6, n_again) == answer[4:]
        if not n_again:
            with segmentlog.open_writer(tmp_path, "t") as other:
                other.roll()
                other.append(pa.table({"key": [b"e"], "value": [b"6"]}))
        segmentlog.compact(tmp_path, settings=settings)
        assert [b"2", b"3", b"4", b"5", b"6"] == values(tmp_path)
    assert 7 == end(tmp_path)


def test_a_flush_may_repeat_itself(tmp_path: Path) -> None:
    """A flush contains some batches more than once, and each is written once."""
    (answer,) = send(tmp_path, *(batch(1, 0, i, 2) for i in (0, 2, 0, 2, 4, 4)))
    assert (0, 5, 0, 5, 12, 6) == answer[4:]
    assert [b"1:%d" % i for i in range(6)] == values(tmp_path)
    assert_tidy(tmp_path)


def test_epochs_fence_and_begin_at_zero(tmp_path: Path) -> None:
    """A higher epoch begins at sequence 0 and is refused at any other sequence.

    A lower epoch is fenced from then on.
    """
    send(tmp_path, batch(1, 3, 7))
    send(tmp_path, batch(1, 4, 0))
    with pytest.raises(InvalidProducerEpochError) as caught:
        send(tmp_path, batch(1, 3, 8))
    assert ("t", 0, 1, 3, 8, 4) == caught.value.args
    assert "epoch 5 and base_sequence 0" in str(caught.value)
    with pytest.raises(OutOfOrderSequenceError, match="but 0 is next"):
        send(tmp_path, batch(1, 5, 1))

    assert 2 == end(tmp_path)


def test_sequences_wrap(tmp_path: Path) -> None:
    """Sequence 0 follows 2**31 - 1, between two batches and within one batch."""
    send(tmp_path, batch(1, 0, LARGEST))
    with pytest.raises(OutOfOrderSequenceError) as caught:
        send(tmp_path, batch(1, 0, 1))
    assert 0 == caught.value.expected
    send(tmp_path, batch(1, 0, 0))

    (answer,) = send(tmp_path, batch(2, 0, LARGEST - 10, 21))
    assert (LARGEST - 10, 9) == (answer.first_sequence, answer.last_sequence)
    (again,) = send(tmp_path, batch(2, 0, LARGEST - 10, 21))
    assert (answer.base_offset, 21) == (again.base_offset, again.n_duplicates)
    send(tmp_path, batch(2, 0, 10))

    producer = Producer(3, 0, LARGEST - 3)
    write(tmp_path, rows(0, 10), producer=producer, config=ProducerConfig(batch_size=100))
    write(tmp_path, rows(10, 1), producer=Producer(3, 0, 6))
    assert 2 + 22 + 11 == end(tmp_path)


def test_a_producer_that_the_log_does_not_know_begins_anywhere(tmp_path: Path) -> None:
    """The producer's earlier records may have been deleted.

    Its second batch has to follow its first.
    """
    send(tmp_path, batch(1, 0, 16), batch(1, 0, 17))
    with pytest.raises(OutOfOrderSequenceError):
        send(tmp_path, batch(2, 0, 4), batch(2, 0, 6))
    assert 2 == end(tmp_path)


def test_a_marker_alone_makes_an_epoch_known(tmp_path: Path) -> None:
    """The marker's epoch fences lower epochs, and data with that epoch begins at sequence 0."""
    plant(tmp_path, marker(1, 2, kind=COMMIT))
    with pytest.raises(InvalidProducerEpochError):
        send(tmp_path, batch(1, 0, 0))
    with pytest.raises(OutOfOrderSequenceError):
        send(tmp_path, batch(1, 2, 17))
    send(tmp_path, batch(1, 2, 0))


def test_an_abort_with_a_higher_epoch_starts_the_sequences_again(tmp_path: Path) -> None:
    """After the abort, the new epoch and the epoch after it both have to begin at sequence 0."""
    opened = batch(1, 0, 0, 2, is_transactional=True)
    plant(tmp_path, opened, marker(1, 1, base_offset=2, kind=ABORT))
    for epoch in (1, 2):
        with pytest.raises(OutOfOrderSequenceError, match="but 0 is next"):
            send(tmp_path, batch(1, epoch, 2))
    send(tmp_path, batch(1, 1, 0))


def test_a_producer_in_a_transaction_writes_nothing_outside_of_it(tmp_path: Path) -> None:
    """A broker has left the transaction open, and a batch outside the transaction is refused."""
    plant(tmp_path, batch(9, 0, 0), batch(1, 0, 0, 2, base_offset=1, is_transactional=True))
    with pytest.raises(InvalidTxnStateError) as caught:
        send(tmp_path, batch(1, 0, 2))
    assert ("t", 0, 1, 0, 2, 1) == caught.value.args
    send(tmp_path, batch(9, 0, 1))


def test_a_refused_batch_takes_its_flush_with_it(tmp_path: Path) -> None:
    """No partition gets a batch of the refused flush.

    The writer can continue with correct batches.
    """
    with segmentlog.open_writer(tmp_path, "t", num_partitions=2) as writer:
        writer.append_batches(batch(1, 0, 0), 0)
        writer.flush()
        writer.append_batches(batch(1, 0, 0), 1)
        writer.append_batches(batch(1, 0, 2), 0)
        with pytest.raises(OutOfOrderSequenceError):
            writer.flush()
        assert [] == values(tmp_path, partition=1)
        writer.append_batches(batch(1, 0, 1), 0)

    assert [b"1:0", b"1:1"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_snapshots_are_those_that_a_broker_leaves(tmp_path: Path) -> None:
    """There is one snapshot at the base offset of each segment and one at the log end.

    All of them are correct.
    """
    config = ProducerConfig(topic_config=TopicConfig(segment_bytes=700), batch_size=150)
    for number in range(4):
        producer = Producer(7 + number % 2, number // 2)
        write(tmp_path, rows(0, 40), config=config, producer=producer)
    path = str(tmp_path / "t-0")
    bases = [each.base_offset for each in list_segments(path)]
    found = {offset: read_snapshot(snapshot_path(path, offset)) for offset in list_snapshots(path)}

    assert len(bases) > 3
    assert sorted({*bases, 160} - {0}) == sorted(found)
    for offset, known in found.items():
        writers = [number for number in range(4) if 40 * number < offset]
        expected = {
            7 + number % 2: (number // 2, min(offset - 40 * number, 40) - 1) for number in writers
        }
        assert expected == {each.producer_id: (each[1], each[2]) for each in known}, offset


def test_an_older_snapshot_stands_in_for_a_damaged_one(tmp_path: Path) -> None:
    """When every snapshot is damaged, the producers are read from the log."""
    for number in range(3):
        send(tmp_path, batch(1, 0, number))
    path = str(tmp_path / "t-0")
    assert [3] == list_snapshots(path)
    Path(snapshot_path(path, 3)).write_bytes(b"")

    with pytest.raises(OutOfOrderSequenceError, match="but 3 is next"):
        send(tmp_path, batch(1, 0, 4))
    send(tmp_path, batch(1, 0, 3))
    assert [4] == list_snapshots(path)


@cut_loop
def test_a_crash_at_any_step_and_a_retry_write_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """A crash may fall between the append and the snapshot.

    A snapshot never contains a batch that the log does not contain.
    """
    config = ProducerConfig(topic_config=TopicConfig(segment_bytes=900), batch_size=200)
    expected, n_crashes, decided = [b"%d" % i for i in range(60)], 0, set()
    for number in range(0, 1000, every):
        directory = tmp_path / str(number)
        write(directory, rows(0, 20), producer=Producer(1, 0, 0), config=config)
        with monkeypatch.context() as patch:
            crash_at(patch, number)
            try:
                write(directory, rows(20, 40), producer=Producer(1, 0, 20), config=config)
            except Crash:
                n_crashes += 1
            is_done = not list_guards(str(directory)) and end(directory) == 60
        with DirectoryLock(str(directory)):
            recover_commits(str(directory))
        decided.add(end(directory))
        assert max(list_snapshots(str(directory / "t-0"))) == end(directory), number
        write(directory, rows(20, 40), producer=Producer(1, 0, 20), config=config)
        assert expected == values(directory), number
        assert_verified(directory)
        if is_done:
            break

    assert {20, 60} == decided
    assert n_crashes * every > 30


@pytest.mark.parametrize("harm", ["deleted", "damaged"])
def test_a_log_that_is_harmed_keeps_no_commit_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """A commit is decided, and then its partition is deleted or a batch header is damaged.

    Recovery removes the guard anyway.
    """
    writer = segmentlog.open_writer(tmp_path, "t", producer=Producer(1))
    writer.append(rows(0, 3))
    with monkeypatch.context() as patch:
        patch.setattr("segmentlog.txn.change.finish", lambda *_: None)
        writer.flush()
    assert list_guards(str(tmp_path))
    if harm == "deleted":
        shutil.rmtree(tmp_path / "t-0")
    else:
        log = tmp_path / "t-0" / f"{0:020d}.log"
        log.write_bytes(log.read_bytes()[:8] + b"\xff" + log.read_bytes()[9:])
    with DirectoryLock(str(tmp_path)):
        recover_commits(str(tmp_path))

    assert [] == list_guards(str(tmp_path))


KILLED = """
import os, signal, sys
import pyarrow as pa, segmentlog
from segmentlog import Producer
with segmentlog.open_writer(sys.argv[1], "t", producer=Producer(5, 0, 0)) as writer:
    for first in range(0, 100, 10):
        writer.append(pa.table({"value": [b"%d" % i for i in range(first, first + 10)]}))
        writer.flush()
        if first == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_a_program_that_is_killed_and_run_again_writes_once(tmp_path: Path) -> None:
    """The program is run again from its beginning, without a note of how far it came."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "40"], check=False)
    assert -9 == done.returncode
    assert 50 == end(tmp_path)
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "-1"], check=True)

    assert [b"%d" % i for i in range(100)] == values(tmp_path)
    assert_tidy(tmp_path)
