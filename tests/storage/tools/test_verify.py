"""The report of ``verify``: its findings, where they are printed, and the exit status."""

import json
import os
import pty
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from bars_at_once import AT_ONCE
from damaged_starts import writable_copy
from typer.testing import Result

import segmentlog
from segmentlog.format.checksum import crc32c
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE
from segmentlog.testing.reference import Record, encode_batch

Run = Callable[..., Result]
GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.1"
CLOSED = "00000000000000000016"
BATCH = 345  # bytes of each batch in that segment, four offsets each
T0 = 1_700_000_000_000


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A copy of a real broker's directory."""
    return shutil.copytree(GOLDEN, tmp_path / "kafka")


def change(path: Path, at: int, to: bytes) -> None:
    """Overwrite some bytes of a file."""
    data = bytearray(path.read_bytes())
    data[at : at + len(to)] = to
    path.write_bytes(data)


def findings(result: Result) -> list[dict]:
    """Objects of the JSON output, without the summary."""
    return [json.loads(line) for line in result.stdout.splitlines()[:-1]]


def summary(result: Result) -> dict:
    """The last object of the JSON output."""
    return json.loads(result.stdout.splitlines()[-1])


def test_a_brokers_directory_has_no_faults(run: Run) -> None:
    """The status is 0, and the output has one line. Notes are counted, and listed on request."""
    result = run("verify", GOLDEN)
    listed = run("verify", GOLDEN, "--notes").stdout.splitlines()

    expected = "19 partitions, 36 segments, 34,191 bytes: 0 errors, 0 warnings, 5 notes\n"
    counted = expected.replace("5 notes", "5 notes (--notes lists them)")
    assert (counted, "") == (result.stdout, result.stderr)
    assert [expected.strip()] == listed[5:]
    assert all(line.startswith("note    ") for line in listed[:5])
    assert (
        f"note    open-transaction: {GOLDEN}/transactions-0/00000000000000000039.log, offset 42: "
        "the transaction of producer 13 from offset 42 has no end marker: "
        "a consumer with read_committed stops at this offset"
    ) in listed


def test_a_damaged_batch_is_named_by_byte_and_offset(run: Run, log_dir: Path) -> None:
    """There is one error. Indexes that lead to the batch are right, and cause no finding."""
    file = log_dir / "segments-0" / f"{CLOSED}.log"
    change(file, BATCH + 100, b"\xff\xff")
    (line, last, _) = run("verify", log_dir, status=1).stdout.splitlines()

    assert line.startswith(f"error   corrupt-batch: {file}, byte 345, offset 20: the batch has ")
    assert line.endswith(
        "; restore the file from a replica or a backup (the next good batch is at byte 690)"
    )
    assert last.endswith(": 1 error, 0 warnings, 5 notes (--notes lists them)")


def test_json_has_the_same_in_fields(run: Run, log_dir: Path) -> None:
    """Each line is an object, and the last is the summary. A missing place is null."""
    change(log_dir / "segments-0" / f"{CLOSED}.log", BATCH + 100, b"\xff\xff")
    (log_dir / "segments-0" / f"{CLOSED}.timeindex").unlink()
    result = run("verify", log_dir, "--json", "--topic", "segments", status=1)
    batch, index = findings(result)
    place = {"topic": "segments", "partition": 0}

    assert batch.pop("message").startswith("the batch has checksum 0x")
    assert (
        place
        | {
            "severity": "error",
            "kind": "corrupt-batch",
            "position": 345,
            "offset": 20,
            "path": f"{log_dir}/segments-0/{CLOSED}.log",
            "endOffset": None,
        }
        == batch
    )
    assert ("warning", "time-index", None) == (index["severity"], index["kind"], index["position"])
    n_bytes = sum(path.stat().st_size for path in log_dir.glob("segments-*/*.log"))
    assert {
        "partitions": 3,
        "segments": 9,
        "bytes": n_bytes,
        "errors": 1,
        "warnings": 1,
        "notes": 0,
    } == summary(result)


def torn(path: Path) -> None:
    """Bytes after the last batch of a log that was cleanly stopped."""
    path.write_bytes(path.read_bytes() + b"torn")


def torn_by_a_crash(path: Path) -> None:
    """A starting broker cuts the bytes off, because its directory was not cleanly stopped."""
    torn(path)
    (path.parents[1] / CLEAN_SHUTDOWN_FILE).unlink()


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str, tuple[int | None, int | None]]] = {
    "a length that cannot be": (
        f"{CLOSED}.log", lambda path: change(path, BATCH + 8, b"\0\0\0\0"),
        "corrupt-batch", (345, 20),
    ),
    "a newer format": (
        f"{CLOSED}.log", lambda path: change(path, BATCH + 16, b"\3"),
        "unsupported-batch", (345, 20),
    ),
    "a closed segment cut short": (
        f"{CLOSED}.log", lambda path: os.truncate(path, 4 * BATCH - 1), "corrupt-batch", (1035, 28)
    ),
    "a torn tail": (f"{48:020d}.log", torn_by_a_crash, "torn-tail", (203, 50)),
    "a torn tail that no start removes": (f"{48:020d}.log", torn, "torn-tail", (203, 50)),
    "an entry of the offset index": (
        f"{CLOSED}.index", lambda path: change(path, 4, b"\0\0\0\x07"), "offset-index", (0, 23)
    ),
    "an entry of the time index": (
        f"{CLOSED}.timeindex", lambda path: change(path, 12, bytes(8)), "time-index", (12, 27)
    ),
    "a time index cut short": (
        f"{CLOSED}.timeindex", lambda path: os.truncate(path, 12), "time-index", (12, None)
    ),
    "half an entry": (
        f"{CLOSED}.index", lambda path: os.truncate(path, 20), "offset-index", (20, None)
    ),
    "no offset index": (
        f"{CLOSED}.index", lambda path: path.unlink(), "offset-index", (None, 16)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_one_finding_at_its_place(
    run: Run, log_dir: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The finding has kind, file, byte and offset. Warnings alone leave the status at 0."""
    file, damage, kind, place = DAMAGES[name]
    path = log_dir / "segments-0" / file
    damage(path)
    is_warning = name in {
        "a torn tail",
        "half an entry",
        "no offset index",
        "a time index cut short",
    }
    result = run("verify", log_dir / "segments-0", "--json", status=int(not is_warning))
    (found,) = findings(result)

    assert (kind, str(path), *place) == (
        found["kind"],
        found["path"],
        found["position"],
        found["offset"],
    )
    assert is_warning == (found["severity"] == "warning")
    assert ("", []) == (result.stderr, caplog.messages)


def test_only_warnings_that_findings_repeat_are_left_out(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """That a look-up for gaps scans a log, because its index leads elsewhere, is still said."""
    directory = writable_copy(Path("examples/cluster"), tmp_path / "kafka")
    with segmentlog.open_writer(directory, "orders") as writer:
        for _ in range(2):
            at = pa.array([1] * 4, pa.int32())
            writer.append(pa.table({"value": ["v"] * 4, "partition": at}))
            writer.roll()
    first, *_, last = sorted((directory / "orders-1").glob("*.log"))
    first.with_suffix(".index").write_bytes(struct.pack(">ii", 1, 7))
    torn(last)
    result = run("verify", directory, "--topic", "orders", "--json", status=1)

    assert {"offset-index", "torn-tail"} == {each["kind"] for each in findings(result)}
    (told,) = caplog.messages
    assert told.startswith(f"{first.with_suffix('.index')} does not fit its log at offset 1;")


@pytest.mark.parametrize(
    ("damage", "advice"),
    [
        ("batch", "restore the file from another replica"),
        ("batch", "onCorruptBatch=skip"),
        ("batch", "recover --dry-run shows "),
        ("tail", "segmentlog recover cuts the tail off"),
        ("index", "segmentlog reindex"),
        ("guard", "segmentlog recover finishes or undoes it"),
    ],
)
def test_the_last_lines_say_what_to_do(run: Run, log_dir: Path, damage: str, advice: str) -> None:
    """They have a remedy for each finding. JSON output does not have them."""
    segment = log_dir / "segments-0" / f"{CLOSED}.log"
    match damage:
        case "batch":
            change(segment, BATCH + 100, b"!!!!")
        case "tail":
            torn_by_a_crash(segment.parent / f"{48:020d}.log")
        case "index":
            change(segment.with_suffix(".index"), 4, b"\0\0\0\x07")
        case "guard":
            (log_dir / "segmentlog.unfinished.1").mkdir()
    status = 0 if damage == "tail" else 1
    lines = run("verify", log_dir, status=status).stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if "partitions, " in line)

    assert advice in " ".join(lines[at + 1 :])
    assert 1 == len(lines[at + 1 :])
    assert "partitions" in summary(run("verify", log_dir, "--json", status=status))


def test_records_are_parsed_when_asked(run: Run, log_dir: Path) -> None:
    """The checksum is right, but the records cannot be inflated."""
    file = log_dir / "codec-zstd-0" / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    data[61:65] = b"what"
    end = 12 + int.from_bytes(data[8:12], "big")
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:end])))
    file.write_bytes(data)
    (found,) = findings(run("verify", log_dir, "--records", "--json", status=1))

    assert ("corrupt-records", 0, 0) == (found["kind"], found["position"], found["offset"])
    assert found["message"].startswith("its records cannot be inflated as zstd")
    assert [] == findings(run("verify", log_dir, "--json"))


@pytest.mark.parametrize("missing", [("index",), ("timeindex",), ("index", "timeindex")])
def test_the_advice_for_missing_indexes_can_be_followed(
    run: Run, log_dir: Path, missing: tuple[str, ...]
) -> None:
    """It names no file for deletion that is not there."""
    for kind in missing:
        (log_dir / "segments-0" / f"{CLOSED}.{kind}").unlink()
    found = findings(run("verify", log_dir, "--json"))
    advised = ["delete the segment's .index file" in each["message"] for each in found]

    assert [(f"{kind}", kind == "timeindex" and len(missing) == 1) for kind in missing] == [
        (each["path"].rpartition(".")[2], is_advised)
        for each, is_advised in zip(found, advised, strict=True)
    ]
    assert all("a broker that starts" in each["message"] for each in found)


def test_aborts_that_no_index_lists_are_errors(run: Run, log_dir: Path) -> None:
    """A broker would serve the records. Deleting the index does not help, and is not advised."""
    index = log_dir / "transactions-0" / "00000000000000000013.txnindex"
    index.unlink()
    found = findings(run("verify", log_dir, "--json", status=1))

    assert [("transaction-index", str(index), 13), ("transaction-index", str(index), 25)] == [
        (each["kind"], each["path"], each["offset"]) for each in found
    ]
    assert all("delete the segment's .index file" in each["message"] for each in found)


def test_a_watermark_after_the_end_is_a_loss_in_a_cleanly_stopped_directory(
    run: Run, log_dir: Path
) -> None:
    """Without a clean stop the checkpoint may be newer than the copy, which is a warning."""
    (log_dir / "replication-offset-checkpoint").write_text("0\n1\ncodec-gzip 0 41\n")
    stopped = run("verify", log_dir, "--topic", "codec-gzip", status=1).stdout
    (log_dir / ".kafka_cleanshutdown").unlink()
    copied = run("verify", log_dir, "--topic", "codec-gzip").stdout

    where = f"high-watermark: {log_dir}/codec-gzip-0, offset 40: "
    assert stopped.startswith(f"error   {where}")
    assert copied.startswith(f"warning {where}")


def test_topics_and_partitions_are_chosen(run: Run, log_dir: Path) -> None:
    """Only the chosen partitions are read."""
    change(log_dir / "segments-0" / f"{CLOSED}.log", BATCH + 100, b"\xff\xff")
    chosen = run("verify", log_dir, "--topic", "segments", "--partition", 1, "--partition", 2)
    wrong = run("verify", log_dir, "--topic", "segment", status=2)

    assert chosen.stdout.startswith("2 partitions, 5 segments, ")
    assert "did you mean 'segments'?" in wrong.stderr


def test_paths_are_shown_as_they_were_given(
    run: Run, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths stay relative, in text and in JSON. A partition or a file is accepted."""
    monkeypatch.chdir(log_dir)
    name = f"segments-0/{CLOSED}.log"
    change(log_dir / name, BATCH + 100, b"\xff\xff")

    for given in (".", "segments-0", name):
        shown = name if given != "." else f"./{name}"
        (found,) = findings(run("verify", given, "--json", status=1))

        assert shown == found["path"]
        assert f"corrupt-batch: {shown}, byte 345" in run("verify", given, status=1).stdout
    (log_dir / name).with_suffix(".index").unlink()
    both = findings(run("verify", name, "--json", status=1))
    assert ["corrupt-batch", "offset-index"] == [each["kind"] for each in both]
    assert f"segments-0/{CLOSED}.index" == both[1]["path"]


def test_names_cannot_steer_a_terminal(run: Run, tmp_path: Path) -> None:
    """Escape sequences and bidirectional characters in a path are written as escapes."""
    directory = tmp_path / "a\x1b[2J\u202eb" / "t-0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}.log").write_bytes(
        encode_batch([Record(0, T0, b"k", b"v")])[:-1] + b"?"
    )
    (directory / f"{1:020d}.log").touch()
    line = run("verify", directory, status=1).stdout.splitlines()[0]
    as_json = run("verify", directory, "--json", status=1).stdout

    assert r"a\x1b[2J\u202eb/t-0" in line
    assert line.isprintable()
    assert as_json.replace("\n", "").isprintable()
    assert f"{directory}/{0:020d}.log" == json.loads(as_json.splitlines()[0])["path"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nothing", "there is no such file or directory"),
        ("", "holds neither a directory named"),
        ("notes.txt", "notes.txt: "),
    ],
)
def test_a_path_that_is_no_log_is_refused(
    run: Run, tmp_path: Path, given: str, message: str
) -> None:
    """The status is 2, standard error has one line, and standard output has none."""
    (tmp_path / "notes.txt").write_text("no log")
    result = run("verify", tmp_path / given, "--json", status=2)

    assert "" == result.stdout
    assert message in result.stderr
    assert 1 == result.stderr.count("\n")


@pytest.mark.parametrize(
    "name",
    [
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "cleaner-offset-checkpoint",
    ],
)
def test_a_damaged_checkpoint_is_a_finding(run: Run, log_dir: Path, name: str) -> None:
    """The logs are verified without it."""
    (log_dir / name).write_text("0\n1\nsegments 0 x\n")
    change(log_dir / "segments-0" / f"{0:020d}.log", 80, b"\xff\xff")
    result = run("verify", log_dir, "--json", status=1)
    found = {each["kind"]: each for each in findings(result)}

    assert str(log_dir / name) == found["checkpoint"]["path"]
    assert found["checkpoint"]["message"].startswith("line 3: ")
    assert "corrupt-batch" in found


def on_terminals(*arguments: str, stdout: int | None = None) -> tuple[bytes, bytes]:
    """Standard output of a pipe, if `stdout` is a pipe, and the output of a terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", AT_ONCE, "verify", *arguments],
        stdout=stdout or follower,
        stderr=follower,
        env=os.environ | {"TERM": "xterm"},
    ) as process:
        os.close(follower)
        shown = b"".join(iter(lambda: _read(leader), b""))
        printed = process.stdout.read() if process.stdout else b""
    os.close(leader)
    return printed, shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""


def test_a_terminal_gets_a_bar_and_whole_lines(log_dir: Path) -> None:
    """The bar disappears at the end. No finding is broken at the terminal's width."""
    file = log_dir / "segments-0" / f"{CLOSED}.log"
    change(file, BATCH + 100, b"\xff\xff")
    _, shown = on_terminals(str(log_dir))

    assert f"error   corrupt-batch: {file}, byte 345, offset 20: the batch has".encode() in shown
    assert b"34.2" in shown  # kB, beside the bar
    assert b"MiB/s\r\n" == shown[-7:]


def test_the_bar_takes_nothing_away_from_a_pipe(log_dir: Path) -> None:
    """The pipe has all lines, as in ``verify --json > report.json``."""
    change(log_dir / "segments-0" / f"{CLOSED}.log", BATCH + 100, b"\xff\xff")
    printed, shown = on_terminals(str(log_dir), "--json", stdout=subprocess.PIPE)
    rows = list(map(json.loads, printed.splitlines()))

    assert ["corrupt-batch"] == [row["kind"] for row in rows[:-1]]
    assert 1 == rows[-1]["errors"]
    assert b"corrupt-batch" not in shown
    assert b"MiB/s" in shown


def test_notes_that_are_only_counted_are_named(run: Run) -> None:
    """A count of notes comes with the option that lists them."""
    counted = run("verify", GOLDEN)
    listed = run("verify", GOLDEN, "--notes")

    assert "--notes lists" in counted.stdout
    assert "--notes lists" not in listed.stdout
