"""The server: connections, their requests one after the other, and the bounds of both.

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
from typing import Any, NamedTuple, Self, TypeVar

from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.serving.apis import APIS, Caller
from segmentlog.serving.groups import Coordinator
from segmentlog.serving.users import Login, Users
from segmentlog.serving.view import View
from segmentlog.serving.wire import (
    API_VERSIONS,
    MalformedRequestError,
    Parts,
    Stored,
    answer,
    key_and_version,
    read_request,
)

logger = logging.getLogger(__name__)
access = logging.getLogger(f"{__name__}.access")

_R = TypeVar("_R")

_MOST_CONNECTIONS = 1_000
_MOST_REQUEST_BYTES = 1 << 20  # an entity takes many times the bytes of its request
_MOST_PRODUCED_BYTES = 8 << 20  # but for the records of a producer, which are refused
_LARGE_REQUEST_BYTES = 64 << 10  # larger ones share `_LARGE_AT_ONCE`, and need a login first
_LARGE_AT_ONCE = 2
_PIECE_BYTES, _LEAST_PIECE = 1 << 20, 32 << 10
_PIECES_BYTES = 32 << 20  # of all answers from stores and over TLS, which pass through memory
_IDLE_SECONDS = 600.0
_STALLED_SECONDS = 60.0  # of a request, or of a piece of an answer, that does not get on
_HANDSHAKE_SECONDS = 10.0
_THREADS = 8
_LEAST_REQUEST_BYTES = 8  # key, version and correlation id
_PRODUCE = b"\0\0"  # its key
_TLS = b"\x16\x03"  # how a client greets a server with TLS
_LARGE_ANSWERS = {3, 35, 75}  # topics, and bytes of all partitions
_MOST_PORT = 65_535
_REFRESH_SECONDS, _REMOTE_REFRESH_SECONDS = 0.2, 2.0


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
        self._connections: set[asyncio.Task[None]] = set()
        self._follows, self._refreshed = follows, time.monotonic()
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "segmentlog-serve")
        self._logins = concurrent.futures.ThreadPoolExecutor(1, "segmentlog-login")
        self._sockets = _listening(bind)
        bound = Address(bind.host, self._sockets[0].getsockname()[1])
        self.address = bound
        self.advertised = bound if advertise is None else advertise
        self.host, self.port = self.advertised
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self.n_by_memory = 0  # answers whose bytes pass through memory now
        try:
            self._coordinator = Coordinator(offsets, lambda group: on_disk(self.view, group))
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(
            target=self._run, name="segmentlog-serve", daemon=True
        )  # fmt: skip
        self._thread.start()

    def close(self) -> None:
        """End the server and all connections at once; twice is not an error."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(RuntimeError):  # it has just ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _release(self) -> None:
        for each in self._sockets:
            each.close()
        for threads in (self._threads, self._logins):
            threads.shutdown(wait=False, cancel_futures=True)
        self._loop.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._release()

    async def _serve(self) -> None:
        servers = [
            await asyncio.start_server(
                self._connected, sock=each, ssl=self._tls, limit=_LARGE_REQUEST_BYTES,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if self._tls else None,
            )
            for each in self._sockets
        ]  # fmt: skip
        upkeep = [asyncio.create_task(self._expire())]
        if self._follows:
            upkeep.append(asyncio.create_task(self._follow()))
        await self._stop.wait()
        for each in servers:
            each.close()
        for task in (*upkeep, *self._connections):
            task.cancel()
        await asyncio.gather(*upkeep, *self._connections, return_exceptions=True)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._coordinator.expire()

    async def _follow(self) -> None:
        """Look for changes while somebody is connected."""
        is_remote = any("://" in each for each in self.view.directory.paths)
        least, took = _REMOTE_REFRESH_SECONDS if is_remote else _REFRESH_SECONDS, 0.0
        while True:
            await asyncio.sleep(max(least, took))  # half of a core for a huge directory
            if self._connections:
                began = time.monotonic()
                await self._refresh()
                took = time.monotonic() - began

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

    async def look_up(self, function: Callable[..., _R], *arguments: object) -> _R:
        """Call a function that reads files, in a thread."""
        return await self._loop.run_in_executor(self._threads, function, *arguments)

    async def log_in(self, function: Callable[..., _R], *arguments: object) -> _R:
        """Call a function that hashes a password; strangers keep no thread from readers."""
        return await self._loop.run_in_executor(self._logins, function, *arguments)

    async def wait_for_change(self, view: View, seconds: float) -> None:
        """Wait until something else than `view` is served, or so long."""
        if self.view is view:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= _MOST_CONNECTIONS:
            logger.warning("a connection is refused: there are %d", len(self._connections))
            writer.transport.abort()
            return
        if not self._connections and self._follows:
            await self._refresh()
        self._connections.add(task)
        connection = _Connection(self, reader, writer)
        try:
            await connection.serve()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client is gone or too slow, or the server ends
        except MalformedRequestError as error:
            logger.warning("%s: %s; the connection is closed", connection.name, error)
        finally:
            self._connections.discard(task)
            writer.transport.abort()
            access.info("%s closed", connection.name)


class _Connection:
    """One client: its requests, in their order."""

    def __init__(
        self, server: Running, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server, self._reader, self._writer = server, reader, writer
        peer = writer.get_extra_info("peername") or ("unknown", 0)
        self.host = str(peer[0])
        self.name = str(Address(self.host, peer[1]))
        self._login = Login(server._users) if server._users is not None else None
        sock = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    @property
    def _is_known(self) -> bool:
        return self._login is None or self._login.user is not None

    async def serve(self) -> None:
        """Answer requests until the client goes."""
        while True:
            async with asyncio.timeout(_IDLE_SECONDS if self._is_known else _STALLED_SECONDS):
                head = await self._reader.readexactly(4)
                size = int.from_bytes(head, "big", signed=True)
                if head.startswith(_TLS):
                    raise MalformedRequestError("it speaks TLS, and this server does not")
                if not _LEAST_REQUEST_BYTES <= size <= _MOST_PRODUCED_BYTES:
                    raise MalformedRequestError(f"a request of {size} bytes is not read")
                key = await self._reader.readexactly(2)
            most = _MOST_PRODUCED_BYTES if key == _PRODUCE else _MOST_REQUEST_BYTES
            if size > (most if self._is_known else _LARGE_REQUEST_BYTES):
                raise MalformedRequestError(f"a request of {size} bytes is not read")
            is_large = size > _LARGE_REQUEST_BYTES
            async with self._server._large if is_large else contextlib.nullcontext():
                parts = await self._answered(key + await self._body(size - len(key)))
            if parts is None:
                return
            await self._send(parts)

    async def _body(self, size: int) -> bytes:
        async with asyncio.timeout(_STALLED_SECONDS):
            return await self._reader.readexactly(size)

    async def _answered(self, frame: bytes) -> Parts | None:
        """The answer to a request; None closes the connection."""
        key, version, correlation_id = key_and_version(frame)
        api = APIS.get(key)
        if self._login is not None and (api is None or not self._is_known):
            values = await self._login.answer(key, version, frame, self._server.log_in)
            if values is not None:
                return answer(key, version, correlation_id, values)
            if key != API_VERSIONS:
                raise MalformedRequestError(f"API {key} is asked for before a login")
        if key == API_VERSIONS and api is not None and not api.least <= version <= api.most:
            found = await api.run(self._caller(""), None)  # type: ignore[arg-type]
            return answer(key, 0, correlation_id, {**(found or {}), "error_code": 35})
        if api is None or not api.least <= version <= api.most:
            raise MalformedRequestError(f"API {key}, version {version}, is not announced")
        request = read_request(frame)
        began = time.monotonic()
        try:
            found = await api.run(self._caller(request.client_id), request)
        except (SegmentLogError, OSError) as error:
            logger.warning("%s: API %d is not answered: %s", self.name, key, error)
            return None
        except (TypeError, ValueError, AttributeError) as error:  # of a null that no client sends
            reason = f"API {key}, version {version}: {error!r}"
            raise MalformedRequestError(reason) from error
        access.info(
            "%s %s api=%d version=%d %.1f ms", self.name, request.client_id, key, version,
            (time.monotonic() - began) * 1000,
        )  # fmt: skip
        if found is None:
            return None
        if key == API_VERSIONS and self._login is not None:
            found = {"api_keys": [*found["api_keys"], *self._login.apis]}
        if key in _LARGE_ANSWERS:  # thousands of partitions take a second, and nobody waits for it
            return await self._server.look_up(answer, key, version, correlation_id, found)
        return answer(key, version, correlation_id, found)

    def _caller(self, client_id: str) -> Caller:
        return Caller(client_id, self.host, self._server, self._server._coordinator)

    async def _send(self, parts: Parts) -> None:
        """Send an answer, and let go of each part that is sent."""
        waiting: list[bytes | bytearray] = []
        parts.parts.reverse()
        while parts.parts:
            each = parts.parts.pop()
            if not isinstance(each, Stored):
                waiting.append(each)
                continue
            self._writer.write(b"".join(waiting))
            waiting.clear()
            if each.is_local and self._server._tls is None:
                await self._send_file(each)
            else:
                await self._send_pieces(each)
        self._writer.write(b"".join(waiting))
        await self._drain()

    async def _drain(self) -> None:
        async with asyncio.timeout(_STALLED_SECONDS):
            await self._writer.drain()

    async def _send_pieces(self, stored: Stored) -> None:
        """Send bytes through memory, which all such answers share."""
        server = self._server
        server.n_by_memory += 1
        try:
            with await server.look_up(stored.opened) as file:
                at, end = stored.position, stored.position + stored.size
                while at < end:
                    share = max(_PIECES_BYTES // server.n_by_memory, _LEAST_PIECE)
                    wanted = min(share, _PIECE_BYTES, end - at)
                    data = await server.look_up(file.read, at, wanted)
                    if len(data) != wanted:
                        raise ConnectionAbortedError("a file was cut while it was sent")
                    self._writer.write(data)
                    at += wanted
                    await self._drain()
        finally:
            server.n_by_memory -= 1

    async def _send_file(self, stored: Stored) -> None:
        at, end = stored.position, stored.position + stored.size
        with (
            stored.opened() as opened,
            os.fdopen(opened.descriptor or 0, "rb", buffering=0, closefd=False) as file,
        ):
            while at < end:
                async with asyncio.timeout(_STALLED_SECONDS):
                    n_sent = await asyncio.get_running_loop().sendfile(
                        self._writer.transport, file, at, min(4 * _PIECE_BYTES, end - at),
                        fallback=False,
                    )  # fmt: skip
                if not n_sent:
                    raise ConnectionAbortedError("a file was cut while it was sent")
                at += n_sent


def _listening(bind: Address) -> Sequence[socket.socket]:
    """Sockets that listen at an address; raises `OptionError` if it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(128)
        except OSError:
            found.close()
            raise
    except OSError as error:
        accepted = f"it cannot be bound: {error.strerror or error}; port 0 takes a free one"
        raise OptionError("bind", str(bind), accepted) from error
    return [found]
