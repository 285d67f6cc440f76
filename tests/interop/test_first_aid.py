"""A broker starts and serves its records once the advice is typed as it is printed."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from damaged_starts import filled, writable_copy
from first_aid import CASES, looked_up, type_in
from kafka_here import Broker, JavaClient

import segmentlog

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

Rows = list[tuple[int, int, bytes | None]]


def served(client: JavaClient, topic: str) -> Rows:
    """Partition, offset and value of the records that a consumer gets."""
    records = client.consume(topic, isolation="read_committed")
    return sorted((each.partition, each.offset, each.value) for each in records)


def rows_of(directory: Path, topic: str) -> Rows:
    """The same, as a reader of the disk gets them."""
    table = segmentlog.read(directory, topic, isolation_level="read_committed")
    columns = (table[each].to_pylist() for each in ("partition", "offset", "value"))
    return sorted(zip(*columns, strict=True))


def test_a_mended_broker_starts_and_serves_its_records(new_version: str, tmp_path: Path) -> None:
    """One directory has all damages that one command mends, and no ids."""
    broker = Broker(tmp_path / "kafka 1", new_version)
    directory = writable_copy(filled(new_version, tmp_path), broker.log_dir)
    expected = {topic: rows_of(directory, topic) for topic in ("orders", "invoices")}
    for case in CASES.values():
        case.harm(directory)
    ids = directory / "meta.properties"
    ids.unlink()
    text = looked_up(directory)
    for case in CASES.values():
        assert case.told in text
    (lines, *_) = re.findall(r"write these lines into it: (.*?);", text)
    ids.write_text(lines.replace(" | ", "\n").replace("cluster.id=…", "cluster.id=new"))
    for name in ("a half-deleted topic", "a zeroed block", "a missing index"):
        type_in(CASES[name].command, directory, CASES[name].status)
    assert not [each for each in segmentlog.preflight(directory) if each.has_harm]
    kept = rows_of(directory, "invoices")
    assert {*kept} < {*expected["invoices"]}
    with broker, JavaClient(broker) as client:
        assert expected["orders"] == served(client, "orders")
        assert kept == served(client, "invoices")
    assert not [*directory.glob("*-stray")]


@pytest.mark.slow
def test_logs_without_metadata_go_into_another_cluster(new_version: str, tmp_path: Path) -> None:
    """Each command of the page is typed with the names of this directory."""
    directory = writable_copy(filled(new_version, tmp_path), tmp_path / "kafka 1")
    expected = rows_of(directory, "orders")
    shutil.rmtree(directory / "__cluster_metadata-0")
    (directory / "bootstrap.checkpoint").unlink()
    assert "segmentlog restore DIR NEW-DIR --dry-run" in looked_up(directory)
    assert "orders" in type_in("segmentlog topics DIR", directory)
    new = Broker(tmp_path / "new", new_version)
    with new, JavaClient(new) as client:
        for topic, n_partitions in (("orders", 3), ("invoices", 2)):
            client.create_topic(topic, n_partitions, retention_ms=-1)
    for option in ("--dry-run", ""):
        type_in(f"segmentlog restore DIR {shlex.quote(str(new.log_dir))} {option}", directory)
    with new, JavaClient(new) as client:
        assert expected == served(client, "orders")
