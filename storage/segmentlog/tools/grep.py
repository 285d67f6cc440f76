"""``segmentlog grep``: the records whose keys, values or headers match a pattern."""

import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

from segmentlog.cluster.known_losses import missing_offsets
from segmentlog.errors import OptionError
from segmentlog.format.records.columns import record_schema
from segmentlog.model import (
    INTERNAL_TOPICS,
    LEAST_LONG,
    IsolationLevel,
    LogSlice,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TimestampRange,
    TopicPartition,
)
from segmentlog.read_options import DatasetOptions
from segmentlog.reads.choose import missing_of, partitions_of
from segmentlog.reads.log import Log, find_bounds
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.paths import readable_path
from segmentlog.store.readable import exists
from segmentlog.tools import arguments
from segmentlog.tools.aborted import AbortedRecords
from segmentlog.tools.conditions import CAUSE, COLUMNS, Condition, texts_of, times_of
from segmentlog.tools.decoded import FLAGS, decoding_of, with_json
from segmentlog.tools.failures import Failed, log_of
from segmentlog.tools.output import as_text, complain, counted, escape, escape_in_quotes, to_json
from segmentlog.tools.progress import progress
from segmentlog.tools.records import cut, note_damage, row_as_json, row_as_text, scan
from segmentlog.tools.usage import write_not_in_use

if TYPE_CHECKING:
    from segmentlog.decoding.rows import Decoding

_NOTHING, _FAILED = 1, 2  # exit statuses, as grep's

_LEAST, _BEYOND = LEAST_LONG, 2**63  #: half-open: every time that Kafka can store
_PIECE_ROWS = 1_000  #: a search of them as one text takes as long as the call

#: Parts of a pattern that look at their surroundings: they may match in a value, and not where
#: the value stands between two others.
_LOOKS_AROUND = re.compile(r"[\^$]|\\[bBAz]")

_PLACE, _OFFSET, _MATCH, _PLAIN = "\x1b[35m", "\x1b[32m", "\x1b[1;31m", "\x1b[0m"  # grep's colours


class Color(StrEnum):
    """When matches are shown in colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@arguments.command(
    "segmentlog grep order-58 /var/lib/kafka",
    "segmentlog grep '\"paid\": *58' /var/lib/kafka --topic payments --since 1h",
    "segmentlog grep '^customer-07$' /data1 /data2 --topic orders --key -c",
    "segmentlog grep -iF 'timed out' /backup --json | jq .value",
    'segmentlog grep \'"status": "failed"\' /var/lib/kafka --topic orders --decode',
    "segmentlog grep /var/lib/kafka --topic orders "
    "--where 'value.status = \"failed\" and value.cents > 1000'",
)
@arguments.tiered
@arguments.flags(
    DatasetOptions, *FLAGS, "since", "until", "read_up_to", read_up_to=ReadUpTo.LOG_END
)
def grep(
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="PATTERN",
            help="A regular expression, in RE2's syntax. With --where or -e, the first argument "
            "is a DIR, too.",
        ),
    ] = None,
    paths: arguments.PathsOrTier = None,
    topic: arguments.Topics = None,
    partition: arguments.Partitions = None,
    *,
    given: dict[str, Any],
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Only records for which this is true: SQL over the columns topic, partition, "
            "offset, timestamp, key, value, headers, and the fields of keys and values that are "
            "decoded.",
        ),
    ] = None,
    regexp: Annotated[
        str | None,
        typer.Option("--regexp", "-e", metavar="PATTERN", help="The pattern, beside --where."),
    ] = None,
    key: Annotated[bool, typer.Option(help="Search keys.")] = False,
    value: Annotated[bool, typer.Option(help="Search values.")] = False,
    header: Annotated[bool, typer.Option(help="Search names and values of headers.")] = False,
    fixed: Annotated[
        bool, typer.Option("--fixed-strings", "-F", help="Take the pattern as literal text.")
    ] = False,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="Ignore the case of ASCII letters.")
    ] = False,
    count: Annotated[
        bool, typer.Option("--count", "-c", help="Write only the number of records.")
    ] = False,
    max_count: Annotated[
        int | None, typer.Option("--max-count", "-m", help="Stop after N records.", min=1)
    ] = None,
    as_json: Annotated[bool, arguments.json_option("Print one JSON object per record.")] = False,
    color: Annotated[Color, typer.Option(help="auto: color only on a terminal.")] = Color.AUTO,
    tier: arguments.Tier,
) -> None:
    """Find records whose keys or values match a pattern, in all partitions, on all cores.

    With --decode, values are searched, and written, as JSON by their schemas. With --where,
    records are found by a condition on their columns and fields; fields are decoded without
    --decode. With --key, --value or --header, only keys, values or headers are searched. Each
    record is a line. Records of aborted transactions are found, too, and marked. The exit status
    is that of grep: 0 if a record was found, 1 if no record was found, and 2 if something could
    not be read.
    Damaged batches, missing offsets and missing partitions are named on standard error, and all
    others are searched.
    """
    condition = None if where is None else Condition(where)
    if where is not None or regexp is not None:
        if pattern is not None and paths and not exists(readable_path(pattern)):
            raise OptionError("PATTERN", pattern, "beside --where or -e, give it as -e PATTERN")
        paths, pattern = [*([] if pattern is None else [pattern]), *(paths or ())], regexp
    elif pattern is None:
        raise OptionError("PATTERN", "", "give a pattern, or a condition with --where")
    elif paths:
        arguments.refuse_swapped("PATTERN", pattern, paths[0], "segmentlog grep PATTERN DIR")
    if condition is not None and given["decode"] is None and condition.decoded:
        given["decode"] = ",".join(condition.decoded)
    chosen = [
        name
        for name, is_chosen in (("key", key), ("value", value), ("headers", header))
        if is_chosen
    ]
    search = None
    if pattern is not None:
        search = Pattern(
            pattern, chosen or ["key", "value"], is_text=fixed, ignores_case=ignore_case
        )
    since, until, read_up_to = given["since"], given["until"], given["read_up_to"]
    times = TimestampRange(_LEAST if since is None else since, _BEYOND if until is None else until)
    directory = open_log_dir(*tier.beside(paths))
    decoding = decoding_of(given, directory, topic or [*directory.topics()])
    run = _Search(search, condition, times, read_up_to, decoding, shows_rows=not count)
    slices = run.slices(directory, topic or (), partition or ())
    write_not_in_use(directory, topic or ())
    n_found = 0
    with progress("grep", sum(each.n_bytes for each in slices)) as bar:
        lines = _line_writer(search, as_json=as_json, color=color)
        with closing(run.found(slices, bar.advance)) as found:
            for batch in found:
                rows = batch if max_count is None else batch.slice(0, max_count - n_found)
                n_found += rows.num_rows
                for text in () if count else lines(rows):
                    bar.write(text)
                if n_found == max_count:
                    break
    if count:
        sys.stdout.write((to_json({"count": n_found}) if as_json else str(n_found)) + "\n")
    if run.n_undecodable:
        n = counted(records=run.n_undecodable)
        complain(f"{n} cannot be decoded: only 'undecodable is not null' finds what has no value")
    run.failed.end()
    if not n_found:
        raise typer.Exit(_NOTHING)


class Pattern:
    """A pattern, and the columns that it is searched in.

    `text`: a regular expression in RE2's syntax, over bytes.  `columns`: some of ``key``,
    ``value`` and ``headers``.  `is_text`: whether `text` is text instead.  `ignores_case`: whether
    ASCII letters match in both cases.
    """

    def __init__(
        self,
        text: str,
        columns: Sequence[str],
        *,
        is_text: bool = False,
        ignores_case: bool = False,
    ) -> None:
        given = os.fsencode(text)
        pattern = re.escape(given) if is_text else given
        self._looks_around = not is_text and _LOOKS_AROUND.search(text) is not None
        self.pattern = b"(?i)" + pattern if ignores_case else pattern
        #: bytes that each match has; none if they are not known
        self.needle = given if is_text else needed_text(given)
        if ignores_case:
            self.needle = b""
        self.columns = columns
        try:
            pc.match_substring_regex(pa.array([b""]), self.pattern)
        except pa.ArrowInvalid as error:
            reason = str(error).rpartition(": ")[2]
            accepted = f"{reason}: give a regular expression in RE2's syntax, or text with -F"
            raise OptionError("PATTERN", text, accepted) from None

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        masks = [
            self._in_headers(rows.column(name))
            if name == "headers"
            else self._in_values(rows.column(name))
            for name in self.columns
        ]
        found = [mask for mask in masks if mask is not None]
        if not found:
            return rows.slice(0, 0)
        matches = found[0]
        for mask in found[1:]:
            matches = pc.or_(matches, mask)
        return rows.filter(matches)

    def _in_values(self, values: pa.Array) -> pa.Array | None:
        """Whether each value matches; None if none does.

        All values are one text to the first search: most batches have no match, and a search of
        them row by row takes two to ten times as long.  Then some rows at a time are one text.
        """
        if self._looks_around:
            matches = pc.match_substring_regex(values, self.pattern)
            return pc.fill_null(matches, fill_value=False) if pc.any(matches).as_py() else None
        if not self._matches_any(_as_one(values)):
            return None
        found = np.zeros(len(values), bool)
        for begin in range(0, len(values), _PIECE_ROWS):
            piece = values.slice(begin, _PIECE_ROWS)
            if self._matches_any(_as_one(piece)):
                matches = pc.fill_null(
                    pc.match_substring_regex(piece, self.pattern), fill_value=False
                )
                found[begin : begin + len(piece)] = matches.to_numpy(zero_copy_only=False)
        return pa.array(found) if found.any() else None

    def _matches_any(self, values: pa.Array) -> bool:
        return bool(pc.any(pc.match_substring_regex(values, self.pattern)).as_py())

    def _in_headers(self, headers: pa.Array) -> pa.Array | None:
        """Whether a name or a value of each row's headers matches; None if none does."""
        pairs = headers.flatten()
        matches = np.zeros(len(pairs), bool)
        for each in (pairs.field("key"), pairs.field("value")):
            found = self._in_values(each)
            if found is not None:
                matches |= found.to_numpy(zero_copy_only=False)
        if not matches.any():
            return None
        n_before = np.concatenate([[0], np.cumsum(matches)])
        lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(lengths)
        return pa.array(n_before[ends] > n_before[ends - lengths])

    def marked(self, values: pa.Array, begin: bytes, end: bytes) -> pa.Array:
        """`values` with `begin` and `end` around each match."""
        return pc.replace_substring_regex(values, self.pattern, begin + rb"\0" + end)


#: Parts of a pattern in RE2's syntax: an escape, a class, a number of repetitions, and characters.
_PART = re.compile(
    rb"\\(?P<escaped>[^A-Za-z0-9])|\\."
    rb"|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"
    rb"|\{\d*,?\d*\}|.",
    re.DOTALL,
)
_SPECIAL = b".^$+*?{}()[]|"


def needed_text(pattern: bytes) -> bytes:
    """The longest text that all matches of a regular expression have, as far as is easily seen.

    Nothing is known of a pattern with alternatives, groups or flags, or with escapes of letters.
    """
    found, run = b"", b""
    for part in _PART.finditer(pattern):
        text = part["escaped"] or part[0]
        if part[0] in b"|(" or (part[0][:1] == b"\\" and part["escaped"] is None):
            return b""
        if part["escaped"] is None and (part[0] in _SPECIAL or len(part[0]) > 1):
            if part[0][:1] in b"*?{":  # what stands before it may be missing
                run = b"" if run[-1:] > b"\x7f" else run[:-1]
            found, run = max(found, run, key=len), b""
        else:
            run += text
    return max(found, run, key=len)


def _as_one(values: pa.Array) -> pa.Array:
    """All values, one after the other, as one value, without a copy."""
    _, ends, data = values.buffers()
    if data is None or not len(values):
        return pa.array([b""])
    bounds = np.frombuffer(ends, np.int32)[[values.offset, values.offset + len(values)]]
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bounds.copy()), data])


class _Search:
    """A search of partitions.

    `pattern`, `condition`: both have to be met, if they are given.  `n_undecodable`: the records
    that have nothing for the condition to look at.  `shows_rows`: whether the records are wanted,
    and not only their number.  `failed`: what could not be searched.
    """

    def __init__(
        self,
        pattern: Pattern | None,
        condition: Condition | None,
        times: TimestampRange,
        read_up_to: ReadUpTo,
        decoding: "Decoding | None" = None,
        *,
        shows_rows: bool,
    ) -> None:
        self.failed = Failed(_FAILED)
        self.n_undecodable = 0  # counted by the threads that search, under the lock
        self._lock = threading.Lock()
        self._pattern = pattern
        self._condition = condition
        self._times = times
        self._read_up_to = read_up_to
        self._decoding = decoding
        has_times = times != (_LEAST, _BEYOND)
        named = [
            *(() if pattern is None else pattern.columns),
            *(() if condition is None else condition.columns),
        ]
        self._shows_headers = "headers" in named
        self._policy = ScanPolicy(
            timestamps=times if has_times else None,
            in_milliseconds=True,
            header_names_as_bytes=True,
            needle=b"" if pattern is None or decoding is not None else pattern.needle,
        )
        wanted = {"offset", *(() if pattern is None else pattern.columns)}
        if shows_rows:
            wanted |= {"topic", "partition", "key", "value", "timestamp"}
        if decoding is not None:
            wanted |= {*decoding.scanned(decoding.columns)}
        if condition is not None:
            condition.check(_kinds(decoding))
            wanted |= {*condition.columns} - {CAUSE}
        self._logs: dict[TopicPartition, Log] | None = {} if shows_rows else None
        self._columns = sorted(wanted | {"timestamp"} if has_times else wanted)
        self._filters = has_times

    def slices(
        self, directory: LogDirectory, topics: Collection[str], partitions: Collection[int]
    ) -> list[LogSlice]:
        """The slices to search, in the order of topic, partition and offset."""
        missing = missing_of(directory, topics, partitions)
        for lost in missing:
            self.failed.add(lost.topic_partition, f"it is not searched: {lost.reason}")
        since_ms = None if self._times.start_ms == _LEAST else self._times.start_ms
        logs = []
        for each in partitions_of(directory, topics, partitions, missing):
            if topics or each.topic not in INTERNAL_TOPICS:
                with self.failed.of(each):
                    log = log_of(directory, each, self.failed)
                    logs.append(log)
                    if self._logs is not None:
                        self._logs[each] = log
        found: list[LogSlice] = []
        for log in logs:
            with self.failed.of(log.topic_partition):
                # A record that is old enough may follow a newer one, so the end is the log's.
                note_damage(log, since_ms, self.failed)
                offsets = find_bounds(
                    log,
                    None,
                    None,
                    since_ms=since_ms,
                    until_ms=None,
                    last=None,
                    read_up_to=self._read_up_to,
                    isolation_level=IsolationLevel.READ_UNCOMMITTED,
                    on_corrupt_batch=OnCorruptBatch.SKIP,
                    fail_on_data_loss=False,
                )
                found += cut(log, offsets, is_last=log is logs[-1])
                for reason in missing_offsets(log):
                    self.failed.add(log.topic_partition, reason)
        return found

    def found(
        self, slices: Sequence[LogSlice], advance: Callable[[int], object]
    ) -> Generator[pa.RecordBatch, None, None]:
        """The rows that match, in the order of the slices, which several threads search."""
        from segmentlog.reads.ordered_reads import n_threads_of, read_in_order

        reads = [partial(self._search, each, advance) for each in slices]
        yield from read_in_order(reads, n_threads_of(use_threads=len(reads) > 1))

    def _search(
        self, log_slice: LogSlice, advance: Callable[[int], object]
    ) -> Iterator[pa.RecordBatch]:
        log = self._logs.get(log_slice.topic_partition) if self._logs is not None else None
        aborted = AbortedRecords(log, self._read_up_to)
        with self.failed.of(log_slice.topic_partition):
            for rows in scan(log_slice, self._columns, self._policy, self.failed):
                matches = self._matches(rows)
                if matches.num_rows:
                    yield aborted.marked(matches)
        advance(log_slice.n_bytes)

    def _matches(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are found, with decoded columns as JSON."""
        if self._filters:
            times, (since, until) = rows.column("timestamp"), self._times
            is_within = pc.and_(pc.greater_equal(times, since), pc.less_equal(times, until - 1))
            rows = rows.filter(is_within)
        if self._condition is not None and rows.num_rows:
            rows = rows.take(self._condition.holds(self._columns_of(rows, self._condition)))
        if self._decoding is not None and rows.num_rows:
            rows = with_json(rows, self._decoding)
        if self._pattern is not None and rows.num_rows:
            rows = self._pattern.rows(rows)
        return rows if self._shows_headers else _without(rows, "headers")

    def _columns_of(self, rows: pa.RecordBatch, condition: Condition) -> dict[str, pa.Array]:
        """The columns as a condition has them."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        made = frozenset[str]() if self._decoding is None else self._decoding.made
        if "timestamp" in condition.columns:
            columns["timestamp"] = times_of(columns["timestamp"])
        for name in {"key", "value"} & {*condition.columns} - made:
            columns[name] = texts_of(columns[name])
        if self._decoding is not None and made & {*condition.columns}:
            decoded = self._decoding.each(rows)
            columns |= {name: column for name, (column, _) in decoded.items()}
            causes = {row: why for _, found in decoded.values() for row, why in found.items()}
            columns[CAUSE] = pa.array(map(causes.get, range(len(rows))), pa.string())
            if CAUSE not in condition.columns:
                with self._lock:
                    self.n_undecodable += len(causes)
        return columns


def _without(rows: pa.RecordBatch, name: str) -> pa.RecordBatch:
    return rows.select([each for each in rows.schema.names if each != name])


def _kinds(decoding: "Decoding | None") -> dict[str, pa.DataType]:
    """The types of the columns that a condition may name."""
    text = ("key", "value")
    schema = record_schema(include_headers=True, header_names_as_bytes=True, text=text)
    kinds = {name: schema.field(name).type for name in COLUMNS if name in schema.names}
    if decoding is not None:
        kinds |= {name: decoding.type_of(name) for name in decoding.columns}
        kinds[CAUSE] = pa.string()
    return kinds


def _line_writer(
    pattern: Pattern | None, *, as_json: bool, color: Color
) -> Callable[[pa.RecordBatch], Iterator[str]]:
    """A function that makes a line of each row of a partition."""
    if as_json:
        return lambda rows: map(row_as_json, rows.to_pylist())
    is_colored = color == Color.ALWAYS or (
        color == Color.AUTO and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    )
    return partial(_lines, pattern, is_colored=is_colored)


def _lines(pattern: Pattern | None, rows: pa.RecordBatch, *, is_colored: bool) -> Iterator[str]:
    shown = _Marked(rows, b"", b"")
    if is_colored and pattern is not None:
        shown = _Marked.of(pattern, rows)
    begin, middle, end = (_PLACE, _OFFSET, _PLAIN) if is_colored else ("", "", "")
    place = escape(f"{rows.column('topic')[0]}-{rows.column('partition')[0]}")
    for row in shown.rows.to_pylist():
        at = f"{begin}{place}{end}:{middle}{row['offset']}{end}"
        yield row_as_text(row, at, shown.text)


class _Marked(NamedTuple):
    """Rows with marks around the matches in the columns that were searched.

    The marks are random, so that no record contains them.
    """

    rows: pa.RecordBatch
    begin: bytes
    end: bytes

    @classmethod
    def of(cls, pattern: Pattern, rows: pa.RecordBatch) -> "_Marked":
        begin, end = secrets.token_hex(16).encode(), secrets.token_hex(16).encode()
        for name in pattern.columns:
            column = rows.column(name)
            if name == "headers":
                marked = _marked_headers(pattern, column, begin, end)
            else:
                marked = pattern.marked(column, begin, end)
            rows = rows.set_column(rows.schema.get_field_index(name), name, marked)
        return cls(rows, begin, end)

    def text(self, data: bytes | None) -> str:
        """Text in quotes, in which marks have become colours; or null."""
        if data is None:
            return "null"
        if not self.begin:
            return f"'{_escaped(data)}'"
        first, *others = data.split(self.begin)
        pieces = [_escaped(first)]
        for each in others:
            match, _, rest = each.partition(self.end)
            pieces.append(f"{_MATCH}{_escaped(match)}{_PLAIN}{_escaped(rest)}")
        return f"'{''.join(pieces)}'"


def _marked_headers(pattern: Pattern, lists: pa.Array, begin: bytes, end: bytes) -> pa.Array:
    """Headers with marks around the matches in their names and values; none instead of null."""
    pairs = lists.flatten()
    marked = [pattern.marked(pairs.field(each), begin, end) for each in ("key", "value")]
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    structs = pa.StructArray.from_arrays(marked, ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), structs)


def _escaped(data: bytes) -> str:
    return escape_in_quotes(as_text(data))
