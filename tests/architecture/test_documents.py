"""Links, paths, modules, floors and formats of the documents are those of the checkout."""

import re
import subprocess
from pathlib import Path

import pytest

from segmentlog.cluster import follower
from segmentlog.format.newer import KNOWN_KAFKA
from segmentlog.txn import guard, state
from segmentlog.txn.settings_file import SETTINGS_FORMAT
from segmentlog.writes.append import TABLE_FORMAT

TOP = Path(__file__).parents[2]
ENGINE = TOP / "storage" / "segmentlog"


def documents() -> list[str]:
    """Every Markdown file of the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in listed.stdout.splitlines() if (TOP / name).exists())


def links(path: Path) -> list[str]:
    """Targets of the links of a document that lead into the checkout."""
    found = re.findall(r"\]\(([^()\s]+(?:\([^()]*\))?)\)", _without_code(path))
    return [target for target in found if not re.match(r"\w+:", target)]


def anchors(path: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _without_code(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def _without_code(path: Path) -> str:
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", documents())
@pytest.mark.addition("document")
def test_the_links_of_a_document_lead_to_files_and_headings(name: str) -> None:
    """A relative link names a file of the checkout, and a fragment one of its headings."""
    lost = []
    for link in links(TOP / name):
        path, _, fragment = link.partition("#")
        target = (TOP / name).parent / path if path else TOP / name
        if not target.exists() or (fragment and fragment not in anchors(target)):
            lost.append(link)

    assert [] == lost


@pytest.mark.addition("document")
def test_the_index_of_the_engine_lists_all_of_its_documents() -> None:
    """`storage/README.md` links each file of `storage/docs`."""
    storage = TOP / "storage"
    listed = {target.partition("#")[0] for target in links(storage / "README.md")}

    assert {f"docs/{path.name}" for path in (storage / "docs").iterdir()} <= listed


@pytest.mark.parametrize("name", documents())
def test_a_path_that_a_document_names_is_there(name: str) -> None:
    """A path of a module or a test in backticks exists."""
    pattern = r"`((?:tests|storage|connector|examples|\.ci|\.github)/[\w./-]+)`"
    named = re.findall(pattern, _without_code(TOP / name))

    assert [] == [path for path in named if not (TOP / path).exists()]


def test_a_module_that_the_index_of_the_engine_names_is_there() -> None:
    """`reads.scan` stands for `reads/scan.py`."""
    named = re.findall(r"`([a-z]\w*\.[a-z]\w*)`", _without_code(TOP / "storage" / "README.md"))
    modules = {name for name in named if name != "segmentlog.state"}

    assert "reads.scan" in modules
    assert [] == [
        each for each in modules if not (ENGINE / f"{each.replace('.', '/')}.py").exists()
    ]


@pytest.mark.addition("format of segmentlog's own files")
def test_the_formats_of_our_files_are_those_that_are_written() -> None:
    """The document says who can read each format, so a new format needs a new row."""
    text = (TOP / "storage" / "docs" / "commit.md").read_text()
    (of_state,) = re.findall(r"^\| `segmentlog.state` \| (\d+) \|", text, re.MULTILINE)
    (of_intent,) = re.findall(r"^\| `intent`, in the guard \| (\d+) \|", text, re.MULTILINE)
    (of_settings,) = re.findall(r"^\| `segmentlog.settings` \| (\d+) \|", text, re.MULTILINE)
    (of_mirrors,) = re.findall(r"^\| `segmentlog.mirrored` \| (\d+) \|", text, re.MULTILINE)
    (of_table,) = re.findall(r"^\| `segmentlog.\*.batches.stage` \| (\d+) \|", text, re.MULTILINE)

    assert (state._STATE_FORMAT, guard._INTENT_FORMAT) == (int(of_state), int(of_intent))
    assert int(of_mirrors) == follower._MIRRORED_FORMAT
    assert (SETTINGS_FORMAT, TABLE_FORMAT) == (int(of_settings), int(of_table))


def test_each_version_of_kafka_is_tested_as_the_table_says() -> None:
    """The tests of a row run its version, and the newest known Kafka has a row."""
    text = (
        (TOP / "storage" / "docs" / "format.md").read_text().partition("## Versions of Kafka")[2]
    )
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][
        1:
    ]
    interop = TOP / "tests" / "interop"
    shared = (interop / "conftest.py").read_text()
    for row in rows[:-1]:
        version, names = row[-1].split(" ")[0].rstrip(":"), re.findall(r"`(test_\w+)`", row[-1])
        assert names, row
        for name in names:
            test = (interop / f"{name}.py").read_text()
            fixtures = re.findall(r"\b(version|new_version|old_version|legacy|java)\b", test)
            places = [test, *([shared] if fixtures else [])]
            assert any(f'"{version}"' in each for each in places), (name, version)
    assert KNOWN_KAFKA == rows[-2][0]
    assert any(f'NEWEST = "{KNOWN_KAFKA}.0"' in each.read_text() for each in interop.glob("*.py"))
