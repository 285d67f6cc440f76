"""The documents: their links lead somewhere, and each is in the index of its directory."""

import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


def documents() -> list[str]:
    """Every Markdown file of the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=TOP,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
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
def test_the_links_of_a_document_lead_to_files_and_headings(name: str) -> None:
    """A relative link names a file of the checkout, and a fragment one of its headings."""
    lost = []
    for link in links(TOP / name):
        path, _, fragment = link.partition("#")
        target = (TOP / name).parent / path if path else TOP / name
        if not target.exists() or (fragment and fragment not in anchors(target)):
            lost.append(link)

    assert [] == lost


def test_the_index_of_the_engine_lists_all_of_its_documents() -> None:
    """`storage/README.md` is the way to each file of `storage/docs`."""
    storage = TOP / "storage"
    listed = {target.partition("#")[0] for target in links(storage / "README.md")}

    assert {f"docs/{path.name}" for path in (storage / "docs").iterdir()} <= listed


@pytest.mark.parametrize("name", documents())
def test_a_path_that_a_document_names_is_there(name: str) -> None:
    """A module or test in backticks stands where the document says."""
    pattern = r"`((?:tests|storage|connector|examples|\.ci|\.github)/[\w./-]+)`"
    named = re.findall(pattern, _without_code(TOP / name))

    assert [] == [path for path in named if not (TOP / path).exists()]
