"""Mounts of a test's own, separate mounts, and other users, if the system permits them."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ready_process import in_own_mounts


@contextlib.contextmanager
def mounted(place: Path, *what: str) -> Iterator[None]:
    """Mount `what` (arguments of mount(8)) on a directory; skips the test if not allowed."""
    if subprocess.run(["mount", *what, str(place)], capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield
    finally:
        # Lazily: the threads of pyarrow.parquet close a file a moment after its table is
        # returned (62 of 4,000 reads on a busy machine), and until then the mount is busy.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def in_namespace(code: str, *arguments: object) -> str:
    """The output of `code` with separate mounts; skips the test if they are not allowed."""
    unshare = ["unshare", "--mount", "--propagation", "private"]
    _need([*unshare, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], "a mount namespace")
    return in_own_mounts(code, arguments)


def run_without(capability: str, code: str, *arguments: object) -> str:
    """The output of `code` as a root that lacks a capability, as in many containers."""
    if os.geteuid():
        pytest.skip("only root can put a capability of root down")
    without = ["setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}"]
    _need([*without, "true"], "putting a capability down")
    return _run(without, code, arguments)


@contextlib.contextmanager
def as_user(user: int, group: int, umask: int = 0o022) -> Iterator[None]:
    """Become this user, without other groups; the system then checks files as for that user."""
    if os.geteuid():
        pytest.skip("only root can be another user")
    before, mask = os.getgroups(), os.umask(umask)
    os.setgroups([])
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)
        os.umask(mask)


@contextlib.contextmanager
def common_directory() -> Iterator[Path]:
    """A temporary directory that other users can reach; pytest's own are for one user."""
    if os.geteuid():
        pytest.skip("only root can give files away")
    usual = Path(tempfile.gettempdir())
    is_open = all(each.stat().st_mode & 1 for each in (usual, *usual.parents))
    with tempfile.TemporaryDirectory(dir=usual if is_open else "/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def _need(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"{what} needs {command[0]}")
    if done.returncode:
        pytest.skip(f"{what} is not permitted here")


def _run(prefix: Sequence[str], code: str, arguments: Sequence[object]) -> str:
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout
