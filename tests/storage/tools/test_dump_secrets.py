"""Credentials in the metadata of a cluster, which a dump does not show."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from coordinator_logs import Coordinator
from typer.testing import Result

Run = Callable[..., Result]
EXAMPLE = Path(__file__).parents[3] / "examples" / "cluster"


@pytest.mark.parametrize("encoding", ["text", "base64"])
def test_credentials_and_passwords_are_hidden(run: Run, encoding: str) -> None:
    """The records stay, with their offsets; Kafka's own tool prints salts and keys."""
    done = run(
        "dump",
        EXAMPLE / "__cluster_metadata-0",
        "--records",
        "--format",
        "json",
        "--values",
        encoding,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    values = [row["value"] for row in rows if row.get("value")]
    hidden = "[hidden]" if encoding == "text" else base64.b64encode(b"[hidden]").decode()
    assert 2 <= values.count(hidden) < len(values)


def test_a_snapshot_is_masked_too(run: Run) -> None:
    """Its name shows that it contains metadata."""
    snapshots = sorted((EXAMPLE / "__cluster_metadata-0").glob("*-*.checkpoint"))
    done = run("dump", snapshots[-1], "--records")
    assert "[hidden]" in done.stdout


@pytest.mark.parametrize("topic", ["connect-configs", "any-name"])
def test_secrets_of_connect_are_hidden(run: Run, tmp_path: Path, topic: str) -> None:
    """The session key and passwords of connectors are in no output; other records stay."""
    session = {"key": "c2VjcmV0", "algorithm": "HmacSHA256", "creation-timestamp": 5}
    wrapped = {"schema": None, "payload": {"properties": {"db.password": "c2VjcmV0"}}}
    records = {
        "session-key": session,
        "connector-a": {"properties": {"db.password": "c2VjcmV0"}},
        "task-a-0": wrapped,
        "connector-b": {"properties": {"topics": "t"}},
        "commit-a": 1,
        "other": {"key": "shown", "algorithm": "x", "creation-timestamp": 5},
    }
    pairs = [(key.encode(), json.dumps(value).encode()) for key, value in records.items()]
    Coordinator().add(
        *pairs, (b"connector-c", b"{no JSON"), (b"task-d-0", None), (None, b"x")
    ).write(tmp_path, 0, topic)
    for form in ("json", "table"):
        printed = run("dump", tmp_path / f"{topic}-0", "--records", "--format", form).stdout
        assert "c2VjcmV0" not in printed
        assert printed.count("[hidden]") == 3
        assert "shown" in printed
    done = run("dump", tmp_path / f"{topic}-0", "--records", "--format", "json")
    rows = [row for row in map(json.loads, done.stdout.splitlines()) if "key" in row]
    assert len(pairs) + 3 == len(rows)
    for given in (["--json"], ["--history"], []):
        shown = run("table", "connect_configs", tmp_path, "--topic", topic, *given, status=1)
        assert "c2VjcmV0" not in shown.output


def test_secrets_of_a_loose_file_are_hidden_if_its_topic_is_named(
    run: Run, tmp_path: Path
) -> None:
    """The name of the directory does not show that the file has metadata."""
    (log,) = (EXAMPLE / "__cluster_metadata-0").glob("*.log")
    loose = tmp_path / log.name
    loose.write_bytes(log.read_bytes())
    done = run("dump", loose, "--records", "--as", "__cluster_metadata").stdout

    assert "value='[hidden]'" in done
    assert '"type": "TOPIC_RECORD"' in done
    assert '"type": "USER_SCRAM_CREDENTIAL_RECORD"' not in done
