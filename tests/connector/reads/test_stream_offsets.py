"""Offsets of streams, as their checkpoints have them."""

import json

import pytest

from pyspark_segmentlog.reads.stream_offsets import from_json
from segmentlog.errors import OptionError
from segmentlog.model import TopicPartition
from segmentlog.reads import offsets_as_topics


def test_topics_and_partitions_have_one_order() -> None:
    """Spark compares texts. Partition 10 follows partition 2."""
    offsets = {TopicPartition("b", each): each for each in (10, 2, 0)}
    offsets |= {TopicPartition("a", each): 2**63 - 1 for each in (11, 1)}
    text = json.dumps(offsets_as_topics(offsets))

    largest = 2**63 - 1
    expected = f'{{"a": {{"1": {largest}, "11": {largest}}}, "b": {{"0": 0, "2": 2, "10": 10}}}}'
    assert expected == text
    assert offsets == from_json(json.loads(text))
    shuffled = dict(sorted(offsets.items(), key=lambda item: item[1]))
    assert text == json.dumps(offsets_as_topics(shuffled))


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "null",
        '{"offset": 5}',
        '{"t": {"a": 5}}',
        '{"t": {"0": "5"}}',
        '{"t": {"0": -2}}',
        '{"t": {"0": true}}',
        '{"t": [5]}',
        '["t"]',
    ],
)
def test_offsets_of_another_source_are_refused(text: str) -> None:
    """The checkpoint may be that of another query."""
    with pytest.raises(OptionError, match=r"checkpointLocation.*of another source"):
        from_json(json.loads(text))
