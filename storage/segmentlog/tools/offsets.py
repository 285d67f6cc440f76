"""``segmentlog offsets``: the place of a streaming query of Spark, and its lag."""

import sys
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer

from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.stream_checkpoint import (
    StreamCheckpoint,
    made_again,
    offsets_as_json,
    read_stream_checkpoint,
)
from segmentlog.tools import arguments
from segmentlog.tools.arguments import PROBLEM, command
from segmentlog.tools.output import (
    aligned,
    cell,
    complain,
    escape,
    escape_json,
    to_json,
    write_json,
)


@command(
    "segmentlog offsets --checkpoint /checkpoints/orders",
    "segmentlog offsets --checkpoint /checkpoints/orders /var/lib/kafka",
    "segmentlog offsets --checkpoint /checkpoints/orders --source 1 --json",
)
def offsets(
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="The checkpointLocation of a Spark query.")
    ],
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DIR", help="Log directories, to list the lag of each partition in them."
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Only this source of the query: its number or its name.")
    ] = None,
    as_json: Annotated[bool, arguments.json_option("One JSON object per line.")] = False,
) -> None:
    """Show the position of a Spark streaming query: startingOffsets for its next batch.

    The offsets are those after the last committed batch, for each source of the query that is
    kafka or segmentlog. If a batch was planned but not committed, standard error names this batch
    and the earlier batch. With a log directory, the lag of each partition is listed: the end of
    its log minus the offset. The exit status is 1 if the directory lacks a partition, or if a log
    does not contain the offset. The query may run at the same time.
    """
    found = read_stream_checkpoint(checkpoint)
    chosen = _chosen(found, source)
    directory = open_log_dir(logs[0], *logs[1:]) if logs else None
    if note := _note(found):
        complain(note)
    if directory is None:
        _write_offsets(found, chosen, as_json=as_json)
        return
    lags = [lag for name in chosen for lag in _lags(name, found, directory)]
    if as_json:
        for lag in lags:
            row = {**lag._asdict(), "lag": lag.lag, "problem": lag.problem}
            del row["error"]
            write_json(row)
    else:
        sys.stdout.write(_table(lags, with_source=len(chosen) > 1))
    for lag in lags:
        if lag.problem and not as_json:
            complain(f"{lag.topic}-{lag.partition}: {lag.problem}")
    if any(lag.problem for lag in lags):
        raise typer.Exit(PROBLEM)


class _Lag(NamedTuple):
    """A partition of a source; an offset that is not known is None.

    `offset` is the next one that the query reads, and the bounds are those of the log.
    """

    source: str
    topic: str
    partition: int
    offset: int | None
    logStartOffset: int | None  # noqa: N815 - field names of the JSON
    logEndOffset: int | None  # noqa: N815
    error: str = ""  # of a log that cannot be read, or of another topic

    @property
    def lag(self) -> int | None:
        """The number of offsets to read; a query begins a new partition at its earliest offset."""
        if self.logStartOffset is None or self.logEndOffset is None:
            return None
        start = self.logStartOffset if self.offset is None else self.offset
        return self.logEndOffset - start

    @property
    def problem(self) -> str | None:
        """The reason why the query cannot continue here, or None."""
        if self.error:
            return self.error
        if self.logStartOffset is None or self.logEndOffset is None:
            return "the checkpoint names the partition, but the directory does not contain it"
        holds = f"the log holds [{self.logStartOffset}, {self.logEndOffset})"
        if self.offset is not None and self.offset < self.logStartOffset:
            lost = self.logStartOffset - self.offset
            return f"{lost} offsets from {self.offset} on are gone: {holds}"
        if self.offset is not None and self.offset > self.logEndOffset:
            return f"offset {self.offset} is not written yet: {holds}"
        return None


def _chosen(found: StreamCheckpoint, source: str | None) -> list[str]:
    """The sources to show: one that is named, or all with offsets of partitions."""
    try:
        if source is not None or not any(each is not None for each in found.sources.values()):
            found.offsets(source)
    except OptionError as error:
        raise OptionError("--source", error.value, error.accepted) from None
    if source is not None:
        return [source]
    return [name for name, each in found.sources.items() if each is not None]


def _note(found: StreamCheckpoint) -> str:
    """The batch whose offsets are shown, if a later one is planned; else nothing."""
    if found.batch < 0 and found.planned_batch is None:
        return "no batch is planned yet: the offsets are those at which the query begins"
    if found.planned_batch is None:
        return ""
    shown = (
        "before it" if found.batch < 0 else f"after batch {found.batch}, the last committed one"
    )
    return (
        f"batch {found.planned_batch} is planned and not committed, and a restart of the query "
        f"repeats that batch: the offsets are those {shown}"
    )


def _write_offsets(found: StreamCheckpoint, chosen: list[str], *, as_json: bool) -> None:
    for name in chosen:
        shown = offsets_as_json(found.offsets(name), found.topic_ids[name])
        if as_json:
            place = to_json(
                {"source": name, "batch": found.batch, "plannedBatch": found.planned_batch}
            )
            line = f'{place[:-1]}, "offsets": {shown}}}'
        else:
            line = f"{name}: {shown}" if len(chosen) > 1 else shown
        sys.stdout.write(f"{escape_json(line)}\n")


def _lags(name: str, found: StreamCheckpoint, directory: LogDirectory) -> Iterator[_Lag]:
    """The partitions that a source names, and those of its topics that it does not know yet."""
    known = found.offsets(name)
    topics = {each.topic for each in known}
    there = {each for each in directory.topic_partitions() if each.topic in topics}
    for each in sorted({*known, *there}):
        bounds: tuple[int | None, int | None] = (None, None)
        error = ""
        if each in there:
            try:
                log = directory.log(*each)
                bounds = log.log_start_offset, log.log_end_offset
                error = made_again(log.known_topic_id, found.topic_ids[name].get(each.topic))
            except SegmentLogError as failure:
                error = str(failure)
        offset = known.get(each)
        if offset is not None and offset < 0:  # the words latest and earliest
            offset = bounds[1] if offset == -1 else bounds[0]
        yield _Lag(name, *each, offset, *bounds, error)


def _table(lags: list[_Lag], *, with_source: bool) -> str:
    heading = ("source", "topic", "partition", "offset", "start", "end", "lag")
    rows = [
        (
            escape(each.source),
            escape(each.topic),
            str(each.partition),
            cell(each.offset),
            cell(each.logStartOffset),
            cell(each.logEndOffset),
            cell(each.lag),
        )
        for each in lags
    ]
    first = 0 if with_source else 1
    right = (False, False, True, True, True, True, True)
    return aligned(heading[first:], [row[first:] for row in rows], right[first:])
