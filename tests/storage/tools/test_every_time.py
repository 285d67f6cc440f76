"""Commands show every time that Kafka can store, also those that microseconds cannot hold."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

import segmentlog
from segmentlog.errors import TimestampOverflowError
from segmentlog.testing.reference import Record, encode_batch

Run = Callable[..., Result]

NANOSECONDS = 1_700_000_000_000_000_000
TIMES = [NANOSECONDS, 2**63 - 1, -(2**63) // 1000 - 1, -2, 1_700_000_000_000]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A topic whose times are far off, and after it one as usual."""
    for topic, times in (("far", TIMES), ("near", [1_700_000_000_000])):
        partition = tmp_path / f"{topic}-0"
        partition.mkdir()
        batches = [
            encode_batch([Record(i, time, b"key", b"needle")]) for i, time in enumerate(times)
        ]
        (partition / f"{0:020d}.log").write_bytes(b"".join(batches))
    return tmp_path


def test_a_search_goes_through_every_topic(run: Run, logs: Path) -> None:
    """Each record is found, with its time, and a range of times chooses among them."""
    rows = [json.loads(line) for line in run("grep", "needle", logs, "--json").stdout.splitlines()]
    since = run("grep", "needle", logs, "--since", NANOSECONDS // 1000, "--json").stdout

    assert [("far", time) for time in TIMES] + [("near", TIMES[-1])] == [
        (row["topic"], row["timestamp"]) for row in rows
    ]
    assert TIMES[:2] == [json.loads(line)["timestamp"] for line in since.splitlines()]
    assert f"far-0:0 {NANOSECONDS} key='key'" in run("grep", "needle", logs).stdout


def test_records_are_written_with_their_times(run: Run, logs: Path) -> None:
    """Kcat's formats have the stored number of milliseconds."""
    text = run("cat", logs, "far", "-f", r"%T\n").stdout
    rows = [json.loads(line) for line in run("cat", logs, "far", "-J").stdout.splitlines()]
    until = run("cat", logs, "far", "-o", f"e@{NANOSECONDS}", "-f", r"%T\n", status=0)

    assert [*map(str, TIMES)] == text.split()
    assert TIMES == [row["ts"] for row in rows]
    assert "" == until.stdout


@pytest.mark.parametrize("command", ["topics", "describe", "verify"])
def test_summaries_are_made(run: Run, logs: Path, command: str) -> None:
    """A time that no calendar has is shown as its number, and ends no command."""
    assert "far" in run(command, logs, "--json").stdout or command == "verify"
    run(command, logs)


def test_dumps_are_whole(run: Run, logs: Path, tmp_path: Path) -> None:
    """JSON, a table and a Parquet file have every time."""
    found = run("dump", logs, "--topic", "far", "--records", "--format", "json").stdout
    rows = [json.loads(line) for line in found.splitlines()]
    output = tmp_path / "far.parquet"
    run("dump", logs, "--topic", "far", "--records", "--format", "parquet", "-o", output)
    shown = run("dump", logs, "--topic", "far", "--records").stdout
    since = run("dump", logs, "--records", "--format", "json", "--since", NANOSECONDS).stdout

    assert TIMES == [row["timestamp"] for row in rows if "timestamp" in row]
    assert TIMES == pq.read_table(output)["timestamp"].cast("int64").to_pylist()
    assert str(NANOSECONDS) in shown
    assert TIMES[:2] == [
        row["timestamp"] for row in map(json.loads, since.splitlines()) if "timestamp" in row
    ]


def test_the_advice_of_the_error_works(logs: Path) -> None:
    """A read of rows without the timestamp, as the error advises, has every record."""
    log = segmentlog.open_log_dir(logs).log("far", 0)

    with pytest.raises(TimestampOverflowError, match=r'columns=\["offset", "value"\]'):
        log.scan().read_all()
    assert len(TIMES) == log.scan(columns=["offset", "value"]).read_all().num_rows


@pytest.mark.parametrize("options", [(), ("--partitions", 1, "--key-schema-id", "1=2")])
def test_a_clone_keeps_times(run: Run, tmp_path: Path, options: tuple[object, ...]) -> None:
    """Also if its partitions are merged by time, and keys are looked at."""
    times = [-1, 1_700_000_000_000, NANOSECONDS, 2**63 - 1]
    batches = [encode_batch([Record(i, time, b"key", b"")]) for i, time in enumerate(times)]
    for partition in range(2):
        (tmp_path / f"t-{partition}").mkdir()
        (tmp_path / f"t-{partition}" / f"{0:020d}.log").write_bytes(b"".join(batches))
    run("clone", tmp_path, "t", "u", "--order", "timestamp", *options)
    rows = run("cat", tmp_path, "u", "-J").stdout.splitlines()

    wanted = sorted(2 * times) if options else 2 * times
    assert wanted == [json.loads(row)["ts"] for row in rows]


def test_an_absurd_time_flattens_no_bars(run: Run, tmp_path: Path) -> None:
    """All topics but the one whose times are all far off share the axis of the others."""
    start = 1_700_000_000_000
    usual = [start + i * 3_600_000 for i in range(48)]
    times = {
        "both": [*usual[:20], NANOSECONDS, *usual[20:]],
        "early": [1_700_000, *usual],
        "nanos": [NANOSECONDS + i for i in range(3)],
        "usual": usual,
    }
    for topic, given in times.items():
        (tmp_path / f"{topic}-0").mkdir()
        batches = [encode_batch([Record(i, time, b"", b"")]) for i, time in enumerate(given)]
        (tmp_path / f"{topic}-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
    rows = {line.split()[0]: line for line in run("topics", tmp_path).stdout.splitlines()[1:]}

    for topic in ("both", "early", "usual"):
        bars = rows[topic].split()[-1]
        assert (24, set()) == (len(bars), {*bars} - {*"▁▂▃▄▅▆▇█"}), rows[topic]
    assert rows["nanos"].endswith(" *")
    found = [json.loads(line) for line in run("topics", tmp_path, "--json").stdout.splitlines()]
    assert NANOSECONDS == found[0]["lastTimestamp"]
    assert found[0]["recordsPerSecond"] < 1


@pytest.mark.parametrize("absurd", [951_782_400_000, -1], ids=["in 2000", "in 300 days"])
@pytest.mark.parametrize("place", [0, 24, 48])
def test_a_plausible_time_far_from_all_others_flattens_no_bars(
    run: Run, tmp_path: Path, absurd: int, place: int
) -> None:
    """A wrong clock has written one record, at the begin, in the middle or at the end."""
    now = int(time.time() * 1000)
    far = now + 300 * 86_400_000 if absurd < 0 else absurd
    usual = [now - (60 - i) * 3_600_000 for i in range(48)]
    times = {"both": [*usual[:place], far, *usual[place:]], "few": [far], "usual": usual}
    for topic, given in times.items():
        (tmp_path / f"{topic}-0").mkdir()
        batches = [encode_batch([Record(i, at, b"", b"")]) for i, at in enumerate(given)]
        (tmp_path / f"{topic}-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
        segmentlog.reindex(tmp_path / f"{topic}-0", index_interval_bytes=1)
    rows = {line.split()[0]: line for line in run("topics", tmp_path).stdout.splitlines()[1:]}

    for topic in ("both", "usual"):
        bars = rows[topic].split()[-1]
        assert 24 == len(bars)
        assert bars.count("▁") < 12, rows[topic]
    assert rows["few"].endswith(" *")
