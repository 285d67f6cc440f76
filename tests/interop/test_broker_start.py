"""Brokers that start on damaged directories: the prediction is what the broker does."""

import re
import time
from pathlib import Path

import pytest
from damaged_starts import DAMAGES, FILES, Case, damage, predicted, writable_copy
from kafka_here import ArtifactsError, Broker, JavaClient, kafka_jars
from kafka_here.artifacts import kept
from kafka_here.java import Outgoing

import segmentlog
from segmentlog import StartAction

pytestmark = [pytest.mark.interop, pytest.mark.slow]

#: After a start, a broker that loses its only log directory ends when a thread has noticed that.
_END_SECONDS, _SETTLED_SECONDS = 60, 1.5


class _Started(Broker):
    """A broker on a directory that is never formatted."""

    def _prepare(self, settings: Path) -> None:
        """Keep the directory as it is."""

    def outcome(self, *, is_to_end: bool = False) -> str:
        """Start it, wait for its end if that is predicted, and kill it; returns what it did."""
        before = {each.name for each in self.log_dir.iterdir()}
        try:
            self.start()
            until = time.monotonic() + (_END_SECONDS if is_to_end else _SETTLED_SECONDS)
            while self.is_running and time.monotonic() < until:
                time.sleep(0.1)
        except RuntimeError as error:
            if "stopped at start-up" not in str(error):
                raise
        is_up = self.is_running
        self.kill()
        if not is_up:
            return "refused"
        now = {each.name for each in self.log_dir.iterdir()}
        if any(name.endswith("-stray") for name in now - before):
            return "stray"
        return "emptied" if list(self.log_dir.glob("*/*.log.deleted")) else "starts"


def _filled(version: str, directory: Path) -> Path:
    """A log directory that a broker of the version has filled and stopped."""
    try:
        kafka_jars(version)
    except ArtifactsError as error:
        pytest.skip(f"Kafka {version} cannot be had: {error}")

    def make(into: Path) -> None:
        broker = Broker(directory / "filling", version)
        with broker, JavaClient(broker) as client:
            client.create_topic("orders", 3)
            client.create_topic("invoices", 2)
            rows = [Outgoing(b"%d" % i, b"v", (), None, i % 3) for i in range(60)]
            client.produce("orders", rows)
            few = [Outgoing(b"%d" % i, b"v", (), None, 0) for i in range(3)]
            client.produce("invoices", few, transactions=("commit", "abort"))
        writable_copy(broker.log_dir, into / "logs")

    return kept(f"started-{version}", make) / "logs"


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("version", ["4.3.1", "3.9.2", "4.4.0"])
def test_the_prediction_is_what_the_broker_does(
    tmp_path: Path, version: str, file: str, *, is_clean: bool
) -> None:
    """Each file is damaged in each way; bytes that are cut off a log are predicted, too."""
    base = _filled(version, tmp_path)
    found, expected = {}, {}
    for kind in DAMAGES:
        case = Case(file, kind, is_clean)
        broker = _Started(tmp_path / kind, version)
        writable_copy(base, broker.log_dir)
        damage(broker.log_dir, case)
        steps = segmentlog.preflight(broker.log_dir)
        log = broker.log_dir / "orders-1" / "00000000000000000000.log"
        size = log.stat().st_size if log.exists() else 0
        cut = sum(
            each.n_bytes for each in steps
            if (each.action, each.topic) == (StartAction.TRUNCATE, "orders") and not is_clean
        )  # fmt: skip
        found[case.name] = predicted(steps)
        is_to_end = found[case.name] == "refused"
        expected[case.name] = broker.outcome(is_to_end=is_to_end)
        if expected[case.name] == "starts" and log.exists():
            assert size - cut == log.stat().st_size, case.name
    assert expected == found


def test_a_zeroed_block_of_the_metadata_makes_all_partitions_stray(tmp_path: Path) -> None:
    """The prediction names each directory that the broker renames."""
    broker = _Started(tmp_path / "broker")
    writable_copy(_filled("4.3.1", tmp_path), broker.log_dir)
    (log,) = broker.log_dir.glob("__cluster_metadata-0/*.log")
    data = bytearray(log.read_bytes())
    middle = len(data) // 4
    data[middle : middle + 512] = bytes(512)
    log.write_bytes(data)
    steps = segmentlog.preflight(broker.log_dir)
    predicted_strays = sorted(
        f"{each.topic}-{each.partition}" for each in steps if each.action == StartAction.STRAY
    )
    assert "stray" == broker.outcome()
    strays = [each.name for each in broker.log_dir.glob("*-stray")]
    assert sorted(re.sub(r"\.[0-9a-f]{32}-stray$", "", each) for each in strays) == (
        predicted_strays
    )
