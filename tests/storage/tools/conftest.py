"""The command line, run inside the test."""

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from segmentlog.tools.cli import app

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run a command; the result has its exit status and its output."""

    def invoke(*arguments: object, status: int = 0, input: str | None = None) -> Result:
        result = CliRunner().invoke(app, list(map(str, arguments)), input=input)
        assert status == result.exit_code, (result.output, result.exception)
        return result

    return invoke
