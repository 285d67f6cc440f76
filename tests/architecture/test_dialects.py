"""One dialect: each word of each dialect is taken, or refused with the word that is right there.

The words are those of the code: Spark's options, the arguments of public functions and methods,
the flags of the command line, Kafka's names; kcat's flags are those of its usage.
"""

import inspect
import re
import shutil
from collections.abc import Callable, Collection
from functools import partial
from inspect import signature
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql.types import BinaryType, StructType
from typer.testing import CliRunner
from words import ARGUMENTS, COMMANDS, FLAGS, FUNCTIONS, METHODS, arguments

import pyspark_segmentlog
import segmentlog
from pyspark_segmentlog.options.names import check_read_names, check_write_names, warn_of_unused
from pyspark_segmentlog.options.option import Query
from pyspark_segmentlog.options.reference import READ_OPTIONS, WRITE_OPTIONS
from segmentlog.arguments import is_word, spelled
from segmentlog.format.topic_config import setting_names
from segmentlog.serving.open_server import Server
from segmentlog.tools.cli import app

READS = [option.name for option in READ_OPTIONS]
WRITES = [option.name for option in WRITE_OPTIONS]
KCAT = [f"-{letter}" for letter in "CPLQbtpoceEfDKkHzTcZXdqvVGFmsrOUuJl"]
KAFKA = [
    *setting_names(),
    "isolation.level",
    "auto.offset.reset",
    "compression.type",
    "batch.size",
    "buffer.memory",
    "max.request.size",
]


WORDS = {
    "read": READS,
    "write": WRITES,
    "python": ARGUMENTS,
    "command line": FLAGS,
    "kafka": KAFKA,
    "kcat": KCAT,
}
EVERY = sorted({word for words in WORDS.values() for word in words})

#: What the right word is for the words that are confused most.
RIGHT = {
    "read": {
        "isolation_level": "kafka.isolation.level", "isolation.level": "kafka.isolation.level",
        "--isolation-level": "kafka.isolation.level", "since": "startingTimestamp",
        "--since": "startingTimestamp", "until": "endingTimestamp", "last": "lastRecords",
        "limit": "lastRecords", "headers": "includeHeaders", "include_headers": "includeHeaders",
        "topic": "subscribe", "topics": "subscribe", "-t": "subscribe", "-p": "assign",
        "partitions": "assign", "auto.offset.reset": "startingOffsets", "-o": "startingOffsets",
        "start_offset": "startingOffsets", "end_offset": "endingOffsets", "path_": "path",
        "columns": "select", "order": "orderBy", "filter": "where", "read_up_to": "readUpTo",
        "strings_": "strings", "on_corrupt_batch": "onCorruptBatch", "follow": "readStream",
        "fail-on-data-loss": "failOnDataLoss", "--group": "group_offsets",
    },
    "write": {
        "codec": "kafka.compression.type", "-z": "kafka.compression.type", "topics": "topic",
        "num_partitions": "numPartitions", "lock_timeout_seconds": "lockTimeout",
        "use_offsets": "includeOffset", "overwrite": "deleteRecords", "isolation_level": "reads",
        "level": "kafka.compression.zstd.level", "batch_size": "kafka.batch.size",
        "since": "reads",
    },
    "segmentlog.read": {
        "startingOffsets": "starting_offsets", "subscribe": "topics", "topic": "topics",
        "startingTimestamp": "since", "endingTimestamp": "until", "lastRecords": "last",
        "lastDuration": "since", "includeHeaders": "include_headers", "limit": "last",
        "kafka.isolation.level": "isolation_level", "isolation.level": "isolation_level",
        "partition": "filter", "assign": "filter", "failOnDataLoss": "fail_on_data_loss",
        "paths": "path",
    },
    "segmentlog.open_writer": {
        "numPartitions": "num_partitions", "codec": "config", "lockTimeout":
        "lock_timeout_seconds", "txnAppId": "txn_app_id", "topics": "topic",
    },
    "segmentlog.ProducerConfig": {
        "kafka.compression.type": "codec", "compression": "codec", "batch.size": "batch_size",
        "includeOffset": "use_offsets", "kafka.compression.zstd.level": "level",
    },
    "segmentlog.TopicConfig": {"retention.ms": "retention_ms", "retentionMs": "retention_ms"},
    "segmentlog.scan_log": {"startingTimestamp": "since", "topic": "topics"},
    "segmentlog.verify": {"topic": "topics", "subscribe": "topics", "partition": "partitions"},
    "segmentlog cat": {
        "--since": "-o @TIME", "--until": "-o e@TIME", "--limit": "--count", "--last": "-o -10",
        "--subscribe": "--topic", "--startingOffsets": "-o", "--max-messages": "--count",
        "-b": "there is no broker", "-L": "segmentlog topics", "-X": "--isolation-level",
    },
    "segmentlog dump": {
        "-t": "--topic", "-p": "--partition", "-c": "--limit", "--offset": "--start-offset",
        "--startingTimestamp": "--since", "--lastRecords": "--last", "--count": "--limit",
    },
    "segmentlog grep": {"-n": "--max-count", "--limit": "--max-count", "-t": "--topic"},
    "segmentlog groups": {"--path": "first argument"},
}  # fmt: skip


def some_words(name: str, names: Collection[str]) -> list[str]:
    """An eighth of the words: each word meets several of the names, and each name many words."""
    return EVERY[sorted(names).index(name) % 8 :: 8]


def refusal(place: str, word: str) -> str | None:
    """The error for a word in a place; None if the word is taken there."""
    try:
        if place in {"read", "write"}:
            {"read": check_read_names, "write": check_write_names}[place]({word: "x"})
        elif place.startswith("segmentlog "):
            command = COMMANDS[place.partition(" ")[2]]
            taken = {flag for one in command.params for flag in one.opts}
            if word in taken or word in {"-h", "--help"}:
                return None
            command.make_context(place, [word])
        else:
            function = FUNCTIONS[next(each for each in FUNCTIONS if _short(each) == place)]
            if word in arguments(function):
                return None
            function(**{word: object()})
    except segmentlog.OptionError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever the place raises
        return str(getattr(error, "message", f"{type(error).__name__}: {error}"))
    return None


def _short(name: str) -> str:
    return f"{name.partition('.')[0]}.{name.rpartition('.')[2]}"


@pytest.mark.addition(
    "option of reads", "option of Spark or of writes", "command", "public name", "word"
)
def test_the_table_has_every_word_of_the_code() -> None:
    """A new option, argument or flag gets into the table, so that other dialects know it."""
    of_spark = {spelled(name) for name in (*READS, *WRITES)}
    unknown = [word for word in EVERY if spelled(word) not in of_spark and not is_word(word)]

    assert [] == unknown
    assert len(EVERY) > 250


@pytest.mark.parametrize("place", sorted(RIGHT))
def test_a_refusal_names_the_right_word(place: str) -> None:
    """A word of another dialect is answered with the one that means the same here."""
    said = {word: refusal(place, word) or "" for word in RIGHT[place]}

    assert [] == [
        (word, said[word]) for word, right in RIGHT[place].items() if right not in said[word]
    ]


@pytest.mark.parametrize("dialect", sorted(WORDS))
def test_spark_takes_each_word_or_refuses_it(dialect: str) -> None:
    """No word is left out with a warning; settings of clients are, as by Spark's own source."""
    for word in WORDS[dialect]:
        of_client = word.lower().startswith("kafka.")
        for place, own in (("read", READS), ("write", WRITES)):
            said = refusal(place, word)
            lowered = {name.lower() for name in own}
            ignored = place == "write" and word.lower() in {"includeheaders"} | {
                option.name.lower() for option in READ_OPTIONS if not option.used_by
            }
            is_of_table = place == "read" and word == "topic"
            taken = (word.lower() in lowered and not is_of_table) or of_client or ignored

            assert taken == (said is None), (place, word, said)
            for right in re.findall(r"give '([^']+)'", said or ""):
                if "in a write" not in str(said):
                    assert right.lower() in lowered, (place, word, said)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.addition("public name")
def test_functions_take_each_word_or_refuse_it(name: str) -> None:
    """The error names the function that was called, and an argument that this function takes."""
    function = FUNCTIONS[name]
    taken = arguments(function)
    for word in (*some_words(name, FUNCTIONS), "nothing.like.it"):
        if word in taken:
            continue
        with pytest.raises(segmentlog.ArgumentError) as caught:
            function(**{word: object()})

        assert caught.value.option == word
        assert caught.value.accepted.startswith(f"{function.__name__}() takes no such argument")
        assert isinstance(caught.value, TypeError)
        assert set(re.findall(r"(?:give|mean) '([^']+)'", caught.value.accepted)) <= taken


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.addition("public name")
def test_methods_take_each_word_or_refuse_it(name: str, logs: str) -> None:
    """A public class is covered as a whole: no method raises Python's own error for a word."""
    owner, method = METHODS[name]
    kinds = {each.kind for each in signature(method).parameters.values()}
    if name == "KafkaLog.df":  # it passes options to Spark, which has its own
        return
    given: list[object] = [] if inspect.ismethod(method) else [MagicMock()]
    taken = arguments(method) - {"cls"}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        dataset = segmentlog.dataset(logs)
        values = {"num_rows": 1, "indices": [0], "sorting": "offset", "right_dataset": dataset}
        given = [
            dataset,
            *(values[each] for each in signature(method).parameters if each in values),
        ]
        of_query = owner is not segmentlog.LogDataset
        taken |= arguments(getattr(ds.Dataset, "scanner" if of_query else method.__name__))
        taken |= {"order"} if of_query else set()
    for word in (*some_words(name, METHODS), "since", "nothing.like.it"):
        if word in taken:
            continue
        with pytest.raises(segmentlog.ArgumentError) as caught:
            next(iter(method(*given, **{word: object()})))

        assert caught.value.option == word
        assert caught.value.accepted.startswith(f"{method.__name__}() takes no such argument")


@pytest.mark.parametrize("name", sorted(COMMANDS))
@pytest.mark.addition("command")
def test_commands_take_each_word_or_refuse_it(name: str) -> None:
    """The error names a flag of this command, and never one that lets records go."""
    command = COMMANDS[name]
    taken = {flag for one in command.params for flag in one.opts}
    for word in some_words(name, COMMANDS):
        flag = word if word.startswith("-") else f"--{word}"
        said = refusal(f"segmentlog {name}", flag)
        if said is None:
            continue
        for right in re.findall(r"(?:give|mean) '(-[^']+)'", said):
            assert right in taken, (flag, said)
        assert not re.search(r"mean '(--yes|--purge|--remove|--roll|-y)'", said)


def test_names_of_catalogs_and_platforms_pass(caplog: pytest.LogCaptureFixture) -> None:
    """A job for Spark's own source stays the same apart from one word."""
    text = """
        provider owner location comment external collation is_managed_location queryName sep
        inferSchema mergeSchema recursiveFileLookup timestampAsOf databricks.x delta.y spark.sql.z
        serialization.format transient_lastDdlTime numFiles catalog database user charset encoding
        badRecordsPath cloudFiles.format team env credential group.id client.id max.poll.records
        max.poll.interval.ms fetch.min.bytes security.protocol bootstrap.servers acks linger.ms
    """
    names = text.split()
    given = dict.fromkeys([*names, *(f"kafka.{name}" for name in names if "." in name)], "x")
    check_read_names(given)
    warn_of_unused(given, Query.BATCH)

    (message,) = caplog.messages
    assert set(given) == set(message.partition("directory: ")[2].split(", "))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log directory without a broker: ten records in each of two partitions."""
    path = tmp_path_factory.mktemp("dialects") / "logs"
    rows = pa.table({"value": [b"v"] * 20, "partition": pa.array([0, 1] * 10, pa.int32())})
    with segmentlog.open_writer(path, "orders", num_partitions=2) as writer:
        writer.append(rows)
    return str(path)


#: Values of the arguments that a function needs, beside the refused one.
NEEDED = {
    "topic": "orders",
    "partition": 0,
    "offset": 0,
    "keys": ["a"],
    "name": "producers",
    "replication_factor": 1,
}


def error_of(call: Callable[[], object]) -> Exception | None:
    """The exception of a call; what it opened is closed again, as a server that listens."""
    try:
        opened = call()
        if isinstance(opened, Server):
            opened.close()
    except Exception as error:  # noqa: BLE001 - its type is what is tested
        return error
    return None


@pytest.mark.parametrize(
    "name",
    sorted(name for name, each in FUNCTIONS.items() if "path" in signature(each).parameters),
)
def test_an_error_names_the_argument_that_has_the_value(
    name: str, logs: str, tmp_path: Path
) -> None:
    """It is neither an argument of an inner function, nor one that was not given."""
    function = FUNCTIONS[name]
    needed = [
        each.name
        for each in signature(function).parameters.values()
        if each.default is each.empty and each.name in arguments(function)
    ]
    paths = [] if "path" in arguments(function) else [logs]
    for parameter in sorted(arguments(function)):
        path = shutil.copytree(logs, tmp_path / parameter)
        given = {each: NEEDED.get(each, str(path)) for each in needed} | {parameter: -7}
        error = error_of(partial(function, *paths, **given))
        if isinstance(error, segmentlog.OptionError) and error.value:
            expected = {parameter} if error.value == "-7" else {*given, "path"}
            assert error.option in expected, error


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": '{"orders":{"0":99,"1":0}}'},
        {"startingOffsets": '{"orders":{"0":9}}'},
        {"endingOffsets": '{"orders":{"0":99,"1":0}}'},
        {"endingOffsets": '{"orders":{"0":9}}'},
        {"endingOffsets": "earliest"},
        {"startingOffsets": "latest"},
        {"startingTimestamp": "2200-01-01"},
        {"startingOffsetsByTimestamp": '{"orders":{"0":7258118400000,"1":0}}'},
        {"endingOffsetsByTimestamp": '{"orders":{"0":0}}'},
        {"startingOffsets": '{"orders":{"0":5,"1":0}}', "endingTimestamp": "1990-01-01"},
        {"startingTimestamp": "1990-01-01", "endingOffsets": '{"orders":{"0":0,"1":99}}'},
        {"lastRecords": "3", "lastDuration": "2h"},
        {"subscribe": "orders", "assign": '{"orders":[0]}'},
        {"subscribe": "payments"},
        {"assign": '{"orders":[7]}', "startingOffsets": '{"orders":{"7":0}}'},
        {"maxPartitions": "1", "minPartitions": "2"},
        {"remoteStorageLayout": "aiven"},
        {"history": "true"},
        {"kafka.isolation.level": "committed"},
    ],
    ids="+".join,
)
@pytest.mark.parametrize("query", list(Query))
def test_an_error_of_spark_names_only_options_that_are_given(
    logs: str, given: dict[str, str], query: Query
) -> None:
    """Other options stand only in a remedy, with their value; lists name alternatives."""
    source = pyspark_segmentlog.SegmentLogDataSource({"path": logs, **given})

    def plan() -> None:
        columns = source.schema()
        if query == Query.BATCH:
            source.reader(columns).partitions()
        else:
            source.streamReader(columns).initialOffset()

    said = re.sub(r"give only one of .*", "", str(error_of(plan) or ""))
    named = {name for name in READS if re.search(rf"\b{re.escape(name)}\b(?!=)", said)}
    words = {"path", "table", "topic", "history", "preserve", "replicas", "strings"}
    belongs = {"remoteStorage"} if "remoteStorageLayout" in given else set()

    assert named - words <= {*given} | belongs, said


@pytest.mark.parametrize("word", ["topics", "num_partitions", "codec", "since", "lock_timeout"])
def test_an_unknown_option_of_spark_is_named_as_it_is_given(logs: str, word: str) -> None:
    """The error does not put the right option in its place, as if it had the value."""
    source = pyspark_segmentlog.SegmentLogDataSource({"path": logs, "topic": "orders", word: "x"})
    columns = StructType().add("value", BinaryType())

    for call in source.schema, partial(source.writer, columns, False):
        error = error_of(call)
        assert isinstance(error, segmentlog.OptionError)
        assert error.option in {word, "topic"}
    assert error.option == word


@pytest.mark.parametrize(
    "name", sorted(name for name, each in COMMANDS.items() if "--remote-storage" in each.flags)
)
def test_an_error_of_a_command_names_its_flags(name: str) -> None:
    """The library calls an option as Python does."""
    first = {"grep": ["a"], "audit": ["--table", "t", "logs"]}.get(name, [])
    for given in ("--remote-storage-layout", "local"), ("--remote-storage-key-file", "k.pem"):
        done = CliRunner().invoke(app, [name, *first, "examples", *given])

        assert f"option '{given[0]}' is" in done.stderr
        assert "belongs to --remote-storage, which is not given" in done.stderr
