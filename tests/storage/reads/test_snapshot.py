"""A directory stays open while writers without high watermarks, or compaction, change it."""

from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import write

import segmentlog
from segmentlog.errors import LogChangedError
from segmentlog.format.names import CLEANER_OFFSET_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT
from segmentlog.model import IsolationLevel
from segmentlog.reads import snapshot


def values(log: segmentlog.Log) -> list[bytes]:
    """The values of a scan at read_committed."""
    scan = log.scan(columns=["value"], isolation_level=IsolationLevel.READ_COMMITTED)
    return scan.read_all()["value"].to_pylist()


@pytest.fixture
def overwritten(tmp_path: Path) -> Path:
    """One overwritten segment, whose file is still there, and no high watermarks."""
    write(tmp_path, pa.table({"value": [b"old"]}))
    write(tmp_path, pa.table({"value": [b"new"]}), overwrite=True)
    (tmp_path / HIGH_WATERMARK_CHECKPOINT).unlink()
    for path in tmp_path.glob("t-0/*.deleted"):  # as with a broker, until its next retention
        path.rename(path.with_suffix(""))
    return tmp_path


def segments(directory: Path) -> list[Path]:
    """Files of the log, in the order of their offsets."""
    return sorted((directory / "t-0").glob("*.log"))


def test_files_below_the_log_start_go_beside_a_writer(overwritten: Path) -> None:
    """The reader does not need the removed files: it reads the moment of opening."""
    log = segmentlog.open_log_dir(overwritten).log("t", 0)
    write(overwritten, pa.table({"value": [b"later"]}))
    segments(overwritten)[0].unlink()

    assert [b"new"] == values(log)
    assert (1, 2) == (log.log_start_offset, log.log_end_offset)


@pytest.mark.parametrize("n_listings", [1, 3])
def test_a_log_is_listed_again_as_it_was(overwritten: Path, n_listings: int) -> None:
    """Each listing is the same, however much a writer has appended meanwhile."""
    log = segmentlog.open_log_dir(overwritten).log("t", 0)
    for number in range(n_listings):
        write(overwritten, pa.table({"value": [b"%d" % number]}))
        log._newest_listing = None  # as after an error in a file that has changed

        assert [b"new"] == values(log)


def test_records_that_are_gone_are_an_error(overwritten: Path) -> None:
    """No high watermark gives the end of the log.

    So a remaining file does not prove that nothing is missing.
    """
    log = segmentlog.open_log_dir(overwritten).log("t", 0)
    write(overwritten, pa.table({"value": [b"newest"]}), overwrite=True)
    for path in segments(overwritten)[:-1]:
        path.unlink()

    with pytest.raises(LogChangedError, match="no checkpoint contained its end"):
        values(log)


def test_a_segment_that_has_grown_is_read_to_its_earlier_size(overwritten: Path) -> None:
    """Records beyond the earlier size may be undecided."""
    log = segmentlog.open_log_dir(overwritten).log("t", 0)
    size = log.segments[-1].size
    write(overwritten, pa.table({"value": [b"later"]}))
    log._newest_listing = None  # as after an error in a file that has changed

    assert [size] == [segment.size for segment in log.segments]
    assert segments(overwritten)[-1].stat().st_size > size


COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def write_keys(directory: Path, *keys: bytes) -> None:
    """Records in one segment, and an active segment after it."""
    with segmentlog.open_writer(directory, "t") as writer:
        writer.append(pa.table({"key": keys, "value": keys}))
        writer.roll()
        writer.append(pa.table({"key": [b"z"], "value": [b"z"]}))


@pytest.mark.parametrize("is_written", [True, False])
def test_a_pass_with_later_records_is_noticed(tmp_path: Path, is_written: bool) -> None:
    """The pass is noticed even before it writes the cleaner's checkpoint."""
    write_keys(tmp_path, b"a", b"b")
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    write_keys(tmp_path, b"a")
    segmentlog.compact(tmp_path, settings=COMPACT)
    if not is_written:
        (tmp_path / CLEANER_OFFSET_CHECKPOINT).unlink()

    with pytest.raises(LogChangedError, match="compacted together with records"):
        values(log)


def test_other_passes_are_of_no_concern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass before the opening changes nothing for the reader.

    Nor does a pass without later records.
    """
    write_keys(tmp_path, b"a", b"b", b"a")
    segmentlog.compact(tmp_path, settings=COMPACT)
    put_aside = (tmp_path / "t-0").glob("*.log.deleted")
    assert len([*put_aside]) == 1
    monkeypatch.setattr(
        snapshot, "_CLOCKS_NS", 0
    )  # what was put aside just before counts as later
    log, other = (segmentlog.open_log_dir(tmp_path).log("t", 0) for _ in range(2))
    write_keys(tmp_path, b"c")
    assert [b"b", b"a", b"z"] == values(log)

    segmentlog.compact(tmp_path, settings={**COMPACT, "min.compaction.lag.ms": "100000000"})
    assert [b"b", b"a", b"z"] == values(other)
