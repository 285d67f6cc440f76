"""``segmentlog audit``: exit status, output, files and bounds."""

import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checkpoints import write_checkpoint
from typer.testing import Result

from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.tools import sinks

Run = Callable[..., Result]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table that lacks offset 1 of three, and is named by other columns."""
    log = KafkaLog(tmp_path / "logs")
    log.write("t", [b"a", b"b", b"c"])
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"p": [0, 0], "o": ["0", "2"]}), path)
    return path


COLUMNS = ("--partition-column", "p", "--offset-column", "o")


def test_a_table_that_is_not_complete(run: Run, tmp_path: Path, table: Path) -> None:
    """The status is 1, and the files have the ranges and the records."""
    ranges, missing = tmp_path / "ranges.parquet", tmp_path / "missing.parquet"
    given = ("audit", tmp_path / "logs", "t", "--table", table, *COLUMNS)

    done = run(*given, "--ranges", ranges, "--missing", missing, status=1)
    assert "t-0: missing: 1 offset: 1\n3 records, 2 rows: 1 missing\n" in done.stdout
    assert [b"b"] == pq.read_table(missing)["value"].to_pylist()
    (found,) = pq.read_table(ranges).to_pylist()
    assert ("missing", 1, 2) == (found["finding"], found["start_offset"], found["end_offset"])
    assert "already exists" in run(*given, "--ranges", ranges, status=2).stderr
    partial = tmp_path / "other.parquet.partial"
    partial.write_bytes(b"of another run")
    done = run(*given, "--ranges", tmp_path / "other.parquet", status=2)
    assert "3 records, 2 rows: 1 missing" in done.stdout
    assert "another run writes this file" in done.stderr
    assert b"of another run" == partial.read_bytes()

    partition, summary = map(json.loads, run(*given, "--json", status=1).stdout.splitlines())
    expected = {"offsets": 1, "rows": 0, "rangeCount": 1, "ranges": [[1, 2]]}
    assert (expected, False) == (partition["missing"], partition["isComplete"])
    assert (2, 1, False) == (summary["rows"], summary["missing"], summary["isComplete"])


@pytest.mark.parametrize("option", ["--ranges", "--missing"])
def test_a_disk_that_is_full(
    run: Run, tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """The verdict is there, the error names the file, and no file looks as if it were whole."""

    class _FullFile(io.FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(path: str, mode: str, **options: Any) -> Any:
        return _FullFile(path, mode.replace("b", ""))

    monkeypatch.setattr(sinks, "open", opened, raising=False)
    file = tmp_path / "found.parquet"
    done = run("audit", tmp_path / "logs", "t", "--table", table, *COLUMNS, option, file, status=2)
    assert done.stdout.endswith("3 records, 2 rows: 1 missing\n")
    assert f"{file}: No space left on device" in done.stderr
    assert not list(tmp_path.glob("found*"))


def test_bounds_by_the_words_of_spark(run: Run, tmp_path: Path, table: Path) -> None:
    """Offsets are JSON, or those of a query."""
    given = ("audit", tmp_path / "logs", "t", "--table", table, *COLUMNS)
    write_checkpoint(tmp_path / "query", {0: '{"t":{"0":1}}'}, committed=0)

    run(*given, "--starting-offsets", '{"t":{"0":2}}', status=0)
    run(*given, "--ending-offsets", f"checkpoint:{tmp_path / 'query'}", status=0)
    run(*given, "--starting-offsets", '{"t":{"0":-2}}', status=1)
    said = run(*given, "--starting-offsets", "earlier", status=2).stderr
    assert "--starting-offsets" in said
    assert "checkpoint:PATH" in said


def test_a_checkpoint_of_another_query_and_an_end_that_is_none(
    run: Run, tmp_path: Path, table: Path
) -> None:
    """They are refused: the audit would end elsewhere."""
    given = ("audit", tmp_path / "logs", "t", "--table", table, *COLUMNS)
    other = write_checkpoint(tmp_path / "other", {0: '{"u":{"0":1}}'}, committed=0)
    two = write_checkpoint(tmp_path / "two", {0: '{"u":{"0":1}}\n{"t":{"0":1}}'}, committed=0)

    said = run(*given, "--ending-offsets", f"checkpoint:{other}", status=2).stderr
    assert "its query reads u, and not t" in said
    assert "#SOURCE" in run(*given, "--ending-offsets", f"checkpoint:{two}", status=2).stderr
    run(*given, "--ending-offsets", f"checkpoint:{two}#1", status=0)
    run(*given, "--ending-offsets", f"checkpoint:{two.as_uri()}#1", status=0)
    begun = write_checkpoint(tmp_path / "begun", {0: '{"t":{"0":1}}'}, committed=-1)
    said = run(*given, "--ending-offsets", f"checkpoint:{begun}", status=2).stderr
    assert "no batch is committed yet (checkpoint:PATH#SOURCE names one)" in said
    said = run(*given, "--ending-offsets", '{"t":{"0":-2}}', status=2).stderr
    assert "-2 is the earliest offset" in said
    run(*given, "--ending-offsets", '{"t":{"0":-1}}', status=1)
    said = run(*given, "--starting-offsets", '{"t":{"0":-1}}', status=2).stderr
    assert "-1 is the latest offset" in said


def test_what_was_proven_is_said(run: Run, tmp_path: Path, table: Path) -> None:
    """Offsets alone cannot tell the rows of a topic from those of its namesake before it."""
    given = ("audit", tmp_path / "logs", "t", "--table", table, *COLUMNS)
    log = KafkaLog(tmp_path / "logs")
    log.delete_topic("t")
    log.write("t", [b"others"])
    log.gap("t", 1)
    log.write("t", [{"key": "k", "value": b"others"}])

    said = run(*given, status=0).stdout.splitlines()
    assert "not of an earlier topic of the same name, is not" in said[-2]
    assert said[-1] == "2 records, 2 rows: complete"
    summary = json.loads(run(*given, "--json", status=0).stdout.splitlines()[-1])
    assert ["partition", "offset"] == summary["compared"]

    with_keys = pq.read_table(table).append_column("record_key", pa.array([None, "k"]))
    pq.write_table(with_keys, table)
    by_key = (*given, "--columns", "timestamp,key=record_key")
    said = run(*by_key, status=0).stdout.splitlines()
    assert "proven: each offset of a record is in the table once, with the key of its record" in (
        said
    )
    pq.write_table(with_keys.drop_columns("record_key").append_column("key", [["a", "c"]]), table)
    said = run(*given, "--columns", "timestamp,key", status=1).stdout.splitlines()
    assert "t-0: different: 2 offsets: 0, 2" in said
    assert "2 records, 2 rows: 2 different" in said
    _, summary = map(
        json.loads, run(*given, "--columns=key", "--json", status=1).stdout.split("\n")[:2]
    )
    assert (["partition", "offset", "key"], 2) == (summary["compared"], summary["different"])
    assert "the table has none of them" in run(*given, "--columns", "value", status=2).stderr
    assert "columns are timestamp, " in run(*given, "--columns", "offset", status=2).stderr


def test_an_audit_of_nothing(run: Run, tmp_path: Path, table: Path) -> None:
    """It proves nothing of a log that has records."""
    given = ("audit", tmp_path / "logs", "t", "--table", table, *COLUMNS)

    done = run(*given, "--until", "2000-01-01", status=1)
    assert "t: no offset was audited, and the log or the table has some\n" in done.stdout
    assert done.stdout.endswith(": not complete\n")
    summary = json.loads(
        run(*given, "--until", "2000-01-01", "--json", status=1).stdout.splitlines()[-1]
    )
    assert (["t"], False) == (summary["topicsNotAudited"], summary["isComplete"])


def test_a_table_without_a_column_for_the_topic(run: Run, tmp_path: Path) -> None:
    """An empty name says that there is none."""
    KafkaLog(tmp_path / "logs").write("t", [b"a"])
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"partition": [0], "offset": [0], "topic": ["sports"]}), path)
    given = ("audit", tmp_path / "logs", "t", "--table", path)

    assert "--topic-column" in run(*given, status=2).stderr
    run(*given, "--topic-column", "", status=0)


def test_arguments_that_are_missing_or_swapped(run: Run, tmp_path: Path, table: Path) -> None:
    """The status is 2."""
    assert "DIR... TOPIC" in run("audit", "t", "--table", table, status=2).stderr
    assert (
        "in this order" in run("audit", "t", tmp_path / "logs", "--table", table, status=2).stderr
    )
    said = run("audit", tmp_path / "logs", "t", "--table", table, status=2).stderr
    assert "column 'partition' is missing" in said
