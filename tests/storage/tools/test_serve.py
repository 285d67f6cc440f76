"""``segmentlog serve``: what it says, and how it ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kafka_protocol import RawClient, consume
from typer.testing import CliRunner
from waiting import wait_for

import segmentlog
from segmentlog.serving import open_server
from segmentlog.serving.open_server import Server
from segmentlog.serving.users import read_users
from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.tools.cli import app


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_names_its_address_and_ends_at_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The first line is for programs; what groups lose is said beside it."""
    made = KafkaLog(tmp_path / "kafka")
    made.write("orders", ["a"], num_partitions=2)
    found: list[bytes | None] = []
    servers: list[Server] = []
    serve = segmentlog.serve

    def serve_and_tell(*paths: str, **options: Any) -> Server:
        servers.append(serve(*paths, **options))
        return servers[0]

    def read_and_end() -> None:
        try:
            wait_for(
                lambda: servers and signal.getsignal(number) is not signal.default_int_handler,
                lambda: "nobody listens",
                pause=0.02,
            )
            with RawClient(servers[0].address) as client:
                found.extend(each.value for each in consume(client, "orders", 0))
        finally:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(segmentlog, "serve", serve_and_tell)
    reader = threading.Thread(target=read_and_end)
    reader.start()
    done = CliRunner().invoke(app, ["serve", str(made.path), "--bind", "127.0.0.1:0"])
    reader.join()
    address = servers[0].address

    assert 0 == done.exit_code, done.output
    assert [b"a"] == found
    line = f"{address} serves 1 topic, 2 partitions of {made.path}, up to their high watermarks\n"
    assert line == done.stdout
    assert "--offsets keeps them" in done.stderr
    with pytest.raises(ConnectionError):
        RawClient(address)


def test_a_signal_that_comes_in_a_finalizer_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python lets no exception out of a finalizer: one from a handler would be gone."""
    made = KafkaLog(tmp_path / "kafka")
    n_sleeps = 0

    class Collected:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def sleep(_: float) -> None:
        nonlocal n_sleeps
        n_sleeps += 1
        assert 1 == n_sleeps, "the signal is lost"
        Collected()

    monkeypatch.setattr(time, "sleep", sleep)

    assert 0 == CliRunner().invoke(app, ["serve", str(made.path)]).exit_code


def test_a_file_system_that_hangs_does_not_keep_it_from_its_end(tmp_path: Path) -> None:
    """The process ends although its threads wait."""
    made = KafkaLog(tmp_path / "kafka")
    made.write("t", ["a"])
    code = """
import sys, threading
from segmentlog.store.readable import LocalDisk

def opened(self, path, *, follow=True):
    if path.endswith(".log"):
        print("waits", flush=True)
        threading.Event().wait()
    return as_before(self, path, follow=follow)

as_before, LocalDisk.open = LocalDisk.open, opened
import segmentlog_command
sys.argv = ["segmentlog", "serve", sys.argv[1], "--bind", "127.0.0.1:0"]
segmentlog_command.main()
"""
    command = [sys.executable, "-c", code, str(made.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            with RawClient(process.stdout.readline().split()[0]) as client:
                client.sock.sendall(client.frame(2, 9, topics=[_by_time("t")]))
                assert "waits\n" == process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(30)
        finally:
            process.kill()


def _by_time(topic: str) -> dict[str, Any]:
    return {"name": topic, "partitions": [{"partition_index": 0, "timestamp": 0}]}


def test_a_user_is_hashed(tmp_path: Path) -> None:
    """Twice the same password has two salts; the lines are a file of users."""
    lines = [
        CliRunner().invoke(app, ["serve", "--hash-user", name], input="secret\n").stdout
        for name in ("alice", "bob")
    ]
    (tmp_path / "users").write_text("# who reads\n" + "".join(lines))

    users = read_users(str(tmp_path / "users"))
    assert ["alice", "bob"] == [*users]
    assert users["alice"] != users["bob"]
    assert "secret" not in "".join(lines)


def test_other_machines_are_refused_without_users(tmp_path: Path) -> None:
    made = KafkaLog(tmp_path / "kafka")
    done = CliRunner().invoke(app, ["serve", str(made.path), "--bind", "0.0.0.0:9092"])

    assert 2 == done.exit_code
    assert "--bind" in done.stderr
    assert "--tls-certificate" in done.stderr


def test_a_missing_package_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_server, "find_spec", lambda _: None)
    done = CliRunner().invoke(app, ["serve", str(tmp_path)])

    assert 2 == done.exit_code
    expected = f"{tmp_path}: to serve it needs the package kio, which has Kafka's protocol: pip"
    assert expected in done.stderr
