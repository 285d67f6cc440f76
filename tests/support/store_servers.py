"""Servers of object stores on this machine: S3's protocol, Google Cloud Storage's, and Azure's."""

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
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from kafka_here.artifacts import azurite, fake_gcs_server, java, s3proxy_jars
from ports import free_port
from proxies import Answer, Forwarder, asked, read_head

_SECONDS = 60

#: Headers that a forwarded request does not keep; an anonymous server checks no signatures.
_OF_THE_CONNECTION = {"host", "content-length", "transfer-encoding", "authorization"}

BUCKET = "logs"

#: The account of Azurite, and its key, which are the same everywhere.
_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


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

    #: Variables with the credentials of a log that can be appended to.
    environment: ClassVar[Mapping[str, str]] = {}

    def url(self, key: str) -> str:
        """The URL of a directory in the bucket."""
        raise NotImplementedError

    def log_url(self, key: str) -> str:
        """The URL of a log that can be appended to, with credentials of `environment`."""
        return self.url(key)

    def _run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a program, and wait until it accepts connections."""
        log = self._files / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self._files,
                env={**os.environ, **(environment or {})},
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        until = time.monotonic() + _SECONDS
        while not self._is_up():
            if process.poll() is not None or time.monotonic() > until:
                message = f"{command[0]} does not answer:\n{log.read_text()[-2000:]}"
                raise RuntimeError(message)
            time.sleep(0.05)

    def _is_up(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def s3_url(port: int, key: str) -> str:
    """URL of a directory in the bucket of a server of S3's protocol, or of a proxy."""
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

    def signed_url(self, key: str, region: str) -> str:
        """The URL for a client whose requests name a region; the server looks at no signature."""
        options = f"access_key=a&secret_key=b&region={region}"
        return self.url(key).replace("anonymous=true", options)

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


class GoogleServer(StoreServer):
    """Google Cloud Storage: `fake-gcs-server`.

    It knows the store's JSON interface, and only reads and listings of the one in XML, in which
    clients of logs write.  A gateway in this process translates writes from the latter; it decides
    nothing about conditions.
    """

    def _begin(self, directory: Path | None) -> None:
        bucket = self._files / "data" / BUCKET
        bucket.mkdir(parents=True)
        if directory is not None:
            shutil.copytree(directory, bucket / "kafka")
        gateway = self._stack.enter_context(_Gateway(self.port))
        self.gateway = f"127.0.0.1:{gateway.port}"
        self._run(
            [
                str(fake_gcs_server()),
                "-backend",
                "memory",
                "-scheme",
                "http",
                "-host",
                "127.0.0.1",
                "-port",
                str(self.port),
                "-public-host",
                self.authority,
                "-data",
                str(self._files / "data"),
            ]
        )

    def url(self, key: str) -> str:
        options = f"scheme=http&endpoint_override={self.authority}&retry_limit_seconds=5"
        return f"gs://anonymous@{BUCKET}/{key}?{options}"

    def log_url(self, key: str) -> str:
        return f"gs://anonymous@{BUCKET}/{key}?scheme=http&endpoint_override={self.gateway}"


class AzureServer(StoreServer):
    """Azure Blob Storage: Azurite."""

    environment: ClassVar = {
        "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
    }

    def _begin(self, directory: Path | None) -> None:
        from pyarrow.fs import AzureFileSystem, LocalFileSystem, copy_files

        self._run(
            [
                "node",
                str(azurite()),
                "--silent",
                "--inMemoryPersistence",
                "--blobHost",
                "127.0.0.1",
                "--blobPort",
                str(self.port),
                "--skipApiVersionCheck",
                "--disableTelemetry",
            ]
        )
        store = AzureFileSystem(
            account_name=_ACCOUNT,
            account_key=AZURE_KEY,
            blob_storage_authority=self.authority,
            dfs_storage_authority=self.authority,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )
        store.create_dir(BUCKET)
        if directory is not None:
            copy_files(
                str(directory),
                f"{BUCKET}/kafka",
                source_filesystem=LocalFileSystem(),
                destination_filesystem=store,
                use_threads=False,
            )

    def url(self, key: str) -> str:
        secret = quote(AZURE_KEY, "")
        return f"abfs://{_ACCOUNT}:{secret}@{self.authority}/{BUCKET}/{key}?enable_tls=false"

    def log_url(self, key: str) -> str:
        options = f"enable_tls=false&blob_storage_authority={self.authority}"
        return f"az://{BUCKET}/{key}?{options}"

    def hadoop_url(self, key: str) -> str:
        """The URL in Hadoop's form, with the key as an option."""
        given = f"account_key={quote(AZURE_KEY, '')}&enable_tls=false"
        servers = f"blob_storage_authority={self.authority}&dfs_storage_authority={self.authority}"
        return f"abfs://{BUCKET}@{_ACCOUNT}.dfs.core.windows.net/{key}?{given}&{servers}"


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
        method, target, headers = head
        answer = self._answered(server, method, target, headers, _body(handler, headers))
        handler.wfile.write(answer.packed())
        return True

    def _answered(
        self,
        server: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes,
    ) -> Answer:
        url = urlsplit(target)
        query = parse_qs(url.query, keep_blank_values=True)
        is_xml = not url.path.startswith(("/storage/", "/upload/", "/batch/"))
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if not is_xml or method not in {"PUT", "POST", "DELETE"}:
            passed = {name: headers[name] for name in headers if name not in _OF_THE_CONNECTION}
            return asked(server, method, target, body, passed)
        if method == "DELETE":
            if "uploadId" in query:
                self._uploads.pop(query["uploadId"][0], None)
                return Answer(204, "No Content", b"")
            return asked(server, "DELETE", f"/storage/v1/b/{bucket}/o/{quote(key, '')}", b"", {})
        if "uploads" in query:
            name = f"upload-{len(self._uploads)}-{time.monotonic_ns()}"
            self._uploads[name] = {}
            made = f"<InitiateMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{key}</Key>"
            made += f"<UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            return Answer(200, "OK", made.encode())
        if "partNumber" in query:
            part = int(query["partNumber"][0])
            self._uploads[query["uploadId"][0]][part] = body
            return Answer(200, "OK", b"", [("ETag", f'"{part}"')])
        if "uploadId" in query:
            parts = self._uploads.pop(query["uploadId"][0])
            body = b"".join(parts[number] for number in sorted(parts))
            found = _inserted(server, bucket, key, body, headers)
            if found.status == 200:
                done = b"<CompleteMultipartUploadResult><ETag>x</ETag>"
                done += b"</CompleteMultipartUploadResult>"
                found = found._replace(body=done)
            return found._replace(headers=[each for each in found.headers if each[0] == "ETag"])
        return _inserted(server, bucket, key, body, headers)


def _inserted(
    server: http.client.HTTPConnection,
    bucket: str,
    key: str,
    body: bytes,
    headers: Mapping[str, str],
) -> Answer:
    path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart"
    if (generation := headers.get("x-goog-if-generation-match")) is not None:
        path += f"&ifGenerationMatch={generation}"
    name = json.dumps({"name": key}).encode()
    data = b"--parts\r\nContent-Type: application/json\r\n\r\n" + name
    data += b"\r\n--parts\r\nContent-Type: application/octet-stream\r\n\r\n" + body
    data += b"\r\n--parts--\r\n"
    about = {"content-type": "multipart/related; boundary=parts"}
    found = asked(server, "POST", path, data, about)
    tag = re.search(rb'"etag": ?"([^"]*)"', found.body)
    kept = [("ETag", tag[1].decode() if tag else '"1"'), ("x-goog-generation", "1")]
    return found._replace(headers=kept)


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
