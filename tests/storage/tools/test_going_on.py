"""One bad thing ends no command: it is named, the others are done, and the status is not 0."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_once import made_once
from typer.testing import Result

import segmentlog
from segmentlog.audits import AuditWork, ColumnNames, merge, plan_audit
from segmentlog.audits.parts import STRETCHES
from segmentlog.cluster import follower
from segmentlog.errors import SegmentLogError
from segmentlog.log import checkpoint, listing
from segmentlog.maintain.start import metadata
from segmentlog.reads import scan
from segmentlog.testing.reference import Record, encode_batch

Run = Callable[..., Result]


def flip(log: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(log.read_bytes())
    data[at] ^= 4
    log.write_bytes(data)


@made_once
def write_compacted(logs: Path) -> None:
    """Three topics with old records of each key; a batch of the second one is damaged."""
    for topic in "abc":
        with segmentlog.open_writer(logs, topic) as writer:
            for _ in range(3):
                for i in range(3):
                    keys = [f"k{j}" for j in range(20)]
                    writer.append(pa.table({"key": keys, "value": [f"{i}-{key}" for key in keys]}))
                    writer.flush()
                writer.roll()
    flip(logs / "b-0" / f"{60:020d}.log", -20)


@pytest.fixture
def compacted(tmp_path: Path) -> Path:
    """Three topics with old records of each key; a batch of the second one is damaged."""
    write_compacted(tmp_path / "logs")
    return tmp_path / "logs"


COMPACT = ("-s", "cleanup.policy=compact", "-s", "min.cleanable.dirty.ratio=0")


@pytest.mark.parametrize("as_json", [False, True])
def test_the_logs_after_a_damaged_one_are_compacted(
    run: Run, compacted: Path, as_json: bool
) -> None:
    """Results are printed for those that are done, and the damaged log is as it was."""
    before = (compacted / "b-0" / f"{60:020d}.log").read_bytes()
    options = ("--json",) if as_json else ()
    done = run("compact", compacted, *COMPACT, *options, status=1)
    left = {topic: segmentlog.read(compacted, topic).num_rows for topic in "ac"}

    assert left["a"] == left["c"] < 180
    assert ["a", "c"] == [
        json.loads(line)["topic"] if as_json else line[0] for line in done.stdout.splitlines()[:2]
    ]
    assert "b-0" in done.stderr
    assert done.stderr.endswith("segmentlog: 1 failure: b-0; all else was done\n")
    assert before == (compacted / "b-0" / f"{60:020d}.log").read_bytes()


def test_python_compacts_the_others_and_then_raises(compacted: Path) -> None:
    """The error is that of the damaged log; with a callback, the results are returned."""
    flip(compacted / "a-0" / f"{60:020d}.log", -20)
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    with pytest.raises(SegmentLogError, match="a-0") as caught:
        segmentlog.compact(compacted, settings=settings)
    told: dict[str, SegmentLogError] = {}
    found = segmentlog.compact(
        compacted, settings=settings | {"min.compaction.lag.ms": "0"}, on_failure=told.__setitem__
    )

    assert segmentlog.read(compacted, "c").num_rows < 180
    assert [True] == ["b-0" in note for note in caught.value.__notes__]
    assert ([], ["a-0", "b-0"]) == (found, sorted(told))


def test_retention_goes_on(run: Run, compacted: Path) -> None:
    """Segments of the sound logs go, and the damaged log is named."""
    last = max((compacted / "b-0").glob("*.log"))
    last.write_bytes(b"\xff" * 70)
    (compacted / ".kafka_cleanshutdown").unlink(missing_ok=True)
    listed = sorted(each.name for each in (compacted / "b-0").glob("*.log"))
    for name in ("recovery-point-offset-checkpoint",):
        (compacted / name).write_text("0\n3\na 0 180\nb 0 999\nc 0 180\n")
    done = run("retain", compacted, "-s", "retention.bytes=1", "--yes", status=1)

    assert {"a-0", "c-0"} <= {line.split(":")[0] for line in done.stdout.splitlines()}
    assert "b-0" in done.stderr
    assert listed == sorted(each.name for each in (compacted / "b-0").glob("*.log"))


LIMITS = (
    "-s",
    "retention.bytes=1",
    "-s",
    "retention.ms=-1",
    "-s",
    "cleanup.policy=delete",
)


def refuse_list(monkeypatch: pytest.MonkeyPatch, partition: str) -> None:
    """Let a partition directory belong to another user."""
    list_names = listing.list_names

    def refuse(path: str) -> list[str]:
        if Path(path).name == partition:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return list_names(path)

    monkeypatch.setattr(listing, "list_names", refuse)


@pytest.fixture
def unlistable(example_data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of which one partition belongs to another user, and another one is damaged."""
    copy = shutil.copytree(example_data, tmp_path / "data")
    (log,) = (copy / "orders-2").glob("*.log")
    flip(log, 80)
    refuse_list(monkeypatch, "customers-0")
    return copy


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("verify",), 1),
        (("topics",), 1),
        (("describe",), 1),
        (("dump", "--records"), 1),
        (("grep", "order"), 2),
        (("preflight",), 1),
        (("replicas",), 1),
        (("reindex",), 1),
        (("mirror",), 1),
        (("retain", *LIMITS, "--yes"), 1),
    ],
)
def test_an_unlistable_partition_hides_no_other(
    run: Run, unlistable: Path, command: tuple, status: int
) -> None:
    """It is named with the reason, and the damage after it is found."""
    name, *options = command
    where = [*options, unlistable] if name == "grep" else [unlistable, *options]
    if name == "mirror":
        where.append(unlistable.parent / "copy")
    done = run(name, *where, status=status)
    shown = done.stdout + done.stderr

    assert "customers-0" in shown
    assert "cannot be listed: Permission denied" in shown
    assert "payments" in shown or name in {"verify", "reindex", "preflight"}
    assert "orders-2" in shown or name in {"replicas", "reindex", "preflight", "retain"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--json"], "cannot be listed: Permission denied"),
        ([], "cannot be listed: Permission denied"),
        ([], "but its log is gone: put the log back"),
        (["--ending-offsets", '{"orders": {"0": -1, "1": 300, "2": -1}}'], "its log is gone"),
    ],
)
def test_an_audit_names_a_partition_without_bounds(
    run: Run,
    example_data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    reason: str,
) -> None:
    """The other partitions are audited."""
    table = segmentlog.read(example_data, "orders")
    pq.write_table(table, tmp_path / "orders.parquet")
    if "gone" in reason:
        example_data = str(shutil.copytree(example_data, tmp_path / "copy"))
        shutil.rmtree(tmp_path / "copy" / "orders-1")
    refuse_list(monkeypatch, "orders-1")
    done = run(
        "audit", example_data, "orders", "--table", tmp_path / "orders.parquet", *options, status=1
    )
    found = segmentlog.audit(example_data, "orders", table)
    plan = plan_audit(example_data, "orders", (), 10)
    names = ColumnNames("partition", "offset", "topic")
    work = AuditWork.of(plan, names, table.schema, None)
    parts = pa.RecordBatch.from_pylist([{"part": i} for i in range(len(work.parts))], STRETCHES)
    outcomes = [
        row["outcome"]
        for batch in work.compare([*work.collect(table.to_batches()), parts])
        for row in batch.to_pylist()
        if row["outcome"]
    ]

    assert found.partitions == merge(work, outcomes).partitions
    assert reason in done.stdout
    assert [0, 1, 2] == [each.partition for each in found.partitions]
    assert [True, False, True] == [each.is_complete for each in found.partitions]
    assert (table.num_rows, {}) == (found.n_rows, found.unknown_partitions)
    assert table.num_rows == sum(each.n_rows for each in found.partitions)


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "replication-offset-checkpoint"])
@pytest.mark.parametrize("command", ["topics", "describe", "verify", "dump"])
def test_a_torn_checkpoint_ends_no_command(
    run: Run, example_data: str, tmp_path: Path, name: str, command: str
) -> None:
    """All is shown that can be shown without it."""
    copy = shutil.copytree(example_data, tmp_path / "data")
    (copy / name).write_bytes(b"\0" * 40)
    done = run(command, copy, status=1)

    assert "orders" in done.stdout or command == "verify"
    assert name in done.stdout + done.stderr


def test_copies_and_comparisons_go_on(run: Run, example_data: str, tmp_path: Path) -> None:
    """The other partitions are copied and compared."""
    source = shutil.copytree(example_data, tmp_path / "source")
    copy = tmp_path / "copy"
    run("mirror", source, copy)
    flip(max((source / "customers-0").glob("*.log"), key=lambda each: each.stat().st_size), 200)
    compared = run("compare", source, copy, status=1)
    (log,) = (copy / "orders-1").glob("*.log")
    log.unlink()
    log.mkdir()
    mirrored = run("mirror", source, copy, status=1)

    told = dict(line.split(": ", 1) for line in compared.stdout.splitlines())
    assert {"customers-0", "orders-0", "orders-1", "orders-2", "payments-0"} == told.keys()
    assert "has checksum 0x" in told["customers-0"]
    assert {"orders-0", "orders-2", "payments-0"} <= {
        line.split(":")[0] for line in mirrored.stdout.splitlines()
    }
    assert "orders-1" in mirrored.stderr


def test_a_mirror_goes_on_after_a_small_file_that_cannot_be_read(
    run: Run, example_data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition stays as it was at the destination."""
    opens = follower.opened_source

    def refuse(path: str, *inode: int) -> object:
        if path.endswith("orders-1/partition.metadata"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opens(path, *inode)

    monkeypatch.setattr(follower, "opened_source", refuse)
    done = run("mirror", example_data, tmp_path / "copy", status=1)
    copied = segmentlog.read(tmp_path / "copy", "orders")

    assert done.stderr.endswith("segmentlog: 1 failure: orders-1; all else was done\n")
    assert {0, 2} == {*copied["partition"].to_pylist()}


def test_deletion_of_records_goes_on(run: Run, example_data: str, tmp_path: Path) -> None:
    """An offset that one partition does not have is no offset to refuse the others for."""
    copy = shutil.copytree(example_data, tmp_path / "data")
    (log,) = (copy / "orders-0").glob("*.log")
    log.write_bytes(b"\xff" * 30 + log.read_bytes()[30:])
    done = run(
        "delete-records", copy, "--topic", "orders", "--before", "2025-10-11", "--yes", status=1
    )

    assert {"orders-1", "orders-2"} == {
        line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("orders")
    }
    assert "segmentlog: 1 failure: orders-0; all else was done\n" in done.stderr


@made_once
def write_segments(logs: Path) -> None:
    """A log of three segments with 20 records each, of one time each, in batches of five."""
    with segmentlog.open_writer(logs, "a", preserve=True) as writer:
        for at in range(0, 60, 5):
            times = pa.array(
                [1_700_000_000_000 + at // 20 * 3_600_000] * 5, pa.timestamp("ms", "UTC")
            )
            values = [f"v{i}" for i in range(at, at + 5)]
            offsets = range(at, at + 5)
            columns = {"partition": [0] * 5, "offset": offsets, "timestampType": [0] * 5}
            writer.append(pa.table({**columns, "value": values, "timestamp": times}))
            writer.flush()
            if at % 20 == 15:
                writer.roll()


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    """A log of three segments with 20 records each, of one time each, in batches of five."""
    write_segments(tmp_path / "logs")
    return tmp_path / "logs"


READS = (
    (("cat", "DIR", "a", "-f", "v\\n"), 1),
    (("grep", "v", "DIR"), 2),
    (("dump", "DIR"), 1),
    (("topics", "DIR"), 1),
    (("describe", "DIR"), 1),
    (("verify", "DIR"), 1),
)


@pytest.mark.parametrize("entry", ["directory", "link", "compacted"])
@pytest.mark.parametrize(("command", "status"), READS)
def test_a_segment_that_is_no_file_is_missing(
    run: Run, segments: Path, entry: str, command: tuple[str, ...], status: int
) -> None:
    """Its offsets are named, also in a log that was once compacted."""
    log = segments / "a-0" / f"{20:020d}.log"
    log.unlink()
    if entry == "directory":
        log.mkdir()
    else:
        log.symlink_to("/nowhere/segment.log")
    if entry == "compacted":
        (segments / "cleaner-offset-checkpoint").write_text("0\n1\na 0 20\n")
    done = run(*(segments if each == "DIR" else each for each in command), status=status)

    assert "offsets [20, 40) are missing" in done.stdout + done.stderr
    assert f"{20:020d}.log is a link, or no file" in done.stdout + done.stderr


@pytest.mark.parametrize("is_link", [True, False])
@pytest.mark.parametrize(("command", "status"), READS)
def test_a_partition_that_is_no_directory_is_missing(
    run: Run, segments: Path, is_link: bool, command: tuple[str, ...], status: int
) -> None:
    """A file or a link with its name does not hide that its records are not read."""
    shutil.move(segments / "a-0", segments / "elsewhere")
    if is_link:
        (segments / "a-0").symlink_to("elsewhere")
    else:
        (segments / "a-0").write_bytes(b"")
    done = run(*(segments if each == "DIR" else each for each in command), status=status)
    what = "a symbolic link" if is_link else "not a directory"

    assert f"{segments / 'a-0'} is {what}" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("what", "at", "to", "command"),
    [
        ("codec", 22, 7, ("cat", "DIR", "a", "-f", "%s\\n")),
        ("codec", 22, 7, ("grep", "v", "DIR")),
        ("magic", 16, 9, ("grep", "v", "DIR")),
    ],
)
def test_a_read_goes_on_after_a_batch_of_another_format(
    run: Run, segments: Path, what: str, at: int, to: int, command: tuple[str, ...]
) -> None:
    """The batch is named, and the records after it are shown."""
    log = segments / "a-0" / f"{20:020d}.log"
    data = bytearray(log.read_bytes())
    begin = 12 + int.from_bytes(data[8:12], "big")  # of the second batch
    end = begin + 12 + int.from_bytes(data[begin + 8 : begin + 12], "big")
    data[begin + at] = to
    checksum = crc32c.crc32c(bytes(data[begin + 21 : end]))
    data[begin + 17 : begin + 21] = checksum.to_bytes(4, "big")
    log.write_bytes(data)
    status = 2 if command[0] == "grep" else 1
    done = run(*(segments if each == "DIR" else each for each in command), status=status)

    assert 55 == len(done.stdout.splitlines())
    assert {"v24", "v30"} <= {*re.findall("v[0-9]+", done.stdout)}
    assert f"has {what} {to}" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("retain", "DIR", "-s", "retention.bytes=1"),
        ("compact", "DIR", *COMPACT),
        ("delete-records", "DIR", "--topic", "b", "--partition", "0", "--offset", "60"),
        ("erase", "DIR", "--topic", "b", "--key", "k1"),
    ],
)
def test_a_dry_run_refuses_a_damaged_end(
    run: Run, compacted: Path, command: tuple[str, ...]
) -> None:
    """So does the command itself, which appends to the log."""
    flip(compacted / "b-0" / f"{120:020d}.log", 70)
    done = [
        run(
            *(compacted if each == "DIR" else each for each in command),
            *options,
            status=2 if command[0] == "erase" else 1,
        )
        for options in (["--dry-run"], [])
    ]
    refused = [
        [line for line in each.stderr.splitlines() if "is damaged from offset 120 on" in line]
        for each in done
    ]

    assert 1 == len(refused[0])
    assert refused[0] == refused[1]
    if command[0] in {"retain", "compact"}:
        assert all("a-0: " in each.stdout and "b-0" not in each.stdout for each in done)


@pytest.mark.parametrize("options", [(), ("--records",)])
def test_a_batch_with_an_unknown_codec_is_verified_as_an_error(
    run: Run, segments: Path, options: tuple[str, ...]
) -> None:
    """Its checksum is right, and no reader inflates it."""
    log = segments / "a-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[22] = 7
    end = 12 + int.from_bytes(data[8:12], "big")
    data[17:21] = crc32c.crc32c(bytes(data[21:end])).to_bytes(4, "big")
    log.write_bytes(data)
    done = run("verify", segments, *options, status=1)

    assert "error   unsupported-batch" in done.stdout
    assert "1 error," in done.stdout


@pytest.mark.parametrize("command", [("dump",), ("analyze",), ("mirror", "copy")])
def test_partitions_that_are_not_in_use_are_named(
    run: Run, segments: Path, command: tuple[str, ...]
) -> None:
    """Their records are neither shown nor copied."""
    shutil.copytree(segments / "a-0", segments / f"b-0.{'0' * 32}-delete")
    name, *to = command
    done = run(name, segments, *(segments.parent / each for each in to))

    assert "b: 1 partition not in use" in done.stderr


def test_files_with_names_of_partitions_are_not_indexed(run: Run, segments: Path) -> None:
    """A broker looks at directories alone."""
    (segments / "backup-2024").write_bytes(b"")

    assert "3 segments indexed" in run("reindex", segments).stdout


@pytest.mark.parametrize("command", [("grep", "v"), ("analyze",)])
def test_a_read_goes_on_after_an_unreadable_file(
    run: Run, segments: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """The records of the other segments are shown."""
    opens = scan.open_file

    def refuse(path: str, **options: bool) -> object:
        if path.endswith(f"{20:020d}.log"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opens(path, **options)

    monkeypatch.setattr(scan, "open_file", refuse)
    is_grep = command[0] == "grep"
    done = run(*command, segments, "--count" if is_grep else "--json", status=1 + is_grep)

    found = "40\n" if is_grep else '"records": 40'
    assert found in done.stdout
    assert f"{20:020d}.log: Permission denied" in done.output


def test_damage_that_a_look_up_by_time_meets_is_a_failure(
    run: Run, segments: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The damaged batch may hold the first record of that time."""
    flip(segments / "a-0" / f"{20:020d}.log", 70)
    since = "2023-11-14T23:00:00Z"
    searched = run("grep", "v", segments, "--since", since, "--count", status=2)
    written = run("cat", segments, "a", "-o", f"@{since}", status=1)

    assert "35\n" == searched.stdout
    assert 35 == len(written.stdout.splitlines())
    assert searched.stderr == written.stderr
    assert "that batch is left out" in caplog.text


@pytest.mark.parametrize("options", [("--limit", 5), ("--limit", 40, "--records")])
def test_a_limited_dump_that_shows_damage_fails(run: Run, segments: Path, options: tuple) -> None:
    """The limit comes after the damage."""
    flip(segments / "a-0" / f"{0:020d}.log", 70)
    done = run("dump", segments, *options, status=1)

    assert "not valid: its crc32c" in done.stdout


def test_a_dump_of_several_files_goes_on(run: Run, segments: Path) -> None:
    """A file that is gone, or is no checkpoint, is named, and the next one is shown."""
    (segments / "log-start-offset-checkpoint").write_text("what?\n")
    names = ("nothing.index", "log-start-offset-checkpoint", "replication-offset-checkpoint")
    done = run("dump", *(segments / name for name in names), status=1)

    assert "60" in done.stdout
    assert all(name in done.stderr for name in names[:2])


@pytest.mark.parametrize("command", [("erase", "--key", "k", "--dry-run"), ("recover",)])
def test_a_partition_without_segments_is_no_traceback(
    run: Run, segments: Path, command: tuple[str, ...]
) -> None:
    """A dry run says what the erasure would say, and a recovery names the loss."""
    for path in (segments / "a-0").iterdir():
        path.unlink()
    name, *options = command
    if name == "recover":
        options = ["--on-corrupt-batch", "skip"]
    done = run(name, segments, *options, status=3 if name == "recover" else 2)

    assert "offsets [0, 60)" in done.stdout or "holds no segment" in done.stderr


CHECKPOINTS = ("replication-offset-checkpoint", "log-start-offset-checkpoint")


@pytest.mark.parametrize("fault", ["torn", "directory", "forbidden"])
@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize(("command", "status"), [*READS, (("analyze", "DIR"), 1)])
def test_logs_are_read_without_a_checkpoint(
    run: Run,
    segments: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    name: str,
    command: tuple[str, ...],
    status: int,
) -> None:
    """All of their records and segments are shown, and the checkpoint is named."""
    path = segments / name
    path.unlink(missing_ok=True)
    if fault == "torn":
        path.write_bytes(b"\0" * 40)
    else:
        path.mkdir()
    if fault == "forbidden":
        read_whole = checkpoint.read_whole

        def refuse(path: str, *options: object) -> bytes:
            if path.endswith(name):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return read_whole(path, *options)  # type: ignore[arg-type]

        monkeypatch.setattr(checkpoint, "read_whole", refuse)
    done = run(*(segments if each == "DIR" else each for each in command), status=status)
    lines = done.stdout.splitlines()

    assert name in done.stdout + done.stderr
    if command[0] in {"cat", "grep"}:
        assert 60 == len(lines)
    elif command[0] in {"topics", "describe", "analyze"}:
        assert "60" in lines[1].split()
    elif command[0] == "verify":
        assert any(line.startswith("1 partition, 3 segments, 1,") for line in lines)


@pytest.mark.parametrize(("command", "status"), READS[:2] + READS[3:])
def test_a_log_start_beyond_the_log_end_is_named(
    run: Run, segments: Path, command: tuple[str, ...], status: int
) -> None:
    """No reader sees a record of such a log."""
    (segments / "log-start-offset-checkpoint").write_text("0\n1\na 0 90\n")
    done = run(*(segments if each == "DIR" else each for each in command), status=status)

    assert re.search("log start .*90.* beyond its log end 60|60, but .* has 90", done.output)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A copy of a broker's directory in which one partition of the groups is damaged."""
    copy = shutil.copytree("examples/cluster", tmp_path / "cluster")
    flip(damaged_groups(copy), 75)
    return copy


def damaged_groups(directory: Path) -> Path:
    """The largest log of the groups."""
    logs = directory.glob("__consumer_offsets-*/*.log")
    return max(logs, key=lambda each: each.stat().st_size)


def test_groups_of_other_partitions_are_shown(run: Run, cluster: Path) -> None:
    """The damaged partition has no rows, or on request those of its other batches."""
    name = damaged_groups(cluster).parent.name
    whole = segmentlog.table("examples/cluster", "group_offsets").to_pylist()
    others = [row for row in whole if f"__consumer_offsets-{row['record_partition']}" != name]
    skipped = segmentlog.table(cluster, "group_offsets", on_corrupt_batch="skip").num_rows
    by_default = run("groups", cluster, "--json", status=1)
    rest = run("groups", cluster, "--json", "--on-corrupt-batch", "skip", status=1)

    def n_offsets(result: Result) -> int:
        rows = map(json.loads, result.stdout.splitlines())
        return sum(row.get("offset") is not None for row in rows)

    assert len(others) == n_offsets(by_default) < n_offsets(rest) == skipped
    assert f"{name}/" in by_default.stderr
    assert "--on-corrupt-batch skip shows the rest of it" in by_default.stderr
    assert rest.stderr.endswith(f"segmentlog: 1 failure: {name}; all else was done\n")


@pytest.mark.parametrize("fault", ["damaged", "gone"])
def test_a_topic_is_cloned_without_the_commits_of_some_groups(
    run: Run, cluster: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """The clone is whole, and the partition of the groups that have no place in it is named."""
    name = damaged_groups(cluster).parent.name
    if fault == "gone":
        shutil.rmtree(cluster / name)
    arguments = ("clone", cluster, "orders", "new", "--keep-offsets", "--to", tmp_path / "clone")
    done = run(*arguments, "--offsets", tmp_path / "groups.csv", status=1)

    assert "new-2: 20 records" in done.stdout
    assert "fraud,new,0,7\n" in (tmp_path / "groups.csv").read_text()
    assert f"{name} is not read whole, and places of its groups may be missing: " in caplog.text
    assert done.stderr.endswith(f"segmentlog: 1 failure: {name}; all else was done\n")


@pytest.mark.parametrize(("command", "status"), [("replicas", 0), ("mirror", 0), ("preflight", 1)])
def test_metadata_that_may_not_be_read_ends_no_command(
    run: Run,
    example_cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    status: int,
) -> None:
    """It is like metadata that is damaged."""
    opens = os.open

    def refuse(path: str, *options: int, **others: object) -> int:
        if "__cluster_metadata-0/" in os.fspath(path) and str(path).endswith(".log"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opens(path, *options, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    to = [tmp_path / "copy", "--topic", "orders"] if command == "mirror" else []
    done = run(command, example_cluster, *to, status=status)

    assert "orders" in done.stdout or "cannot be read: Permission denied" in done.stdout


@pytest.mark.parametrize(
    "command", [("retain", *LIMITS), ("erase", "--topic", "a", "--key", "k1")]
)
def test_upkeep_needs_no_file_of_settings_if_they_are_given(
    run: Run, compacted: Path, caplog: pytest.LogCaptureFixture, command: tuple[str, ...]
) -> None:
    """A warning names the file, and that its settings do not count."""
    (compacted / "segmentlog.settings").write_text("what?")
    run(command[0], compacted, *command[1:], "--yes")

    assert re.search("segmentlog.settings, .* the settings in it do not count", caplog.text)


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (("retain", "DIR", "--yes"), [*LIMITS]),
        (
            ("compact", "DIR", "--yes"),
            [*COMPACT, "-s", "min.compaction.lag.ms=0", "-s", "delete.retention.ms=0"],
        ),
        (("delete-records", "DIR", "--topic", "orders", "--before", "2d", "--yes"), []),
        (("erase", "DIR", "--topic", "orders", "--key", "no", "--yes"), []),
        (("clone", "DIR", "orders", "new", "--to", "TO"), []),
    ],
)
def test_upkeep_needs_no_metadata_if_settings_are_given(
    run: Run,
    cluster: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    command: tuple[str, ...],
    needed: list[str],
) -> None:
    """A topic may have settings of its own in the damaged metadata: a warning says so."""
    (log,) = (cluster / "__cluster_metadata-0").glob("*.log")
    flip(log, 200)
    places = {"DIR": cluster, "TO": tmp_path / "clone"}
    arguments = [places.get(each, each) for each in command]
    if needed:
        refused = run(*arguments, *needed[:-2], status=2)
        assert f"also give {needed[-1].partition('=')[0]}" in refused.stderr
    run(*arguments, *needed, status=int(command[0] == "clone"))

    assert "the settings in it do not count" in caplog.text


def test_python_reads_the_other_partitions(cluster: Path) -> None:
    """`table` raises at the end, or returns the other partitions to a caller with a callback."""
    told: list[str] = []
    found = segmentlog.table(
        cluster, "group_offsets", on_failure=lambda name, _: told.append(name)
    )

    assert [damaged_groups(cluster).parent.name] == told
    assert found.num_rows
    with pytest.raises(SegmentLogError, match=told[0]):
        segmentlog.table(cluster, "group_offsets")


def test_a_damaged_topic_has_no_lag_and_hides_no_group(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group has its other partitions' lag, and the log that cannot be read is named."""
    copy = shutil.copytree("examples/cluster", tmp_path / "cluster")
    refuse_list(monkeypatch, "orders-1")
    rows = [
        json.loads(line) for line in run("groups", copy, "--json", status=1).stdout.splitlines()
    ]
    lags = {row["partition"]: row["lag"] for row in rows if row.get("topic") == "orders"}

    assert {0, 1, 2} == lags.keys()
    assert [1] == [partition for partition, lag in lags.items() if lag is None]


def test_transactions_are_shown_without_their_topic(run: Run, tmp_path: Path) -> None:
    """A broker that coordinates none may have partitions with open transactions."""
    golden = "tests/golden/kafka-4.3.1/cluster"
    copy = shutil.copytree(golden if Path(golden).is_dir() else "examples/cluster", tmp_path / "d")
    for path in copy.glob("__transaction_state-*"):
        shutil.rmtree(path)
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (copy / name).unlink(missing_ok=True)
    done = run("transactions", copy, "--json", status=1)

    assert "holds no partition of __transaction_state" in done.stderr
    assert all(
        json.loads(line)["table"] == "open_transactions" for line in done.stdout.splitlines()
    )


@pytest.mark.parametrize("command", ["cluster", "schemas", "table", "transactions", "groups"])
def test_there_is_one_option_for_damage(run: Run, command: str) -> None:
    """Commands about Kafka's own topics take it under one name."""
    assert "--on-corrupt-batch" in run(command, "--help").stdout


@pytest.mark.parametrize(("command", "status"), [("verify", 1), ("preflight", 1), ("mirror", 0)])
def test_unlistable_metadata_ends_no_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, status: int
) -> None:
    """The partitions are verified and copied, and the metadata is named."""
    copy = shutil.copytree("examples/cluster", tmp_path / "cluster")
    if command == "verify":
        (log,) = (copy / "orders-1").glob("*.log")
        flip(log, 80)
    for module in (listing, metadata):
        list_names = module.list_names

        def refuse(path: str, list_names: Callable[[str], list[str]] = list_names) -> list[str]:
            if Path(path).name == "__cluster_metadata-0":
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return list_names(path)

        monkeypatch.setattr(module, "list_names", refuse)
    done = run(command, copy, *([tmp_path / "copy"] if command == "mirror" else []), status=status)

    if command == "mirror":
        assert (tmp_path / "copy" / "orders-1").is_dir()
    else:
        assert "__cluster_metadata-0" in done.stdout
        assert "orders-1" in done.stdout or command == "preflight"


def test_the_lag_behind_a_log_that_has_lost_its_segments_is_not_negative(
    run: Run, tmp_path: Path
) -> None:
    """The records are gone, and the group has not read them."""
    copy = shutil.copytree("examples/cluster", tmp_path / "cluster")
    before = run("groups", copy, "--json")
    for log in copy.glob("orders-*/*.log"):
        log.unlink()
    done = run("groups", copy, "--json", status=1)

    counted = re.compile(r'"(lag_records|lag_ms)": \d+')  # of records that are gone
    assert counted.sub(r'"\1": null', before.stdout) == done.stdout
    assert "orders-2: offsets [0, 20) are missing" in done.stderr


@pytest.mark.parametrize("reason", ["lag", "transaction"])
def test_compact_says_what_new_records_wait_for(run: Run, segments: Path, reason: str) -> None:
    """A setting, or the last stable offset."""
    settings = [*COMPACT, "-s", "min.compaction.lag.ms=9000000000000"]
    if reason == "transaction":
        (segments / "replication-offset-checkpoint").write_text("0\n1\na 0 3\n")
        settings = [*COMPACT]
    done = run("compact", segments, *settings, "--dry-run")
    told = {
        "lag": "1 partition: their new records are younger than min.compaction.lag.ms",
        "transaction": "1 partition: a transaction is open, or the high watermark lies",
    }

    assert told[reason] in done.stdout


def test_times_that_are_no_microseconds_are_compared(run: Run, tmp_path: Path) -> None:
    """Copies are equal, and different times of that kind differ."""
    for name, time in (("left", 2**62), ("right", 2**62), ("other", 2**62 + 2**61)):
        path = tmp_path / name / "t-0"
        path.mkdir(parents=True)
        batch = encode_batch([Record(0, time, b"k", b"v")])
        (path / f"{0:020d}.log").write_bytes(batch)
    equal = run("compare", tmp_path / "left", tmp_path / "right")
    differs = run("compare", tmp_path / "left", tmp_path / "other", status=1)

    assert equal.stdout == "t-0: equal: 1 records in [0, 1)\n"
    assert "differs at offset 0 in timestamp" in differs.stdout


@pytest.mark.parametrize("fault", ["start", "segments"])
def test_a_read_that_finds_no_record_warns(
    segments: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """The log start lies beyond the log end, or all segments are gone."""
    if fault == "start":
        (segments / "log-start-offset-checkpoint").write_text("0\n1\na 0 90\n")
    else:
        for path in (segments / "a-0").glob("*.log"):
            path.unlink()

    assert segmentlog.read(segments, "a", read_up_to="logEnd").num_rows == 0
    assert ("beyond its log end 60" if fault == "start" else "(a-0: [0, 60))") in caplog.text


def test_a_mirror_names_partitions_that_its_source_lacks(run: Run, segments: Path) -> None:
    """The others are copied; the command ends with status 1, and Python has the error."""
    (segments / "replication-offset-checkpoint").write_text("0\n2\na 0 60\na 1 7\n")
    done = run("mirror", segments, segments.parent / "copy", status=1)

    assert "a-0: [0, 60) of " in done.stdout
    assert "a-1" in done.stderr
    assert "its high watermark is 7 in " in done.stderr
    assert done.stderr.endswith("segmentlog: 1 failure: a-1; all else was done\n")
    with pytest.raises(segmentlog.UnknownTopicOrPartitionError, match="and it is not copied"):
        segmentlog.mirror(segments, to=segments.parent / "again")
    assert segmentlog.read(segments.parent / "again", "a", read_up_to="logEnd").num_rows > 0


def test_a_preflight_names_logs_without_segments(run: Run, segments: Path) -> None:
    """The high watermark has promised records."""
    for path in (segments / "a-0").glob("*.log"):
        path.unlink()

    assert (
        f"missing  {segments / 'a-0'}, offset 0: the directory has no segment"
        in run("preflight", segments, status=1).stdout
    )
