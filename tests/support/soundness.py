"""Facts that have to be true of a log directory whatever was done to it."""

from pathlib import Path

import segmentlog
from segmentlog.commit.guard import list_guards
from segmentlog.verify.findings import Severity
from segmentlog.verify.verify_log import verify_log

__all__ = ["assert_settled", "assert_tidy", "assert_verified"]


def assert_verified(directory: Path) -> None:
    """`verify` finds nothing in any partition, of which there are some."""
    opened = segmentlog.open_log_dir(directory)
    assert opened.topic_partitions(), f"{directory} holds no partition"
    for topic_partition in opened.topic_partitions():
        found = list(verify_log(opened.log(*topic_partition), with_records=True))
        bad = [str(each) for each in found if each.severity != Severity.NOTE]
        assert not bad, f"{topic_partition}: {bad}"


def assert_settled(directory: Path) -> None:
    """It is verified, and no commit is left to be finished or undone."""
    assert_verified(directory)
    assert [] == list_guards(str(directory))


def assert_tidy(directory: Path) -> None:
    """It is verified, and no file of ours but the state and settings is left."""
    assert_verified(directory)
    ours = {path.name for path in directory.glob("segmentlog.*")}
    assert {"segmentlog.state"} == ours - {"segmentlog.settings"}
