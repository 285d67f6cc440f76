"""Files and directories as values, and the steps that change them.

A step belongs to one file or directory, its `inode`, and is durable once that is synced:

- `Write` and `Resize` change the bytes of a file.
- `Enter` changes entries of one directory at once: a name that is made, removed, or renamed over
  another.  A rename from one directory to another is two steps, one for each, as POSIX promises
  no more: after a power cut both names may be there, or neither.
- `Sync` changes nothing.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = 0  #: the inode of the directory at the top

#: Paths below the top, and what is there: bytes of a file, None for a directory.
Tree = dict[str, bytes | None]


class Write(NamedTuple):
    """Bytes that a file has from `position` on."""

    inode: int
    position: int
    data: bytes


class Resize(NamedTuple):
    """A file is cut, or extended with zeros."""

    inode: int
    size: int


class Entry(NamedTuple):
    """The file or directory that a name leads to."""

    inode: int
    is_directory: bool


class Enter(NamedTuple):
    """Names of a directory that now lead to another inode, or to none."""

    inode: int
    names: Mapping[str, Entry | None]


class Sync(NamedTuple):
    """The point at which all earlier changes of a file or directory are durable."""

    inode: int


Step = Write | Resize | Enter | Sync


class Image:
    """The state of a disk: bytes of each file, and entries of each directory, by inode.

    Steps put new values in the place of old ones, so a copy costs next to nothing.
    """

    def __init__(
        self, files: Mapping[int, bytes], directories: Mapping[int, Mapping[str, Entry]]
    ) -> None:
        self.files = dict(files)
        self.directories = dict(directories)

    def copy(self) -> "Image":
        """A copy that can be changed separately."""
        return Image(self.files, self.directories)

    def apply(self, step: Step) -> None:
        """Apply one step."""
        if isinstance(step, Write):
            held = self.files.get(step.inode, b"").ljust(step.position, b"\0")
            rest = held[step.position + len(step.data) :]
            self.files[step.inode] = held[: step.position] + step.data + rest
        elif isinstance(step, Resize):
            held = self.files.get(step.inode, b"")
            self.files[step.inode] = held[: step.size].ljust(step.size, b"\0")
        elif isinstance(step, Enter):
            entries = {**self.directories.get(step.inode, {}), **step.names}
            kept = {name: entry for name, entry in entries.items() if entry is not None}
            self.directories[step.inode] = kept

    def tree(self) -> Tree:
        """Everything that can be reached from the top, by path."""
        found: Tree = {}
        self._collect("", ROOT, found)
        return found

    def _collect(self, prefix: str, directory: int, found: Tree) -> None:
        for name, entry in self.directories.get(directory, {}).items():
            if entry.is_directory:
                found[prefix + name] = None
                self._collect(f"{prefix}{name}/", entry.inode, found)
            else:
                found[prefix + name] = self.files.get(entry.inode, b"")


def read_tree(root: Path) -> Tree:
    """The tree of a real directory, by path."""
    found: Tree = {}
    _read_below(str(root), "", found)
    return found


def _read_below(directory: str, prefix: str, found: Tree) -> None:
    # After each step of each operation: objects for paths would take most of the time.
    with os.scandir(directory) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir():
                found[name] = None
                _read_below(entry.path, f"{name}/", found)
            else:
                with open(entry.path, "rb", buffering=0) as file:
                    found[name] = file.readall()


def write_tree(tree: Tree, root: Path) -> None:
    """Make a real directory of a tree."""
    root.mkdir()
    for name in sorted(tree):
        data, path = tree[name], f"{root}/{name}"
        if data is None:
            os.mkdir(path)
        else:
            with open(path, "wb", buffering=0) as file:
                file.write(data)
