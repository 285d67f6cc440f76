"""Syncs of several threads together: each file is synced while it is open, and closed once."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segmentlog.disk import sync_together
from segmentlog.disk.durable import create_file
from segmentlog.disk.sync_together import SyncTogether


def test_a_file_that_a_thread_adds_while_another_syncs_is_synced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file is synced once, and none is closed before."""
    monkeypatch.setattr(sync_together, "MOST_OPEN", 4)
    synced: list[str] = []

    def noted(descriptor: int, path: str) -> None:
        os.fstat(descriptor)  # raises if it is closed
        time.sleep(0.0005)
        synced.append(path)

    monkeypatch.setattr(sync_together, "sync_file", noted)
    syncs, n_threads, n_files = SyncTogether(), 8, 40
    begin = threading.Barrier(n_threads)

    def add(thread: int) -> None:
        begin.wait()
        for number in range(n_files):
            path = str(tmp_path / f"{thread}-{number}")
            syncs.add_file(create_file(path), path)

    switched = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(n_threads) as pool:
            [*pool.map(add, range(n_threads))]
    finally:
        sys.setswitchinterval(switched)
    syncs.finish()

    assert sorted(map(str, tmp_path.iterdir())) == sorted(synced)
    assert n_threads * n_files == len(synced)
