"""Failures of a command over many things: named on standard error, counted, in its status.

All such commands follow one rule: continue after a failure, name each one, count them, and fail at
the end.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

import typer

from segmentlog.cluster.known_losses import known_losses
from segmentlog.errors import CorruptCheckpointError
from segmentlog.model import TopicPartition
from segmentlog.reads.diskless import diskless_partitions, elsewhere
from segmentlog.reads.log import Log, log_start_beyond
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.readable import is_file
from segmentlog.store.system_errors import Failures
from segmentlog.tools.arguments import PROBLEM
from segmentlog.tools.output import complain, counted

_MOST_NAMED = 10

#: What a command shows of a log whose start is not known.
WITHOUT_LOG_START = "records below the log start are shown, too"


class Failed:
    """The failures of a command.

    `status`: the exit status if there is one.  `names`: of the things that failed, or that are
    shown in part; at first, those that the library's warnings have named.
    """

    def __init__(self, status: int = PROBLEM, names: Iterable[str] = ()) -> None:
        self._status = status
        self._failures = Failures(self.add)
        self.names = dict.fromkeys(names)
        self._told: set[str] = set()

    def of(self, name: object) -> AbstractContextManager[None]:
        """Do the work of one thing, and continue after it if it fails; see `Failures.of`."""
        return self._failures.of(name)

    def add(self, name: object, reason: object = "") -> None:
        """Note a failure, and name it, unless the library's warnings have named it."""
        self.names[str(name)] = None
        if reason:
            told = str(reason)
            line = told if str(name) in told.partition(" ")[0] else f"{name}: {told}"
            if line not in self._told:
                self._told.add(line)
                complain(line)

    def end(self) -> None:
        """End the command with its status if there is a failure, after their number."""
        if self.names:
            n = counted(failures=len(self.names))
            named = ", ".join([*self.names][:_MOST_NAMED])
            more = ", …" if len(self.names) > _MOST_NAMED else ""
            complain(f"{n}: {named}{more}; all else was done")
            raise typer.Exit(self._status)


def log_of(directory: LogDirectory, topic_partition: TopicPartition, failed: Failed) -> Log:
    """A log; if the checkpoint of log starts is damaged, from its first segment on."""
    try:
        return directory.log(*topic_partition)
    except CorruptCheckpointError as error:
        failed.add(topic_partition, f"{error}; {WITHOUT_LOG_START}")
        return directory.log_without_checkpoints(topic_partition)


def damaged_end(offset: int) -> str:
    """A log whose last segment is damaged, in words."""
    return f"damaged from offset {offset} on; segmentlog verify reports where"


def missing_offsets(log: Log) -> Iterator[str]:
    """The offsets that a log promises and does not have, and a way on, in words."""
    remedy = "put the files back from another replica or a backup; segmentlog verify shows more"
    found = diskless_partitions([os.path.dirname(log.path)])
    if log.topic_partition in found:
        yield elsewhere(found[log.topic_partition], log.log_end_offset)
    for lost in known_losses(log):
        yield f"{lost}; {remedy}"
    if reason := log_start_beyond(log):
        yield reason
    if lost_end := log.lost_offsets:
        yield f"{lost_end}; {remedy}"
        return
    try:
        promised = log.high_watermark_checkpoint
    except CorruptCheckpointError as error:
        yield f"whether records are missing at the end is not known: {error}"
        return
    end = log.log_end_offset
    if promised is not None and promised > end and not is_file(log.path):
        yield (
            f"offsets [{end}, {promised}) are missing: the high watermark is {promised}, and the "
            f"log ends at {end}; a crash has lost them, the end is damaged, or the checkpoint is "
            "newer than this copy; segmentlog verify shows more"
        )
