"""Kernels run as native code, and as Python with a warning, or an error, where there is none."""

import importlib
import inspect
import os
import pkgutil
import runpy
import shutil
import subprocess
import sys
import sysconfig
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import segmentlog.format.kernels
from segmentlog import native
from segmentlog.format.kernels import growth, scan, transactions
from segmentlog.format.kernels.crc32c import checksum

ENGINE = Path(segmentlog.__file__).parent
KERNELS = Path("format", "kernels")
DATA = np.frombuffer(b"123456789", np.uint8)
CHECK_VALUE = 0xE3069283  #: of RFC 3720
CODE = (
    "import numpy as np; from segmentlog import native; "
    "from segmentlog.format.kernels.crc32c import checksum; "
    f"print(native.VARIANT, checksum(np.frombuffer({bytes(DATA)!r}, np.uint8), 0, 9))"
)


def run(code: str, path: Path | str, **variables: str) -> tuple[str, str]:
    """Standard output and the last line of standard error of a new interpreter."""
    settings = {key: each for key, each in os.environ.items() if not key.startswith("SEGMENTLOG_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=settings | {"PYTHONPATH": str(path)} | variables,
    )
    return done.stdout.strip(), (done.stderr.strip().splitlines() or [""])[-1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A path with a copy of the engine, without compiled kernels."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ENGINE, tmp_path / "engine" / "segmentlog", ignore=ignored)
    return tmp_path / "engine"


def test_every_kernel_is_compiled() -> None:
    """A kernel that the extension module lacks would run in Python, much slower."""
    found = {}
    for each in pkgutil.iter_modules(segmentlog.format.kernels.__path__):
        if each.name == "_compiled":  # of an earlier version, in a checkout
            continue
        module = importlib.import_module(f"segmentlog.format.kernels.{each.name}")
        source = inspect.getsource(module)
        names = [part.split("(")[0] for part in source.split("@kernel\ndef ")[1:]]
        found |= {f"{each.name}.{name}": getattr(module, name) for name in names}

    assert len(found) > 30
    assert {"builtin_function_or_method"} == {type(each).__name__ for each in found.values()}
    assert [] == [name for name, each in found.items() if each.__name__ != name]


def test_without_compiled_kernels_the_same_code_runs_in_python(copy: Path) -> None:
    """One warning says where they are missing and what to do; a setting accepts it."""
    printed, _ = run(CODE, copy)
    accepted = run(CODE, copy, SEGMENTLOG_PYTHON_KERNELS="1")

    assert f"None {CHECK_VALUE}" == printed
    assert (
        f"{native.REMEDY}"
        in run(f"import warnings; warnings.simplefilter('error'); {CODE}", copy)[1]
    )
    assert (f"None {CHECK_VALUE}", "") == accepted


def test_many_rows_need_compiled_kernels(copy: Path) -> None:
    """A cluster of another platform would otherwise be much slower without a word."""
    code = "from segmentlog import native; native.check_compiled()"
    _, error = run(code, copy)

    assert error.startswith("segmentlog.errors.KernelsError: ")
    assert error.endswith(f" has no compiled kernels of segmentlog: {native.REMEDY}")
    assert ("", "") == run(code, copy, SEGMENTLOG_PYTHON_KERNELS="1")
    native.check_compiled()


def test_kernels_of_other_sources_are_an_error(copy: Path) -> None:
    """In a checkout, a change of a kernel asks for another build."""
    shutil.copy(ENGINE / KERNELS / native.FILE, copy / "segmentlog" / KERNELS)
    (copy / "kernel_compiler").mkdir()
    assert f"{native.VARIANT} {CHECK_VALUE}" == run(CODE, copy)[0]

    with (copy / "segmentlog" / "format" / "kernels" / "scan.py").open("a") as file:
        file.write("# changed\n")
    _, error = run(CODE, copy)

    assert error.startswith("segmentlog.errors.KernelsError: ")
    assert error.endswith(f"run `python -m kernel_compiler.build` in {copy}")


@pytest.mark.parametrize("has_memory", [True, False])
def test_kernels_are_loaded_from_an_archive(copy: Path, tmp_path: Path, has_memory: bool) -> None:
    """Spark leaves ``--py-files`` packed; macOS has no files in memory."""
    shutil.copy(ENGINE / KERNELS / native.FILE, copy / "segmentlog" / KERNELS)
    with zipfile.ZipFile(tmp_path / "files.zip", "w") as archive:
        for each in copy.rglob("*"):
            archive.write(each, each.relative_to(copy))
    code = CODE if has_memory else f"import os; del os.memfd_create; {CODE}"

    assert f"{native.VARIANT} {CHECK_VALUE}" == run(code, tmp_path / "files.zip")[0]


def test_arrays_of_another_kind_are_refused() -> None:
    """Native code that took them would read and write outside their memory."""
    table, one = np.zeros((2, 20), np.int64), np.zeros(20, np.int64)
    read_only = np.zeros((2, 20), np.int64)
    read_only.flags.writeable = False

    untyped: Any = checksum
    for wrong in (DATA.astype(np.int64), table.view(np.uint8), DATA[::2], 5, None):
        with pytest.raises((TypeError, ValueError, BufferError)):
            untyped(wrong, 0, 1)
    for state in (read_only[0], table.astype(np.int32)[0], table):
        with pytest.raises((TypeError, ValueError, BufferError)):
            growth.take_batches(table, 0, one, state, table)
    for headers in (read_only, one, table[:, ::2]):
        with pytest.raises((TypeError, ValueError, BufferError)):
            transactions.walk_headers(DATA, 0, 9, headers)
    for arguments in ((), (table, table), (table, 0, 0, 0)):
        with pytest.raises(TypeError):
            scan.measure_batches(*arguments)
    with pytest.raises(OverflowError):
        checksum(DATA, 0, 2**63)
    with pytest.raises(TypeError):
        untyped(DATA, 0, "9")
    assert CHECK_VALUE == untyped(DATA, 0, np.int64(9))


@pytest.mark.parametrize(
    ("version", "gil_disabled", "libc", "machine", "has_numba"),
    [
        ((3, 12), 0, "glibc", "x86_64", True),
        ((3, 14), 0, "glibc", "aarch64", True),
        ((3, 15), 0, "glibc", "x86_64", False),
        ((3, 14), 1, "glibc", "x86_64", False),
        ((3, 12), 0, "", "x86_64", False),  # musl
        ((3, 12), 0, "glibc", "riscv64", False),
    ],
)
def test_a_build_asks_for_numba_where_it_can_be_had(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, int],
    gil_disabled: int,
    libc: str,
    machine: str,
    has_numba: bool,
) -> None:
    """Elsewhere an install works, with kernels in Python, and the build says so."""
    plugin = types.ModuleType("hatchling.builders.hooks.plugin.interface")
    plugin.BuildHookInterface = type(
        "BuildHookInterface", (), {"__class_getitem__": classmethod(lambda cls, _: cls)}
    )
    for name in (
        "hatchling",
        "hatchling.builders",
        "hatchling.builders.hooks",
        "hatchling.builders.hooks.plugin",
    ):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    hook_file = Path(__file__).parents[2] / "storage" / "kernel_compiler" / "hook.py"
    monkeypatch.syspath_prepend(hook_file.parents[1])  # not in every environment
    kind = runpy.run_path(str(hook_file))["KernelsHook"]
    hook = kind.__new__(kind)
    warned: list[str] = []
    hook.root = str(tmp_path)  # without a compiler
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no earlier build has kept kernels
    hook.app = types.SimpleNamespace(display_warning=warned.append)
    monkeypatch.setattr(sys, "version_info", (*version, 0))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.libc_ver", lambda: (libc, ""))
    monkeypatch.setattr("platform.machine", lambda: machine)
    known = sysconfig.get_config_var
    monkeypatch.setattr(
        "sysconfig.get_config_var",
        lambda name: gil_disabled if name == "Py_GIL_DISABLED" else known(name),
    )
    data: dict[str, object] = {}

    assert has_numba == any(each.startswith("numba==") for each in hook.dependencies())
    if not has_numba:
        hook.initialize("standard", data)
        assert ({}, 1) == (data, len(warned))
        assert warned[0].endswith("segmentlog's kernels will run in Python, slowly")
