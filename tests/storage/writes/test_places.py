"""Log directories below directories that cannot be synced, or not by this user."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import as_user, common_directory, in_namespace, run_without
from plain_writes import ONE, values, write

import segmentlog
from segmentlog.errors import LogDirectoryError, SyncFailedError
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob

pytestmark = pytest.mark.linux

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
    """Homes below autofs are such places. The log directory may be the mount itself."""
    assert "[b'v', b'v']\n" * 2 == in_namespace(BELOW_A_MOUNT)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Directories that were synced, in order."""
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
    """Directories that a dead writer made are synced as well, until the first commit."""
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
    """The writer made no name there, and an ancestor that hangs would hang the job."""
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
    [
        (errno.EINVAL, False),
        (errno.EROFS, False),
        (errno.ENOTSUP, False),
        (errno.EACCES, False),
        (errno.EIO, True),
        (errno.ENOSPC, True),
    ],
)
def test_a_directory_above_that_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, is_fatal: bool
) -> None:
    """Its names are on no disk, or its disk fails."""
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
    """The writer has not made it, and skips it."""
    with common_directory() as top:
        top.chmod(0o711)
        (top / "mine").mkdir()
        os.chown(top / "mine", 4711, 4711)
        with as_user(4711, 4711):
            write(top / "mine" / "logs", ONE)
            assert [b"v"] == values(top / "mine" / "logs")


def test_directories_that_root_makes_belong_to_the_owner_of_the_directory_above() -> None:
    """A broker could not use those of root, nor the files in them."""
    with common_directory() as top:
        home = top / "home"
        home.mkdir()
        os.chown(home, 4711, 4711)
        write(home / "new" / "logs", ONE)
        segmentlog.alter_settings(home / "settings", None, {"retention.ms": "1"})
        segmentlog.mirror(home / "new" / "logs", to=home / "mirror")
        assert {4711} == {path.stat().st_uid for path in home.rglob("*")}
        with as_user(4711, 4711):
            write(home / "new" / "logs", ONE)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A log directory of user 4711, writable for its group 815, with one job."""
    with common_directory() as top:
        path = top / "logs"
        path.mkdir()
        os.chown(path, 4711, 815)
        path.chmod(0o2775)
        with as_user(4711, 815, 0o002):
            write(path, ONE)
        yield path


def left(directory: Path) -> set[tuple[str, int]]:
    """Names below a directory, with their owners."""
    return {(str(path), path.stat().st_uid) for path in directory.rglob("*")}


MEMBER = 4712

#: What the sequence of `os.stat_result` has, besides three times that have other names.
IN_ORDER = {"st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size"}


@pytest.mark.parametrize("what", ["new", "unlocked", "locked"])
def test_a_member_of_the_group_does_not_write_what_the_owner_cannot_use(
    shared: Path, what: str
) -> None:
    """The refusal comes before any change, and names who may write."""
    if what == "new":
        shutil.rmtree(shared)
        shared.mkdir()
        os.chown(shared, 4711, 815)
    shared.chmod(0o2775)
    if what == "locked":
        (shared / ".lock").chmod(0o664)
    else:
        (shared / ".lock").unlink(missing_ok=True)
    (shared / "segmentlog.unfinished.0123").mkdir()
    os.chown(shared / "segmentlog.unfinished.0123", 4711, 815)
    before = left(shared)
    with (
        as_user(MEMBER, 815, 0o002),
        pytest.raises(LogDirectoryError, match="belongs to user 4711") as caught,
    ):
        write(shared, ONE)
    assert "user 4712" in str(caught.value)
    assert "chown" in str(caught.value)
    assert before == left(shared)
    with as_user(4711, 815):
        write(shared, ONE)
    assert b"v" in values(shared)


def test_a_task_of_a_member_of_the_group_stages_nothing(shared: Path) -> None:
    """Spark's executors may run as another user than the driver."""
    with as_user(4711, 815, 0o002):
        job = WriteJob.begin(WriteRequest(str(shared), ProducerConfig(), topic="t"))
    before = left(shared)
    with as_user(MEMBER, 815, 0o002):
        stager = job.stager(0)
        stager.add(ONE.to_batches()[0])
        with pytest.raises(LogDirectoryError, match=r"belongs to user 4711.* chown"):
            stager.finish()
        assert before == left(shared)
        stager.discard()
    with as_user(4711, 815):
        job.abort()


def test_the_owner_learns_whose_lock_it_cannot_open(shared: Path) -> None:
    """The file belongs to another user, whose writer was not refused."""
    os.chown(shared / ".lock", MEMBER, 815)
    (shared / ".lock").chmod(0o644)
    with (
        as_user(4711, 815),
        pytest.raises(LogDirectoryError, match=r"\.lock: .*Permission denied.* user 4712.* chown"),
    ):
        write(shared, ONE)


@pytest.mark.parametrize("name", ["", *(f"{0:020d}.{kind}" for kind in ("log", "timeindex"))])
def test_a_partition_that_may_not_be_written_to(shared: Path, name: str) -> None:
    """The error names the directory, or the file of the active segment."""
    path = shared / "t-0" / name
    os.chown(path, 0, 0)
    before = left(shared)
    with (
        as_user(4711, 815),
        pytest.raises(LogDirectoryError, match=rf"^{path}: .*user 4711.* user 0.* chown"),
    ):
        write(shared, ONE)
    assert before == left(shared)
    os.chown(path, 4711, 815)
    with as_user(4711, 815):
        write(shared, ONE)
        assert [b"v", b"v"] == values(shared)


def test_root_without_the_right_to_give_files_away(shared: Path) -> None:
    """In a container with few capabilities, root may write anywhere without being the owner."""
    code = """
import pathlib, sys
from plain_writes import ONE, write
from segmentlog.errors import LogDirectoryError
try:
    write(pathlib.Path(sys.argv[1]), ONE)
except LogDirectoryError as error:
    print(error)
"""
    before = left(shared)
    told = run_without("chown", code, shared)
    assert "belongs to user 4711" in told
    assert "user 0" in told
    assert before == left(shared)


def test_root_gives_what_it_makes_to_the_owner(shared: Path) -> None:
    """A broker can open every file."""
    write(shared, ONE, num_partitions=2, topic="other")
    assert {4711} == {user for _, user in left(shared)}
    with as_user(4711, 815):
        write(shared, ONE, topic="other")


def test_a_file_system_that_gives_everything_one_owner(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CIFS, every new file belongs to the owner of the directory."""
    real = os.stat

    def forced(path: str | int, **options: Any) -> os.stat_result:
        found = real(path, **options)
        fields = [*found]
        fields[stat.ST_UID] = 4711
        names = {each for each in dir(found) if each.startswith("st_")} - IN_ORDER
        return os.stat_result(fields, {each: getattr(found, each) for each in names})

    for path in (*shared.rglob("*"),):
        path.chmod(path.stat().st_mode | stat.S_IWGRP)
    with as_user(MEMBER, 815, 0o002), monkeypatch.context() as patch:
        patch.setattr(os, "stat", forced)
        write(shared, ONE, topic="other")
        assert [b"v"] == values(shared, "other")
