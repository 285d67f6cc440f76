"""The wheel of this checkout, and virtual environments with only its requirements.

Libraries are links to those of the Python that runs the tests. So nothing is downloaded, and a
library that no requirement names does not exist.
"""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from quick_java import spark_variables

TOP = Path(__file__).parents[2]


@dataclass(frozen=True)
class Bare:
    """A virtual environment into which only the wheel and what it requires was installed."""

    root: Path
    wheel: Path

    @property
    def scripts(self) -> Path:
        """The directory of ``python``, ``segmentlog`` and ``spark-submit``."""
        return self.root / "bin"

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of a shell that has activated it."""
        left_out = ("PYTHON", "PYSPARK", "SPARK", "XDG", "SEGMENTLOG", "VIRTUAL_ENV")
        kept = {key: each for key, each in os.environ.items() if not key.startswith(left_out)}
        own = {
            "PATH": f"{self.scripts}{os.pathsep}{kept['PATH']}",
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
            "TZ": "UTC",
            **spark_variables(),  # nothing of it is seen
        }
        return kept | own | more

    @classmethod
    def make(cls, root: Path, wheel: Path, *, installed: bool = True) -> "Bare":
        """Install the wheel with ``[spark]`` in a new environment, or only its requirements."""
        venv.create(root, with_pip=False)
        bare = cls(root, wheel)
        site = _site(bare.scripts / "python")
        named = [*requirements(wheel, {"spark"}), "duckdb"]  # the README has its reader install it
        (site / "libraries.pth").write_text(f"{link_libraries(named, root / 'libraries')}\n")
        for script in Path(sysconfig.get_path("scripts")).iterdir():
            if script.name.startswith(("spark-", "pyspark", "find", "load-spark")):
                (bare.scripts / script.name).symlink_to(script)
        if installed:
            command = [sys.executable, "-m", "pip", "--python", str(bare.scripts / "python")]
            quietly = ["install", "--quiet", "--no-deps", str(wheel)]
            subprocess.run([*command, *quietly], check=True, timeout=120)
        return bare


def build_wheel(target: Path, seconds: float = 300) -> Path:
    """The wheel of this checkout, in `target`."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", str(TOP)]
    subprocess.run([*command, "--wheel-dir", str(target)], check=True, timeout=seconds)
    (built,) = target.glob("*.whl")
    return built


def environment_without_us(target: Path) -> tuple[Path, Path]:
    """A virtual environment with all libraries of this one, but without this project.

    Returns its Python and its site-packages.
    """
    venv.create(target, with_pip=False)
    python = target / "bin" / "python"
    site = _site(python)
    libraries = target / "libraries"
    libraries.mkdir()
    for library in Path(sysconfig.get_path("purelib")).iterdir():
        name = library.name.lower()
        if not name.endswith(".pth") and "segmentlog" not in name:
            (libraries / library.name).symlink_to(library)
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return python, site


def requirements(wheel: Path, extras: set[str]) -> list[str]:
    """The requirements of our wheel, alone and with `extras`."""
    (found,) = distributions(name="pyspark-segmentlog", path=[str(wheel)])
    return _needed(found, extras)


def link_libraries(named: Iterable[str], target: Path) -> Path:
    """A directory with the named distributions, and with all that they require."""
    target.mkdir(parents=True)
    todo, done = list(named), set()
    while todo:
        requirement = todo.pop()
        name, extras = _name_and_extras(requirement)
        if (name, extras) in done:
            continue
        done.add((name, extras))
        found = distribution(name)
        todo += _needed(found, set(extras))
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            link = target / top
            if not link.is_symlink():
                link.symlink_to(Path(str(found.locate_file(top))))
    return target


def _needed(found: Distribution, extras: set[str]) -> list[str]:
    """Requirements whose marker holds on this machine."""
    from packaging.requirements import Requirement

    needed = [Requirement(each) for each in found.requires or ()]
    return [
        f"{each.name}[{','.join(each.extras)}]"
        for each in needed
        if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in {"", *extras})
    ]


def _name_and_extras(requirement: str) -> tuple[str, tuple[str, ...]]:
    """The parts of a requirement such as `pyspark[connect]>=4.2`."""
    found = re.match(r"([\w.-]+)(?:\[(.*?)\])?", requirement)
    assert found, requirement
    extras = found[2].split(",") if found[2] else []
    return re.sub(r"[-_.]+", "-", found[1]).lower(), tuple(sorted(extras))


def _site(python: Path) -> Path:
    """The site-packages of a virtual environment."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())
