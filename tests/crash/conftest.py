"""All tests here share one crash disk: a state that was opened once is not opened again."""

import logging
from collections.abc import Iterator

import pytest
from crash_disk.explore import Explorer


@pytest.fixture(scope="session")
def explorer() -> Iterator[Explorer]:
    """The results of all openings so far."""
    explorer = Explorer()
    yield explorer
    explorer.close()


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Turn logging off, because each recovery logs what it does."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
