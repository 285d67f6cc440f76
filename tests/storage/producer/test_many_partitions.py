"""Commits to many partitions: how often the disk is waited for, and that nothing is left out."""

import errno
import os
import re
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import values, write
from soundness import assert_sound

from segmentlog.log.journal import list_guards
from segmentlog.write_errors import SyncFailedError

N = 20
ROWS = pa.table({"value": [b"%d" % n for n in range(N)], "partition": pa.array(range(N))})


def syncs_of(directory: Path, monkeypatch: pytest.MonkeyPatch, **how: object) -> Counter[str]:
    """Write one row to each partition; how often each kind of file of a partition is synced."""
    found: Counter[str] = Counter()
    threads = set()
    sync = os.fsync

    def counted(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if re.search(r"/t-\d+(/|$)", path):
            found[Path(path).suffix or "directory"] += 1
            threads.add(threading.get_ident())
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counted)
        write(directory, ROWS, num_partitions=N, **how)
    assert len(threads) > 1
    return found


def test_what_a_commit_has_not_changed_is_not_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overwrite took 41 s for 3,000 partitions where an append took 9."""
    write(tmp_path, ROWS, num_partitions=N)
    appended = syncs_of(tmp_path, monkeypatch)
    overwritten = syncs_of(tmp_path, monkeypatch, delete_records=True)

    assert {".log": N, ".timeindex": N} == appended
    assert {".log": N, ".timeindex": N, "directory": N} == overwritten
    assert [[b"%d" % n] for n in range(N)] == [values(tmp_path, "t", n) for n in range(N)]
    assert_sound(tmp_path)


@pytest.mark.parametrize("what", [r"t-13/\d+\.log", r"t-13"])
def test_one_sync_of_many_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Nothing is visible, the guard stands, and the next writer goes on."""
    write(tmp_path, ROWS, num_partitions=N)
    sync = os.fsync

    def failing(descriptor: int) -> None:
        if re.search(f"/{what}$", str(Path(f"/proc/self/fd/{descriptor}").readlink())):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    n_open = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(SyncFailedError, match="t-13"):
            write(tmp_path, ROWS, num_partitions=N, delete_records=True)
    assert n_open == len(list(Path("/proc/self/fd").iterdir()))
    assert 1 == len(list_guards(str(tmp_path)))
    assert [[b"%d" % n] for n in range(N)] == [values(tmp_path, "t", n) for n in range(N)]
    write(tmp_path, ROWS)
    assert [[b"%d" % n] * 2 for n in range(N)] == [values(tmp_path, "t", n) for n in range(N)]
    assert_sound(tmp_path)
