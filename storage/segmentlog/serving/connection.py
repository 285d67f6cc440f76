"""One client: its requests one after the other, and their answers."""

import asyncio
import contextlib
import logging
import os
import time
from typing import Any, TypeAlias

from segmentlog.errors import SegmentLogError
from segmentlog.serving.apis import APIS, Api, Caller
from segmentlog.serving.bounds import Bounds
from segmentlog.serving.groups import Coordinator
from segmentlog.serving.reading import Broker
from segmentlog.serving.users import Login, Users
from segmentlog.serving.wire import (
    API_VERSIONS,
    MalformedRequestError,
    Parts,
    Request,
    Stored,
    answer,
    answer_again,
    key_and_version,
    read_request,
)

logger = logging.getLogger(__name__)
access = logging.getLogger("segmentlog.serving.access")

_MOST_REQUEST_BYTES = 1 << 20
_MOST_PRODUCED_BYTES = 8 << 20  # but for the records of a producer, which are refused
_MOST_BYTES_BEFORE_LOGIN = 64 << 10
_LEAST_REQUEST_BYTES = 8  # key, version and correlation id
_IDLE_SECONDS = 600.0
_STALLED_SECONDS = 60.0  # of a request, or of a piece of an answer, that does not get on
_WAITING_BYTES = 16 << 10  # of an answer that the system does not take yet
_PIECE_BYTES, _LEAST_PIECE = 1 << 20, 32 << 10
_PIECES_BYTES = 16 << 20  # of all answers from stores and over TLS, which pass through memory
_SENT_AT_ONCE = 4 << 20
_PRODUCE = b"\0\0"  # its key
_TLS = b"\x16\x03"  # how a client greets a server with TLS
_METADATA = 3
_MOST_KEPT = 4  # of its versions and flags
_WAITS = {1, 11, 14}  # for records, and for other members

_Piece: TypeAlias = bytes | bytearray | memoryview


class Connection:
    """One client.

    `users`: those who may read; None for everybody.  `copies`: whether all bytes pass through
    memory, as over TLS.
    """

    def __init__(
        self,
        broker: Broker,
        coordinator: Coordinator,
        bounds: Bounds,
        users: Users | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: tuple[str, int],
        *,
        copies: bool,
    ) -> None:
        self._broker, self._coordinator, self._bounds = broker, coordinator, bounds
        self._reader, self._writer, self._copies = reader, writer, copies
        self._peer, self._host = peer, peer[0]
        self._login = Login(users) if users is not None else None
        self._waiting: asyncio.Task[Any] | None = None
        writer.transport.set_write_buffer_limits(_WAITING_BYTES)

    @property
    def _is_known(self) -> bool:
        return self._login is None or self._login.user is not None

    def end_if_gone(self) -> None:
        """End it if it waits, for records or other members, and nobody waits for its answer."""
        is_gone = self._reader.at_eof() or self._reader.exception() is not None
        if self._waiting is not None and is_gone:
            self._waiting.cancel()

    async def serve(self) -> None:
        """Answer requests until the client goes."""
        while True:
            size, key = await self._head()
            taken = await self._bounds.requests.take(size)
            try:
                async with asyncio.timeout(_STALLED_SECONDS):
                    frame = key + await self._reader.readexactly(size - len(key))
                turn = self._bounds.turn(int.from_bytes(key, "big"))
                async with turn or contextlib.nullcontext():
                    parts = await self._answered(frame)
                    if parts is None:
                        return
                    del frame
                    held = await self._bounds.answers.take(parts.own_size)
            finally:
                self._bounds.requests.give(taken)
            try:
                await self._send(parts)
            finally:
                self._bounds.answers.give(held)

    async def _head(self) -> tuple[int, bytes]:
        """The size of the next request, and the key of its API."""
        async with asyncio.timeout(_IDLE_SECONDS if self._is_known else _STALLED_SECONDS):
            head = await self._reader.readexactly(1)
        async with asyncio.timeout(_STALLED_SECONDS):
            head += await self._reader.readexactly(3)
            size = int.from_bytes(head, "big", signed=True)
            if head.startswith(_TLS):
                raise MalformedRequestError("it speaks TLS, and this server does not")
            if not _LEAST_REQUEST_BYTES <= size <= _MOST_PRODUCED_BYTES:
                raise MalformedRequestError(f"a request of {size} bytes is not read")
            key = await self._reader.readexactly(2)
        most = _MOST_PRODUCED_BYTES if key == _PRODUCE else _MOST_REQUEST_BYTES
        if size > (most if self._is_known else _MOST_BYTES_BEFORE_LOGIN):
            raise MalformedRequestError(f"a request of {size} bytes is not read")
        return size, key

    async def _answered(self, frame: bytes) -> Parts | None:
        """The answer to a request; None closes the connection."""
        key, version, correlation_id = key_and_version(frame)
        api = APIS.get(key)
        if self._login is not None and (api is None or not self._is_known):
            values = await self._login.answer(key, version, frame, self._broker.log_in)
            if values is not None:
                return answer(key, version, correlation_id, values)
            if key != API_VERSIONS:
                raise MalformedRequestError(f"API {key} is asked for before a login")
        if key == API_VERSIONS and api is not None and not api.least <= version <= api.most:
            found = await api.run(self._caller(""), None)  # type: ignore[arg-type]
            return answer(key, 0, correlation_id, {**(found or {}), "error_code": 35})
        if api is None or not api.least <= version <= api.most:
            raise MalformedRequestError(f"API {key}, version {version}, is not announced")
        is_small = self._bounds.is_small(len(frame))
        request = (
            read_request(frame) if is_small else await self._broker.look_up(read_request, frame)
        )
        began = time.monotonic()
        try:
            return await self._made(api, request, in_thread=not is_small)
        except (SegmentLogError, OSError) as error:
            logger.warning("%s: API %d is not answered: %s", self._peer, key, error)
            return None
        except (TypeError, ValueError, AttributeError) as error:  # of a null that no client sends
            reason = f"API {key}, version {version}: {error!r}"
            raise MalformedRequestError(reason) from error
        finally:
            access.info(
                "%s %s api=%d version=%d %.1f ms", self._peer, request.client_id, key, version,
                (time.monotonic() - began) * 1000,
            )  # fmt: skip

    async def _made(self, api: Api, request: Request, *, in_thread: bool) -> Parts | None:
        """The answer of an API; that with all topics is made once, and sent to all who ask."""
        key, version, correlation_id = request[:3]
        kept = self._broker.view.answers
        names_all = key == _METADATA and request.body.topics is None
        if names_all and request.body in kept:
            return answer_again(kept[request.body], correlation_id)
        self._waiting = asyncio.current_task() if key in _WAITS else None
        try:
            found = await api.run(self._caller(request.client_id), request)
        finally:
            self._waiting = None
        if found is None:
            return None
        if key == API_VERSIONS and self._login is not None:
            found = {"api_keys": [*found["api_keys"], *self._login.apis]}
        if not in_thread and self._bounds.turn(key) is None:
            return answer(key, version, correlation_id, found)
        # Thousands of partitions take a second, and nobody waits for it.
        parts = await self._broker.look_up(answer, key, version, correlation_id, found)
        if not names_all:
            return parts
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        kept[request.body] = parts.joined()
        return answer_again(kept[request.body], correlation_id)

    def _caller(self, client_id: str) -> Caller:
        return Caller(client_id, self._host, self._broker, self._coordinator)

    async def _send(self, parts: Parts) -> None:
        """Send an answer, and let go of each part that is sent."""
        small: list[_Piece] = []
        n_small = 0
        for each in parts.taken():
            if isinstance(each, Stored) or len(each) + n_small > _WAITING_BYTES:
                await self._write(b"".join(small))
                small, n_small = [], 0
            if not isinstance(each, Stored):
                if len(each) > _WAITING_BYTES:
                    await self._write(each)
                else:
                    small.append(each)
                    n_small += len(each)
            elif each.is_local and not self._copies:
                await self._send_file(each)
            else:
                await self._send_pieces(each)
        await self._write(b"".join(small))

    async def _write(self, data: _Piece) -> None:
        """Send bytes; the connection copies no more of them than its bound."""
        view = memoryview(data)
        for at in range(0, len(view), _WAITING_BYTES):
            self._writer.write(view[at : at + _WAITING_BYTES])
            await self._drain()

    async def _drain(self) -> None:
        async with asyncio.timeout(_STALLED_SECONDS):
            await self._writer.drain()

    async def _send_pieces(self, stored: Stored) -> None:
        """Send bytes through memory, which all such answers share."""
        bounds, look_up = self._bounds, self._broker.look_up
        bounds.n_by_memory += 1
        try:
            with await look_up(stored.opened) as file:
                at, end = stored.position, stored.position + stored.size
                while at < end:
                    share = max(_PIECES_BYTES // bounds.n_by_memory, _LEAST_PIECE)
                    wanted = min(share, _PIECE_BYTES, end - at)
                    data = await look_up(file.read, at, wanted)
                    if len(data) != wanted:
                        raise ConnectionAbortedError("a file was cut while it was sent")
                    self._writer.write(data)
                    at += wanted
                    await self._drain()
        finally:
            bounds.n_by_memory -= 1

    async def _send_file(self, stored: Stored) -> None:
        at, end = stored.position, stored.position + stored.size
        with (
            stored.opened() as opened,
            os.fdopen(opened.descriptor or 0, "rb", buffering=0, closefd=False) as file,
        ):
            while at < end:
                try:
                    async with asyncio.timeout(_STALLED_SECONDS):
                        n_sent = await asyncio.get_running_loop().sendfile(
                            self._writer.transport, file, at, min(_SENT_AT_ONCE, end - at),
                            fallback=False,
                        )  # fmt: skip
                except asyncio.SendfileNotAvailableError:  # or the client is gone
                    break
                if not n_sent:
                    raise ConnectionAbortedError("a file was cut while it was sent")
                at += n_sent
        if at < end:
            await self._send_pieces(Stored(stored.opened, at, end - at, is_local=False))
