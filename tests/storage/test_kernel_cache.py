"""Compiled kernels are found again by their sources, versions and settings alone."""

import errno
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

import segmentlog
from segmentlog.kernel_cache import KernelStore, _digest_of_sources

SOURCES = Path(segmentlog.__file__).parent
LINE = "compiling segmentlog's kernels, which takes up to a minute"

#: The checksum of a kernel that calls another module's kernel, and how many were compiled.
USE = """
import numpy as np
from segmentlog.kernels import message
from segmentlog.tools.warmup import _counts
print(message._crc32(np.frombuffer(b"123456789", np.uint8), 0, 9), *_counts())
"""
CRC32 = 0xCBF43926
COMPILED, LOADED = [CRC32, 2, 0], [CRC32, 0, 1]


class Done(NamedTuple):
    """The output of a process as numbers, and its lines about compiling."""

    printed: list[int]
    lines: list[str]


Use = Callable[..., Done]


def start(cache: Path, path: Path, code: str = USE, **variables: str) -> subprocess.Popen[str]:
    """A new process that imports the package from `path`."""
    own = {"PYTHONPATH": str(path), "NUMBA_CACHE_DIR": str(cache), "TMPDIR": str(path.parent)}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | own | variables, cwd=path.parent,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> Done:
    """Wait for the process to end."""
    printed, errors = process.communicate(timeout=300)
    assert 0 == process.returncode, errors
    return Done(
        [int(word) for word in printed.split()],
        [line for line in errors.splitlines() if LINE in line],
    )


def use(cache: Path, path: Path, code: str = USE, **variables: str) -> Done:
    """Run one process from start to end."""
    return end(start(cache, path, code, **variables))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A directory with a copy of the package."""
    copy = tmp_path / "here" / "segmentlog"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy.parent


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty directory for kernels."""
    return tmp_path / "cache"


def entries(cache: Path) -> dict[str, bytes]:
    """All compiled kernels in the cache."""
    return {path.name: path.read_bytes() for path in cache.rglob("*.nbc")}


def archive(package: Path, name: str) -> Path:
    """A zip of the package, with the name of a wheel."""
    made = package.parent / "other place" / name
    made.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(made, "w") as file:
        for path in sorted(package.rglob("*")):
            file.write(path, path.relative_to(package))
    return made


def test_kernels_are_found_again_wherever_the_package_is(package: Path, cache: Path) -> None:
    """The package is a directory, a zip, a wheel or a read-only copy.

    Compiling is announced once.
    """
    first = use(cache, package)
    moved = package.parent / "read only"
    shutil.copytree(package, moved)
    for directory in (moved, *moved.rglob("*")):
        directory.chmod(0o555)
    places = (package, moved, archive(package, "py.zip"), archive(package, "x-1-py3-none-any.whl"))
    later = [use(cache, place) for place in places]

    assert (COMPILED, 1) == (first.printed, len(first.lines))
    assert f"{cache}/segmentlog/kernels-" in first.lines[0]
    assert [(LOADED, [])] * len(places) == later
    assert 2 == len(entries(cache))
    assert [] == [*package.rglob("*.nbc"), *package.rglob("*.nbi")]


@pytest.mark.slow
def test_a_changed_source_is_compiled(package: Path, cache: Path) -> None:
    """The changed function may be in another module that the kernel calls."""
    use(cache, package)
    source = package / "segmentlog" / "kernels" / "crc_tables.py"
    before = source.read_text()
    changed = before.replace("np.int64(crc ^ _ONES)", "np.int64(crc ^ _ONES) ^ 1")
    source.write_text(changed)
    other = use(cache, package).printed
    source.write_text(before)

    assert changed != before
    assert [CRC32 ^ 1, 2, 0] == other
    assert LOADED == use(cache, package).printed


def test_a_source_that_is_replaced_meanwhile_leaves_nothing(package: Path, cache: Path) -> None:
    """Code that was imported before an upgrade is not stored under the upgrade's name."""
    replaced = "import pathlib, segmentlog\n" + USE.replace(
        "print(",
        "source = pathlib.Path(message.__file__)\n"
        "source.write_text(source.read_text() + '\\n# upgraded\\n')\nprint(",
    )
    done = use(cache, package, replaced)

    assert COMPILED == done.printed
    assert {} == entries(cache)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["NUMBA_BOUNDSCHECK", "NUMBA_OPT"])
def test_settings_of_numba_have_kernels_of_their_own(
    package: Path, cache: Path, name: str
) -> None:
    """Numba's own cache would return the kernels of other settings."""
    use(cache, package)

    assert COMPILED == use(cache, package, **{name: "1"}).printed
    assert LOADED == use(cache, package, NUMBA_NUM_THREADS="1").printed


@pytest.mark.slow
def test_processes_compile_at_once(package: Path, cache: Path) -> None:
    """Each process has the right result. One compiles, announces it, and leaves whole files."""
    done = [end(each) for each in [start(cache, package) for _ in range(4)]]

    assert {CRC32} == {each.printed[0] for each in done}
    assert 2 == sum(each.printed[1] for each in done)
    assert 1 == sum(len(each.lines) for each in done)
    assert LOADED == use(cache, package).printed
    assert not list(cache.rglob("*.tmp"))


#: A process that holds the turn of each kernel that its argument names, until its input ends.
HOLD = """
import sys
from segmentlog.kernel_cache import KernelStore, _digest_of_sources
store = KernelStore("segmentlog.kernels")
for name in sys.argv[1:]:
    store.take_turn(name)
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelStore:
    """An empty store in this process."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    return KernelStore("segmentlog.kernels")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that compiles the kernel ``held`` without end."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, "held"], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert "holds\n" == process.stdout.readline()
        yield process
        process.kill()


def replace_sleep(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Replace only the sleep of the cache, because a thread of py4j sleeps, too."""
    clock = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr("segmentlog.kernel_cache.time", clock)


def test_a_process_waits_for_the_kernel_of_another(
    store: KernelStore, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process waits for no other kernel. It continues when the other process dies."""
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            holder.kill()
            holder.wait()

    replace_sleep(monkeypatch, look)
    store.take_turn("another")
    assert not looks

    store.take_turn("held")
    assert 3 == len(looks)


class Planted:
    """Code that runs when the file is unpickled."""

    def __init__(self, at: Path) -> None:
        self.at = at

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.at,)


def plant(store: KernelStore) -> tuple[Path, Path]:
    """The directory of a store with a file that creates another file when it is loaded."""
    directory = store.path
    assert directory is not None
    payload = pickle.dumps(Planted(directory / "ran"))
    (directory / "kernel.nbc").write_bytes(hashlib.sha256(payload).digest() + payload)
    return directory, directory / "ran"


def test_a_private_directory_is_trusted(store: KernelStore) -> None:
    """A directory that the store makes belongs to the user alone, whatever the umask is."""
    mask = os.umask(0)
    try:
        directory, ran = plant(store)
    finally:
        os.umask(mask)
    store.load("kernel.nbc")

    assert ran.exists()
    assert {0o700} == {each.stat().st_mode & 0o777 for each in (directory, directory.parent)}
    assert not store.obstacle


def pretend(monkeypatch: pytest.MonkeyPatch, path: Path, **changed: int) -> None:
    """Make the store see another owner, group or mode of one directory."""
    places = {"mode": 0, "uid": 4, "gid": 5}
    lstat = os.lstat

    def changed_stat(of: Path) -> os.stat_result:
        fields = list(lstat(of))
        if Path(of) == path:
            for name, value in changed.items():
                fields[places[name]] = value
        return os.stat_result(fields)

    monkeypatch.setattr("segmentlog.kernel_cache.os.lstat", changed_stat)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"mode": 0o40777}, "may be written to by other users"),
        ({"mode": 0o40702}, "may be written to by other users"),
        ({"mode": 0o40770, "gid": 12345}, "may be written to by other users"),
        ({"uid": 12345}, "belongs to another user"),
    ],
)
def test_code_that_others_may_have_planted_is_not_loaded(
    store: KernelStore,
    level: int,
    changed: dict[str, int],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user who may write to a directory, or to a parent of it, may replace its files."""
    directory, ran = plant(store)
    shared = [directory, *directory.parents][level]
    pretend(monkeypatch, shared, **changed)
    found = KernelStore("segmentlog.kernels")
    found.save("another.nbc", 1)

    assert found.load("kernel.nbc") is None
    assert not ran.exists()
    assert not found.names()
    assert not found.is_warmed()
    assert not (directory / "another.nbc").exists()
    assert f"{shared} {why}" == found.obstacle


def test_a_group_of_the_user_alone_may_write(
    store: KernelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A umask of 002 is usual where each user has a private group."""
    directory, ran = plant(store)
    pretend(monkeypatch, directory.parent, mode=0o40775, uid=os.geteuid(), gid=os.geteuid())
    KernelStore("segmentlog.kernels").load("kernel.nbc")

    assert ran.exists()


def test_a_file_of_another_user_is_not_loaded(
    store: KernelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that is private now may have been open to others before."""
    _, ran = plant(store)
    fstat = os.fstat

    def stat_of_another(descriptor: int) -> os.stat_result:
        fields = list(fstat(descriptor))
        fields[4] = 12345
        return os.stat_result(fields)

    monkeypatch.setattr("segmentlog.kernel_cache.os.fstat", stat_of_another)

    assert store.load("kernel.nbc") is None
    assert not ran.exists()


def test_a_directory_in_which_all_may_create_files_but_not_replace_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of the user in a sticky directory such as /tmp is safe."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr("numba.config.CACHE_DIR", str(shared / "mine"))
    store = KernelStore("segmentlog.kernels")
    _, ran = plant(store)
    store.load("kernel.nbc")

    assert ran.exists()
    assert not store.obstacle


def test_a_shared_directory_is_refused_once_and_the_query_continues(
    package: Path, tmp_path: Path
) -> None:
    """Each process compiles for itself, and one line names the directory and the remedy."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    first, second = (use(shared, package) for _ in range(2))

    assert [COMPILED, COMPILED] == [first.printed, second.printed]
    assert [1, 0] == [len(first.lines), len(second.lines)]
    assert f"{shared} may be written to by other users" in first.lines[0]
    assert "set NUMBA_CACHE_DIR to a directory that only you can write to" in first.lines[0]


def test_a_file_system_without_locks(store: KernelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks, each process compiles."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("segmentlog.kernel_cache.fcntl.lockf", refuse)

    store.take_turn("held")
    store.end_turn("held")


def test_a_file_of_turns_that_another_user_keeps(
    store: KernelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is shared. A process does not wait for a user whose locks it cannot see."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    assert not store.obstacle
    monkeypatch.setattr("segmentlog.kernel_cache._WAIT_SECONDS", 0.1)
    looks: list[float] = []
    replace_sleep(monkeypatch, looks.append)
    monkeypatch.setattr("segmentlog.kernel_cache.os.open", refuse)

    store.take_turn("held")
    store.end_turn("held")

    assert not looks


@pytest.mark.usefixtures("holder")
def test_a_process_that_hangs_is_waited_for_once(
    store: KernelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends. A process may hold many turns, which an interrupted compilation keeps."""
    looks: list[float] = []
    replace_sleep(monkeypatch, looks.append)
    monkeypatch.setattr("segmentlog.kernel_cache._WAIT_SECONDS", 0.01)
    store.take_turn("held")
    assert looks
    looks.clear()

    store.take_turn("held")

    assert not looks


@pytest.mark.slow
def test_processes_compile_at_once_many_times(package: Path, tmp_path: Path) -> None:
    """More processes compile at once, many times."""
    for number in range(20):
        cache = tmp_path / str(number)
        done = [end(each) for each in [start(cache, package) for _ in range(8)]]

        assert {CRC32} == {each.printed[0] for each in done}
        assert 1 == sum(len(each.lines) for each in done)
        assert LOADED == use(cache, package).printed


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["empty", "short", "changed"])
def test_damaged_files_are_compiled_again(package: Path, cache: Path, damage: str) -> None:
    """A power cut may leave a name without its bytes, or with other bytes."""
    use(cache, package)
    for path in cache.rglob("*.nbc"):
        whole = bytearray(path.read_bytes())
        whole[whole.find(b"\x7fELF") + 12] ^= 1  # the object file's padding, which nobody reads
        path.write_bytes({"empty": bytearray(), "short": whole[:-1], "changed": whole}[damage])

    assert COMPILED == use(cache, package).printed
    assert LOADED == use(cache, package).printed


@pytest.mark.slow
def test_kernels_that_cannot_be_kept_are_announced_once(package: Path, tmp_path: Path) -> None:
    """One process announces it, with the remedy."""
    (tmp_path / "file").touch()
    first, second = (use(tmp_path / "file", package) for _ in range(2))

    assert [COMPILED, COMPILED] == [first.printed, second.printed]
    assert [1, 0] == [len(first.lines), len(second.lines)]
    assert f"they cannot be cached: {tmp_path}/file is not a directory" in first.lines[0]
    assert "; set NUMBA_CACHE_DIR to a directory that only you can write to" in first.lines[0]


@pytest.mark.slow
def test_without_a_word_from_the_user_they_are_in_the_cache_directory(
    package: Path, tmp_path: Path
) -> None:
    """The directory is that of XDG, or one in the home directory.

    Without either, each process compiles.
    """
    home = {"NUMBA_CACHE_DIR": "", "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": ""}
    use(tmp_path, package, **home)
    use(tmp_path, package, **home | {"XDG_CACHE_HOME": str(tmp_path / "xdg")})
    usual = "Library/Caches" if sys.platform == "darwin" else ".cache"
    (in_home,) = Path(home["HOME"], usual, "segmentlog").iterdir()
    (in_xdg,) = Path(tmp_path, "xdg", "segmentlog").iterdir()

    assert in_home.name == in_xdg.name
    assert 2 == len(list(in_home.glob("*.nbc"))) == len(list(in_xdg.glob("*.nbc")))


def test_modules_that_pytest_has_rewritten_have_the_same_digest(tmp_path: Path) -> None:
    """An installed plugin has all modules of its distribution loaded by pytest."""
    expected = _digest_of_sources("segmentlog.kernels")
    (tmp_path / "conftest.py").write_text(
        "import pytest\npytest.register_assert_rewrite('segmentlog')\n"
    )
    (tmp_path / "test_digest.py").write_text(
        "def test_digest():\n"
        "    from segmentlog import kernel_cache\n"
        "    from segmentlog.kernels import layout\n"
        "    assert 'rewrite' in type(layout.__spec__.loader).__module__\n"
        f"    assert {expected!r} == kernel_cache._digest_of_sources('segmentlog.kernels')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert expected is not None
    assert done.returncode == 0, done.stdout
