"""``cat`` and ``produce`` read and write the records and bytes that kcat reads and writes."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_here import Broker, JavaClient, shapes
from typer.testing import CliRunner

from segmentlog.tools.cli import app

pytestmark = [pytest.mark.interop, pytest.mark.slow]

#: kcat's release in Debian prints fields that older ones lack.
KCAT = shutil.which("kcat")

#: All shapes but the compacted one, which the broker may clean between the two reads.
TOPICS = [topic for topic in shapes.SHAPES if topic != "compacted"]

FORMATS = [
    ("-f", r"%t|%p|%o|%T|%k|%K|%S|%R|%h|%s\n"),
    ("-f", r"100%% \x41\102 %o\t%k\n", "-Z"),
    ("-J",),
    ("-J", "-Z", "-D", r"\n--\n"),
    ("-K", ":"),
    ("-K", r"\x1f", "-D", ";", "-Z"),
    ("-o", "-3", "-J"),
    ("-o", "5", "-c", "4"),
    ("-o", "s@1700000000500", "-f", r"%o %T\n"),
    ("-o", "e@1700000001500", "-f", r"%o %T\n"),
]


@pytest.fixture(scope="module")
def served(
    filled: tuple, version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A running broker with the topics of every shape."""
    if KCAT is None:
        pytest.skip("kcat is not installed")
    broker = Broker(tmp_path_factory.mktemp("kafka"), version)
    shutil.copytree(filled[0].log_dir, broker.log_dir)
    with broker:
        yield broker


def kcat(broker: Broker, topic: str, options: tuple[str, ...]) -> bytes:
    """The output of kcat for the first partition."""
    command = [KCAT, "-C", "-q", "-e", "-b", broker.bootstrap_servers, "-t", topic, "-p", "0"]
    command += ["-X", "fetch.wait.max.ms=10", *options]
    return subprocess.run(command, capture_output=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("version", ["4.3.1"], indirect=True)
@pytest.mark.parametrize("options", FORMATS, ids=" ".join)
def test_output_is_that_of_kcat(served: Broker, options: tuple[str, ...]) -> None:
    """Every byte is equal for every topic: codecs, nulls, headers, transactions, large values."""
    for topic in TOPICS:
        if topic == "deleted-records" and options[:2] == ("-o", "5"):
            continue  # kcat goes to the end, and not to the log start, from a deleted offset
        arguments = ["cat", str(served.log_dir), topic, "-p", "0", *options]
        ours = CliRunner().invoke(app, arguments)

        assert 0 == ours.exit_code, ours.output
        assert kcat(served, topic, options) == ours.stdout_bytes, topic


INPUTS = [
    (b"a:1\n\nb:\n:x\nplain\nc:d:e", ("-K", ":")),
    (b"a:1\n\nb:\n:x\n:\nplain\nc:d:e\n", ("-K", ":", "-Z", "-k", "fixed")),
    (b"one;two;;three\n", ("-D", ";", "-k", "k", "-H", "a=1", "-H", "b", "-H", "a=")),
    (b"k1\x1f--v1--k2\x1fv-2--", ("-D", "--", "-K", r"\x1f", "-c", "2")),
]


@pytest.mark.parametrize("version", ["4.3.1"], indirect=True)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_are_those_of_kcat(served: Broker, codec: str, tmp_path: Path) -> None:
    """Keys, values and headers of the same input are equal: empty lines, nulls, fixed keys."""
    with JavaClient(served) as client:
        for i in range(len(INPUTS)):
            client.create_topic(f"produced-{codec}-{i}")
    for i, (data, options) in enumerate(INPUTS):
        topic = f"produced-{codec}-{i}"
        command = [KCAT, "-P", "-b", served.bootstrap_servers, "-t", topic, "-z", codec, *options]
        subprocess.run(command, input=data, capture_output=True, timeout=60, check=True)
        arguments = ["produce", str(tmp_path), topic, "-z", codec, *options]
        ours = CliRunner().invoke(app, arguments, input=data)
        written = [
            CliRunner().invoke(app, ["cat", str(place), topic, "-f", r"%o|%k|%K|%s|%S|%h\n"])
            for place in (served.log_dir, tmp_path)
        ]

        assert 0 == ours.exit_code, ours.output
        assert written[0].stdout_bytes.count(b"\n") >= 2
        assert written[0].stdout_bytes == written[1].stdout_bytes
