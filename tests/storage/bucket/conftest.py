"""Places of logs in object stores: a local directory, and S3 by moto."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto_here import CREDENTIALS, Moto

_numbers = itertools.count()


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    """One server for all tests; its objects are in memory."""
    before = dict(os.environ)
    os.environ.update(CREDENTIALS)
    with Moto() as server:
        yield server
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place."""
    if request.param == "file":
        return f"bucket+file://{tmp_path}/log"
    return request.getfixturevalue("moto").url(f"logs-{os.getpid()}-{next(_numbers)}")
