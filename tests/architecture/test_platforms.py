"""The wheel of a release on the platforms that it is for, as far as they can be had here.

On Linux, aarch64 is emulated.  Nothing can run macOS: its modules are only looked at.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import release
from arm_here import NoArmError, arm_python
from bare import TOP, build_wheel
from mach_o import parse

pytestmark = pytest.mark.slow

#: What a module may take from the process that loads it: CPython's stable ABI, and this.
OF_C = {"getenv", "memcpy", "memset", "strcmp", "bzero", "__bzero", "dyld_stub_binder"}


@pytest.fixture(scope="session")
def release_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for all platforms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGMENTLOG_VARIANTS", "all")
        return build_wheel(tmp_path_factory.mktemp("release"), seconds=3000)


@pytest.fixture(scope="session")
def unpacked(release_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the wheel in a directory, as pip would install them."""
    target = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(release_wheel).extractall(target)
    return target


@pytest.fixture(scope="session")
def arm(unpacked: Path) -> list[str]:
    """The command of a Python for aarch64 with the wheel."""
    try:
        return arm_python(unpacked)
    except NoArmError as error:
        pytest.skip(f"no Python for aarch64: {error}")


def module(unpacked: Path, platform: str) -> Path:
    """The compiled kernels for a platform."""
    return unpacked / "segmentlog" / "format" / "kernels" / f"_compiled.{platform}.so"


@pytest.mark.timeout(3600)  # six variants are compiled, on a busy machine
def test_one_wheel_is_for_all_platforms(release_wheel: Path) -> None:
    """It is small enough to be one, and its name says that it is for any platform."""
    assert "" == release.check_contents(release_wheel)
    assert release_wheel.name.endswith("-py3-none-any.whl")
    assert release_wheel.stat().st_size < 4 << 20


@pytest.mark.parametrize(
    ("platform", "processor", "variants"),
    [
        ("darwin-arm64", "arm64", {"aarch64"}),
        (
            "darwin-x86_64",
            "x86_64",
            {"x86-64-v2", "x86-64-v3", "x86-64-v3-vpclmulqdq"},
        ),
    ],
)
@pytest.mark.timeout(3600)
def test_macos_can_load_the_modules(
    unpacked: Path, platform: str, processor: str, variants: set[str]
) -> None:
    """By its load commands and symbols; macOS on Arm loads nothing without a signature."""
    found = parse(module(unpacked, platform))
    python = {each for each in found.undefined if each.startswith(("_Py", "__Py"))}

    assert (processor, (11, 0)) == (found.processor, found.least_macos)
    assert ["/usr/lib/libSystem.B.dylib"] == found.libraries
    assert found.is_signed or processor == "x86_64"
    assert {"_PyInit__compiled", *(f"_kernels.{each}" for each in variants)} <= found.defined
    assert python
    assert {each.removeprefix("_") for each in found.undefined - python} <= OF_C | {"_bzero"}


@pytest.mark.parametrize("platform", ["linux-x86_64", "linux-aarch64"])
@pytest.mark.timeout(3600)
def test_modules_for_linux_need_no_library(unpacked: Path, platform: str) -> None:
    """So every C library will do, of every version."""
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf")
    command = ["readelf", "--wide", "--dynamic", "--dyn-syms", str(module(unpacked, platform))]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    undefined = {line.split()[-1] for line in printed.splitlines() if " UND " in line} - {"UND"}

    assert "NEEDED" not in printed
    assert "PyModule_Create2" in undefined
    assert {each for each in undefined if not each.startswith("Py")} <= OF_C


@pytest.mark.timeout(3600)
def test_aarch64_makes_the_same_bytes(arm: list[str], unpacked: Path) -> None:
    """Files with each codec, their rows, compacted logs, and checksums are those of x86-64."""
    program = str(TOP / "tests" / "support" / "kernel_results.py")
    left_out = ("SEGMENTLOG_", "PYTHON")
    kept = {key: each for key, each in os.environ.items() if not key.startswith(left_out)}
    here, there = (
        subprocess.run(
            [*python, "-W", "error", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for python, environment in (
            ([sys.executable], kept | {"PYTHONPATH": str(unpacked)}),
            (arm, kept),
        )
    )

    assert "aarch64" == there[0] != here[0]
    assert here[1] == there[1]


@pytest.mark.parametrize("tests", ["properties", "golden/test_golden.py"])
@pytest.mark.timeout(3600)
def test_tests_pass_on_aarch64(arm: list[str], tests: str) -> None:
    """Kernels equal the plain reference, and directories of brokers are read."""
    at = next(number for number, each in enumerate(arm) if each.startswith("PYTHONPATH="))
    python = [*arm]
    python[at] += f"{os.pathsep}{TOP / 'tests' / 'support'}"
    command = [*python, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(TOP)]
    command += ["--import-mode=importlib", "--noconftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--timeout=1800", "-o", "markers=slow", str(TOP / "tests" / tests)],
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stdout.strip().splitlines()[-1]

    assert 0 == done.returncode, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in last
    assert "failed" not in last
