"""The commands that repair: their output, their changes, their exit status."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from broker_lock import as_broker
from crashing import Crash, crash_at
from typer.testing import Result

from segmentlog.errors import LogDirectoryError
from segmentlog.writes.writer import open_writer

Run = Callable[..., Result]


@pytest.fixture
def stopped(example_data: str, tmp_path: Path) -> Path:
    """A copy of a broker's directory."""
    directory = tmp_path / "logs"
    shutil.copytree(example_data, directory)
    return directory


@pytest.fixture
def crashed(stopped: Path) -> Path:
    """The directory without its mark of a clean stop; one log is torn, one lacks its indexes."""
    (stopped / ".kafka_cleanshutdown").unlink()
    log = stopped / "orders-0" / f"{0:020d}.log"
    os.truncate(log, log.stat().st_size - 5)
    for path in stopped.glob("payments-0/*index"):
        path.unlink()
    return stopped


def tree(directory: Path) -> dict[Path, bytes]:
    """Every file except the lock."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files}


def test_a_clean_directory_has_nothing_to_recover(run: Run, stopped: Path) -> None:
    """The directory is not changed."""
    before = tree(stopped)
    result = run("recover", stopped)

    assert result.stdout.startswith("nothing to do: ")
    assert "segmentlog verify reads all bytes of the logs" in result.stdout
    assert before == tree(stopped)


def test_a_dry_run_says_what_would_be_done(run: Run, crashed: Path) -> None:
    """The lines are those of a recovery, and no file changes, not even the lock."""
    before = tree(crashed)
    said = run("recover", crashed, "--dry-run", status=3).stdout

    assert "orders-0: 1390 bytes after offset 255, the log end, would be cut off" in said
    assert before == tree(crashed)
    assert not (crashed / ".lock").exists()


def test_recovering_leaves_a_directory_that_verifies(
    run: Run, crashed: Path, example_data: str
) -> None:
    """The output names the cut bytes, and indexes equal the broker's.

    A second recovery does nothing.
    """
    indexes = list(Path(example_data, "payments-0").glob("*index"))
    assert indexes
    said = run("recover", crashed, status=3).stdout

    kept = f"kept in segmentlog.{0:020d}.log.4986.broken"
    assert f"orders-0: 1390 bytes after offset 255, the log end, are cut off; {kept}" in said
    assert "orders-0: lowered its high watermark from 335 to 255, the log end" in said
    assert "marked the directory as cleanly stopped" in said.splitlines()
    assert "  orders-0: offsets [255, 335); acknowledged up to 335, the high watermark" in said
    for path in indexes:
        assert path.read_bytes() == (crashed / "payments-0" / path.name).read_bytes()
    assert "0 errors, 0 warnings" in run("verify", crashed).stdout
    assert run("recover", crashed).stdout.startswith("nothing to do: ")


def test_a_torn_tail_of_a_clean_directory_is_cut(run: Run, stopped: Path) -> None:
    """The log may have changed after the mark was made. No other log is changed."""
    log = stopped / "orders-1" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + b"torn")
    said = run("recover", stopped).stdout

    assert "orders-1: 4 bytes after offset 317, the log end, are cut off" in said
    assert "orders-0" not in said
    assert (stopped / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("is_clean", [True, False])
def test_acknowledged_records_that_went_before_are_a_loss(
    run: Run, stopped: Path, *, is_clean: bool
) -> None:
    """Nothing is cut off, but the log ends below its high watermark."""
    if not is_clean:
        (stopped / ".kafka_cleanshutdown").unlink()
    os.truncate(stopped / "orders-0" / f"{0:020d}.log", 0)
    for option in (["--dry-run"], []):
        said = run("recover", stopped, *option, status=3).stdout
        assert "  orders-0: offsets [0, 335); acknowledged up to 335, the high watermark" in said
    assert run("recover", stopped).stdout.startswith("nothing to do: ")


def test_equal_steps_are_counted(run: Run, crashed: Path) -> None:
    """Each other step has a line, and the losses come before the numbers."""
    lines = run("recover", crashed, status=3).stdout.splitlines()
    assert ["orders-0: 1390 ", "orders-0: lower", "marked the dire", "1 log lost reco"] == [
        line[:15] for line in lines[:4]
    ]
    assert "done: 8 logs read and indexed, 1 torn tail cut off" == lines[-1]


@pytest.fixture
def damaged(stopped: Path) -> Path:
    """A directory without the mark of a clean stop, with a bad batch before good ones."""
    (stopped / ".kafka_cleanshutdown").unlink()
    log = stopped / "orders-1" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[12 + int.from_bytes(data[8:12], "big") - 1] ^= 1  # the last byte of the first batch
    log.write_bytes(data)
    return stopped


def test_a_dry_run_says_that_whole_batches_would_be_cut(run: Run, damaged: Path) -> None:
    """The exit status differs from that of a torn tail."""
    before = tree(damaged)
    said = run("recover", damaged, "--dry-run", status=3).stdout
    cut = re.search(
        r"orders-1: offsets \[0, 317\) would be cut off, with whole batches from offset (\d+)",
        said,
    )
    assert cut
    assert int(cut[1]) > 0
    lines = said.splitlines()
    (lost,) = [line for line in lines if line.startswith("  orders-1: offsets [0, 317), with ")]
    assert "1 log would lose records:" == lines[lines.index(lost) - 1]
    assert before == tree(damaged)


def test_a_recovery_that_cuts_whole_batches_says_so(run: Run, damaged: Path) -> None:
    """All logs are recovered, the bytes are kept, and a second recovery does nothing."""
    whole = (damaged / "orders-1" / f"{0:020d}.log").read_bytes()
    said = run("recover", damaged, status=3).stdout
    assert "orders-1: offsets [0, 317) are cut off, with whole batches from offset " in said
    assert "another replica or a backup may have these records" in said
    (kept,) = (damaged / "orders-1").glob("*.broken")
    assert whole == kept.read_bytes()
    assert run("recover", damaged).stdout.startswith("nothing to do: ")


def test_a_writer_leaves_committed_batches_after_damage_to_recover(
    run: Run, damaged: Path
) -> None:
    """A write must not cut records that readers have seen."""
    (damaged / "recovery-point-offset-checkpoint").unlink()
    before = tree(damaged)
    rows = pa.table({"value": [b"x"], "partition": pa.array([1], pa.int32())})
    with (
        pytest.raises(LogDirectoryError, match=r"before committed records up to 317: .* recover"),
        open_writer(damaged, "orders") as writer,
    ):
        writer.append(rows)
    assert before == tree(damaged)
    run("recover", damaged, status=3)
    with open_writer(damaged, "orders") as writer:
        writer.append(rows)


def test_verify_says_which_offsets_a_recovery_would_cut(run: Run, damaged: Path) -> None:
    """A log that was cleanly stopped is only cut at a torn tail."""
    said = run("verify", damaged, status=1).stdout
    assert "recovery would cut off offsets [0, 317), with whole batches from " in said
    assert "torn tail" not in said
    (damaged / ".kafka_cleanshutdown").touch()
    assert "would cut off" not in run("verify", damaged, status=1).stdout


def test_json_names_the_offsets_that_verify_expects_a_recovery_to_cut(
    run: Run, damaged: Path
) -> None:
    """The numbers are those of the sentence, and those of the recovery itself."""
    findings = [*map(json.loads, run("verify", damaged, "--json", status=1).stdout.splitlines())]
    (cut,) = [each for each in findings if each.get("kind") == "recovery-cut"]

    assert ("warning", "orders", 1, 0, 317) == tuple(
        cut[name] for name in ("severity", "topic", "partition", "offset", "endOffset")
    )


@pytest.mark.parametrize("dry_run", [True, False])
def test_json_names_the_offsets_that_a_recovery_cuts(
    run: Run, damaged: Path, *, dry_run: bool
) -> None:
    """Each step is an object with numbers, and the last object is the summary."""
    whole = (damaged / "orders-1" / f"{0:020d}.log").stat().st_size
    option = ["--dry-run"] if dry_run else []
    said = run("recover", damaged, "--json", *option, status=3).stdout
    *steps, summary = map(json.loads, said.splitlines())
    (cut,) = [each for each in steps if each["kind"] == "log-cut"]
    (lowered,) = [each for each in steps if each["kind"] == "high-watermark-lowered"]
    place = {"topic": "orders", "partition": 1, "endOffset": 0, "cutTo": 317}
    kept = [] if dry_run else [f"segmentlog.{0:020d}.log.0.broken"]

    assert place.items() <= cut.items()
    assert (whole, kept) == (cut["bytes"], cut["kept"])
    assert 0 < cut["goodFrom"] < 317
    assert place.items() <= lowered.items()
    counts = {"logsRecovered": 8, "logsCut": 1, "logsSalvaged": 0, "logsFailed": 0}
    assert {**counts, "logsWithLosses": 1} == summary
    assert cut["cutTo"] - cut["goodFrom"] == cut["records"]
    assert 0 < cut["firstTimestamp"] < cut["lastTimestamp"]
    recovered = [each for each in steps if each["kind"] == "log-recovered"]
    assert 8 == len(recovered)
    assert all(each["cutTo"] is None for each in recovered)


def test_a_log_that_cannot_be_recovered_is_named(run: Run, crashed: Path) -> None:
    """The other logs are recovered. The directory gets no mark, and the exit status is 1."""
    log = crashed / "orders-2" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[16] = 3
    log.write_bytes(data)
    said = run("recover", crashed, status=1).stdout

    assert "orders-2: not recovered: " in said
    assert "orders-0: 1390 bytes after offset 255, the log end, are cut off" in said
    assert not (crashed / ".kafka_cleanshutdown").exists()


def test_a_path_that_is_no_log_directory_is_refused(
    run: Run, stopped: Path, tmp_path: Path
) -> None:
    """The command makes no file there."""
    for path in (tmp_path / "nothing", stopped / "orders-0", tmp_path):
        assert "segmentlog: " in run("recover", path, status=2).stderr
    assert not list(tmp_path.rglob(".lock"))
    assert "there is no such file" in run("reindex", tmp_path / "nothing", status=2).stderr
    (tmp_path / "empty").mkdir()
    assert "is not a log directory" in run("reindex", tmp_path / "empty", status=2).stderr


@pytest.mark.parametrize("command", ["recover", "reindex"])
def test_a_directory_in_use_is_refused(run: Run, crashed: Path, command: str) -> None:
    """The process with the lock may be about to write."""
    before = tree(crashed)
    with as_broker(crashed):
        assert "is in use" in run(command, crashed, status=2).stderr
    assert before == tree(crashed)


def test_reindexing_makes_the_brokers_own_bytes(run: Run, stopped: Path) -> None:
    """Missing and damaged indexes are built again. Right indexes are not written again."""
    expected = tree(stopped)
    indexes = sorted(stopped.rglob("*index"))
    for number, path in enumerate(indexes[1:]):
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(b"garbage")
    (right,) = indexes[:1]
    written = right.stat().st_ino
    said = run("reindex", stopped).stdout

    assert f"built {indexes[1]} again" in said
    assert f"{len(indexes) - 1} files were missing or wrong" in said
    assert expected == tree(stopped)
    assert written == right.stat().st_ino


def test_one_segment_is_indexed_alone(run: Run, stopped: Path) -> None:
    """Its index has the transactions that began in an earlier segment."""
    expected = tree(stopped)
    for path in stopped.glob("payments-0/*60.*index"):
        path.unlink()
    run("reindex", stopped / "payments-0" / f"{60:020d}.log")
    assert expected == tree(stopped)

    said = run("reindex", stopped / "payments-0").stdout
    assert "2 segments indexed, 0 files" in said


def test_a_segment_that_is_too_damaged_is_not_indexed(run: Run, stopped: Path) -> None:
    """The segment keeps its indexes, other segments are indexed, and the exit status is 1."""
    log = stopped / "payments-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[8] = 0xFF
    log.write_bytes(data)
    index = stopped / "orders-0" / f"{0:020d}.index"
    index.write_bytes(b"garbage")
    said = run("reindex", stopped, status=1).stdout

    assert "not indexed: " in said
    assert f"built {index} again" in said


def test_the_interval_of_a_topic_can_be_given(run: Run, stopped: Path) -> None:
    """The default interval is Kafka's."""
    index = stopped / "orders-0" / f"{0:020d}.index"
    before = index.stat().st_size
    run("reindex", stopped / "orders-0", "--index-interval-bytes", "1")

    assert before < index.stat().st_size


def test_an_unfinished_commit_is_named_until_it_is_ended(
    run: Run, stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`verify` fails and `describe` warns, both with the remedy."""
    writer = open_writer(stopped, "orders")
    writer.append(pa.table({"value": [b"v"] * 10}))
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, 15)
        with pytest.raises(Crash):
            writer.close()
    (guard,) = stopped.glob("segmentlog.unfinished.*")
    verified = run("verify", stopped, status=1)
    assert run("describe", stopped).stdout

    line = (
        f"error   unfinished-commit: {guard}: a write job is committing, or died during its commit"
    )
    assert verified.stdout.startswith(line)
    assert f"segmentlog recover {stopped}, " in verified.stdout
    assert f"{guard}: a write job is committing" in caplog.text
    assert run("recover", stopped).stdout
    assert run("verify", stopped).stdout
    caplog.clear()
    assert run("describe", stopped).stdout
    assert not caplog.messages


def test_damaged_batches_alone_are_lost_on_request(run: Run, crashed: Path) -> None:
    """The status and the last lines say that records are lost; `verify` names this way out."""
    log = crashed / "orders-1" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    way_out = "good records lie after the damage, and segmentlog recover --on-corrupt-batch skip"
    assert way_out in run("verify", crashed, status=1).stdout
    assert "--on-corrupt-batch skip" in run("recover", crashed, "--dry-run", status=3).stdout
    skip = ("recover", crashed, "--on-corrupt-batch", "skip")
    would = json.loads(run(*skip, "--dry-run", "--json", status=3).stdout.splitlines()[-1])
    assert 1 == would["logsSalvaged"]
    said = run(*skip, status=3).stdout

    found = re.search(
        r"orders-1: ([0-9]+) bad bytes were left out, and with them offsets \[0, ", said
    )
    assert found is not None
    kept = crashed / "orders-1" / f"segmentlog.{0:020d}.log.0.broken"
    assert int(found[1]) == kept.stat().st_size
    assert "0 errors, 0 warnings" in run("verify", crashed).stdout
    assert run(*skip).stdout.startswith("nothing to do: ")
