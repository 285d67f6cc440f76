"""Only `segmentlog.store` asks the system for bytes, names and sizes."""

import ast
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "storage" / "segmentlog"

#: Calls by which a module would read past the door, as they are written.
SYSTEM = {
    "open", "io.open", "mmap.mmap", "np.fromfile", "np.memmap",
    "os.open", "os.read", "os.readv", "os.pread", "os.preadv",
    "os.listdir", "os.scandir", "os.walk", "os.stat", "os.lstat", "os.fstat", "os.readlink",
    "os.path.exists", "os.path.lexists", "os.path.isfile", "os.path.isdir", "os.path.islink",
    "os.path.getsize", "os.path.getmtime",
}  # fmt: skip

#: Methods of `pathlib.Path` that read past the door.
METHODS = {
    "read_bytes",
    "read_text",
    "iterdir",
    "glob",
    "rglob",
    "exists",
    "is_file",
    "is_dir",
    "is_symlink",
    "stat",
    "lstat",
}

#: Modules that call the system for something other than a log directory, and for what.
ELSEWHERE = {
    "audits/spill.py": {"np.memmap", "os.pread"},  # its own temporary file
    "tools/audit.py": {"os.path.lexists"},  # the user's output
    "tools/cli.py": {"open", "os.open", "os.fstat"},  # /dev/null for standard streams
    "tools/doctor.py": {".exists"},  # Java
    "tools/dump.py": {"os.path.getsize"},  # the user's output
    "tools/progress.py": {"os.fstat"},  # the kind of standard output
    "tools/sinks.py": {"open", "os.path.lexists"},  # the same
    "serving/near.py": {
        "os.pread",
        "os.preadv",
    },  # of a file that `store` has opened, to send it
    "native.py": {".exists", ".is_dir", ".glob", ".read_bytes", "os.close"},  # its own
}

MODULES = sorted(
    path
    for path in ENGINE.rglob("*.py")
    if path.relative_to(ENGINE).parts[0] not in {"store", "testing"}
)


def calls_past_the_door(source: str) -> set[str]:
    """Calls of a module that read from the system."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call | ast.Attribute):
            continue
        written = ast.unparse(node.func if isinstance(node, ast.Call) else node)
        if written in SYSTEM and (isinstance(node, ast.Call) or "." in written):
            found.add(written)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            receiver = ast.unparse(node.func.value)
            if node.func.attr in METHODS and not receiver.startswith(("os.", "re.")):
                found.add(f".{node.func.attr}")
    return found


@pytest.mark.addition("module")
def test_nothing_is_read_past_the_door() -> None:
    """Another kind of disk is a module beside `store/readable.py`, without a change above."""
    found = {
        str(path.relative_to(ENGINE)): calls_past_the_door(path.read_text()) for path in MODULES
    }
    past = {name: calls - ELSEWHERE.get(name, set()) for name, calls in found.items()}

    assert {} == {name: calls for name, calls in past.items() if calls}


@pytest.mark.parametrize(
    "code",
    [
        "open(path, 'rb')",
        "os.pread(descriptor, 4, 0)",
        "all(map(os.path.exists, paths))",
        "with os.scandir(path) as entries: pass",
        "Path(path).read_bytes()",
        "np.fromfile(path)",
    ],
)
def test_a_call_past_the_door_is_seen(code: str) -> None:
    """The function is called, or passed to another function."""
    assert calls_past_the_door(code)
