"""A plain writer that may be killed at any time: ``writer DIRECTORY LEDGER HOW``.

It notes each commit before and after. If a kill interrupts a commit, the next writer repeats it
with the same sequences, so that it takes place once. It ends with its standard input.
"""

import json
import random
import select
import sys
import traceback
from pathlib import Path

import pyarrow as pa
from stressing.ledger import Ledger

import segmentlog
from segmentlog import Codec, Producer, ProducerConfig
from segmentlog.writes.writer import LogWriter
from soaking.history import Tail
from soaking.plan import PARTITIONS, WRITER, Record, Soak, records_of, topic_of

__all__ = ["table_of"]

_PRODUCER_ID = 4711
_MOST_FLUSHES = 30  # of one writer; the next one has another codec


def table_of(records: list[Record]) -> pa.Table:
    """The rows of a commit."""
    return pa.table(
        {
            "key": pa.array([each.key for each in records], pa.binary()),
            "value": pa.array([each.value for each in records], pa.binary()),
            "partition": pa.array([each.partition for each in records], pa.int32()),
        }
    )


class Writer:
    """Commits in turn.

    Parameters
    ----------
    directory : the log directory.
    ledger : what is noted.
    run : the soak.
    """

    def __init__(self, directory: Path, ledger: Ledger, run: Soak) -> None:
        self._directory, self._ledger, self._run = directory, ledger, run
        self._rng = random.Random()  # a commit that is repeated may have another codec
        self._writers: dict[str, tuple[LogWriter, int]] = {}
        self._number = 0
        self._sequences = {topic: dict.fromkeys(range(n), 0) for topic, n in PARTITIONS.items()}
        begun: dict[str, tuple[int, dict[int, int]]] = {}
        for event in Tail(ledger.path).events():
            if event.get("slot") != WRITER:
                continue
            if event["what"] == "committed":
                self._number = event["number"] + 1
            else:
                before = {int(each): n for each, n in event["sequences"].items()}
                begun[topic_of(WRITER, event["number"])] = event["number"], before
        for topic, (number, before) in begun.items():
            self._sequences[topic] = before
            if number < self._number:  # the last one may have been interrupted, and is repeated
                self._count(topic, records_of(run, WRITER, number, before)[1])

    def _count(self, topic: str, records: list[Record]) -> None:
        for each in records:
            self._sequences[topic][each.partition] += 1

    def step(self) -> None:
        """Make one commit."""
        sequences = self._sequences[topic_of(WRITER, self._number)]
        topic, records = records_of(self._run, WRITER, self._number, sequences)
        self._ledger.note("begin", slot=WRITER, number=self._number, sequences=sequences)
        writer = self._writer(topic)
        writer.append(table_of(records))
        writer.flush()
        n_again = sum(each.n_duplicates for each in writer.appended)
        self._count(topic, records)
        self._ledger.note("committed", slot=WRITER, number=self._number, again=n_again)
        if self._rng.random() < 0.02:
            writer.roll()
        self._number += 1

    def _writer(self, topic: str) -> LogWriter:
        writer, n_left = self._writers.pop(topic, (None, 0))
        if writer is None or not n_left:
            if writer is not None:
                writer.close()
            config = ProducerConfig(codec=self._rng.choice(list(Codec)))
            producer = Producer(_PRODUCER_ID, 0, dict(self._sequences[topic]))
            writer = segmentlog.open_writer(
                self._directory, topic, config=config, producer=producer
            )
            n_left = _MOST_FLUSHES
        self._writers[topic] = writer, n_left - 1
        return writer

    def close(self) -> None:
        """Close all writers."""
        for writer, _ in self._writers.values():
            writer.close()


def main(directory: Path, ledger: Ledger, run: Soak) -> None:
    """Commit until standard input ends."""
    try:
        writer = Writer(directory, ledger, run)
        pause = 0.0
        while not select.select([sys.stdin], [], [], pause)[0]:
            writer.step()
            pause = run.pause
        writer.close()
    except Exception:
        ledger.note("bad", text=f"the writer: {traceback.format_exc()}")
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), Ledger(Path(sys.argv[2])), Soak(**json.loads(sys.argv[3])))
