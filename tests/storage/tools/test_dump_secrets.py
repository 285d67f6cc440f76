"""Credentials in the metadata of a cluster, which a dump does not show."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]
EXAMPLE = Path(__file__).parents[3] / "examples" / "cluster"


@pytest.mark.parametrize("encoding", ["text", "base64"])
def test_credentials_and_passwords_are_hidden(run: Run, encoding: str) -> None:
    """The records stay, with their offsets; Kafka's own tool prints salts and keys."""
    done = run(
        "dump", EXAMPLE / "__cluster_metadata-0", "--records", "--format", "json", "--values",
        encoding,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    values = [row["value"] for row in rows if row.get("value")]
    hidden = "[hidden]" if encoding == "text" else base64.b64encode(b"[hidden]").decode()
    assert 2 <= values.count(hidden) < len(values)


def test_a_snapshot_is_masked_too(run: Run) -> None:
    """Its name shows that it contains metadata."""
    snapshots = sorted((EXAMPLE / "__cluster_metadata-0").glob("*-*.checkpoint"))
    done = run("dump", snapshots[-1], "--records")
    assert "[hidden]" in done.stdout
