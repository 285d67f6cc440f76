"""One client: its requests one after the other, and their answers."""

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from typing import TypeAlias

from segmentlog.errors import SegmentLogError
from segmentlog.serving.apis import APIS, Api, Caller
from segmentlog.serving.bounds import ServerBounds
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
        bounds: ServerBounds,
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
        self._task = asyncio.current_task()
        self._waits, self._deadline = False, math.inf
        # What the system sends itself follows what was written.
        writer.transport.set_write_buffer_limits(_WAITING_BYTES if copies else 0)

    @property
    def _is_known(self) -> bool:
        return self._login is None or self._login.user is not None

    def end_if_gone(self, now: float) -> None:
        """End it if it waits, for records or other members, and nobody waits for its answer.

        And if its client does not get on.
        """
        is_gone = self._reader.at_eof() or self._reader.exception() is not None
        if self._task is not None and ((self._waits and is_gone) or self._deadline < now):
            self._task.cancel()

    def _allow(self, seconds: float) -> None:
        """Give the client so long for what is awaited next; a timer for each would cost more."""
        self._deadline = time.monotonic() + seconds

    async def serve(self) -> None:
        """Answer requests until the client goes."""
        while await self._answer_next():
            pass

    async def _answer_next(self) -> bool:
        """Answer a request; whether others may follow."""
        size, key = await self._head()
        taken = await self._bounds.requests.take(size)
        try:
            self._allow(_STALLED_SECONDS)
            frame = key + await self._reader.readexactly(size - len(key))
            self._allow(math.inf)
            turn = self._bounds.turn(int.from_bytes(key, "big"))
            async with turn or contextlib.nullcontext():
                parts = await self._answered(frame)
                if parts is None:
                    return False
                del frame
                held = await self._bounds.answers.take(parts.own_size)
        finally:
            self._bounds.requests.give(taken)
        try:
            await self._send(parts)
        finally:
            self._bounds.answers.give(held)
        return True

    async def _head(self) -> tuple[int, bytes]:
        """The size of the next request, and the key of its API."""
        self._allow(_IDLE_SECONDS if self._is_known else _STALLED_SECONDS)
        head = await self._reader.readexactly(1)
        self._allow(_STALLED_SECONDS)
        head += await self._reader.readexactly(3)
        size = int.from_bytes(head, "big", signed=True)
        if head.startswith(_TLS):
            raise MalformedRequestError("it speaks TLS, and this server does not")
        if not _LEAST_REQUEST_BYTES <= size <= _MOST_PRODUCED_BYTES:
            raise MalformedRequestError(f"a request of {size} bytes is not read")
        key = await self._reader.readexactly(2)
        self._allow(math.inf)
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
                "%s %s api=%d version=%d %.1f ms",
                self._peer,
                request.client_id,
                key,
                version,
                (time.monotonic() - began) * 1000,
            )

    async def _made(self, api: Api, request: Request, *, in_thread: bool) -> Parts | None:
        """The answer of an API; that with all topics is made once, and sent to all who ask."""
        key, version, correlation_id = request[:3]
        kept = self._broker.view.answers
        names_all = key == _METADATA and request.body.topics is None
        if names_all and request.body in kept:
            return answer_again(kept[request.body], correlation_id)
        self._waits = key in _WAITS
        try:
            found = await api.run(self._caller(request.client_id), request)
        finally:
            self._waits = False
        if found is None:
            return None
        if key == API_VERSIONS and self._login is not None:
            found = {"api_keys": [*found["api_keys"], *self._login.apis]}
        if not in_thread and self._bounds.turn(key) is None:
            return answer(key, version, correlation_id, found)
        # Thousands of partitions take a second, and nobody waits for it.
        parts = await self._broker.look_up(answer, key, version, correlation_id, found)
        if not names_all or any(each.get("error_code") for each in found["topics"]):
            return parts
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        kept[request.body] = parts.joined()
        return answer_again(kept[request.body], correlation_id)

    def _caller(self, client_id: str) -> Caller:
        return Caller(client_id, self._host, self._broker, self._coordinator)

    async def _send(self, parts: Parts) -> None:
        """Send an answer, and let go of each part that is sent."""
        if len(parts.parts) == 1 or self._copies:
            await self._send_parts(parts)
            return
        self._hold_small_packets(is_on=True)  # each of them would wake the client
        await self._send_parts(parts)
        self._hold_small_packets(is_on=False)

    def _hold_small_packets(self, *, is_on: bool) -> None:
        with contextlib.suppress(OSError, AttributeError):  # the client is gone, or not on Linux
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, is_on)

    async def _send_parts(self, parts: Parts) -> None:
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
            elif not each.place and not self._copies:
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
        self._allow(_STALLED_SECONDS)
        await self._writer.drain()
        self._allow(math.inf)

    async def _send_pieces(self, stored: Stored) -> None:
        """Send bytes through memory, which all such answers share."""
        bounds, look_up = self._bounds, self._broker.look_up
        bounds.n_by_memory += 1
        try:
            with await look_up(stored.opened, place=stored.place) as file:
                at, end = stored.position, stored.position + stored.size
                while at < end:
                    share = max(_PIECES_BYTES // bounds.n_by_memory, _LEAST_PIECE)
                    wanted = min(share, _PIECE_BYTES, end - at)
                    data = await look_up(file.read, at, wanted, place=stored.place)
                    if len(data) != wanted:
                        raise ConnectionAbortedError("a file was cut while it was sent")
                    self._writer.write(data)
                    at += wanted
                    await self._drain()
        finally:
            bounds.n_by_memory -= 1

    async def _send_file(self, stored: Stored) -> None:
        """Send bytes of a local file; the system takes them from its memory."""
        at, end = stored.position, stored.position + stored.size
        with stored.opened() as file:
            try:
                at = await self._sent_by_system(file.descriptor or 0, at, end)
            except AttributeError:  # it has no `sendfile`
                pass
            finally:
                self._allow(math.inf)
        if at < end:
            await self._send_pieces(Stored(stored.opened, at, end - at, stored.place))

    async def _sent_by_system(self, descriptor: int, at: int, end: int) -> int:
        """The byte up to which the system has sent a file; it may not send every kind of file.

        The loop's own `sendfile` stops the reading of the socket, and asks the system three times
        as often.
        """
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[int] = loop.create_future()

        def go_on(out: int) -> None:
            nonlocal at
            if sent.done():  # it ends meanwhile
                return
            try:
                n_bytes = os.sendfile(out, descriptor, at, end - at)
            except BlockingIOError:
                return
            except ConnectionError as error:
                sent.set_exception(error)
                return
            except OSError:
                sent.set_result(at)
                return
            at += n_bytes
            self._allow(_STALLED_SECONDS)
            if not n_bytes:
                sent.set_exception(ConnectionAbortedError("a file was cut while it was sent"))
            elif at == end:
                sent.set_result(at)

        self._allow(_STALLED_SECONDS)
        number = self._writer.get_extra_info("socket").fileno()
        go_on(number)
        if sent.done():
            return sent.result()
        try:
            # The loop waits for the number of a connection itself, and may close it meanwhile.
            waiting = os.dup(number)
        except OSError:  # too many are open
            return at
        try:
            loop.add_writer(waiting, go_on, waiting)
            return await sent
        finally:
            loop.remove_writer(waiting)
            os.close(waiting)
