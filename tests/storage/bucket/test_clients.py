"""The client of a place: the settings of the URL, of the environment of now, and of profiles."""

import datetime
import errno
import hashlib
import ipaddress
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from moto_here import Moto
from proxies import FAULTS, Fault, FaultyServer, Sent
from spoiled_requests import new_place, new_process

import segmentlog
from segmentlog.bucket import clients
from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.objects import REFUSALS, ObstoreObjects
from segmentlog.errors import LogDirectoryError, StorageError
from segmentlog.store.paths import bucket_at
from segmentlog.store.remote.location import location_of
from segmentlog.store.remote.profiles import find_profile


@pytest.fixture(autouse=True)
def _other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No files of the user count, and no role of the machine."""
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    new_process()
    yield
    new_process()


@pytest.fixture
def proxy(moto: Moto) -> Iterator[FaultyServer]:
    with FaultyServer(moto.port) as made:
        yield made


def _write(url: str, *values: str) -> None:
    with segmentlog.open_writer(url, "orders") as writer:
        writer.append(pa.table({"value": [*values]}))


def _values(url: str) -> list[bytes]:
    return segmentlog.read(url, "orders")["value"].to_pylist()


def _key_of(sent: Sent) -> str:
    return sent.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]


def _knows(*keys: str) -> Callable[[int, Sent], Fault | None]:
    """Chooses faults for requests that were signed with other keys."""
    return lambda _number, sent: (
        None if _key_of(sent) in keys else Fault(False, 403, "InvalidAccessKeyId")
    )


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_of_the_environment(
    name: str, moto: Moto, proxy: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.endswith("S3"):  # the closer one counts
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    place = f"s3://logs/environment-{name}"
    _write(place, "a")
    assert _values(place) == [b"a"]
    assert {_key_of(each) for each in proxy.requests} == {"any"}


def test_the_endpoint_of_a_url_is_above_the_environment(
    moto: Moto, proxy: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under all names of the client; an empty variable is none."""
    place, nowhere = new_place(moto.url("above"), proxy), "http://127.0.0.1:1"
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, nowhere)
    _write(place, "a")
    assert _values(place) == [b"a"]

    def endpoint() -> str:
        location = location_of("s3://logs;region=eu-west-1;access_key=k;secret_key=s/kafka")
        made: Any = clients._made(location, "")({})
        config = made.config
        return str(config["endpoint_url_s3"])

    assert endpoint() == nowhere
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "")
    assert endpoint() == nowhere
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert endpoint() == "https://s3.eu-west-1.amazonaws.com"
    monkeypatch.delenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    assert endpoint() == "https://s3.eu-west-1.amazonaws.com"
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(
        "[profile p]\naws_access_key_id=k\naws_secret_access_key=s\nservices=local\n"
        "endpoint_url=http://other\n[services local]\ns3 =\n  endpoint_url = http://minio\n"
    )
    profile = find_profile({"profile": "p"})
    assert profile is not None
    assert profile.endpoint == "http://minio"
    with pytest.raises(LogDirectoryError, match=r"connect_timeout is .*: give a number"):
        segmentlog.open_log_dir(f"{place}&connect_timeout=soon")


def test_every_request_is_made_with_the_same_settings(
    moto: Moto, proxy: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, which asks for the marker, too."""
    place = new_place(moto.url("payer"), proxy) + "&request_payer=true"
    for write in (_write, lambda url: _values(url) and segmentlog.sweep(url)):
        new_process()
        write(place)
    assert {each.headers.get("x-amz-request-payer") for each in proxy.requests} == {"requester"}
    for value in ("true", "requester"):
        new_process()
        proxy.reset()
        monkeypatch.setenv("AWS_REQUEST_PAYER", value)
        _values(place.removesuffix("&request_payer=true"))
        headers = {each.headers.get("x-amz-request-payer") for each in proxy.requests}
        assert headers == {"requester"}


def test_credentials_are_those_of_now(
    moto: Moto, proxy: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong key is corrected, and later another one takes its place."""
    place = new_place(moto.url("now"), proxy)
    proxy.choose = _knows("RIGHT")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "TYPO")
    with pytest.raises(StorageError, match="check the key and its secret") as caught:
        _write(place, "a")
    assert caught.value.store_code == "InvalidAccessKeyId"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "RIGHT")
    _write(place, "a")
    directory = segmentlog.open_log_dir(place)  # which keeps its client
    proxy.choose = _knows("NEXT")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NEXT")
    _write(place, "b")
    directory.refresh()
    assert _values(place) == [b"a", b"b"]


def _profile(tmp_path: Path, key: str, more: str = "") -> None:
    text = f"[reports]\naws_access_key_id = {key}\naws_secret_access_key = s\n"
    (tmp_path / "credentials").write_text(text)
    (tmp_path / "config").write_text(f"[profile reports]\n{more}")


@pytest.mark.parametrize("way", ["option", "variable", "default"])
def test_a_profile_is_taken_by_its_name(
    way: str, moto: Moto, proxy: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in another process, which only gets the URL; and one whose file was renewed."""
    proxy.choose = _knows("PROFILE1")
    _profile(tmp_path, "PROFILE1", f"endpoint_url = http://127.0.0.1:{proxy.port}\n")
    place = new_place(moto.url("profile"), proxy).partition("?")[0]
    if way == "option":
        place += "?profile=reports"  # and no other key of the environment counts
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OTHER")
    else:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    if way == "variable":
        monkeypatch.setenv("AWS_PROFILE", "reports")
    if way == "default":
        for name in ("credentials", "config"):
            text = (tmp_path / name).read_text()
            for section in ("[reports]", "[profile reports]"):
                text = text.replace(section, "[default]")
            (tmp_path / name).write_text(text)
    _write(place, "a")
    if way == "option":
        program = "import segmentlog, sys; print(segmentlog.read(sys.argv[1], 'orders').num_rows)"
        found = subprocess.run(
            [sys.executable, "-c", program, place], capture_output=True, text=True, check=False
        )
        assert found.stdout == "1\n", found.stderr
    proxy.choose = _knows("PROFILE2")  # PROFILE1 has expired, and the file was renewed
    text = (tmp_path / "credentials").read_text()
    (tmp_path / "credentials").write_text(text.replace("PROFILE1", "PROFILE2"))
    _write(place, "b")
    assert _values(place) == [b"a", b"b"]


def test_a_profile_that_is_missing_is_named(moto: Moto, tmp_path: Path) -> None:
    _profile(tmp_path, "K")
    with pytest.raises(LogDirectoryError, match=r"config profile \(nosuch\) could not be found"):
        _write(moto.url("x") + "&profile=nosuch", "a")
    with pytest.raises(LogDirectoryError, match="keys and a profile"):
        _write(moto.url("x").replace("s3://", "s3://k:s@") + "&profile=reports", "a")


def test_a_role_is_taken(moto: Moto, proxy: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    place = new_place(moto.url("role"), proxy)
    _write(f"{place}&role_arn=arn:aws:iam::123456789012:role/logs&session_name=nightly", "a")
    keys = {_key_of(each) for each in proxy.requests if each.target != "/"}
    assert keys
    assert "any" not in keys


def test_without_any_credentials_nothing_is_waited_for(
    moto: Moto, proxy: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(StorageError, match="no credentials were found"):
        _write(new_place(moto.url("none"), proxy), "a")
    assert not proxy.requests


@pytest.mark.parametrize(
    ("option", "right"),
    [
        ("endpoint=http://x", "endpoint (write endpoint_override)"),
        ("AWS_ENDPOINT_URL=http://x", "AWS_ENDPOINT_URL (write endpoint_override)"),
        ("fs.s3a.endpoint=http://x", "fs.s3a.endpoint (write endpoint_override)"),
        ("aws_access_key_id=topsecret", "aws_access_key_id (write access_key)"),
        ("regoin=eu", "regoin (write region)"),
        ("colour=topsecret", "unknown here: colour;"),
    ],
)
def test_an_unknown_option_gets_its_right_name(option: str, right: str) -> None:
    for ask in (segmentlog.open_log_dir, lambda url: segmentlog.open_writer(url, "orders")):
        with pytest.raises(LogDirectoryError) as caught:
            ask(f"s3://logs/x?{option}")
        assert right in str(caught.value)
        assert "topsecret" not in str(caught.value)


def test_a_proxy_of_the_environment(
    moto: Moto, proxy: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests to a proxy name the whole URL, which it passes on."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
    place = f"s3://logs/proxied?endpoint_override=http://localhost.test:{moto.port}"
    _write(place, "a")
    assert _values(place) == [b"a"]
    assert all("localhost.test" in each.target for each in proxy.requests)
    assert proxy.requests


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    maker: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> bytes:
    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    day, now = datetime.timedelta(1), datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named("a company"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(extension, critical=False)
        .sign(maker, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


class _Tls(ThreadingHTTPServer):
    """A server with a certificate that only its maker knows; it says that nothing is there."""

    def __init__(self, folder: Path) -> None:
        maker, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        is_maker = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = folder / "ca.pem"
        self.certificate.write_bytes(_certificate("a company", maker, maker, is_maker))
        (folder / "own.pem").write_bytes(_certificate("a server", own, maker, host))
        kind = serialization.PrivateFormat.PKCS8
        encoded = own.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
        (folder / "key.pem").write_bytes(encoded)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "own.pem", folder / "key.pem")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


def test_the_certificate_of_a_company(
    moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _Tls(tmp_path)
    url = f"s3://logs/x?endpoint_override=https://127.0.0.1:{server.server_port}"
    try:
        location = segmentlog.store.paths.bucket_at(url)
        objects = segmentlog.bucket.clients.objects_at(location)
        monkeypatch.setattr(segmentlog.bucket.clients, "_RETRIES", {"max_retries": 0})
        with pytest.raises(StorageError, match=r"not trusted \(UnknownIssuer\).*AWS_CA_BUNDLE"):
            objects.get("marker")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(server.certificate))
        assert objects.get("marker") is None
    finally:
        server.shutdown()
        server.server_close()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "missing.pem"))
    with pytest.raises(LogDirectoryError, match=r"missing\.pem: No such file"):
        objects.get("marker")


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (403, "InvalidObjectState", "the object is in an archive"),
        (403, "RequestTimeTooSkewed", "set the clock"),
        (400, "KMS.DisabledException", "look at the key that encrypts the bucket"),
        (400, "ExpiredToken", "renew them"),
        (403, "AccessDenied", "give credentials"),
        (503, "SlowDown", "use fewer clients at once"),
    ],
)
def test_the_advice_is_for_the_code_of_the_store(
    status: int, code: str, advice: str, moto: Moto, proxy: FaultyServer
) -> None:
    place = new_place(moto.url("advice"), proxy)
    _write(place, "a")
    proxy.choose = lambda _, sent: Fault(False, status, code) if "/data/" in sent.target else None
    with pytest.raises(StorageError, match=advice) as caught:
        _values(place)
    assert caught.value.store_code == code
    assert code in str(caught.value)
    proxy.reset()
    assert _values(place) == [b"a"]


def test_an_upload_in_parts_is_not_begun_anew_with_what_is_left(
    moto: Moto, proxy: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces come from an iterator: after expired credentials, some of them are gone."""
    monkeypatch.setattr(segmentlog.bucket.objects, "PART_BYTES", 1000)
    location = segmentlog.store.paths.bucket_at(new_place(moto.url("parts"), proxy))
    objects = segmentlog.bucket.clients.objects_at(location)
    assert objects.get("x") is None
    proxy.choose = lambda _, sent: (
        Fault(False, 400, "ExpiredToken") if "partNumber=3" in sent.target else None
    )
    with pytest.raises(StorageError, match="renew them"):
        objects.put("x", iter([bytes(600)] * 10))
    assert objects.get("x") is None
    proxy.reset()
    objects.put("x", iter([bytes(600)] * 10))
    assert objects.get("x") == bytes(6000)
    assert os.environ["AWS_ACCESS_KEY_ID"] == "any"


def test_an_object_is_exchanged_only_as_long_as_it_is_the_same(
    moto: Moto, proxy: FaultyServer
) -> None:
    location = bucket_at(new_place(moto.url("exchange"), proxy))
    assert location is not None
    objects, fault = objects_at(location), list[Fault]()

    def choose(_: int, sent: Sent) -> Fault | None:
        return fault[0] if fault and "if-match" in sent.headers else None

    objects.put("a", [b"1"])
    assert not objects.exchange("a", b"2", b"3")
    assert not objects.exchange("none", b"1", b"3")
    assert objects.exchange("a", b"1", b"2")
    assert proxy.requests[-1].headers["if-match"].strip('"') == hashlib.md5(b"1").hexdigest()
    proxy.choose = choose
    fault[:] = [FAULTS["412 before"]]  # another client was quicker
    assert not objects.exchange("a", b"2", b"3")
    fault[:] = [FAULTS["500 after"]]
    with pytest.raises(StorageError):
        objects.exchange("a", b"2", b"3")
    fault[:] = [Fault(False, 501, "NotImplemented")]  # the store has no such condition
    assert objects.exchange("a", b"3", b"4")
    assert objects.get("a") == b"4"


def test_a_client_that_does_not_wake_is_an_error(moto: Moto, monkeypatch) -> None:
    """It has time-outs of its own, and has slept through them."""
    location = bucket_at(moto.url("asleep"))
    assert location is not None
    objects, wakes, real = objects_at(location), threading.Event(), obstore.get
    objects.put("a", [b"1"])
    assert isinstance(objects, ObstoreObjects)
    assert objects._seconds == 180
    monkeypatch.setattr(objects, "_seconds", 0.05)
    monkeypatch.setattr(obstore, "get", lambda *given: wakes.wait() and real(*given))
    for key in ("a", "b"):
        with pytest.raises(StorageError, match=f"/{key}: reading took more than 0.05 s") as found:
            objects.get(key)
        assert found.value.errno == errno.ETIMEDOUT
        assert found.value.errno not in REFUSALS
    wakes.set()
    monkeypatch.setattr(objects, "_seconds", 60)
    assert objects.get("a") == b"1"  # and not what a thread before has waited for
    assert objects.get("b") is None


def test_the_client_waits_as_long_as_a_request_may_take(moto: Moto) -> None:
    location = bucket_at(f"{moto.url('slow')}&request_timeout=100")
    assert location is not None
    objects = objects_at(location)
    assert isinstance(objects, ObstoreObjects)
    assert objects._seconds == 300
