"""S3 in the memory of a process of its own, which takes its time for each request.

A server on the same machine answers in less than a millisecond, a cloud's store in some tens of
them, and what a log costs there is the number of requests that wait for each other.  So this
server waits before each answer.  It is quick itself: a list begins in the middle of the keys, as
that of a store does.

It can also have the troubles of a store and of a network: see `LatentServer.trouble`.
"""

import asyncio
import bisect
import contextlib
import datetime
import hashlib
import json
import random
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

__all__ = ["BUCKET", "LATEST_SECONDS", "LatentServer"]

BUCKET = "logs"
_MOST_LISTED = 1000
_CONTROL = "/_control"
_LAG_SECONDS = 1.0  # of old lists

#: Seconds after which a request is carried out that its client has given up.
LATEST_SECONDS = 2.0


class LatentServer:
    """The server; a context that stops it."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        command = [sys.executable, __file__, str(self.port)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def wait(self, least_ms: float, most_ms: float, line_mb: float = 0) -> None:
        """From now on, let each request take so long.

        `line_mb`: megabytes of answers a second, of all requests together; 0 for no bound.
        """
        self._control(f"least={least_ms}&most={most_ms}&line={line_mb}")

    def trouble(self, faults: float, stale: float, skew_seconds: float = 0.0) -> None:
        """From now on, spoil a share of the requests, and show old states in a share of the lists.

        A request fails before or after it was carried out, or is carried out after its client has
        given it up.  An old list lacks what was made in the last second, and shows what was
        removed then.  `skew_seconds`: by which the store's clock is wrong.
        """
        self._control(f"faults={faults}&stale={stale}&skew={skew_seconds}")

    def wipe(self, key: str) -> None:
        """Remove all objects below a key at once."""
        self._control(f"wiped={quote(key)}")

    def load(self, directory: Path, key: str) -> None:
        """Hold the files of a directory, below a key."""
        self._control(f"directory={quote(str(directory))}&key={quote(key)}")

    def counts(self) -> Counter[str]:
        """The requests since the last question, by their methods; lists are of `LIST`."""
        return Counter(self._control("counts=1"))

    def _control(self, query: str) -> dict[str, int]:
        url = f"http://127.0.0.1:{self.port}{_CONTROL}?{query}"
        with urllib.request.urlopen(url) as answer:
            found: dict[str, int] = json.load(answer)
        return found

    def url(self, key: str, client: str = "") -> str:
        """URL of a place; places of other values of `client` share no client here."""
        end = f"endpoint_override=http://127.0.0.1:{self.port}&anonymous=true"
        return f"s3://{BUCKET}/{key}?{end}&region=r{client}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class _Store:
    """What the server holds: bytes, when they were written, and their name."""

    def __init__(self) -> None:
        self.held = dict[str, tuple[bytes, str, str]]()
        self.keys = list[str]()  # in their order
        self.uploads = dict[str, dict[int, bytes]]()
        self.skew = datetime.timedelta()
        self.changed = dict[str, float]()  # when keys were made or removed, in this order
        self.gone = dict[str, tuple[bytes, str, str]]()

    def _note(self, key: str) -> None:
        now = time.monotonic()
        self.changed.pop(key, None)
        self.changed[key] = now
        while now - self.changed[oldest := next(iter(self.changed))] > _LAG_SECONDS:
            del self.changed[oldest]
            self.gone.pop(oldest, None)

    def put(self, key: str, data: bytes) -> str:
        if key not in self.held:
            bisect.insort(self.keys, key)
            self._note(key)
            self.gone.pop(key, None)
        clock = datetime.datetime.now(datetime.UTC) + self.skew
        now = clock.isoformat(timespec="milliseconds")
        e_tag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        self.held[key] = data, now.replace("+00:00", "Z"), e_tag
        return e_tag

    def load(self, directory: str, key: str) -> None:
        for path in sorted(each for each in Path(directory).rglob("*") if each.is_file()):
            self.put(f"{key}/{path.relative_to(directory).as_posix()}", path.read_bytes())

    def delete(self, key: str) -> None:
        if (found := self.held.pop(key, None)) is not None:
            del self.keys[bisect.bisect_left(self.keys, key)]
            self._note(key)
            self.gone[key] = found

    def listed_before(self, query: dict[str, str]) -> bytes:
        """A list as it was a moment ago."""
        real = self.keys, self.held
        self.keys = sorted({*self.keys} - self.changed.keys() | self.gone.keys())
        self.held = self.held | self.gone
        found = self.listed(query)
        self.keys, self.held = real
        return found

    def listed(self, query: dict[str, str]) -> bytes:
        prefix = query.get("prefix", "")
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        begin = max(bisect.bisect_left(self.keys, prefix), bisect.bisect_right(self.keys, after))
        found = list[str]()
        for key in self.keys[begin : begin + _MOST_LISTED]:
            if not key.startswith(prefix):
                break
            found.append(key)
        end = begin + len(found)
        is_more = len(found) == _MOST_LISTED and self.keys[end : end + 1] != []
        is_more = is_more and self.keys[end].startswith(prefix)
        parts = ["<ListBucketResult>", f"<IsTruncated>{str(is_more).lower()}</IsTruncated>"]
        if is_more:
            token = escape(found[-1])
            parts.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
        for key in found:
            data, modified, e_tag = self.held[key]
            parts.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
                f"<ETag>{escape(e_tag)}</ETag><Size>{len(data)}</Size></Contents>"
            )
        return "".join([*parts, "</ListBucketResult>"]).encode()


class _Answer:
    def __init__(
        self, status: str, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.status, self.body, self.headers = status, body, headers


_NOT_FOUND = _Answer("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")
_BUSY = _Answer("500 Internal Server Error", b"<Error><Code>InternalError</Code></Error>")
_FAULTS = ("error before", "error after", "reset before", "reset after", "late")
_FAILED = _Answer("412 Precondition Failed", b"<Error><Code>PreconditionFailed</Code></Error>")


def _answer(
    store: _Store,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes,
    stale: float = 0.0,
) -> _Answer:
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    key = unquote(url.path).lstrip("/").partition("/")[2]
    if method == "GET" and query.get("list-type") == "2":
        is_old = random.random() < stale
        return _Answer("200 OK", store.listed_before(query) if is_old else store.listed(query))
    if method == "POST" and "delete" in query:
        keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
        for name in keys:
            store.delete(unescape(name))
        said = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in keys)
        return _Answer("200 OK", f"<DeleteResult>{said}</DeleteResult>".encode())
    if method == "POST" and "uploads" in query:
        name = f"u{len(store.uploads)}"
        store.uploads[name] = {}
        made = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
        return _Answer("200 OK", f"{made}</InitiateMultipartUploadResult>".encode())
    if method == "POST":
        parts = store.uploads.pop(query["uploadId"])
        e_tag = store.put(key, b"".join(parts[each] for each in sorted(parts)))
        made = f"<CompleteMultipartUploadResult><ETag>{escape(e_tag)}</ETag>"
        return _Answer("200 OK", f"{made}</CompleteMultipartUploadResult>".encode())
    if method == "PUT" and "partNumber" in query:
        store.uploads[query["uploadId"]][int(query["partNumber"])] = body
        return _Answer("200 OK", headers={"ETag": f'"{query["partNumber"]}"'})
    found = store.held.get(key)
    if method == "PUT":
        if headers.get("if-none-match") == "*" and found is not None:
            return _FAILED
        if "if-match" in headers and (found is None or headers["if-match"] != found[2]):
            return _FAILED
        return _Answer("200 OK", headers={"ETag": store.put(key, body)})
    if method == "DELETE":
        store.delete(key)
        return _Answer("204 No Content")
    if found is None:
        return _NOT_FOUND
    data, modified, e_tag = found
    when = datetime.datetime.fromisoformat(modified).strftime("%a, %d %b %Y %H:%M:%S GMT")
    about = {"ETag": e_tag, "Last-Modified": when}
    if ranged := re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", "")):
        begin, end = int(ranged[1]), int(ranged[2]) + 1 if ranged[2] else len(data)
        part = data[begin:end]
        shown = f"bytes {begin}-{begin + len(part) - 1}/{len(data)}"
        return _Answer("206 Partial Content", part, about | {"Content-Range": shown})
    if method == "HEAD":
        return _Answer("200 OK", b"", about | {"Content-Length": str(len(data))})
    return _Answer("200 OK", data, about)


async def _serve(port: int) -> None:
    store, counts = _Store(), Counter[str]()
    bounds = [0.0, 0.0, 0.0]  # the least and the most seconds, and the bytes a second
    line_is_free = 0.0
    faults = stale = 0.0

    def controlled(query: dict[str, str]) -> Any:
        nonlocal faults, stale
        if "faults" in query:
            faults, stale = float(query["faults"]), float(query["stale"])
            store.skew = datetime.timedelta(seconds=float(query["skew"]))
        elif "wiped" in query:
            for key in [each for each in store.keys if each.startswith(f"{query['wiped']}/")]:
                store.delete(key)
        elif "directory" in query:
            store.load(query["directory"], query["key"])
        elif "least" in query:
            bounds[:] = float(query["least"]) / 1000, float(query["most"]) / 1000, 0
            bounds[2] = 1e6 * float(query["line"])
        else:
            found = dict(counts)
            counts.clear()
            return found
        return {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal line_is_free
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ", 2)
                lines = (each.partition(":") for each in head[1:] if each)
                headers = {name.lower(): value.strip() for name, _, value in lines}
                body = await reader.readexactly(int(headers.get("content-length") or 0))
                if target.startswith(_CONTROL):
                    given = dict(parse_qsl(urlsplit(target).query))
                    found = _Answer("200 OK", json.dumps(controlled(given)).encode())
                else:
                    counts["LIST" if "list-type=2" in target else method] += 1
                    half = random.uniform(*bounds[:2]) / 2
                    if half:
                        await asyncio.sleep(half)
                    fault = random.choice(_FAULTS) if random.random() < faults else ""
                    answer = partial(_answer, store, method, target, headers, body, stale)
                    if fault == "late":
                        delay = random.uniform(0.0, LATEST_SECONDS)
                        asyncio.get_running_loop().call_later(delay, answer)
                    found = _BUSY if fault.endswith("before") or fault == "late" else answer()
                    if fault.startswith("error"):
                        found = _BUSY
                    if half:
                        await asyncio.sleep(half)
                    if bounds[2]:
                        now = asyncio.get_running_loop().time()
                        line_is_free = max(line_is_free, now) + len(found.body) / bounds[2]
                        await asyncio.sleep(line_is_free - now)
                    if fault.startswith("reset") or fault == "late":
                        connection.setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                        )
                        break
                about = {"Content-Length": str(len(found.body)), **found.headers}
                shown = "".join(f"{name}: {value}\r\n" for name, value in about.items())
                writer.write(f"HTTP/1.1 {found.status}\r\n{shown}\r\n".encode("latin-1"))
                writer.write(found.body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port, limit=1 << 20, backlog=512)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
