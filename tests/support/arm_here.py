"""Debian's Python for aarch64 with our requirements, which qemu runs here as a single process.

Nothing is installed on this machine: packages of Debian and of the package index are unpacked in
the cache of the tests, with lists of packages of their own.
"""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bare import link_libraries
from kafka_here.artifacts import kept

_OF_DEBIAN = ("python3", "libpython3-stdlib", "libstdc++6")
#: Wheels for aarch64, of the versions that run here; the package index adds what they require.
_OF_PYTHON = (
    "cramjam",
    "crc32c",
    "hypothesis",
    "lz4",
    "numpy",
    "pyarrow",
    "pytest",
    "pytest-timeout",
    "rich",
    "typer",
    "xxhash",
    "zstandard",
)
_IN_PYTHON = ("pyspark", "py4j")  #: modules of our tests import them; they are the same everywhere
_SECONDS = 900


class NoArmError(Exception):
    """Such a Python cannot be had here, for the stated reason."""


def arm_python(packages: Path) -> list[str]:
    """The command of a Python for aarch64, which finds our package in a directory.

    Raises `NoArmError`.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        message = f"an emulator for {platform.machine()} on {sys.platform} is not looked for"
        raise NoArmError(message)
    for needed in ("apt-get", "dpkg-deb"):
        if shutil.which(needed) is None:
            message = f"there is no {needed}, which fetches Debian's packages for aarch64"
            raise NoArmError(message)
    root = kept("arm-debian", _fetch_debian)
    python = next(root.glob("usr/bin/python3.[0-9]*"))
    name = f"arm-{python.name}-pyarrow-{version('pyarrow')}"
    of_python = kept(name, partial(_fetch_wheels, python=python))
    path = [packages, of_python, of_python / "in_python"]
    return [
        str(root / "qemu" / "usr" / "bin" / "qemu-aarch64-static"),
        "-L",
        str(root),
        "-E",
        f"PYTHONPATH={os.pathsep.join(map(str, path))}",
        str(python),
    ]


def _fetch_debian(into: Path) -> None:
    state = into / "state"
    for each in ("lists/partial", "cache/archives/partial"):
        (state / each).mkdir(parents=True)
    (state / "status").touch()  # as if no package were installed
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64,amd64",
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "1",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in options.items())]
    _run([*apt, "update"])
    _run([*apt, "install", "--yes", "--no-install-recommends", "--download-only", *_OF_DEBIAN])
    for archive in sorted((state / "cache" / "archives").glob("*.deb")):
        _run(["dpkg-deb", "-x", str(archive), str(into)])
    _run([*apt, "download", "qemu-user-static:amd64"], cwd=state)
    (emulator,) = state.glob("qemu-user-static*.deb")
    _run(["dpkg-deb", "-x", str(emulator), str(into / "qemu")])
    for other in (into / "qemu" / "usr" / "bin").iterdir():
        if other.name != "qemu-aarch64-static":
            other.unlink()
    shutil.rmtree(state)


def _fetch_wheels(into: Path, python: Path) -> None:
    wheels = into / "wheels"
    named = [f"{each}=={version(each)}" for each in _OF_PYTHON]
    tags = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--python-version", python.name.removeprefix("python"), "--dest", str(wheels)]
    _run([*command, *(f"--platform={tag}" for tag in tags), *named])
    for wheel in wheels.iterdir():
        zipfile.ZipFile(wheel).extractall(into)
    shutil.rmtree(wheels)
    link_libraries(_IN_PYTHON, into / "in_python")


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        message = f"{command[0]} has not ended after {_SECONDS} seconds"
        raise NoArmError(message) from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        message = f"{command[0]} {command[-1]}: {''.join(last)}"
        raise NoArmError(message)
