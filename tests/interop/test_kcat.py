"""``segmentlog cat`` writes what kcat writes of the same records."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from kafka_here import Broker, shapes
from typer.testing import CliRunner

from segmentlog.tools.cli import app

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

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
