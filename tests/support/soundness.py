"""What has to be true of a log directory whatever was done to it."""

from pathlib import Path

import segmentlog
from segmentlog.verify.findings import Severity
from segmentlog.verify.verify_log import verify_log

__all__ = ["assert_sound"]


def assert_sound(directory: Path) -> None:
    """`verify` finds nothing, and no file of ours but the state is left."""
    opened = segmentlog.open_log_dir(directory)
    for topic_partition in opened.topic_partitions():
        found = list(verify_log(opened.log(*topic_partition), with_records=True))
        assert [] == [each for each in found if each.severity != Severity.NOTE]
    assert ["segmentlog.state"] == [path.name for path in directory.glob("segmentlog.*")]
