"""Data of the rows about queries, made when the first row needs them."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from kafka_here import Broker, JavaClient

import segmentlog
from segmentlog.model import Codec
from segmentlog.writes.config import ProducerConfig

__all__ = ["N_PARTITIONS", "T0", "TOPIC", "QueryData", "median_window"]

N_PARTITIONS = 4
TOPIC = "log"
T0 = 1_700_000_000_000  # of the first record, in milliseconds; eight records have the same
_BLOCK = 100_000
_BATCH_BYTES = 16384


def median_window(n_records: int, part: float = 0.01) -> tuple[int, int]:
    """Two timestamps in milliseconds; between them are `part` of the records, in the middle."""
    start = T0 + int(n_records * (0.5 - part / 2)) // 8
    return start, start + int(n_records * part) // 8


def _binary(rows: np.ndarray) -> pa.Array:
    """Values of one size, of a uint8 array of shape (n_rows, n_bytes)."""
    n_rows, size = rows.shape
    ends = np.arange(0, (n_rows + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), n_rows, [None, pa.py_buffer(ends), pa.py_buffer(rows)]
    )


def tables(n_records: int) -> Iterator[pa.Table]:
    """Records of about 110 bytes in turn for each partition; half of a value is random."""
    rng = np.random.default_rng(1)
    text = np.frombuffer(b'{"customer":"name","state":"open","n":' * 2, np.uint8)[:48]
    powers = 10 ** np.arange(5, -1, -1)
    for start in range(0, n_records, _BLOCK):
        numbers = np.arange(start, min(start + _BLOCK, n_records))
        keys = np.empty((len(numbers), 10), np.uint8)
        keys[:, :4] = np.frombuffer(b"key-", np.uint8)
        keys[:, 4:] = numbers[:, None] // powers % 10 + ord("0")
        values = np.empty((len(numbers), 88), np.uint8)
        values[:, :48] = text
        values[:, 48:] = np.frombuffer(rng.bytes(len(numbers) * 40), np.uint8).reshape(-1, 40)
        microseconds = (T0 + numbers // 8) * 1000
        yield pa.table(
            {
                "key": _binary(keys),
                "value": _binary(values),
                "partition": (numbers % N_PARTITIONS).astype(np.int32),
                "timestamp": pa.array(microseconds, pa.timestamp("us", "UTC")),
            }
        )


def write(
    directory: Path,
    n_records: int,
    num_partitions: int | None = None,
    codec: Codec = Codec.NONE,
    batch_size: int = _BATCH_BYTES,
) -> None:
    """Write the records to a topic of a log directory, which no broker has open."""
    config = ProducerConfig(use_timestamps=True, batch_size=batch_size, codec=codec)
    with segmentlog.open_writer(
        directory, TOPIC, num_partitions=num_partitions, config=config
    ) as writer:
        for table in tables(n_records):
            writer.append(table)


class QueryData:
    """The logs that the rows query; each is made when it is first asked for.

    Parameters
    ----------
    scratch : a directory for these logs alone.
    n_large, n_small : records of the log that a broker serves, and of the one without a broker.
    """

    def __init__(self, scratch: Path, n_large: int, n_small: int) -> None:
        self._scratch = scratch
        self.n_large, self.n_small = n_large, n_small

    def directory(self, name: str) -> Path:
        """A new directory of this name."""
        made = self._scratch / name
        made.mkdir(parents=True)
        return made

    @cached_property
    def broker(self) -> Broker:
        """A stopped broker with `n_large` records: it made the topic, and we wrote the records."""
        broker = Broker(self._scratch / "large", is_measured=True)
        with broker, JavaClient(broker) as client:
            client.create_topic(TOPIC, N_PARTITIONS, retention_ms=-1, segment_bytes=256 << 20)
        write(broker.log_dir, self.n_large)
        return broker

    @cached_property
    def small(self) -> Path:
        """A log directory of `n_small` records."""
        directory = self._scratch / "small"
        write(directory, self.n_small, num_partitions=N_PARTITIONS)
        return directory

    def longer(self, codec: Codec) -> Path:
        """A log directory of four times the records of `small`, of any codec."""
        directory = self._scratch / f"longer-{codec.name.lower()}"
        write(directory, 4 * self.n_small, num_partitions=N_PARTITIONS, codec=codec)
        return directory

    def of_batches(self, batch_size: int) -> Path:
        """A log directory of the records of `small`, in batches of `batch_size` bytes."""
        directory = self._scratch / f"batches-{batch_size}"
        write(directory, self.n_small, num_partitions=N_PARTITIONS, batch_size=batch_size)
        return directory

    @cached_property
    def parquet(self) -> Sequence[str]:
        """The records of `small` as Parquet with pyarrow's settings, a file for a partition."""
        directory = segmentlog.open_log_dir(self.small)
        files = []
        for partition in range(N_PARTITIONS):
            reader = directory.log(TOPIC, partition).scan()
            files.append(str(self._scratch / f"{partition}.parquet"))
            with pq.ParquetWriter(files[-1], reader.schema) as writer:
                writer.write_table(reader.read_all())
        return files
