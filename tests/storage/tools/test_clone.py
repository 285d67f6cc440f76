"""The command ``clone``: its report, its files, and the functions that it loads."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from registered import framed, readings
from typer.testing import Result

import segmentlog

CLUSTER = Path(__file__).parents[3] / "examples" / "cluster"

Run = Callable[..., Result]


def test_groups_get_a_file_and_a_command(run: Run, tmp_path: Path) -> None:
    """Each group has a place in each partition of the clone."""
    groups, places = tmp_path / "groups.csv", tmp_path / "map.parquet"
    done = run(
        "clone", CLUSTER, "orders", "orders-v2", "--to", tmp_path / "c", "--partitions", 2,
        "--order", "timestamp", "--offsets", groups, "--offset-map", places,
    )  # fmt: skip
    assert "orders-v2-0: 60 records, [0, 60)\n" in done.stdout
    assert "group audit: has read 45 records, and repeats 30\n" in done.stdout
    assert f"--from-file {groups} --group audit" in done.stderr
    assert "audit,orders-v2,0,15\naudit,orders-v2,1,0\n" in groups.read_text()
    assert 60 == sum(pq.read_table(places)["n_records"].to_pylist())


def test_a_topic_that_no_group_reads(run: Run, tmp_path: Path) -> None:
    """There is no command that would reset the offsets of no group."""
    done = run(
        "clone",
        CLUSTER,
        "again",
        "s",
        "--to",
        tmp_path / "c",
        "--offsets",
        tmp_path / "groups.csv",
    )
    assert done.stderr.endswith("is empty: no group has committed an offset in again\n")
    assert "" == (tmp_path / "groups.csv").read_text()


def test_a_full_disk_is_that_of_a_file(run: Run, tmp_path: Path) -> None:
    """The clone becomes visible before the places of groups are known."""
    arguments = "clone", CLUSTER, "orders", "o", "--to", tmp_path / "c"
    done = run(*arguments, "--offset-map", "/dev/full", status=2)
    assert "segmentlog: /dev/full: No space left on device" in done.stderr
    assert not (tmp_path / "c" / "o-0").exists()
    done = run(*arguments, "--offsets", "/dev/full", status=2)
    assert "o is there, without the places of groups" in done.stderr


def test_json_lines_and_a_dry_run(run: Run, tmp_path: Path) -> None:
    done = run("clone", CLUSTER, "orders", "u", "--to", tmp_path / "c", "--json", "--dry-run")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {
        "topic": "u",
        "partition": 0,
        "records": 20,
        "logStartOffset": 0,
        "logEndOffset": 20,
        "dryRun": True,
    } == lines[0]
    assert {"group": "audit", "read": 45, "repeated": 0, "dryRun": True} in lines
    assert not (tmp_path / "c").exists()


def test_functions_and_masks_change_values(run: Run, tmp_path: Path) -> None:
    """A file has the function; the mask follows it."""
    masks = tmp_path / "masks.py"
    masks.write_text(
        "def first(rows):\n    return rows.slice(0, 3)\n\n"
        "def bad(rows):\n    raise ValueError('x\\ny')\n"
        "def same(rows):\n    return rows\n"
    )
    (tmp_path / "broken.py").write_text("no\n")
    values = [
        b"see https://user:secret@host/x",
        b"\xff@=:",
        b"password=abc",
        None,
        b"plain",
    ]
    with segmentlog.open_writer(tmp_path / "s", "t") as writer:
        writer.append(pa.table({"value": values}))
    done = run("clone", tmp_path / "s", "t", "a", "--mask-credentials")
    assert "0 keys and 2 values changed" in done.stdout
    hidden = [b"see https://[hidden]@host/x", b"\xff@=:", b"password=[hidden]", None, b"plain"]
    assert hidden == segmentlog.read(tmp_path / "s", "a")["value"].to_pylist()
    done = run(
        "clone", tmp_path / "s", "t", "b", "--mask-credentials", "--transform", f"{masks}:first"
    )
    assert "2 records left out" in done.stdout
    assert hidden[:3] == segmentlog.read(tmp_path / "s", "b")["value"].to_pylist()
    for given, reason in (
        (f"{masks}:second", "has no function 'second'"),
        (f"{masks}:bad", "'bad'; it raised ValueError: x y at "),
        (f"{masks}:bad", "masks.py:5, for the batch with partition 0 offset 0 to partition 0 "),
        (f"{tmp_path}/broken.py:f", "broken.py cannot be loaded: NameError: name 'no' is not"),
        ("masks", "give a file and a function"),
        (f"{tmp_path}/none.py:f", "give a file and a function"),
    ):
        done = run("clone", tmp_path / "s", "t", "c", "--transform", given, status=2)
        assert reason in done.stderr
        assert 1 == len(done.stderr.splitlines())
    done = run("clone", tmp_path / "s", "t", "c", "--transform", f"{masks}:same", "--json")
    counts = {"changedKeys": 0, "changedValues": 0, "leftOut": 0, "dryRun": False}
    assert counts == json.loads(done.stdout.splitlines()[0])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["orders"], "the name of the clone"),
        ([CLUSTER, "orders"], "the name of the clone"),
        ([CLUSTER, "orders", "u", "--schema-id", "7"], "give the old and the new id"),
        ([CLUSTER, "orders", "u", "--schema-id", "7=x"], "give old and new ids"),
        ([CLUSTER, "orders", "u", "--offsets", "a", "--offset-map", "./a"], "one file"),
        (
            [CLUSTER, "orders", "u", "--partitions", "2", "--keep-offsets"],
            "leave out --num-partitions",
        ),
        ([CLUSTER, "orders", "u", "--dry-run", "--partitions", "2"], "1 key stands in several"),
    ],
)
def test_wrong_command_lines(run: Run, arguments: list[str], reason: str) -> None:
    done = run("clone", *arguments, status=2)
    assert reason in " ".join(done.stderr.replace("│", " ").split())


def test_ids_that_stay_are_named(run: Run, tmp_path: Path) -> None:
    values = [b"\x00\x00\x00\x00\x07a", b"\x00\x00\x00\x00\x08b"]
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(pa.table({"value": values}))
    done = run("clone", tmp_path, "t", "u", "--schema-id", "7=9")
    assert "no option names them: 8" in done.stderr
    wanted = [b"\x00\x00\x00\x00\x09a", values[1]]
    assert wanted == segmentlog.read(tmp_path, "u")["value"].to_pylist()


def test_fields_are_hidden_or_get_another_value(run: Run, tmp_path: Path) -> None:
    """The output counts what was changed; a field that is not there is a wrong argument."""
    pytest.importorskip("fastavro")
    readings(tmp_path / "s")
    given = ("clone", tmp_path / "s", "readings", "u", "--to", tmp_path / "to")
    done = run(*given, "--mask", "value.city", "--mask", "value.degrees=7")
    assert "0 keys and 3 values changed" in done.stdout
    rows = segmentlog.read(tmp_path / "to", "u")["value"].to_pylist()
    assert framed(2, b"\x10[hidden]\2\x0e") == rows[1]
    for flags, said in (
        (["--mask", "value.town"], "option '--mask' is 'value.town'; no schema of readings-value"),
        (["--mask", "value.city", "--mask", "value.city=x"], "is given twice"),
        (["--decode-frame", "none"], "it belongs to --mask"),
    ):
        assert said in run(*given, *flags, status=2).stderr
