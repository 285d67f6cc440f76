"""Checkpoints of streaming queries, written by hand, and a source for real ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


def write_checkpoint(
    directory: Path,
    offsets: Mapping[int, str],
    *,
    committed: int = -1,
    initial: Mapping[str, bytes] | None = None,
    version: int = 1,
) -> Path:
    """Write the files of a checkpoint as Spark does.

    `directory`: to make. `offsets`: the lines of the sources of each batch. `committed`: number of
    the last committed batch. `initial`: the file ``sources/…/0`` of some sources. `version`: of
    the offset log.
    """
    files = {"metadata": b'{"id":"451c66aa-e50e-4393-958b-bd4758714396"}'}
    for batch, sources in offsets.items():
        text = f'v{version}\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{sources}'
        files[f"offsets/{batch}"] = text.encode()
        files[f"offsets/.{batch}.crc"] = b"crc\0"
        if batch <= committed:
            files[f"commits/{batch}"] = b'v1\n{"nextBatchWatermarkMs":0}'
    for source, data in (initial or {}).items():
        files[f"sources/{source}/0"] = data
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


def kafka_like_source() -> "type[DataSource]":
    """A source whose offsets have the form of `kafka`: five offsets of ``orders-0`` a batch.

    The class is made here, so that Spark pickles it by value.  The option ``end`` is the latest
    offset, and a batch that ends after ``fails_after`` fails.
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    reason = "Spark tells a stream no place before 4.2"
    pytest.importorskip("pyspark.sql.streaming.datasource", reason=reason)
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, options: Mapping[str, str]) -> None:
            self.end = int(options["end"])
            self.fails_after = int(options.get("fails_after", 1 << 30))

        def initialOffset(self) -> dict[str, Any]:
            return {"orders": {"0": 0, "2": 0, "10": 0}}

        def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
            at = min(start["orders"]["0"] + 5, self.end)
            return {"orders": {"0": at, "2": 2 * at, "10": 7}}

        def reportLatestOffset(self) -> dict[str, Any]:
            return {"orders": {"0": self.end, "2": 2 * self.end, "10": 7}}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            if end["orders"]["0"] > self.fails_after:
                message = "the batch fails"
                raise RuntimeError(message)
            return [InputPartition(end["orders"]["0"])]

        def read(self, partition: InputPartition) -> Any:
            yield (partition.value,)

        def prepareForTriggerAvailableNow(self) -> None:
            pass

    class KafkaLike(DataSource):
        @classmethod
        def name(cls) -> str:
            return "kafka_like"

        def schema(self) -> str:
            return "number long"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Reader(self.options)

    return KafkaLike
