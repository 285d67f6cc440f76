"""``segmentlog cat`` writes the records of a topic, and follows a directory that grows."""

import json
import os
import select
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import Result

import segmentlog
from segmentlog.model import IsolationLevel, ReadUpTo
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools import cat
from segmentlog.tools.message_format import TextFormat

Run = Callable[..., Result]
START = 1_700_000_000_000


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory with ten records in each of two partitions."""
    rows = pa.table(
        {
            "key": [f"k{i}".encode() for i in range(20)],
            "value": [f"v{i}".encode() for i in range(20)],
            "partition": pa.array([i // 10 for i in range(20)], pa.int32()),
            "timestamp": pa.array(
                [(START + i * 1000) * 1000 for i in range(20)], pa.timestamp("us", "UTC")
            ),
            "timestampType": pa.array([0] * 20, pa.int32()),
        }
    )
    config = segmentlog.ProducerConfig(use_timestamps=True)
    with segmentlog.open_writer(
        tmp_path / "logs", "orders", num_partitions=2, config=config
    ) as writer:
        writer.append(rows)
    return tmp_path / "logs"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-p", 0, "-o", "beginning", "-c", 2), "v0 v1"),
        (("-p", 0, "-o", -2), "v8 v9"),
        (("-o", -1), "v9 v19"),
        (("-p", 1, "-o", 7), "v17 v18 v19"),
        (("-p", 1, "-o", 70), ""),
        (("-o", "end"), ""),
        (("-o", -100, "-n", 11), "v0 v1 v2 v3 v4 v5 v6 v7 v8 v9 v10"),
        (("-o", f"s@{START + 8000}", "-o", f"e@{START + 12_000}"), "v8 v9 v10 v11"),
        (("-o", "@2023-11-14T22:13:38Z"), "v18 v19"),
        (("-p", 0, "-p", 1, "-o", 9, "-D", " ", "-e"), "v9 v19"),
        (("-o", 8, "-K", ":"), "k8:v8 k9:v9 k18:v18 k19:v19"),
        (("-o", 9, "-u", "-f", r"%t-%p@%o\n"), "orders-0@9 orders-1@9"),
    ],
)
def test_bounds_and_formats(run: Run, logs: Path, options: tuple, expected: str) -> None:
    """Each start, end and format of kcat chooses the records that it names."""
    as_kcat = run("cat", "-C", "-q", "-t", "orders", *options, logs)
    assert (expected.split(), "") == (as_kcat.stdout.split(), as_kcat.stderr)
    done = run("cat", logs, "orders", *options)

    assert expected.split() == done.stdout.split()
    assert ("nothing is selected" in done.stderr) == (not expected)


def test_a_topic_is_named_once(run: Run, logs: Path) -> None:
    """Two names may contradict each other."""
    said = run("cat", logs, "orders", "-t", "orders", status=2).stderr

    assert "option '--topic' is 'orders'; give TOPIC or --topic, not both" in said


def test_the_only_topic_need_not_be_named(run: Run, logs: Path) -> None:
    """With two topics, the error lists them."""
    partition = logs / "orders-1"
    with segmentlog.open_writer(logs, "refunds") as writer:
        writer.append(pa.table({"value": [b"r"]}))

    assert 10 == len(run("cat", partition).stdout.split())
    assert "orders, refunds" in run("cat", logs, status=2).stderr
    assert "did you mean 'orders'" in run("cat", logs, "order", status=2).stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("-o", "soon"), "--offset"),
        (("-o", "s@soon"), "s@soon"),
        (("-f", "%x"), "--format"),
        (("-e", "--follow"), "--follow"),
        (("-o", "9" * 30), "--offset"),
    ],
)
def test_wrong_options_are_refused(run: Run, logs: Path, options: tuple, named: str) -> None:
    """The error names the option and the accepted values."""
    assert named in run("cat", logs, "orders", *options, status=2).stderr


def test_damaged_batches_are_left_out(run: Run, tmp_path: Path) -> None:
    """Records before and after the damage are written, and the exit status is 1."""
    batches = [encode_batch([Record(i, 0, None, b"v%d" % i)]) for i in range(5)]
    batches[2] = batches[2][:-1] + b"X"
    path = tmp_path / "t-0"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(b"".join(batches))

    assert ["v0", "v1", "v3", "v4"] == run("cat", path, status=1).stdout.split()


def test_names_of_headers_are_their_bytes(run: Run, tmp_path: Path) -> None:
    """Like kcat, the command writes bytes that are not UTF-8 as they are."""
    path = tmp_path / "t-0"
    path.mkdir()
    batch = encode_batch([Record(0, 0, None, b"v", ((b"h\xff", b"1"),))])
    (path / f"{0:020d}.log").write_bytes(batch)

    assert b"h\xff=1\n" == run("cat", path, "-f", r"%h\n").stdout_bytes


def test_transactions_are_read_as_kcat_reads_them(run: Run, example_data: str) -> None:
    """Aborted records are left out by default, and so are records of an open transaction."""
    by_default = run("cat", example_data, "payments", "-f", "%o ").stdout.split()
    everything = run(
        "cat", example_data, "payments", "-f", "%o ", "--isolation-level", "read_uncommitted"
    ).stdout.split()
    log = segmentlog.open_log_dir(example_data).log("payments", 0)
    committed = log.scan(isolation_level="read_committed", read_up_to="logEnd").read_all()

    assert committed["offset"].to_pylist() == list(map(int, by_default))
    assert len(everything) > len(by_default)


@contextmanager
def following(logs: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that follows a topic."""
    command = [sys.executable, "-m", "segmentlog", "cat", str(logs), "orders", "--follow"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read(process: subprocess.Popen[bytes], n_lines: int) -> list[bytes]:
    """The next lines of a process, within a minute."""
    found = b""
    while found.count(b"\n") < n_lines:
        assert select.select([process.stdout], [], [], 60)[0], found
        data = os.read(process.stdout.fileno(), 1 << 16)
        assert data, process.stderr.read()
        found += data
    return found.split()


def test_a_directory_is_followed(logs: Path) -> None:
    """Records are written as they come, those of new partitions, too, until there are enough."""
    with following(logs, "-o", "-1", "-c", "4") as process:
        assert [b"v9", b"v19"] == read(process, 2)
        with segmentlog.open_writer(logs, "orders") as writer:
            writer.append(pa.table({"value": [b"new"], "partition": pa.array([1], pa.int32())}))
        assert [b"new"] == read(process, 1)
        batch = encode_batch([Record(0, START, None, b"first")])
        (logs / "orders-2").mkdir()
        (logs / "orders-2" / f"{0:020d}.log").write_bytes(batch)
        assert [b"first"] == read(process, 1)

        assert (0, b"") == (process.wait(60), process.stderr.read())


@pytest.mark.parametrize("n_new", [5, 10, 15])
@pytest.mark.parametrize("start", ["end", "beginning"])
def test_a_topic_that_was_made_again_is_followed_from_its_first_record(
    logs: Path, capsys: pytest.CaptureFixture[str], start: str, n_new: int
) -> None:
    """The id is learned with the start, and offsets of the former topic mean nothing."""
    reader = cat._TopicRead(
        TextFormat.delimited(None, b"\n", shows_null=False),
        IsolationLevel.READ_COMMITTED,
        ReadUpTo.LOG_END,
        None,
        None,
        by_record=False,
    )
    written: list[bytes] = []
    reader._write = lambda data: written.append(bytes(data))
    chosen = "orders", [0]
    directory = segmentlog.open_log_dir(logs)
    former = directory.log("orders", 0).topic_id
    reader.all(directory, chosen, cat.ShownRange.parse([start]))
    assert (10 if start == "beginning" else 0) == len(b"".join(written).split())
    written.clear()
    segmentlog.delete_topic(logs, "orders")
    new = [f"n{i}" for i in range(n_new)]
    with segmentlog.open_writer(logs, "orders", num_partitions=1) as writer:
        writer.append(pa.table({"value": new}))
    directory = directory.refresh(log_ends=True)
    reader.all(directory, chosen, cat.ShownRange())
    reader.all(directory, chosen, cat.ShownRange())

    assert " ".join(new).encode().split() == b"".join(written).split()
    topic_id = directory.log("orders", 0).topic_id
    assert (
        f"segmentlog: orders-0: its topic was deleted and created again (id {topic_id}, not "
        f"{former}); the records of the new topic follow\n"
    ) == capsys.readouterr().err
    assert ["orders-0"] == [*reader.failed.names]


def test_following_ends_with_its_reader(logs: Path) -> None:
    """The process ends although no record comes, as in ``segmentlog cat --follow … | head -2``."""
    with following(logs, "-o", "-1") as process:
        read(process, 2)
        process.stdout.close()

        assert 141 == process.wait(60)


def test_a_transaction_that_begins_later_and_stays_open_is_named_once(logs: Path) -> None:
    """A reader that follows the log learns why no record comes."""
    with following(logs) as process:
        read(process, 20)
        path = logs / "orders-0" / f"{0:020d}.log"
        batches = [
            encode_batch([Record(10, START, b"k", b"open")], attributes=0x10, producer=(5, 0, 0))
        ]
        batches += [encode_batch([Record(11, START, b"k", b"later")])]
        with path.open("ab") as file:
            file.write(b"".join(batches))
        assert select.select([process.stderr], [], [], 60)[0]
        line = process.stderr.readline().decode()
        process.stdout.close()  # its reader has gone
        rest = process.stderr.read().decode()
    assert line.startswith(
        "segmentlog: orders-0: the read ends at offset 10, where a transaction of producer 5 "
    )
    assert "producer 5" not in rest


def test_numbers_are_shown_as_kcat_shows_them(run: Run, tmp_path: Path) -> None:
    """`-s` has kcat's pack strings: byte order, sizes, blanks, the rest and the end."""
    values = [struct.pack(">q", 41), struct.pack(">q", -1234), None, b""]
    keys = [struct.pack("<hB", -2, 255) + b"\0rest", struct.pack("<hB", 7, 0) + b"!", None, b""]
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(pa.table({"key": pa.array(keys, pa.binary()), "value": values}))

    def shown(*options: str, status: int = 0) -> str:
        return run("cat", str(tmp_path), "t", *options, status=status).stdout

    assert shown("-s", "value=q") == "41\n-1234\n\n\n"
    assert shown("-s", "value=q$", "-Z") == "41\n-1234\nNULL\nNULL\n"
    assert shown("-s", "key=<h B s", "-s", "value=I", "-f", "%k|%s;") == (
        "-2 255 \0rest|0;7 0 !|4294967295;|;|;"
    )
    payloads = [json.loads(line)["payload"] for line in shown("-J", "-s", "value=Q").splitlines()]
    assert payloads == ["41", str(2**64 - 1234), None, ""]
    wrong = run("cat", str(tmp_path), "t", "-s", "value=i$", status=2)
    assert "offset 0 has 8 bytes, and this takes exactly 4" in wrong.stderr
    assert (
        "values of Avro: --decode" in run("cat", str(tmp_path), "t", "-s", "avro", status=2).stderr
    )
