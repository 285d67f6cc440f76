"""The output of ``retain``, ``compact``, ``delete-records`` and ``configure``, and of settings."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from broker_lock import as_broker
from compaction.batches import lay_out, records_of
from typer.testing import Result

import segmentlog
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools import arguments as shared_arguments

Run = Callable[..., Result]

LATER = (
    "the files stay as .deleted for file.delete.delay.ms=60000: the next retain or write after "
    "this delay frees their space; --purge frees it at once\n"
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two partitions of two segments each, with records of the years 1970 and 2100."""
    config = segmentlog.ProducerConfig(use_timestamps=True)
    with segmentlog.open_writer(tmp_path, "orders", num_partitions=2, config=config) as writer:
        for time_ms in (1000, 4_102_444_800_000):
            times = pa.array([time_ms] * 2, pa.timestamp("ms", "UTC"))
            writer.append(
                pa.table(
                    {
                        "value": [b"a", b"b"],
                        "partition": pa.array([0, 1], pa.int32()),
                        "timestamp": times,
                    }
                )
            )
            writer.roll()
    return tmp_path


def test_retain_says_what_goes_and_why(run: Run, directory: Path) -> None:
    """A line for each segment, and a total; a dry run also names the segments that stay."""
    why = (
        "69 bytes: its newest record is from 1970-01-01T00:00:01.000Z, which is older than "
        "retention.ms="
    )
    source = "604800000 (Kafka's default)"
    lines = "".join(f"orders-{p}: offsets 0 to 0, {why}{source}\n" for p in (0, 1))
    stays = "".join(
        f"orders-{p}: 00000000000000000001.log, 69 bytes, stays, and so do all later segments: "
        "its newest record, offset 1, is from 2100-01-01T00:00:00.000Z, and retention.ms="
        f"{source} keeps it until 2100-01-08T00:00:00.000Z: this time is in the future\n"
        for p in (0, 1)
    )
    asked = run("retain", directory, "--dry-run", status=2).stderr
    assert asked.endswith("allow Kafka's defaults (--kafka-defaults)\n")

    told = run("retain", directory, "--dry-run", "--kafka-defaults").stdout
    assert f"{lines}{stays}would remove 2 segments, 138 bytes\n" == told

    told = run("retain", directory, "--kafka-defaults").stdout
    assert f"{lines}removed 2 segments, 138 bytes\n{LATER}" == told
    assert "removed 0 segments, 0 bytes\n" == run("retain", directory).stdout


def test_retain_explains_after_a_removal_and_in_json(run: Run, directory: Path) -> None:
    """`--explain` names the segments that stay, each as an object with `--json`."""
    told = run("retain", directory, "--kafka-defaults", "--explain").stdout.splitlines()
    printed = run("retain", directory, "--dry-run", "--explain", "--json").stdout.splitlines()
    first, _, total = map(json.loads, printed)

    assert 2 == sum(", stays, and so do all later segments: " in line for line in told)
    assert (1, 2, 1, "limits") == tuple(
        first[each] for each in ("baseOffset", "endOffset", "newestOffset", "hold")
    )
    assert first["kept"] is True
    assert {"segments": 0, "bytes": 0, "dryRun": True} == total


@pytest.mark.parametrize(
    ("factor", "divisor", "unit"),
    [(1, 1000, "seconds"), (1000, 1, "microseconds"), (10**6, 1, "nanoseconds")],
)
def test_a_time_in_another_unit_is_marked(
    run: Run, tmp_path: Path, factor: int, divisor: int, unit: str
) -> None:
    """Seconds expire at once, and microseconds and nanoseconds hold back all later segments."""
    old = 1_700_000_000_000
    for base, time_ms in ((0, old * factor // divisor), (1, old), (2, old)):
        path = tmp_path / "t-0" / f"{base:020d}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode_batch([Record(base, time_ms, b"k", b"v")]))
    done = run(
        "retain", tmp_path, "--dry-run", "-s", "retention.ms=1", "-s", "cleanup.policy=delete"
    )
    looks = f"(it looks like {unit}, of 2023-11-14T22:13:20.000Z)"
    (line,) = [line for line in done.stdout.splitlines() if looks in line]

    assert line.startswith("t-0: offsets 0 to 0, " if unit == "seconds" else "t-0: 0000000000")
    assert (unit == "seconds") != ("2 later segments with " in line)


def test_retain_has_an_object_a_segment(run: Run, directory: Path) -> None:
    """The objects are those of the lines, and the last one counts them."""
    lines = run("retain", directory, "--dry-run", "--kafka-defaults").stdout.splitlines()
    printed = run("retain", directory, "--dry-run", "--kafka-defaults", "--json").stdout
    *rows, counts = map(json.loads, printed.splitlines())

    lines = [line for line in lines if ", stays, and so do " not in line]
    assert len(lines) - 1 == len(rows) == counts["segments"] > 0
    assert sum(row["bytes"] for row in rows) == counts["bytes"]
    assert counts["dryRun"]
    for line, row in zip(lines, rows, strict=False):
        assert line.startswith(f"{row['topic']}-{row['partition']}: offsets {row['baseOffset']} ")


def test_deletions_have_objects(run: Run, directory: Path) -> None:
    """An object a partition, or one for the topic, also for what would be deleted."""
    topic = next(iter(segmentlog.open_log_dir(directory).topics()))
    arguments = ("delete-records", directory, "--topic", topic, "--before", "2100-01-01", "--json")
    planned = list(map(json.loads, run(*arguments, "--dry-run").stdout.splitlines()))
    done = list(map(json.loads, run(*arguments).stdout.splitlines()))

    assert [each | {"dryRun": False} for each in planned] == done
    assert all(each["newStart"] > each["oldStart"] for each in done)
    deleted = json.loads(run("delete-topic", directory, topic, "--json").stdout)
    assert (topic, len(done), False) == (
        deleted["topic"],
        deleted["partitions"],
        deleted["dryRun"],
    )


def test_reindex_has_an_object_a_file(run: Run, directory: Path) -> None:
    """Each object names a file that was missing, and the last one counts them."""
    (index,) = [*directory.glob("**/*.index")][:1]
    index.unlink()
    row, counts = map(json.loads, run("reindex", directory, "--json").stdout.splitlines())

    assert (str(index), None) == (row["path"], row["error"])
    assert (1, 0) == (counts["files"], counts["failed"])


def test_retain_by_other_settings(run: Run, directory: Path) -> None:
    """The call gives settings for some topics."""
    printed = run(
        "retain",
        directory,
        "--topic",
        "orders",
        "-s",
        "retention.ms=-1",
        "-s",
        "retention.bytes=69",
    ).stdout

    assert (
        "orders-0: offsets 0 to 0, 69 bytes: the log is larger than retention.bytes=69 (call)\n"
    ) in printed


def test_retain_below_the_log_start(run: Run, directory: Path) -> None:
    """The log start has moved, and segments below it still exist, as with a broker."""
    with segmentlog.open_writer(directory, "orders", overwrite=True) as writer:
        writer.append(pa.table({"value": [b"c"]}))
    for path in Path(directory).glob("orders-*/*.deleted"):
        path.rename(path.with_suffix(""))
    printed = run("retain", directory, "-s", "cleanup.policy=compact").stdout

    assert 4 == len(re.findall(r"69 bytes: below the log start\n", printed))


def test_delete_records(run: Run, directory: Path) -> None:
    """Records are deleted up to an offset of one partition, or before a time in all partitions."""
    line = "orders-1: {} at offset 1 instead of 0; 1 segment, 69 bytes {}\n"
    which = ("delete-records", directory, "--topic", "orders")
    assert (
        line.format("would begin", "would go")
        == run(*which, "--partition", "1", "--offset", "1", "--dry-run").stdout
    )
    assert (
        line.format("begins", "are gone") + LATER
        == run(*which, "--partition", "1", "--offset", "1").stdout
    )
    assert (
        "orders-0: begins at offset 1 instead of 0; 1 segment, 69 bytes are gone\n"
        f"orders-1: begins at offset 1; there are no earlier records\n{LATER}"
    ) == run(*which, "--before", "2026-01-01").stdout


def test_refusals_are_one_line_with_status_2(run: Run, directory: Path) -> None:
    """Nothing is changed."""
    which = ("delete-records", directory, "--topic")
    for arguments, message in (
        ((*which, "orders", "--offset", "1"), "an offset belongs to one partition"),
        ((*which, "orders"), "give the first offset that stays, or a time"),
        ((*which, "order", "--before", "0"), "did you mean 'orders'?"),
        ((*which, "orders", "--partition", "7", "--before", "0"), "it has partitions 0, 1"),
        (("retain", directory, "-s", "retention.ms"), "give a name and a value"),
        (("retain", directory, "--topic", "order"), "did you mean 'orders'?"),
        (("configure", directory, "-s", "retention.mss=1"), "did you mean 'retention.ms'?"),
        (("describe", directory, "--settings", "--topic", "order"), "did you mean 'orders'?"),
    ):
        refused = run(*arguments, status=2).stderr
        assert message in refused
        assert 1 == refused.count("\n")
    with as_broker(directory):
        for command in ("retain", "configure"):
            assert "is in use" in run(command, directory, "-s", "segment.ms=1", status=2).stderr

    assert 2 == len(segmentlog.open_log_dir(directory).log("orders", 0).segments)
    assert not (directory / "segmentlog.settings").exists()


def test_configure_and_describe_settings(run: Run, directory: Path) -> None:
    """Stored settings are listed with their sources."""
    run("configure", directory, "-s", "segment.bytes=5000", "-s", "retention.bytes=7")
    printed = run(
        "configure",
        directory,
        "--topic",
        "orders",
        "-s",
        "retention.ms=9",
    ).stdout
    assert re.search(r"retention.ms +9 +segmentlog.settings\n", printed)
    run("configure", directory, "--remove", "retention.bytes")
    printed = run("describe", directory, "--settings").stdout
    assert re.search(r"orders +segment.bytes +5000 +segmentlog.settings, defaults\n", printed)
    assert re.search(r"orders +retention.bytes +-1 +Kafka's default\n", printed)
    lines = run("describe", directory, "--settings", "--json").stdout.splitlines()

    assert {
        "topic": "orders",
        "setting": "retention.ms",
        "value": "9",
        "source": "segmentlog.settings",
    } in map(json.loads, lines)
    lines = run("configure", directory, "--topic", "orders", "--json").stdout.splitlines()
    kept = {"setting": "retention.ms", "value": "9", "source": "segmentlog.settings"}
    assert kept in map(json.loads, lines)


def test_compact_has_an_object_a_partition(run: Run, tmp_path: Path) -> None:
    """The last object counts the partitions and the bytes that went."""
    first = records_of(0, (b"a", b"1"), (b"a", b"2"), (None, b"3"))
    lay_out(tmp_path, {0: [first], 3: [records_of(3, (b"b", b"4"))]}, "customers-0")
    policy = ("-s", "cleanup.policy=compact", "--json")
    printed = [run("compact", tmp_path, *policy, *dry).stdout for dry in (["--dry-run"], [])]
    (planned, due), (done, counts) = (map(json.loads, each.splitlines()) for each in printed)

    assert (87, None, True) == (planned["bytesBefore"], planned["bytesAfter"], due["dryRun"])
    assert (87, 70, 3, 1) == (
        done["bytesBefore"],
        done["bytesAfter"],
        done["recordsBefore"],
        done["recordsAfter"],
    )
    assert {"partitions": 1, "bytesRemoved": 17, "dryRun": False} == counts


def test_compact_says_what_became_of_each_partition(run: Run, tmp_path: Path) -> None:
    """The output has a line for each partition, and a total. A dry run names the segments."""
    first = records_of(0, (b"a", b"1"), (b"a", b"2"), (None, b"3"))
    lay_out(tmp_path, {0: [first], 3: [records_of(3, (b"b", b"4"))]}, "customers-0")
    policy = ("-s", "cleanup.policy=compact")
    told = run("compact", tmp_path, "--dry-run", *policy).stdout
    assert (
        "customers-0: dirty from offset 0, 100% of its bytes; 1 segment, 87 bytes would be read, "
        "up to offset 3\nwould compact 1 partition, 87 bytes\n"
    ) == told

    told = run("compact", tmp_path, "--topic", "customers", *policy).stdout
    assert (
        "customers-0: dirty from offset 0, 100% of its bytes; 1 segment, 87 bytes, 3 records "
        "became 1 segment, 70 bytes, 1 record, 1 record without a key removed; clean up to "
        "offset 3\ncompacted 1 partition, removed 17 bytes\n"
        + LATER.replace("retain or write", "compact or retain")
    ) == told
    assert (
        "compacted 0 partitions, removed 0 bytes\n"
        "1 partition: only the active segment has new records (--roll closes it)\n"
    ) == run("compact", tmp_path, *policy).stdout


def test_a_limit_that_nobody_has_set_is_refused_in_one_line(run: Run, directory: Path) -> None:
    """The line names the setting, the loss, and the ways to allow it."""
    refused = run("retain", directory, status=2).stderr

    assert "option 'retention.ms' is empty or not given" in refused
    assert (
        "topic 'orders', and 2 segments with 138 bytes would be removed by Kafka's default"
        in refused
    )
    assert "--kafka-defaults" in refused
    assert 1 == refused.count("\n")
    assert 2 == len(segmentlog.open_log_dir(directory).log("orders", 0).segments)


REMOVING: tuple[tuple[str, ...], ...] = (
    ("retain", "{}", "--kafka-defaults"),
    ("compact", "{}", "-s", "cleanup.policy=compact"),
    ("delete-records", "{}", "--topic", "orders", "--partition", "0", "--offset", "1"),
    ("delete-topic", "{}", "orders"),
)


@pytest.mark.parametrize("command", REMOVING, ids=lambda command: command[0])
def test_a_terminal_is_asked_before_records_go(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """A refusal changes no file. With ``--yes`` there is no question."""
    monkeypatch.setattr(shared_arguments, "is_terminal", lambda: True)
    words = [word.format(directory) for word in command]
    before = {path: path.read_bytes() for path in directory.rglob("*.log")}
    refused = run(*words, status=1, input="n\n")
    assert re.search(r"\? \[y/N\]:", refused.stderr)
    assert before == {path: path.read_bytes() for path in directory.rglob("*.log")}

    done = run(*words, "--yes")
    assert "[y/N]" not in done.output
    assert before != {path: path.read_bytes() for path in directory.rglob("*.log")}


def test_a_terminal_is_shown_what_goes_before_it_is_asked(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment is listed once, with the source of its limit."""
    monkeypatch.setattr(shared_arguments, "is_terminal", lambda: True)
    done = run("retain", directory, "-s", "retention.ms=5", input="y\n")

    assert 2 == done.stdout.count("older than retention.ms=5 (call)\n")
    assert "remove 2 segments, 138 bytes? [y/N]:" in done.stderr
    assert done.stdout.endswith(f"removed 2 segments, 138 bytes\n{LATER}")
    nothing = run("retain", directory, "-s", "retention.ms=5", input="")
    assert ("removed 0 segments, 0 bytes\n", "") == (nothing.stdout, nothing.stderr)


def test_nothing_compacted_says_why(run: Run, tmp_path: Path) -> None:
    """Each reason has its number of partitions."""
    first = records_of(0, (b"a", b"1"), (b"a", b"2"))
    lay_out(tmp_path, {0: [first], 2: [records_of(2, (b"b", b"4"))]}, "customers-0")
    nothing = "compacted 0 partitions, removed 0 bytes"
    assert (
        f"{nothing}: no topic has cleanup.policy=compact (-s, or segmentlog configure)\n"
    ) == run("compact", tmp_path).stdout
    policy = ("-s", "cleanup.policy=compact")
    assert (
        "would compact 0 partitions, 0 bytes\n"
        "1 partition: at most the min.cleanable.dirty.ratio of 1.0 is dirty\n"
    ) == run("compact", tmp_path, *policy, "-s", "min.cleanable.dirty.ratio=1", "--dry-run").stdout
    run("compact", tmp_path, *policy)

    assert (
        f"{nothing}\n1 partition: only the active segment has new records "
        in run("compact", tmp_path, *policy).stdout
    )


def test_roll_compacts_the_active_segment_and_purge_frees_the_space(
    run: Run, directory: Path
) -> None:
    """Only the last record of the key is left, and no file of other records."""
    with segmentlog.open_writer(directory, "customers") as writer:
        for value in (b"1", b"2"):
            writer.append(pa.table({"key": [b"k"], "value": [value]}))
    segmentlog.alter_settings(directory, "customers", {"cleanup.policy": "compact"})
    assert "compacted 0 partitions" in run("compact", directory).stdout
    told = run("compact", directory, "--roll", "--purge").stdout
    log = segmentlog.open_log_dir(directory).log("customers", 0)

    assert "became 1 segment" in told
    assert "compacted 1 partition, removed" in told
    assert ".deleted" not in told
    assert [b"2"] == log.scan().read_all()["value"].to_pylist()
    assert (0, 2) == (log.log_start_offset, log.log_end_offset)
    assert 2 == len(log.segments)
    assert not [*directory.rglob("*.deleted")]
    assert 2 == len(segmentlog.open_log_dir(directory).log("orders", 0).segments)


@pytest.mark.parametrize(
    "command",
    [
        ("retain", "--kafka-defaults"),
        ("delete-records", "--topic", "orders", "--before", "2026-01-01"),
    ],
)
def test_purge_frees_the_space_at_once(
    run: Run, directory: Path, command: tuple[str, ...]
) -> None:
    """Files that an earlier command has put aside are removed, too."""
    name, *more = command
    run("delete-records", directory, "--topic", "orders", "--partition", "0", "--offset", "1")
    assert [*directory.rglob("*.deleted")]
    told = run(name, directory, *more, "--purge").stdout

    assert ".deleted" not in told
    assert not [*directory.rglob("*.deleted")]
