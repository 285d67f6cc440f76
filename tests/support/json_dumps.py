"""Dumps in JSON, as objects."""

import json
from typing import Any

from typer.testing import Result


def json_rows(result: Result, kind: str | None = None) -> list[dict[str, Any]]:
    """Objects that a command has printed, of one kind or of all."""
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [row for row in found if kind is None or row["kind"] == kind]
