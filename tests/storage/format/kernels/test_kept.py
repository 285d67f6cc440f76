"""Builds keep what they have compiled, and later ones of the same sources take whole files."""

import importlib
import os
import threading
from pathlib import Path
from types import ModuleType

import pytest

STORAGE = Path(__file__).parents[4] / "storage"
FILES = {"_compiled.linux-x86_64.so": b"\x7fELF" * 1000, "_compiled.darwin-arm64.so": b"code"}
ASKED = ("numba==1", "linux-x86_64", ["x86-64-v2"])


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with a cache folder of its own."""
    monkeypatch.syspath_prepend(str(STORAGE))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SEGMENTLOG_CHECKED_KERNELS", raising=False)
    return importlib.import_module("kernel_compiler.kept")


def test_what_was_kept_is_found_again(kept: ModuleType) -> None:
    """Only the user can enter the folder: code comes from it."""
    entry = kept.entry_for(*ASKED)
    assert {} == kept.load(entry)
    kept.keep(entry, FILES)

    assert FILES == kept.load(kept.entry_for(*ASKED))
    assert 0o700 == entry.parent.stat().st_mode & 0o777
    assert [entry] == [*entry.parent.iterdir()]


def test_all_that_decides_the_code_is_in_the_name(
    kept: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another compiler, platform, processor or source, and kernels that check their bounds."""
    found = [
        kept.entry_for(*ASKED),
        kept.entry_for("numba==2", *ASKED[1:]),
        kept.entry_for(ASKED[0], "linux-aarch64", ASKED[2]),
        kept.entry_for(*ASKED[:2], ["x86-64-v3"]),
        kept.entry_for(*ASKED[:2], []),
    ]
    monkeypatch.setattr(kept, "_processor", lambda platform: "another one")
    found.append(kept.entry_for(*ASKED[:2], []))
    monkeypatch.setenv("SEGMENTLOG_CHECKED_KERNELS", "1")
    found.append(kept.entry_for(*ASKED))
    for name in ("kernel_compiler/lower.py", "segmentlog/format/kernels/decode.py"):
        source = tmp_path / name
        source.parent.mkdir(parents=True)
        source.write_text("x = 1\n")
        monkeypatch.setattr(kept, "_STORAGE", tmp_path)
        found.append(kept.entry_for(*ASKED))
        source.write_text("x = 2\n")
        found.append(kept.entry_for(*ASKED))

    assert len(found) == len({*found})


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_torn_archive_is_not_taken(kept: ModuleType, cut: int) -> None:
    """A power cut may leave any part of it; the next build replaces it."""
    entry = kept.entry_for(*ASKED)
    kept.keep(entry, FILES)
    whole = entry.read_bytes()
    entry.write_bytes(whole[:cut])

    assert {} == kept.load(entry)
    kept.keep(entry, FILES)
    assert FILES == kept.load(entry)


def test_a_changed_byte_is_noticed(kept: ModuleType) -> None:
    """Wherever it is in the code."""
    entry = kept.entry_for(*ASKED)
    kept.keep(entry, {"a.so": os.urandom(1000)})
    whole = bytearray(entry.read_bytes())
    whole[500] ^= 1
    entry.write_bytes(whole)

    assert {} == kept.load(entry)


def test_a_folder_that_others_may_write_to_is_not_used(kept: ModuleType) -> None:
    """Somebody else could have put code there."""
    folder = kept.entry_for(*ASKED).parent
    folder.chmod(0o770)

    assert kept.entry_for(*ASKED) is None


def test_a_folder_of_somebody_else_is_not_used(
    kept: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sudo pip` may have the home of the user."""
    kept.entry_for(*ASKED)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert kept.entry_for(*ASKED) is None


def test_where_nothing_can_be_kept_a_build_goes_on(
    kept: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be no place for a folder, or no space for a file."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept.entry_for(*ASKED) is None
    kept.keep(None, FILES)
    assert {} == kept.load(None)
    with kept.alone(None):
        pass

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    entry = kept.entry_for(*ASKED)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept.zipfile.ZipFile, "writestr", full)
    kept.keep(entry, FILES)
    assert [] == [*entry.parent.iterdir()]


def test_old_archives_are_removed(kept: ModuleType) -> None:
    """Whoever works on kernels builds them again and again."""
    folder = kept.entry_for(*ASKED).parent
    for number in range(12):
        kept.keep(folder / f"{number:02}.zip", FILES)
        os.utime(folder / f"{number:02}.zip", (number, number))
    kept.load(folder / "06.zip")  # so it is in use
    kept.keep(folder / "new.zip", FILES)

    names = [each.name for each in sorted(folder.glob("*.zip"))]
    assert ["06.zip", "07.zip", "08.zip", "09.zip", "10.zip", "11.zip", "new.zip"] == names[-7:]
    assert len(names) == 8


def test_one_build_waits_for_another(kept: ModuleType) -> None:
    """The second then finds what it needs."""
    entry, found = kept.entry_for(*ASKED), []

    def second() -> None:
        with kept.alone(entry):
            found.append(kept.load(entry))

    other = threading.Thread(target=second)
    with kept.alone(entry):
        other.start()
        assert other.is_alive()
        kept.keep(entry, FILES)
    other.join()

    assert [FILES] == found
