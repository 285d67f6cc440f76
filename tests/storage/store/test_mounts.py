"""Mounts of object stores are distinguished from file systems."""

import re
from pathlib import Path

import pytest

from segmentlog.errors import LogDirectoryError
from segmentlog.store.paths import refuse_object_store

TABLE = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:33 / /mnt/my\040bucket rw,nosuid shared:2 - fuse.gcsfuse bucket rw,user_id=0
41 22 0:34 / /mnt/s3 rw - fuse mountpoint-s3 rw
42 41 0:35 / /mnt/s3/local rw - xfs /dev/vdb rw
43 22 0:36 / /mnt/ssh rw - fuse.sshfs host:/ rw
44 22 0:37 / /mnt/over rw - fuse.s3fs s3fs rw
45 44 0:38 / /mnt/over rw - ext4 /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/mnt/my bucket/logs", "fuse.gcsfuse"),
        ("/mnt/my bucket", "fuse.gcsfuse"),
        ("/mnt/s3/a/b", "fuse mountpoint-s3"),
        ("/mnt/s3/local/a", ""),
        ("/mnt/s30/a", ""),
        ("/mnt/ssh/a", ""),
        ("/mnt/over/a", ""),
        ("/data", ""),
    ],
)
def test_the_nearest_mount_decides(tmp_path: Path, path: str, kind: str) -> None:
    """The longest prefix of whole names decides.

    Of two mounts at one place, the later one decides.
    """
    mounts = tmp_path / "mountinfo"
    mounts.write_text(TABLE)
    if not kind:
        refuse_object_store(path, str(mounts))
        return
    with pytest.raises(LogDirectoryError, match=kind):
        refuse_object_store(path, str(mounts))


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="only Linux has this table")
def test_this_machines_own_table_is_understood(tmp_path: Path) -> None:
    """The machine's own table is accepted.

    With one more line for a bucket, the path is in the bucket.
    """
    refuse_object_store(str(tmp_path))
    table = tmp_path / "mountinfo"
    point = str(tmp_path).replace(" ", r"\040")
    bucket = f"99 1 0:99 / {point} rw - fuse.gcsfuse bucket rw\n"
    table.write_text(Path("/proc/self/mountinfo").read_text() + bucket)

    with pytest.raises(LogDirectoryError, match=re.escape(str(tmp_path))):
        refuse_object_store(str(tmp_path), str(table))


def test_nothing_is_refused_where_there_is_no_table(tmp_path: Path) -> None:
    """A path that a table refuses is accepted where the system has no table."""
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    with pytest.raises(LogDirectoryError):
        refuse_object_store("/mnt/s3", str(table))

    refuse_object_store("/mnt/s3", str(tmp_path / "none"))
