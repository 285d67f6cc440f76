"""Owners of files and directories, in words: the user that may write, and the user that may not.

A broker opens its files as one user.  A member of its group may make files of another owner beside
them.  The broker can neither append to such a file nor lock it, and takes its whole log directory
offline.
"""

import os
import stat

MAY_WRITE = os.R_OK | os.W_OK  #: a log is read before it is appended to


def user(number: int) -> str:
    """A user, by number and name."""
    import pwd

    try:
        return f"user {number} ({pwd.getpwuid(number).pw_name})"
    except KeyError:
        return f"user {number}"


def another_owner(owner: int, writer: int) -> str:
    """The reason why `writer` must not make files in a directory of `owner`, to end a sentence."""
    return (
        f"belongs to {user(owner)}, who can neither lock nor append to files that {user(writer)} "
        "creates there: write as the owner, or give the directory to the writer: chown -R "
        f"{writer}"
    )


def is_own(path: str) -> bool:
    """Whether a file belongs to the effective user."""
    return os.stat(path).st_uid == os.geteuid()


def is_planted(file: os.stat_result, directory: os.stat_result) -> bool:
    """Whether the owner of a directory may have given a file of another user a name in it.

    The system may allow such hard links.  A backup has hard links, too, but no other owners.
    """
    is_trusted = directory.st_uid in {0, os.geteuid(), file.st_uid}
    return file.st_nlink > 1 and not is_trusted and not stat.S_ISDIR(file.st_mode)


def owner_of(directory: str) -> os.stat_result:
    """The status of a directory, which has its owner and group."""
    return os.stat(directory)


def why_not_opened(path: str, mode: int, owner: os.stat_result) -> str | None:
    """Why the owner of a directory may not open a file of it; None if they may, or are root.

    `mode` has bits as `os.access` takes them.
    """
    found = os.stat(path)
    group = found.st_gid == owner.st_gid
    shift = 6 if found.st_uid == owner.st_uid else 3 if group else 0
    if not owner.st_uid or found.st_mode >> shift & mode == mode:
        return None
    belongs = f"it belongs to {user(found.st_uid)}, {stat.filemode(found.st_mode)}"
    does = "write to" if mode & os.W_OK else "read"
    return f"{user(owner.st_uid)}, the owner of the log directory, may not {does} it: {belongs}"


def may_write(path: str, mode: int = MAY_WRITE) -> bool:
    """Whether the effective user may write; another user may have started the process."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def why_not_written(path: str) -> str:
    """The user that may not write to a path, and the user that may, to end a sentence."""
    found = os.stat(path)
    mode = stat.filemode(found.st_mode)
    return (
        f"{user(os.geteuid())} may not write to it: it belongs to {user(found.st_uid)}, {mode}; "
        "write as its owner, or give it to the owner of the log directory: chown"
    )
