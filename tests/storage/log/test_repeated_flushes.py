"""A producer's last flush may be repeated at any time, whatever was removed from the log since."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from crashing import Crash, crash_at, cut_loop
from typer.testing import CliRunner

import segmentlog
from segmentlog import Appended, Producer, ProducerConfig
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_CHECKPOINT
from segmentlog.format.topic_config import TopicConfig
from segmentlog.maintain.recover_directory import DirectoryRecovery
from segmentlog.tools.cli import app
from segmentlog.txn.change import HeldDirectory

N_PARTITIONS = 3
COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
}
RETAIN = {"retention.ms": "1", "file.delete.delay.ms": "0"}


class Flushes:
    """Flushes of three producers to a topic, and the cleaning of the log after them."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory, self.rng = directory, rng
        self.sequences = {number: [0] * N_PARTITIONS for number in range(3)}
        self.steps: Counter[str] = Counter()
        self.again: Callable[[], tuple[Appended, ...]] = tuple
        self.answers: tuple[Appended, ...] = ()

    def flush(self) -> None:
        """A flush with few or many batches, in few or many segments."""
        number = self.rng.randrange(3)
        partitions = self.rng.choices(range(N_PARTITIONS), k=self.rng.randint(1, 40))
        rows = pa.table(
            {
                "key": [b"%d" % self.rng.randrange(15) for _ in partitions],
                "value": [bytes(self.rng.randrange(60)) for _ in partitions],
                "partition": pa.array(partitions, pa.int32()),
            }
        )
        topic_config = TopicConfig(segment_bytes=self.rng.choice([400, 1000, 100_000]))
        config = ProducerConfig(
            batch_size=self.rng.choice([1, 150, 500, 10_000]), topic_config=topic_config
        )
        producer = Producer(number, 0, dict(enumerate(self.sequences[number])))

        def send() -> tuple[Appended, ...]:
            with segmentlog.open_writer(
                self.directory, "t", num_partitions=N_PARTITIONS, config=config, producer=producer
            ) as writer:
                writer.append(rows)
            return writer.appended

        self.again, self.answers = send, send()
        assert not any(each.n_duplicates for each in self.answers)
        for each in partitions:
            self.sequences[number][each] += 1

    def repeat(self) -> None:
        """Repeat a flush: it is answered with its first offsets, and nothing is appended."""
        before = self.ends()
        expected = [each._replace(n_duplicates=each.n_records) for each in self.answers]
        assert expected == [*self.again()]
        assert before == self.ends()

    def ends(self) -> list[int]:
        """The ends of the logs."""
        opened = segmentlog.open_log_dir(self.directory)
        return [opened.log("t", each).log_end_offset for each in range(N_PARTITIONS)]

    def compact(self) -> None:
        """Compact the log, without delays that keep records."""
        segmentlog.compact(self.directory, settings=COMPACT)

    def retain(self) -> None:
        """Retention removes nearly all segments."""
        segmentlog.retain(self.directory, settings=RETAIN)

    def delete_records(self) -> None:
        """Delete a part of a partition."""
        partition = self.rng.randrange(N_PARTITIONS)
        log = segmentlog.open_log_dir(self.directory).log("t", partition)
        offset = self.rng.randint(log.log_start_offset, log.log_end_offset)
        segmentlog.delete_records(self.directory, "t", partition, offset=offset)

    def step(self) -> None:
        """Take any of these steps."""
        steps = (self.flush, self.repeat, self.compact, self.retain, self.delete_records)
        (step,) = self.rng.choices(steps, (5, 3, 1, 1, 1))
        step()
        self.steps[step.__name__] += 1


@pytest.mark.parametrize("seed", range(2))
def test_the_last_flush_is_recognized_whatever_was_removed(tmp_path: Path, seed: int) -> None:
    """A log recognizes the flush even if it has none of its batches any more."""
    flushes = Flushes(tmp_path, random.Random(seed))
    flushes.flush()
    while min(flushes.steps[name] for name in ("repeat", "compact", "retain")) < 5:
        flushes.step()


ROWS = pa.table({"key": [b"idle"], "value": [b"of an idle producer"]})
OTHERS = pa.table({"key": [b"idle", b"another"] * 3, "value": [b"newer" * 20] * 6})
SMALL = ProducerConfig(batch_size=1, topic_config=TopicConfig(segment_bytes=200))
A_DAY_MS = 25 * 3600 * 1000


def write(directory: Path, rows: pa.Table, *, flush: bool = True) -> None:
    """Rows without a producer, a segment for each."""
    config = replace(SMALL, flush=flush)
    with segmentlog.open_writer(directory, "t", config=config) as writer:
        writer.append(rows)


def send(directory: Path, producer_id: int = 7) -> tuple[Appended, ...]:
    """The flush of an idempotent producer, which may be repeated."""
    producer = Producer(producer_id, 0, 0)
    with segmentlog.open_writer(directory, "t", config=SMALL, producer=producer) as writer:
        writer.append(ROWS)
    return writer.appended


def removed_by_retention(directory: Path) -> None:
    """All segments are removed, the active one included."""
    segmentlog.retain(directory, settings=RETAIN)


def removed_by_delete_records(directory: Path) -> None:
    """The first segments are removed."""
    log = segmentlog.open_log_dir(directory).log("t", 0)
    segmentlog.delete_records(directory, "t", 0, offset=log.log_end_offset)


def overwritten(directory: Path) -> None:
    """An overwrite removes the records."""
    with segmentlog.open_writer(directory, "t", config=SMALL, overwrite=True) as writer:
        writer.append(OTHERS)


def compacted(directory: Path) -> None:
    """The producer's record has a newer one for its key."""
    segmentlog.compact(directory, settings=COMPACT)


def compacted_after_a_day(directory: Path) -> None:
    """The producer has been idle for more than ``producer.id.expiration.ms``."""
    segmentlog.compact(directory, settings=COMPACT, now_ms=int(time.time() * 1000) + A_DAY_MS)


def without_mark(directory: Path) -> None:
    """The mark of a clean stop is missing."""
    (directory / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)


def recovered(directory: Path) -> None:
    """`segmentlog recover` runs before the repeat."""
    without_mark(directory)
    assert CliRunner().invoke(app, ["recover", str(directory)]).exit_code == 0


def unsynced(directory: Path) -> None:
    """A job with ``flush=none`` leaves no mark."""
    write(directory, OTHERS, flush=False)


@pytest.mark.parametrize(
    "stop", [without_mark, recovered, unsynced], ids=lambda each: each.__name__
)
@pytest.mark.parametrize(
    "remove",
    [
        removed_by_retention,
        removed_by_delete_records,
        overwritten,
        compacted,
        compacted_after_a_day,
    ],
    ids=lambda each: each.__name__,
)
@pytest.mark.parametrize("flushes_after", [True, False], ids=["others_flush", "none_flushes"])
def test_a_removed_flush_is_recognized_after_an_unclean_stop(
    tmp_path: Path,
    remove: Callable[[Path], None],
    stop: Callable[[Path], None],
    *,
    flushes_after: bool,
) -> None:
    """A repeat is a duplicate, whatever has removed the batches, and however the log is opened."""
    (sent,) = send(tmp_path)
    write(tmp_path, OTHERS)
    if flushes_after:
        send(tmp_path, producer_id=8)
    remove(tmp_path)
    stop(tmp_path)
    end = segmentlog.open_log_dir(tmp_path).log("t", 0).log_end_offset
    assert send(tmp_path) == (sent._replace(n_duplicates=1),)
    assert segmentlog.open_log_dir(tmp_path).log("t", 0).log_end_offset == end
    stop(tmp_path)
    remove(tmp_path)
    stop(tmp_path)
    assert send(tmp_path) == (sent._replace(n_duplicates=1),)


def test_a_copy_without_recovery_points_recognizes_a_compacted_flush(tmp_path: Path) -> None:
    """The mark of a clean stop shows that all bytes are on the disk when the compaction begins."""
    (sent,) = send(tmp_path)
    write(tmp_path, OTHERS)
    (tmp_path / RECOVERY_POINT_CHECKPOINT).unlink()
    compacted_after_a_day(tmp_path)
    without_mark(tmp_path)
    assert send(tmp_path) == (sent._replace(n_duplicates=1),)


def test_a_flush_that_a_power_cut_took_is_written_again(tmp_path: Path) -> None:
    """A snapshot contains the producer, but the batch was never synced and is lost."""
    write(tmp_path, OTHERS)
    end = segmentlog.open_log_dir(tmp_path).log("t", 0).log_end_offset
    config = replace(SMALL, flush=False, topic_config=TopicConfig(segment_bytes=100))
    for producer_id in (7, 8):
        producer = Producer(producer_id, 0, 0)
        with segmentlog.open_writer(tmp_path, "t", config=config, producer=producer) as writer:
            writer.append(ROWS)
    for path in (tmp_path / "t-0").glob(f"{end:020d}.*"):
        path.unlink()
    assert [each.n_duplicates for each in send(tmp_path, producer_id=8)] == [1]
    assert [each.n_duplicates for each in send(tmp_path)] == [0]


def recover_without_mark(directory: Path) -> None:
    """A recovery of all logs."""
    without_mark(directory)
    list(DirectoryRecovery(HeldDirectory(str(directory)), 4096).run())


@pytest.mark.parametrize(
    "act",
    [recover_without_mark, removed_by_retention, compacted_after_a_day],
    ids=lambda each: each.__name__,
)
@cut_loop
def test_a_crash_at_any_step_keeps_a_removed_flush_known(
    tmp_path: Path, act: Callable[[Path], None], every: int
) -> None:
    """The last snapshot with the producer is removed only after a newer one is on the disk."""
    before = tmp_path / "before"
    (sent,) = send(before)
    write(before, OTHERS)
    if act is recover_without_mark:
        removed_by_retention(before)
    for number in range(0, 1000, every):
        directory = tmp_path / str(number)
        shutil.copytree(before, directory)
        is_dead = False
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                act(directory)
            except Crash:
                is_dead = True
        assert send(directory) == (sent._replace(n_duplicates=1),), number
        shutil.rmtree(directory)
        if not is_dead:
            break
    assert number > 6
