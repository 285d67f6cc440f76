"""Warn of columns of a log's rows that a write leaves out: legal, and easily overlooked."""

import logging
from collections.abc import Sequence

from segmentlog.stage.config import ProducerConfig

__all__ = ["warn_of_columns_left_out"]

logger = logging.getLogger(__name__)


def warn_of_columns_left_out(
    directory: str, names: Sequence[str], config: ProducerConfig, *, keeps: str, reads: str
) -> None:
    """Name the columns of a log that are lost, and the settings that keep them.

    Rows that were read and are written back look complete: they have all columns of a log.  But
    offsets and times are the new log's own unless a setting keeps them, as in Kafka's sink.

    Parameters
    ----------
    directory : the log directory.
    names : columns of the rows.
    config : of the write.
    keeps, reads : how the caller's users keep all columns, and how they read headers.
    """
    taken = {
        "timestamp": config.use_timestamps,
        "timestampType": config.use_timestamp_types,
        "offset": config.use_offsets,
    }
    lost = [name for name, is_taken in taken.items() if name in names and not is_taken]
    if lost:
        logger.warning(
            "%s: the rows have %s, which this write does not keep: records get the time of "
            "writing and new offsets unless they are asked for; %s keeps all of it, or drop "
            "the columns",
            directory, ", ".join(lost), keeps,
        )  # fmt: skip
    if taken.keys() <= set(names) and "headers" not in names:
        logger.warning(
            "%s: the rows come from a log and have no column headers: those of its records are "
            "lost, if they have any; %s reads them",
            directory, reads,
        )  # fmt: skip
