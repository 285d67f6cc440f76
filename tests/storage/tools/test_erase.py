"""The output of ``segmentlog erase``."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from compaction.batches import lay_out, records_of
from typer.testing import Result

import segmentlog
from segmentlog.testing.damage import flip_bit
from segmentlog.tools import arguments as shared_arguments

Run = Callable[..., Result]

NOT_SEARCHED = (
    "not searched: other replicas, segments in tiered storage, snapshots and backups; records "
    "with other keys\n"
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of two keys; one of them is not UTF-8."""
    batches = [records_of(0, (b"a", b"1"), (b"\x00\xff", b"2")), records_of(2, (b"a", b"3"))]
    lay_out(tmp_path / "logs", {0: batches, 3: []})
    return tmp_path / "logs"


def offsets(directory: Path) -> list[int]:
    """Offsets that a reader finds."""
    return segmentlog.open_log_dir(directory).log("t", 0).scan().read_all()["offset"].to_pylist()


def test_the_output_has_a_line_for_each_partition(run: Run, directory: Path) -> None:
    """A dry run prints the same numbers, except the bytes afterwards."""
    where = "t-0: 2 records, 2 batches, offsets 0 to 2; 1 segment, 150 bytes"
    told = run("erase", directory, "--key", "a", "--dry-run").stdout
    assert f"{where}\nwould erase 2 records of 1 partition\n{NOT_SEARCHED}" == told
    assert [0, 1, 2] == offsets(directory)

    told = run("erase", directory, "--key", "a").stdout
    done = f"{where} became 132 bytes\nerased 2 records of 1 partition\n"
    file = f"{directory}/t-0/{0:020d}.log.deleted"
    (due,) = re.findall(r"after (\S+Z)", told)
    assert f"{done}{still_there(file, due)}{NOT_SEARCHED}" == told
    assert [1] == offsets(directory)
    told = run("erase", directory, "--key", "a").stdout
    assert f"erased 0 records of 0 partitions\n{still_there(file, due)}{NOT_SEARCHED}" == told
    told = run("erase", directory, "--key", "a", "--purge").stdout
    assert f"erased 0 records of 0 partitions\n{NOT_SEARCHED}" == told


def still_there(file: str, due: str) -> str:
    """The lines about a replaced segment."""
    return (
        f"still there: {file}: 2 records with these keys; it is to be removed after {due}\n"
        "the next erase, compact or retain after that time removes a .deleted file; --purge "
        "removes it at once\n"
    )


def test_each_kind_of_copy_has_its_remedy(run: Run, directory: Path) -> None:
    """A line names the copy, and what removes it."""
    batch = (directory / "t-0" / f"{0:020d}.log").read_bytes()
    (directory / "t-0" / f"segmentlog.{0:020d}.log.0.broken").write_bytes(batch)
    for state in ("future", "delete", "stray"):
        copied = directory / f"t-0.{'0' * 32}-{state}"
        copied.mkdir()
        (copied / f"{0:020d}.log").write_bytes(batch[:-1])
    (directory / "segmentlog.0123.4.5.stage").write_bytes(b"")
    told = run("erase", directory, "--key", "a", "--purge").stdout.splitlines()
    staged = "segmentlog.0123.4.5.stage: rows that a write job has not committed are not searched"
    broken = f"t-0/segmentlog.{0:020d}.log.0.broken: 2 records with these keys"

    assert [
        f"{staged}; a write job commits these rows, or a later job removes the file",
        f"{broken}; cut off by a recovery; nothing removes it: remove the file",
    ] == [each.removeprefix(f"still there: {directory}/") for each in told[2:4]]
    for line, remedy in zip(
        told[4:7],
        ("or remove it yourself", "move the replica again", "nothing removes it: remove"),
        strict=True,
    ):
        assert "1 record with these keys; " in line
        assert "is searched up to its first bad batch: " in line
        assert remedy in line
    assert NOT_SEARCHED == told[7] + "\n"
    assert 8 == len(told)


def test_segments_in_tiered_storage_have_no_path(run: Run, tmp_path: Path) -> None:
    """A real broker's list has them; a list that is damaged is named."""
    logs = tmp_path / "logs"
    shutil.copytree(Path(__file__).parents[3] / "examples" / "tier" / "logs", logs)
    given = ("erase", logs, "--key", "nobody", "--topic", "visits", "--dry-run")
    told = run(*given).stdout
    assert "still there: visits-0: 5 segments with offsets from 0 to 499 in tiered storage" in told
    found = json.loads(run(*given, "--json").stdout.splitlines()[0])
    assert [("tier", None, None)] == [
        (each["kind"], each["path"], each["records"]) for each in found["remaining"]
    ]
    lists = logs.glob("__remote_log_metadata-*/*.log")
    damaged = max(lists, key=lambda each: each.stat().st_size)
    flip_bit(batch=0, field="crc")(damaged)
    told = run(*given).stdout
    assert (
        f"still there: all topics: whether tiered storage has segments is unknown: {logs}" in told
    )
    assert "null" in run(*given, "--json").stdout.splitlines()[0]


def test_a_terminal_is_asked_first(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal changes nothing, and without such records there is no question."""
    monkeypatch.setattr(shared_arguments, "is_terminal", lambda: True)
    refused = run("erase", directory, "--key", "a", status=1, input="n\n")
    assert "erase 2 records of 1 partition? [y/N]:" in refused.stderr
    assert [0, 1, 2] == offsets(directory)
    assert "[y/N]" not in run("erase", directory, "--key", "nobody", input="").output
    run("erase", directory, "--key", "a", input="y\n")
    assert [1] == offsets(directory)


def test_json_has_an_object_for_each_partition(run: Run, directory: Path) -> None:
    """The last object is the summary."""
    lines = run("erase", directory, "--key", "a", "--json", "--dry-run").stdout.splitlines()
    (found, summary) = map(json.loads, lines)
    assert {
        "topic": "t",
        "partition": 0,
        "records": 2,
        "batches": 2,
        "emptiedBatches": 1,
        "firstOffset": 0,
        "lastOffset": 2,
        "segments": [0],
        "bytesBefore": 150,
        "bytesAfter": None,
        "remaining": [],
    } == found
    assert {"partitions": 1, "records": 2, "remaining": 0, "dryRun": True} == summary
    run("erase", directory, "--key", "a")
    (found, summary) = map(
        json.loads, run("erase", directory, "--key", "a", "--json").stdout.splitlines()
    )
    (copy,) = found["remaining"]
    assert copy.pop("removedAfterMs") > 0
    path = f"{directory}/t-0/{0:020d}.log.deleted"
    assert {"kind": "deleted", "path": path, "records": 2, "reason": None} == copy
    assert {"partitions": 0, "records": 0, "remaining": 1, "dryRun": False} == summary


@pytest.mark.parametrize(
    ("given", "stay"),
    [
        (["--key", "00ff", "--keys", "hex"], [0, 2]),
        (["--key", "AP8=", "--keys", "base64"], [0, 2]),
        (["--key", "a", "--key", "\x00\udcff"], []),
        (["--key", "00ff"], [0, 1, 2]),
    ],
)
def test_keys_as_they_are_written(
    run: Run, directory: Path, given: list[str], stay: list[int]
) -> None:
    """Keys are text, hex or base64; bytes that are not UTF-8 are taken as the shell gives them."""
    run("erase", directory, *given)
    assert stay == offsets(directory)


def test_a_file_of_keys(run: Run, directory: Path) -> None:
    """Each line is a key; an empty line is none, and the last line needs no end."""
    keys = directory.parent / "keys.txt"
    keys.write_bytes(b"b\n\n\x00\xff\na")
    told = run("erase", directory, "--key-file", keys).stdout
    assert "erased 3 records of 1 partition" in told
    assert [] == offsets(directory)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"x\r\na\r\n", "end of key 1"),
        (b"b\na\r", "end of key 2"),
        (b"\xef\xbb\xbfa\n", "byte order mark"),
    ],
)
def test_a_file_of_keys_from_windows_is_refused(
    run: Run, directory: Path, written: bytes, message: str
) -> None:
    """No record would have such a key, and the records of the persons would stay."""
    keys = directory.parent / "keys.txt"
    keys.write_bytes(written)
    assert message in run("erase", directory, "--key-file", keys, status=2).stderr
    assert [0, 1, 2] == offsets(directory)
    keys.write_bytes(b"00ff\r\n")
    run("erase", directory, "--key-file", keys, "--keys", "hex")
    assert [0, 2] == offsets(directory)


@pytest.mark.parametrize("keys", ["hex", "base64"])
@pytest.mark.parametrize("blank", [b"", b" ", b"\r", b"\t "])
def test_a_blank_line_of_encoded_keys_is_refused(
    run: Run, directory: Path, keys: str, blank: bytes
) -> None:
    """It would be the empty key, and erase every record that has it; the last line may end."""
    file = directory.parent / "keys.txt"
    file.write_bytes(b"00ff\n" + blank + b"\n00ff\n")
    given = ("erase", directory, "--keys", keys)
    assert "is blank in line 2" in run(*given, "--key-file", file, status=2).stderr
    assert "it is blank" in run(*given, "--key", "  ", status=2).stderr
    assert [0, 1, 2] == offsets(directory)
    run(*given, "--key", "", "--dry-run")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "give at least one key"),
        (["--key", "xy", "--keys", "hex"], "give the key in hex"),
        (["--key", "x", "--keys", "base64"], "give the key in base64"),
        (["--key-file", "/nowhere/keys"], "/nowhere/keys"),
        (["--key", "a", "--topic", "u"], "u"),
    ],
)
def test_refusals(run: Run, directory: Path, given: list[str], message: str) -> None:
    """A command without a usable key, file or topic ends with status 2."""
    refused = run("erase", directory, *given, status=2)
    assert message in refused.stderr
    assert [0, 1, 2] == offsets(directory)
