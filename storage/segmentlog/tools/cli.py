"""The command ``segmentlog``: its commands, in the order of its help, and its exit status.

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
from segmentlog.model import INDEX_INTERVAL_BYTES
from segmentlog.recovery.steps import RecoveryKind
from segmentlog.tools.arguments import (
    PROBLEM,
    READS,
    WRITES,
    AsJson,
    Directory,
    IndexInterval,
    Partitions,
    Paths,
    PathsOrTier,
    RemoteKeyFile,
    RemoteLayout,
    RemoteStorage,
    Topics,
    command,
    with_tier,
)
from segmentlog.tools.cat import cat
from segmentlog.tools.compare import compare
from segmentlog.tools.describe import describe
from segmentlog.tools.doctor import doctor
from segmentlog.tools.dump import dump
from segmentlog.tools.erase import erase
from segmentlog.tools.few_bytes import begin_program
from segmentlog.tools.grep import grep
from segmentlog.tools.kafka_tables import cluster, groups, schemas, table, transactions
from segmentlog.tools.mirror import mirror
from segmentlog.tools.offsets import offsets
from segmentlog.tools.placement import placement
from segmentlog.tools.produce import produce
from segmentlog.tools.replicas import replicas
from segmentlog.tools.restore import restore
from segmentlog.tools.text import escape
from segmentlog.tools.topics import topics
from segmentlog.tools.upkeep import compact, configure, delete_records, delete_topic, retain
from segmentlog.tools.warmup import warmup

__all__ = ["app", "main"]

_REFUSED, _BATCHES_CUT, _INTERRUPTED, _PIPE_CLOSED = 2, 3, 130, 141


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
    help="""Look into Kafka log directories without a broker, and keep them in order.

    - what is here:  `segmentlog topics /var/lib/kafka`

    - find a record:  `segmentlog grep order-58 /var/lib/kafka`

    - get it back:  `segmentlog cat /var/lib/kafka payments -p 0 -o 58 -c 1`

    Commands that write take the broker's lock. All other commands only read, and are safe beside a
    running broker.
    """,
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
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options of the command itself."""


@command(
    READS,
    "segmentlog verify /var/lib/kafka",
    "segmentlog verify /backup --topic orders --records --json",
    "segmentlog verify /var/lib/kafka/orders-0 --notes",
    "segmentlog verify /var/lib/kafka --topic payments --producers",
    "segmentlog verify /var/lib/kafka --remote-storage s3://tier/prefix/",
)
def verify(
    paths: PathsOrTier = None,
    topic: Topics = None,
    partition: Partitions = None,
    records: Annotated[
        bool, typer.Option("--records", help="Also decompress and parse the records.")
    ] = False,
    producers: Annotated[
        bool,
        typer.Option("--producers", help="Also check the sequences of idempotent producers."),
    ] = False,
    notes: Annotated[
        bool, typer.Option("--notes", help="Also list findings that are legal but worth knowing.")
    ] = False,
    as_json: AsJson = False,
    remote_storage: RemoteStorage = None,
    remote_storage_layout: RemoteLayout = None,
    remote_storage_key_file: RemoteKeyFile = None,
) -> None:
    """Read everything and report what does not fit: checksums, indexes, gaps, transactions.

    An error is damage that cannot be read or would mislead a broker; the exit status is then 1.  A
    warning, such as a torn tail, is repaired by a broker when it starts.  A note is legal, such as
    a gap that compaction left or an open transaction.  The command repairs nothing.  While a
    broker writes to the directory, findings may appear and be gone a moment later.

    With --remote-storage, all segments of the tier are read, and compared with the broker's list
    of them (__remote_log_metadata), if the directory has it, and with the local segments.
    """
    from segmentlog.tools.verify import verify_paths

    tier = remote_storage, remote_storage_layout, remote_storage_key_file
    is_good = verify_paths(
        with_tier(paths, *tier, fail_on_data_loss=False), topic or (), partition or (),
        with_records=records, with_producers=producers, with_notes=notes, as_json=as_json,
    )  # fmt: skip
    if not is_good:
        raise typer.Exit(PROBLEM)


@command(
    WRITES,
    "segmentlog recover /var/lib/kafka --dry-run",
    "segmentlog recover /var/lib/kafka",
)
def recover(
    directory: Directory,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")
    ] = False,
    index_interval_bytes: IndexInterval = INDEX_INTERVAL_BYTES,
    as_json: AsJson = False,
) -> None:
    """Bring a directory that was not cleanly stopped to the state after a clean stop.

    Unfinished commits are finished or undone. Logs are read from their recovery points on and cut
    at the first bad batch, and their indexes, snapshots and leader epochs are built again, as a
    broker does when it starts. Bytes that are cut off stay beside the log in .broken files.
    Nothing may be running on the directory. The exit status is 1 when a log could not be
    recovered, and 3 when whole batches after a damaged one were cut off: more than a torn tail.
    With --dry-run, it is 3 when such batches would be cut off.
    """
    from segmentlog.tools.recover import recover_directory

    steps = recover_directory(directory, index_interval_bytes, dry_run=dry_run, as_json=as_json)
    if any(step.kind is RecoveryKind.LOG_FAILED for step in steps):
        raise typer.Exit(PROBLEM)
    if any(step.has_lost_batches for step in steps):
        raise typer.Exit(_BATCHES_CUT)


@command(
    WRITES,
    "segmentlog reindex /var/lib/kafka/orders-0",
    "segmentlog reindex /backup --index-interval-bytes 1024",
)
def reindex(
    paths: Paths,
    index_interval_bytes: IndexInterval = INDEX_INTERVAL_BYTES,
    as_json: AsJson = False,
) -> None:
    """Build .index, .timeindex and .txnindex files again, as a broker's recovery would.

    Batch headers are read, but no records, and each file is replaced in one step. Files that are
    already right are not rewritten. Nothing may be running on the directory. The exit status is 1
    when a segment is too damaged to be indexed.
    """
    from segmentlog.tools.recover import reindex_paths

    if not reindex_paths(paths, index_interval_bytes, as_json=as_json):
        raise typer.Exit(PROBLEM)


for _each in (
    topics, describe, grep, cat, dump, offsets, groups, transactions, cluster, schemas, table,
    replicas, compare, verify, recover, reindex, delete_topic, retain, compact, delete_records,
    erase, produce, configure, mirror, placement, restore, doctor, warmup,
):  # fmt: skip
    _each.add_to(app)


class _WarningHandler(logging.Handler):
    """Warnings of the library, one line each on standard error, safe to print."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"segmentlog: {escape(record.getMessage())}\n")


def main() -> None:
    """Run the command line and exit."""
    begin_program()
    logging.getLogger("segmentlog").addHandler(_WarningHandler(logging.WARNING))
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a locale without Unicode still gets every line
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app(prog_name="segmentlog")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
