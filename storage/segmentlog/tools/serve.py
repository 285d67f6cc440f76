"""``segmentlog serve``: logs for Kafka's clients, only to read, until it is interrupted."""

import contextlib
import logging
import os
import resource
import signal
import sys
import time
from typing import Annotated, Any

import typer

import segmentlog
from segmentlog.model import ReadUpTo
from segmentlog.serving.open_server import ServeOptions
from segmentlog.tools import arguments
from segmentlog.tools.arguments import command
from segmentlog.tools.output import complain, counted

_OPEN_FILES = 10_000

#: A signal that comes after Python has looked for one, and before it sleeps, waits as long.
_SLEEP_SECONDS = 0.2
_ENDS = {ReadUpTo.HIGH_WATERMARK: "their high watermarks", ReadUpTo.LOG_END: "their log ends"}


@command(
    "segmentlog serve /var/lib/kafka",
    "segmentlog serve /disks/b1 /disks/b2 /disks/b3 --bind 127.0.0.1:0",
    "segmentlog serve s3://bucket/logs --follow --topic 'orders*'",
)
@arguments.tiered
@arguments.flags(
    ServeOptions,
    "bind",
    "advertise",
    "topic",
    "internal",
    "renamed",
    "follow",
    "read_up_to",
    "on_corrupt_batch",
    "offsets",
    "tls_certificate",
    "tls_key",
    "users",
    bind="127.0.0.1:9092",
)
def serve(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="DIR", help=f"{arguments.PATHS_HELP} Several are served as one."),
    ] = None,
    *,
    given: dict[str, Any],
    hash_user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only print a line for --users; standard input has the password."
        ),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Name each request on standard error.")
    ] = False,
    tier: arguments.Tier,
) -> None:
    """Serve logs to every Kafka client, only to read: no broker, no lock, no change.

    The first line names the address and what is served. Clients that would write get an error at
    once. Groups work; what they commit ends with the command, unless --offsets keeps it. Damage is
    an error of the client that meets it, and is named on standard error. Ctrl-C ends the command.
    """
    if hash_user is not None:
        from segmentlog.serving.users import hashed_user

        password = sys.stdin.readline().rstrip("\r\n")
        sys.stdout.write(f"{hashed_user(hash_user, password)}\n")
        return
    if access_log:
        _show_requests()
    _open_many_files()
    ended: list[int] = []
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with segmentlog.serve(*(paths or ()), **given, **tier._asdict()) as server:
            # What a handler raises is lost if Python was about to run a finalizer.
            for each in before:
                signal.signal(each, lambda number, _: ended.append(number))
            topics = server.topics
            n = counted(topics=len(topics), partitions=sum(map(len, topics.values())))
            where = ", ".join([*(paths or ()), *filter(None, [tier.remote_storage])])
            if server.bootstrap_servers != server.address:
                where += f" as {server.bootstrap_servers}"
            sys.stdout.write(
                f"{server.address} serves {n} of {where}, up to {_ENDS[given['read_up_to']]}\n"
            )
            sys.stdout.flush()
            if given["offsets"] is None:
                complain("offsets that groups commit end with this command; --offsets keeps them")
            while not ended:
                time.sleep(_SLEEP_SECONDS)
        # Python would wait at its end for a thread that waits for a file system.  Nothing is lost:
        # offsets of groups are written when they are committed, and the first line is flushed.
        if server._running.hangs():
            sys.stderr.flush()
            os._exit(0)
    except KeyboardInterrupt:  # before it served
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_requests() -> None:
    """Write the log of requests to standard error."""
    log = logging.getLogger("segmentlog.serving.access")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _open_many_files() -> None:
    """Let the process have as many connections and open files as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS allows fewer than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _OPEN_FILES)), hard))
