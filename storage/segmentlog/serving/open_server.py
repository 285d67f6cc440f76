"""``segmentlog.serve``: logs for Kafka's clients, without a broker."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Self, Unpack

from segmentlog.arguments import class_of_one_dialect, takes, texts
from segmentlog.declared import Declared
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.model import OnCorruptBatch, ReadUpTo
from segmentlog.read_options import READ_OPTIONS, TierOptions
from segmentlog.store.system_errors import storage_errors

if TYPE_CHECKING:
    from segmentlog.serving.server import Running

_ADDRESS, _FILE = "HOST:PORT", "FILE"

_INSTALL = "the package kio, which has Kafka's protocol: pip install 'pyspark-segmentlog[serve]'"


@class_of_one_dialect()
class Server:
    """A running server; a context that ends it.

    `segmentlog.serve` makes it.
    """

    def __init__(self, running: "Running") -> None:
        self._running = running

    def __repr__(self) -> str:
        return f"Server({self.bootstrap_servers!r}, topics={len(self.topics)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Host and port at which it listens."""
        return str(self._running.address)

    @property
    def bootstrap_servers(self) -> str:
        """Host and port for the setting ``bootstrap.servers`` of clients."""
        return str(self._running.advertised)

    @property
    def topics(self) -> dict[str, list[int]]:
        """Topics that are served now, and their partitions that are here."""
        return {topic: sorted(each) for topic, each in self._running.view.topics.items()}

    def close(self) -> None:
        """End the server and all connections at once; twice is not an error."""
        self._running.close()


class ServeOptions(TierOptions, total=False):
    """Those of `segmentlog.serve`.

    Parameters
    ----------
    bind : host and port; port 0 takes a free one.  Other machines reach the server only with
        {tls_certificate} and {users}.
    advertise : host and port that clients are told, if they cannot reach {bind}, as from
        containers.
    topic : only topics of these names; ``*`` and ``?`` stand for any characters and for one.
    internal : whether brokers' own topics are served, too; a pattern that names one serves it.
    renamed : whether partitions that a broker has renamed are served under another name:
        ``<topic>.deleted``, ``<topic>.stray`` or ``<topic>.future``.
    follow : whether records that are written meanwhile are served.
    on_corrupt_batch : whether batches are checked before they are sent: ``fail`` answers a damaged
        one with an error, ``skip`` leaves it out.  By default, as with a broker, clients check.
    offsets : a file that keeps the offsets that groups commit; by default, they end with the
        server.
    tls_certificate : a PEM file, which may have the key, too: clients use SSL or SASL_SSL.
    tls_key : a PEM file with the key, if it is in another file.
    users : a file of names and hashed passwords, for SASL PLAIN.
    """

    bind: Annotated[str, Declared(default="127.0.0.1:0", metavar=_ADDRESS)]
    advertise: Annotated[str | None, Declared(metavar=_ADDRESS)]
    topic: Annotated[
        str | Sequence[str],
        Declared(
            default=(),
            metavar="PATTERN",
            help="Only topics of this name; * and ? are wildcards. May be repeated.",
        ),
    ]
    internal: Annotated[bool, Declared(help="Also brokers' own topics, such as their offsets.")]
    renamed: Annotated[
        bool,
        Declared(
            flags="--all", help="Also partitions that a broker has renamed, as orders.deleted."
        ),
    ]
    follow: Annotated[bool, Declared(help="Serve records that are written meanwhile, too.")]
    read_up_to: Annotated[ReadUpTo | str, READ_OPTIONS["read_up_to"]]
    on_corrupt_batch: Annotated[
        OnCorruptBatch | str | None,
        Declared(
            help="Check each batch first: fail answers a damaged one with an error, skip leaves "
            "it out. By default clients check."
        ),
    ]
    offsets: Annotated[str | os.PathLike[str] | None, Declared(metavar=_FILE)]
    tls_certificate: Annotated[str | os.PathLike[str] | None, Declared(metavar=_FILE)]
    tls_key: Annotated[str | os.PathLike[str] | None, Declared(metavar=_FILE)]
    users: Annotated[str | os.PathLike[str] | None, Declared(metavar=_FILE)]


@takes(ServeOptions)
@storage_errors()
def serve(*path: str | os.PathLike[str], **options: Unpack[ServeOptions]) -> Server:
    """Serve logs to every Kafka client, only for reading; no lock is taken, no file is changed.

    ::

        with segmentlog.serve("/var/lib/kafka") as server:
            consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, …})

    Parameters
    ----------
    path : log directories, or a log in an object store; several directories of a cluster are
        served as one, each partition from its best copy.
    **options : those of `ServeOptions`.

    Raises
    ------
    LogDirectoryError, StorageError
        If a path is not a log directory, or a file cannot be read.
    OptionError
        If an option is not accepted, an address cannot be bound, or other machines would reach
        the server without TLS and users.
    """
    if find_spec("kio") is None:
        place = os.fspath(path[0]) if path else str(options["remote_storage"] or "")
        raise LogDirectoryError(place, f"to serve it needs {_INSTALL}")
    from segmentlog.serving.asking import committed_on_disk
    from segmentlog.serving.server import Address, Running
    from segmentlog.serving.users import read_users, tls_context
    from segmentlog.serving.view import Scope, View, open_served

    certificate, key, users = options["tls_certificate"], options["tls_key"], options["users"]
    address = Address.parse("bind", options["bind"])
    if not address.is_loopback and (certificate is None or users is None):
        accepted = (
            "other machines would reach it, and read everything: give tls_certificate and a file "
            "of users (users, --users), or bind 127.0.0.1"
        )
        raise OptionError("bind", options["bind"], accepted)
    if key is not None and certificate is None:
        raise OptionError("tls_key", os.fspath(key), "it belongs to tls_certificate")
    scope = Scope(
        texts("topic", options["topic"], "give a pattern of names, or several patterns"),
        options["internal"],
        options["renamed"],
        ReadUpTo(options["read_up_to"]),
        None
        if options["on_corrupt_batch"] is None
        else OnCorruptBatch(options["on_corrupt_batch"]),
    )
    directory = open_served(
        [os.fspath(each) for each in path],
        options["remote_storage"],
        options["remote_storage_layout"],
        options["remote_storage_key_file"],
    )
    advertise, offsets = options["advertise"], options["offsets"]
    running = Running(
        View(directory, scope),
        address,
        advertise=None if advertise is None else Address.parse("advertise", advertise),
        follows=options["follow"],
        offsets="" if offsets is None else os.fspath(offsets),
        on_disk=committed_on_disk,
        tls=None
        if certificate is None
        else tls_context(os.fspath(certificate), None if key is None else os.fspath(key)),
        users=None if users is None else read_users(os.fspath(users)),
    )
    return Server(running)
