"""Every change of a real directory is recorded, while the code that makes it runs as usual."""

import os
import threading
from pathlib import Path

import pytest
from crashing import Forward, around_calls

from crash_disk.image import ROOT, Enter, Entry, Image, Resize, Step, Sync, Write, read_tree

#: The recorder's own looks at a disk, past all watchers of the calls of `os`.
_stat, _lstat = os.stat, os.lstat

#: Calls of `os` that the recorder understands.  A change of the directory by another call, or
#: through a memory map, is noticed after the next of these: the directory is not as recorded.
CALLS = (
    "open", "write", "pwrite", "truncate", "ftruncate", "fsync", "fdatasync", "rename", "replace",
    "link", "unlink", "remove", "mkdir", "rmdir",
)  # fmt: skip


class Recorder:
    """A recorder of the changes below a directory, until `patch` is undone.

    After each call the directory is compared with what was recorded, byte for byte: nothing
    that changes a disk can be forgotten here.  Many runs of calls that are known leave that out.

    `image`: of the directory as it was in the beginning, taken for durable. `steps`: since then.
    `calls`: for each step, the call that it came with, for people. `is_paused`: whether changes
    are not recorded, until the next `begin`.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, *, compares: bool = True) -> None:
        self.root = root
        self._compares = compares
        self._device = _stat(root).st_dev
        self._lock = threading.RLock()
        self.begin()
        around_calls(patch, CALLS, self._around)

    def begin(self) -> None:
        """Take the directory as it is now for durable, and begin to record."""
        self.image = Image({}, {ROOT: {}})
        self.steps: list[Step] = []
        self.calls: list[str] = []
        self.is_paused = False
        self._n_inodes = 1
        self._inodes = {_stat(self.root).st_ino: ROOT}
        self._take_in(self.root, ROOT)
        self._now = self.image.copy()

    def _take_in(self, path: Path, inode: int) -> None:
        """Take in everything that exists before the recording."""
        entries = {}
        for each in path.iterdir():
            entry = entries[each.name] = self._new(each, is_directory=each.is_dir())
            if entry.is_directory:
                self._take_in(each, entry.inode)
            else:
                self.image.files[entry.inode] = each.read_bytes()
        self.image.directories[inode] = entries

    def _new(self, path: str | os.PathLike[str] | int, *, is_directory: bool) -> Entry:
        """Number a new inode; the system reuses its own numbers."""
        entry = Entry(self._n_inodes, is_directory)
        self._n_inodes += 1
        self._inodes[_stat(path).st_ino] = entry.inode
        return entry

    def _around(self, name: str, forward: Forward) -> object:
        if self.is_paused:
            return forward()
        with self._lock:
            assert not {"dir_fd", "src_dir_fd", "dst_dir_fd"} & forward.keywords.keys()
            result: object = getattr(self, f"_{name}")(forward)
            if self._compares:
                assert self._now.tree() == read_tree(self.root), f"changed by more than {name}"
            return result

    def _add(self, call: str, *steps: Step) -> None:
        for step in steps:
            self.steps.append(step)
            self.calls.append(call)
            self._now.apply(step)

    def _inode_at(self, path: object) -> int | None:
        """Inode of a path or descriptor, or None when it is not below the root."""
        try:
            status = _stat(path)  # type: ignore[arg-type]
        except FileNotFoundError:
            return None
        return self._inodes.get(status.st_ino) if status.st_dev == self._device else None

    def _place(self, path: object) -> tuple[int | None, str]:
        """The directory of a path, and the name in it."""
        directory, name = os.path.split(os.path.abspath(os.fspath(path)))  # type: ignore[call-overload]
        return self._inode_at(directory), name

    def _name_of(self, inode: int) -> str:
        """A name of an inode, for messages and for reading it."""
        tops = [("", ROOT)]
        while tops:
            prefix, directory = tops.pop()
            for name, entry in self._now.directories.get(directory, {}).items():
                if entry.inode == inode:
                    return prefix + name
                if entry.is_directory:
                    tops.append((f"{prefix}{name}/", entry.inode))
        return "." if inode == ROOT else f"a file without a name ({inode})"

    def _open(self, forward: Forward) -> object:
        path, flags = forward.args[0], forward.args[1] if len(forward.args) > 1 else os.O_RDONLY
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return forward()
        directory, name = self._place(path)
        try:
            was_there = bool(_lstat(path))
        except FileNotFoundError:
            was_there = False
        descriptor = forward()
        if directory is not None:
            if not was_there:
                entry = self._new(descriptor, is_directory=False)  # type: ignore[arg-type]
                self._add(f"create {path}", Enter(directory, {name: entry}))
            elif flags & os.O_TRUNC:
                self._add(f"truncate {path}", Resize(self._inode_at(path) or 0, 0))
        return descriptor

    def _pwrite(self, forward: Forward) -> object:
        descriptor, data, position = forward.args
        written = forward()
        self._wrote(descriptor, bytes(data)[: int(written)], position)  # type: ignore[call-overload]
        return written

    def _write(self, forward: Forward) -> object:
        descriptor, data = forward.args
        written = forward()
        inode = self._inode_at(descriptor)
        if inode is not None:
            n_bytes = int(written)  # type: ignore[call-overload]
            self._wrote(descriptor, bytes(data)[:n_bytes], os.lseek(descriptor, 0, 1) - n_bytes)
        return written

    def _wrote(self, descriptor: int, data: bytes, position: int) -> None:
        inode = self._inode_at(descriptor)
        if inode is not None and data:
            self._add(f"write {self._name_of(inode)}", Write(inode, position, data))

    def _ftruncate(self, forward: Forward) -> object:
        forward()
        inode = self._inode_at(forward.args[0])
        if inode is not None and len(self._now.files.get(inode, b"")) != forward.args[1]:
            self._add(f"truncate {self._name_of(inode)}", Resize(inode, forward.args[1]))
        return None

    _truncate = _ftruncate

    def _fsync(self, forward: Forward) -> object:
        forward()
        inode = self._inode_at(forward.args[0])
        if inode is not None:
            self._add(f"fsync {self._name_of(inode)}", Sync(inode))
        return None

    _fdatasync = _fsync

    def _rename(self, forward: Forward) -> object:
        old, new = forward.args
        (from_directory, from_name), (directory, name) = self._place(old), self._place(new)
        if from_directory is None and directory is None:
            return forward()
        assert from_directory is not None, f"{old} is renamed into the recorded directory"
        assert directory is not None, f"{old} is renamed out of the recorded directory"
        entry = self._now.directories.get(from_directory, {}).get(from_name)
        forward()
        assert entry is not None
        call = f"rename {old} {new}"
        if from_directory == directory:
            self._add(call, Enter(directory, {from_name: None, name: entry}))
        else:
            self._add(call, Enter(directory, {name: entry}))
            self._add(call, Enter(from_directory, {from_name: None}))
        return None

    _replace = _rename

    def _link(self, forward: Forward) -> object:
        old, new = forward.args
        directory, name = self._place(new)
        forward()
        if directory is not None:
            inode = self._inode_at(old)
            assert inode is not None, f"{old} is not in the recorded directory"
            self._add(f"link {old} {new}", Enter(directory, {name: Entry(inode, False)}))
        return None

    def _unlink(self, forward: Forward) -> object:
        directory, name = self._place(forward.args[0])
        forward()
        if directory is not None:
            self._add(f"remove {forward.args[0]}", Enter(directory, {name: None}))
        return None

    _remove = _unlink
    _rmdir = _unlink

    def _mkdir(self, forward: Forward) -> object:
        directory, name = self._place(forward.args[0])
        forward()
        if directory is not None:
            entry = self._new(forward.args[0], is_directory=True)
            self._add(f"mkdir {forward.args[0]}", Enter(directory, {name: entry}))
        return None
