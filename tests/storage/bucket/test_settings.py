"""Settings of topics of a log in an object store: commits that upkeep and writers follow."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from faulty_store import FaultyClient, MemoryStore, client_at

import segmentlog
from segmentlog.bucket.checkpoints import decode_checkpoint, encode_checkpoint
from segmentlog.bucket.objects import MARKER
from segmentlog.bucket.sequence import commit_key, number_of, sequence_at
from segmentlog.errors import LogDirectoryError, OptionError


def _write(root: str, topic: str, n_times: int = 1) -> None:
    for _ in range(n_times):
        with segmentlog.open_writer(root, topic) as writer:
            writer.append(pa.table({"value": ["a" * 1000]}))


@pytest.mark.parametrize("n_writes", [1, 32], ids=["commits", "checkpoint"])
def test_they_are_those_of_the_newest_commit_in_all_processes(n_writes: int) -> None:
    store = MemoryStore()
    mine, others = (client_at(FaultyClient(store)).root for _ in range(2))
    segmentlog.alter_settings(mine, None, {"retention.ms": "5"})
    assert segmentlog.topic_settings(others)["retention.ms"].value == "5"
    segmentlog.alter_settings(mine, "orders", {"retention.bytes": "-1", "retention.ms": " 7"})
    segmentlog.alter_settings(others, "orders", remove=["retention.bytes"])
    n_commits = len([key for key in store.held if number_of(key)])
    segmentlog.alter_settings(others, "orders", {"retention.ms": "7"})  # nothing is new
    assert len([key for key in store.held if number_of(key)]) == n_commits
    _write(others, "orders", n_writes)
    for root in (mine, others, client_at(FaultyClient(store)).root):
        found = segmentlog.topic_settings(root, "orders")
        assert found["retention.ms"] == ("7", "segmentlog.settings")
        assert found["retention.bytes"].source == "Kafka's default"
        assert segmentlog.topic_settings(root, "other")["retention.ms"].value == "5"
    assert segmentlog.verify(mine) == []
    segmentlog.delete_topic(mine, "orders")
    assert segmentlog.topic_settings(others, "orders")["retention.ms"].value == "5"


def test_retention_and_writers_follow_them() -> None:
    root = client_at(FaultyClient(MemoryStore())).root
    segmentlog.alter_settings(root, "orders", {"compression.type": "gzip"})
    _write(root, "orders", 3)
    _write(root, "kept")
    log = segmentlog.open_log_dir(root).log("orders", 0)
    assert log.segments[0].size < 200 < 1000  # of bytes that would be there without a codec
    with pytest.raises(OptionError, match=r"retention.ms"):
        segmentlog.alter_settings(root, "orders", {"retention.ms": "soon"})
    segmentlog.alter_settings(root, "orders", {"retention.bytes": str(log.segments[0].size)})
    assert {(each.topic, each.base_offset) for each in segmentlog.retain(root)} == {
        ("orders", 0),
        ("orders", 1),
    }


def test_a_clone_brings_its_settings(tmp_path: Path) -> None:
    """With its records, in one commit, and back into a directory."""
    store = MemoryStore()
    root = client_at(FaultyClient(store)).root
    _write(str(tmp_path / "from"), "orders")
    segmentlog.alter_settings(
        tmp_path / "from", "orders", {"cleanup.policy": "compact", "retention.ms": "7"}
    )
    segmentlog.clone(tmp_path / "from", "orders", "copy", to=root, settings={"retention.ms": "5"})
    assert len([key for key in store.held if number_of(key)]) == 1
    segmentlog.clone(root, "copy", "back", to=tmp_path / "back")
    for place, topic in ((root, "copy"), (tmp_path / "back", "back")):
        found = segmentlog.topic_settings(place, topic)
        assert [found[name].value for name in ("cleanup.policy", "retention.ms")] == [
            "compact",
            "5",
        ]


def test_layout_1_has_none() -> None:
    """Its commits cannot say that readers have to know them: a checkpoint would lose them."""
    store = MemoryStore()
    location = client_at(FaultyClient(store))
    _write(location.root, "orders")
    commit = json.loads(store.held[commit_key(1)]) | {"format": 1}
    for name in ("log", "previous", "features"):
        commit.pop(name, None)
    store.held[commit_key(1)] = json.dumps(commit).encode()
    store.held[MARKER] = b'{"format":1,"layout":"segmentlog bucket"}'
    root = client_at(FaultyClient(store)).root
    with pytest.raises(LogDirectoryError, match="segmentlog upgrade"):
        segmentlog.alter_settings(root, "orders", {"retention.ms": "5"})
    segmentlog.upgrade(root)
    segmentlog.alter_settings(root, "orders", {"retention.ms": "5"})
    assert segmentlog.topic_settings(root, "orders")["retention.ms"].value == "5"


def test_a_reader_that_does_not_know_them_refuses_the_log() -> None:
    store = MemoryStore()
    location = client_at(FaultyClient(store))
    segmentlog.alter_settings(location.root, "orders", {"retention.ms": "5"})
    assert json.loads(store.held[commit_key(1)])["features"] == ["settings"]
    _write(location.root, "orders", 31)
    state = sequence_at(location).known
    assert state.features == ("settings",)
    assert decode_checkpoint(encode_checkpoint(state), "").settings == state.settings
