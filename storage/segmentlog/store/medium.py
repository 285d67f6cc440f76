"""What files lie on: disks of this machine, or something that another machine may let hang.

Calls for a file on a disk of this machine wait for that disk alone, and only if the system lacks
what they ask for.  Those for a file system of the network, or of another process, may wait for
ever, also for the size of a file.
"""

import functools
import os

from segmentlog.store.readable import device_of, is_url

_MOUNTS = "/proc/self/mountinfo"
_OF_THIS_MACHINE = {
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs",
}  # fmt: skip


@functools.lru_cache(maxsize=1_024)
def may_hang(directory: str) -> bool:
    """Whether a call for a file of a directory may wait for another machine or process.

    Without ``/proc``, as on macOS, it is taken for a disk of this machine.
    """
    if is_url(directory):
        return True
    try:
        device = device_of(directory)
        number = f"{os.major(device)}:{os.minor(device)}"
        with open(_MOUNTS, encoding="utf-8", errors="replace") as mounts:
            kinds = {
                line.rpartition(" - ")[2].split()[0]
                for line in mounts
                if line.split(maxsplit=3)[2] == number
            }
    except OSError:
        return False
    return not kinds <= _OF_THIS_MACHINE
