"""Schemas of a registry at a URL, and of files."""

import base64
import json
import pickle
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from registered import register

import segmentlog
from segmentlog.decoding import sources

pytest.importorskip("fastavro")

SUBJECT = "orders/é-value"


def record(*fields: tuple[str, Any], name: str = "Order") -> str:
    listed = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": name, "fields": listed})


SCHEMAS: list[dict[str, Any]] = [
    {"subject": "line", "version": 1, "id": 1, "schema": record(("n", "long"), name="Line")},
    {"subject": SUBJECT, "version": 1, "id": 2, "schema": record(("a", "int"))},
    {
        "subject": SUBJECT,
        "version": 2,
        "id": 3,
        "schema": record(("a", "long"), ("line", ["null", "Line"])),
        "references": [{"name": "Line", "subject": "line", "version": 1}],
        "schemaType": "AVRO",
    },
    {"subject": SUBJECT, "version": 3, "id": 4, "schema": record(("never", "int"))},
]
DELETED = (SUBJECT, 3)
ROWS = pa.table({"value": pa.array([b"\0\0\0\0\3\2\2\4", b"\0\0\0\0\3\6\0"], pa.binary())})
DECODED = [{"a": 1, "line": {"n": 2}}, {"a": 3, "line": None}]


class Registry(BaseHTTPRequestHandler):
    """The interface of a registry.  `lists`: whether it lists all schemas."""

    lists, page, other = True, 2, b""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.other:
            self.wfile.write(self.other)
            return
        words = base64.b64encode(b"me:s3cret:@").decode()
        if self.headers["Authorization"] != f"Basic {words}":
            self._answer(401, {})
            return
        parts = urlsplit(self.path)
        query = {name: each[0] for name, each in parse_qs(parts.query).items()}
        status, body = self._found(parts.path, query)
        self._answer(status, body)

    def _found(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        counts = [
            each
            for each in SCHEMAS
            if query.get("deleted") == "true" or (each["subject"], each["version"]) != DELETED
        ]
        if path == "/at/schemas" and self.lists:
            if query.get("latestOnly"):
                return 200, [*{each["subject"]: each for each in counts}.values()]
            begin = int(query["offset"])
            return 200, counts[begin : begin + self.page]
        for name, quoted in [(SUBJECT, "orders%2F%C3%A9-value"), ("line", "line")]:
            of = {each["version"]: each for each in counts if each["subject"] == name}
            if path == f"/at/subjects/{quoted}/versions":
                return 200, [*of]
            number = path.removeprefix(f"/at/subjects/{quoted}/versions/")
            if number.isdigit() and int(number) in of:
                return 200, of[int(number)]
        return 404, {"error_code": 40401}

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(context: ssl.SSLContext | None = None, **settings: Any) -> Iterator[str]:
    """The host and the port of a registry."""
    handler = type("Registry", (Registry,), settings)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("settings", [{}, {"page": 9}, {"lists": False}])
def test_the_schemas_of_a_registry(settings: dict[str, Any]) -> None:
    """By its list in pages, or by its subjects; the newest version is deleted."""
    with serving(**settings) as host:
        url = f"http://me:s3cret%3A%40@{host}/at/"
        assert DECODED == segmentlog.decode(ROWS, url, SUBJECT)["value"].to_pylist()
        with pytest.raises(segmentlog.OptionError, match="subjects are"):
            segmentlog.decode(ROWS, url, "nothing")


@pytest.mark.parametrize(
    ("url", "settings", "expected"),
    [
        ("http://me:wr0ng@{}", {}, r"refuses the user or the password \(401\)"),
        ("http://me:wr0ng@{}", {"other": b"nothing of HTTP"}, "it cannot be read"),
        ("http://{}", {"other": b"HTTP/1.0 200 OK\r\n\r\n{"}, "not that of a schema registry"),
        ("http://{}", {"other": b"HTTP/1.0 200 OK\r\n\r\n[7]"}, "not that of a schema registry"),
        ("http://{}", {"other": b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 9_000}, "more than 4096"),
        ("http://me:wr0ng@{}", {"other": b"HTTP/1.0 302 A\r\nLocation: http://a/\r\n\r\n"}, "302"),
        ("https://me:wr0ng@{}", {}, "it cannot be read"),
        ("http://{}?a=1", {}, "give an address"),
        ("http://me:wr0ng@{}x", {}, "give an addr"),
        ("http://me:wr0ng@", {}, "give an address"),
        ("http://[me:wr0ng", {}, "give an address"),
    ],
)
def test_a_registry_that_gives_no_schemas(
    url: str, settings: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_MOST_BYTES", 4096)
    with (
        serving(**settings) as host,
        pytest.raises(segmentlog.OptionError, match=expected) as caught,
    ):
        segmentlog.decode(ROWS, url.format(host), SUBJECT)
    assert "wr0ng" not in str(caught.value)
    assert "wr0ng" not in repr(caught.value.__dict__)


def test_reads_take_schemas_from_elsewhere(tmp_path: Path) -> None:
    """A registry, another directory, or a file, which names no subject; ids may be unknown."""
    with segmentlog.open_writer(tmp_path / "logs", "orders") as writer:
        writer.append(ROWS)
    given: dict[str, Any] = {"decode": "value", "decode_subject": SUBJECT}

    def read(place: Any, **options: Any) -> Any:
        rows = segmentlog.read(tmp_path / "logs", decode_schemas=place, **{**given, **options})
        return rows["value"].to_pylist()

    with serving() as host:
        url = f"http://me:s3cret%3A%40@{host}/at/"
        assert DECODED == read(url)
        logs = segmentlog.dataset(tmp_path / "logs", "orders", decode_schemas=url, **given)
        moved = pickle.loads(pickle.dumps(logs))
        assert DECODED == moved.to_table(["value"])["value"].to_pylist()
    assert DECODED == moved.to_table(["value"])["value"].to_pylist()
    with pytest.raises(segmentlog.OptionError, match=r"'decode_schemas' is .*cannot be") as caught:
        read(url)
    assert "s3cret" not in str(caught.value)
    file = tmp_path / "order.avsc"
    file.write_text(record(("a", "long")))
    assert [{"a": 1}, {"a": 3}] == read(file, decode_subject=None)
    with pytest.raises(segmentlog.OptionError, match="decode one of the two"):
        read(file, decode_subject=None, decode="key,value")
    register(tmp_path / "other", "orders-value", 1, 3, json.loads(record(("a", "int"))))
    assert [{"a": 1}, {"a": 3}] == read(str(tmp_path / "other"), decode_subject="orders-value")
    refused: list[dict[str, Any]] = [{"decode_schemas": url}, {"decode_frame": "glue"}]
    for options in refused:
        with pytest.raises(segmentlog.OptionError, match="belongs to decode, which") as caught:
            segmentlog.read(tmp_path / "logs", **options)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(segmentlog.OptionError, match="give a path, or the address"):
        read(7)


@pytest.mark.parametrize(
    ("frame", "value", "headers"),
    [
        ("apicurio", b"\0" + (7).to_bytes(8, "big") + b"\2", []),
        ("apicurio", b"\2", [("apicurio.value.globalId", (7).to_bytes(8, "big"))]),
        ("none", b"\2", []),
    ],
)
def test_reads_take_frames_of_others(
    frame: str, value: bytes, headers: list, tmp_path: Path
) -> None:
    """Values without a frame have the schema of the subject; headers count, too."""
    register(tmp_path, "orders-value", 1, 7, json.loads(record(("a", "int"))))
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    pairs = [[{"key": name, "value": data} for name, data in headers]]
    with segmentlog.open_writer(tmp_path, "orders") as writer:
        writer.append(pa.table({"value": [value], "headers": pa.array(pairs, kind)}))
    rows = segmentlog.read(tmp_path, "orders", decode="value", decode_frame=frame)
    assert [{"a": 1}] == rows["value"].to_pylist()
    logs = segmentlog.dataset(tmp_path, "orders", decode="value", decode_frame=frame)
    assert ("headers" in logs.decoding.scanned(["value"])) == (frame != "none")


def test_a_registry_with_a_certificate_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(1))
        .not_valid_after(now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (tmp_path / "ca").write_bytes(made.public_bytes(encoding))
    (tmp_path / "key").write_bytes(
        key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca", tmp_path / "key")
    with serving(context) as host:
        url = f"https://me:s3cret%3A%40@{host}/at"
        with pytest.raises(segmentlog.OptionError, match="CERTIFICATE_VERIFY_FAILED"):
            segmentlog.decode(ROWS, url, SUBJECT)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
        assert DECODED == segmentlog.decode(ROWS, url, SUBJECT)["value"].to_pylist()


@pytest.mark.parametrize("frame", ["confluent", "none"])
def test_a_file_is_the_schema_of_all_values(tmp_path: Path, frame: str) -> None:
    """Whatever id they name, if they have frames."""
    proto = 'syntax = "proto3"; message A { int64 a = 1; }'
    shape = json.dumps({"properties": {"a": {"type": "integer"}}})
    for name, text, data in [
        ("order.avsc", record(("a", "long")), b"\2"),
        ("order.json", shape, b'{"a": 1}'),
        ("order.proto", proto, b"\x08\1"),
    ]:
        path = tmp_path / name
        path.write_text(text)
        framed = b"\0\0\0\0\x09" + (b"\0" if name == "order.proto" else b"") + data
        values = [data if frame == "none" else framed, None]
        rows = pa.table({"value": pa.array(values, pa.binary())})
        decoded = segmentlog.decode(rows, path, frame=frame)
        assert [{"a": 1}, None] == decoded["value"].to_pylist()
        assert decoded.equals(segmentlog.decode(rows, str(path), "any", frame=frame))
    path.write_bytes(b"\xff")
    with pytest.raises(segmentlog.OptionError, match="is not UTF-8"):
        segmentlog.decode(rows, path)
    with pytest.raises(segmentlog.OptionError, match="frame"):
        segmentlog.decode(rows, path, frame="avro")
