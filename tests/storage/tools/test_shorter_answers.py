"""A command that shows less than there is says so, with offsets, a way on and its exit status."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damaged_starts import writable_copy
from typer.testing import Result

import segmentlog
from segmentlog.testing.reference import Record, encode_batch

Run = Callable[..., Result]

TRANSACTIONAL = 0x10


def test_a_read_up_to_an_open_transaction_says_so(run: Run, tmp_path: Path) -> None:
    """The records before it are written, and the option that writes the others is named."""
    path = tmp_path / "t-0"
    path.mkdir()
    batches = [encode_batch([Record(0, 0, b"k", b"first")])]
    batches += [
        encode_batch([Record(1, 0, b"k", b"open")], attributes=TRANSACTIONAL, producer=(5, 0, 0))
    ]
    batches += [encode_batch([Record(i, 0, b"k", b"later")]) for i in range(2, 9)]
    (path / f"{0:020d}.log").write_bytes(b"".join(batches))
    whole = run("cat", tmp_path, "t", status=1)
    beyond = run("cat", tmp_path, "t", "-o", 5, status=1)
    expected = (
        "segmentlog: t-0: the read ends at offset 1, where a transaction of producer 5 begins "
        "that is neither committed nor aborted; the offsets up to 9 follow: --isolation-level "
        "read_uncommitted writes their records\nsegmentlog: 1 failure: t-0; all else was done\n"
    )

    assert ("first\n", expected) == (whole.stdout, whole.stderr)
    assert ("", expected) == (beyond.stdout, beyond.stderr)
    assert "" == run("cat", tmp_path, "t", "-c", 1).stderr
    everything = run("cat", tmp_path, "t", "--isolation-level", "read_uncommitted")
    assert (9, "") == (len(everything.stdout.splitlines()), everything.stderr)


@pytest.fixture
def gone(tmp_path: Path) -> Path:
    """Topics that lack segments: in the middle, at the end, all of them; and one that is whole."""
    logs = tmp_path / "logs"
    for topic in ("all", "end", "middle", "whole"):
        with segmentlog.open_writer(logs, topic) as writer:
            for begin in range(0, 300, 60):
                writer.append(pa.table({"value": [f"v{i}" for i in range(begin, begin + 60)]}))
                writer.roll()
    lost = {"all": range(0, 360, 60), "end": range(180, 360, 60), "middle": (120, 180)}
    for topic, bases in lost.items():
        for base in bases:
            (logs / f"{topic}-0" / f"{base:020d}.log").unlink(missing_ok=True)
    return logs


RANGES = {
    "all-0": "offsets [0, 300)",
    "end-0": "offsets [180, 300)",
    "middle-0": "offsets [120, 240)",
}


@pytest.mark.parametrize(
    ("command", "status"),
    [(("topics",), 1), (("describe",), 1), (("grep", "v7"), 2), (("dump", "--records"), 1)],
)
def test_missing_offsets_are_named(run: Run, gone: Path, command: tuple, status: int) -> None:
    """Each of the topics is named with its offsets, and the others are as they are."""
    name, *options = command
    where = [*options, gone] if name == "grep" else [gone, *options]
    shown = run(name, *where, status=status).stderr

    for topic, offsets in RANGES.items():
        assert any(topic in line and f"{offsets} " in line for line in shown.splitlines())
    assert "whole" not in shown


def test_a_topic_without_segments_is_not_empty(run: Run, gone: Path) -> None:
    """`cat` names what is missing, in place of a word about bounds."""
    found = run("cat", gone, "all", status=1)
    middle = run("cat", gone, "middle", status=1)

    assert "" == found.stdout
    assert "all-0: offsets [0, 300) are missing: " in found.stderr
    assert "within the given bounds" not in found.stderr
    assert 180 == len(middle.stdout.splitlines())
    assert "middle-0: offsets [120, 240) are missing: " in middle.stderr
    assert "" == run("cat", gone, "whole").stderr
    # No error here asks for an option that only the library has.
    assert 180 == len(
        run("cat", gone, "end", "--read-up-to", "highWatermark", status=1).stdout.splitlines()
    )


def test_lost_records_are_not_counted(run: Run, gone: Path) -> None:
    """The number of records of a topic is that of the offsets that its segments have."""
    lines = run("topics", gone, "--json", status=1).stdout.splitlines()
    found = {row["topic"]: row for row in map(json.loads, lines)}

    assert {"all": 0, "end": 180, "middle": 180, "whole": 300} == {
        topic: row["records"] for topic, row in found.items()
    }
    assert [1, 1, 1, 0] == [len(row["problems"]) for row in found.values()]


def test_a_lost_partition_is_named_by_cat(run: Run, example_data: str, tmp_path: Path) -> None:
    """The other partitions are written."""
    copy = shutil.copytree(example_data, tmp_path / "data")
    shutil.rmtree(copy / "orders-1")
    found = run("cat", copy, "orders", "-f", r"%p\n", status=1)

    assert {"0", "2"} == {*found.stdout.split()}
    assert "orders-1: its high watermark is 317" in found.stderr


@pytest.mark.parametrize("compacted", ["", "cleaner", "aside"])
def test_a_gap_in_a_topic_that_was_never_compacted_is_a_loss(
    run: Run, tmp_path: Path, compacted: str
) -> None:
    """No index is left of the segment; the metadata of the cluster knows the settings."""
    directory = writable_copy(Path("examples/cluster"), tmp_path / "kafka")
    with segmentlog.open_writer(directory, "orders") as writer:
        for _ in range(3):
            at = pa.array([1] * 4, pa.int32())
            writer.append(pa.table({"value": ["v"] * 4, "partition": at}))
            writer.roll()
    log = directory / "orders-1"
    _, *others = sorted(int(path.stem) for path in log.glob("*.log"))
    for path in log.glob(f"{others[0]:020d}.*"):
        path.unlink()
    if compacted == "cleaner":
        (directory / "cleaner-offset-checkpoint").write_text("0\n1\norders 1 22\n")
    elif compacted == "aside":
        (log / f"segmentlog.{others[0]:020d}.log.0.broken").write_bytes(b"x")
    expected = f"offsets [{others[0]}, {others[1]}) are missing"
    status = 0 if compacted else 1
    for command in (("topics",), ("describe",), ("dump",), ("cat", "orders"), ("verify",)):
        name, *rest = command
        shown = run(name, directory, *rest, status=status)
        assert bool(status) == (expected in shown.output + shown.stderr), name


def test_deleted_partitions_are_not_searched_in_silence(run: Run, tmp_path: Path) -> None:
    """`grep` and `cat` name their directories, and `compare` those of either side."""
    left = writable_copy(Path("examples/data"), tmp_path / "left")
    right = writable_copy(Path("examples/data"), tmp_path / "right")
    renamed = right / "orders-1.0123456789abcdef0123456789abcdef-delete"
    (right / "orders-1").rename(renamed)
    expected = f"orders: 1 partition not in use, with the log still in {renamed}"
    for command in (
        ("grep", "nowhere", right),
        ("grep", "nowhere", right, "--topic", "orders"),
        ("cat", right, "orders"),
        ("compare", left, right),
    ):
        status = {"grep": 1, "cat": 0, "compare": 1}[command[0]]
        assert expected in run(*command, status=status).stderr, command
    assert (
        "not in use" not in run("grep", "nowhere", right, "--topic", "payments", status=1).stderr
    )
    shown = run("compare", left, right, "--topic", "orders", status=1).stdout
    assert f"orders-1: only left: 317 records; its logs are still in {renamed}" in shown

    for each in (0, 2):
        shutil.rmtree(right / f"orders-{each}")
    shutil.rmtree(left / "payments-0")
    (right / "payments-0").rename(right / f"payments-0.{'0' * 32}-delete")
    found = run("compare", left, right, "--topic", "payments", status=2)
    assert f"payments-0.{'0' * 32}-delete" in found.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("dump", "DIR", "--keys", "hex"),
        ("dump", "DIR", "--values", "base64"),
        ("dump", "DIR/replication-offset-checkpoint", "--topic", "orders"),
        ("dump", "DIR/replication-offset-checkpoint", "--partition", 0),
        ("describe", "DIR", "--settings", "--all"),
    ],
)
def test_an_option_without_an_effect_is_refused(
    run: Run, example_data: str, options: tuple[object, ...]
) -> None:
    """It would seem that it had one."""
    done = run(*(str(each).replace("DIR", example_data) for each in options), status=2)

    assert str(options[2]) in done.stderr.replace("│\n│", "")


def test_a_preflight_of_an_unknown_topic_is_refused(run: Run, example_cluster: str) -> None:
    """It would seem that nothing happens to the topic."""
    assert (
        "did you mean 'orders'?"
        in run("preflight", example_cluster, "--topic", "order", status=2).stderr
    )


def test_a_read_of_nothing_names_the_offsets_that_there_are(run: Run, example_data: str) -> None:
    """The bounds lie beyond the end of the log."""
    done = run("cat", example_data, "orders", "-p", 0, "-o", 1000)

    assert done.stderr.endswith("given bounds\norders-0 has offsets [0, 335)\n")


def test_an_audit_of_no_offset_proves_nothing(run: Run, example_data: str, tmp_path: Path) -> None:
    """It does not end with the word complete."""
    table = tmp_path / "rows.parquet"
    columns = ["partition", "offset"]
    pq.write_table(segmentlog.read(example_data, "orders", columns=columns), table)
    done = run(
        "audit", example_data, "orders", "--table", table, "--since", "2030-01-01", status=1
    )

    assert done.stdout.endswith(
        "orders: no offset was audited, and the log or the table has some\n"
        "0 records, 900 rows: not complete\n"
    )
