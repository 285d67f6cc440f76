"""Servers of Google Cloud Storage's and Azure's protocols on this machine."""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from kafka_here.artifacts import azurite, fake_gcs_server
from ports import free_port

_SECONDS = 60
_BUCKET = "logs"

#: The account of Azurite, and its key, which are the same everywhere.
_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq"
    "/K1SZFPTOtr/KBHBeksoGMGw=="
)  # fmt: skip


class StoreServer:
    """A server with a bucket; a context that stops it.

    `directory`: a log directory, or a tier, that is copied into the bucket, or None.  Raises
    `ArtifactsError` if the server's program cannot be had.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.port = free_port()
        self.authority = f"127.0.0.1:{self.port}"
        self._stack = contextlib.ExitStack()
        self._files = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            self._begin(directory)
        except BaseException:
            self._stack.close()
            raise

    def _begin(self, directory: Path | None) -> None:
        """Start the server, and copy the directory."""
        raise NotImplementedError

    def url(self, key: str) -> str:
        """The URL of a directory in the bucket."""
        raise NotImplementedError

    def _run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a program, and wait until it accepts connections."""
        log = self._files / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=self._files,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        until = time.monotonic() + _SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            if process.poll() is not None or time.monotonic() > until:
                message = f"{command[0]} does not answer:\n{log.read_text()[-2000:]}"
                raise RuntimeError(message)
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Forwarder:
    """A server in this process that passes requests on to another one; a context that stops it."""

    def __init__(self, server_port: int) -> None:
        serve = self._serve

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                server = http.client.HTTPConnection("127.0.0.1", server_port)
                with contextlib.suppress(OSError, http.client.HTTPException):
                    while serve(self, server):
                        pass
                server.close()

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
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
    """Method, path, and headers by their lower-cased names; None at the end of a connection."""
    line = handler.rfile.readline().decode("latin-1")
    if not line:
        return None
    method, path, _ = line.split(" ", 2)
    given = http.client.parse_headers(handler.rfile)
    return method, path, {name.lower(): value for name, value in given.items()}


class GoogleServer(StoreServer):
    """Google Cloud Storage: `fake-gcs-server`.

    It knows the store's JSON interface, and only reads and listings of the one in XML, in which
    clients of logs write.  A gateway in this process translates writes from the latter; it decides
    nothing about conditions.
    """

    def _begin(self, directory: Path | None) -> None:
        bucket = self._files / "data" / _BUCKET
        bucket.mkdir(parents=True)
        if directory is not None:
            shutil.copytree(directory, bucket / "kafka")
        gateway = self._stack.enter_context(_Gateway(self.port))
        self.gateway = f"127.0.0.1:{gateway.port}"
        self._run(
            [
                str(fake_gcs_server()), "-backend", "memory", "-scheme", "http",
                "-host", "127.0.0.1", "-port", str(self.port), "-public-host", self.authority,
                "-data", str(self._files / "data"),
            ]
        )  # fmt: skip

    def url(self, key: str) -> str:
        options = f"scheme=http&endpoint_override={self.authority}&retry_limit_seconds=5"
        return f"gs://anonymous@{_BUCKET}/{key}?{options}"

    def log_url(self, key: str) -> str:
        """The URL of a log that can be appended to."""
        return f"gs://anonymous@{_BUCKET}/{key}?scheme=http&endpoint_override={self.gateway}"


class AzureServer(StoreServer):
    """Azure Blob Storage: Azurite."""

    def _begin(self, directory: Path | None) -> None:
        from pyarrow.fs import AzureFileSystem, LocalFileSystem, copy_files

        self._run(
            [
                "node", str(azurite()), "--silent", "--inMemoryPersistence",
                "--blobHost", "127.0.0.1", "--blobPort", str(self.port),
                "--skipApiVersionCheck", "--disableTelemetry",
            ]
        )  # fmt: skip
        store = AzureFileSystem(
            account_name=_ACCOUNT, account_key=AZURE_KEY,
            blob_storage_authority=self.authority, dfs_storage_authority=self.authority,
            blob_storage_scheme="http", dfs_storage_scheme="http",
        )  # fmt: skip
        store.create_dir(_BUCKET)
        if directory is not None:
            copy_files(
                str(directory), f"{_BUCKET}/kafka", source_filesystem=LocalFileSystem(),
                destination_filesystem=store, use_threads=False,
            )  # fmt: skip

    def url(self, key: str) -> str:
        secret = quote(AZURE_KEY, "")
        return f"abfs://{_ACCOUNT}:{secret}@{self.authority}/{_BUCKET}/{key}?enable_tls=false"

    def log_url(self, key: str) -> str:
        """The URL of a log that can be appended to, with credentials of `environment`."""
        options = f"enable_tls=false&blob_storage_authority={self.authority}"
        return f"az://{_BUCKET}/{key}?{options}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with the credentials."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        }

    def hadoop_url(self, key: str) -> str:
        """The URL in Hadoop's form, with the key as an option."""
        given = f"account_key={quote(AZURE_KEY, '')}&enable_tls=false"
        servers = f"blob_storage_authority={self.authority}&dfs_storage_authority={self.authority}"
        return f"abfs://{_BUCKET}@{_ACCOUNT}.dfs.core.windows.net/{key}?{given}&{servers}"


class _Gateway(Forwarder):
    """Google's writes in XML, as requests to the JSON interface of a server.

    The parts of an upload wait here until it is completed.
    """

    def __init__(self, server_port: int) -> None:
        self._uploads: dict[str, dict[int, bytes]] = {}
        super().__init__(server_port)

    def _serve(
        self, handler: socketserver.StreamRequestHandler, server: http.client.HTTPConnection
    ) -> bool:
        head = read_head(handler)
        if head is None:
            return False
        method, path, headers = head
        body = _body(handler, headers)
        status, reason, answer, kept = self._answered(server, method, path, headers, body)
        lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in kept)]
        if not any(name.lower() == "content-length" for name, _ in kept):
            lines.append(f"Content-Length: {len(answer)}")
        handler.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + answer)
        return True

    def _answered(
        self,
        server: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
    ) -> tuple[int, str, bytes, list[tuple[str, str]]]:
        url = urlsplit(path)
        query = parse_qs(url.query, keep_blank_values=True)
        is_xml = not url.path.startswith(("/storage/", "/upload/", "/batch/"))
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if not is_xml or method not in {"PUT", "POST", "DELETE"}:
            return _asked(server, method, path, body, headers)
        if method == "DELETE":
            if "uploadId" in query:
                self._uploads.pop(query["uploadId"][0], None)
                return 204, "No Content", b"", []
            path = f"/storage/v1/b/{bucket}/o/{quote(key, '')}"
            return _asked(server, "DELETE", path, b"", {})
        if "uploads" in query:
            name = f"upload-{len(self._uploads)}-{time.monotonic_ns()}"
            self._uploads[name] = {}
            made = f"<InitiateMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{key}</Key>"
            made += f"<UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            return 200, "OK", made.encode(), []
        if "partNumber" in query:
            part = int(query["partNumber"][0])
            self._uploads[query["uploadId"][0]][part] = body
            return 200, "OK", b"", [("ETag", f'"{part}"')]
        if "uploadId" in query:
            parts = self._uploads.pop(query["uploadId"][0])
            body = b"".join(parts[number] for number in sorted(parts))
            status, reason, answer, kept = self._inserted(server, bucket, key, body, headers)
            if status == 200:
                answer = b"<CompleteMultipartUploadResult><ETag>x</ETag>"
                answer += b"</CompleteMultipartUploadResult>"
            return status, reason, answer, [each for each in kept if each[0] == "ETag"]
        return self._inserted(server, bucket, key, body, headers)

    def _inserted(
        self,
        server: http.client.HTTPConnection,
        bucket: str,
        key: str,
        body: bytes,
        headers: dict[str, str],
    ) -> tuple[int, str, bytes, list[tuple[str, str]]]:
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart"
        if (generation := headers.get("x-goog-if-generation-match")) is not None:
            path += f"&ifGenerationMatch={generation}"
        name = json.dumps({"name": key}).encode()
        data = b"--parts\r\nContent-Type: application/json\r\n\r\n" + name
        data += b"\r\n--parts\r\nContent-Type: application/octet-stream\r\n\r\n" + body
        data += b"\r\n--parts--\r\n"
        about = {"content-type": "multipart/related; boundary=parts"}
        status, reason, answer, _ = _asked(server, "POST", path, data, about)
        tag = re.search(rb'"etag": ?"([^"]*)"', answer)
        kept = [("ETag", tag[1].decode() if tag else '"1"'), ("x-goog-generation", "1")]
        return status, reason, answer, kept


def _body(handler: socketserver.StreamRequestHandler, headers: Mapping[str, str]) -> bytes:
    if "content-length" in headers:
        return handler.rfile.read(int(headers["content-length"]))
    found = b""
    while headers.get("transfer-encoding") == "chunked":
        size = int(handler.rfile.readline(), 16)
        found += handler.rfile.read(size)
        handler.rfile.readline()
        if not size:
            break
    return found


def _asked(
    server: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
) -> tuple[int, str, bytes, list[tuple[str, str]]]:
    passed = {
        name: value
        for name, value in headers.items()
        if name not in {"host", "content-length", "transfer-encoding", "authorization"}
    }
    server.request(method, path, body=body or None, headers=passed)
    found = server.getresponse()
    answer = found.read()
    kept = [each for each in found.getheaders() if each[0].lower() != "transfer-encoding"]
    return found.status, found.reason, answer, kept
