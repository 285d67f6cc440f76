"""Decoding where logs are not in one directory of one broker, and of records of transactions."""

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from registered import BERN, CITY, DEGREES, OSLO, ROME, readings, record, register, write
from tiers import TOPIC_ID, copy_segment, remove_local

import segmentlog
from segmentlog.testing.kafka_log import KafkaLog

pytest.importorskip("fastavro")

FOUND = [
    {"city": "Oslo", "degrees": None},
    {"city": "Rome", "degrees": 30},
    {"city": "Bern", "degrees": None},
]


def values(*path: Any, topic: str = "readings", **options: Any) -> list[Any]:
    logs = segmentlog.dataset(*path, topics=topic, decode="value", **options)
    found: list[Any] = logs.to_table(["value"])["value"].to_pylist()
    return found


@pytest.mark.thorough
def test_a_log_in_an_object_store_has_its_schemas_there(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    place: Any = f"bucket+file://{tmp_path}/logs"
    readings(place)
    assert FOUND == values(place)


def test_replicas_take_the_schemas_of_the_broker_that_has_them(tmp_path: Path) -> None:
    """Also as of one broker with several disks, which only then may share no partition."""
    readings(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for path, node in ((tmp_path / "a", 1), (tmp_path / "b", 2)):
        (path / "meta.properties").write_text(f"version=1\nnode.id={node}\ncluster.id=c\n")
    shutil.rmtree(tmp_path / "a" / "_schemas-0")
    assert FOUND == values(tmp_path / "a", tmp_path / "b", replicas="reconcile")
    shutil.rmtree(tmp_path / "b" / "readings-0")
    (tmp_path / "b" / "meta.properties").unlink()
    (tmp_path / "a" / "meta.properties").unlink()
    assert FOUND == values(tmp_path / "a", tmp_path / "b")


def test_records_in_a_tier_are_decoded_with_the_local_registry(tmp_path: Path) -> None:
    logs, tier = tmp_path / "logs", tmp_path / "tier"
    register(logs, "t-value", 1, 1, record(CITY))
    register(logs, "t-value", 2, 2, record(CITY, DEGREES))
    with segmentlog.open_writer(logs, "t") as writer:
        writer.append(pa.table({"value": [OSLO, ROME]}))
        writer.flush()
        writer.roll()
        writer.append(pa.table({"value": [BERN]}))
    partition = logs / "t-0"
    (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    copy_segment(partition, tier, 0, 2)
    remove_local(partition, 0)
    assert FOUND == values(logs, topic="t", remote_storage=tier)


def test_an_aborted_record_that_cannot_be_decoded_fails_only_those_who_read_it(
    tmp_path: Path,
) -> None:
    readings(tmp_path)
    transaction = KafkaLog(tmp_path).transaction()
    transaction.write("readings", [{"value": b"no schema"}])
    transaction.abort()
    write(tmp_path, "readings", [ROME])
    assert [*FOUND, FOUND[1]] == values(tmp_path, isolation_level="read_committed")
    with pytest.raises(segmentlog.UndecodableValueError, match="it names no schema"):
        values(tmp_path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a dataset arrives that has been opened elsewhere, as in a worker."""
    readings(tmp_path)
    logs = segmentlog.dataset(tmp_path, topics="readings", decode="value")
    moved = pickle.loads(pickle.dumps(logs))
    for name in [each for each in sys.modules if each.startswith("fastavro")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(segmentlog.OptionError, match=r"pip install 'pyspark-segmentlog\[schemas"):
        moved.to_table()
    with pytest.raises(segmentlog.OptionError, match=r"pip install 'pyspark-segmentlog\[schemas"):
        segmentlog.dataset(tmp_path, topics="readings", decode="value")
