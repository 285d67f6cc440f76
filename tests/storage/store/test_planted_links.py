"""Links that the owner of a directory puts at every name that root writes."""

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from crashing import CALLS, Forward, around_calls
from namespaces import common_directory
from plain_writes import write

import segmentlog
from segmentlog import Producer, SegmentLogError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.writes.config import ProducerConfig

pytestmark = [
    pytest.mark.linux,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root writes to the directories of others"),
]

OWNER = 4711
SECRET = b"version: 0\ntopic_id: root's own secret\n0\n" + bytes(40)
ROWS = pa.table({"key": [b"a", b"b", b"a"], "value": [b"1", b"2", bytes(400)]})
ROLLS = {"segment.bytes": "1024", "retention.ms": "1", "file.delete.delay.ms": "0"}
CONFIG = ProducerConfig(topic_config=TopicConfig(segment_bytes=1024, file_delete_delay_ms=0))

#: Links to what is outside.
KINDS = [("secret", "symbolic"), ("secret", "hard"), ("files", "symbolic")]

#: Calls that change a directory, or open one of its files.
WRITES = (*CALLS, "open", "utime", "truncate", "chmod", "chown")


def begin(directory: Path) -> None:
    """A log directory with several segments, a producer, settings, and a topic that can go."""
    for _ in range(3):
        write(directory, ROWS, config=CONFIG, num_partitions=2)
    write(directory, ROWS, topic="other", producer=Producer(5, 0, 0))
    segmentlog.alter_settings(directory, "other", {"retention.ms": "9"})


def tear(directory: Path) -> None:
    """Leave the directory as a crash does: no mark of a clean stop, and a torn batch at an end."""
    (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
    with max(directory.glob("t-0/*.log")).open("ab") as log:
        log.write(b"torn")


def overwrite(directory: Path) -> None:
    """Replace the records of a topic that has an idempotent producer, in a numbered write."""
    write(directory, ROWS, topic="other", overwrite=True, txn_app_id="a", txn_version=1)


#: Each way to change a directory.
CHANGES: dict[str, Callable[[Path], object]] = {
    "write": lambda directory: write(directory, ROWS, config=CONFIG),
    "new topic": lambda directory: write(directory, ROWS, topic="new", num_partitions=2),
    "overwrite": overwrite,
    "settings": lambda directory: segmentlog.alter_settings(directory, "t", {"retention.ms": "1"}),
    "retain": lambda directory: segmentlog.retain(directory, settings=ROLLS),
    "delete records": lambda directory: segmentlog.delete_records(directory, "t", 0, offset=-1),
    "delete topic": lambda directory: segmentlog.delete_topic(directory, "other"),
    "compact": lambda directory: segmentlog.compact(
        directory,
        settings={**ROLLS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    ),
    "erase": lambda directory: segmentlog.erase(directory, b"b", "other", purge=True),
    "recover": segmentlog.recover,
    "reindex": segmentlog.reindex,
    "mirror": lambda directory: segmentlog.mirror(directory.parent / "newer", to=directory),
}


class Place:
    """A log directory of another user, and what that user may not touch beside it."""

    def __init__(self, top: Path) -> None:
        self.top, self.directory = top, top / "logs"
        self.secret, self.files = top / "secret", top / "files"
        self._pristine = top / "pristine"
        begin(self._pristine)
        shutil.copytree(self._pristine, top / "newer")
        write(top / "newer", ROWS, config=CONFIG)

    def renew(self) -> None:
        """Lay out the directory as it was in the beginning, and the files outside."""
        for each in (self.directory, self.files):
            shutil.rmtree(each, ignore_errors=True)
        shutil.copytree(self._pristine, self.directory)
        for each in (self.directory, *self.directory.rglob("*")):
            os.chown(each, OWNER, OWNER)
        self.secret.unlink(missing_ok=True)
        self.secret.write_bytes(SECRET)
        self.secret.chmod(0o600)
        self.files.mkdir()
        (self.files / "passwd").write_bytes(SECRET)

    def outside(self) -> list[object]:
        """Everything about the files that lie outside."""
        return [
            (
                path,
                found.st_uid,
                found.st_mode,
                found.st_size,
                found.st_mtime_ns,
                path.is_file() and path.read_bytes(),
            )
            for path in (self.secret, self.files, *sorted(self.files.rglob("*")))
            for found in [path.lstat()]
        ]

    def inside(self, path: object) -> bool:
        """Whether a path lies below the log directory."""
        return isinstance(path, str | os.PathLike) and Path(path).is_relative_to(self.directory)

    def shown(self) -> list[Path]:
        """The files of the log directory, made by root for its owner, that have the secret."""
        files = [path for path in self.directory.rglob("*") if path.is_file()]
        return [
            path
            for path in files
            if not path.is_symlink()
            and not path.samefile(self.secret)
            and b"root's own secret" in path.read_bytes()
        ]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A place for all tests: its first layout takes several jobs."""
    with common_directory() as top:
        yield Place(top)


def lay_out(place: Place, name: str) -> None:
    """Lay out the directory for a change."""
    place.renew()
    if name == "recover":
        tear(place.directory)


def paths_of(name: str, forward: Forward) -> list[Path]:
    """The paths at which a call changes a directory, or opens a file to write."""
    if name == "open" and not forward.args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return []
    paths = forward.args[:2] if name in {"rename", "replace"} else forward.args[:1]
    return [Path(each) for each in paths if isinstance(each, str | os.PathLike)]


def changed(place: Place, name: str) -> list[str]:
    """Names that one change writes, relative to the directory, as they come."""
    found: list[str] = []

    def around(call: str, forward: Forward) -> object:
        inside = [path for path in paths_of(call, forward) if place.inside(path)]
        found.extend(str(path.relative_to(place.directory)) for path in inside)
        return forward()

    lay_out(place, name)
    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, WRITES, around)
        CHANGES[name](place.directory)
    return found


def plant(path: Path, target: Path, how: str) -> None:
    """Put a link of the owner at a path, whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if how == "symbolic":
        path.symlink_to(target)
        os.lchown(path, OWNER, OWNER)
    else:
        path.hardlink_to(target)


def assert_refused_or_done(place: Place, name: str, what: str) -> None:
    """The change ends, or is refused with an error for users; nothing outside was touched."""
    before = place.outside()
    with contextlib.suppress(SegmentLogError):
        CHANGES[name](place.directory)
    assert before == place.outside(), what
    assert [] == place.shown(), what


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("takes_all", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_link_at_each_name_that_a_change_writes(
    place: Place, name: str, *, takes_all: bool
) -> None:
    """Root neither changes nor gives away the target, and shows none of its bytes."""
    names = dict.fromkeys(changed(place, name))
    assert len(names) >= 3
    for number, each in enumerate(names):
        for target, how in KINDS if takes_all else [KINDS[number % len(KINDS)]]:
            lay_out(place, name)
            path = place.directory / each
            if path.parent.is_dir():
                plant(path, place.top / target, how)
                assert_refused_or_done(place, name, f"{how} link at {each} to {target}")


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_parent", [False, True])
def test_a_link_right_before_each_call(
    place: Place, name: str, every: int, *, is_parent: bool
) -> None:
    """The owner is quicker than root: a link takes the place of a file, or of its directory."""
    for number in itertools.count(0, every):
        lay_out(place, name)
        left = number

        def around(call: str, forward: Forward) -> object:
            nonlocal left
            paths = [path for path in paths_of(call, forward) if place.inside(path)]
            if paths and left >= 0:
                left -= 1
                if left < 0:
                    at = paths[-1].parent if is_parent else paths[-1]
                    if at not in {place.directory, place.directory.parent} and at.parent.is_dir():
                        plant(at, place.files if is_parent else place.secret, "symbolic")
            return forward()

        with pytest.MonkeyPatch.context() as patch:
            around_calls(patch, WRITES, around)
            assert_refused_or_done(place, name, f"link before call {number}")
        if left >= 0:
            break
    assert number > 0
