"""``segmentlog sweep``: remove the objects of a log in an object store that nobody needs."""

import sys
from typing import Annotated

import typer

import segmentlog
from segmentlog.tools.arguments import OF_STORES, AsJson, command
from segmentlog.tools.output import counted, write_json
from segmentlog.tools.text import escape


@command(
    OF_STORES,
    "segmentlog sweep s3://bucket/logs --dry-run",
    "segmentlog sweep s3://bucket/logs --longest-job-days 2",
)
def sweep(
    url: Annotated[str, typer.Argument(metavar="URL", help="A log in an object store.")],
    longest_job_days: Annotated[
        float, typer.Option(help="A job that has not committed after these days is ended.", min=0)
    ] = 7.0,
    longest_read_days: Annotated[
        float, typer.Option(help="Days for which objects of deleted records stay.", min=0)
    ] = 1.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the objects of a log in an object store that no record lies in.

    These are objects of failed jobs and lost attempts of tasks, and of records that were deleted.
    Writers and readers may be at work. All records of the log stay.
    """
    done = segmentlog.sweep(
        url, longest_job_days=longest_job_days, longest_read_days=longest_read_days,
        dry_run=dry_run,
    )  # fmt: skip
    if as_json:
        row = {"keys": done.keys, "bytes": done.n_bytes, "retired": done.retired}
        write_json({**row, "dryRun": dry_run})
        return
    for key in done.keys:
        sys.stdout.write(f"{escape(key)}\n")
    size = counted(objects=len(done.keys), bytes=done.n_bytes)
    ended = counted(jobs=len(done.retired))
    verb = "would remove" if dry_run else "removed"
    sys.stdout.write(f"{verb} {size}; {ended} ended\n")
