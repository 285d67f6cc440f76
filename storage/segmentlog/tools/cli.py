"""The command ``segmentlog``: its commands, their options, and its exit status.

Exit status: 0 when all is well, 1 when something that was read is damaged or missing, 2 when the
command could not begin: a wrong path or option, a directory that cannot be read.  `recover` ends
with 3 when whole batches were cut off.
"""

import logging
import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from segmentlog.errors import SegmentLogError
from segmentlog.tools.arguments import (
    OF_THE_MACHINE,
    PATHS_HELP,
    READS,
    WRITES,
    IndexInterval,
    Limit,
    Metadata,
    Output,
    OutputFormat,
    Partitions,
    Paths,
    ServerProperties,
    Topics,
    Yes,
    asking,
    examples,
    kafkas_option,
    time_option,
)
from segmentlog.tools.completion import complete_topic
from segmentlog.tools.selection import Selection
from segmentlog.tools.sinks import Format
from segmentlog.tools.text import Encoding, escape
from segmentlog.tools.upkeep_commands import add_upkeep

__all__ = ["app", "main"]

_PROBLEM, _REFUSED, _BATCHES_CUT, _INTERRUPTED, _PIPE_CLOSED = 1, 2, 3, 130, 141


class _Group(TyperGroup):
    """Ends every command the same way: one line for an error, none for a closed pipe."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer has no public name for it
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The text still in the buffer would fail again when Python exits.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except SegmentLogError as error:
            _complain(str(error))
        except OSError as error:
            _complain(f"{error.filename or 'input or output'}: {error.strerror or error}")
        else:
            return result


def _complain(message: str) -> None:
    sys.stderr.write(f"segmentlog: {escape(message)}\n")
    raise typer.Exit(_REFUSED)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Look into Kafka log directories without a broker, and keep them in order. Commands that "
        "write take the broker's lock; the others only read, and are safe beside a running broker."
    ),
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        import segmentlog

        sys.stdout.write(f"segmentlog {segmentlog.__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Say which one.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command(
    rich_help_panel=READS,
    epilog=examples(
        "segmentlog describe /var/lib/kafka",
        "segmentlog describe /data1 /data2 --topic orders",
        "segmentlog describe /var/lib/kafka --json --all | jq 'select(.batches > 1000)'",
        "segmentlog describe /var/lib/kafka --settings --topic orders",
    ),
)
def describe(
    paths: Paths,
    topic: Topics = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
    all_headers: Annotated[
        bool,
        typer.Option("--all", help="Read every batch header: formats, codecs and times of all."),
    ] = False,
    settings: Annotated[
        bool,
        typer.Option("--settings", help="List settings of topics instead, with their sources."),
    ] = False,
    metadata: Metadata = None,
    server_properties: ServerProperties = None,
) -> None:
    """List topics and partitions: offsets, segments, bytes, formats, codecs, times.

    Reads names, indexes and a few batch headers, so it is quick on any size of log. Formats,
    codecs and times are then those of the first and last batches; --all reads every header,
    but no records.
    """
    from segmentlog.tools.describe import describe_paths, write_json, write_table

    if settings:
        from segmentlog.tools.upkeep import write_settings

        write_settings(
            paths, topic or (), as_json=as_json,
            metadata=metadata, server_properties=server_properties,
        )  # fmt: skip
        return
    rows = describe_paths(paths, topic or (), all_headers=all_headers)
    is_good = write_json(rows) if as_json else write_table(rows, all_headers=all_headers)
    if not is_good:
        raise typer.Exit(_PROBLEM)


@app.command(
    rich_help_panel=READS,
    epilog=examples(
        "segmentlog dump /var/lib/kafka/orders-0/00000000000000000000.log --records",
        "segmentlog dump /var/lib/kafka --topic orders --partition 0 --start-offset 1500",
        "segmentlog dump /var/lib/kafka --topic orders --since 2026-03-01 --format json",
        "segmentlog dump /var/lib/kafka --topic orders --records --last 1000 --key order-58",
        "segmentlog dump /backup/orders-0/00000000000000000000.log --records --values base64",
        "segmentlog dump /backup/orders-0 --records --format parquet -o orders.parquet",
        "segmentlog dump /var/lib/kafka/orders-0/00000000000000000000.timeindex",
        "segmentlog dump /var/lib/kafka/replication-offset-checkpoint",
    ),
)
def dump(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help=PATHS_HELP
            + " Or .index, .timeindex, .txnindex, .snapshot; snapshots of KRaft (.checkpoint); "
            "replication-offset-checkpoint and similar, leader-epoch-checkpoint; "
            "partition.metadata, meta.properties.",
        ),
    ],
    topic: Topics = None,
    partition: Partitions = None,
    records: Annotated[bool, typer.Option("--records", help="Records too.")] = False,
    output_format: OutputFormat = Format.TABLE,
    output: Output = None,
    start_offset: Annotated[int | None, typer.Option(help="First offset.", min=0)] = None,
    end_offset: Annotated[int | None, typer.Option(help="Offset to stop before.", min=0)] = None,
    since: Annotated[int | None, time_option("Only records at or after this time.")] = None,
    until: Annotated[int | None, time_option("Only records before this time.")] = None,
    limit: Limit = None,
    last: Annotated[int | None, typer.Option(help="Last N offsets of each log.", min=1)] = None,
    key: Annotated[str | None, typer.Option(help="Only records with this key.")] = None,
    keys: Annotated[Encoding, typer.Option(help="How keys are written.")] = Encoding.TEXT,
    values: Annotated[Encoding, typer.Option(help="How values and headers are.")] = Encoding.TEXT,
    files: Annotated[str | None, kafkas_option("paths stand without an option")] = None,
    print_data_log: Annotated[bool, kafkas_option("it is called --records here")] = False,
) -> None:
    """Show every batch of segment files, and with --records every record.

    Damaged batches are shown with their damage, and the dump continues after them; the exit
    status is then 1. Control records are shown with their meaning. Characters that would move
    a terminal's cursor, or hide or reorder text, are written as escapes. Without --records, a
    range of times uses batch headers: the times of the first record and of the newest one.
    """
    from segmentlog.tools.dump_to import Target, dump_to

    if key is not None and not records:
        raise typer.BadParameter("keys are the records': give --records, too")
    wanted_key = None if key is None else os.fsencode(key)
    bounds = (start_offset, end_offset, since, until)
    selection = Selection.of(*bounds)._replace(last=last, key=wanted_key)
    target = Target(output_format, output, keys, values, limit, records)
    if not dump_to(target, paths, selection, topic or (), partition or ()):
        raise typer.Exit(_PROBLEM)


@app.command(
    rich_help_panel=READS,
    epilog=examples(
        "segmentlog verify /var/lib/kafka",
        "segmentlog verify /backup --topic orders --records --json",
        "segmentlog verify /var/lib/kafka/orders-0 --notes",
        "segmentlog verify /var/lib/kafka --topic payments --producers",
    ),
)
def verify(
    paths: Paths,
    topic: Topics = None,
    partition: Partitions = None,
    records: Annotated[
        bool, typer.Option("--records", help="Inflate and parse the records, too.")
    ] = False,
    producers: Annotated[
        bool,
        typer.Option("--producers", help="Follow the sequences of idempotent producers, too."),
    ] = False,
    notes: Annotated[
        bool, typer.Option("--notes", help="List what is legal but worth knowing, too.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object a line, the last one the summary.")
    ] = False,
) -> None:
    """Read everything and report what does not fit: checksums, indexes, gaps, transactions.

    An error cannot be read, or would mislead a broker; the exit status is then 1. A broker
    repairs a warning when it starts, such as a torn tail. A note is legal: gaps that compaction
    leaves, transactions that are open. Nothing is repaired. A directory that a broker is writing
    to may show findings that are gone a moment later.
    """
    from segmentlog.tools.verify import verify_paths

    is_good = verify_paths(
        paths, topic or (), partition or (),
        with_records=records, with_producers=producers, with_notes=notes, as_json=as_json,
    )  # fmt: skip
    if not is_good:
        raise typer.Exit(_PROBLEM)


@app.command(
    rich_help_panel=WRITES,
    epilog=examples(
        "segmentlog recover /var/lib/kafka --dry-run",
        "segmentlog recover /var/lib/kafka",
    ),
)
def recover(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A log directory.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
    ] = False,
    index_interval_bytes: IndexInterval = 4096,
) -> None:
    """Bring a directory that was not cleanly stopped to where a clean stop would have left it.

    Unfinished commits are finished or undone. Logs are read from their recovery points on and
    cut at the first bad batch, and their indexes, snapshots and leader epochs are built again,
    as a broker does when it starts. Bytes that are cut off stay beside the log in .broken files.
    Nothing may be running on the directory. The exit status is 1 when a log could not be
    recovered, and 3 when whole batches after a damaged one were cut off: more than a torn tail.
    With --dry-run it is 3 when they would be.
    """
    from segmentlog.tools.recover import recover_directory

    recovered = recover_directory(
        directory, sys.stdout.write, index_interval_bytes, dry_run=dry_run
    )
    if not recovered.is_whole:
        raise typer.Exit(_PROBLEM)
    if recovered.has_cut_batches:
        raise typer.Exit(_BATCHES_CUT)


@app.command(
    rich_help_panel=WRITES,
    epilog=examples(
        "segmentlog reindex /var/lib/kafka/orders-0",
        "segmentlog reindex /backup --index-interval-bytes 1024",
    ),
)
def reindex(paths: Paths, index_interval_bytes: IndexInterval = 4096) -> None:
    """Build .index, .timeindex and .txnindex files again, as a broker's recovery would.

    Batch headers are read, but no records, and each file is replaced in one step. Files that
    were right stay. Nothing may be running on the directory. The exit status is 1 when a segment
    is too damaged to be indexed.
    """
    from segmentlog.tools.reindex import reindex_paths

    if not reindex_paths(paths, sys.stdout.write, index_interval_bytes):
        raise typer.Exit(_PROBLEM)


@app.command(
    "delete-topic",
    rich_help_panel=WRITES,
    epilog=examples(
        "segmentlog delete-topic /data/logs orders --dry-run",
        "segmentlog delete-topic /data/logs orders",
    ),
)
def delete_topic(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A log directory.")],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Its name.", autocompletion=complete_topic)
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be deleted, and change nothing.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a topic: its partitions, its entries in checkpoints, versions of numbered writes.

    The topic is deleted as a whole or not at all. Nothing may be running on the directory. A
    broker whose cluster knows the topic makes it again, empty, when it starts: delete it there
    as well.
    """
    from segmentlog.tools.delete_topic import delete_and_tell

    delete_and_tell(directory, topic, sys.stdout.write, dry_run=dry_run, ask=asking(yes=yes))


add_upkeep(app)


@app.command(
    rich_help_panel=OF_THE_MACHINE,
    epilog=examples(
        "segmentlog doctor",
        "PYSPARK_PYTHON=/opt/venv/bin/python segmentlog doctor",
    ),
)
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
) -> None:
    """Check this machine: versions, Java, the kernel cache, and whether Spark finds the format.

    Each line is ok, a problem with what to do about it, or skipped where something optional is
    not installed. The exit status is 1 when there is a problem.
    """
    from segmentlog.tools.doctor import check_all

    if not check_all(sys.stdout.write, as_json=as_json):
        raise typer.Exit(_PROBLEM)


@app.command(
    rich_help_panel=OF_THE_MACHINE,
    epilog=examples(
        "segmentlog warmup",
        "NUMBA_CACHE_DIR=/var/cache/segmentlog segmentlog warmup",
    ),
)
def warmup() -> None:
    """Warm the cache of compiled kernels, so that the first query does not wait for the compiler.

    It takes up to a minute. Run it once for each machine, user and version of Python; in an
    image, run it as the user that will read. The kernels are kept in segmentlog, below the
    user's cache directory (XDG_CACHE_HOME, or ~/.cache) or below NUMBA_CACHE_DIR, which nobody
    else may write to.
    """
    from segmentlog.tools.progress import progress
    from segmentlog.tools.warmup import compile_kernels, names_of_kernels

    with progress("compiling kernels", len(names_of_kernels()), is_bytes=False) as bar:
        for line in compile_kernels(bar.advance):
            bar.write(line)


class _WarningHandler(logging.Handler):
    """Warnings of the library, one line each on standard error, safe to print."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"segmentlog: {escape(record.getMessage())}\n")


def main() -> None:
    """Run the command line and exit."""
    logging.getLogger("segmentlog").addHandler(_WarningHandler(logging.WARNING))
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a locale without Unicode still gets every line
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app(prog_name="segmentlog")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
