"""Commands read to the log end, and say what they leave out if they end at the high watermark.

A killed broker has a high watermark that is up to five seconds old.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

import segmentlog
from segmentlog.testing.kafka_log import KafkaLog

Run = Callable[..., Result]
OPTION = "read_up_to='logEnd' (--read-up-to logEnd) reads them"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A directory whose high watermark is 3, and whose log ends at 5."""
    log = KafkaLog(tmp_path / "logs")
    log.write("t", [b"v"] * 5)
    (log.path / "replication-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    table = pa.table({"partition": [0] * 5, "offset": range(5)})
    pq.write_table(table, tmp_path / "table.parquet")
    return log.path


def n_records(run: Run, killed: Path, name: str, *options: str) -> tuple[int, str]:
    """How many records a command reads, and what it says about the others."""
    page = killed.parent / f"{len(options)}.html"
    given: dict[str, tuple[object, ...]] = {
        "analyze": (killed, "--topic", "t", "--json", "-o", page),
        "audit": (killed, "t", "--table", killed.parent / "table.parquet", "--json"),
        "clone": (killed, "t", "t2", "--to", killed.parent / f"clone{len(options)}", "--json"),
        "grep": ("-F", "v", killed, "--count"),
        "cat": (killed, "t"),
    }
    done = run(name, *given[name], *options)
    if name == "grep":
        return int(done.stdout), done.stderr
    if name == "cat":
        return done.stdout.count("v"), done.stderr
    found = json.loads(done.stdout.splitlines()[0])
    if name == "analyze":
        shown = done.stdout + (page.read_text() if OPTION in done.stdout else "")
        return found["topics"][0]["figures"]["records"], shown
    return found["records"], done.stderr


@pytest.mark.parametrize("name", ["analyze", "audit", "clone", "grep", "cat"])
def test_one_rule_for_all(
    run: Run, killed: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The acknowledged records after a stale high watermark are read."""
    assert 5 == n_records(run, killed, name)[0]
    caplog.clear()
    n, said = n_records(run, killed, name, "--read-up-to", "highWatermark")
    assert 3 == n
    if name not in ("grep", "cat"):  # these print the records that they find
        assert OPTION in said + caplog.text


def test_python_says_what_it_leaves_out(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The default is that of all reads: the high watermark."""
    found = segmentlog.analyze(killed)
    (finding,) = (each for each in found.findings if each.code == "not-read")
    assert (found.is_sound, 2) == (True, found.topics[0].partitions[0].n_not_read)
    assert finding.text.startswith("2 offsets from 3 on are beyond the high watermark")
    assert OPTION in finding.text
    rest = segmentlog.analyze(killed, read_up_to="logEnd")
    assert "not-read" not in [each.code for each in rest.findings]

    table = pa.table({"partition": [0] * 3, "offset": range(3)})
    assert segmentlog.audit(killed, "t", table).is_complete
    assert OPTION in caplog.text
    assert 2 == segmentlog.audit(killed, "t", table, read_up_to="logEnd").count("missing")


def test_cat_takes_several_directories(run: Run, tmp_path: Path) -> None:
    """The topic may be left out, or have the name of a directory."""
    for disk in ("d1", "d2"):
        log = KafkaLog(tmp_path / disk)
        log.write("t", [disk.encode()])
    (tmp_path / "d2" / "t-0").rename(tmp_path / "d2" / "t-1")
    d1, d2 = tmp_path / "d1", tmp_path / "d2"

    for topic in ([], ["t"]):
        assert {"d1", "d2"} == {*run("cat", d1, d2, *topic).stdout.split()}
    assert "in this order" in run("cat", tmp_path / "none", d1, status=2).stderr


@pytest.mark.parametrize(
    "line",
    [
        "retain {} {} --kafka-defaults",
        "compact {} {}",
        "configure {} {} --topic t -s a=b",
        "recover {} {}",
        "erase {} {} --key k",
        "delete-topic {} {} t",
    ],
)
def test_a_command_of_one_directory_says_so(run: Run, tmp_path: Path, line: str) -> None:
    """A lock is of one directory; no error suggests to delete anything."""
    for disk in ("d1", "d2"):
        KafkaLog(tmp_path / disk).write("t", [b"v"])
    d1, d2 = tmp_path / "d1", tmp_path / "d2"
    name = line.split()[0]

    said = " ".join(run(*line.format(d1, d2).split(), status=2).stderr.replace("│", " ").split())
    assert "it changes one directory, whose lock it holds" in said
    is_deleting = name in ("erase", "delete-topic", "retain", "compact")
    assert is_deleting or f"segmentlog {name} " in said.split("run it for each")[1]
