"""The options for the start and the end of a read."""

import json
from pathlib import Path

import pytest
from checkpoints import write_checkpoint

from pyspark_segmentlog.options.offsets import EARLIEST, LATEST, OffsetBound
from pyspark_segmentlog.options.reference import READ_OPTIONS
from segmentlog.errors import CorruptCheckpointError, LogDirectoryError, OptionError
from segmentlog.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


TABLE = {option.name: option for option in READ_OPTIONS}


def start(text: str) -> OffsetBound:
    """A value of `startingOffsets`."""
    return TABLE["startingOffsets"].value_of(text)


def end(text: str) -> OffsetBound:
    """A value of `endingOffsets`."""
    return TABLE["endingOffsets"].value_of(text)


def parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """A value of `assign`."""
    return TABLE["assign"].value_of(text)


@pytest.mark.parametrize("text", ["earliest", "EARLIEST", " Earliest "])
def test_earliest_is_the_start_of_every_partition(text: str) -> None:
    """Upper and lower case do not matter."""
    assert {A0: EARLIEST, B0: EARLIEST} == start(text).resolve([B0, A0])


@pytest.mark.parametrize("text", ["latest", "LATEST", " Latest "])
def test_latest_is_the_end_of_every_partition(text: str) -> None:
    """Upper and lower case do not matter."""
    assert {A0: LATEST, B0: LATEST} == end(text).resolve([B0, A0])


def test_offsets_are_given_by_partition() -> None:
    """-2 is earliest. All other offsets that fit a long are kept as they are."""
    text = json.dumps({"a": {"0": 23, "1": -2}, "b": {"0": 2**62}})

    assert {A0: 23, A1: EARLIEST, B0: 2**62} == start(text).resolve([A0, A1, B0])


def test_a_topic_may_have_one_word_for_all_its_partitions() -> None:
    """The word may have any case. Other topics may have numbers."""
    starts = start('{"a":"Earliest","b":{"0":7}}').resolve([A0, A1, B0])
    ends = end('{"a":"LATEST","b":{"0":-1}}').resolve([A0, A1, B0])

    assert {A0: EARLIEST, A1: EARLIEST, B0: 7} == starts
    assert {A0: LATEST, A1: LATEST, B0: LATEST} == ends


def test_zero_is_an_offset() -> None:
    """Zero does not stand for earliest or latest."""
    assert {A0: 0} == start('{"a":{"0":0}}').resolve([A0])


def test_the_answer_is_sorted_by_topic_and_partition() -> None:
    """The order of the text and of the partitions does not matter."""
    found = start('{"b":{"0":1},"a":{"1":2,"0":3}}').resolve([B0, A1, A0])

    assert [A0, A1, B0] == list(found)


@pytest.mark.parametrize(
    "text", ["latest", '{"a":"latest"}', '{"a":{"0":-1}}', '{"a":{"0":5,"1":-1}}']
)
def test_a_start_at_latest_is_refused(text: str) -> None:
    """Latest is refused as a word, for a topic, and as a number."""
    with pytest.raises(OptionError, match=r"may not start at latest \(-1\)") as caught:
        start(text).refuse(LATEST)

    assert ("startingOffsets", text) == (caught.value.option, caught.value.value)


@pytest.mark.parametrize(
    "text", ["earliest", '{"a":"earliest"}', '{"a":{"0":-2}}', '{"a":{"0":5,"1":-2}}']
)
def test_an_end_at_earliest_is_refused(text: str) -> None:
    """Earliest is refused as a word, for a topic, and as a number."""
    with pytest.raises(OptionError, match=r"may not end at earliest \(-2\)") as caught:
        end(text).refuse(EARLIEST)

    assert ("endingOffsets", text) == (caught.value.option, caught.value.value)


def test_the_refusal_names_the_partition() -> None:
    """In a long map, the user needs the place of the mistake."""
    with pytest.raises(OptionError, match="as a-1 does"):
        start('{"a":{"0":5,"1":-1}}').refuse(LATEST)
    with pytest.raises(OptionError, match="as b does"):
        end('{"a":{"0":5},"b":"earliest"}').refuse(EARLIEST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "newest",
        "23",
        "null",
        "[]",
        '"earliest"',
        "{",
        '{"a"}',
        '{"a":5}',
        '{"a":null}',
        '{"a":[0]}',
        '{"a":"newest"}',
        '{"a":{"x":5}}',
        '{"a":{"-1":5}}',
        '{"a":{"":5}}',
        '{"a":{"0":"5"}}',
        '{"a":{"0":5.0}}',
        '{"a":{"0":true}}',
        '{"a":{"0":null}}',
        '{"a":{"0":-3}}',
        '{"a":{"0":9223372036854775808}}',
        '{"a":{"2147483648":5}}',
        '{"a":{"0":"earliest"}}',
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_another_form_is_refused_with_an_example(text: str) -> None:
    """The message names the option and shows what is accepted."""
    with pytest.raises(OptionError) as caught:
        start(text).refuse(LATEST)

    assert ("startingOffsets", text) == (caught.value.option, caught.value.value)
    assert '{"a":{"0":23,"1":-2},"b":"earliest"}' in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ['{"a":{"0":5,"0":6}}', '{"a":{"0":5},"a":{"1":6}}', '{"a":"earliest","a":"earliest"}'],
)
def test_a_name_that_stands_twice_is_refused(text: str) -> None:
    """A JSON parser would use the last value."""
    with pytest.raises(OptionError, match=r"it names '(a|0)' twice"):
        start(text)


def test_a_topic_with_a_word_and_with_partitions_is_refused() -> None:
    """The message names the topic, and the accepted forms."""
    with pytest.raises(OptionError, match="'a' twice: give each topic once, either with one"):
        start('{"a":"earliest","b":{"0":1},"a":{"0":1}}')


def test_a_partition_written_in_two_ways_is_refused() -> None:
    """`0` and `00` are one partition."""
    with pytest.raises(OptionError, match="twice"):
        start('{"a":{"0":5,"00":6}}')


@pytest.mark.parametrize(
    ("text", "assigned"),
    [
        ('{"a":{"0":5}}', [A0, A1]),
        ('{"a":{"0":5,"1":6}}', [A0]),
        ('{"a":{"0":5},"b":{"0":6}}', [A0]),
        ('{"b":{"0":6}}', [A0]),
        ('{"a":"earliest","b":"earliest"}', [A0, A1]),
        ('{"a":"earliest"}', [A0, B0]),
        ("{}", [A0]),
        ('{"a":{}}', [A0]),
    ],
)
def test_a_map_names_exactly_the_partitions_that_are_read(
    text: str, assigned: list[TopicPartition]
) -> None:
    """A map with a partition too few or too many is refused.

    The message lists the partitions that are read.
    """
    with pytest.raises(OptionError, match="exactly the partitions") as caught:
        start(text).resolve(assigned)

    assert f"the read has {', '.join(map(str, assigned))}, and the option names" in str(
        caught.value
    )


def test_many_partitions_are_not_all_named() -> None:
    """The message names twenty partitions, and the number of the others."""
    assigned = [TopicPartition("a", i) for i in range(50)]
    with pytest.raises(OptionError, match=r"a-19 and 30 more, and the option names a-0$"):
        start('{"a":{"0":5}}').resolve(assigned)


def test_nothing_to_read_wants_an_empty_map() -> None:
    """The directory has no topics."""
    assert {} == start("{}").resolve([])
    assert {} == start("earliest").resolve([])


def test_assigned_partitions_are_sorted_and_once() -> None:
    """A broker's client would return them in this form."""
    assert (A0, A1, B0) == parse_assign('{"b":[0],"a":[1,0,1]}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "[]",
        "null",
        "{}",
        '{"a":[]}',
        '{"a":0}',
        '{"a":"0"}',
        '{"a":["0"]}',
        '{"a":[0.0]}',
        '{"a":[true]}',
        '{"a":[-1]}',
        '{"a":{"0":1}}',
        '{"a":[0]',
    ],
)
def test_another_form_of_assign_is_refused_with_an_example(text: str) -> None:
    """The message names the option and shows what is accepted."""
    with pytest.raises(OptionError) as caught:
        parse_assign(text)

    assert ("assign", text) == (caught.value.option, caught.value.value)
    assert 'JSON such as {"a":[0,1]}' in str(caught.value)


def test_a_topic_that_is_assigned_twice_is_refused() -> None:
    """A JSON parser would use the last value."""
    with pytest.raises(OptionError, match="twice"):
        parse_assign('{"a":[0],"a":[1]}')


def test_a_checkpoint_has_the_offsets_of_a_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Partitions that it does not name are at earliest; others that it names cause a warning."""
    path = write_checkpoint(tmp_path / "c", {0: '{"a":{"0":5,"7":1},"c":{"0":1}}'}, committed=0)
    bound = start(f" Checkpoint:{path} ")

    assert {A0: 5, A1: EARLIEST, B0: EARLIEST} == bound.resolve([A0, A1, B0])
    assert (5, EARLIEST) == (bound.asked(A0), bound.asked(A1))
    bound.warn_of_missing([A0, A1, B0])
    (warning,) = caplog.messages
    assert "names partitions that are not read: a-7; a broker" in warning
    assert {A0: 5} == end(f"checkpoint:{path.as_uri()}").resolve([A0])


def test_a_source_of_a_checkpoint_is_named_after_its_path(tmp_path: Path) -> None:
    """A path may itself have the character before the name."""
    for name in ("c", "c#x"):
        path = write_checkpoint(tmp_path / name, {0: '{"a":{"0":5}}\n{"a":{"0":6}}'}, committed=0)

        assert {A0: 6} == start(f"checkpoint:{path}#1").resolve([A0])
        with pytest.raises(OptionError, match=r"'startingOffsets' is .*name one source: .* 0, 1"):
            start(f"checkpoint:{path}")
        with pytest.raises(OptionError, match="#5'; the sources of"):
            start(f"checkpoint:{path}#5")
    single = write_checkpoint(tmp_path / "d#1", {0: '{"a":{"0":7}}'}, committed=0)
    assert {A0: 7} == start(f"checkpoint:{single}").resolve([A0])


def test_a_checkpoint_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """The errors are those of the checkpoint."""
    with pytest.raises(LogDirectoryError, match="name the checkpointLocation of a query"):
        start(f"checkpoint:{tmp_path}/nothing")
    with pytest.raises(LogDirectoryError, match="the path is empty"):
        start("checkpoint:")
    path = write_checkpoint(tmp_path / "c", {0: '{"a":{"0":-1}}', 1: "{"}, committed=0)
    with pytest.raises(CorruptCheckpointError, match="expected JSON"):
        end(f"checkpoint:{path}")
    (path / "offsets" / "1").unlink()
    with pytest.raises(OptionError, match=r"may not start at latest \(-1\), as a-0 does"):
        start(f"checkpoint:{path}").refuse(LATEST)
    assert {A0: LATEST} == end(f"checkpoint:{path}").resolve([A0])
