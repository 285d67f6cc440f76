"""Options of a read, without Spark."""

import logging
import pickle
import re

import pytest

from pyspark_segmentlog.options.bounds import LastDuration, LastRecords
from pyspark_segmentlog.options.names import warn_of_unused
from pyspark_segmentlog.options.offsets import EARLIEST, LATEST, OffsetBound
from pyspark_segmentlog.options.option import Option, Query
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.options.reference import READ_OPTIONS, WRITE_OPTIONS
from pyspark_segmentlog.options.timestamps import NoMatch, TimestampBound
from segmentlog.errors import OptionError
from segmentlog.model import IsolationLevel, OnCorruptBatch, ReadUpTo, TopicPartition
from segmentlog.read_options import READ_OPTIONS as OF_READS


def parse(**options: str) -> ReadOptions:
    """Parse options and a path."""
    return ReadOptions.parse({"path": "/d", **options}, Query.BATCH)


def refusal(raw: dict[str, str]) -> OptionError:
    """The error that refuses these options, given with a path."""
    with pytest.raises(OptionError) as caught:
        ReadOptions.parse({"path": "/d", **raw}, Query.BATCH)
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
    assert OffsetBound("startingOffsets", "earliest", EARLIEST) == options.start
    assert OffsetBound("", "latest", LATEST) == options.end
    assert (False, True) == (options.include_headers, options.fail_on_data_loss)
    assert (None, None, 128 << 20) == (
        options.min_partitions,
        options.max_records_per_partition,
        options.max_bytes_per_partition,
    )
    assert (ReadUpTo.HIGH_WATERMARK, False) == (options.read_up_to, options.late_binding)


def test_options_travel_to_a_task_unchanged() -> None:
    """The options are pickled into every task."""
    options = parse(assign='{"a":[0]}', startingOffsets='{"a":{"0":5}}', includeHeaders="true")

    assert options == pickle.loads(pickle.dumps(options))


#: Values that change something: the declared ones of options that Python has, too, and others.
GOOD_VALUES = {
    option.in_spark: str(option.shown).lower() if option.kind is bool else str(option.shown)
    for option in OF_READS.values()
    if option.is_row_of_spark
} | {
    "path": "/e",
    "paths": '["/d1"]',
    "subscribe": "a",
    "subscribePattern": "a.*",
    "assign": '{"a":[0]}',
    "startingTimestamp": "5",
    "startingOffsetsByTimestamp": '{"a":{"0":5}}',
    "startingOffsets": '{"a":{"0":5}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "lastRecords": "5",
    "lastDuration": "5 minutes",
    "endingTimestamp": "5",
    "endingOffsetsByTimestamp": '{"a":{"0":5}}',
    "endingOffsets": '{"a":{"0":5}}',
    "lateBinding": "true",
    "preserve": "true",
    "minPartitions": "3",
    "maxRecordsPerPartition": "100",
    "maxPartitions": "8",
    "partitionAssignor": "range",
    "maxBytesPerPartition": "1m",
    "kafka.bootstrap.servers": "host:9092",
    "groupIdPrefix": "p",
    "kafkaConsumer.pollTimeoutMs": "1",
    "fetchOffset.numRetries": "1",
    "fetchOffset.retryIntervalMs": "1",
    "maxOffsetsPerTrigger": "100",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "2m",
    "maxBytesPerTrigger": "64m",
    "initialOffsetsLocation": "/c/sources/0",
    "topicIdsInCheckpoint": "false",
    "pollInterval": "1s",
}

#: Options that an option needs beside it.
BESIDE = {
    "maxTriggerDelay": {"minOffsetsPerTrigger": "10"},
    "remoteStorageLayout": {"remoteStorage": "/t"},
    "remoteStorageKeyFile": {"remoteStorage": "/t"},
}

#: Options of tables, which a read of records refuses.
OF_TABLES = {"table", "history", "topic", "strict"}
OF_RECORDS = [option for option in READ_OPTIONS if option.name not in OF_TABLES]
USED_BY = {option.name: option.used_by for option in READ_OPTIONS}


@pytest.mark.addition("option of Spark or of writes")
def test_every_option_has_a_good_value_here() -> None:
    """An option that only Spark has needs a value here, so that it is tested."""
    assert {option.name for option in OF_RECORDS} == {*GOOD_VALUES}


@pytest.mark.parametrize("name", GOOD_VALUES)
@pytest.mark.addition("option of reads", "option of Spark or of writes")
def test_names_are_taken_in_any_case(name: str) -> None:
    """Spark passes names in lower case or unchanged, depending on the API."""
    raw = BESIDE.get(name, {}) | ({"path": "/d"} if name != "path" else {})
    query = next(iter(USED_BY[name]), Query.BATCH)
    expected = ReadOptions.parse({**raw, name: GOOD_VALUES[name]}, query)

    for written in (name.lower(), name.upper(), name.swapcase()):
        assert expected == ReadOptions.parse({**raw, written: GOOD_VALUES[name]}, query), written
    is_used = not name.endswith("Strategy") and USED_BY[name]  # a strategy alone decides nothing
    assert name == "path" or bool(is_used) == (expected != ReadOptions.parse(raw, query))


@pytest.mark.parametrize("option", OF_RECORDS, ids=lambda option: option.name)
def test_an_option_of_another_kind_of_query_changes_nothing(option: Option) -> None:
    """Code may give one set of options to batch queries and to streams."""
    for query in set(Query) - set(option.used_by):
        raw = {"path": "/d"}
        given = {option.name: GOOD_VALUES[option.name]}
        if query == Query.STREAM and option.name in {"endingOffsets", "endingOffsetsByTimestamp"}:
            with pytest.raises(OptionError, match=f"{option.name}.*a stream has no end"):
                ReadOptions.parse(raw | given, query)
            continue
        assert ReadOptions.parse(raw, query) == ReadOptions.parse(raw | given, query), query


def test_a_stream_starts_at_latest() -> None:
    """A batch query starts at earliest, and may not start at latest."""
    stream = ReadOptions.parse({"path": "/d"}, Query.STREAM)

    assert OffsetBound("startingOffsets", "latest", LATEST) == stream.start
    for text in ("latest", '{"a":{"0":-1}}', '{"a":"latest"}'):
        raw = {"path": "/d", "startingOffsets": text}
        start = ReadOptions.parse(raw, Query.STREAM).start
        assert isinstance(start, OffsetBound)
        assert LATEST == start.asked(TopicPartition("a", 0))
        with pytest.raises(OptionError, match="may not start at latest"):
            ReadOptions.parse(raw, Query.BATCH)


def test_the_least_size_of_a_micro_batch_is_not_above_the_largest() -> None:
    """Both limits may be equal. The second rule is that of ``kafka``."""
    raw = {"path": "/d", "maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "10"}
    triggers = ReadOptions.parse(raw, Query.STREAM).triggers

    assert triggers is not None
    assert (10, 10, 900_000) == (triggers.max_offsets, triggers.min_offsets, triggers.max_delay_ms)
    with pytest.raises(OptionError, match=r"'minOffsetsPerTrigger' is '11'.*Trigger is 10"):
        ReadOptions.parse(raw | {"minOffsetsPerTrigger": "11"}, Query.STREAM)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("5000", 5000),
        ("0", 0),
        (" 0S ", 0),
        ("1999us", 1),
        ("7ms", 7),
        ("2m", 120_000),
        ("2min", 120_000),
        ("3h", 10_800_000),
        ("1d", 86_400_000),
        ("2 hours", 7_200_000),
    ],
)
def test_the_longest_delay_is_a_time_string_of_spark(text: str, milliseconds: int) -> None:
    """A number without a unit is milliseconds. Longer forms are durations."""
    raw = {"path": "/d", "minOffsetsPerTrigger": "10", "maxTriggerDelay": text}
    triggers = ReadOptions.parse(raw, Query.STREAM).triggers

    assert triggers is not None
    assert milliseconds == triggers.max_delay_ms


def test_the_longest_delay_is_parsed_only_if_it_is_used() -> None:
    """The `kafka` source does not look at it otherwise."""
    raw = {"path": "/d", "maxTriggerDelay": "soon"}

    assert ReadOptions.parse(raw, Query.STREAM) == ReadOptions.parse({"path": "/d"}, Query.STREAM)
    for text in ("soon", "-5", "5 fortnights", ""):
        given = raw | {"maxTriggerDelay": text, "minOffsetsPerTrigger": "10"}
        with pytest.raises(OptionError, match=r"give a duration such as .* or a number"):
            ReadOptions.parse(given, Query.STREAM)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("subscirbe", "subscribe"),
        ("startingOffset", "startingOffsets"),
        ("ENDINGOFFSET", "endingOffsets"),
        ("includeHeader", "includeHeaders"),
        ("failOnDatalos_", "failOnDataLoss"),
        ("isolation_levle", "kafka.isolation.level"),
        ("readUpto2", "readUpTo"),
        ("maxBytesPerPartitions", "maxBytesPerPartition"),
        ("subscribepatern", "subscribePattern"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, nearest: str) -> None:
    """A misspelled name without an error would give wrong rows."""
    error = refusal({name: "x"})

    assert (name, "x") == (error.option, error.value)
    assert f"did you mean {nearest!r}?" in str(error)


@pytest.mark.parametrize("option", READ_OPTIONS, ids=lambda option: option.name)
def test_a_refusal_says_what_the_reference_says(option: Option) -> None:
    """The message contains the third column of the table in the README, without backticks."""
    if option.parse is None:
        assert "" == option.value_of("")
        return
    with pytest.raises(OptionError) as caught:
        option.value_of("")

    assert (option.name, "") == (caught.value.option, caught.value.value)
    assert caught.value.accepted.startswith("give " + option.accepts.replace("`", ""))


def test_options_without_effect_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """They are options of the client, of the other query, and names that are like no option."""
    unused = {
        "Kafka.Bootstrap.Servers": "host:9092",
        "kafka.group.id": "g",
        "kafka.SSL.truststore.location": "/t",
        "groupIdPrefix": "p",
        "maxOffsetsPerTrigger": "many",
        "zzzzzz": "x",
    }
    used = {"path": "/d", "subscribe": "a", "KAFKA.isolation.level": "read_committed"}

    assert ReadOptions.parse(used) == ReadOptions.parse(used | unused)
    assert [] == caplog.messages
    with caplog.at_level(logging.WARNING):
        warn_of_unused(used, Query.BATCH)
        assert [] == caplog.messages
        warn_of_unused(used | unused, Query.BATCH)
        warn_of_unused({"maxOffsetsPerTrigger": "5", "lateBinding": "true"}, Query.STREAM)
    message, of_stream = caplog.messages
    assert message.endswith("a batch query of a log directory: " + ", ".join(sorted(unused)))
    assert of_stream.endswith("a streaming query of a log directory: lateBinding")


@pytest.mark.parametrize("name", ["numPartition", "auto_create_topic"])
def test_a_name_that_is_nearly_one_of_a_write_s_is_refused(name: str) -> None:
    """The user has taken the read for a write."""
    error = refusal({name: "orders"})

    assert name == error.option
    assert "is an option of writes; a read names its topics with subscribe" in str(error)


def test_an_option_of_the_client_that_is_nearly_one_of_a_read_is_refused() -> None:
    """The read option would have changed the rows."""
    error = refusal({"kafka.isolation_level": "read_committed"})

    assert "did you mean 'kafka.isolation.level'?" in str(error)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kafka.auto.offset.reset", "startingOffsets"),
        ("kafka.key.deserializer", "bytes"),
        ("kafka.value.deserializer", "bytes"),
        ("kafka.enable.auto.commit", "commits no offsets"),
        ("kafka.interceptor.classes", "no consumer"),
        ("Kafka.Auto.Offset.Reset", "startingOffsets"),
    ],
)
def test_options_that_sparks_kafka_source_forbids_are_refused(name: str, said: str) -> None:
    """A user who sets one of these options expects an effect that it does not have."""
    error = refusal({name: "x"})

    assert name.lower() == error.option
    assert "not supported" in str(error)
    assert said in str(error)


@pytest.mark.parametrize("level", ["read_uncommitted", " READ_UNCOMMITTED "])
def test_reading_uncommitted_is_the_default(level: str) -> None:
    """The client's default may be given explicitly."""
    assert parse() == parse(**{"kafka.isolation.level": level})


@pytest.mark.parametrize("level", ["read_committed", "READ_COMMITTED"])
def test_reading_committed_data_can_be_asked_for(level: str) -> None:
    """The word is that of the Kafka client, in any case."""
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
    """An unknown word does not stand for the default."""
    error = refusal({name: value})

    assert (name, value) == (error.option, error.value)
    assert said in str(error)


def test_corrupt_batches_and_bounds_are_taken_as_given() -> None:
    """Both options reach the tasks."""
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
    """The message names two of the given options."""
    error = refusal({name: GOOD_VALUES[name] for name in names})

    assert names[0] == error.option
    assert f"{names[1]} is also given" in str(error)


@pytest.mark.parametrize("name", ["remoteStorageLayout", "remoteStorageKeyFile"])
def test_options_of_a_tier_need_the_tier(name: str) -> None:
    """A forgotten `remoteStorage` would otherwise leave the tier out without an error."""
    error = refusal({"path": "/d", name: GOOD_VALUES[name]})

    assert name == error.option
    assert "remoteStorage, which is not given" in error.accepted


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
    """One path is given, or several, or both options."""
    assert paths == ReadOptions.parse(raw).paths


@pytest.mark.parametrize("raw", [{}, {"paths": "[]"}, {"subscribe": "a"}])
def test_a_read_without_a_path_is_refused(raw: dict[str, str]) -> None:
    """The message shows how to give a path."""
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
    """Any other value is refused with an example."""
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
    """Blanks and empty names are ignored, and a topic counts once."""
    assert topics == parse(subscribe=text).subscribe


@pytest.mark.parametrize("text", ["", " ", ",", " , ,"])
def test_subscribing_to_nothing_is_refused(text: str) -> None:
    """An empty list does not stand for all topics."""
    assert "give topics such as a,b, at least one" in str(refusal({"subscribe": text}))


def test_a_pattern_is_taken_without_blanks_around_it() -> None:
    """Spark's `kafka` source trims the pattern, too."""
    assert "a.*|b" == parse(subscribePattern=" a.*|b ").subscribe_pattern


@pytest.mark.parametrize("text", ["", "  ", "(", "*a", "[z-a]"])
def test_a_pattern_that_is_none_is_refused(text: str) -> None:
    """An empty pattern would match all topics."""
    error = refusal({"subscribePattern": text})

    assert ("subscribePattern", text) == (error.option, error.value)
    assert re.search("give a (Java )?regular expression|repeat|closed", str(error))


def test_assign_is_partitions_sorted_and_once() -> None:
    """The order in the text does not matter."""
    expected = (TopicPartition("a", 0), TopicPartition("a", 10), TopicPartition("b", 2))

    assert expected == parse(assign='{"b":[2],"a":[10,0,0]}').assign


@pytest.mark.parametrize("name", ["includeHeaders", "failOnDataLoss"])
@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("FALSE", False), (" True ", True), ("false", False)]
)
def test_booleans_are_true_or_false_in_any_case(name: str, text: str, *, value: bool) -> None:
    """Blanks around the word are ignored."""
    options = parse(**{name: text})
    found = options.include_headers if name == "includeHeaders" else options.fail_on_data_loss

    assert value is found


@pytest.mark.parametrize("name", ["includeHeaders", "failOnDataLoss"])
@pytest.mark.parametrize("text", ["", "1", "yes", "t", "truefalse"])
def test_another_word_is_no_boolean(name: str, text: str) -> None:
    """No other word stands for true or false."""
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
    """The word may have any case."""
    assert value is parse(readUpTo=text).read_up_to


@pytest.mark.parametrize("text", ["", "end", "latest", "high_watermark"])
def test_another_end_is_refused_with_both_words(text: str) -> None:
    """The message contains both words."""
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
    """The units are those of Spark."""
    assert n_bytes == parse(maxBytesPerPartition=text).max_bytes_per_partition


@pytest.mark.parametrize(
    "text", ["", "m", "-1", "1.5m", "64 m", "64mib", "x", "1e6", "٣", "9" * 19]
)
def test_another_form_of_size_is_refused(text: str) -> None:
    """Fractions, signs and other units are refused."""
    assert "such as 64m" in str(refusal({"maxBytesPerPartition": text}))


def test_a_size_fits_64_bits() -> None:
    """The message of every option for a size has its name and the text of the user."""
    names = set()
    for option in (*READ_OPTIONS, *WRITE_OPTIONS):
        if "size such as" not in option.accepts:
            continue
        names.add(option.name)
        assert 2**63 - 1 == option.value_of("9223372036854775807")
        for text in ("9223372036854775808", "8388608t", "900000000000000000g"):
            with pytest.raises(OptionError, match="the largest size is 9223372036854775807 bytes"):
                option.value_of(text)
    assert {"maxInflatedBatchBytes", "kafka.buffer.memory", "kafka.max.request.size"} < names


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingTimestamp": "5"}, TimestampBound("startingTimestamp", "5", 5)),
        ({"lastRecords": " 7 "}, LastRecords(7)),
        ({"lastDuration": "2 days"}, LastDuration("lastDuration", "2 days", 2 * 86_400_000)),
    ],
)
def test_a_read_starts_by_offset_by_time_or_before_its_end(
    options: dict[str, str], start: object
) -> None:
    """Each kind of start has a separate type."""
    found = parse(**options).start
    is_by_time = isinstance(start, TimestampBound)

    assert found == (start.with_no_match(NoMatch.ERROR) if is_by_time else start)


def test_an_option_of_lower_precedence_is_not_even_parsed() -> None:
    """A timestamp for all takes precedence over a map, and a map over offsets, as in `kafka`."""
    bad = "no value at all"
    by_map = {"startingOffsetsByTimestamp": '{"a":{"0":5}}', "startingOffsets": bad}
    end_by_map = {"endingOffsetsByTimestamp": '{"a":{"0":6}}', "endingOffsets": bad}
    by_one = {"startingTimestamp": "5", "startingOffsetsByTimestamp": bad, "startingOffsets": bad}
    end_by_one = {"endingTimestamp": "6", "endingOffsetsByTimestamp": bad, "endingOffsets": bad}

    for options, value in ((by_map | end_by_map, None), (by_one | end_by_one, 5)):
        found = parse(**options).start
        assert isinstance(found, TimestampBound)
        assert value == found.everywhere
    assert "startingTimestamp" == refusal({**by_one, "startingTimestamp": bad}).option


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingTimestamp", "x"),
        ("startingTimestamp", "-1"),
        ("startingTimestamp", "1.5"),
        ("startingTimestamp", ""),
        ("endingTimestamp", "9223372036854775808"),
        ("endingTimestamp", '{"a":{"0":5}}'),
    ],
)
def test_a_timestamp_is_one_number_or_a_time(name: str, value: str) -> None:
    """The message shows both forms."""
    error = refusal({name: value})

    assert (name, value) == (error.option, error.value)
    assert "give milliseconds since 1970, or a time with its zone such as 2026" in str(error)


def test_a_time_without_a_zone_is_refused() -> None:
    """The zone of the session is never used."""
    error = refusal({"startingTimestamp": "2026-01-31T10:00:00"})

    assert "this time has no zone, and no zone is guessed: add Z for UTC, or an offset" in str(
        error
    )


def test_an_unknown_strategy_is_refused_even_if_it_is_not_used() -> None:
    """The `kafka` source refuses it, too."""
    assert "give error or latest" in str(refusal({"startingOffsetsByTimestampStrategy": "never"}))


@pytest.mark.parametrize(
    "name", ["minPartitions", "maxPartitions", "maxRecordsPerPartition", "lastRecords"]
)
@pytest.mark.parametrize("value", ["a", "1.0", "0", "-1", "", "9223372036854775808"])
def test_numbers_of_tasks_and_records_are_whole_and_positive(name: str, value: str) -> None:
    """The values are those of Spark's own suite, and one above the largest number."""
    error = refusal({name: value})

    assert (name, value, "give a number from 1") == (error.option, error.value, error.accepted)


@pytest.mark.parametrize("other", ["startingTimestamp", "startingOffsets", "lastDuration"])
def test_a_relative_start_stands_alone(other: str) -> None:
    """Two starts would contradict each other."""
    error = refusal({"lastRecords": "5", other: GOOD_VALUES[other]})

    assert "lastRecords" == error.option
    assert f"{other} is also given" in str(error)


@pytest.mark.parametrize("value", ["", "10", "minutes", "10 fortnights", "0 s", "-1 day", "1.5 h"])
def test_a_duration_has_numbers_and_units(value: str) -> None:
    """The message shows two examples."""
    error = refusal({"lastDuration": value})

    assert error.accepted == "give a duration such as 10 minutes or 2 days"


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ('{"a":{"0":1,"1":2}}', '{"a":{"0":5}}', "names different partitions: give a-1 in both"),
        (
            '{"a":{"0":1}}',
            '{"a":{"0":5},"b":{"3":6}}',
            "names different partitions: give b-3 in both",
        ),
        ('{"a":{"0":6}}', '{"a":{"0":5}}', "a-0 would start at 6 and end at 5"),
    ],
)
@pytest.mark.parametrize("suffix", ["Offsets", "OffsetsByTimestamp"])
def test_two_maps_that_do_not_fit_together_are_refused(
    start: str, end: str, said: str, suffix: str
) -> None:
    """The refusal needs no look at the directory."""
    error = refusal({"starting" + suffix: start, "ending" + suffix: end})

    assert ("starting" + suffix, start) == (error.option, error.value)
    assert said in str(error)


def test_maps_with_words_are_compared_where_both_have_numbers() -> None:
    """A word stands for partitions that are not known yet, and -2 and -1 for any offset."""
    parse(
        startingOffsets='{"a":"earliest","b":{"0":3}}', endingOffsets='{"a":{"0":1},"b":"latest"}'
    )
    parse(startingOffsets='{"a":{"0":3}}', endingOffsets='{"a":{"0":-1}}')
    parse(startingOffsets='{"a":{"0":3}}', endingOffsetsByTimestamp='{"b":{"0":1}}')
    error = refusal(
        {
            "startingOffsets": '{"a":{"0":3},"b":"earliest"}',
            "endingOffsets": '{"a":{"0":2},"b":"latest"}',
        }
    )

    assert "a-0 would start at 3" in str(error)


def test_a_start_at_latest_and_an_end_at_earliest_are_refused() -> None:
    """A batch query would read nothing."""
    assert "may not start at latest" in str(refusal({"startingOffsets": "latest"}))
    assert "may not end at earliest" in str(refusal({"endingOffsets": "earliest"}))


def test_options_of_writes_are_refused_as_such() -> None:
    """They are not answered with the nearest name of a read, which would mislead.

    Code for `kafka` gives the settings of its clients to reads and to writes.
    """
    of_reads = {option.name for option in READ_OPTIONS}
    of_writes = [option.name for option in WRITE_OPTIONS if option.name not in of_reads]
    for name in of_writes:
        if name.startswith("kafka."):
            assert parse() == parse(**{name: "any value"}) == parse(**{name.upper(): "any value"})
        else:
            assert "an option of writes; a read names its topics" in str(refusal({name: "x"}))
