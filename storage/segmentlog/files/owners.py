"""Whose files and directories are, in words: who may write, and who would have to.

A broker opens its files as one user.  A file of another, which a member of its group may make
beside them, it can neither append to nor lock, and takes its whole log directory for lost.
"""

import os
import stat

__all__ = ["MAY_WRITE", "another_owner", "is_own", "may_write", "user", "why_not_written"]

MAY_WRITE = os.R_OK | os.W_OK  #: a log is read before it is appended to


def user(number: int) -> str:
    """A user, by number and name."""
    import pwd

    try:
        return f"user {number} ({pwd.getpwuid(number).pw_name})"
    except KeyError:
        return f"user {number}"


def another_owner(owner: int, writer: int) -> str:
    """Why `writer` is not to make files in a directory of `owner`, as the end of a sentence."""
    return (
        f"belongs to {user(owner)}, who can neither lock nor append to what {user(writer)} makes "
        f"there: write as the owner, or give the directory to the writer: chown -R {writer}"
    )


def is_own(path: str) -> bool:
    """Whether a file belongs to the user that acts."""
    return os.stat(path).st_uid == os.geteuid()


def may_write(path: str, mode: int = MAY_WRITE) -> bool:
    """Whether the user that acts may, who need not be the one that started the process."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def why_not_written(path: str) -> str:
    """The user that may not write to a path, and the one that may, as the end of a sentence."""
    found = os.stat(path)
    mode = stat.filemode(found.st_mode)
    return (
        f"{user(os.geteuid())} may not write to it: it belongs to {user(found.st_uid)}, {mode}; "
        "write as its owner, or give it to the owner of the log directory: chown"
    )
