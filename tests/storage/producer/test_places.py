"""Places where directories of logs lie: below ones that cannot be synced, or not by us."""

import errno
import os
import stat
from pathlib import Path

import pytest
from namespaces import as_user, common_directory, in_namespace
from plain_writes import ONE, values, write

import segmentlog
from segmentlog.write_errors import SyncFailedError

BELOW_A_MOUNT = """
import errno, os, pathlib, subprocess, sys
from plain_writes import ONE, values, write

for name in ("/sys/firmware", "/sys/kernel/debug", "/proc/driver", "/proc/bus"):
    mount = ["mount", "-t", "tmpfs", "tmpfs", name]
    if os.path.isdir(name) and not subprocess.run(mount, capture_output=True).returncode:
        break
else:
    sys.exit("nothing to mount on")
for parent in (*pathlib.Path(name).parents,):
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        assert error.errno == errno.EINVAL, error
        break
else:
    sys.exit("all can be synced")
for path in (pathlib.Path(name), pathlib.Path(name, "user", "data")):
    write(path, ONE)
    write(path, ONE)
    print(values(path))
    for each in path.iterdir():
        subprocess.run(["rm", "-r", each])
"""


def test_below_a_directory_that_cannot_be_synced() -> None:
    """As homes below autofs are; also where the log directory is the mount itself."""
    assert "[b'v', b'v']\n" * 2 == in_namespace(BELOW_A_MOUNT)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Directories that were synced, as they come."""
    found: list[Path] = []
    real = os.fsync

    def seen(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            found.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    return found


def test_the_names_that_lead_to_a_new_directory_are_synced(
    tmp_path: Path, synced: list[Path]
) -> None:
    """Also those that a writer has made that died, and no longer once there was a commit."""
    path = tmp_path / "a" / "b" / "logs"
    for _ in range(2):
        segmentlog.open_writer(path, "t").abort()
        above = set(path.parents)
        assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= above & set(synced)
        synced.clear()
    write(path, ONE)
    synced.clear()
    write(path, ONE)
    assert not above & set(synced)


def test_nothing_above_the_mount_is_synced() -> None:
    """No name there is the writer's, and an ancestor that hangs would hang the job."""
    code = """
import os, pathlib, subprocess, sys
from plain_writes import ONE, values, write
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=True)
found, real = [], os.fsync
def seen(descriptor):
    found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    real(descriptor)
os.fsync = seen
write(pathlib.Path("/mnt/a/logs"), ONE)
print("/mnt" in found, "/mnt/a" in found, "/" in found)
"""
    assert "True True False\n" == in_namespace(code)


@pytest.mark.parametrize(
    ("code", "is_fatal"),
    [(errno.EINVAL, False), (errno.EROFS, False), (errno.ENOTSUP, False), (errno.EACCES, False),
     (errno.EIO, True), (errno.ENOSPC, True)],
)  # fmt: skip
def test_a_directory_above_that_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, is_fatal: bool
) -> None:
    """No disk is behind its names, or its disk fails."""
    real = os.fsync

    def fails(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path.parent:
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    if is_fatal:
        with pytest.raises(SyncFailedError, match=f"^{tmp_path.parent}: could not be synced"):
            write(tmp_path / "logs", ONE)
    else:
        write(tmp_path / "logs", ONE)
        assert [b"v"] == values(tmp_path / "logs")


def test_a_directory_above_that_may_not_be_listed() -> None:
    """It is passed through, and is not the writer's."""
    with common_directory() as top:
        top.chmod(0o711)
        (top / "mine").mkdir()
        os.chown(top / "mine", 4711, 4711)
        with as_user(4711, 4711):
            write(top / "mine" / "logs", ONE)
            assert [b"v"] == values(top / "mine" / "logs")
