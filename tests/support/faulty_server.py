"""A proxy before a server of an object store, which spoils chosen requests.

A fault comes before the server has acted, or after: then the client has lost the answer.
"""

import contextlib
import http.client
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["FAULTS", "Fault", "FaultyServer", "Sent"]


class Sent(NamedTuple):
    """A request as it has come to the proxy."""

    method: str
    target: str  # path and query
    n_bytes: int  # of the body

    @property
    def is_write(self) -> bool:
        """Whether the server changes something by it."""
        return self.method in {"PUT", "POST", "DELETE"}


class Fault(NamedTuple):
    """What happens to a request.

    `acts`: whether the server carries it out.  `status`: of the answer; 0 for a connection that is
    reset, and -1 for one that stays silent until the client gives up.
    """

    acts: bool
    status: int
    code: str = ""  # in the body of the answer
    is_cut: bool = False  # whether the connection ends within the bytes of the body


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
}


class FaultyServer:
    """The proxy; a context that stops it.

    Attributes
    ----------
    requests : in the order in which they came.
    choose : takes the number of a request, from 0, and the request; returns its fault, or None.
    """

    def __init__(self, server_port: int) -> None:
        self.requests: list[Sent] = []
        self.choose: Callable[[int, Sent], Fault | None] = lambda _number, _sent: None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                server = http.client.HTTPConnection("127.0.0.1", server_port)
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    while proxy._serve(self, server):
                        pass
                server.close()

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self) -> None:
        """Forget the requests, and spoil none."""
        with self._lock:
            self.requests = []
            self.choose = lambda _number, _sent: None

    def _serve(
        self, handler: socketserver.StreamRequestHandler, server: http.client.HTTPConnection
    ) -> bool:
        line = handler.rfile.readline().decode("latin-1")
        if not line:
            return False
        method, target, _ = line.split(" ", 2)
        given = http.client.parse_headers(handler.rfile)
        size = int(given.get("Content-Length") or 0)
        sent = Sent(method, target, size)
        with self._lock:
            fault = self.choose(len(self.requests), sent)
            self.requests.append(sent)
        if fault is not None and not fault.acts and fault.is_cut:
            handler.rfile.read(size // 2)
            return _reset(handler.connection)
        body = handler.rfile.read(size)
        if fault is not None and not fault.acts:
            return self._spoil(handler, fault, b"")
        headers = {name: value for name, value in given.items() if name.lower() != "connection"}
        server.request(method, target, body=body or None, headers=headers)
        answer = server.getresponse()
        data = answer.read()
        names = {"transfer-encoding", "content-length", "connection"}
        kept = [f"{n}: {v}" for n, v in answer.getheaders() if n.lower() not in names]
        length = answer.getheader("Content-Length") if method == "HEAD" else str(len(data))
        kept.append(f"Content-Length: {length or 0}")
        head = "\r\n".join([f"HTTP/1.1 {answer.status} {answer.reason}", *kept, "", ""])
        whole = head.encode("latin-1") + data
        if fault is not None:
            return self._spoil(handler, fault, whole)
        handler.wfile.write(whole)
        return True

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()


def _reset(connection: socket.socket) -> bool:
    """End a connection as a crashed server does: without the bytes that wait, and at once."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    return False
