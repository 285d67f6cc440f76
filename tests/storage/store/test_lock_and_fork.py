"""The lock of a directory, and processes that are forked while it is held."""

import os
from pathlib import Path

import pytest

from segmentlog.store.lock import DirectoryLock

pytestmark = pytest.mark.linux


def test_a_lock_ends_with_its_holder_and_not_with_a_child_of_it(tmp_path: Path) -> None:
    """The lock is free after its block, although a forked child has the lock file open."""
    parent, child = os.pipe()
    with DirectoryLock(str(tmp_path)):
        process = os.fork()
        if not process:
            os.close(child)
            os.read(parent, 1)
            os._exit(0)
    try:
        with DirectoryLock(str(tmp_path)):
            pass
    finally:
        os.close(child)
        os.waitpid(process, 0)
        os.close(parent)
