"""`format("segmentlog")` works after every way of installing, without a call of `register`."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from bare import TOP, environment_without_us
from quick_java import FLAGS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

READ = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
import pyspark_segmentlog
if sys.argv[2:] == ["register"]:
    pyspark_segmentlog.register(spark)
print("from", pyspark_segmentlog.__file__)
print("rows", spark.read.format("segmentlog").load(sys.argv[1]).count())
spark.stop()
"""


def run(command: list[str | Path], cwd: Path, **variables: str) -> tuple[str, str]:
    """Standard output and standard error of a command that runs without our path."""
    settings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=settings | variables,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


def read(python: Path, directory: str, cwd: Path, **variables: str) -> str:
    """The output of a new interpreter that reads `directory` with Spark."""
    return run([python, "-c", READ, directory], cwd, **variables)[0]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without segmentlog."""
    return environment_without_us(tmp_path_factory.mktemp("machine") / "venv")[0]


def test_the_description_on_a_package_index_has_no_relative_link(wheel: Path) -> None:
    """On a package index, links of the README have to lead to the repository."""
    (found,) = distributions(name="pyspark-segmentlog", path=[str(wheel)])
    targets = re.findall(r"\]\(([^)\s]+)\)", found.metadata.get_payload())

    assert targets
    assert [] == [each for each in targets if not each.startswith(("https://", "#"))]


def test_a_wheel_outside_the_checkout_is_found_on_the_path(
    wheel: Path, python: Path, tmp_path: Path, example_data: str
) -> None:
    """The wheel file is on `PYTHONPATH`, and not unpacked; its kernels are loaded from memory."""
    printed, errors = run([python, "-c", READ, example_data], tmp_path, PYTHONPATH=str(wheel))

    assert str(wheel) in printed
    assert "rows 1062" in printed
    assert "kernels" not in errors


@pytest.mark.parametrize("name", ["segmentlog.zip", "pyspark_segmentlog-0-py3-none-any.whl"])
def test_py_files_reach_the_workers(
    wheel: Path, python: Path, tmp_path: Path, example_data: str, name: str
) -> None:
    """`spark-submit` unpacks them into a new directory."""
    import pyspark

    home = Path(pyspark.__file__).parent
    archive = shutil.copy(wheel, tmp_path / name)
    (tmp_path / "read.py").write_text(READ)
    submit: list[str | Path] = [home / "bin" / "spark-submit", "--py-files", archive]
    submit += ["--driver-java-options", " ".join(FLAGS), "read.py"]
    printed, errors = run(
        [*submit, example_data, "register"],
        tmp_path,
        SPARK_HOME=str(home),
        PYSPARK_PYTHON=str(python),
    )

    assert f"/{name}/pyspark_segmentlog/__init__.py" in printed
    assert "rows 1062" in printed
    assert "kernels" not in errors


def test_an_editable_install_is_found(tmp_path: Path, example_data: str) -> None:
    """`pip install -e` makes a `.pth` file of two plain paths, which Spark's scan finds."""
    python, site = environment_without_us(tmp_path / "venv")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    target = tmp_path / "target"
    subprocess.run([*command, str(target), "--editable", str(TOP)], check=True, timeout=300)
    for path in target.glob("*.pth"):
        (site / path.name).write_text(path.read_text())
    printed = read(python, example_data, tmp_path)

    assert str(TOP / "connector") in printed
    assert "rows 1062" in printed


def test_the_oldest_supported_spark_reads(wheel: Path, tmp_path: Path, example_data: str) -> None:
    """The download of pyspark 4.0 takes longer than this smoke test."""
    python, site = environment_without_us(tmp_path / "venv")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site)]
    subprocess.run([*command, "pyspark==4.0.*"], check=True, timeout=600)
    zipfile.ZipFile(wheel).extractall(site)
    printed = read(python, example_data, tmp_path)

    assert "rows 1062" in printed


#: What pip does with the build backend, in the variables that pip sets.
ASK = """
import os, sys
sys.path.insert(0, sys.argv[1])
from kernel_compiler import backend
needed = getattr(backend, f"get_requires_for_build_{sys.argv[3]}")()
named = getattr(backend, f"prepare_metadata_for_build_{sys.argv[3]}")(sys.argv[2])
print("numba" in str(needed), open(os.path.join(sys.argv[2], named, "METADATA")).read()[:16])
"""


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_metadata_needs_no_compiler(tmp_path: Path, kind: str) -> None:
    """Pip asks for it before it builds; with hatchling's own backend it would build twice."""
    tools = tmp_path / "tools"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools)]
    built = tomllib.loads((TOP / "pyproject.toml").read_text())["build-system"]["requires"]
    subprocess.run([*command, *built], check=True, timeout=300)
    place = tmp_path / "target"
    place.mkdir()
    printed, _ = run(
        [sys.executable, "-S", "-c", ASK, TOP / "storage", place, kind],
        TOP,
        PYTHONPATH=str(tools),
        PIP_BUILD_TRACKER=str(place),
        XDG_CACHE_HOME=str(tmp_path),
    )

    assert ["True", "Metadata-Version"] == printed.split()[:2]


def test_the_second_install_neither_compiles_nor_asks_for_numba(tmp_path: Path) -> None:
    """What the first one has compiled is kept for the same sources."""
    command: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps"]
    command += [TOP, "--wheel-dir", tmp_path]
    outputs = [
        "".join(run(command, tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))) for _ in range(2)
    ]

    assert [True, False] == ["compiling the kernels" in each for each in outputs]
    assert [True, False] == ["numba" in each for each in outputs]
