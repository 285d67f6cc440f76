"""The last flush may be repeated at any time, whatever was removed from the log since."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog import Appended, Producer, ProducerConfig
from segmentlog.topic_config import TopicConfig

N_PARTITIONS = 3
COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
}
RETAIN = {"retention.ms": "1", "file.delete.delay.ms": "0"}


class Flushes:
    """Flushes of three producers to a topic, and what cleans up behind them."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory, self.rng = directory, rng
        self.sequences = {number: [0] * N_PARTITIONS for number in range(3)}
        self.steps: Counter[str] = Counter()
        self.again: Callable[[], tuple[Appended, ...]] = tuple
        self.answers: tuple[Appended, ...] = ()

    def flush(self) -> None:
        """One with few or many batches, in few or many segments."""
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
        """Answered as it was, and nothing is appended."""
        before = self.ends()
        expected = [each._replace(n_duplicates=each.n_records) for each in self.answers]
        assert expected == [*self.again()]
        assert before == self.ends()

    def ends(self) -> list[int]:
        """The log ends."""
        opened = segmentlog.open_log_dir(self.directory)
        return [opened.log("t", each).log_end_offset for each in range(N_PARTITIONS)]

    def compact(self) -> None:
        """With nothing that has to stay for a while."""
        segmentlog.compact(self.directory, settings=COMPACT)

    def retain(self) -> None:
        """Nearly nothing stays."""
        segmentlog.retain(self.directory, settings=RETAIN)

    def delete_records(self) -> None:
        """A part of a partition."""
        partition = self.rng.randrange(N_PARTITIONS)
        log = segmentlog.open_log_dir(self.directory).log("t", partition)
        offset = self.rng.randint(log.log_start_offset, log.log_end_offset)
        segmentlog.delete_records(self.directory, "t", partition, offset=offset)

    def step(self) -> None:
        """Any of them."""
        steps = (self.flush, self.repeat, self.compact, self.retain, self.delete_records)
        (step,) = self.rng.choices(steps, (5, 3, 1, 1, 1))
        step()
        self.steps[step.__name__] += 1


@pytest.mark.parametrize("seed", range(4))
def test_the_last_flush_is_recognized_whatever_was_removed(tmp_path: Path, seed: int) -> None:
    """Also by a log that has none of its batches any more."""
    flushes = Flushes(tmp_path, random.Random(seed))
    flushes.flush()
    while min(flushes.steps[name] for name in ("repeat", "compact", "retain")) < 5:
        flushes.step()
