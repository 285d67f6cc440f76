"""Options of a batch read: every rule, without Spark."""

import pickle
import re
from collections.abc import Callable

import pytest

from pyspark_segmentlog.options import OPTIONS, ReadOptions
from pyspark_segmentlog.write_options import WRITE_OPTIONS
from segmentlog.errors import OptionError
from segmentlog.model import IsolationLevel, OnCorruptBatch, ReadUpTo, TopicPartition

IGNORED = [
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
]
NOT_YET = [
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
]


def parse(**options: str) -> ReadOptions:
    """Options beside a path."""
    return ReadOptions.parse({"path": "/d", **options})


def refusal(raw: dict[str, str]) -> OptionError:
    """The error that these options beside a path are refused with."""
    with pytest.raises(OptionError) as caught:
        ReadOptions.parse({"path": "/d", **raw})
    return caught.value


def test_a_path_alone_reads_everything() -> None:
    """The defaults are those of the reference in the connector's README."""
    options = parse()

    assert (("/d",), (), None, ()) == (
        options.paths,
        options.subscribe,
        options.subscribe_pattern,
        options.assign,
    )
    assert (-2, -1) == (options.starting_offsets.everywhere, options.ending_offsets.everywhere)
    assert (False, True) == (options.include_headers, options.fail_on_data_loss)
    assert (ReadUpTo.HIGH_WATERMARK, 128 << 20) == (
        options.read_up_to,
        options.max_bytes_per_partition,
    )


def test_options_travel_to_a_task_unchanged() -> None:
    """They are pickled into every one."""
    options = parse(assign='{"a":[0]}', startingOffsets='{"a":{"0":5}}', includeHeaders="true")

    assert options == pickle.loads(pickle.dumps(options))


GOOD_VALUES = {
    "path": "/e",
    "paths": '["/d1"]',
    "subscribe": "a",
    "subscribePattern": "a.*",
    "assign": '{"a":[0]}',
    "startingOffsets": "earliest",
    "endingOffsets": "latest",
    "includeHeaders": "true",
    "preserve": "true",
    "failOnDataLoss": "false",
    "kafka.isolation.level": "read_committed",
    "onCorruptBatch": "skip",
    "maxInflatedBatchBytes": "1m",
    "onInvalidUtf8": "replace",
    "filterPushdown": "true",
    "readUpTo": "logEnd",
    "maxBytesPerPartition": "1m",
}


def test_every_option_has_a_good_value_here() -> None:
    """A new option is tested, too."""
    assert [option.name for option in OPTIONS] == list(GOOD_VALUES)


@pytest.mark.parametrize("name", GOOD_VALUES)
@pytest.mark.parametrize("change", [str.lower, str.upper, str.swapcase])
def test_names_are_taken_in_any_case(name: str, change: Callable[[str], str]) -> None:
    """Spark lowers them on some ways and keeps them on others."""
    raw = {"path": "/d"} if name != "path" else {}
    expected = ReadOptions.parse({**raw, name: GOOD_VALUES[name]})

    assert expected == ReadOptions.parse({**raw, change(name): GOOD_VALUES[name]})
    assert name == "path" or expected != ReadOptions.parse(raw) or name.endswith("Offsets")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("subscirbe", "subscribe"),
        ("startingOffset", "startingOffsets"),
        ("ENDINGOFFSET", "endingOffsets"),
        ("includeHeader", "includeHeaders"),
        ("failOnDataloss_", "failOnDataLoss"),
        ("readUpto2", "readUpTo"),
        ("maxBytesPerPartitions", "maxBytesPerPartition"),
        ("subscribepatern", "subscribePattern"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, nearest: str) -> None:
    """A name that is passed over in silence would give wrong rows."""
    error = refusal({name: "x"})

    assert (name, "x") == (error.option, error.value)
    assert f"did you mean {nearest!r}?" in str(error)


def test_a_name_like_no_other_is_answered_with_all_names() -> None:
    """Nothing is near, so everything is told."""
    error = refusal({"zzzzzz": "x"})

    assert [] == [option.name for option in OPTIONS if option.name not in str(error)]


@pytest.mark.parametrize("name", NOT_YET)
@pytest.mark.parametrize("change", [str, str.lower])
def test_an_option_of_the_kafka_source_that_is_missing_is_said_to_be(
    name: str, change: type[str]
) -> None:
    """It exists elsewhere, so it is no typing mistake; its name is given as Spark writes it."""
    error = refusal({change(name): "1"})

    assert name == error.option
    assert "does not have that option of the kafka source" in str(error)


@pytest.mark.parametrize("name", IGNORED)
@pytest.mark.parametrize("change", [str, str.lower])
def test_an_option_that_steers_the_client_alone_is_taken(name: str, change: type[str]) -> None:
    """It changes no row, so queries written for the kafka source keep working."""
    assert parse() == parse(**{change(name): "1"})


@pytest.mark.parametrize(
    "name",
    [
        "kafka.bootstrap.servers",
        "kafka.security.protocol",
        "kafka.group.id",
        "kafka.fetch.max.bytes",
        "KAFKA.SSL.Truststore.Location",
    ],
)
def test_options_of_the_client_are_taken_and_not_used(name: str) -> None:
    """There is no client."""
    assert parse() == parse(**{name: "anything"})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kafka.auto.offset.reset", "startingOffsets"),
        ("kafka.key.deserializer", "bytes"),
        ("kafka.value.deserializer", "bytes"),
        ("kafka.enable.auto.commit", "nothing is committed"),
        ("kafka.interceptor.classes", "no consumer"),
        ("Kafka.Auto.Offset.Reset", "startingOffsets"),
    ],
)
def test_options_that_sparks_kafka_source_forbids_are_refused(name: str, said: str) -> None:
    """Who sets one of these expects something that does not happen."""
    error = refusal({name: "x"})

    assert name.lower() == error.option
    assert "not supported" in str(error)
    assert said in str(error)


@pytest.mark.parametrize("level", ["read_uncommitted", " READ_UNCOMMITTED "])
def test_reading_uncommitted_is_the_default(level: str) -> None:
    """The client's default may be said aloud."""
    assert parse() == parse(**{"kafka.isolation.level": level})


@pytest.mark.parametrize("level", ["read_committed", "READ_COMMITTED"])
def test_reading_committed_data_can_be_asked_for(level: str) -> None:
    """The word of the Kafka client, in any case."""
    policy = parse(**{"kafka.isolation.level": level}).policy

    assert IsolationLevel.READ_COMMITTED == policy.isolation_level


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kafka.isolation.level", "", "give read_uncommitted or read_committed"),
        ("kafka.isolation.level", "committed", "give read_uncommitted or read_committed"),
        ("onCorruptBatch", "ignore", "give fail or skip"),
        ("maxInflatedBatchBytes", "0", "give bytes"),
        ("maxInflatedBatchBytes", "much", "give bytes"),
    ],
)
def test_how_to_read_is_checked(name: str, value: str, said: str) -> None:
    """A word that means nothing does not quietly mean the default."""
    error = refusal({name: value})

    assert (name, value) == (error.option, error.value)
    assert said in str(error)


def test_corrupt_batches_and_bounds_are_taken_as_given() -> None:
    """Both reach the tasks."""
    policy = parse(onCorruptBatch="Skip", maxInflatedBatchBytes="1m").policy

    assert (OnCorruptBatch.SKIP, 1 << 20) == policy[1:3]


@pytest.mark.parametrize(
    "names",
    [
        ("subscribe", "subscribePattern"),
        ("subscribe", "assign"),
        ("subscribePattern", "assign"),
        ("subscribe", "subscribePattern", "assign"),
    ],
)
def test_only_one_way_to_choose_topics_can_be_given(names: tuple[str, ...]) -> None:
    """The message names two that were."""
    error = refusal({name: GOOD_VALUES[name] for name in names})

    assert names[0] == error.option
    assert f"{names[1]} is given, too" in str(error)


@pytest.mark.parametrize(
    ("raw", "paths"),
    [
        ({"path": "/a"}, ("/a",)),
        ({"paths": '["/a", "/b"]'}, ("/a", "/b")),
        ({"path": "/a", "paths": '["/b"]'}, ("/a", "/b")),
        ({"path": "/a", "paths": "[]"}, ("/a",)),
        ({"path": "file:///a%20b"}, ("file:///a%20b",)),
    ],
)
def test_paths_are_taken_as_they_are_written(raw: dict[str, str], paths: tuple[str, ...]) -> None:
    """One, several, or both."""
    assert paths == ReadOptions.parse(raw).paths


@pytest.mark.parametrize("raw", [{}, {"paths": "[]"}, {"subscribe": "a"}])
def test_a_read_without_a_path_is_refused(raw: dict[str, str]) -> None:
    """The message shows how to name one."""
    with pytest.raises(OptionError, match="load"):
        ReadOptions.parse(raw)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/a",
        '"/a"',
        '{"a":1}',
        "[1]",
        '["/a", null]',
        '["/a"',
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_paths_are_a_json_list_of_strings(text: str) -> None:
    """Anything else is refused with an example."""
    assert '["/d1","/d2"]' in str(refusal({"paths": text}))


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("a", ("a",)),
        ("a,b", ("a", "b")),
        (" a , b ", ("a", "b")),
        ("b,a,b", ("b", "a")),
        ("a,,b,", ("a", "b")),
    ],
)
def test_subscribe_is_topics_between_commas(text: str, topics: tuple[str, ...]) -> None:
    """Blanks and empty names do not count, and a topic counts once."""
    assert topics == parse(subscribe=text).subscribe


@pytest.mark.parametrize("text", ["", " ", ",", " , ,"])
def test_subscribing_to_nothing_is_refused(text: str) -> None:
    """It is not the same as subscribing to everything."""
    assert "at least one topic" in str(refusal({"subscribe": text}))


def test_a_pattern_is_taken_without_blanks_around_it() -> None:
    """As Spark trims it."""
    assert "a.*|b" == parse(subscribePattern=" a.*|b ").subscribe_pattern


@pytest.mark.parametrize("text", ["", "  ", "(", "*a", "[z-a]"])
def test_a_pattern_that_is_none_is_refused(text: str) -> None:
    """An empty one, too: it would be all topics."""
    error = refusal({"subscribePattern": text})

    assert ("subscribePattern", text) == (error.option, error.value)
    assert re.search("give a regular expression|repeat|closed", str(error))


def test_assign_is_partitions_sorted_and_once() -> None:
    """The order in the text does not matter."""
    expected = (TopicPartition("a", 0), TopicPartition("a", 10), TopicPartition("b", 2))

    assert expected == parse(assign='{"b":[2],"a":[10,0,0]}').assign


@pytest.mark.parametrize("name", ["includeHeaders", "failOnDataLoss"])
@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("FALSE", False), (" True ", True), ("false", False)]
)
def test_booleans_are_true_or_false_in_any_case(name: str, text: str, *, value: bool) -> None:
    """Blanks around the word do not count."""
    options = parse(**{name: text})
    found = options.include_headers if name == "includeHeaders" else options.fail_on_data_loss

    assert value is found


@pytest.mark.parametrize("name", ["includeHeaders", "failOnDataLoss"])
@pytest.mark.parametrize("text", ["", "1", "yes", "t", "truefalse"])
def test_another_word_is_no_boolean(name: str, text: str) -> None:
    """Neither true nor false is guessed."""
    error = refusal({name: text})

    assert (name, text, "give true or false") == (error.option, error.value, error.accepted)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("highWatermark", ReadUpTo.HIGH_WATERMARK),
        ("HIGHWATERMARK", ReadUpTo.HIGH_WATERMARK),
        (" logEnd ", ReadUpTo.LOG_END),
        ("logend", ReadUpTo.LOG_END),
    ],
)
def test_a_read_goes_up_to_one_of_two_ends(text: str, value: ReadUpTo) -> None:
    """In any case."""
    assert value is parse(readUpTo=text).read_up_to


@pytest.mark.parametrize("text", ["", "end", "latest", "high_watermark"])
def test_another_end_is_refused_with_both_words(text: str) -> None:
    """The message tells what there is."""
    assert "give highWatermark or logEnd" in str(refusal({"readUpTo": text}))


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("0", 0),
        ("1", 1),
        ("64b", 64),
        ("2k", 2048),
        ("2kb", 2048),
        ("64m", 64 << 20),
        ("64MB", 64 << 20),
        (" 1g ", 1 << 30),
        ("1t", 1 << 40),
    ],
)
def test_sizes_are_bytes_or_have_a_unit(text: str, n_bytes: int) -> None:
    """Spark's own spelling of sizes."""
    assert n_bytes == parse(maxBytesPerPartition=text).max_bytes_per_partition


@pytest.mark.parametrize(
    "text", ["", "m", "-1", "1.5m", "64 m", "64mib", "x", "1e6", "٣", "9" * 19]
)
def test_another_form_of_size_is_refused(text: str) -> None:
    """Fractions, signs and other units are not guessed at."""
    assert "such as 64m" in str(refusal({"maxBytesPerPartition": text}))


def test_a_start_at_latest_and_an_end_at_earliest_are_refused() -> None:
    """A batch query would read nothing."""
    assert "may not start at latest" in str(refusal({"startingOffsets": "latest"}))
    assert "may not end at earliest" in str(refusal({"endingOffsets": "earliest"}))


def test_options_of_writes_are_refused_as_such() -> None:
    """All of them, and by the word for a read: the nearest name would lead astray."""
    of_reads = {option.name for option in OPTIONS}
    of_writes = [option.name for option in WRITE_OPTIONS if option.name not in of_reads]
    for name in of_writes:
        if not name.startswith("kafka."):
            assert "an option of writes; a read names its topics" in str(refusal({name: "x"}))
