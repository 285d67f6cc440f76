"""The log directories that stand for Kafka's servers, as long as `as_kafka` is in effect."""

import tempfile
import uuid
from pathlib import Path
from typing import Protocol

from pyspark_segmentlog import other_clients
from pyspark_segmentlog.testing.kafka_options import SERVERS
from segmentlog.errors import OptionError


class Servers(Protocol):
    """Log directories by the names of servers."""

    servers: dict[str, str]


BEGUN: list[Servers] = []  # the last one has precedence

#: The names of the servers that are known, for functions of jobs in other processes.
TOLD = Path(tempfile.gettempdir(), f"segmentlog-servers-{uuid.uuid4().hex}")


def found_directory(servers: str) -> str | None:
    """The directory that stands for one of some servers, or None."""
    names = other_clients.names_of(servers)
    named = ((begun, name) for begun in reversed(BEGUN) for name in names)
    return next((begun.servers[name] for begun, name in named if name in begun.servers), None)


def tell_servers() -> None:
    """Tell the functions of jobs in other processes which servers are known now."""
    names = {name for begun in BEGUN for name in begun.servers}
    TOLD.unlink(missing_ok=True)
    if names:
        new = Path(f"{TOLD}.new")
        new.write_text("\n".join(names), encoding="utf-8")
        new.replace(TOLD)


def directory_of(servers: str) -> str:
    """The directory that stands for the servers of a job."""
    found = found_directory(servers)
    if found is not None:
        return found
    known = sorted({name for begun in BEGUN for name in begun.servers})
    accepted = f"as_kafka has {', '.join(known)}" if known else "as_kafka has no servers"
    raise OptionError(SERVERS, servers, accepted)
