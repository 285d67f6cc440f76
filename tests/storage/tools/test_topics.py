"""``segmentlog topics`` lists topics, and their records over time, without reading records."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from diskless_directory import SEAL, diskless_topics
from typer.testing import Result

import segmentlog
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools.topics import summarize

Run = Callable[..., Result]
START = 1_700_000_000_000


def test_a_line_a_topic(run: Run, example_data: str) -> None:
    """A line has partitions, records, bytes, the rate, times and bars."""
    heading, customers, orders, payments = run("topics", example_data).stdout.splitlines()

    assert heading.split()[:4] == ["topic", "partitions", "records", "bytes"]
    assert ["orders", "3", "900", "17,309", "0.00348", "2025-10-09T08:53:20Z"] == orders.split()[
        :6
    ]
    assert customers.startswith("customers ")
    assert customers.split()[2] == "≤122"  # it was compacted
    assert payments.split()[-1].startswith("█▁")
    assert "__transaction_state" in run("topics", example_data, "--internal").stdout
    assert 2 == len(run("topics", example_data, "--topic", "orders").stdout.splitlines())


def test_a_topic_that_is_compacted_has_at_most_as_many_records_as_offsets(
    run: Run, example_data: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the checkpoint of the cleaner, the first batches show it, or the settings."""
    copy = shutil.copytree(example_data, tmp_path / "data")
    (copy / "cleaner-offset-checkpoint").unlink()
    assert "≤122" in run("topics", copy, "--topic", "customers").stdout
    assert " 122 " in run("topics", copy, "--topic", "payments").stdout
    own = tmp_path / "own"
    for topic in ("kept", "erased", "compacted"):
        with segmentlog.open_writer(own, topic) as writer:
            writer.append(pa.table({"key": ["a", "b"], "value": ["a", "b"]}))
    segmentlog.erase(own, "a", topics="erased")
    segmentlog.alter_settings(own, "compacted", {"cleanup.policy": "compact,delete"})
    rows = map(json.loads, run("topics", own, "--json").stdout.splitlines())
    assert {"compacted": True, "erased": True, "kept": False} == {
        row["topic"]: row["recordsAtMost"] for row in rows
    }
    (own / "segmentlog.settings").write_text("damaged")
    assert "≤2" in run("topics", own, "--topic", "erased").stdout
    assert "which topics are compacted is not known" in caplog.text


def test_missing_partitions_are_counted(run: Run, example_data: str, tmp_path: Path) -> None:
    """Checkpoints name partitions that are gone, also if none of a topic is left."""
    copy = shutil.copytree(example_data, tmp_path / "data")
    shutil.rmtree(copy / "orders-1")
    shutil.rmtree(copy / "payments-0")
    done = run("topics", copy, status=1)

    assert "2 of 3" in done.stdout
    assert "0 of 1" in done.stdout
    assert "orders-1: its high watermark is 317" in done.stderr
    assert "2 of 3" in run("topics", copy, "--topic", "orders", status=1).stdout
    assert (
        "did you mean 'customers'" in run("topics", copy, "--topic", "customer", status=2).stderr
    )


@pytest.mark.parametrize("command", ["topics", "describe", "verify", "dump"])
def test_a_topic_without_any_of_its_partitions_is_known(
    run: Run,
    example_data: str,
    tmp_path: Path,
    command: str,
) -> None:
    """A topic that never existed is an error, even beside a topic with missing partitions."""
    copy = shutil.copytree(example_data, tmp_path / "data")
    shutil.rmtree(copy / "payments-0")
    done = run(command, copy, "--topic", "payments", status=1)
    assert "its high watermark is 122" in done.stdout + done.stderr
    assert "orders" not in done.stdout.replace(str(copy), "")
    both = run(command, copy, "--topic", "payments", "--topic", "customer", status=2)
    assert "did you mean 'customers'" in both.stderr


def test_json_has_an_object_a_topic(run: Run, example_data: str) -> None:
    """The numbers over time add up to the records."""
    row = json.loads(run("topics", example_data, "--topic", "orders", "--json").stdout)

    assert (3, 3, 900, 17_309) == (
        row["partitionsHere"],
        row["partitions"],
        row["records"],
        row["bytes"],
    )
    assert 1_760_000_000_000 == row["firstTimestamp"]
    assert 890 <= sum(row["recordsOverTime"]) <= 910
    assert [] == row["problems"]


def test_a_partition_that_cannot_be_read_is_told(
    run: Run, example_data: str, tmp_path: Path
) -> None:
    """The other partitions of the topic are counted."""
    copy = shutil.copytree(example_data, tmp_path / "data")
    (log,) = (copy / "orders-0").glob("*.log")
    log.write_bytes(b"\xff" * 30 + log.read_bytes()[30:])
    row = json.loads(run("topics", copy, "--topic", "orders", "--json", status=1).stdout)

    assert 317 + 248 <= row["records"] <= 900
    assert row["problems"][0].startswith("orders-0: ")


@pytest.mark.parametrize("n_segments", [1, 5, 200])
def test_records_over_time_are_those_of_the_records(tmp_path: Path, n_segments: int) -> None:
    """Counts by the time index differ from exact counts by less than the entries' distance."""
    generator = np.random.default_rng(n_segments)
    times = START + np.sort(generator.integers(0, 10**6, 2000) ** 2 // 10**6)
    partition = tmp_path / "orders-0"
    partition.mkdir()
    for base in range(0, len(times), len(times) // n_segments):
        data, entries = b"", b""
        for offset in range(base, base + len(times) // n_segments):
            data += encode_batch([Record(offset, int(times[offset]), None, b"v")])
            if offset % 5 == 4:
                entries += int(times[offset]).to_bytes(8, "big") + (offset - base).to_bytes(
                    4, "big"
                )
        (partition / f"{base:020d}.log").write_bytes(data)
        (partition / f"{base:020d}.timeindex").write_bytes(entries)
    (found,) = summarize(segmentlog.open_log_dir(tmp_path))
    begin, end = int(times[0]), int(times[-1])
    expected, _ = np.histogram(times, 10, (begin, end))

    assert (begin, end, len(times)) == (found.first_ms, found.last_ms, found.records)
    assert abs(expected - found.counts(begin, end, 10)).max() <= 2 * len(times) / 64


def test_no_record_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty topic has no times, and reads of slices are not needed for any topic."""
    with segmentlog.open_writer(tmp_path, "orders", num_partitions=2) as writer:
        writer.append(pa.table({"value": [b"a"], "partition": pa.array([0], pa.int32())}))
    monkeypatch.setattr(segmentlog.Log, "slices", None)
    (found,) = summarize(segmentlog.open_log_dir(tmp_path))

    assert (2, 2, 1, []) == (found.n_here, found.n_partitions, found.records, found.problems)
    shutil.rmtree(tmp_path / "orders-0")
    (tmp_path / "replication-offset-checkpoint").unlink()
    (empty,) = summarize(segmentlog.open_log_dir(tmp_path))

    assert (1, 2, 0, None, None) == (
        empty.n_here,
        empty.n_partitions,
        empty.records,
        empty.first_ms,
        empty.rate,
    )


@pytest.mark.parametrize("command", ["topics", "describe"])
def test_a_diskless_topic_does_not_end_with_its_files(
    run: Run, tmp_path: Path, command: str
) -> None:
    """The offset from which records are elsewhere is named; a classic topic is whole."""
    done = run(command, diskless_topics(tmp_path), "--topic", "switched", status=1)
    assert f"records from offset {SEAL} on are in its object store" in done.output
    assert "object store" not in run(command, tmp_path, "--topic", "classic").output
