"""Facts that hold for a log directory after any operation."""

from pathlib import Path

import segmentlog
from segmentlog.maintain.verification.findings import Severity
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.txn.guard import list_guards


def assert_verified(directory: Path) -> None:
    """`verify` finds nothing in any partition, and there is at least one partition."""
    opened = segmentlog.open_log_dir(directory)
    assert opened.topic_partitions(), f"{directory} holds no partition"
    for topic_partition in opened.topic_partitions():
        found = list(LogCheck(opened.log(*topic_partition), with_records=True).findings())
        bad = [str(each) for each in found if each.severity != Severity.NOTE]
        assert not bad, f"{topic_partition}: {bad}"


def assert_settled(directory: Path) -> None:
    """The directory is verified, and no commit is unfinished."""
    assert_verified(directory)
    assert [] == list_guards(str(directory))


def assert_tidy(directory: Path) -> None:
    """The directory is verified, and our only files are the state and the settings."""
    assert_verified(directory)
    ours = {path.name for path in directory.glob("segmentlog.*")}
    assert {"segmentlog.state"} == ours - {"segmentlog.settings"}
