"""A pipe, a directory, a link or a huge file has the name of a file that the engine opens.

Each of them gives a typed error or is ignored. No read waits for a pipe without a writer, and no
file is read whole without a bound.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import write

import segmentlog
from segmentlog.errors import CorruptCheckpointError, SegmentLogError
from segmentlog.format.names import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
)
from segmentlog.model import IsolationLevel
from segmentlog.store import readable
from segmentlog.txn.guard import INTENT_FILE
from segmentlog.txn.state import STATE_FILE

_GUARD = "segmentlog.unfinished.feed"


@pytest.fixture(autouse=True)
def _hangs_for_no_longer() -> Iterator[None]:
    """A reader that waits in ``open()`` or loops fails after a minute."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(tmp_path, THREE)
    return tmp_path


THREE = pa.table({"value": [b"v"] * 3})


def _values(directory: Path) -> list[bytes]:
    log = segmentlog.open_log_dir(directory).log("t", 0)
    found = log.scan(columns=["value"]).read_all()["value"].to_pylist()
    assert log.last_stable_offset() == len(found)
    assert (
        len(found) == log.scan(isolation_level=IsolationLevel.READ_COMMITTED).read_all().num_rows
    )
    return found


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _sparse(path: Path) -> None:
    """Make a file larger than the machine's memory, which takes hardly any space on the disk."""
    path.touch()
    os.truncate(path, 1 << 40)


_STRANGE = pytest.mark.parametrize("strange", [_pipe, _directory, _sparse])


@_STRANGE
@pytest.mark.parametrize("name", [HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT])
def test_a_checkpoint_that_is_no_file_of_its_size(
    directory: Path, strange: Callable[[Path], None], name: str
) -> None:
    strange(directory / name)
    with pytest.raises(CorruptCheckpointError, match=name):
        _values(directory)
    with pytest.raises(CorruptCheckpointError, match=name):
        write(directory, THREE)


@_STRANGE
def test_a_state_that_is_no_file_of_its_size(
    directory: Path, strange: Callable[[Path], None]
) -> None:
    strange(directory / STATE_FILE)
    assert len(_values(directory)) == 3  # without a guard, a reader needs nothing from the state
    with pytest.raises(CorruptCheckpointError, match=STATE_FILE):
        write(directory, THREE)


@_STRANGE
def test_an_intent_that_is_no_file_of_its_size(
    directory: Path, strange: Callable[[Path], None]
) -> None:
    (directory / _GUARD).mkdir()
    strange(directory / _GUARD / INTENT_FILE)
    with pytest.raises(CorruptCheckpointError, match=INTENT_FILE):
        _values(directory)
    with pytest.raises(CorruptCheckpointError, match=INTENT_FILE):
        write(directory, THREE)


@_STRANGE
@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex", "snapshot"])
def test_small_files_beside_a_log(
    directory: Path, strange: Callable[[Path], None], suffix: str
) -> None:
    strange(directory / "t-0" / f"{0:020d}.{suffix}")
    strange(directory / "t-0" / f"{2:020d}.{suffix}")
    assert len(_values(directory)) == 3
    log = segmentlog.open_log_dir(directory).log("t", 0)
    assert log.offset_for_timestamp(0) is not None


@_STRANGE
@pytest.mark.parametrize("name", [META_PROPERTIES_FILE, f"t-0/{PARTITION_METADATA_FILE}"])
def test_ids(directory: Path, strange: Callable[[Path], None], name: str) -> None:
    strange(directory / name)
    opened = segmentlog.open_log_dir(directory)
    with pytest.raises(CorruptCheckpointError, match=Path(name).name):
        print(opened.cluster_id, opened.log("t", 0).topic_id)


def test_a_pipe_that_is_called_like_a_segment(directory: Path) -> None:
    os.mkfifo(directory / "t-0" / f"{3:020d}.log")
    assert len(_values(directory)) == 3


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_a_guard_is_a_directory_and_nothing_else(directory: Path, kind: str) -> None:
    guard = directory / _GUARD
    if kind == "file":
        guard.write_bytes(b"rubbish")
    else:
        guard.symlink_to(directory / ("t-0" if kind == "link" else "nowhere"))
    assert len(_values(directory)) == 3
    write(directory, THREE)
    assert len(_values(directory)) == 6
    assert guard.is_symlink() or guard.read_bytes() == b"rubbish"


_SIZES = [0, 0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "../../elsewhere/t"},
        {"topic": 5},
        {"partition": "0"},
        {"partition": True},
        {"sizes": [0, "0", 0, 0]},
        {"sizes": [0, 0, 0]},
        {"end_offset": None},
        {"visible_end": 1.5},
        {"new_end": "7"},
        {"new_start": []},
        {"else": 1},
    ],
)
def test_an_intent_of_rubbish(directory: Path, wrong: dict[str, object]) -> None:
    partition = {
        "topic": "t",
        "partition": 0,
        "sizes": _SIZES,
        "end_offset": 3,
        "visible_end": 3,
        "new_end": 4,
        "new_start": -1,
    }
    token = json.loads((directory / STATE_FILE).read_text())["token"]
    intent = {"format": 1, "token": "feed", "after": token, "was_clean": True, "is_flushed": True}
    (directory / _GUARD).mkdir()
    partitions = [partition | wrong]
    (directory / _GUARD / INTENT_FILE).write_text(json.dumps(intent | {"partitions": partitions}))
    before = (directory / "t-0" / f"{0:020d}.log").read_bytes()
    with pytest.raises(CorruptCheckpointError, match="intent"):
        _values(directory)
    with pytest.raises(CorruptCheckpointError, match="intent"):
        write(directory, THREE)
    assert before == (directory / "t-0" / f"{0:020d}.log").read_bytes()


@pytest.mark.parametrize(
    "wrong", [{"token": 5}, {"after": None}, {"was_clean": "yes"}, {"is_flushed": 1}]
)
def test_an_intent_with_fields_of_other_types(directory: Path, wrong: dict[str, object]) -> None:
    intent = {"format": 1, "token": "feed", "after": "", "was_clean": True, "is_flushed": True}
    (directory / _GUARD).mkdir()
    (directory / _GUARD / INTENT_FILE).write_text(json.dumps(intent | {"partitions": []} | wrong))
    with pytest.raises(CorruptCheckpointError, match="intent"):
        _values(directory)
    with pytest.raises(CorruptCheckpointError, match="intent"):
        write(directory, THREE)


def test_a_log_in_the_form_of_links(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The directory may be a symbolic link. Hard links, as backups make them, are plain files."""
    elsewhere = tmp_path_factory.mktemp("links")
    (elsewhere / "logs").symlink_to(directory)
    log = directory / "t-0" / f"{0:020d}.log"
    os.link(log, elsewhere / "backup.log")
    os.link(directory / STATE_FILE, elsewhere / "backup.state")
    write(elsewhere / "logs", THREE)
    assert len(_values(elsewhere / "logs")) == len(_values(directory)) == 6


def test_a_directory_that_is_removed_while_it_is_held(directory: Path) -> None:
    held = segmentlog.open_log_dir(directory)
    gone = directory.rename(f"{directory}.gone")
    with pytest.raises(SegmentLogError):
        held.log("t", 0).scan().read_all()
    gone.rename(directory)


def test_the_bound_of_small_files_is_far_away() -> None:
    assert readable.LARGEST_BYTES >= 256 << 20
