"""A wheel of the checkout, and a virtual environment in which nothing else is installed."""

from pathlib import Path

import pytest
from bare import Bare, build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """A new virtual environment after ``pip install '.[spark]'``."""
    return Bare.make(tmp_path_factory.mktemp("bare") / "venv", wheel)
