"""``segmentlog.serve``: logs for Kafka's clients, without a broker."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from segmentlog.arguments import class_of_one_dialect, one_dialect, one_of
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.model import OnCorruptBatch, ReadUpTo, RemoteStorageLayout
from segmentlog.store.system_errors import storage_errors

if TYPE_CHECKING:
    from segmentlog.serving.server import Running

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


@one_dialect()
@storage_errors()
def serve(
    *path: str | os.PathLike[str],
    bind: str = "127.0.0.1:0",
    advertise: str | None = None,
    topic: str | Sequence[str] = (),
    internal: bool = False,
    renamed: bool = False,
    follow: bool = False,
    read_up_to: ReadUpTo | str = ReadUpTo.HIGH_WATERMARK,
    on_corrupt_batch: OnCorruptBatch | str | None = None,
    offsets: str | os.PathLike[str] | None = None,
    tls_certificate: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    users: str | os.PathLike[str] | None = None,
    remote_storage: str | os.PathLike[str] | None = None,
    remote_storage_layout: RemoteStorageLayout | str | None = None,
    remote_storage_key_file: str | os.PathLike[str] | None = None,
) -> Server:
    """Serve logs to every Kafka client, only for reading; no lock is taken, no file is changed.

    ::

        with segmentlog.serve("/var/lib/kafka") as server:
            consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, …})

    Parameters
    ----------
    path : log directories, or a log in an object store; several directories of a cluster are
        served as one, each partition from its best copy.
    bind : host and port; port 0 takes a free one.  Other machines reach the server only with
        `tls_certificate` and `users`.
    advertise : host and port that clients are told, if they cannot reach `bind`, as from
        containers.
    topic : only topics of these names; ``*`` and ``?`` stand for any characters and for one.
    internal : whether brokers' own topics are served, too; a pattern that names one serves it.
    renamed : whether partitions that a broker has renamed are served under another name:
        ``<topic>.deleted``, ``<topic>.stray`` or ``<topic>.future``.
    follow : whether records that are written meanwhile are served.
    read_up_to : where the newest data ends.
    on_corrupt_batch : whether batches are checked before they are sent: ``fail`` answers a damaged
        one with an error, ``skip`` leaves it out.  By default, as with a broker, clients check.
    offsets : a file that keeps the offsets that groups commit; by default, they end with the
        server.
    tls_certificate, tls_key : PEM files; the key may be in the first.
    users : a file of names and hashed passwords, for SASL PLAIN.
    remote_storage, remote_storage_layout, remote_storage_key_file : see `open_log_dir`.

    Raises
    ------
    LogDirectoryError, StorageError
        If a path is not a log directory, or a file cannot be read.
    OptionError
        If an option is not accepted, an address cannot be bound, or other machines would reach
        the server without TLS and users.
    """
    if find_spec("kio") is None:
        place = os.fspath(path[0]) if path else str(remote_storage or "")
        raise LogDirectoryError(place, f"to serve it needs {_INSTALL}")
    from segmentlog.serving.asking import committed_on_disk
    from segmentlog.serving.server import Address, Running
    from segmentlog.serving.users import read_users, tls_context
    from segmentlog.serving.view import Scope, View, open_served

    address = Address.parse("bind", bind)
    if not address.is_loopback and (tls_certificate is None or users is None):
        accepted = (
            "other machines would reach it, and read everything: give tls_certificate and a file "
            "of users (users, --users), or bind 127.0.0.1"
        )
        raise OptionError("bind", bind, accepted)
    if tls_key is not None and tls_certificate is None:
        raise OptionError("tls_key", os.fspath(tls_key), "it belongs to tls_certificate")
    scope = Scope(
        (topic,) if isinstance(topic, str) else tuple(topic),
        internal,
        renamed,
        one_of("read_up_to", read_up_to, ReadUpTo),
        None if on_corrupt_batch is None
        else one_of("on_corrupt_batch", on_corrupt_batch, OnCorruptBatch),
    )  # fmt: skip
    directory = open_served(
        [os.fspath(each) for each in path], remote_storage, remote_storage_layout,
        remote_storage_key_file,
    )  # fmt: skip
    key: Any = None if tls_key is None else os.fspath(tls_key)
    running = Running(
        View(directory, scope),
        address,
        advertise=None if advertise is None else Address.parse("advertise", advertise),
        follows=follow,
        offsets="" if offsets is None else os.fspath(offsets),
        on_disk=committed_on_disk,
        tls=None if tls_certificate is None else tls_context(os.fspath(tls_certificate), key),
        users=None if users is None else read_users(os.fspath(users)),
    )
    return Server(running)
