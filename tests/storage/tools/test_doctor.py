"""The doctor finds what is wrong, and names the remedy."""

import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import Result

from segmentlog import native
from segmentlog.tools import doctor
from segmentlog.tools.doctor import Check, CheckState

Run = Callable[..., Result]
FORMAT = 'format("segmentlog")'


@pytest.fixture(autouse=True)
def spark_starts_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark starts this interpreter, unless a test sets another."""
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def check(name: str) -> Check:
    """The doctor's line about one check."""
    return next(each for each in doctor.checks() if each.name == name)


def java_that_says(tmp_path: Path, text: str) -> str:
    """A JAVA_HOME whose java prints `text` as its version."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)
    return str(tmp_path)


def test_a_good_machine_has_no_problem(run: Run) -> None:
    """Every line is ok, and the status is 0."""
    lines = run("doctor").stdout.splitlines()

    assert {"ok"} == {line.split()[0] for line in lines}
    assert len(lines) == 13


def test_a_broken_source_of_someone_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one module cannot be imported, Spark finds none of its Python data sources."""
    (tmp_path / "pyspark_broken.py").write_text("import no_such_library\n")
    (tmp_path / "pyspark_exits.py").write_text("print('noise')\nraise SystemExit(3)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    found = check(FORMAT)

    assert CheckState.PROBLEM == found.state
    assert "pyspark_broken (ModuleNotFoundError: No module named 'no_such_library')" in found.found
    assert "pyspark_exits (SystemExit: 3)" in found.found
    assert found.remedy


def test_a_python_without_the_package_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark looks in the interpreter that it starts, which may be another one."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec env -u PYTHONPATH "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    found = check(FORMAT)

    assert (CheckState.PROBLEM, True) == (found.state, "has no pyspark" in found.found)
    assert f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}" == found.remedy


def test_a_python_that_is_not_there_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's variable takes precedence over the other one."""
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/no/such/python")
    found = check(FORMAT)

    assert (CheckState.PROBLEM, True) == (found.state, "/no/such/python" in found.found)


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ({"python": [3, 1], "broken": {}, "formats": {"segmentlog": "x"}}, "is 3.1"),
        ({"python": [3, 1], "broken": {}, "formats": {}}, "pyspark_segmentlog is not on the path"),
    ],
)
def test_the_answer_of_the_other_python_is_judged(answer: dict, part: str) -> None:
    """The other interpreter has another version, or lacks our package."""
    found = doctor._judge(FORMAT, "python3", "export …", answer)

    assert (CheckState.PROBLEM, True) == (found.state, part in found.found)


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        ('openjdk version "17.0.15" 2025-04-15', CheckState.OK),
        ('openjdk version "21" 2023-09-19', CheckState.OK),
        ('java version "1.8.0_302"', CheckState.PROBLEM),
        ('openjdk version "11.0.2" 2019-01-15', CheckState.PROBLEM),
        ("no idea", CheckState.PROBLEM),
    ],
)
def test_java_has_to_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, state: CheckState
) -> None:
    """The doctor checks the Java of JAVA_HOME, which pyspark chooses."""
    monkeypatch.setenv("JAVA_HOME", java_that_says(tmp_path, printed))
    found = doctor._java()

    assert state == found.state
    assert bool(found.remedy) == (state == CheckState.PROBLEM)


def test_java_that_is_not_there_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java is neither in JAVA_HOME nor on the path."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert "has no bin/java" in doctor._java().found
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (CheckState.PROBLEM, "java", "not found") == doctor._java()[:3]


def test_a_machine_without_spark_has_no_problem(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine does not need Spark, so checks for Spark are skipped."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    lines = run("doctor").stdout.splitlines()

    assert 3 == sum(line.startswith("skipped") for line in lines)
    assert any("pip install 'pyspark-segmentlog[spark]'" in line for line in lines)


def test_an_old_spark_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are compared as numbers."""
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(__version__="3.5.7"))
    old = doctor._pyspark()
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(__version__="4.10.0.dev1"))

    assert [CheckState.PROBLEM, CheckState.OK] == [old.state, doctor._pyspark().state]


def test_a_broken_library_is_a_problem(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is 1, and the other libraries are checked, too."""
    monkeypatch.setitem(sys.modules, "cramjam", None)
    lines = run("doctor", status=1).stdout.splitlines()

    assert ["problem"] == [line.split()[0] for line in lines if "cramjam" in line]
    assert 13 == len(lines)


def test_the_doctor_says_for_which_processor_kernels_are_compiled(run: Run) -> None:
    """A program gets the name of the variant, too."""
    rows = [json.loads(line) for line in run("doctor", "--json").stdout.splitlines()]
    (found,) = [row for row in rows if row["name"] == "kernels"]

    expected = f"compiled for {native.VARIANT}, on {native.PLATFORM}"
    assert ("ok", expected) == (found["state"], found["found"])
    assert native.VARIANT == found["variant"]


def test_kernels_that_are_not_compiled_are_a_problem() -> None:
    """An environment variable that asks for kernels in Python is still set."""
    code = "from segmentlog.tools.doctor import _kernels; print(*_kernels()[:3])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"SEGMENTLOG_PYTHON_KERNELS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    reason = "as SEGMENTLOG_PYTHON_KERNELS=1 asks for"
    assert f"problem kernels they run in Python, {reason}" == done.stdout.strip()


def test_kernels_of_other_platforms_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a wheel that was built on another machine is recognized."""
    monkeypatch.delenv("SEGMENTLOG_PYTHON_KERNELS", raising=False)
    monkeypatch.setattr(native, "VARIANT", None)
    monkeypatch.setattr(native, "PLATFORM", "linux-riscv64")
    found = doctor._kernels()

    assert CheckState.PROBLEM == found.state
    assert found.found.startswith("they run in Python: this is linux-riscv64, and they are ")
    assert "-" in found.found.partition("compiled for ")[2]
    monkeypatch.setattr(native, "platforms", list)
    assert doctor._kernels().found.endswith("and they are compiled for no platform")


def test_the_lowest_versions_are_those_of_the_package() -> None:
    """The doctor also runs where Spark has unpacked a wheel without its metadata."""
    top = Path(__file__).parents[3]
    project = tomllib.loads((top / "pyproject.toml").read_text())["project"]
    known = {name: ".".join(map(str, lowest)) for name, lowest in doctor._LIBRARIES.items()}
    required = dict(each.split(">=") for each in project["dependencies"])
    (spark,) = project["optional-dependencies"]["spark"]

    assert required == known | {name: required[name] for name in ("rich", "typer")}
    assert f"pyspark>={'.'.join(map(str, doctor._LEAST_SPARK))}" == spark


@pytest.mark.parametrize(
    ("version", "state"),
    [("18.1.0", CheckState.PROBLEM), ("19.0.0", CheckState.OK), ("100.1", CheckState.OK)],
)
def test_an_old_library_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, version: str, state: CheckState
) -> None:
    """A runtime may bring one; versions are compared as numbers."""
    monkeypatch.setattr(doctor, "_version", lambda name: version)
    found = doctor._library("pyarrow")

    assert state == found.state
    assert ("pip install 'pyarrow>=19'" in found.remedy) == (state == CheckState.PROBLEM)


def test_what_pip_has_left_out_is_named(tmp_path: Path) -> None:
    """After ``--no-deps``, the command itself may lack its libraries."""
    top = Path(__file__).parents[3]
    (tmp_path / "segmentlog_command.py").symlink_to(top / "storage" / "segmentlog_command.py")
    (tmp_path / "segmentlog").symlink_to(top / "storage" / "segmentlog")
    (tmp_path / "pyspark_segmentlog-1.dist-info").mkdir()
    (tmp_path / "pyspark_segmentlog-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: pyspark-segmentlog\nVersion: 1\nRequires-Dist: numpy>=2.0\n"
        "Requires-Dist: json>1\nRequires-Dist: pyspark>=4; extra == 'spark'\n"
        "Requires-Dist: pyarrow\nRequires-Dist: typer[all]>=0.15\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import segmentlog_command; segmentlog_command.main()"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (1, "") == (done.returncode, done.stdout)
    names = "numpy pyarrow typer"
    assert done.stderr == (
        f"segmentlog: {sys.executable} lacks {names}: pip list --format=freeze > present.txt "
        f"&& pip install {names} --constraint present.txt\n"
    )


SLOW = {"setting": "spark.x", "found": "", "better": "-Dfast=true", "why": "rows move faster"}
ANSWER = {"master": "local[*]", "version": "4.3.0", "slow": [SLOW]}


def python_that_answers(tmp_path: Path, lines: str) -> str:
    """A program in the place of Python, with these lines on standard output."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho noise >&2\ncat <<'END'\n{lines}\nEND\n")
    python.chmod(0o755)
    return str(python)


def test_slow_settings_of_a_session_are_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting has a line with the better value and the reason."""
    python = python_that_answers(tmp_path, f"output of Spark\n{json.dumps(ANSWER)}")
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    good, advice = doctor._settings()

    assert (CheckState.OK, "spark session", "Spark 4.3.0, local[*]") == good[:3]
    assert (CheckState.ADVICE, "spark.x", "lacks options") == advice[:3]
    assert "start sessions with -Dfast=true: rows move faster" == advice.remedy
    assert {"better": "-Dfast=true"} == advice.details


def test_a_session_that_does_not_start_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of Spark's output has the reason."""
    monkeypatch.setenv("PYSPARK_PYTHON", python_that_answers(tmp_path, "no JSON"))
    (silent,) = doctor._settings()
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    (absent,) = doctor._settings()

    assert {CheckState.PROBLEM} == {silent.state, absent.state}
    assert "does not start: noise" == silent.found
    assert "/no/such/python" in absent.found


@pytest.mark.spark
@pytest.mark.slow
def test_the_settings_of_this_machine_are_checked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has the settings of `spark-defaults.conf`, and advice is not a problem."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.python.unix.domain.socket.enabled true\nspark.buffer.size 262144\n"
        "spark.ui.enabled false\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    lines = run("doctor", "--spark").stdout.splitlines()

    assert lines[-2].startswith("ok       spark session: Spark 4")
    assert lines[-1].startswith("advice   spark.driver.extraJavaOptions: lacks options; start")
