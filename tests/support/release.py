"""The checks of a release, for `.ci/release`: with the standard library, in any environment.

``release.py version [--tag TAG]``: the tag is the version, and the changelog names it.
``release.py contents DIST…``: what the sdist and the wheel hold.
``release.py readme``: the README's commands and its Python, in the present directory, which has
`README.md` and `examples`; by the environment of the Python that runs this.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

TOP = Path(__file__).parents[2]
_PLATFORMS = ("linux-x86_64", "linux-aarch64", "darwin-x86_64", "darwin-arm64")


def version() -> str:
    """The version, which stands in `pyproject.toml` alone."""
    return str(tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["version"])


def check_version(tag: str | None) -> str:
    """What is wrong with a tag and the changelog; empty if nothing is."""
    headings = re.findall(
        r"^## (.*)$", (TOP / ".github" / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    if tag is None:
        named = [each for each in headings if version() in each]
        return "" if named else f"no heading of the changelog names {version()}"
    if tag != f"v{version()}":
        return f"the tag is {tag}, and pyproject.toml has the version {version()}"
    if not any(each.startswith(f"{version()} ") for each in headings):
        return f"the changelog has no heading '## {version()} (DATE)': an unreleased version"
    return ""


def check_contents(path: Path) -> str:
    """What an sdist or a wheel lacks, or has too much; empty if nothing."""
    if path.suffix == ".whl":
        names = zipfile.ZipFile(path).namelist()
        wanted = [
            r"segmentlog/py\.typed",
            r"pyspark_segmentlog/py\.typed",
            r"pytest_segmentlog\.py",
            r".*\.dist-info/licenses/.*LICENSE",
            r".*\.dist-info/entry_points\.txt",
        ]
        of_all = path.stem.endswith("-any")
        wanted += [
            rf"segmentlog/format/kernels/_compiled\.{each}\.so"
            for each in (_PLATFORMS if of_all else (".*",))
        ]
        kept = r"(segmentlog|pyspark_segmentlog|[^/]*\.dist-info)/.*"
        kept += r"|(pytest_segmentlog|segmentlog_command)\.py"
        others = [each for each in names if not re.fullmatch(kept, each)]
    else:
        with tarfile.open(path) as archive:
            names = [each.partition("/")[2] for each in archive.getnames()]
        wanted = [
            r"pyproject\.toml",
            r"README\.md",
            r"\.github/LICENSE",
            r"tests/.*",
            r"examples/.*",
            r"storage/segmentlog/__init__\.py",
            r"storage/kernel_compiler/hook\.py",
            r"connector/pyspark_segmentlog/__init__\.py",
        ]
        others = [each for each in names if each.endswith((".so", ".pyc"))]
    lacks = [each for each in wanted if not any(re.fullmatch(each, name) for name in names)]
    found = []
    if f"-{version()}" not in path.name:
        found.append(f"is not of version {version()}")
    if lacks:
        found.append(f"lacks {', '.join(lacks)}")
    if others:
        found.append(f"also has {', '.join(others[:5])}")
    return f"{path.name} {'; '.join(found)}" if found else ""


def try_readme() -> str:
    """The first command or statement of the README that does something else than it shows."""
    scripts = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
        "TZ": "UTC",
    }
    readme = Path("README.md").read_text()
    commands = re.findall(r"^\$ (segmentlog .*)\n((?:(?!\$ |```).*\n)*)", readme, re.MULTILINE)
    commands.append(("segmentlog --version", f"segmentlog {version()}\n"))
    commands.append(("segmentlog verify examples/data", ""))
    for command, shown in commands:
        done = subprocess.run(
            shlex.split(command), env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode or done.stderr or (shown and shown != done.stdout):
            return f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    (block,) = re.findall(r"^## Python\n+```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if not (done.returncode or done.stderr) else f"{block}\n{done.stdout}{done.stderr}"


def main(arguments: Sequence[str]) -> int:
    """Do one check; the exit status is 1 with a message if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    checks = parser.add_subparsers(dest="check", required=True)
    checks.add_parser("version").add_argument("--tag")
    checks.add_parser("contents").add_argument("paths", nargs="+", type=Path)
    checks.add_parser("readme")
    given = parser.parse_args(arguments)
    if given.check == "version":
        wrong = check_version(given.tag)
    elif given.check == "contents":
        wrong = "\n".join(filter(None, map(check_contents, given.paths)))
    else:
        wrong = try_readme()
    sys.stderr.write(f"{wrong}\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
