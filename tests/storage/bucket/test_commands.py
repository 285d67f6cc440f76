"""Each command on the URL of a log in an object store works, or says why not and what to do."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import segmentlog
from segmentlog.bucket import disk, sequence
from segmentlog.bucket.objects import CLOCK, MARKER
from segmentlog.tools.cli import app

_WORK = {
    "topics": "URL", "describe": "URL", "cat": "URL -t orders", "grep": "v2 URL", "dump": "URL",
    "usage": "URL", "analyze": "URL", "replicas": "URL", "compare": "URL URL", "verify": "URL",
    "sweep": "URL --dry-run", "upgrade": "URL", "retain": "URL --setting retention.ms=1 --dry-run",
    "delete-records": "URL --topic orders --partition 0 --offset 1",
    "delete-topic": "URL other", "mirror": "URL TMP/mirrored", "doctor": "URL",
    "clone": "URL orders again --to TMP/clone",
    "erase": "URL --key k", "compact": "URL --dry-run",
    "configure": "URL --topic orders --setting retention.ms=5",
}  # fmt: skip

_REFUSED = {
    "recover": "URL",
    "reindex": "URL",
    "preflight": "URL",
    "undelete": "URL other --to TMP/und",
}


def _run(command: str, rest: str, url: str, tmp_path: Path, *more: str) -> Result:
    words = [each.replace("URL", url).replace("TMP", str(tmp_path)) for each in rest.split()]
    return CliRunner().invoke(app, [command, *words, *more])


@pytest.fixture
def written(tmp_path: Path) -> str:
    """A log whose place has signs that are quoted in its paths."""
    url = f"bucket+file://{tmp_path}/a b%2Fc/lög"
    for topic in ("orders", "other"):
        with segmentlog.open_writer(url, topic) as writer:
            writer.append(pa.table({"key": ["k", "k2"], "value": ["v", "v2"]}))
    return url


@pytest.mark.parametrize("command", _WORK)
def test_it_works_and_shows_the_url_of_the_user(
    command: str, written: str, tmp_path: Path
) -> None:
    done = _run(command, _WORK[command], written, tmp_path)
    assert done.exit_code == 0, done.output
    assert ";prefix=" not in done.output
    assert "bucket+file:///orders" not in done.output


def test_commands_that_remove_segments_name_the_sweep(written: str, tmp_path: Path) -> None:
    swept = "the objects stay until segmentlog sweep removes them\n"
    rest = "URL --topic orders --partition 0 --offset 2 --yes"
    done = _run("delete-records", rest, written, tmp_path)
    assert (done.exit_code, swept in done.output) == (0, True), done.output
    done = _run("retain", "URL --setting retention.bytes=0 --yes", written, tmp_path)
    assert (done.exit_code, swept in done.output) == (0, True), done.output


def test_erase_says_that_the_store_may_keep_the_records(written: str, tmp_path: Path) -> None:
    done = _run("erase", "URL --key k --yes", written, tmp_path)
    assert "erased 2 records of 2 partitions\n" in done.output, done.output
    assert f"still there: {written}/data/: 2 objects" in done.output
    assert "versions and object locks of the store may keep them" in done.output
    done = _run("erase", "URL --key k --purge --yes", written, tmp_path)
    assert "erased 0 records of 0 partitions\n" in done.output, done.output
    assert "still there" not in done.output


def test_compact_says_what_it_joins_and_what_it_compacts(written: str, tmp_path: Path) -> None:
    with segmentlog.open_writer(written, "orders") as writer:
        writer.append(pa.table({"key": ["k"], "value": ["v"]}))
    done = _run("compact", "URL --dry-run", written, tmp_path)
    assert "orders-0: 2 segments, " in done.output, done.output
    assert "would be joined\nwould compact 1 partition" in done.output
    done = _run("compact", "URL --yes", written, tmp_path)
    assert "were joined into 1 segment\ncompacted 1 partition" in done.output, done.output
    assert "until segmentlog sweep removes them" in done.output
    done = _run("compact", "URL --yes", written, tmp_path)
    assert "no topic has cleanup.policy=compact" in done.output, done.output
    rest = "URL --yes --topic orders -s cleanup.policy=compact"
    done = _run("compact", rest, written, tmp_path)
    assert "3 records became 1 segment" in done.output, done.output
    assert "2 records; clean up to offset 3" in done.output
    done = _run("compact", rest, written, tmp_path)
    assert "no new records" in done.output, done.output


@pytest.mark.parametrize("command", _REFUSED)
def test_it_is_refused_with_what_to_do(command: str, written: str, tmp_path: Path) -> None:
    done = _run(command, _REFUSED[command], written, tmp_path)
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert f"{written}: " in line
    assert "mirror it to a local directory (segmentlog mirror)" in line
    assert segmentlog.read(written, "orders").num_rows == 2


def test_errors_show_the_url_of_the_user(written: str, tmp_path: Path) -> None:
    for command in ("groups", "schemas", "cluster"):
        done = _run(command, "URL", written, tmp_path)
        assert done.exit_code == 2
        assert ";prefix=" not in done.output
        assert written in done.stderr
    objects = (Path(written.removeprefix("bucket+file://")) / "data").glob("*/*")
    path = min(objects, key=lambda each: each.stat().st_mtime_ns)
    data = path.read_bytes()
    path.write_bytes(data[:80] + bytes([data[80] ^ 1]) + data[81:])
    finding = json.loads(_run("verify", "URL --json", written, tmp_path).stdout.splitlines()[0])
    assert finding["path"] == f"{written}/orders-0/00000000000000000000.log"


@pytest.mark.parametrize("command", [*_WORK, "produce", "mirror up"])
def test_a_later_layout_is_refused_by_each(command: str, written: str, tmp_path: Path) -> None:
    """Nothing is read wrong, written or removed: a later version may keep objects elsewhere."""
    place = Path(written.removeprefix("bucket+file://"))
    (place / MARKER).write_bytes(b'{"format":3,"layout":"segmentlog bucket"}')
    before = {each: each.stat().st_mtime_ns for each in place.rglob("*")}
    for cache in (sequence._sequences, disk._disks):  # as in a new process
        cache.clear()
    source = tmp_path / "source"
    with segmentlog.open_writer(source, "orders") as writer:
        writer.append(pa.table({"value": ["v"]}))
    work = _WORK | {"produce": "URL orders", "mirror up": f"{source} URL"}
    name, rest = command.split()[0], work[command]
    words = [each.replace("URL", written).replace("TMP", str(tmp_path)) for each in rest.split()]
    done = CliRunner().invoke(app, [name, *words], input="row\n")
    assert done.exit_code == (1 if command == "doctor" else 2), done.output
    assert "expected format 1 or 2 in segmentlog.bucket, found" in done.output
    assert "update segmentlog" in done.output
    assert before == {each: each.stat().st_mtime_ns for each in place.rglob("*")}


def test_what_a_killed_doctor_has_left(tmp_path: Path) -> None:
    """It is no other object, which a first write would refuse, and a sweep removes it."""
    url = f"bucket+file://{tmp_path}/place"
    left = tmp_path / "place" / CLOCK / "doctor-ab-0"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"0")
    done = _run("doctor", "URL", url, tmp_path)
    assert done.exit_code == 0, done.output
    assert "1 object of a doctor that was killed (segmentlog/clock/doctor-ab-0)" in done.output
    with segmentlog.open_writer(url, "orders") as writer:
        writer.append(pa.table({"value": ["v"]}))
    assert segmentlog.sweep(url).keys == ()  # it may be at work
    for dry_run in (True, False):
        assert segmentlog.sweep(url, longest_job_days=0, dry_run=dry_run).keys == (
            "segmentlog/clock/doctor-ab-0",
        )
    assert not left.exists()
