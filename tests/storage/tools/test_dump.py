"""The dump: every batch and record, as lines, JSON, Arrow and Parquet."""

import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from json_dumps import json_rows
from typer.testing import Result

import segmentlog
from segmentlog.format.checksum import crc32c
from segmentlog.testing.reference import Record, encode_batch

Run = Callable[..., Result]
FIRST = f"{0:020d}.log"
T0 = 1_700_000_000_000


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Three batches of three records, a second apart; the second batch is damaged."""
    path = tmp_path / "orders-0"
    path.mkdir()
    data = b""
    for i in range(3):
        records = [
            Record(3 * i + j, T0 + 1000 * (3 * i + j), b"k%d" % i, b"v", ((b"h", b"x"),))
            for j in range(3)
        ]
        batch = encode_batch(records)
        data += batch[:-1] + b"?" if i == 1 else batch
    (path / FIRST).write_bytes(data)
    return path


def test_every_batch_and_record_of_a_directory_is_there(run: Run, example_data: str) -> None:
    """The dump has a record for each offset of the logs, control records included."""
    result = run("dump", example_data, "--records", "--format", "json")
    assert result.stdout == run("dump", example_data, "--records", "-f", "jsonl").stdout
    directory = segmentlog.open_log_dir(example_data)
    expected = {
        str(found): directory.log(*found).scan().read_all().num_rows
        for found in directory.topic_partitions()
    }
    counts = dict.fromkeys(expected, 0)
    for row in json_rows(result, "record"):
        counts[f"{row['topic']}-{row['partition']}"] += "controlType" not in row

    assert expected == counts
    assert 34 == len(json_rows(result, "batch"))
    assert ["COMMIT", "ABORT"] == [
        row["controlType"] for row in json_rows(result) if "controlType" in row
    ]


def test_damage_is_shown_and_the_dump_continues(run: Run, partition: Path) -> None:
    """The bad batch is not valid and has no records; the other batches have theirs.

    The status is 1.
    """
    for dumped in (partition, partition / FIRST):
        result = run("dump", dumped, "--records", "--format", "json", status=1)
        batches = json_rows(result, "batch")

        assert [True, False, True] == [batch["isValid"] for batch in batches]
        assert batches[1]["problem"].startswith("its crc32c is 0x")
        assert [0, 1, 2, 6, 7, 8] == [row["offset"] for row in json_rows(result, "record")]


def test_lines_of_text_contain_the_same(run: Run, partition: Path) -> None:
    """Text output has a line for each batch and record, and the reason for damage."""
    printed = run("dump", partition, "--records", status=1).stdout

    assert f"{partition}/{FIRST}\n" in printed
    assert " yes " in printed
    assert " NO " in printed
    assert "not valid: its crc32c is" in printed
    assert "|        7 2023-11-14T22:13:27.000Z key='k2' value='v' headers={'h'='x'}\n" in printed


@pytest.mark.parametrize(
    ("options", "offsets", "n_batches"),
    [
        (["--start-offset", "7"], [7, 8], 1),
        (["--end-offset", "2"], [0, 1], 1),
        (["--start-offset", "2", "--end-offset", "7"], [2, 6], 3),
        (["--since", "2023-11-14T22:13:27Z"], [7, 8], 1),
        (["--since", T0 + 8000], [8], 1),
        (["--until", "2023-11-14T22:13:21Z"], [0], 2),
        (["--start-offset", "100"], [], 0),
    ],
)
def test_ranges_are_half_open(
    run: Run, partition: Path, options: list, offsets: list[int], n_batches: int
) -> None:
    """A range selects records, and the batches that have one of them or cannot be read."""
    status = int(n_batches > 1)
    result = run("dump", partition, "--records", "-f", "json", *options, status=status)

    assert offsets == [row["offset"] for row in json_rows(result, "record")]
    assert n_batches == len(json_rows(result, "batch"))


def test_segments_outside_the_range_are_not_opened(
    run: Run, write_log: Callable[..., Path]
) -> None:
    """The names of the segments show their offsets."""
    path = write_log([[(0, T0), (1, T0)], [(2, T0), (3, T0)], [(4, T0)]])
    (path / FIRST).write_bytes(b"\xff" * 200)
    result = run("dump", path, "-f", "json", "--start-offset", 2, "--end-offset", 4)

    assert [2, 3] == [row["baseOffset"] for row in json_rows(result)]


def test_parquet_wants_a_file(run: Run, example_data: str) -> None:
    """Parquet cannot be written to a pipe; the message names the remedy."""
    result = run("dump", example_data, "--format", "parquet", status=2)

    assert (
        "segmentlog: option '--format' is 'parquet'; this format is not text: "
        "name a file with -o\n" == result.stderr
    )


def test_a_partition_without_segments_has_no_lines(run: Run, tmp_path: Path) -> None:
    """A broker's partition has no segment until the broker writes the first one."""
    (tmp_path / "t-0").mkdir()

    assert "" == run("dump", tmp_path).stdout


def test_topics_and_partitions_are_chosen(run: Run, example_data: str) -> None:
    """Topics are chosen by name, partitions by number.

    A wrong name is an error with the nearest name.
    """
    chosen = run(
        "dump",
        example_data,
        "-f",
        "json",
        "--topic",
        "orders",
        "--topic",
        "payments",
        "--partition",
        0,
    )
    wrong = run("dump", example_data, "--topic", "order", status=2)
    missing = run("dump", example_data, "--topic", "orders", "--partition", 9, status=2)

    assert {("orders", 0), ("payments", 0)} == {
        (row["topic"], row["partition"]) for row in json_rows(chosen)
    }
    assert "did you mean 'orders'?" in wrong.stderr
    assert "it has partitions 0, 1, 2" in missing.stderr


def test_arrow_and_parquet_hold_the_same_records(
    run: Run, example_data: str, tmp_path: Path
) -> None:
    """Without control records, they are the records of a scan."""
    for suffix in ("arrow", "parquet"):
        run(
            "dump",
            example_data,
            "--topic",
            "payments",
            "--records",
            "-f",
            suffix,
            "-o",
            tmp_path / suffix,
        )
    arrow = pa.ipc.open_stream(pa.OSFile(str(tmp_path / "arrow"))).read_all()
    parquet = pq.read_table(tmp_path / "parquet")
    records = arrow.filter(pa.compute.invert(arrow["isControl"]))
    names = ["key", "value", "topic", "partition", "offset", "timestampType"]

    assert arrow.equals(parquet)
    assert 122 == arrow.num_rows
    assert {"COMMIT", "ABORT", None} == set(arrow["controlType"].to_pylist())
    scanned = segmentlog.open_log_dir(example_data).log("payments", 0).scan().read_all()
    assert scanned.select(names).equals(records.select(names))
    assert scanned["timestamp"].to_pylist() == records["timestamp"].to_pylist()


def test_arrow_holds_the_batches(run: Run, partition: Path) -> None:
    """The fields are those of JSON, also on standard output."""
    expected = json_rows(run("dump", partition, "-f", "json", status=1))
    stream = run("dump", partition, "-f", "arrow", status=1).stdout_bytes
    found = pa.ipc.open_stream(io.BytesIO(stream)).read_all().to_pylist()

    assert [{k: v for k, v in row.items() if k != "kind"} for row in expected] == found


def test_damage_is_named_where_a_table_of_records_has_no_place_for_it(
    run: Run, partition: Path, tmp_path: Path
) -> None:
    """Standard error names the damage. The good records are in the file."""
    output = tmp_path / "o.parquet"
    result = run("dump", partition, "--records", "-f", "parquet", "-o", output, status=1)

    assert "is not valid: its crc32c is" in result.stderr
    assert [0, 1, 2, 6, 7, 8] == pq.read_table(output)["offset"].to_pylist()


def test_output_is_never_written_over(run: Run, partition: Path, tmp_path: Path) -> None:
    """A segment that is named as the output is not changed; a partial file gets no final name."""
    before = (partition / FIRST).read_bytes()
    result = run("dump", partition, "-o", partition / FIRST, status=2)
    run("dump", tmp_path / "nothing", "-o", tmp_path / "out", status=2)

    assert "exists" in result.stderr
    assert before == (partition / FIRST).read_bytes()
    assert ["orders-0"] == [path.name for path in tmp_path.iterdir()]


def test_keys_and_values_have_the_encoding_that_is_asked_for(run: Run, tmp_path: Path) -> None:
    """Keys and values have separate encodings. Values of headers have that of values."""
    record = Record(0, T0, b"\xff\0", b"\xfe", ((b"h\xfc", b"\xfd"),))
    (tmp_path / FIRST).write_bytes(encode_batch([record]))
    result = run(
        "dump", tmp_path / FIRST, "--records", "-f", "json", "--keys", "hex", "--values", "base64"
    )
    (row,) = json_rows(result, "record")

    assert ("ff00", "/g==", [{"key": r"h\xfc", "value": "/Q=="}]) == (
        row["key"],
        row["value"],
        row["headers"],
    )
    assert (2, 1) == (row["keySize"], row["valueSize"])
    run("dump", tmp_path / FIRST, "--records", "-f", "arrow", "-o", tmp_path / "out.arrow")
    (row,) = pa.ipc.open_stream(tmp_path / "out.arrow").read_all().to_pylist()
    assert [{"key": "h\ufffd", "value": b"\xfd"}] == row["headers"]


def test_nothing_in_a_log_reaches_the_terminal_raw(run: Run, tmp_path: Path) -> None:
    """No control character of keys, values, headers or the topic's name is printed."""
    hostile = "\x1b]0;x\x07\x9b2J\u202e\n\x7f".encode()
    directory = tmp_path / "\x1b[31mtopic\u202e\n"
    directory.mkdir()
    record = Record(0, T0, hostile, hostile, ((hostile, hostile),))
    (directory / FIRST).write_bytes(encode_batch([record]) + b"\xff" * 70)
    for output_format in ("table", "json"):
        result = run("dump", directory / FIRST, "--records", "-f", output_format, status=1)
        lines = result.stdout.split("\n")

        assert all(line.isprintable() for line in lines)
        assert 3 <= len(lines) <= 7
        assert r"]0;x" in result.stdout


def test_a_transaction_wraps_its_sequences(run: Run, tmp_path: Path) -> None:
    """Sequences continue at 0 after the largest 32-bit number."""
    batch = bytearray(encode_batch([Record(i, T0, None, None) for i in range(3)], attributes=0x10))
    struct.pack_into(">qhi", batch, 43, 1002, 7, 2**31 - 2)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    (tmp_path / FIRST).write_bytes(batch)
    result = run("dump", tmp_path / FIRST, "--records", "-f", "json")
    (row,) = json_rows(result, "batch")

    assert (2**31 - 2, 0, True) == (
        row["baseSequence"],
        row["lastSequence"],
        row["isTransactional"],
    )
    assert [2**31 - 2, 2**31 - 1, 0] == [each["sequence"] for each in json_rows(result, "record")]


def test_records_that_cannot_be_read_are_damage(run: Run, tmp_path: Path) -> None:
    """The checksum is right, but a record is not. The batch is not valid, with the reason."""
    batch = encode_batch([Record(3, T0, b"k", b"v")], base_offset=9, last_offset=9)
    (tmp_path / FIRST).write_bytes(batch)
    (row,) = json_rows(run("dump", tmp_path / FIRST, "--records", "-f", "json", status=1))

    assert (False, True) == (row["isValid"], "outside the batch" in row["problem"])


def test_kraft_snapshots_are_dumped(run: Run, example_data: str) -> None:
    """Snapshots have the format of segments."""
    found = json_rows(
        run("dump", Path(example_data, "bootstrap.checkpoint"), "--records", "-f", "json")
    )
    kinds = [row["controlType"] for row in found if "controlType" in row]

    assert ["SNAPSHOT_HEADER", "SNAPSHOT_FOOTER"] == kinds


@pytest.mark.parametrize("name", [".kafka_cleanshutdown", "../MANIFEST.md"])
def test_other_files_are_refused(run: Run, example_data: str, name: str) -> None:
    """The error contains the kinds of files that are accepted."""
    assert "neither a .log file" in run("dump", Path(example_data, name), status=2).stderr


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A dump of 240 MB of log takes no more memory than a dump of 60 MB."""
    batch = encode_batch([Record(0, T0, b"k", b"v" * 50_000)])
    peaks = []
    for n_batches in (1200, 4800):
        path = tmp_path / str(n_batches)
        path.mkdir()
        with (path / FIRST).open("wb") as file:
            for i in range(n_batches):
                file.write(i.to_bytes(8, "big") + batch[8:])
        peaks.append(max(peak_of(path / FIRST, each) for each in ("json", "arrow")))

    assert peaks[1] < peaks[0] + (24 << 20)


def peak_of(path: Path, output_format: str) -> int:
    """The largest number of resident bytes of a dump with records."""
    command = [sys.executable, "-m", "segmentlog", "dump", str(path), "--records"]
    with Path(os.devnull).open("wb") as nowhere:
        process = psutil.Popen([*command, "-f", output_format], stdout=nowhere)
        peak = 0
        while process.poll() is None:
            try:
                peak = max(peak, process.memory_info().rss)
            except psutil.NoSuchProcess:
                break
    return peak


def records_of(result: Result) -> list[tuple[int, int]]:
    """Partition and offset of each record of a JSON dump."""
    return [(row["partition"], row["offset"]) for row in json_rows(result, "record")]


@pytest.mark.parametrize("n", [1, 2, 80, 1000])
def test_the_last_offsets_of_each_log(run: Run, example_data: str, n: int) -> None:
    """The number applies to each partition and to a file. A log may have fewer records."""
    options = ("--records", "--format", "json", "--last", n)
    ends = {0: 335, 1: 317, 2: 248}
    expected = [(each, offset) for each, end in ends.items() for offset in range(end)[-n:]]
    file = Path(example_data, "orders-1", FIRST)

    assert expected == records_of(run("dump", example_data, "--topic", "orders", *options))
    assert [each for each in expected if each[0] == 1] == records_of(run("dump", file, *options))


@pytest.mark.parametrize("n", [2, 255, 1000])
def test_the_last_offsets_since_a_time(run: Run, example_data: str, n: int) -> None:
    """The later of the two starts counts, in the command as in Python."""
    options = ("--topic", "orders", "--records", "--format", "json", "--since", "2025-10-10")
    table = segmentlog.read(
        example_data, "orders", since="2025-10-10", last=n, columns=["partition", "offset"]
    )
    expected = list(zip(*table.to_pydict().values(), strict=True))

    assert 0 < len(expected) <= 3 * n
    assert expected == records_of(run("dump", example_data, *options, "--last", n))


@pytest.mark.parametrize("n", [1, 20, 21, 400, 10_000])
def test_so_many_records_and_no_more(run: Run, example_data: str, n: int) -> None:
    """The number applies to all files together. Only the batches of these records are shown."""
    options = ("--topic", "orders", "--format", "json")
    every = json_rows(run("dump", example_data, *options, "--records"))
    some = json_rows(run("dump", example_data, *options, "--records", "--limit", n))

    assert every[: len(some)] == some
    assert min(n, 900) == sum(row["kind"] == "record" for row in some)
    assert "record" == some[-1]["kind"]
    batches = json_rows(run("dump", example_data, *options))
    assert batches[:n] == json_rows(run("dump", example_data, *options, "-n", n))


def test_records_with_a_key(run: Run, example_data: str) -> None:
    """The whole key is compared. A record without a key never matches."""
    options = ("--records", "--format", "json")
    every = json_rows(run("dump", example_data, *options), "record")
    found = json_rows(run("dump", example_data, *options, "--key", "customer-07"), "record")

    assert [row for row in every if row.get("key") == "customer-07"] == found
    assert len(found) > 5
    assert [] == json_rows(run("dump", example_data, *options, "--key", "customer-0"), "record")
    assert "give --records" in run("dump", example_data, "--key", "k", status=2).stderr


def test_a_dump_of_nothing_says_so(run: Run, example_data: str) -> None:
    """An offset beyond the end selects nothing, and empty output would not show why."""
    partition = f"{example_data}/orders-0"
    nothing = run("dump", partition, "--start-offset", 10**6)
    something = run("dump", partition, "--limit", 1)

    assert "" == nothing.stdout
    assert "nothing is selected" in nothing.stderr
    assert "nothing is selected" not in something.stderr


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["parquet", "arrow", "json", "table"])
def test_an_interrupted_dump_leaves_nothing_and_says_nothing(
    tmp_path: Path, example_data: str, output_format: str
) -> None:
    """A writer of Parquet wrote its footer to a closed file when it was collected."""
    code = (
        "import sys, segmentlog.tools.sinks as sinks\n"
        "def interrupted(*_):\n"
        "    raise KeyboardInterrupt\n"
        "sinks.CountingSink.records = interrupted\n"
        "from segmentlog.tools.cli import main\n"
        "main()\n"
    )
    arguments = ["dump", f"{example_data}/orders-0", "--records", "-f", output_format]
    output = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "-o", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (130, "", "") == (done.returncode, done.stdout, done.stderr)
    assert [] == list(tmp_path.iterdir())


def test_kafkas_own_records_are_decoded(run: Run, example_cluster: str, tmp_path: Path) -> None:
    """Bytes on request; a loose file is decoded as the topic that is named."""
    path = Path(example_cluster) / "__consumer_offsets-1" / FIRST
    loose = tmp_path / "loose.log"
    loose.write_bytes(path.read_bytes())
    given = ("--records", "--format", "json", "--limit", "1")

    def first(*arguments: object) -> dict[str, object]:
        (*_, record) = map(json.loads, run("dump", *arguments, *given).stdout.splitlines())
        return record

    record, alone = first(path), first(loose, "--as", "__consumer_offsets")
    key, value = json.loads(str(record["key"])), json.loads(str(record["value"]))
    raw, as_hex = first(loose), first(path, "--keys", "hex", "--values", "hex")

    assert {"group": "audit", "topic": "orders", "partition": 0} == key["data"]
    assert (5, "by hand") == (value["data"]["offset"], value["data"]["metadata"])
    assert (record["key"], record["value"]) == (alone["key"], alone["value"])
    assert str(raw["key"]).startswith("\0\1")
    assert str(as_hex["key"]).startswith("0001")
    assert [len(str(as_hex["key"])) // 2] * 3 == [
        each["keySize"] for each in (record, raw, as_hex)
    ]


def test_subscriptions_and_assignments_of_consumers_are_decoded(
    run: Run, example_cluster: str
) -> None:
    """Kafka's own tool decodes them in place, too."""
    given = ("--topic", "__consumer_offsets", "--records", "--format", "json")
    rows = map(json.loads, run("dump", example_cluster, *given).stdout.splitlines())
    groups = [
        json.loads(row["value"])["data"]
        for row in rows
        if '"group": "shipping"' in (row.get("key") or "") and "members" in (row["value"] or "")
    ]
    (member,) = groups[-1]["members"]
    assert ["orders"] == member["subscription"]["topics"]
    assert [{"topic": "orders", "partitions": [0, 1, 2]}] == (
        member["assignment"]["assignedPartitions"]
    )


def test_decoding_needs_records_and_a_topic_of_kafkas_own(run: Run, partition: Path) -> None:
    """The error lists the topics."""
    other = run("dump", partition, "--records", "--as", "orders", status=2).stderr
    alone = run("dump", partition, "--as", "__consumer_offsets", status=2).stderr

    assert "__transaction_state" in other
    assert "--records" in alone
