"""A directory mounted once more, as a client of NFS sees it: late, by handles, close-to-open.

Speaks the protocol of ``/dev/fuse``, so that nothing has to be installed.  As Linux' client does:

- names, missing names, sizes and times are cached for `lag` seconds;
- opening a file asks the server for its size; opening a directory, for its names;
- calls use handles: a directory that another has renamed still takes what is sent to it;
- a file that another client has removed is ``ESTALE`` to processes that have it open;
- a file that this client has open is not removed but called ``.nfs…`` until it is closed;
- locks exclude on this mount alone, as with ``nolock``.

Run as a program, this takes the directory, where to mount it, and the lag; it prints ``ready``.
"""

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_SETATTR = struct.Struct("<II6Q8I")
_ROOT = 1
_EXPIRES = 1  # looked up again; without it, names below a directory are forgotten, too
_DETACH = 2


@contextlib.contextmanager
def lagging_mount(source: Path, target: Path, lag: int = 60) -> Iterator[Path]:
    """The mount, during a ``with`` block; tests are skipped where mounts are not allowed."""
    if os.geteuid() or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("a separate mount needs root and /dev/fuse")
    target.mkdir()
    command = [sys.executable, __file__, str(source), str(target), str(lag)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        if server.stdout.readline() != "ready\n":
            pytest.skip("mounting is not permitted here")
        yield target
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(target), _DETACH)
        server.kill()
        server.communicate()


class _Server:
    """The mount of one client; its nodes are handles, which stay as long as it exists."""

    def __init__(self, device: int, source: str, lag: int) -> None:
        self._device = device
        self._lag = lag
        self._nodes = {_ROOT: os.open(source, os.O_PATH)}
        self._ids: dict[tuple[int, int], int] = {}
        self._names: dict[int, set[bytes]] = {}
        self._changed: dict[int, int] = {}
        self._opened: dict[int, int] = {}  # of a node, how often it is open
        self._handles: dict[int, int] = {}  # node of an open file
        self._silly: dict[int, tuple[int, bytes]] = {}

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 21)
            except OSError as error:
                if error.errno in {errno.ENODEV, errno.EBADF}:
                    return
                continue
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            answer: Callable[[_Server, int, bytes], bytes] | None = _ANSWERS.get(opcode, _unknown)
            if answer is None:
                continue
            try:
                reply, number = answer(self, node, request[_IN.size :]), 0
            except OSError as error:
                reply, number = b"", -(error.errno or errno.EIO)
            with contextlib.suppress(OSError):
                os.write(self._device, _OUT.pack(16 + len(reply), number, unique) + reply)

    def _notify(self, code: int, body: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._device, _OUT.pack(16 + len(body), code, 0) + body)

    def _path(self, node: int, name: bytes = b"") -> bytes:
        path = b"/proc/self/fd/%d" % self._nodes[node]
        return path + b"/" + name if name else path

    def _node(self, path: bytes) -> tuple[int, os.stat_result]:
        found = os.lstat(path)
        key = found.st_dev, found.st_ino
        node = self._ids.get(key)
        if node is None or not os.fstat(self._nodes[node]).st_nlink:
            node = self._ids[key] = max(self._nodes) + 1
            self._nodes[node] = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        return node, found

    def _check(self, node: int) -> None:
        if not os.fstat(self._nodes[node]).st_nlink:
            raise OSError(errno.ESTALE, "")

    def init(self, _: int, body: bytes) -> bytes:
        _, _, readahead, _ = struct.unpack_from("<4I", body)
        return struct.pack("<4IHHIIHHI7I", 7, 31, readahead, 0, 16, 12, 1 << 17, 1, *[0] * 10)

    def lookup(self, node: int, body: bytes) -> bytes:
        name = body.rstrip(b"\0")
        self._names.setdefault(node, set()).add(name)
        try:
            return self._entry(node, name)
        except FileNotFoundError:
            self._check(node)
            return struct.pack("<4QII", 0, 0, self._lag, 0, 0, 0) + bytes(_ATTR.size)

    def _entry(self, node: int, name: bytes) -> bytes:
        self._names.setdefault(node, set()).add(name)
        child, found = self._node(self._path(node, name))
        return struct.pack("<4QII", child, 0, self._lag, self._lag, 0, 0) + _attr(found)

    def getattr(self, node: int, _: bytes) -> bytes:
        self._check(node)
        found = os.fstat(self._nodes[node])
        return struct.pack("<QII", self._lag, 0, 0) + _attr(found)

    def setattr(self, node: int, body: bytes) -> bytes:
        self._check(node)
        (valid, _, _, size, _, atime, mtime, _, an, mn, _, mode, _, uid, gid, _) = (
            _SETATTR.unpack_from(body)
        )
        path = self._path(node)
        if valid & 1:
            os.chmod(path, mode & 0o7777)  # by its handle
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(path, size)
        if valid & 0x180:
            os.utime(path)
        elif valid & 0x30:
            found = os.stat(path)
            accessed = atime * 10**9 + an if valid & 16 else found.st_atime_ns
            modified = mtime * 10**9 + mn if valid & 32 else found.st_mtime_ns
            os.utime(path, ns=(accessed, modified))
        return self.getattr(node, b"")

    def mkdir(self, node: int, body: bytes) -> bytes:
        mode, umask = struct.unpack_from("<II", body)
        name = body[8:].rstrip(b"\0")
        self._check(node)
        os.mkdir(self._path(node, name), mode & ~umask)
        return self._entry(node, name)

    def unlink(self, node: int, body: bytes) -> bytes:
        name = body.rstrip(b"\0")
        path = self._path(node, name)
        child, _ = self._node(path)
        if child in self._silly:
            raise OSError(errno.EBUSY, "")
        if self._opened.get(child):
            self._keep(node, name, child)
        else:
            os.unlink(path)
        return b""

    def _keep(self, node: int, name: bytes, child: int) -> None:
        silly = b".nfs%024x" % child
        os.rename(self._path(node, name), self._path(node, silly))
        self._silly[child] = node, silly

    def rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(self._path(node, body.rstrip(b"\0")))
        return b""

    def rename(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 8)

    def rename2(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 16)

    def _rename(self, node: int, body: bytes, at: int) -> bytes:
        (target,) = struct.unpack_from("<Q", body)
        old, new, _ = body[at:].split(b"\0", 2)
        self._check(node)
        path = self._path(target, new)
        with contextlib.suppress(FileNotFoundError):
            child, _ = self._node(path)
            if self._opened.get(child):
                self._keep(target, new, child)
        os.rename(self._path(node, old), path)
        return b""

    def open(self, node: int, body: bytes) -> bytes:
        """Close-to-open: size and times come from the server, whatever is cached."""
        (flags,) = struct.unpack_from("<I", body)
        self._check(node)
        self._notify(2, struct.pack("<Qqq", node, -1, 0))
        return self._open(node, flags)

    def _open(self, node: int, flags: int) -> bytes:
        handle = os.open(self._path(node), flags & ~(os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL))
        self._opened[node] = self._opened.get(node, 0) + 1
        self._handles[handle] = node
        return struct.pack("<QII", handle, 0, 0)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("<4I", body)
        name = body[16:].rstrip(b"\0")
        self._check(node)
        os.close(os.open(self._path(node, name), flags | os.O_CREAT, mode & ~umask))
        entry = self._entry(node, name)
        (child,) = struct.unpack_from("<Q", entry)
        return entry + self._open(child, flags)

    def read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        self._check(node)
        return os.pread(handle, size, offset)

    def write(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        self._check(node)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def release(self, node: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        os.close(handle)
        del self._handles[handle]
        self._opened[node] -= 1
        if not self._opened[node] and node in self._silly:
            directory, name = self._silly.pop(node)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(directory, name))
        return b""

    def fsync(self, _: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        os.fsync(handle)
        return b""

    def statfs(self, node: int, _: bytes) -> bytes:
        found = os.statvfs(self._path(node))
        sizes = found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree
        return struct.pack("<5Q10I", *sizes, found.f_bsize, 255, found.f_frsize, *[0] * 7)

    def opendir(self, node: int, _: bytes) -> bytes:
        """If a directory has changed, its cache is dropped, as with files."""
        self._check(node)
        changed = os.fstat(self._nodes[node]).st_mtime_ns
        if self._changed.get(node) != changed:
            for name in self._names.pop(node, ()):
                self._notify(3, struct.pack("<QII", node, len(name), _EXPIRES) + name + b"\0")
            self._changed[node] = changed
        return bytes(16)

    def readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        if not offset:
            self._listed = sorted(os.listdir(self._path(node)))
        reply = b""
        for number, name in enumerate(self._listed[offset:], offset + 1):
            entry = struct.pack("<QQII", number, number, len(name), 0) + name
            entry += bytes(-len(entry) % 8)
            if len(reply) + len(entry) > size:
                break
            reply += entry
        return reply

    def done(self, *_: object) -> bytes:
        return b""


def _attr(found: os.stat_result) -> bytes:
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return _ATTR.pack(
        found.st_ino, found.st_size, found.st_blocks, *(each // 10**9 for each in times),
        *(each % 10**9 for each in times), found.st_mode, found.st_nlink, found.st_uid,
        found.st_gid, 0, 4096, 0,
    )  # fmt: skip


def _unknown(*_: object) -> bytes:
    raise OSError(errno.ENOSYS, "")


_ANSWERS = {
    1: _Server.lookup, 2: None, 3: _Server.getattr, 4: _Server.setattr, 9: _Server.mkdir,
    10: _Server.unlink, 11: _Server.rmdir, 12: _Server.rename, 14: _Server.open,
    15: _Server.read, 16: _Server.write, 17: _Server.statfs, 18: _Server.release,
    20: _Server.fsync, 25: _Server.done, 26: _Server.init, 27: _Server.opendir,
    28: _Server.readdir, 29: _Server.done, 30: _Server.done, 35: _Server.create, 36: None,
    42: None, 45: _Server.rename2,
}  # fmt: skip


def _main(source: str, target: str, lag: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % device
    if ctypes.CDLL(None).mount(b"lagging", os.fsencode(target), b"fuse", 0, options):
        return
    print("ready", flush=True)
    _Server(device, source, int(lag)).serve()


if __name__ == "__main__":
    _main(*sys.argv[1:])
