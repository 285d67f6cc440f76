"""``segmentlog audit``: is each record of a topic in a table, once, and nothing else."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer

import segmentlog
from segmentlog.audits.audit import (
    FAULTS,
    FINDINGS,
    Audit,
    AuditedPartition,
    AuditedTableOptions,
    FoundOffsets,
)
from segmentlog.errors import OptionError
from segmentlog.model import IsolationLevel, ReadUpTo
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.reads.stream_checkpoint import checkpoint_offsets, offsets_of_json
from segmentlog.store.paths import readable_path
from segmentlog.store.readable import exists, is_url
from segmentlog.tools import arguments
from segmentlog.tools.output import aligned, counted, escape, json_fields, write_json
from segmentlog.tools.progress import progress
from segmentlog.tools.report import Report
from segmentlog.tools.sinks import new_file

_CHECKPOINT = "checkpoint:"
_OFFSETS = (
    'give offsets as Spark takes them, {"orders":{"0":23,"1":17}}, or checkpoint:PATH for those '
    "of a streaming query"
)

_PROVEN = "proven: each offset of a record is in the table once"
_NOT_PROVEN = (
    "; that its row is of this record, and not of an earlier topic of the same name, is not: "
    "--columns timestamp,key compares them"
)

#: The findings in words, for lines of text.
_WORDS = {
    "nonexistent": "never existed",
    "lost": "lost by the log",
    "removed": "no longer in the log",
    "possibly_missing": "possibly missing",
    "below_log_start": "below the log start",
    "not_audited": "not audited",
}


def _offsets_option(what: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        help=f"{what} of each partition: JSON as Spark takes it, or checkpoint:PATH for those of "
        "a streaming query.",
        metavar="OFFSETS",
    )
    return found


@arguments.command(
    "segmentlog audit /var/lib/kafka orders --table /lake/orders",
    "segmentlog audit /var/lib/kafka orders --table iceberg:prod/db.orders --until 1h --json",
    "segmentlog audit /disk1 /disk2 orders --table s3://lake/orders --missing missing.parquet",
)
@arguments.tiered
@arguments.flags(
    AuditedTableOptions,
    "partition_column",
    "offset_column",
    "topic_column",
    "most_ranges",
    "spill_directory",
    "since",
    "until",
    "read_up_to",
    "on_corrupt_batch",
    read_up_to=ReadUpTo.LOG_END,
)
def audit(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR... TOPIC",
            help="The log directories of one broker, and last the topic.",
            autocompletion=arguments.complete_topic,
        ),
    ],
    tier: arguments.Tier,
    table: Annotated[
        str,
        typer.Option(
            metavar="TABLE",
            help="A Parquet file or directory, also of Spark's file sink, a Delta table, an "
            "Iceberg table by its directory or metadata file, or iceberg:CATALOG/NAMESPACE.TABLE.",
        ),
    ],
    partition: arguments.Partitions = None,
    columns: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Compare these columns of each record with its row, too, as far as the table has "
            "them: timestamp,timestampType,key,value,headers. key=record_key names a column of "
            "the table.",
        ),
    ] = "",
    *,
    given: dict[str, Any],
    starting_offsets: Annotated[str | None, _offsets_option("The first offsets")] = None,
    ending_offsets: Annotated[str | None, _offsets_option("The ends")] = None,
    isolation_level: Annotated[
        IsolationLevel,
        typer.Option(help="read_uncommitted: the table has records of aborted transactions, too."),
    ] = IsolationLevel.READ_COMMITTED,
    ranges: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write all ranges of offsets to a new Parquet file, too."
        ),
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the missing records to a new Parquet file, too."),
    ] = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Prove that a table has each record of a topic once, and nothing else.

    The table needs columns with the partition and the offset of each record. These are compared
    with the log, and with --columns also what each row has of its record: missing records, rows
    that differ, duplicates, rows of aborted transactions,
    rows at end markers, offsets that never existed, and offsets that the log is known to have lost
    are faults. Offsets whose records the log no longer has, because of compaction or retention,
    prove nothing and are counted apart. The exit status is 0 if no partition has a fault, and 1 if
    one has, or if no offset was audited although there are some.
    """
    if len(paths) < 2:
        message = "give the log directory, and then the topic"
        raise typer.BadParameter(message, param_hint="DIR... TOPIC")
    *directories, topic = paths
    located = tier.beside(directories)
    arguments.refuse_swapped("TOPIC", topic, directories[0], "segmentlog audit DIR TOPIC")
    for option, file in (("--ranges", ranges), ("--missing", missing)):
        if file is not None and os.path.lexists(file):
            reason = "the file already exists; name a file that does not exist"
            raise OptionError(option, file, reason)
    report = Report[AuditedPartition](lambda _: (), _row, as_json=as_json)  # text is one table
    with progress("audited", None, is_bytes=False) as bar:

        def show(found: AuditedPartition) -> None:
            bar.name(f"{found.topic}-{found.partition}")
            report.show(found, bar.write)

        found = segmentlog.audit(
            open_log_dir(*located),
            topic,
            table,
            partitions=partition or (),
            columns=columns or (),
            starting_offsets=_offsets("--starting-offsets", starting_offsets, topic, is_end=False),
            ending_offsets=_offsets("--ending-offsets", ending_offsets, topic, is_end=True),
            isolation_level=isolation_level,
            on_partition=show,
            on_rows=bar.advance,
            **given,
        )
    # The result first: it would be lost with a file that cannot be written.
    if as_json:
        write_json(_summary(found))
    else:
        sys.stdout.write(_text(found))
        sys.stdout.flush()
    if ranges is not None:
        _write_parquet(ranges, found.ranges())
    if missing is not None:
        _write_parquet(missing, found.missing(include_headers=True))
    if not found.is_complete:
        raise typer.Exit(arguments.PROBLEM)


def _offsets(
    option: str, text: str | None, topic: str, *, is_end: bool
) -> Mapping[tuple[str, int], int] | None:
    """Offsets of the partitions of a topic; those that stand for the earliest or the latest go.

    Raises `OptionError` if the text has another form, or names a checkpoint of other topics.
    """
    if text is None:
        return None
    if text.startswith(_CHECKPOINT):
        return _of_checkpoint(option, text, topic)
    given = offsets_of_json(text)
    if given is None:
        raise OptionError(option, text, _OFFSETS)
    if (-2 if is_end else -1) in given.values():
        wrong = (
            "-2 is the earliest offset, and so no end: leave the partition out with --partition"
        )
        if not is_end:
            wrong = "-1 is the latest offset, and so no start: leave the partition out"
        raise OptionError(option, text, wrong)
    return {(each.topic, each.partition): at for each, at in given.items() if at >= 0}


def _of_checkpoint(option: str, text: str, topic: str) -> Mapping[tuple[str, int], int]:
    """The offsets of ``checkpoint:PATH``, or of ``checkpoint:PATH#SOURCE``."""
    path, source = text.removeprefix(_CHECKPOINT), None
    before, mark, after = path.rpartition("#")
    if mark and (is_url(path) or not exists(readable_path(path))):
        path, source = before, after
    try:
        found = checkpoint_offsets(path, source)
    except OptionError as error:
        accepted = f"{error.accepted} (checkpoint:PATH#SOURCE names one)"
        raise OptionError(option, text, accepted) from None
    topics = sorted({each for each, _ in found})
    if topics and topic not in topics:
        listed = ", ".join(topics)
        accepted = (
            f"its query reads {listed}, and not {topic}: give the checkpoint of a query that does"
        )
        raise OptionError(option, text, accepted)
    for each in [each for each in found if each[0] != topic]:
        del found[each]  # the query may read other topics, too; ids of topics stay
    return found


def _write_parquet(path: str, batches: pa.RecordBatchReader) -> None:
    """Write a stream to a new file."""
    import pyarrow.parquet as pq

    with (
        new_file(path) as file,
        pq.ParquetWriter(file, batches.schema, compression="zstd") as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)


def _row(found: AuditedPartition) -> dict[str, object]:
    """A partition as JSON."""
    row: dict[str, object] = {}
    for name, value in json_fields(found).items():
        if isinstance(value, tuple):
            n_offsets, n_rows, n_ranges, ranges = value
            row[name] = {
                "offsets": n_offsets,
                "rows": n_rows,
                "rangeCount": n_ranges,
                "ranges": [[*each] for each in ranges],
            }
        else:
            row[name] = value
    return row | {"isComplete": found.is_complete}


def _summary(found: Audit) -> dict[str, object]:
    """The result as JSON."""
    return {
        "rows": found.n_rows,
        "rowsOfOtherTopics": found.n_rows_of_other_topics,
        "rowsWithoutOffset": found.n_rows_without_offset,
        "rowsOfUnknownPartitions": {str(each): n for each, n in found.unknown_partitions.items()},
        "topicsNotAudited": [*found.topics_not_audited],
        "compared": [*found.compared],
        **{name: found.count(name) for name in FAULTS},
        "isComplete": found.is_complete,
    }


def _text(found: Audit) -> str:
    """The result as a table, then the ranges of offsets, then the conclusion."""
    contents = found.compared[2:]
    faults_shown = [each for each in FAULTS if contents or each != "different"]
    heading = ("topic", "partition", "offsets", "records", "rows", *faults_shown)
    rows = []
    for each in found.partitions:
        faulty = [getattr(each, name).n_offsets for name in faults_shown]
        rows.append(
            (
                escape(each.topic),
                str(each.partition),
                f"[{each.start_offset}, {each.end_offset})",
                f"{each.n_records:,}",
                f"{each.n_rows:,}",
                *(f"{n:,}" if n else "-" for n in faulty),
            )
        )
    text = aligned(heading, rows, (False, True, False, *(True,) * (2 + len(faults_shown))))
    for each in found.partitions:
        partition = escape(f"{each.topic}-{each.partition}")
        for name in FINDINGS:
            offsets: FoundOffsets = getattr(each, name)
            if offsets.n_offsets:
                text += f"{partition}: {_WORDS.get(name, name)}: {_ranges(offsets)}\n"
        if each.error:
            text += f"{partition}: cannot be read: {escape(each.error)}\n"
    for unknown, n_rows in found.unknown_partitions.items():
        text += f"{escape(str(unknown))}: the log has no such partition: {counted(rows=n_rows)}\n"
    if found.n_rows_without_offset:
        n = counted(rows=found.n_rows_without_offset)
        text += f"{n} without a topic, a partition or an offset\n"
    if found.n_rows_of_other_topics:
        text += f"{counted(rows=found.n_rows_of_other_topics)} of other topics\n"
    n_records = sum(each.n_records for each in found.partitions)
    counts = {name: found.count(name) for name in FAULTS}
    faults = ", ".join(f"{n:,} {_WORDS.get(name, name)}" for name, n in counts.items() if n)
    read = counted(records=n_records, rows=found.n_rows)
    for topic in found.topics_not_audited:
        text += f"{escape(topic)}: no offset was audited, and the log or the table has some\n"
    verdict = "complete" if found.is_complete else faults or "not complete"
    if found.is_complete and found.n_rows:
        text += f"{_PROVEN}{_what_of_records(contents)}\n"
    return text + f"{read}: {verdict}\n"


def _what_of_records(contents: Sequence[str]) -> str:
    """What is proven of the contents of rows."""
    return f", with the {' and '.join(contents)} of its record" if contents else _NOT_PROVEN


def _ranges(found: FoundOffsets) -> str:
    """The offsets of a finding: their number, and the first ranges."""
    shown = [
        str(start) if end == start + 1 else f"[{start}, {end})" for start, end in found.ranges
    ]
    more = found.n_ranges - len(shown)
    if more:
        shown.append(f"and {counted(ranges=more)} more" if shown else counted(ranges=more))
    return f"{counted(offsets=found.n_offsets)}: {', '.join(shown)}"
