"""An account of log directories has every byte, each under one kind."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import segmentlog
from segmentlog import UsageKind, UsedSpace
from segmentlog.reads.usage import large_leftovers, usage
from segmentlog.store import readable

SUFFIX = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def copy(example_data: str, tmp_path: Path) -> Path:
    """A copy of a broker's directory, to put more files into."""
    return Path(shutil.copytree(example_data, tmp_path / "logs 100% ü"))


def only(found: list[UsedSpace], kind: UsageKind) -> UsedSpace:
    """The one place of a kind."""
    (place,) = [each for each in found if each.kind is kind]
    return place


@pytest.mark.skipif(shutil.which("du") is None, reason="no du")
def test_every_allocated_byte_is_counted_as_du_counts_it(copy: Path) -> None:
    """The sum of all places is the number that ``du`` prints, whatever lies in the directory."""
    (copy / "lost+found" / "deep").mkdir(parents=True)
    (copy / "lost+found" / "deep" / "file").write_bytes(b"x" * 10_000)
    (copy / f"orders-0.{SUFFIX}-delete").mkdir()
    (copy / f"orders-0.{SUFFIX}-delete" / "0.log").write_bytes(b"x" * 5_000)
    (copy / "orders-0" / "a directory").mkdir()
    (copy / "a link").symlink_to("/etc")
    os.mkfifo(copy / "orders-0" / "a pipe")
    os.truncate(next((copy / "orders-1").glob("*.log")), 50 << 20)
    printed = subprocess.run(
        ["du", "-s", "-B1", copy], capture_output=True, text=True, check=True
    ).stdout

    assert int(printed.split()[0]) == sum(each.n_allocated for each in segmentlog.usage(copy))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"t-0.{SUFFIX}-delete/00000000000000000000.log", UsageKind.DELETE),
        (f"t-0.{SUFFIX}-stray/00000000000000000000.index", UsageKind.STRAY),
        (f"t-0.{SUFFIX}-future/00000000000000000000.log.deleted", UsageKind.FUTURE),
        ("orders-0/00000000000000000000.log.deleted", UsageKind.DELETED),
        ("orders-0/00000000000000000000.log.4711.deleted", UsageKind.DELETED),
        ("orders-0/00000000000000000007.timeindex.cleaned", UsageKind.CLEANED),
        ("orders-0/partition.metadata.cleaned", UsageKind.CLEANED),
        ("orders-0/00000000000000000007.log.swap", UsageKind.SWAP),
        ("orders-0/segmentlog.00000000000000000000.log.70.broken", UsageKind.BROKEN),
        ("segmentlog.abc.0.1f.0.stage", UsageKind.STAGED),
        ("segmentlog.unfinished.abc/intent", UsageKind.STAGED),
        ("server.log", UsageKind.UNKNOWN),
        ("00000000000000000000.log", UsageKind.UNKNOWN),
        ("orders-0/core", UsageKind.UNKNOWN),
    ],
)
def test_a_name_decides_the_kind(copy: Path, name: str, kind: UsageKind) -> None:
    """Each file that is part of no log is counted once, with what removes it."""
    before = {each.kind: each for each in usage(copy)}
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_bytes(b"x" * 12_345)
    found = usage(copy)

    assert kind not in before
    assert (1, 12_345) == only(found, kind)[4:6]
    assert kind.removal == only(found, kind).removal
    assert only(found, kind).n_allocated >= 12_345


def test_logs_of_brokers_own_topics_are_apart(copy: Path) -> None:
    """The kinds of a directory that is in order, and their lengths."""
    sums: dict[UsageKind, int] = {}
    for each in usage(copy):
        sums[each.kind] = sums.get(each.kind, 0) + each.n_bytes
    logs = {path: path.stat().st_size for path in copy.glob("*/*.log")}

    assert sums.keys() == {
        UsageKind.LOGS,
        UsageKind.INTERNAL,
        UsageKind.INDEXES,
        UsageKind.CHECKPOINTS,
    }
    assert sums[UsageKind.INTERNAL] == sum(
        size for path, size in logs.items() if path.parent.name.startswith("__")
    )
    assert sums[UsageKind.LOGS] + sums[UsageKind.INTERNAL] == sum(logs.values())


def test_zeros_at_the_end_of_the_active_segment_are_preallocated(copy: Path) -> None:
    """The log and its indexes keep their own bytes, and the rest takes no space on the disk."""
    of_logs = only(usage(copy / "orders-0"), UsageKind.LOGS)
    sizes = {"log": 1 << 30, "index": 10 << 20, "timeindex": 10_485_756}
    before = {kind: next((copy / "orders-0").glob(f"*.{kind}")).stat().st_size for kind in sizes}
    for kind, size in sizes.items():
        os.truncate(next((copy / "orders-0").glob(f"*.{kind}")), size)
    found = usage(copy / "orders-0")

    assert of_logs.n_bytes == only(found, UsageKind.LOGS).n_bytes
    assert sum(sizes.values()) - sum(before.values()) == only(found, UsageKind.PREALLOCATED)[5]
    assert 0 == only(found, UsageKind.PREALLOCATED).n_allocated


def test_damage_at_the_end_is_not_preallocated(copy: Path) -> None:
    """Bytes that are not zero, before zeros, belong to the log."""
    (log,) = (copy / "orders-0").glob("*.log")
    log.write_bytes(log.read_bytes() + b"garbage" + bytes(100_000))

    assert UsageKind.PREALLOCATED not in {each.kind for each in usage(copy)}


def test_a_place_that_cannot_be_listed_is_a_problem_of_its_own(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other places are counted."""
    (copy / "lost+found").mkdir()
    real = readable.disk_of("/").entries

    def refused(self: object, path: str) -> object:
        if path.endswith(("lost+found", "orders-1")):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(type(readable.disk_of("/")), "entries", refused)
    found = usage(copy)
    problems = {Path(each.path).name for each in found if each.problem}

    assert {"lost+found", "orders-1"} == problems
    assert {"orders-0", "orders-2"} <= {Path(each.path).name for each in found}


def test_a_directory_of_deleted_partitions_alone_is_counted(tmp_path: Path) -> None:
    """Nothing else shows that it was a log directory; any other directory is refused."""
    with pytest.raises(segmentlog.LogDirectoryError):
        usage(tmp_path)
    (tmp_path / f"t-0.{SUFFIX}-delete").mkdir()

    assert {} == segmentlog.open_log_dir(tmp_path).topics()
    assert {UsageKind.CHECKPOINTS, UsageKind.DELETE} == {each.kind for each in usage(tmp_path)}


def test_leftovers_are_large_by_their_share_of_the_directory(copy: Path) -> None:
    """A few kilobytes are not worth a message, and a large part of a small directory is."""
    aside = copy / "orders-0" / "00000000000000000000.log.deleted"
    aside.write_bytes(b"x" * 4_000)

    assert [] == large_leftovers([str(copy)])
    aside.write_bytes(b"x" * 100_000)
    (left,) = large_leftovers([str(copy)])
    assert (UsageKind.DELETED, "orders", 0) == (left.kind, left.topic, left.partition)
