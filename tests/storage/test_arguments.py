"""Public functions refuse wrong types and extreme numbers in one plain sentence."""

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import segmentlog
from segmentlog import OptionError, Producer, ProducerConfig, SegmentLogError, TopicConfig
from segmentlog.arguments import refused

Call = Callable[[Any], object]

BAD: list[Any] = [
    None, -1, 0, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**80, 1.5, float("nan"), True, "5", "",
    b"x", object(), [], [None], np.array(["a", "b"]), {}, {"a": 1}, {1: 2},
    datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31), timedelta(0), timedelta.max, "a\0b",
    "\udc80",
]  # fmt: skip

#: Python's own sentences about a value of a wrong type, which name the type.
PLAIN = (
    "expected str, bytes or os.PathLike object, not ",
    "memoryview: a bytes-like object is required, not ",
    "Cannot convert ",
    "unhashable type: ",
)

ROWS = pa.table({"value": [b"1"]})
PLACES = pa.table({"partition": [0], "offset": [0], "key": [b"k"]})
AUDITED = (
    "partitions", "partition_column", "offset_column", "topic_column", "columns", "most_ranges",
    "spill_directory", "since", "until", "starting_offsets", "ending_offsets", "isolation_level",
    "read_up_to", "on_corrupt_batch",
)  # fmt: skip


def write(path: Path, topic: str = "t", **options: Any) -> None:
    """One row."""
    with segmentlog.open_writer(path, topic, **options) as writer:
        writer.append(ROWS)


def reads(example_data: str) -> Iterator[tuple[str, Call]]:
    """Functions that read, by the names of their arguments."""
    directory = segmentlog.open_log_dir(example_data)
    log, logs = directory.log("orders", 0), segmentlog.dataset(example_data)

    def scan(name: str) -> Call:
        return lambda value: log.scan(**{name: value}).read_all()

    def count(name: str) -> Call:
        return lambda value: segmentlog.dataset(example_data, **{name: value}).count_rows()

    bounds = ("start_offset", "end_offset", "since", "until")
    policy = ("read_up_to", "isolation_level", "on_corrupt_batch", "max_inflated_batch_bytes")
    yield from ((f"scan {each}", scan(each)) for each in (*bounds, *policy, "columns"))
    offsets = ("starting_offsets", "ending_offsets")
    yield from ((f"dataset {each}", count(each)) for each in (*offsets, *policy, "topics"))
    yield "dataset offset", lambda v: count("starting_offsets")({("orders", 0): v})
    yield "slices start_offset", lambda value: log.slices(value, 5)
    yield "slices end_offset", lambda value: log.slices(0, value)
    yield "slices max_bytes", lambda value: log.slices(0, 5, value)
    yield "offset_for_timestamp", log.offset_for_timestamp
    yield "log topic", lambda value: directory.log(value, 0)
    yield "log partition", lambda value: directory.log("orders", value)
    yield "open_log_dir", segmentlog.open_log_dir
    yield "count_by_time", logs.count_by_time
    yield "take", logs.take
    yield "head", logs.head
    yield "columns", lambda value: logs.head(1, value)
    yield "filter", lambda value: logs.head(1, filter=value)
    yield "batch_size", lambda value: logs.head(1, batch_size=value)
    yield "order", lambda value: logs.head(1, order=value)


def changes(path: Path) -> Iterator[tuple[str, Call]]:
    """Functions that change a directory, by the names of their arguments."""
    compacted: dict[str, Any] = {"settings": {"cleanup.policy": "compact"}}

    def compact(name: str) -> Call:
        return lambda value: segmentlog.compact(path, **(compacted | {name: value}))

    def retain(name: str) -> Call:
        kept: dict[str, Any] = {"settings": {"retention.ms": "-1"}}
        return lambda value: segmentlog.retain(path, **(kept | {name: value}))

    def of_writer(name: str) -> Call:
        return lambda value: write(path, **{name: value})

    def of_config(name: str) -> Call:
        return lambda value: write(path, config=ProducerConfig(**{name: value}))

    def of_topic(name: str) -> Call:
        return lambda v: write(path, config=ProducerConfig(TopicConfig(**{name: v})))

    def batches(**given: Any) -> None:
        writer = segmentlog.open_writer(path, "t")
        try:
            known: dict[str, Any] = {"batches": b"", "partition": 0}
            writer.append_batches(**(known | given))
        finally:
            writer.abort()

    waits = "lock_timeout_seconds"
    sizes = ("dedupe_buffer_bytes", "load_factor", "producer_expiration_ms", "now_ms", waits)
    yield from ((f"compact {each}", compact(each)) for each in ("topics", "settings", *sizes))
    yield from ((f"retain {each}", retain(each)) for each in ("topics", "settings", waits))
    yield "setting", lambda value: segmentlog.retain(path, settings={"retention.ms": value})
    yield "alter topic", lambda value: segmentlog.alter_settings(path, value)
    yield "alter remove", lambda value: segmentlog.alter_settings(path, remove=value)
    yield "topic_settings", lambda value: segmentlog.topic_settings(path, value)
    yield "delete offset", lambda v: segmentlog.delete_records(path, "t", 0, offset=v)
    yield "delete before", lambda v: segmentlog.delete_records(path, "t", 0, before=v)
    yield "delete topic", lambda v: segmentlog.delete_records(path, v, 0, offset=0)
    yield "delete partition", lambda v: segmentlog.delete_records(path, "t", v, offset=0)
    yield "delete_topic", lambda value: segmentlog.delete_topic(path, value, dry_run=True)
    options = ("topic", "num_partitions", "config", waits, "producer")
    yield from ((f"open_writer {each}", of_writer(each)) for each in options)
    yield "txn_app_id", lambda value: write(path, txn_app_id=value, txn_version=1)
    yield "txn_version", lambda value: write(path, txn_app_id="a", txn_version=value)
    yield "append", lambda value: segmentlog.open_writer(path, "t").append(value)
    yield "append_batches batches", lambda value: batches(batches=value)
    yield "append_batches partition", lambda value: batches(partition=value)
    yield "append_batches topic", lambda value: batches(topic=value)
    configured = ("topic_config", "own", "codec", "batch_size", "buffer_memory")
    yield from ((f"config {each}", of_config(each)) for each in configured)
    yield from (
        (f"topic config {each}", of_topic(each)) for each in ("segment_bytes", "compression_type")
    )
    yield "producer_id", Producer
    yield "producer_epoch", lambda value: Producer(1, value)
    yield "base_sequence", lambda value: Producer(1, 0, value)


def assert_plain(name: str, call: Call) -> None:
    """Each bad value is accepted, or refused in a plain sentence."""
    for value in BAD:
        try:
            call(value)
        except SegmentLogError:
            continue
        except pa.ArrowException:
            continue
        except (TypeError, ValueError, LookupError) as error:
            if not str(error).startswith(PLAIN):
                pytest.fail(f"{name}={value!r}: {error!r}")


@pytest.mark.slow
def test_an_audit_refuses_a_wrong_argument_in_a_sentence(example_data: str) -> None:
    """Whatever the argument and the value are."""
    given: dict[str, Any] = {"topics": "orders", "table": PLACES}

    def audit(name: str) -> Call:
        return lambda value: segmentlog.audit(example_data, **(given | {name: value}))

    for name in ("topics", "table", *AUDITED):
        assert_plain(name, audit(name))


def test_a_read_refuses_a_wrong_argument_in_a_sentence(example_data: str) -> None:
    """No other exception is raised, and no process ends by a signal."""
    for name, call in reads(example_data):
        assert_plain(name, call)


def test_a_change_refuses_a_wrong_argument_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other exception is raised, and no process ends by a signal."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "logs")
    for name, call in changes(tmp_path / "logs"):
        assert_plain(name, call)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda logs: logs.count_by_time(3600),
            (
                "option 'interval' is '3600'; give a timedelta of whole milliseconds, such as "
                "timedelta(minutes=1)"
            ),
        ),
        (
            lambda logs: logs.take([None]),
            "option 'indices' is '[None]'; give row numbers, counted from 0",
        ),
        (
            lambda logs: logs.scan(batch_size=0),
            "option 'batch_size' is '0'; give a whole number from 1 to 9223372036854775807",
        ),
    ],
)
def test_the_sentence_names_argument_value_and_what_is_accepted(
    example_data: str, call: Call, message: str
) -> None:
    """The message shows an argument as Python writes it."""
    with pytest.raises(OptionError) as caught:
        call(segmentlog.dataset(example_data))

    assert message == str(caught.value)


def test_numbers_of_numpy_and_paths_of_bytes_are_taken(example_data: str) -> None:
    """A number may be numpy's, and a path may be bytes."""
    log = segmentlog.open_log_dir(example_data.encode()).log("orders", np.int32(0))  # type: ignore[arg-type]

    assert 5 == log.scan(np.int64(0), np.int64(5)).read_all().num_rows  # type: ignore[arg-type]


def test_a_negative_bound_of_inflated_bytes_does_not_reach_the_kernels(example_data: str) -> None:
    """Kernels took a negative bound as a size of memory, and the process ended by a signal."""
    log = segmentlog.open_log_dir(example_data).log("orders", 0)

    values: list[Any] = [-1, -(2**63), None, "5"]
    for value in values:
        with pytest.raises(OptionError, match="max_inflated_batch_bytes"):
            log.scan(max_inflated_batch_bytes=value)


def test_a_refused_value_is_never_evaluated_to_be_shown() -> None:
    """`repr` of a lazy table, or of a relation of DuckDB, runs its query."""

    class Lazy:
        def __repr__(self) -> str:
            raise AssertionError("the query has run")

    for value in (Lazy(), [Lazy()], {"rows": Lazy()}, {Lazy(): 1}):
        error = refused("rows", value, "give a table")
        assert "Lazy" in str(error) or "builtins." in str(error)
    assert str(refused("limit", [1, "a"], "give a number")).startswith(
        "option 'limit' is \"[1, 'a']"
    )
    assert "Path" in str(refused("limit", Path("x"), "give a number"))


@pytest.mark.parametrize(
    "call",
    [
        lambda lazy, path: segmentlog.clone(lazy, "t", "u"),
        lambda lazy, path: segmentlog.clone(path, lazy, "u"),
        lambda lazy, path: segmentlog.clone(path, "t", lazy),
        lambda lazy, path: segmentlog.compact(lazy),
        lambda lazy, path: segmentlog.erase(lazy, "k"),
        lambda lazy, path: segmentlog.offsets_csv([], lazy),
        lambda lazy, path: segmentlog.restore(path, to=lazy),
        lambda lazy, path: segmentlog.retain(lazy),
        lambda lazy, path: segmentlog.table(path, lazy),
        lambda lazy, path: segmentlog.topic_settings(lazy, "t"),
        lambda lazy, path: segmentlog.undelete(lazy, "t"),
        lambda lazy, path: segmentlog.verify(lazy),
    ],
)
def test_a_query_in_a_wrong_place_does_not_run(
    call: Callable[[Any, Path], object], tmp_path: Path
) -> None:
    """Rows that a function does not take are neither computed nor shown."""

    class Relation:
        columns = ("value",)
        __hash__ = None

        def _run(self, *_: object) -> Any:
            raise AssertionError("the query has run")

        __str__ = __repr__ = __len__ = __bool__ = __iter__ = __getitem__ = _run

    (tmp_path / "t-0").mkdir()
    with pytest.raises(OptionError, match="Relation"):
        call(Relation(), tmp_path)


def test_numbers_of_an_enumeration_are_given_by_their_words() -> None:
    words: Any = {"compression_type": "LZ4", "message_timestamp_type": "log-append-time"}
    configured: Any = ProducerConfig
    assert configured(codec="zstd").codec is segmentlog.Codec.ZSTD
    config = TopicConfig(**words)
    assert config.compression_type is segmentlog.Codec.LZ4
    assert config.message_timestamp_type is segmentlog.TimestampType.LOG_APPEND_TIME
    for wrong in ("zip", 4, None):
        with pytest.raises(OptionError, match="give a Codec, or one of none, gzip, snappy"):
            configured(codec=wrong)
    with pytest.raises(OptionError, match="level"):
        configured(level="3")


def test_an_argument_that_has_no_name_is_asked_for_by_position() -> None:
    """Also where the function takes its options by name in one dictionary."""
    with pytest.raises(segmentlog.ArgumentError, match=r"open_log_dir\(\).* give it by position"):
        segmentlog.open_log_dir(path="/var/lib/kafka")  # type: ignore[call-arg]


def _arguments_with_defaults() -> Iterator[tuple[str, Callable[..., object], str, object]]:
    """The arguments of public functions and methods; each with its default."""
    functions = dict[str, Callable[..., object]]()
    for name in segmentlog.__all__:
        found = getattr(segmentlog, name)
        if inspect.isclass(found):
            methods = inspect.getmembers(found, inspect.isfunction)
            functions |= {
                f"{name}.{each}": method
                for each, method in methods
                if hasattr(method, "__wrapped__") and (each == "__init__" or each[0] != "_")
            }
        elif callable(found):
            functions[name] = found
    for name, function in functions.items():
        for each in inspect.signature(function).parameters.values():
            yield name, function, each.name, each.default


def _refusal(function: Callable[..., object], argument: str, value: object) -> str:
    """The argument that a function refuses if it gets this value."""
    parameters = inspect.signature(function).parameters.values()
    needed = [each for each in parameters if each.default is each.empty]
    by_name = {each.name: None for each in needed if each.kind is each.KEYWORD_ONLY}
    by_place = (None for each in needed if each.kind < each.VAR_POSITIONAL)
    with pytest.raises(OptionError) as caught:
        function(*by_place, **by_name, **{argument: value})
    return caught.value.option


def test_a_switch_takes_no_text_that_python_takes_as_true() -> None:
    """As in ``open_writer(…, overwrite="false")``, before anything is done."""
    switches = [each for each in _arguments_with_defaults() if type(each[3]) is bool]
    assert len(switches) > 50
    for name, function, argument, _ in switches:
        assert argument == _refusal(function, argument, "false"), name


def test_what_is_called_later_is_a_function() -> None:
    """A change would end at its first call, in the middle."""
    told = [each for each in _arguments_with_defaults() if callable(each[3])]
    told = [each for each in told if not inspect.isclass(each[3])]
    assert len(told) > 10
    for name, function, argument, _ in told:
        assert argument == _refusal(function, argument, "print"), name


@pytest.mark.parametrize(
    "value",
    [None, 5, "t", b"t", [], [("t", 0)], {"t": 1}, {"t": [1]}, {1: [[1]]}, {"t": ["1"]},
     {"t": [["a"]]}, {"t": [[]]}, {"t": None}, pa.table({"group": ["g"]}), len],
)  # fmt: skip
def test_a_placement_is_as_it_was_proposed(value: Any) -> None:
    for function in (segmentlog.creation_commands, segmentlog.reassignment_json):
        with pytest.raises(OptionError, match=r"'placement' is .*; give "):
            function(value)
    assert '"replicas": [1, 2]' in segmentlog.reassignment_json({"t": [[1, 2]]})


@pytest.mark.parametrize(
    "value", [None, 5, "group", [1], [("g", "t", 0, 5)], {"g": 1}, pa.table({"group": ["g"]})]
)
def test_offsets_of_groups_are_those_of_a_restoration(value: Any) -> None:
    with pytest.raises(OptionError, match=r"'offsets' is .*; give the offsets of a Restoration"):
        segmentlog.offsets_csv(value)


@pytest.mark.parametrize("value", [4, 4.3, b"4.3", ["4.3"], "4", "x.y"])
def test_a_version_of_kafka_is_a_text(tmp_path: Path, value: Any) -> None:
    write(tmp_path)
    with pytest.raises(OptionError, match=r"'kafka_version'.*a version of Apache Kafka"):
        segmentlog.preflight(tmp_path, kafka_version=value)
