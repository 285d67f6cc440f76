"""Links, paths, modules, floors and formats of the documents are those of the checkout."""

import ast
import io
import json
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from segmentlog.commit import guard, state
from segmentlog.commit.settings_file import SETTINGS_FORMAT
from segmentlog.stage.batch_table import TABLE_FORMAT

TOP = Path(__file__).parents[2]
ENGINE = TOP / "storage" / "segmentlog"


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
    """`reads.plan` stands for `reads/plan.py`."""
    named = re.findall(r"`([a-z]\w*\.[a-z]\w*)`", _without_code(TOP / "storage" / "README.md"))
    modules = {name for name in named if name != "segmentlog.state"}

    assert "reads.plan" in modules
    assert [] == [
        each for each in modules if not (ENGINE / f"{each.replace('.', '/')}.py").exists()
    ]


def test_the_picture_of_the_floors_shows_the_layers_that_are_checked() -> None:
    """Each row of the picture is a layer of import-linter."""
    text = (TOP / "storage" / "README.md").read_text()
    shown = [line.split("│")[0].split() for line in re.findall(r"^.*│.*$", text, re.MULTILINE)]
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [
        each["layers"]
        for each in contracts["contracts"]
        if each.get("containers") == ["segmentlog"]
    ]

    assert [sorted(layer.split(" | ")) for layer in layers] == [sorted(names) for names in shown]


def test_the_formats_of_our_files_are_those_that_are_written() -> None:
    """The document says who can read each format, so a new format needs a new row."""
    text = (TOP / "storage" / "docs" / "commit.md").read_text()
    (of_state,) = re.findall(r"^\| `segmentlog.state` \| (\d+) \|", text, re.MULTILINE)
    (of_intent,) = re.findall(r"^\| `intent`, in the guard \| (\d+) \|", text, re.MULTILINE)
    (of_settings,) = re.findall(r"^\| `segmentlog.settings` \| (\d+) \|", text, re.MULTILINE)
    (of_table,) = re.findall(r"^\| `segmentlog.\*.batches.stage` \| (\d+) \|", text, re.MULTILINE)

    assert (state._STATE_FORMAT, guard._INTENT_FORMAT) == (int(of_state), int(of_intent))
    assert (SETTINGS_FORMAT, TABLE_FORMAT) == (int(of_settings), int(of_table))


def test_a_docstring_begins_with_its_subject() -> None:
    """No sentence of a docstring begins with its relative clause, and no docstring with "Of"."""
    clause = r"(?:\A|\n\n|[.!?]\s+|\n\s*- )(?:What|Who|Whoever|Whose)\b[^.?]*(?:\.|\Z)"
    found = []
    for folder in ("storage", "connector", "examples", "tests"):
        for path in sorted((TOP / folder).rglob("*.py")):
            docstrings = re.findall(r'^ *"""(.+?)"""', path.read_text(), re.MULTILINE | re.DOTALL)
            found += [
                f"{path.relative_to(TOP)}: {text}"
                for text in docstrings
                if re.match(r"(?:Of|Where|Which)\b", text) or re.search(clause, text)
            ]

    assert [] == found


@pytest.mark.parametrize("name", documents())
def test_a_sentence_begins_with_its_subject(name: str) -> None:
    """No sentence of a document begins with its relative clause."""
    lines = [each for each in _without_code(TOP / name).splitlines() if each[:1] not in {"#", "|"}]
    text = "\n".join(lines)
    found = re.findall(
        r"(?:\A|\n\n|[.!?:]\s+|\n\s*- )((?:What|Who|Whoever|Whose)\b[^.?]*[.?])", text
    )

    assert [] == [each for each in found if not each.endswith("?")]


#: Words that a reader has to translate, and the plain ones.
PATTERNS = {
    r"\bbehind\b": "after, or beyond",
    r"\bas new\b": "at or after that time",
    r"\bits like\b": "similar",
    r"\b(?:goes|go) by\b": "uses",
    r"\bgets? over\b": "handles",
    r"\btold (?:by|from)\b": "comes from, or is distinguished from",
    r"\ball the same\b": "anyway",
    r"\b[Ww]hoever\b": "name the one who does it",
    r"\bof ours\b": "our",
    r"\banew\b": "again",
    r"(?<!here )\b(?:is|are) no (?:log )?(?:batch|directory|error)": "is not a",
    r"\b(?:goes?|went) on\b": "continues",
    r"\AThe same\b": "name the thing again",
}


#: Words that tests avoid, too. A docstring of a test must not continue the name of the test.
PATTERNS_OF_TESTS = PATTERNS | {
    r"\A(?:Also|And|As|By|Nor|Or|The same)\b": "a sentence that begins with its subject",
    r"\bof (?:its|their) own\b": "its own",
    r"\b(?:tells?|told)\b": "contains, shows, reports, or distinguishes",
}

#: Folders of tests with plain words: all but this one, which has the patterns.
PLAIN_TESTS = sorted(
    path.name
    for path in (TOP / "tests").iterdir()
    if path.is_dir() and path.name not in {"__pycache__", Path(__file__).parent.name}
)


def _plain_words(
    found_in: Iterable[tuple[str, str]], patterns: Mapping[str, str] = PATTERNS
) -> list[str]:
    """The places of words that are not plain, with plain alternatives."""
    return [
        f"{place}: {match[0]!r}: {plain}"
        for place, text in found_in
        for pattern, plain in patterns.items()
        if (match := re.search(pattern, text))
    ]


def _texts(place: Path) -> Iterator[tuple[str, str]]:
    """Places and texts: strings and comments of modules, cells of notebooks, lines of a file."""
    if place.is_file():
        for number, line in enumerate(place.read_text().splitlines(), 1):
            yield f"{place.relative_to(TOP)}:{number}", line
    for path in sorted(place.rglob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text())["cells"]):
            yield f"{path.relative_to(TOP)}, cell {number}", "".join(cell["source"])
    for path in sorted(place.rglob("*.py")):
        name, source = path.relative_to(TOP), path.read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{name}:{node.lineno}", node.value
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield f"{name}:{token.start[0]}", token.string


@pytest.mark.parametrize("name", documents())
def test_a_document_uses_plain_words(name: str) -> None:
    """The table of measurements is left out, because a script writes it."""
    text = _without_code(TOP / name)
    text = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", text, flags=re.S)

    assert [] == _plain_words((line, line) for line in text.splitlines())


@pytest.mark.parametrize(
    "place", ["storage/segmentlog", "connector", "examples", "pyproject.toml", ".ci/run"]
)
def test_docstrings_messages_and_comments_use_plain_words(place: str) -> None:
    """All texts of the code are read: docstrings, messages, help texts, comments."""
    assert [] == _plain_words(_texts(TOP / place))


@pytest.mark.parametrize("folder", PLAIN_TESTS)
def test_tests_use_plain_words(folder: str) -> None:
    """Docstrings, comments, messages and ids of tests use plain words and whole sentences."""
    assert [] == _plain_words(_texts(TOP / "tests" / folder), PATTERNS_OF_TESTS)
