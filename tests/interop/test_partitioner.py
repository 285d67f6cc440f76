"""Partitions of keys equal those of Kafka's own Java class."""

import random

import numpy as np
import pyarrow as pa
import pytest
from kafka_here.gateway import Gateway

from segmentlog.format.records.encoder import record_source
from segmentlog.writes.stager import Partitioner

pytestmark = pytest.mark.interop


def test_keys_go_where_java_producers_send_them(java: Gateway) -> None:
    """The hundreds of random keys have every length up to 40, and some are longer."""
    rng = random.Random(11)
    keys = [rng.randbytes(n % 41) for n in range(400)] + [rng.randbytes(n) for n in (999, 70_000)]
    hashed = java.jvm.org.apache.kafka.clients.producer.internals.BuiltInPartitioner
    batch = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary())})
    source = record_source(batch, np.zeros(len(keys), np.int64))
    for n_partitions in (1, 7, 1000):
        expected = [hashed.partitionForKey(key, n_partitions) for key in keys]

        assert expected == Partitioner("t", n_partitions, 1).choose(source).tolist()
