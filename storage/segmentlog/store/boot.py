"""The boot id: bytes that were not synced survive the crash of a process, but not a reboot."""

import functools

_PATH = "/proc/sys/kernel/random/boot_id"


@functools.cache
def boot_id() -> str:
    """Id of this boot of the machine, or ``""`` where the system does not give one.

    Containers of a machine share the id, as they share its page cache.
    """
    try:
        with open(_PATH, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
