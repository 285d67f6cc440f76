"""Sequences of an idempotent producer's rows, over several flushes and writers."""

import os
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import dealt, numbered_rows, numbers, values, write
from soundness import assert_tidy

import segmentlog
from segmentlog import Producer
from segmentlog.errors import CommitInDoubtError, OptionError, OutOfOrderSequenceError
from segmentlog.model import Codec
from segmentlog.store import durable
from segmentlog.writes import sequences
from segmentlog.writes.config import ProducerConfig


@pytest.mark.parametrize("codec", Codec)
def test_a_job_that_is_run_again_is_written_once(tmp_path: Path, codec: Codec) -> None:
    """The job writes to several partitions, with each codec, and with several batches."""
    config = ProducerConfig(codec=codec, batch_size=300)
    for n_rows in (1000, 1000, 1500):
        with segmentlog.open_writer(
            tmp_path, "t", num_partitions=2, producer=Producer(1, 0, 0), config=config
        ) as writer:
            for table in (numbered_rows(0, 1000), numbered_rows(1000, n_rows - 1000)):
                writer.append(table)
                writer.flush()

    assert dealt((0, 1500)) == numbers(tmp_path)
    assert_tidy(tmp_path)


def test_without_a_base_sequence_the_log_is_continued(tmp_path: Path) -> None:
    """Numbering continues after the last writer.

    A new epoch begins at 0, and rows may name topics.
    """
    rows = pa.table({"topic": ["a", "a", "b"], "value": [b"1", b"2", b"3"]})
    answers = []
    for producer in (Producer(1), Producer(1), Producer(1, 1)):
        with segmentlog.open_writer(tmp_path, producer=producer) as writer:
            writer.append(rows)
            writer.flush()
            writer.append(rows)
        answers.append([(each.topic, each.first_sequence) for each in writer.appended])

    assert [[("a", 2), ("b", 1)], [("a", 6), ("b", 3)], [("a", 2), ("b", 1)]] == answers


def test_partitions_have_base_sequences_of_their_own(tmp_path: Path) -> None:
    """Partitions without a base sequence continue after the last sequence of their log."""
    write(tmp_path, numbered_rows(0, 10), num_partitions=2, producer=Producer(1))
    write(tmp_path, numbered_rows(10, 10), producer=Producer(1, 0, {1: 5}))
    with pytest.raises(OutOfOrderSequenceError, match=r"t-1: .* sequence 0, but 10 is next"):
        write(tmp_path, numbered_rows(0, 8), producer=Producer(1, 0, {1: 0}))

    assert dealt((0, 20)) == numbers(tmp_path)


def test_the_logs_of_all_partitions_are_read_under_one_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock and a view of the directory for each of 2,000 partitions took 40 seconds."""
    write(tmp_path, numbered_rows(0, 8, 4), num_partitions=4, producer=Producer(1))
    n_holds, real = count(), sequences.hold
    monkeypatch.setattr(sequences, "hold", lambda *how: (next(n_holds), real(*how))[1])
    write(tmp_path, numbered_rows(8, 8, 4), producer=Producer(1))

    assert 1 == next(n_holds)
    assert {each: [*range(each, 16, 4)] for each in range(4)} == numbers(tmp_path)


def test_a_flush_in_doubt_is_repeated_with_the_same_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk did not show whether the first flush took place. The same writer repeats it."""
    write(tmp_path, numbered_rows(0, 4, 1), producer=Producer(1))
    writer = segmentlog.open_writer(tmp_path, "t", producer=Producer(1))
    writer.append(numbered_rows(4, 4, 1))
    real, state = durable.sync_file, tmp_path / "segmentlog.state"
    before = state.read_bytes()

    def fails_after_the_rename(descriptor: int, path: str) -> None:
        if state.read_bytes() != before and Path(path) == tmp_path:
            raise segmentlog.SyncFailedError(path, os.strerror(5))
        real(descriptor, path)

    with monkeypatch.context() as patch:
        patch.setattr("segmentlog.txn.change.sync_file", fails_after_the_rename)
        with pytest.raises(CommitInDoubtError):
            writer.flush()
    writer.append(numbered_rows(4, 4, 1))
    writer.append(numbered_rows(8, 2, 1))
    with pytest.raises(OutOfOrderSequenceError):  # two appends make one batch
        writer.flush()
    writer.append(numbered_rows(4, 4, 1))
    writer.flush()
    assert [(4, 7, 4)] == [(each[4], each[5], each.n_duplicates) for each in writer.appended]
    writer.close()

    assert [b"%d" % i for i in range(8)] == values(tmp_path)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("producer_id", (-1,)),
        ("producer_epoch", (1, 2**15)),
        ("base_sequence", (1, 0, 2**31)),
        ("base_sequence", (1, 0, {0: 1, 1: -1})),
        ("producer_id", ("1",)),
        ("producer_id", (1.5,)),
        ("base_sequence", (1, 0, "0")),
        ("base_sequence", (1, 0, {"0": 1})),  # a number of JSON: the sequence would not be checked
        ("base_sequence", (1, 0, {-1: 1})),
    ],
)
def test_a_number_that_no_batch_holds_is_refused(name: str, arguments: tuple) -> None:
    """The error names the field."""
    with pytest.raises(OptionError) as caught:
        Producer(*arguments)
    assert name == caught.value.option


def test_sequences_that_would_not_be_used_are_refused(tmp_path: Path) -> None:
    """The writer refuses them before it makes a file."""
    with pytest.raises(OptionError, match="use_offsets"):
        segmentlog.open_writer(tmp_path / "logs", "t", preserve=True, producer=Producer(1))
    with pytest.raises(OptionError, match="base_sequence"):
        segmentlog.open_writer(tmp_path / "logs", producer=Producer(1, 0, {0: 1}))
    with pytest.raises(OptionError, match="a retry would delete the records of the first attempt"):
        segmentlog.open_writer(tmp_path / "logs", "t", producer=Producer(1), overwrite=True)
    assert not (tmp_path / "logs").exists()
