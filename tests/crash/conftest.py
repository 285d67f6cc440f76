"""The crash disk that all tests here share: a state that was opened once is not opened again."""

import logging
from collections.abc import Iterator

import pytest
from crash_disk.explore import Explorer


@pytest.fixture(scope="session")
def explorer() -> Iterator[Explorer]:
    """The results of openings so far."""
    explorer = Explorer()
    yield explorer
    explorer.close()


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Each recovery says what it does."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
