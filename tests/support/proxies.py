"""Proxies before servers of object stores: they note requests, and spoil chosen ones.

A fault comes before the server has acted, or after: then the client has lost the answer.
"""

import contextlib
import http.client
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from html import unescape
from types import MappingProxyType
from typing import NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

#: An entry of a list in the interface of S3, and its key.
_ENTRY = re.compile(r"(<Contents>.*?<Key>(.*?)</Key>.*?</Contents>)", re.DOTALL)


class Forwarder:
    """A server in this process that passes requests on to another one; a context that stops it."""

    def __init__(self, server_port: int) -> None:
        serve = self._serve

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                server = http.client.HTTPConnection("127.0.0.1", server_port)
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    while serve(self, server):
                        pass
                server.close()

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _serve(
        self, handler: socketserver.StreamRequestHandler, server: http.client.HTTPConnection
    ) -> bool:
        """Answer the next request of a connection; False at its end."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def read_head(
    handler: socketserver.StreamRequestHandler,
) -> tuple[str, str, dict[str, str]] | None:
    """Method, target, and headers by their lower-cased names; None at a connection's end."""
    line = handler.rfile.readline().decode("latin-1")
    if not line:
        return None
    method, target, _ = line.split(" ", 2)
    given = http.client.parse_headers(handler.rfile)
    return method, target, {name.lower(): value for name, value in given.items()}


class Answer(NamedTuple):
    """The answer of a server."""

    status: int
    reason: str
    body: bytes
    headers: Iterable[tuple[str, str]] = ()

    def packed(self) -> bytes:
        """Its bytes, with the length of the body if the server has not named it."""
        headers = [
            (name, value)
            for name, value in self.headers
            if name.lower() not in {"transfer-encoding", "connection"}
        ]
        if not any(name.lower() == "content-length" for name, _ in headers):
            headers.append(("Content-Length", str(len(self.body))))
        lines = [f"HTTP/1.1 {self.status} {self.reason}", *map(": ".join, headers), "", ""]
        return "\r\n".join(lines).encode("latin-1") + self.body


def asked(
    server: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes,
    headers: Mapping[str, str],
) -> Answer:
    """The answer of a server to a request."""
    server.request(method, target, body=body or None, headers=dict(headers))
    found = server.getresponse()
    return Answer(found.status, found.reason, found.read(), found.getheaders())


class Sent(NamedTuple):
    """A request as it has come to the proxy; `begin` and `end` are its range of bytes, or 0."""

    method: str
    target: str  # path and query
    begin: int = 0
    end: int = 0
    headers: Mapping[str, str] = MappingProxyType({})  # by their lower-cased names

    @property
    def is_listing(self) -> bool:
        """Whether the request lists a bucket of S3."""
        return "list-type=2" in self.target

    @property
    def key(self) -> str:
        """The key of an object of S3."""
        return self.target.partition("?")[0].partition("/")[2].partition("/")[2]


class Fault(NamedTuple):
    """What happens to a request.

    `acts`: whether the server carries it out.  `status`: of the answer; 0 for a connection that is
    reset, and -1 for one that stays silent until the client gives up.  `when`: ``late`` for a
    request that the server gets at some later time; ``stale`` for a list without the newest
    objects, and with some that were removed.
    """

    acts: bool
    status: int
    code: str = ""  # in the body of the answer
    is_cut: bool = False  # whether the connection ends within the bytes of the body
    when: str = ""


#: Each kind that a store or a network has, by name.
FAULTS = {
    "refused": Fault(False, 0),
    "cut within the request": Fault(False, 0, is_cut=True),
    "silent before": Fault(False, -1),
    "500 before": Fault(False, 500, "InternalError"),
    "503 SlowDown": Fault(False, 503, "SlowDown"),
    "429": Fault(False, 429, "TooManyRequests"),
    "408": Fault(False, 408, "RequestTimeout"),
    "409 before": Fault(False, 409, "ConditionalRequestConflict"),
    "412 before": Fault(False, 412, "PreconditionFailed"),
    "403": Fault(False, 403, "AccessDenied"),
    "reset after": Fault(True, 0),
    "cut within the answer": Fault(True, 0, is_cut=True),
    "silent after": Fault(True, -1),
    "500 after": Fault(True, 500, "InternalError"),
    "503 after": Fault(True, 503, "SlowDown"),
    "409 after": Fault(True, 409, "OperationAborted"),
    "412 after": Fault(True, 412, "PreconditionFailed"),
    "403 after": Fault(True, 403, "AccessDenied"),
}


class FaultyServer(Forwarder):
    """A proxy that spoils what it is told to spoil; a context that stops it.

    `requests`: in the order in which they came. `choose`: takes the number of a request, from 0,
    and the request; returns its fault, or None. `before`: is called with each request before it is
    numbered; it may make requests itself. `late`: sends a request whose client has given it up.
    `at_once`: the largest number of reads that were under way together.
    """

    def __init__(self, server_port: int) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._n_reads = 0
        self._server_port = server_port
        self._created: list[str] = []  # keys of objects, the newest last
        self._listed: dict[str, str] = {}  # entries of lists, by the keys
        self.late: list[Callable[[], object]] = []
        self.reset()
        super().__init__(server_port)

    def reset(self) -> None:
        """Forget the requests, and spoil none."""
        with self._lock:
            self.requests: list[Sent] = []
            self.choose: Callable[[int, Sent], Fault | None] = lambda _number, _sent: None
            self.before: Callable[[Sent], object] = lambda _sent: None
            self.at_once = 0

    def _serve(
        self, handler: socketserver.StreamRequestHandler, server: http.client.HTTPConnection
    ) -> bool:
        head = read_head(handler)
        if head is None:
            return False
        method, target, headers = head
        size = int(headers.get("content-length") or 0)
        ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        begin, end = (int(ranged[1]), int(ranged[2]) + 1) if ranged else (0, 0)
        sent = Sent(method, target, begin, end, headers)
        self.before(sent)
        with self._lock:
            fault = self.choose(len(self.requests), sent)
            self.requests.append(sent)
            self._n_reads += bool(ranged)
            self.at_once = max(self.at_once, self._n_reads)
        try:
            if fault is not None and not fault.acts and fault.is_cut:
                handler.rfile.read(size // 2)
                return _reset(handler.connection)
            body = handler.rfile.read(size)
            headers.pop("connection", None)
            if fault is not None and not fault.acts:
                if fault.when == "late":
                    self.late.append(lambda: self._sent_late(method, target, body, headers))
                return self._spoil(handler, fault, b"")
            is_stale = fault is not None and fault.when == "stale"
            found = asked(server, method, target, body, headers)
            if method == "PUT" and found.status == 200:
                self._created.append(sent.key)
            if sent.is_listing:
                found = self._list(found, sent, is_stale=is_stale)
            if fault is not None and not is_stale:
                return self._spoil(handler, fault, found.packed())
            handler.wfile.write(found.packed())
            return True
        finally:
            with self._lock:
                self._n_reads -= bool(ranged)

    def _sent_late(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str]
    ) -> None:
        server = http.client.HTTPConnection("127.0.0.1", self._server_port)
        asked(server, method, target, body, headers)
        server.close()

    def _list(self, found: Answer, sent: Sent, *, is_stale: bool) -> Answer:
        """The answer to a request for a list, as a store may give it that is behind."""
        asked_for = parse_qs(urlsplit(sent.target).query)
        prefix, after = (asked_for.get(each, [""])[0] for each in ("prefix", "start-after"))
        text = found.body.decode()
        there = {unescape(key): entry for entry, key in _ENTRY.findall(text)}
        known, self._listed = self._listed, self._listed | there
        if not is_stale or not there:
            return found
        gone = {
            key: entry
            for key, entry in known.items()
            if key not in there and key.startswith(prefix) and key > after
        }
        shown = there | dict([*gone.items()][-2:])
        for key in self._created[-2:]:
            shown.pop(key, None)
        begin, end = text.index("<Contents>"), text.rindex("</Contents>") + len("</Contents>")
        entries = "".join(entry for _, entry in sorted(shown.items()))
        count = f"<KeyCount>{len(shown)}</KeyCount>"
        text = re.sub("<KeyCount>.*?</KeyCount>", count, text[:begin] + entries + text[end:])
        headers = [each for each in found.headers if each[0].lower() != "content-length"]
        return Answer(found.status, found.reason, text.encode(), headers)

    def _spoil(
        self, handler: socketserver.StreamRequestHandler, fault: Fault, answer: bytes
    ) -> bool:
        """Answer in the way of a fault; whether the connection goes on."""
        if fault.status > 0:
            said = f"<Error><Code>{fault.code}</Code><Message>by a test</Message></Error>"
            head = f"HTTP/1.1 {fault.status} {fault.code}\r\nContent-Type: application/xml\r\n"
            handler.wfile.write(f"{head}Content-Length: {len(said)}\r\n\r\n{said}".encode())
            return True
        if fault.status < 0:  # the client hangs up
            handler.connection.settimeout(0.05)
            while not self._ended.is_set():
                with contextlib.suppress(TimeoutError):
                    if not handler.connection.recv(1):
                        break
            return False
        if fault.is_cut:
            handler.wfile.write(answer[: max(len(answer) - 5, 1)])
        return _reset(handler.connection)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        super().__exit__()


def _reset(connection: socket.socket) -> bool:
    """End a connection as a crashed server does: without the bytes that wait, and at once."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    return False
