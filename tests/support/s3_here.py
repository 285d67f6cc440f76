"""An S3 server on this machine, and a proxy that counts requests and spoils answers."""

import http.client
import re
import socket
import socketserver
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kafka_here.artifacts import java, s3proxy_jars
from store_servers import Forwarder, StoreServer, read_head

BUCKET = "logs"


def s3_url(port: int, key: str) -> str:
    """URL of a directory in the bucket of a server."""
    return f"s3://{BUCKET}/{key}?endpoint_override=http://127.0.0.1:{port}&anonymous=true"


class S3Server(StoreServer):
    """S3Proxy with objects in its memory."""

    def _begin(self, directory: Path | None) -> None:
        settings = {
            "s3proxy.authorization": "none",
            "s3proxy.endpoint": f"http://127.0.0.1:{self.port}",
            "s3proxy.ignore-unknown-headers": "true",  # checksums that newer clients ask for
            "jclouds.provider": "transient-nio2",
            "jclouds.identity": "any",
            "jclouds.credential": "any",
        }
        path = self._files / "s3proxy.conf"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-DLOG_LEVEL=warn"]
        command += ["-cp", f"{s3proxy_jars()}/*", "org.gaul.s3proxy.Main"]
        self._run([*command, "--properties", str(path)])
        self.put("")
        if directory is not None:
            self.copy(directory, "kafka")

    def url(self, key: str) -> str:
        return s3_url(self.port, key)

    def put(self, key: str, data: bytes = b"") -> None:
        """Make an object, or the bucket if the key is empty."""
        url = f"http://127.0.0.1:{self.port}/{BUCKET}/{key}".rstrip("/")
        # Without a type, the client calls the bytes a form, which the server would parse.
        headers = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(url, data, headers, method="PUT")
        urllib.request.urlopen(request).close()

    def copy(self, directory: Path, key: str) -> None:
        """Copy the files of a directory, as a common tool would."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.put(f"{key}/{path.relative_to(directory)}", path.read_bytes())


class Request(NamedTuple):
    """A request to the proxy; `begin` and `end` are its range of bytes, or 0."""

    method: str
    path: str
    begin: int
    end: int

    @property
    def is_listing(self) -> bool:
        """Whether the request lists the bucket."""
        return "list-type=2" in self.path

    @property
    def key(self) -> str:
        """Key of the object."""
        return self.path.partition("?")[0].removeprefix(f"/{BUCKET}/")


#: Takes the connection and the answer's status, headers and body; returns whether it has answered.
Fault = Callable[[socket.socket, Request, bytes], bool]


class Proxy(Forwarder):
    """Passes requests on to a server, and notes them.

    `requests`: in the order in which they came. `fault`: spoils answers, if it is not None.
    `at_once`: the largest number of reads that were under way together.
    """

    def __init__(self, server: S3Server) -> None:
        self.requests: list[Request] = []
        self.fault: Fault | None = None
        self.at_once = self._now = 0
        self._lock = threading.Lock()
        super().__init__(server.port)

    def url(self, key: str) -> str:
        """URL of a directory, through this proxy."""
        return s3_url(self.port, key)

    def _serve(
        self, handler: socketserver.StreamRequestHandler, server: http.client.HTTPConnection
    ) -> bool:
        read = read_head(handler)
        if read is None:
            return False
        method, path, headers = read
        ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        begin, end = (int(ranged[1]), int(ranged[2]) + 1) if ranged else (0, 0)
        request = Request(method, path, begin, end)
        with self._lock:
            self.requests.append(request)
            self._now += bool(ranged)
            self.at_once = max(self.at_once, self._now)
        try:
            headers.pop("connection", None)
            server.request(method, path, headers=headers)
            answer = server.getresponse()
            body = answer.read()
            kept = [f"{name}: {value}" for name, value in answer.getheaders()]
            if answer.getheader("Content-Length") is None:
                kept = [each for each in kept if not each.lower().startswith("transfer-enc")]
                kept.append(f"Content-Length: {len(body)}")
            head = "\r\n".join([f"HTTP/1.1 {answer.status} {answer.reason}", *kept, "", ""])
            whole = head.encode("latin-1") + body
            if self.fault is not None and self.fault(handler.connection, request, whole):
                return False
            handler.wfile.write(whole)
        finally:
            with self._lock:
                self._now -= bool(ranged)
        return True

    def reset(self) -> None:
        """Forget requests, and answer as the server does."""
        self.requests.clear()
        self.fault = None
        self.at_once = 0
