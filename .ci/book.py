"""Make the site of the documents: `pip install --group book && python .ci/book.py build/book`.

The pages are those of the checkout, where they stand beside their code.  They are gathered, their
links are rewritten, and MkDocs builds them; it fails at a link that leads nowhere.

`python .ci/book.py --words` builds nothing, and counts the words of each page: those that are
written by hand, how many of them are in blocks of code and output, which the tests run, and those
that are made of the code or of measurements.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
FILES = "https://github.com/segmentlog/segmentlog"

#: A page of the checkout, by its name in the site.
PAGES = {
    "index.md": "README.md",
    "connector/index.md": "connector/README.md",
    "storage/index.md": "storage/README.md",
    "examples.md": "examples/README.md",
    "contributing.md": ".github/CONTRIBUTING.md",
    "changelog.md": ".github/CHANGELOG.md",
    "security.md": ".github/SECURITY.md",
} | {
    f"{floor}/{path.name}": str(path.relative_to(TOP))
    for floor in ("connector", "storage")
    for path in sorted((TOP / floor / "docs").glob("*.md"))
}
_SITE_OF = {source: page for page, source in PAGES.items()}

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_MADE = re.compile(r"<!-- ([\w ]+):begin -->.*?<!-- \1:end -->", re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+(?:\([^()]*\))?)\)")


def gather(pages: Path) -> None:
    """Write the pages with the links that they have in the site."""
    for page, source in PAGES.items():
        text, begin, made = (TOP / source).read_text(), 0, ""
        for fence in _FENCE.finditer(text):
            made += _linked(text[begin : fence.start()], source, page) + fence[0]
            begin = fence.end()
        made += _linked(text[begin:], source, page)
        (pages / page).parent.mkdir(parents=True, exist_ok=True)
        (pages / page).write_text(made)


def _linked(text: str, source: str, page: str) -> str:
    def link(found: re.Match[str]) -> str:
        path, mark, fragment = found[1].partition("#")
        if re.match(r"\w+:", path) or not path:
            return found[0]
        target = ((TOP / source).parent / path).resolve()
        name = str(target.relative_to(TOP))
        if name in _SITE_OF:
            up = "../" * (len(Path(page).parts) - 1)
            return f"]({up}{_SITE_OF[name]}{mark}{fragment})"
        return f"]({FILES}/{'tree' if target.is_dir() else 'blob'}/main/{name}{mark}{fragment})"

    return _LINK.sub(link, text)


def count_words() -> None:
    """Print the words of the pages, as `wc -w` counts them."""
    total = [0, 0, 0]
    sys.stdout.write("by hand  in blocks      made  page\n")
    for source in PAGES.values():
        text = (TOP / source).read_text()
        by_hand = _MADE.sub("", text)
        in_blocks = sum(len(each[0].split()) for each in _FENCE.finditer(by_hand))
        counts = [len(by_hand.split()), in_blocks, len(text.split()) - len(by_hand.split())]
        total = [old + new for old, new in zip(total, counts, strict=True)]
        sys.stdout.write(f"{counts[0]:7,} {counts[1]:10,} {counts[2]:9,}  {source}\n")
    sys.stdout.write(f"{total[0]:7,} {total[1]:10,} {total[2]:9,}  in all\n")


def main(site: str) -> int:
    """Build the site into a directory, or count words."""
    if site == "--words":
        count_words()
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        pages = Path(scratch, "pages")
        gather(pages)
        (pages / "book.css").write_text(".md-grid { max-width: 80rem; }\n")  # for wide commands
        told = (TOP / ".ci" / "mkdocs.yml").read_text()
        Path(scratch, "mkdocs.yml").write_text(f"{told}docs_dir: {pages}\n")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        place = ["--config-file", f"{scratch}/mkdocs.yml", "--site-dir", str(Path(site).resolve())]
        settings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # on each build, in color
        return subprocess.run([*command, *place], env=settings, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
