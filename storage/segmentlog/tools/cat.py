"""``segmentlog cat``: the records of a topic, with the options and the output of kcat."""

import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import typer

from segmentlog.arguments import refuse_two
from segmentlog.cluster.known_losses import missing_offsets
from segmentlog.errors import OptionError
from segmentlog.format.names import DirectoryState, parse_partition_directory
from segmentlog.model import (
    LARGEST_LONG,
    IsolationLevel,
    OffsetRange,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TopicPartition,
)
from segmentlog.read_options import DatasetOptions
from segmentlog.reads.choose import missing_of, partitions_of
from segmentlog.reads.log import Log, find_bounds
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.paths import readable_path
from segmentlog.store.readable import exists, is_directory, is_url
from segmentlog.times import epoch_milliseconds
from segmentlog.tools import arguments
from segmentlog.tools.aborted import ABORTED, AbortedRecords
from segmentlog.tools.decoded import FLAGS, decoding_of, n_undecodable, with_json
from segmentlog.tools.failures import Failed, log_of
from segmentlog.tools.message_format import JsonFormat, MessageFormat, Pack, TextFormat, unescaped
from segmentlog.tools.output import counted, escape, printable
from segmentlog.tools.progress import Bar, progress, shows_bar_beside_output
from segmentlog.tools.records import cut, note_damage, scan
from segmentlog.tools.usage import write_not_in_use

if TYPE_CHECKING:
    from segmentlog.decoding.rows import Decoding

_LOOK_SECONDS = 0.2  #: between two looks at a directory that is followed
_PATIENCE = 20  #: looks at an open transaction before it is named
_MOST_NAMED = 10
_PIECE_ROWS = 5_000  #: that are turned into text at once: their text stays in a cache

_OFFSETS = "beginning, end, an offset, -10 for the last ten, or a time such as @2026-01-31T10:00Z"


class ShownRange(NamedTuple):
    """The part of each partition to show: from the start to the end, or between these."""

    offset: int | None = None  # the first offset; None for the start, and -1 for the end
    last: int | None = None  # instead, this number of offsets before the end
    since_ms: int | None = None  # instead, the time of the first record
    #: the first record of this time or later ends the partition, as in kcat
    until_ms: int | None = None

    @classmethod
    def parse(cls, given: Sequence[str]) -> "ShownRange":
        """Bounds as kcat's ``-o`` takes them; it may be given twice, for a start and an end.

        Raises `OptionError` if a bound is none of these.
        """
        found = cls()
        for text in given:
            if text.startswith(("s@", "@")):
                found = found._replace(since_ms=_time(text))
            elif text.startswith("e@"):
                found = found._replace(until_ms=_time(text))
            elif text in {"beginning", "end"}:
                found = found._replace(offset=None if text == "beginning" else -1, last=None)
            elif text.removeprefix("-").isdecimal() and abs(int(text)) <= LARGEST_LONG:
                number = int(text)
                found = found._replace(
                    offset=number if number >= 0 else None, last=-number if number < 0 else None
                )
            else:
                raise OptionError("--offset", text, _OFFSETS)
        return found

    def of(self, log: Log, read: "_TopicRead") -> OffsetRange:
        """The offsets of a log; a bound beyond the log is its start or its end."""
        note_damage(log, self.since_ms, read.failed)
        start, end = find_bounds(
            log,
            None,
            None,
            since_ms=self.since_ms,
            until_ms=None,
            last=self.last if self.since_ms is None else None,
            read_up_to=read.read_up_to,
            isolation_level=read.isolation_level,
            on_corrupt_batch=OnCorruptBatch.SKIP,
            fail_on_data_loss=False,
        )
        if self.offset is not None and self.since_ms is None:
            start = end if self.offset < 0 else min(max(start, self.offset), end)
        return OffsetRange(start, end)


def _time(text: str) -> int:
    given = text.partition("@")[2]
    try:
        return epoch_milliseconds("--offset", given)
    except OptionError as error:
        raise OptionError("--offset", text, error.accepted) from None


@arguments.command(
    "segmentlog cat /var/lib/kafka orders",
    "segmentlog cat /var/lib/kafka orders -p 0 -o -10",
    "segmentlog cat /var/lib/kafka orders -o @2026-01-31T10:00:00Z -c 5",
    r"segmentlog cat /var/lib/kafka orders -f '%t %p %o %T %k %s\n'",
    "segmentlog cat /var/lib/kafka orders -J | jq .payload",
    "segmentlog cat /var/lib/kafka orders --decode",
    "segmentlog cat /var/lib/kafka orders -o end --follow",
)
@arguments.tiered
@arguments.flags(DatasetOptions, *FLAGS, "read_up_to", read_up_to=ReadUpTo.LOG_END)
def cat(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR... [TOPIC]",
            help="The log directories of one broker, or a partition directory; and last the "
            "topic, which may be left out if there is only one. Also the name of a renamed "
            "directory of a partition, such as orders-0.<id>-delete.",
            autocompletion=arguments.complete_topic,
        ),
    ],
    kcats_topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="The topic, as kcat takes it.",
            autocompletion=arguments.complete_topic,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition; may be repeated."),
    ] = None,
    offset: Annotated[
        list[str] | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="OFFSET",
            help=f"First record: {_OFFSETS}, or s@MS. e@MS stops at that time.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", "-n", help="Stop after N records.", min=1)
    ] = None,
    text_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="%t topic, %p partition, %o offset, %T time, %k key, %s value, %h headers; "
            r"%K %S lengths, %R length as four bytes; \n \t \x1f.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", "-J", help="Print one JSON object per record, with kcat's fields."),
    ] = False,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "--key-delimiter", "-K", help="Write the key and this text before each value."
        ),
    ] = None,
    delimiter: Annotated[
        str, typer.Option("--delimiter", "-D", help="Write this text after each record.")
    ] = r"\n",
    deserialize: Annotated[
        list[str] | None,
        typer.Option(
            "--deserialize",
            "-s",
            metavar="[key=|value=]PACK",
            help="Show keys or values as numbers: b B h H i I q Q, after < little-endian; c, s.",
        ),
    ] = None,
    shows_null: Annotated[
        bool,
        typer.Option(
            "--null", "-Z", help="Write NULL for keys and values that are null or empty."
        ),
    ] = False,
    unbuffered: Annotated[
        bool, typer.Option("--unbuffered", "-u", help="Write each record at once.")
    ] = False,
    exits: Annotated[
        bool, typer.Option("-e", help="Exit after the last record, which is the default here.")
    ] = False,
    consumes: Annotated[
        bool, typer.Option("-C", help="Consume, as in kcat, which is all that cat does.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("-q", help="Do not say that no record is within the bounds.")
    ] = False,
    follow: Annotated[
        bool, typer.Option(help="Wait for new records, as kcat does without -e.")
    ] = False,
    isolation_level: Annotated[
        IsolationLevel,
        typer.Option(help="read_committed, as in kcat, leaves out aborted records."),
    ] = IsolationLevel.READ_COMMITTED,
    *,
    given: dict[str, Any],
    tier: arguments.Tier,
) -> None:
    """Write the records of a topic, with the options and the output of kcat.

    Partitions are written one after the other, each in the order of its offsets. Keys and values
    are written as they are; on a terminal, characters that would move the cursor, or hide or
    reorder text, are written as escapes. Damaged batches, missing offsets, and records after the
    beginning of an open transaction are left out, and named on standard error; the exit status is
    then 1.
    """
    if exits and follow:
        raise OptionError("-e", "given beside --follow", "leave one of the two out")
    directories, topic = _split(paths)
    if kcats_topic is not None:
        refuse_two("TOPIC", topic, "--topic", kcats_topic)
        topic = kcats_topic
    bounds = ShownRange.parse(offset or ())
    arguments.refuse_swapped("TOPIC", topic or "", directories[0], "segmentlog cat DIR TOPIC")
    if topic is not None and "." in topic:
        renamed = parse_partition_directory(topic)
        if renamed and renamed[1] is not DirectoryState.CURRENT:
            within = (os.path.join(each, topic) for each in directories)
            there = [each for each in within if exists(readable_path(each))]
            if there:
                directories, topic = there, renamed[0].topic
    refuse_two("--decode", given["decode"], "--deserialize", deserialize)
    opened = open_log_dir(*tier.beside(directories))
    chosen = _topic_of(opened, topic), partition or ()
    decoding = decoding_of(given, opened, chosen[:1])
    if as_json:
        node = opened.node_id
        written: MessageFormat = JsonFormat(unescaped(delimiter), -1 if node is None else node)
    elif text_format is not None:
        written = TextFormat.parse(text_format, shows_null=shows_null)
    else:
        key = None if key_delimiter is None else unescaped(key_delimiter)
        written = TextFormat.delimited(key, unescaped(delimiter), shows_null=shows_null)
    written.packs = Pack.of(deserialize or ())
    read = _TopicRead(
        written,
        isolation_level,
        given["read_up_to"],
        count,
        bounds.until_ms,
        decoding,
        by_record=unbuffered,
    )
    with ExitStack() as stack:
        if shows_bar_beside_output():
            read.bar = stack.enter_context(progress("cat", None, is_bytes=False))
        read.all(opened, chosen, bounds)
    read.bar = None
    write_not_in_use(opened, chosen[:1])
    if follow and not read.is_done:
        read.follow(opened, chosen)
    if not (quiet or follow or read.n_written or read.failed.names):
        sys.stderr.write("nothing is selected: no record is within the given bounds\n")
        for each, offsets in [*read.ranges.items()][:_MOST_NAMED]:
            sys.stderr.write(f"{escape(str(each))} has offsets [{offsets[0]}, {offsets[1]})\n")
    if read.n_aborted and not (quiet or isinstance(written, JsonFormat)):
        n = counted(records=read.n_aborted)
        sys.stderr.write(f"{n} of aborted transactions are among them: -J marks them\n")
    if read.n_undecodable and not quiet:
        n = counted(records=read.n_undecodable)
        sys.stderr.write(f"{n} cannot be decoded: the cause stands before the bytes\n")
    read.failed.end()


def _split(paths: Sequence[str]) -> tuple[list[str], str | None]:
    """The directories, and the topic, if the last argument is one."""
    # A topic of the first directory may have the name of another directory.
    *directories, last = paths
    if not directories:
        return [last], None
    is_place = is_url(last) or is_directory(readable_path(last))
    is_place = is_place and exists(readable_path(directories[0]))  # else both may be swapped
    if is_place:
        is_place = last not in open_log_dir(directories[0]).topics(internal=True)
    return ([*paths], None) if is_place else (directories, last)


def _topic_of(directory: LogDirectory, topic: str | None) -> str:
    """The topic that is named, or the only one that there is."""
    if topic is not None:
        return topic
    topics = list(directory.topics()) or list(directory.topics(internal=True))
    if len(topics) != 1:
        shown = ", ".join(topics[:5]) + (", …" if len(topics) > 5 else "")
        raise OptionError("TOPIC", "", f"name one of {shown}" if topics else "there is no topic")
    return topics[0]


class _TopicRead:
    """A read of one topic that is written out.

    `count`: the most records to write; None for all.  `until_ms`: the first record of this time or
    later ends its partition; None for no end.  `by_record`: whether each record is written at
    once.  `decoding`: of keys or values, which are written as JSON.  `n_written`: the number of
    records so far; of these, `n_aborted` are those of aborted transactions, and `n_undecodable`
    have a key or a value that cannot be decoded.
    """

    def __init__(
        self,
        written: MessageFormat,
        isolation_level: IsolationLevel,
        read_up_to: ReadUpTo,
        count: int | None,
        until_ms: int | None,
        decoding: "Decoding | None" = None,
        *,
        by_record: bool,
    ) -> None:
        self.isolation_level, self.read_up_to = isolation_level, read_up_to
        self.failed = Failed()
        self.n_written = self.n_aborted = self.n_undecodable = 0
        self.bar: Bar | None = None  # counts the records
        self._format = written
        self._count = count
        self._write = _writer()
        self._by_record = by_record
        self._policy = ScanPolicy(
            isolation_level, in_milliseconds=True, header_names_as_bytes=True
        )
        self._until_ms = until_ms
        self._decoding = decoding
        self._columns = written.columns
        if until_ms is not None:
            self._columns = sorted({*written.columns, "timestamp"})
        if decoding is not None:
            self._columns = decoding.scanned({*self._columns, *decoding.columns})
        #: the offsets that each log has
        self.ranges: dict[TopicPartition, OffsetRange] = {}
        self._next: dict[TopicPartition, int] = {}
        self._topic_ids: dict[TopicPartition, str] = {}
        self._ended: set[TopicPartition] = set()
        self._failing: set[TopicPartition] = set()
        self._held: dict[TopicPartition, tuple[int, int]] = {}  # offset of its transaction, looks

    @property
    def is_done(self) -> bool:
        """Whether as many records as wanted are written."""
        return self.n_written == self._count

    def all(
        self, directory: LogDirectory, chosen: tuple[str, Sequence[int]], bounds: ShownRange
    ) -> None:
        """Write the records within `bounds` that are there."""
        topic, partitions = chosen
        missing = missing_of(directory, [topic], partitions)
        logs = []
        for each in partitions_of(directory, [topic], partitions, missing):
            with self.failed.of(each):
                logs.append(log_of(directory, each, self.failed))
        is_first = not self._next
        for log in logs:
            each = log.topic_partition
            self._compare_topic(log)
            if each not in self._ended and each not in self._failing:
                self._failing.add(each)  # unless it is read to its end
                with self.failed.of(each):
                    self._one(log, bounds)
                    if is_first and not self.is_done and each not in self._ended:
                        self._tell_rest(log)
                    self._failing.discard(each)
            if self.is_done:
                return
        for lost in missing if is_first else ():
            self.failed.add(lost.topic_partition, lost.reason)

    def _compare_topic(self, log: Log) -> None:
        """Begin a partition again if its topic was deleted, and created again under its name."""
        each, topic_id = log.topic_partition, log.known_topic_id
        known = self._topic_ids.get(each, topic_id)
        self._topic_ids[each] = topic_id or known
        if topic_id and known and topic_id != known:
            self._next[each] = 0
            self._ended.discard(each)
            self._failing.discard(each)
            reason = f"its topic was deleted and created again (id {topic_id}, not {known})"
            self.failed.add(each, f"{reason}; the records of the new topic follow")

    def _one(self, log: Log, bounds: ShownRange) -> None:
        """Write the records of a log: within `bounds`, or after those that are written."""
        each = log.topic_partition
        known = self._next.get(each)
        if known is None:
            offsets = bounds.of(log, self)
        else:
            end = log.end_offset(
                self.read_up_to,
                self.isolation_level,
                OnCorruptBatch.SKIP,
                fail_on_data_loss=False,
            )
            offsets = OffsetRange(max(known, log.log_start_offset), end)
            self._note_held(log, end)
        self._next[each] = max(offsets)
        self.ranges[each] = OffsetRange(log.log_start_offset, log.log_end_offset)
        is_all = self.isolation_level == IsolationLevel.READ_UNCOMMITTED
        aborted = AbortedRecords(log if is_all else None, self.read_up_to)
        for rows in self._rows(log, offsets):
            self._put(aborted.marked(self._before_end(rows, each)), each)
            if self.is_done or each in self._ended:
                return

    def _tell_rest(self, log: Log) -> None:
        """Name the offsets that the log has, or has promised, and that are not written."""
        each = log.topic_partition
        for reason in missing_offsets(log):
            self.failed.add(each, reason)
        if self.isolation_level != IsolationLevel.READ_COMMITTED:
            return
        end = log.end_offset(self.read_up_to, fail_on_data_loss=False)
        opened = log.open_transactions(
            self.read_up_to, OnCorruptBatch.SKIP, fail_on_data_loss=False
        )
        if opened:
            producer_id, first = min(opened.items(), key=lambda pair: pair[1])
            self._held[each] = first, _PATIENCE
            self.failed.add(
                each,
                f"the read ends at offset {first}, where a transaction of producer {producer_id} "
                f"begins that is neither committed nor aborted; the offsets up to {end} follow: "
                "--isolation-level read_uncommitted writes their records",
            )

    def _note_held(self, log: Log, end: int) -> None:
        """Remember the transaction at which a read that follows the log has to wait."""
        each = log.topic_partition
        if end >= log.end_offset(self.read_up_to, fail_on_data_loss=False):
            self._held.pop(each, None)
        elif self._held.get(each, (-1, 0))[0] != end:
            self._held[each] = end, 0

    def _tell_held(self, directory: LogDirectory) -> None:
        """Name a transaction that stays open while the log is looked at several times."""
        for each, (offset, n_looks) in [*self._held.items()]:
            self._held[each] = offset, min(n_looks + 1, _PATIENCE)
            if n_looks == _PATIENCE - 1:
                with self.failed.of(each):
                    self._tell_rest(directory.log(*each))

    def follow(self, directory: LogDirectory, chosen: tuple[str, Sequence[int]]) -> None:
        """Write records as they come, until the reader has gone."""
        looks = select.poll()
        looks.register(sys.stdout.fileno(), 0)  # errors alone, which are always reported
        sys.stdout.flush()  # nothing may come for hours
        while not looks.poll(_LOOK_SECONDS * 1000):
            newer = directory.refresh(log_ends=True)
            if newer is not directory:
                directory = newer
                with self.failed.of(chosen[0]):  # it may be created again
                    self.all(directory, chosen, ShownRange())
                sys.stdout.flush()
                if self.is_done:
                    return
            self._tell_held(directory)
        raise BrokenPipeError

    def _rows(self, log: Log, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        from segmentlog.reads.ordered_reads import n_threads_of, read_in_order

        slices = cut(log, offsets)
        reads = [partial(scan, each, self._columns, self._policy, self.failed) for each in slices]
        side_by_side = len(reads) > 1 and self._count is None
        yield from read_in_order(reads, n_threads_of(use_threads=side_by_side))

    def _before_end(self, rows: pa.RecordBatch, topic_partition: TopicPartition) -> pa.RecordBatch:
        """The rows before the first one that ends the partition."""
        if self._until_ms is None:
            return rows
        is_late = pc.greater_equal(rows.column("timestamp"), self._until_ms)
        first: int = pc.index(is_late, value=True).as_py()
        if first < 0:
            return rows
        self._ended.add(topic_partition)
        return rows.slice(0, first)

    def _put(self, rows: pa.RecordBatch, topic_partition: TopicPartition) -> None:
        if self._count is not None:
            rows = rows.slice(0, self._count - self.n_written)
        piece_rows = 1 if self._by_record else _PIECE_ROWS
        for begin in range(0, rows.num_rows, piece_rows):
            piece = rows.slice(begin, piece_rows)
            if ABORTED in piece.schema.names:
                self.n_aborted += piece.column(ABORTED).true_count
            if self._decoding is not None:
                piece = with_json(piece, self._decoding)
                self.n_undecodable += n_undecodable(piece)
            self._write(self._format.render(piece, topic_partition))
            if self._by_record:
                sys.stdout.flush()
            if self.bar:
                self.bar.advance(piece.num_rows)
        self.n_written += rows.num_rows


def _writer() -> Callable[[memoryview], object]:
    """A function that writes to standard output: text to a terminal, and bytes elsewhere."""
    if sys.stdout.isatty():
        return lambda data: sys.stdout.write(printable(str(data, "utf-8", "surrogateescape")))
    return sys.stdout.buffer.write
