"""Small appends leave the files of the writer, and small reads return the rows of a scan."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.testing import small_log
from segmentlog.testing.kafka_log import KafkaLog

#: Files that have ids or times, which are new each time.
OWN = {"segmentlog.state", ".lock", "partition.metadata"}


def files(path: Path) -> dict[str, bytes]:
    """The contents of the files of a log directory."""
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in path.rglob("*")
        if each.is_file() and each.name not in OWN
    }


def random_rows(rng: random.Random) -> list[dict]:
    """Records of any form; their times are in a few hours, and rarely weeks apart."""
    span = rng.choice([10**6, 10**7, 10**10])
    return [
        {
            "key": rng.choice([None, "", f"key-{rng.randrange(20)}"]),
            "value": rng.choice([None, "", "x" * rng.randrange(600), {"n": i}]),
            "headers": [("h", rng.choice([None, "", "v"]))] * rng.randrange(3),
            "timestamp": 1_700_000_000_000 + rng.randrange(span),
        }
        for i in range(rng.choice([1, 7, 40, 90]))
    ]


@pytest.fixture
def use_writer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which nothing is small."""
    return lambda: monkeypatch.setattr(small_log, "MOST_RECORDS", -1)


@pytest.mark.parametrize("seed", range(6))
def test_small_appends_leave_the_files_of_the_writer(
    tmp_path: Path, use_writer: Callable[[], None], seed: int
) -> None:
    """Logs, indexes and checkpoints are equal, byte for byte."""
    calls = [random_rows(random.Random(100 * seed + n)) for n in range(12)]
    small, normal = KafkaLog(tmp_path / "small"), KafkaLog(tmp_path / "normal")
    for rows in calls:
        small.write("t", rows, num_partitions=3)
    use_writer()
    for rows in calls:
        normal.write("t", rows, num_partitions=3)

    assert files(normal.path) == files(small.path)
    assert any(len(data) for name, data in files(small.path).items() if name.endswith(".index"))


def test_a_small_read_returns_the_rows_of_a_scan(kafka_log: KafkaLog) -> None:
    """All columns and their types are equal, in all partitions."""
    for seed in range(5):
        kafka_log.write("t", random_rows(random.Random(seed)), num_partitions=2)
    kafka_log.delete_records("t", 3)
    logs = [segmentlog.open_log_dir(kafka_log.path).log("t", n) for n in range(2)]
    scanned = pa.concat_tables([each.scan(include_headers=True).read_all() for each in logs])

    assert scanned.num_rows > 20
    assert scanned.equals(small_log.read_small(logs))


def test_a_large_write_and_a_large_read_are_whole(kafka_log: KafkaLog) -> None:
    """They are left to the writer and to the scan."""
    rows = [{"value": f"{i}"} for i in range(30_000)]
    kafka_log.write("t", rows)
    kafka_log.write("t", ["last"])
    logs = [segmentlog.open_log_dir(kafka_log.path).log("t", 0)]

    assert small_log.read_small(logs) is None
    assert 30_001 == len(kafka_log.read("t"))
    assert ["29999", "last"] == kafka_log.read("t").values()[-2:]


def test_a_topic_with_settings_is_left_to_the_writer(kafka_log: KafkaLog) -> None:
    """Its segments roll as the settings say."""
    kafka_log.create_topic("t")
    segmentlog.alter_settings(kafka_log.path, "t", {"segment.bytes": "300"})
    for _ in range(5):
        kafka_log.write("t", ["x" * 150])

    assert 5 == len(list((kafka_log.path / "t-0").glob("*.log")))
    assert 5 == len(kafka_log.read("t"))


PROGRAM = """
import sys
from segmentlog.testing.kafka_log import KafkaLog
log = KafkaLog(sys.argv[1])
log.write("t", [{"key": f"k{i}", "value": {"n": i}} for i in range(100)], num_partitions=3)
with log.transaction() as transaction:
    transaction.write("t", ["a"])
log.gap("t", 2)
log.add_partitions("t", 4)
print(len(log.read("t").rows()), sorted({"pandas", "pyspark"} & set(sys.modules)))
"""


def test_a_small_test_loads_neither_spark_nor_pandas(tmp_path: Path) -> None:
    """Their import takes longer than the test."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "101 []" == done.stdout.strip()
