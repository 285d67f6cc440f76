"""The file of settings in our directories is kept, altered, and refused when it is malformed."""

import json
from pathlib import Path

import pytest
from broker_lock import as_broker
from crashing import Crash, crash_at

import segmentlog
from segmentlog.errors import CorruptCheckpointError, LogLockedError, OptionError
from segmentlog.txn.settings_file import SettingsFile

FILE = "segmentlog.settings"


def test_a_missing_file_has_no_settings(tmp_path: Path) -> None:
    """All settings are Kafka's defaults then."""
    assert SettingsFile() == SettingsFile.read(str(tmp_path))


def test_written_settings_are_read(tmp_path: Path) -> None:
    """The file keeps defaults and settings of topics.

    The last value counts, and settings can be removed.
    """
    segmentlog.alter_settings(tmp_path, None, {"segment.bytes": "5000", "retention.ms": "1"})
    segmentlog.alter_settings(tmp_path, "t", {"retention.ms": "2 "})
    segmentlog.alter_settings(tmp_path, "u", {"retention.ms": "3"})
    segmentlog.alter_settings(tmp_path, "t", {"retention.ms": "4"}, remove=["segment.ms"])
    segmentlog.alter_settings(tmp_path, "u", remove=["retention.ms"])
    segmentlog.alter_settings(tmp_path, remove=["retention.ms"])

    assert {
        "format": 1,
        "defaults": {"segment.bytes": "5000"},
        "topics": {"t": {"retention.ms": "4"}},
    } == json.loads((tmp_path / FILE).read_text())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"format": 2, "defaults": {}, "topics": {}}',
        '{"format": 1, "defaults": {}}',
        '{"format": 1, "defaults": [], "topics": {}}',
        '{"format": 1, "defaults": {"retention.ms": 5}, "topics": {}}',
        '{"format": 1, "defaults": {"retention.mss": "5"}, "topics": {}}',
        '{"format": 1, "defaults": {"retention.ms": "x"}, "topics": {}}',
        '{"format": 1, "defaults": {}, "topics": {"t": []}}',
    ],
)
def test_a_malformed_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    """A writer refuses the file, because it would use wrong settings otherwise."""
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CorruptCheckpointError, match=FILE):
        SettingsFile.read(str(tmp_path))
    with pytest.raises(CorruptCheckpointError, match=FILE):
        segmentlog.open_writer(tmp_path, "t")


def test_refusals_change_nothing(tmp_path: Path) -> None:
    """Unknown names, wrong values, a directory in use and a broker's directory are refused."""
    segmentlog.alter_settings(tmp_path, "t", {"retention.ms": "1"})
    before = (tmp_path / FILE).read_bytes()
    for settings in ({"retention.mss": "1"}, {"cleanup.policy": "deleted"}, {"segment.bytes": ""}):
        with pytest.raises(OptionError):
            segmentlog.alter_settings(tmp_path, "t", settings)
    with pytest.raises(OptionError, match="settings are"):
        segmentlog.alter_settings(tmp_path, "t", remove=["retention"])
    with pytest.raises(OptionError, match="topic is reserved for brokers"):
        segmentlog.alter_settings(tmp_path, "__consumer_offsets", {"retention.ms": "1"})
    with as_broker(tmp_path), pytest.raises(LogLockedError):
        segmentlog.alter_settings(tmp_path, "t", {"retention.ms": "2"})
    (tmp_path / "meta.properties").touch()
    with pytest.raises(OptionError, match=r"kafka-configs\.sh"):
        segmentlog.alter_settings(tmp_path, "t", {"retention.ms": "2"})

    assert before == (tmp_path / FILE).read_bytes()


def test_a_cut_leaves_the_old_settings_or_the_new(tmp_path: Path) -> None:
    """The process ends before each call in turn."""
    seen = set()
    for number in range(20):
        directory = tmp_path / str(number)
        directory.mkdir()
        segmentlog.alter_settings(directory, "t", {"retention.ms": "1"})
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                segmentlog.alter_settings(directory, "t", {"retention.ms": "2"})
            except Crash:
                is_cut = True
            else:
                is_cut = False
        seen.add(SettingsFile.read(str(directory)).topics["t"]["retention.ms"])
        segmentlog.alter_settings(directory, "t", {"retention.ms": "3"})
        assert "3" == SettingsFile.read(str(directory)).topics["t"]["retention.ms"]
        if not is_cut:
            break

    assert {"1", "2"} == seen


def test_the_settings_of_a_deleted_topic_are_removed(tmp_path: Path) -> None:
    """A topic that is created again under the name has the default settings."""
    import pyarrow as pa
    from plain_writes import write

    write(tmp_path, pa.table({"value": [b"a"]}), topic="t", num_partitions=1)
    for topic in ("t", "u"):
        segmentlog.alter_settings(tmp_path, topic, {"retention.ms": "1"})
    segmentlog.delete_topic(tmp_path, "t")

    assert {"u"} == SettingsFile.read(str(tmp_path)).topics.keys()
