"""``producers``: the idempotent and transactional producers of each partition at its end."""

import logging
from collections.abc import Iterator
from typing import Any

from segmentlog.errors import CorruptLogError
from segmentlog.kafka_tables.columns import time_of
from segmentlog.logs.log_directory import LogDirectory
from segmentlog.model import OnCorruptBatch
from segmentlog.producers.producer_state import ProducerStates

__all__ = ["producer_rows"]

logger = logging.getLogger(__name__)


def producer_rows(
    directory: LogDirectory, on_corrupt_batch: OnCorruptBatch
) -> Iterator[dict[str, Any]]:
    """The state that a broker would load: the newest snapshot, and the batches after it.

    Raises
    ------
    CorruptLogError
        If a batch after the snapshot is damaged.  With ``skip``, the state before it is returned.
    """
    for topic, partition in directory.topic_partitions():
        log = directory.log(topic, partition)
        end = log.log_end_offset
        states = ProducerStates.load(log.path, end)
        try:
            states.follow_to(log.untorn_segments, end)
        except CorruptLogError as error:
            if on_corrupt_batch is not OnCorruptBatch.SKIP:
                raise
            logger.warning("%s; producers are those before it", error)
        for each in sorted(states.known):
            row = {name: _known(value) for name, value in each._asdict().items()}
            yield row | {
                "topic": topic, "partition": partition, "timestamp": time_of(each.timestamp_ms),
            }  # fmt: skip


def _known(value: int) -> int | None:
    return None if value == -1 else value
