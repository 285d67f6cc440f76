"""Errors of the system leave the engine as one class, with the file and a remedy."""

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import as_user, common_directory
from plain_writes import ONE, values, write

import segmentlog
from segmentlog import StorageError
from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.reads.scan import scan_slice
from segmentlog.store.system_errors import storage_errors
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob

pytestmark = pytest.mark.linux


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "owner"),
        (errno.EPERM, "owner"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "check the disk"),
        (errno.ESTALE, "try again"),
        (errno.EMFILE, "ulimit"),
        (errno.ENFILE, "open files"),
        (errno.ELOOP, "exists and is readable"),
    ],
)
def test_an_error_of_the_system_says_what_to_do(code: int, remedy: str) -> None:
    """A storage error has the file, the error number and a remedy.

    Its cause is the system's error.
    """
    with pytest.raises(StorageError, match=remedy) as caught, storage_errors("/other"):
        raise OSError(code, os.strerror(code), "/d/t-0")

    error = caught.value
    assert (code, "/d/t-0") == (error.errno, error.filename)
    assert str(error).startswith(f"/d/t-0: {os.strerror(code)}")
    assert (f"user {os.geteuid()}" in str(error)) == (code in {errno.EACCES, errno.EPERM})
    assert isinstance(error.__cause__, OSError)
    assert "STORAGE" == error.code


def test_the_innermost_context_names_the_file() -> None:
    """The innermost context names the file.

    Our own errors and errors that are not about storage pass unchanged.
    """
    with pytest.raises(StorageError) as caught, storage_errors("/outer"), storage_errors("/inner"):
        raise OSError(errno.EIO, "Input/output error")
    assert "/inner" == caught.value.filename
    assert type(caught.value.__cause__) is OSError
    for error in (LogDirectoryError("/d", "is none"), BrokenPipeError(), ValueError(), KeyError()):
        with pytest.raises(type(error)) as other, storage_errors("/outer"):
            raise error
        assert error is other.value
    with pytest.raises(StorageError, match=r"^nothing but words: "), storage_errors():
        raise OSError("nothing but words")


@pytest.fixture
def logs() -> Iterator[Path]:
    """A log directory of user 4711 with one job in it."""
    with common_directory() as top:
        path = top / "logs"
        path.mkdir()
        write(path, ONE)
        for each in (path, *path.rglob("*")):
            os.chown(each, 4711, 4711)
        yield path


def log_file(logs: Path) -> Path:
    """The only segment of the log."""
    return logs / "t-0" / f"{0:020d}.log"


def planned(logs: Path) -> segmentlog.LogSlice:
    """The first slice that a read plans."""
    log = segmentlog.open_log_dir(logs).log("t", 0)
    return log.slices(0, log.end_offset(), 0)[0]


def test_a_scan_of_a_file_that_may_not_be_read(logs: Path) -> None:
    """The error names the user, because tasks of Spark may run as another user."""
    wanted = planned(logs)
    os.chown(log_file(logs), 0, 0)
    log_file(logs).chmod(0o600)
    with as_user(4711, 4711), pytest.raises(StorageError, match="to user 4711") as caught:
        list(scan_slice(wanted))
    assert (errno.EACCES, str(log_file(logs))) == (caught.value.errno, caught.value.filename)


def test_a_directory_that_may_not_be_read(logs: Path) -> None:
    """The error names the user who may not list the directory."""
    logs.chmod(0o700)
    os.chown(logs, 0, 0)
    with as_user(4711, 4711), pytest.raises(StorageError, match="to user 4711"):
        segmentlog.open_log_dir(logs)


def test_a_log_that_may_not_be_looked_at(logs: Path) -> None:
    """Every property and method of a log raises the typed error if it is used first."""
    os.chown(log_file(logs), 0, 0)
    log_file(logs).chmod(0o600)
    with as_user(4711, 4711):
        for ask in (
            lambda log: log.log_end_offset,
            lambda log: log.end_offset(),
            lambda log: log.end,
            lambda log: log.scan(),
            lambda log: log.slices(0, 1),
            lambda log: log.offset_for_timestamp(1),
        ):
            with pytest.raises(StorageError, match="to user 4711") as caught:
                ask(segmentlog.open_log_dir(logs).log("t", 0))
            assert str(log_file(logs)) == caught.value.filename


def test_a_scan_of_something_that_is_no_file(logs: Path) -> None:
    """The engine adds the path, because the system does not name the file of a descriptor."""
    wanted = planned(logs)
    wanted = wanted._replace(files=tuple(each._replace(inode=0) for each in wanted.files))
    log_file(logs).unlink()
    log_file(logs).mkdir()
    with pytest.raises(StorageError, match="Is a directory") as caught:
        list(scan_slice(wanted))
    assert str(log_file(logs)) == caught.value.filename


def test_a_scan_from_a_disk_that_fails(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system call that reads is reported with the file and a remedy."""
    wanted = planned(logs)

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(StorageError, match="check the disk") as caught:
        list(scan_slice(wanted))
    assert str(log_file(logs)) == caught.value.filename


@pytest.fixture
def few_files() -> Iterator[None]:
    """Allow this process not one more open file."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_writer_in_a_process_with_too_many_files(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The error is typed when a writer begins, when it stages, and when it commits."""
    write(tmp_path, ONE)
    job = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    stager, other = job.stager(0), job.stager(1)
    stager.add(ONE.to_batches()[0])
    other.add(ONE.to_batches()[0])
    extents = [other.finish()]
    writer = segmentlog.open_writer(tmp_path, "t")
    writer.append(ONE)
    request.getfixturevalue("few_files")
    for door in (
        lambda: segmentlog.open_writer(tmp_path, "t"),
        stager.finish,
        lambda: job.commit(extents),
        writer.flush,
    ):
        with pytest.raises(StorageError, match=f"^{tmp_path}.*: Too many open files: .*ulimit"):
            door()


def test_a_commit_to_a_partition_that_is_gone(tmp_path: Path) -> None:
    """The commit raises one of our errors, and appends nothing."""
    write(tmp_path, ONE, num_partitions=2)
    job = WriteJob.begin(
        WriteRequest(str(tmp_path), ProducerConfig(), topic="t", auto_create_topics=False)
    )
    stager = job.stager(0)
    stager.add(ONE.to_batches()[0])
    extents = [stager.finish()]
    for staged in tmp_path.glob("*.stage"):
        staged.unlink()
    with pytest.raises(SegmentLogError):
        job.commit(extents)
    assert [b"v"] == values(tmp_path)


def test_tools_in_a_directory_that_is_anothers(logs: Path) -> None:
    """One line names the file and the user who lacks the permission."""
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        os.chown(logs / name, 0, 0)
        (logs / name).chmod(0o600)
    (logs / "t-0").chmod(0o500)
    shutil.rmtree(logs / "t-0" / f"{0:020d}.index", ignore_errors=True)
    (logs / "t-0" / f"{0:020d}.index").unlink()
    denied = rf"^{logs}/\S+: Permission denied to user 4711"
    with as_user(4711, 4711):
        with pytest.raises(StorageError, match=denied):
            segmentlog.recover(logs)
        (indexed,) = segmentlog.reindex(logs)
        findings = segmentlog.verify(logs)
    assert isinstance(indexed.error, StorageError)
    assert "Permission denied to user 4711" in str(indexed.error)
    refused = {each.path for each in findings if "Permission denied" in each.message}
    assert {str(each) for each in logs.glob("re*-checkpoint")} == refused


def test_a_log_that_is_not_this_users_to_recover(logs: Path) -> None:
    """The recovery reports the log that it may not open, and continues with other logs."""
    (logs / ".kafka_cleanshutdown").unlink()
    os.chown(log_file(logs), 0, 0)
    log_file(logs).chmod(0o600)
    with as_user(4711, 4711):
        (step,) = segmentlog.recover(logs)
    assert segmentlog.RecoveryKind.LOG_FAILED is step.kind
    assert f"t-0: not recovered: {log_file(logs)}: Permission denied to user 4711" in step.message
