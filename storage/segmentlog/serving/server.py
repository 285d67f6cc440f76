"""The server: its thread, its connections, and what is served while it changes.

All connections share one loop in one thread; what reads files runs in others.  A connection sends
one answer before it reads the next request, as a broker does, so a slow reader holds up nobody
else, and holds no more than one answer.  Local files are sent by the system (``sendfile``).
"""

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from segmentlog.errors import OptionError
from segmentlog.serving.bounds import ServerBounds
from segmentlog.serving.connection import Connection, access
from segmentlog.serving.groups import Coordinator
from segmentlog.serving.users import Users
from segmentlog.serving.view import View
from segmentlog.serving.wire import MalformedRequestError

logger = logging.getLogger(__name__)

_R = TypeVar("_R")

_MOST_CONNECTIONS = 1_000
_READ_AHEAD_BYTES = 4 << 10  # of a request before it is let in
_RECEIVED_BYTES = 16 << 10  # by the system before it is read
#: Of an answer that a client on this machine has not read yet, as of a broker
#: (socket.send.buffer.bytes).  The system takes 4 MB, which leave the processor's cache meanwhile.
_SENT_BYTES = 100 << 10
_HANDSHAKE_SECONDS = 10.0
_THREADS = 8  # for each directory that may hang, and for all others together
_EXPIRE_SECONDS = 0.2
_END_SECONDS = 1.0
_MOST_PORT = 65_535
_REFRESH_SECONDS, _REMOTE_REFRESH_SECONDS = 0.2, 2.0
_MOST_REFRESH_SECONDS = 3.0  # that the first client waits for it


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, option: str, text: str) -> Self:
        """``HOST:PORT``, or ``[IPV6]:PORT``; raises `OptionError`."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        is_number = port.isascii() and port.isdecimal()
        if not colon or not host or not is_number or int(port) > _MOST_PORT:
            raise OptionError(option, text, "give HOST:PORT, such as 127.0.0.1:9092")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False


class Running:
    """A server that runs in a thread of its own until `close`."""

    def __init__(
        self,
        view: View,
        bind: Address,
        *,
        advertise: Address | None,
        follows: bool,
        offsets: str,
        on_disk: Callable[[View, str], Any],
        tls: ssl.SSLContext | None,
        users: Users | None,
    ) -> None:
        self.view = view
        self.node_id = view.directory.node_id or 0
        self._tls, self._users = tls, users
        self._tasks: set[asyncio.Task[None]] = set()  # one for each connection
        self._connections: set[Connection] = set()  # of those that have shaken hands
        self._follows = follows
        #: By the directory that may hang, and whose files they read; others by "".
        self._threads: dict[str, concurrent.futures.ThreadPoolExecutor] = {}
        self._logins = concurrent.futures.ThreadPoolExecutor(1, "segmentlog-login")
        self._socket = _listening(bind)
        bound = Address(bind.host, self._socket.getsockname()[1])
        self.address = bound
        self.advertised = bound if advertise is None else advertise
        self.host, self.port = self.advertised
        self._thread_name = f"segmentlog-serve-{bound.port}-"
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._bounds = ServerBounds()
        try:
            self._coordinator = Coordinator(
                offsets,
                lambda group: on_disk(self.view, group),
                lambda topic, partition: partition in self.view.topics.get(topic, ()),
            )
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="segmentlog-serve", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server and all connections at once; twice is not an error."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(RuntimeError):  # it has just ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def hangs(self) -> bool:
        """Whether threads still wait for a file system after the end, and Python for them."""
        until = time.monotonic() + _END_SECONDS
        threads = [
            each for each in threading.enumerate() if each.name.startswith(self._thread_name)
        ]
        for each in threads:
            each.join(max(until - time.monotonic(), 0))
        return any(each.is_alive() for each in threads)

    def _release(self) -> None:
        self._socket.close()
        for threads in (*self._threads.values(), self._logins):
            threads.shutdown(wait=False, cancel_futures=True)
        self._loop.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._release()

    async def _serve(self) -> None:
        running = [asyncio.create_task(each) for each in (self._accept(), self._expire())]
        if self._follows:
            running.append(asyncio.create_task(self._follow()))
        await self._stop.wait()
        running += [*self._tasks, *filter(None, [self._refreshing])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _accept(self) -> None:
        """Let clients in; those that have not said a word yet, or shake hands, are counted."""
        while True:
            try:
                sock, peer = await self._loop.sock_accept(self._socket)
            except OSError as error:  # too many files are open
                logger.warning("a connection is not accepted: %s", error)
                await asyncio.sleep(1)
                continue
            if len(self._tasks) >= _MOST_CONNECTIONS:
                logger.warning("a connection is refused: there are %d", len(self._tasks))
                sock.close()
                continue
            address = Address(str(peer[0]), peer[1])
            task = asyncio.create_task(self._connected(sock, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            self._coordinator.expire()
            now = time.monotonic()
            for each in self._connections:
                each.end_if_gone(now)

    async def _follow(self) -> None:
        """Look for changes while somebody is connected."""
        is_remote = any("://" in each for each in self.view.directory.paths)
        least, took = _REMOTE_REFRESH_SECONDS if is_remote else _REFRESH_SECONDS, 0.0
        while True:
            await asyncio.sleep(max(least, took))  # half of a core for a huge directory
            if self._connections:
                began = time.monotonic()
                await asyncio.wait([self._refreshed()])
                took = time.monotonic() - began

    def _refreshed(self) -> "asyncio.Task[None]":
        """The look for changes that is under way, or a new one."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        return self._refreshing

    async def _refresh(self) -> None:
        try:
            newer = await self.look_up(self.view.refreshed)
        except Exception as error:  # noqa: BLE001 - the next look may succeed
            logger.warning("what is served stays as it was: %s", error)
            return
        if newer is not self.view:
            self.view = newer
            self._changed.set()
            self._changed = asyncio.Event()

    async def look_up(
        self, function: Callable[..., _R], *arguments: object, place: str = ""
    ) -> _R:
        """Call a function that reads files, in a thread; see `Broker`."""
        threads = self._threads.get(place)
        if threads is None:
            threads = concurrent.futures.ThreadPoolExecutor(_THREADS, self._thread_name)
            self._threads[place] = threads
        # The loop's own `run_in_executor` chains two futures, and takes three times as long.
        answer: asyncio.Future[_R] = self._loop.create_future()
        threads.submit(self._call, answer, function, arguments)
        return await answer

    def _call(
        self, answer: "asyncio.Future[_R]", function: Callable[..., _R], arguments: Sequence[Any]
    ) -> None:
        """Call a function in this thread, and let the loop have its result."""
        if answer.cancelled():
            return
        settled: Callable[[], None]
        try:
            settled = partial(answer.set_result, function(*arguments))
        except BaseException as error:  # noqa: BLE001 - who waits gets it
            settled = partial(answer.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(lambda: None if answer.done() else settled())

    def soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function once what is ready has been sent."""
        self._loop.call_soon(function, *arguments)

    async def log_in(self, function: Callable[..., _R], *arguments: object) -> _R:
        """Call a function that hashes a password; strangers keep no thread from readers."""
        return await self._loop.run_in_executor(self._logins, function, *arguments)

    async def wait_for_change(self, view: View, seconds: float) -> None:
        """Wait until something else than `view` is served, or so long."""
        if self.view is view:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)

    async def _connected(self, sock: socket.socket, peer: Address) -> None:
        connection = writer = None
        try:
            reader, writer = await self._streams(sock, peer)
            if self._follows and not self._connections:
                # One that is under way may have looked too early.
                is_under_way = self._refreshing is not None and not self._refreshing.done()
                for _ in range(1 + is_under_way):
                    await asyncio.wait([self._refreshed()], timeout=_MOST_REFRESH_SECONDS)
            connection = Connection(
                self,
                self._coordinator,
                self._bounds,
                self._users,
                reader,
                writer,
                peer,
                copies=self._tls is not None,
            )
            self._connections.add(connection)
            await connection.serve()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client is gone or too slow, or the server ends
        except MalformedRequestError as error:
            logger.warning("%s: %s; the connection is closed", peer, error)
        finally:
            self._connections -= {connection}
            if writer is None:
                sock.close()
            else:
                writer.transport.abort()
            access.info("%s closed", peer)

    async def _streams(
        self, sock: socket.socket, peer: Address
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """What a client says, and what it is told, once it has shaken hands."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if peer.is_loopback:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_BYTES)
        reader = asyncio.StreamReader(_READ_AHEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol,
            sock,
            ssl=self._tls,
            ssl_handshake_timeout=_HANDSHAKE_SECONDS if self._tls else None,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)


def _listening(bind: Address) -> socket.socket:
    """A socket that listens at an address; raises `OptionError` if it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.setblocking(False)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
            found.bind(address)
            found.listen(128)
        except OSError:
            found.close()
            raise
    except OSError as error:
        accepted = f"it cannot be bound: {error.strerror or error}; port 0 takes a free one"
        raise OptionError("bind", str(bind), accepted) from error
    return found
