"""New directories count as cleanly stopped."""

from pathlib import Path

import pytest
from plain_writes import ONE, write


@pytest.mark.parametrize("name", ["lost+found", ".snapshot", "README.txt", ".lock"])
def test_a_new_directory_may_hold_what_is_no_logs(tmp_path: Path, name: str) -> None:
    """A new file system has such files.

    Nobody has written logs to it, so it was cleanly stopped.
    """
    if name in {"lost+found", ".snapshot"}:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).touch()
    write(tmp_path, ONE)

    assert (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize(
    "name",
    [
        "other-0",
        "other-0.0123456789abcdef0123456789abcdef-delete",
        "meta.properties",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "bootstrap.checkpoint",
        "recovery-point-offset-checkpoint.tmp",
        "segmentlog.state.tmp",
    ],
)
def test_a_directory_that_was_not_cleanly_stopped_is_not_new(tmp_path: Path, name: str) -> None:
    """It has partitions, or a file of a broker's or of segmentlog's, and no mark."""
    if name.startswith("other"):
        (tmp_path / name).mkdir()
    elif name != "meta.properties" and not name.startswith("segmentlog"):
        (tmp_path / name).write_text("0\n0\n")
    else:
        (tmp_path / name).touch()
    (tmp_path / "lost+found").mkdir()
    write(tmp_path, ONE, auto_create_topics=True)

    assert not (tmp_path / ".kafka_cleanshutdown").exists()
