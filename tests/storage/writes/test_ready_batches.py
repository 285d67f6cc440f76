"""Batches from elsewhere are written as they are, or refused as a leader refuses them."""

import random
import tracemalloc
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
import pytest
from plain_writes import ONE, values, write
from producer_batches import batch, marker
from soundness import assert_tidy

import segmentlog
from segmentlog.errors import OptionError, UnknownTopicOrPartitionError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import Codec
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.writes.config import ProducerConfig


def test_a_log_is_copied_batch_by_batch(tmp_path: Path) -> None:
    """The batches keep codecs and timestamps, before rows and after rows."""
    config = ProducerConfig(codec=Codec.ZSTD, batch_size=500)
    rows = pa.table({"value": [b"%d" % i for i in range(1000)]})
    write(tmp_path / "from", rows, config=config)
    log = (tmp_path / "from" / "t-0" / f"{0:020d}.log").read_bytes()
    with segmentlog.open_writer(tmp_path / "to") as writer:
        writer.append(pa.table({"topic": ["t"], "value": [b"first"]}))
        writer.append_batches(pa.py_buffer(log), 0, "t")
        writer.append_batches(memoryview(log), 0, "t")
        writer.append(pa.table({"topic": ["t"], "value": [b"last"]}))

    expected = [b"first", *rows["value"].to_pylist() * 2, b"last"]
    assert expected == values(tmp_path / "to")
    copied = (tmp_path / "to" / "t-0" / f"{0:020d}.log").read_bytes()
    assert log[16:61] in copied
    assert_tidy(tmp_path / "to")


GOOD = batch(1, 0, 0, 3)
LEGACY = bytes.fromhex(
    "0000000000000000000000160000000001000000018bcfe568000000000161000000016200"
)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (GOOD + GOOD[:-1], "batch 1 at byte 91: it is cut short"),
        (GOOD + GOOD[:40], "batch 1 at byte 91: it is cut short"),
        (GOOD + b"x" * 70, "batch 1 at byte 91: "),
        (GOOD[:-1] + b"!", "batch 0 at byte 0: .*checksum"),
        (GOOD + marker(1, 0), "batch 1 at byte 91: it belongs to a transaction"),
        (batch(1, 0, 0, is_transactional=True), "it belongs to a transaction"),
        (batch(1, 0, -1), "no sequence or no epoch"),
        (batch(1, -1, 0), "no sequence or no epoch"),
        (
            encode_batch([Record(0, 5, None, b"v")], last_offset=3),
            "its record count differs from the number of its offsets",
        ),
        (
            encode_batch([Record(i, 5, None, bytes(1000)) for i in range(3)]),
            "it is larger than 3000 bytes",
        ),
        (batch(1, 0, 0, codec=0, attributes=2), "batch 0 at byte 0: "),
        (batch(1, 0, 0, codec=0, attributes=5), "batch 0 at byte 0: it has codec 5"),
        (LEGACY, "its magic is not 2"),
    ],
)
def test_batches_that_a_leader_refuses_are_refused(tmp_path: Path, data: bytes, said: str) -> None:
    """The error names the place of the batch, and nothing of the flush is written."""
    config = ProducerConfig(topic_config=TopicConfig(max_message_bytes=3000))
    writer = segmentlog.open_writer(tmp_path, "t", config=config)
    writer.append(ONE)
    with pytest.raises(OptionError, match=said) as caught:
        writer.append_batches(data, 0)
    assert "batches" == caught.value.option
    writer.abort()
    assert not (tmp_path / "t-0").exists()


def test_damaged_batches_are_refused(tmp_path: Path) -> None:
    """Any bit is changed except those of base offsets and leader epochs. Lengths cut batches."""
    parts = [GOOD, batch(1, 0, 3, 2, codec=1), batch(-1, -1, -1)]
    whole = b"".join(parts)
    starts = [0, len(parts[0]), len(parts[0]) + len(parts[1])]
    free = {start + at for start in starts for at in (*range(8), *range(12, 16))}
    rng = random.Random(3)
    writer = segmentlog.open_writer(tmp_path, "t")
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        assert (at in free) == _is_taken(writer, data), at
        assert (at in starts) == _is_taken(writer, whole[:at]), at
    writer.abort()


def _is_taken(writer: segmentlog.LogWriter, data: bytes | bytearray) -> bool:
    """Whether a writer takes batches."""
    try:
        writer.append_batches(data, 0)
    except OptionError:
        writer._has_refused = False
        return False
    return True


def test_a_topic_with_append_times_takes_no_create_times(tmp_path: Path) -> None:
    """A broker would write the time of appending into the header."""
    topic = TopicConfig.parse({"message.timestamp.type": "LogAppendTime"})
    writer = segmentlog.open_writer(tmp_path, "t", config=ProducerConfig(topic_config=topic))
    with pytest.raises(OptionError, match="LogAppendTime"):
        writer.append_batches(GOOD, 0)
    writer.abort()
    with segmentlog.open_writer(
        tmp_path, "t", config=ProducerConfig(topic_config=topic)
    ) as writer:
        writer.append_batches(encode_batch([Record(0, 5, None, b"v")], attributes=8), 0)
    assert [b"v"] == values(tmp_path)


def test_a_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing partition, another topic, and a writer that keeps offsets are refused."""
    with segmentlog.open_writer(tmp_path, "t", num_partitions=2) as writer:
        with pytest.raises(OptionError, match="t has 2 partitions"):
            writer.append_batches(GOOD, 2)
        with pytest.raises(OptionError, match="the topic of the writer is t"):
            writer.append_batches(GOOD, 0, "u")
        writer.append_batches(b"", 0)
    assert () == writer.appended
    with segmentlog.open_writer(tmp_path, auto_create_topics=False) as writer:
        with pytest.raises(OptionError, match="topic"):
            writer.append_batches(GOOD, 0)
        with pytest.raises(UnknownTopicOrPartitionError):
            writer.append_batches(GOOD, 0, "u")
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"preserve": True}, "next offsets"),
        ({"overwrite": True}, "a retry would"),
    ]
    for options, said in refusals:
        writer = segmentlog.open_writer(tmp_path, "t", **options)
        with pytest.raises(OptionError, match=said):
            writer.append_batches(GOOD, 0)
        writer.abort()


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize(
    ("kind", "header", "said"),
    [
        ("CreateTime", (0, 6), None),
        ("CreateTime", (0, 7), "its header has the time 7, but its newest record 6"),
        ("CreateTime", (0, 5), "its header has the time 5, but its newest record 6"),
        ("CreateTime", (8, 6), "type=CreateTime, but the batch has LogAppendTime"),
        ("LogAppendTime", (8, 7), None),
        ("LogAppendTime", (8, 2**60), "its append time is in the future"),
    ],
)
def test_times_that_a_leader_would_set_are_refused(
    tmp_path: Path, codec: int, kind: str, header: tuple[int, int], said: str | None
) -> None:
    """With a wrong newest time, a segment would never expire, or expire too early."""
    records = [Record(0, 5, None, b"a"), Record(1, 6, None, b"b"), Record(2, -1, None, b"c")]
    data = bytearray(encode_batch(records, codec=codec))
    data[22] |= header[0]
    data[35:43] = header[1].to_bytes(8, "big")
    data[17:21] = crc32c.crc32c(bytes(data[21:])).to_bytes(4, "big")
    topic = TopicConfig.parse({"message.timestamp.type": kind})
    writer = segmentlog.open_writer(tmp_path, "t", config=ProducerConfig(topic_config=topic))
    if said is None:
        writer.append_batches(bytes(data), 0)
    else:
        with pytest.raises(OptionError, match=said):
            writer.append_batches(bytes(data), 0)
    writer.abort()


def test_ready_batches_in_memory_take_what_they_count(tmp_path: Path) -> None:
    """Each call makes a table for thousands of batches: 2,000 calls once held 3.6 GB."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append_batches(GOOD, 0)
        tracemalloc.start()
        for _ in range(100):
            writer.append_batches(GOOD, 0)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < 100 * (len(GOOD) + 10_000)
