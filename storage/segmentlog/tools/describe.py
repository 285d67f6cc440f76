"""``segmentlog describe``: a row a partition, from names, indexes and a few headers."""

import logging
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer

from segmentlog.cluster.directory_settings import DirectorySettings, log_directory
from segmentlog.cluster.known_losses import missing_offsets
from segmentlog.errors import CorruptCheckpointError, SegmentLogError
from segmentlog.format.records.header import BatchHeader
from segmentlog.log.segment import Segment
from segmentlog.maintain.verification.findings import unfinished_commits
from segmentlog.model import LARGEST_LONG, TopicPartition
from segmentlog.operation_options import ClusterOptions
from segmentlog.reads.choose import missing_of, partitions_of
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.system_errors import in_words
from segmentlog.tools import arguments
from segmentlog.tools.failures import WITHOUT_LOG_START, damaged_end
from segmentlog.tools.output import aligned, as_given, cell, escape, time_cell, to_json
from segmentlog.tools.progress import progress
from segmentlog.tools.restore import write_renamed
from segmentlog.tools.sinks import codec_name
from segmentlog.tools.usage import leftovers_in_words

logger = logging.getLogger(__name__)

_WIDEST = 1000  # columns of a table on a terminal

#: Columns to leave out if a terminal is too narrow, in this order.
_FIRST_TO_GO = ("format", "codec", "batches", "from", "segments", "bytes", "to")


@arguments.command(
    "segmentlog describe /var/lib/kafka",
    "segmentlog describe /data1 /data2 --topic orders",
    "segmentlog describe /var/lib/kafka --json --all | jq 'select(.batches > 1000)'",
    "segmentlog describe /var/lib/kafka --settings --topic orders",
)
@arguments.tiered
@arguments.flags(ClusterOptions, "metadata", "server_properties")
def describe(
    paths: arguments.PathsOrTier = None,
    topic: arguments.Topics = None,
    as_json: Annotated[bool, arguments.json_option("One JSON object per line.")] = False,
    all_headers: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Read every batch header, for the formats, codecs and times of all batches.",
        ),
    ] = False,
    settings: Annotated[
        bool,
        typer.Option(help="Instead, list the settings of topics, and the source of each setting."),
    ] = False,
    *,
    given: dict[str, Any],
    tier: arguments.Tier,
) -> None:
    """List topics and partitions: offsets, segments, bytes, formats, codecs, times.

    The command reads names, indexes and a few batch headers, so it is quick on logs of any size.
    Formats, codecs and times are those of the first and last batches. With --all, the command
    reads every batch header, but no records.
    """
    places = tier.beside(paths)
    if settings and all_headers:
        raise typer.BadParameter("--settings reads no headers: leave out --all")
    if settings:
        _write_settings(places, topic or (), as_json=as_json, **given)
        return
    with progress("describe", None, is_bytes=False) as bar:
        rows = describe_paths(places, topic or (), all_headers=all_headers, begin=bar.begin)
        if as_json:
            is_good = _write_json(rows, bar.write)
        else:
            found = list(rows)
        opened = open_log_dir(*places)
        leftovers = "" if as_json else leftovers_in_words(opened)
    if not as_json:
        is_good = _write_table(found, all_headers=all_headers)
    write_renamed(opened, topic or (), as_json=as_json)
    sys.stderr.write(leftovers)
    if not is_good:
        raise typer.Exit(arguments.PROBLEM)


class Description(NamedTuple):
    """One partition; a field that could not be read is None, and `problem` has the reason.

    Times are epoch milliseconds.  Unless every header was read, `batches` is None, and formats,
    codecs and times are those of the first and the last batches alone.
    """

    topic: str
    partition: int
    topicId: str | None = None  # noqa: N815 - field names of the JSON
    logStartOffset: int | None = None  # noqa: N815
    highWatermark: int | None = None  # noqa: N815
    logEndOffset: int | None = None  # noqa: N815
    segments: int | None = None
    bytes: int | None = None
    batches: int | None = None
    formats: Sequence[int] = ()
    codecs: Sequence[str] = ()
    firstTimestamp: int | None = None  # noqa: N815
    lastTimestamp: int | None = None  # noqa: N815
    problem: str | None = None


def describe_paths(
    paths: Sequence[str],
    topics: Sequence[str] = (),
    *,
    all_headers: bool = False,
    begin: Callable[[str], object] = lambda _: None,
) -> Iterator[Description]:
    """Describe each partition, including those that cannot be read to the end.

    `paths`: log directories, partition directories or ``.log`` files.  `topics`: topics to
    describe; all if empty.  `all_headers`: whether to read the header of every batch.  `begin`:
    takes the name of each partition before it is looked at.  Raises `SegmentLogError` if a path
    is none of these, or holds no such topic.
    """
    directory = open_log_dir(paths[0], *paths[1:])
    for finding in unfinished_commits(directory.unfinished_commits):
        logger.warning("%s: %s", as_given(finding.path, paths), finding.message)
    gone = missing_of(directory, topics)
    missing = {each.topic_partition: each for each in gone}
    there = directory.topics(internal=True)
    for topic_partition in sorted([*missing, *partitions_of(directory, topics, (), gone)]):
        begin(str(topic_partition))
        if lost := missing.get(topic_partition):
            n_there = len(there.get(topic_partition.topic, ()))
            n_lost = sum(each.topic == topic_partition.topic for each in missing)
            yield Description(
                *topic_partition,
                highWatermark=lost.high_watermark,
                problem=f"{n_there} of {n_there + n_lost} partitions exist: {lost.reason}",
            )
            continue
        problem = ""
        try:
            log = directory.log(*topic_partition)
        except CorruptCheckpointError as error:
            problem = f"{error}; {WITHOUT_LOG_START}"
            log = directory.log_without_checkpoints(topic_partition)
        except SegmentLogError as error:
            yield Description(*topic_partition, problem=str(error))
            continue
        try:
            yield _describe(log, problem, all_headers=all_headers)
        except (SegmentLogError, OSError) as error:
            yield _unreadable(topic_partition, log, error)


def _unreadable(
    topic_partition: TopicPartition, log: Log, error: SegmentLogError | OSError
) -> Description:
    """A description from names alone."""
    try:
        n_segments, n_bytes = len(log.segments), log.size_bytes
    except (SegmentLogError, OSError):
        return Description(*topic_partition, problem=in_words(error))
    problem = in_words(error)
    return Description(*topic_partition, segments=n_segments, bytes=n_bytes, problem=problem)


def _describe(log: Log, problem: str, *, all_headers: bool) -> Description:
    seen = _every_header(log) if all_headers else _outer_headers(log)
    problems = [*filter(None, [problem]), *missing_offsets(log)]
    if log.end.damaged_from is not None:
        problems.append(damaged_end(log.end.damaged_from))
    return Description(
        *log.topic_partition,
        topicId=log.topic_id,
        logStartOffset=log.log_start_offset,
        highWatermark=_high_watermark(log),
        logEndOffset=log.log_end_offset,
        segments=len(log.segments),
        bytes=log.size_bytes,
        batches=seen.batches if all_headers else None,
        formats=sorted(seen.formats),
        codecs=[codec_name(codec) for codec in sorted(seen.codecs)],
        firstTimestamp=seen.first_ms,
        lastTimestamp=seen.last_ms,
        problem="; ".join(problems) or None,
    )


def _high_watermark(log: Log) -> int | None:
    with suppress(CorruptCheckpointError):  # which is among the problems
        return log.high_watermark
    return None


class _Seen:
    """Formats, codecs and times of the batch headers so far."""

    def __init__(self) -> None:
        self.batches = 0
        self.formats: set[int] = set()
        self.codecs: set[int] = set()
        self.first_ms: int | None = None
        self.last_ms: int | None = None

    def add(self, header: BatchHeader) -> None:
        self.batches += 1
        self.formats.add(header.magic)
        if header.records_count:  # compaction leaves empty batches without a codec
            self.codecs.add(header.codec)
        for time in (header.first_timestamp, header.max_timestamp):
            self.add_time(time)

    def add_time(self, time: int) -> None:
        """Take a timestamp into account; -1 means no timestamp."""
        if time >= 0:
            self.first_ms = time if self.first_ms is None else min(self.first_ms, time)
            self.last_ms = time if self.last_ms is None else max(self.last_ms, time)


def _every_header(log: Log) -> _Seen:
    seen = _Seen()
    for segment in log.segments:
        for placed in segment.headers(0, _end_of(log, segment)):
            seen.add(placed.header)
    return seen


def _outer_headers(log: Log) -> _Seen:
    """The first batch of the first segment that has batches, and the last of the last one."""
    seen = _Seen()
    filled = [segment for segment in log.segments if segment.size]
    if filled:
        end = _end_of(log, filled[0])  # which may walk the only segment
        tail = filled[0].tail
        whole = [] if tail is None or tail.position else tail.headers()
        for header in islice(whole or (each.header for each in filled[0].headers(0, end)), 1):
            seen.add(header)
        with filled[-1].opened() as opened:
            end = _end_of(log, filled[-1])
            if filled[-1].tail is not None:
                seen.add(filled[-1].tail.last.header)
            else:
                headers = opened.headers(opened.floor_position(LARGEST_LONG), end)
                for placed in deque(headers, maxlen=1):
                    seen.add(placed.header)
            seen.add_time(opened.largest_timestamp())
    return seen


def _end_of(log: Log, segment: Segment) -> int:
    """The byte after the last batch of a segment: a torn tail has no headers."""
    return log.end.position if segment.is_active else segment.size


def _write_json(rows: Iterator[Description], write: Callable[[str], object]) -> bool:
    """Write one object a line, as they come; return whether no partition has a problem."""
    is_good = True
    for row in rows:
        write(to_json(row._asdict()))
        is_good &= row.problem is None
    return is_good


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _list(items: Sequence[object]) -> str:
    return ",".join(map(str, items)) or "-"


#: Headings, whether the cells are aligned to the right, fields, and how these are shown.
_COLUMNS: tuple[tuple[str, bool, str, Callable[[Any], str]], ...] = (
    ("topic", False, "topic", cell),
    ("part", True, "partition", cell),
    ("start", True, "logStartOffset", cell),
    ("watermark", True, "highWatermark", cell),
    ("end", True, "logEndOffset", cell),
    ("segments", True, "segments", _number),
    ("bytes", True, "bytes", _number),
    ("batches", True, "batches", _number),
    ("format", False, "formats", _list),
    ("codec", False, "codecs", _list),
    ("from", False, "firstTimestamp", time_cell),
    ("to", False, "lastTimestamp", time_cell),
)


def _write_table(rows: Sequence[Description], *, all_headers: bool) -> bool:
    """Write a table, or aligned columns to a pipe; return whether no partition has a problem."""
    found = [row._asdict() for row in rows]
    columns = [each for each in _COLUMNS if all_headers or each[0] != "batches"]
    heading, right, _, _ = map(list, zip(*columns, strict=True))
    cells = [[show(row[name]) for _, _, name, show in columns] for row in found]
    if sys.stdout.isatty():
        left_out = _write_rich(heading, cells, right)
        if left_out:
            what = ", ".join(left_out)
            sys.stderr.write(
                f"not shown, because the terminal is too narrow: {what}\n--json shows all "
                "columns\n"
            )
    else:
        sys.stdout.write(aligned(heading, cells, right))
    if not all_headers:
        sys.stderr.write(
            "format, codec, from and to come from the first and last batches; --all reads all "
            "batches\n"
        )
    problems = [row for row in found if row["problem"]]
    for row in problems:
        where = f"{row['topic']}-{row['partition']}"
        sys.stderr.write(f"{escape(where)}: {escape(row['problem'])}\n")
    return not problems


def _write_rich(heading: list[str], cells: list[list[str]], right: list[bool]) -> list[str]:
    """Write a table without the columns that have no room; return the columns left out."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def table_without(names: Collection[str]) -> Table:
        table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0))
        kept = [i for i, name in enumerate(heading) if name not in names]
        for i in kept:
            table.add_column(heading[i], justify="right" if right[i] else "left", no_wrap=True)
        for row in cells:  # Text, so that no cell is taken as rich's markup
            table.add_row(*(Text(row[i]) for i in kept))
        return table

    width, left_out = Console().width, [name for name in _FIRST_TO_GO if name in heading]
    for n_left_out in range(len(left_out) + 1):
        table = table_without(left_out[:n_left_out])
        needed = Console(width=_WIDEST).measure(table).maximum
        if needed <= width:
            break
    # If not even the other columns fit, broken lines are readable; cells cut to 3 letters are not.
    Console(width=max(width, needed)).print(table, soft_wrap=True)
    return left_out[:n_left_out]


def _write_settings(
    paths: Sequence[str],
    topics: Collection[str],
    metadata: str | None,
    server_properties: str | None,
    *,
    as_json: bool,
) -> None:
    """Write each setting of each topic, and where it comes from."""
    rows = []
    for path in paths:
        opened = open_log_dir(path)
        held = opened.topics(internal=True)
        for topic in topics:
            if topic not in held:
                opened.log(topic, -1)  # raises, and names the nearest topic
        directory = log_directory(path)
        known = DirectorySettings.read(directory, None, metadata, server_properties)
        for topic in sorted(topics) or sorted(held):
            rows += [(topic, name, *each) for name, each in known.of(topic).items()]
    names = ["topic", "setting", "value", "source"]
    if as_json:
        for row in rows:
            sys.stdout.write(to_json(dict(zip(names, map(str, row), strict=True))) + "\n")
        return
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    sys.stdout.write(aligned(names, cells, [False, False, True, False]))
