"""Whether kernels are compiled is told without the compiler."""

import os
from pathlib import Path

import pytest
from new_process import run

import segmentlog
from segmentlog.kernel_places import are_compiled_for_reads, cache_directory

SOURCES = Path(segmentlog.__file__).parent / "kernels"


@pytest.mark.parametrize("name", ["read", "warmed"])
def test_a_mark_that_is_newer_than_the_sources(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade writes sources that are newer than the marks of the version before."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not are_compiled_for_reads()

    mark = tmp_path / "segmentlog" / "kernels-0123" / name
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert are_compiled_for_reads()

    oldest = min(path.stat().st_mtime for path in SOURCES.glob("*.py"))
    os.utime(mark, (oldest - 1, oldest - 1))
    assert not are_compiled_for_reads()


def test_in_an_archive_any_mark_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources in a wheel have no times of their own."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("segmentlog.kernel_places.__file__", str(tmp_path / "a.whl" / "a.py"))
    assert not are_compiled_for_reads()

    (tmp_path / "segmentlog" / "kernels-0123").mkdir(parents=True)
    (tmp_path / "segmentlog" / "kernels-0123" / "read").touch()
    assert are_compiled_for_reads()


def test_it_does_not_load_the_compiler() -> None:
    """Each session of Spark asks."""
    code = (
        "import sys; from segmentlog.kernel_places import are_compiled_for_reads as f; f(); "
        "print('numba' in sys.modules)"
    )
    assert "False" == run(code)


def test_the_chosen_directory_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the user's, if its path is whole."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/user")

    assert Path("/chosen") == cache_directory("/chosen")
    assert Path("/of/user") == cache_directory("")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert Path.home() in cache_directory("").parents
