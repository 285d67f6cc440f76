"""A log with a tier of Aiven's plugin, in all forms of the plugin, equals the whole log."""

from pathlib import Path
from typing import Any

import pytest
from aiven_plugin import AivenPlugin, KeyPair
from tiers import TOPIC_ID, remove_local, written

import segmentlog
from segmentlog.errors import RemoteSegmentError
from segmentlog.store.readable import LocalFile

FORMS = ["plain", "zstd", "encrypted", "both"]


@pytest.fixture(params=FORMS)
def tiered(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any], Any]:
    """The log directory, the options of its tier, and all rows."""
    form, local = request.param, tmp_path / "local"
    partition = written(local)
    rows = segmentlog.open_log_dir(local).log("t", 0).scan().read_all()
    keys = KeyPair(tmp_path) if form in ("encrypted", "both") else None
    plugin = AivenPlugin(
        tmp_path / "tier", chunk_bytes=500, compresses=form in ("zstd", "both"), keys=keys
    )
    plugin.copy_partition(partition, TOPIC_ID)
    remove_local(partition, *range(0, 700, 100))
    options: dict[str, Any] = {
        "remote_storage": tmp_path / "tier",
        "remote_storage_layout": "aiven",
    }
    if keys:
        options["remote_storage_key_file"] = keys.file
    return local, options, rows


def test_a_log_begins_in_its_tier(tiered: tuple[Path, dict[str, Any], Any]) -> None:
    """Scans, ranges, slices and look-ups, with the log directory and without."""
    local, options, rows = tiered
    log = segmentlog.open_log_dir(local, **options).log("t", 0)
    alone = segmentlog.open_log_dir(**options).log("t", 0)
    time = rows["timestamp"][550].as_py()

    assert (0, 1000) == (log.log_start_offset, log.end_offset())
    assert rows == log.scan().read_all()
    assert rows.slice(550, 100) == log.scan(550, 650).read_all()
    assert log.offset_for_timestamp(time) == alone.offset_for_timestamp(time)
    assert (0, 900) == (alone.log_start_offset, alone.end_offset())
    assert rows.slice(0, 900) == alone.scan().read_all()
    assert 1000 == segmentlog.dataset(local, **options).count_rows()


def test_a_range_reads_few_bytes(
    tiered: tuple[Path, dict[str, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten records of one segment need less than that segment."""
    local, options, rows = tiered
    log = segmentlog.open_log_dir(local, **options).log("t", 0)
    assert 1000 == log.end_offset()
    n_read = 0
    usual = LocalFile.read, LocalFile.read_into

    def read(self: LocalFile, position: int, n_bytes: int) -> bytes:
        nonlocal n_read
        found = usual[0](self, position, n_bytes)
        n_read += len(found) * self.path.endswith(".log")
        return found

    def read_into(self: LocalFile, buffer: memoryview, position: int) -> int:
        nonlocal n_read
        found = usual[1](self, buffer, position)
        n_read += found * self.path.endswith(".log")
        return found

    monkeypatch.setattr(LocalFile, "read", read)
    monkeypatch.setattr(LocalFile, "read_into", read_into)
    monkeypatch.setattr(LocalFile, "descriptor", None)

    assert rows.slice(350, 10) == log.scan(350, 360).read_all()
    size = log.segments[3].size
    assert 0 < n_read <= 2 * size, "objects of other segments are not read"


def test_an_object_that_is_missing_is_named(tiered: tuple[Path, dict[str, Any], Any]) -> None:
    """Other segments can be read."""
    local, options, rows = tiered
    log = segmentlog.open_log_dir(local, **options).log("t", 0)
    (path,) = options["remote_storage"].rglob(f"{300:020d}-*.log")
    path.unlink()

    with pytest.raises(RemoteSegmentError, match=path.name):
        log.scan().read_all()
    assert rows.slice(400, 100) == log.scan(400, 500).read_all()


def test_keys_are_needed(tiered: tuple[Path, dict[str, Any], Any]) -> None:
    """The error names the key pair, and does not show the key."""
    local, options, _ = tiered
    without = {name: each for name, each in options.items() if "key" not in name}
    if len(without) == len(options):
        pytest.skip("the tier is not encrypted")

    with pytest.raises(RemoteSegmentError, match="key-1") as caught:
        segmentlog.open_log_dir(local, **without).log("t", 0).scan().read_all()
    assert "PRIVATE" not in str(caught.value)
