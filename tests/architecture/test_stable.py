"""The page of what is stable has the public face as it is, and the release script finds faults."""

import re
import shutil
import zipfile
from pathlib import Path

import public_face
import pytest
import release

from segmentlog.cluster import follower
from segmentlog.format.names import SETTINGS_FILE, STAGE_SUFFIX
from segmentlog.tools import arguments, cli, recover
from segmentlog.txn.guard import GUARD_PREFIX
from segmentlog.txn.state import STATE_FILE
from segmentlog.writes import job_files

TOP = Path(__file__).parents[2]
DOCS = TOP / "storage" / "docs"


@pytest.mark.addition("option of reads", "command", "public name", "field of JSON")
def test_the_page_has_the_public_face() -> None:
    """A name, an option or a field that comes or goes is a change of the page.

    ``python tests/support/public_face.py`` writes the tables again.
    """
    assert public_face.shown().splitlines() == public_face.tables().splitlines()


@pytest.mark.parametrize("page", public_face.PAGES, ids=lambda page: page.name)
@pytest.mark.addition("option of reads", "option of Spark or of writes")
def test_a_page_has_the_tables_that_are_made_of_the_code(page: Path) -> None:
    """The same script writes them, also after a change of a docstring or of a help."""
    assert page.read_text().splitlines() == public_face.PAGES[page](page.read_text()).splitlines()


def test_the_exit_statuses_are_those_of_the_table() -> None:
    """Of all commands."""
    _, _, table = (DOCS / "tools.md").read_text().partition("| status | meaning |")
    numbers = {int(each) for each in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    known = {0, arguments.PROBLEM, recover._RECORDS_LOST}
    known |= {cli._REFUSED, cli._INTERRUPTED, cli._PIPE_CLOSED}

    assert known == numbers


@pytest.mark.addition("format of segmentlog's own files")
def test_the_names_of_our_files_are_those_of_the_table() -> None:
    """Those that the code writes, and no others."""
    _, _, text = (DOCS / "commit.md").read_text().partition("## The versions of our own files")
    rows = re.findall(r"^\| `(segmentlog\.[^`]*)`", text.partition("\n- ")[0], re.MULTILINE)
    known = {STATE_FILE, SETTINGS_FILE, follower._MIRRORED_FILE, "segmentlog.*.broken"}
    known |= {f"segmentlog.*{each}" for each in (STAGE_SUFFIX, job_files._MARK_SUFFIX)}

    assert known == {*rows} - {f"segmentlog.*.batches{STAGE_SUFFIX}"}
    assert f"`{GUARD_PREFIX}<token>`" in text


def test_a_tag_is_the_version_and_the_changelog_has_its_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is not released yet has no date."""
    assert "" == release.check_version(None)
    assert "the tag is v0" in release.check_version("v0")
    assert "an unreleased version" in release.check_version(f"v{release.version()}")
    (tmp_path / ".github").mkdir()
    shutil.copy(TOP / "pyproject.toml", tmp_path)
    changelog = tmp_path / ".github" / "CHANGELOG.md"
    monkeypatch.setattr(release, "TOP", tmp_path)
    changelog.write_text(f"## {release.version()} (2027-01-31)\n")
    assert "" == release.check_version(f"v{release.version()}")
    changelog.write_text("## Unreleased\n")
    assert "no heading of the changelog names" in release.check_version(None)


def test_a_wheel_that_lacks_a_file_or_has_too_many_is_refused(tmp_path: Path) -> None:
    """Without its kernels and types, and with tests."""
    path = tmp_path / "pyspark_segmentlog-9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("segmentlog/py.typed", "")
        archive.writestr("tests/test_x.py", "")
    wrong = release.check_contents(path)

    assert "is not of version" in wrong
    assert "_compiled" in wrong
    assert "also has tests/test_x.py" in wrong
    assert r"lacks segmentlog/py\.typed" not in wrong
