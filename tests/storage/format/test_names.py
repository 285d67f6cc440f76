"""Names of directories and files: those of brokers, and those that are not read."""

import pytest

from segmentlog.format.names import (
    DirectoryState,
    FileKind,
    FileState,
    SegmentFileName,
    parse_partition_directory,
    parse_segment_file,
    segment_file_name,
    topics_command,
)
from segmentlog.model import TopicPartition

HEX = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("orders-0", "orders", 0),
        ("a-b-3", "a-b", 3),
        ("a.b_c.d-12", "a.b_c.d", 12),
        ("topic.with.dots-007", "topic.with.dots", 7),
        ("foo--1", "foo-", 1),
        ("---7", "--", 7),
        ("...-0", "...", 0),
        (".-x-0", ".-x", 0),
        ("2024-2", "2024", 2),
        ("x-2147483647", "x", 2**31 - 1),
        ("x" * 249 + "-0", "x" * 249, 0),
        ("__consumer_offsets-49", "__consumer_offsets", 49),
        (f"a.{HEX}-0", f"a.{HEX}", 0),
    ],
)
def test_the_last_dash_divides_topic_and_partition(name: str, topic: str, partition: int) -> None:
    """Dots, dashes and underscores may be part of the topic's name."""
    expected = (TopicPartition(topic, partition), DirectoryState.CURRENT)

    assert expected == parse_partition_directory(name)


@pytest.mark.parametrize("state", ["future", "delete", "stray"])
@pytest.mark.parametrize(
    ("topic", "unique_id"),
    [
        ("orders", HEX),
        ("a-b.c", HEX),
        ("foo-", HEX),
        ("orders", HEX[:-1]),
        ("orders", HEX.upper()),
        ("orders-0.0", "a-b"),
        ("orders", "x-delete"),
    ],
)
def test_a_suffix_contains_the_state(topic: str, unique_id: str, state: str) -> None:
    """As for a broker, the id before the state is any word without a dot."""
    expected = (TopicPartition(topic, 3), DirectoryState(state))

    assert expected == parse_partition_directory(f"{topic}-3.{unique_id}-{state}")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "-0",
        "orders-",
        "orders-x",
        "orders-1x",
        "orders-0 ",
        "orders-0\n",
        " orders-0",
        "or ders-0",
        "or/ders-0",
        "örders-0",
        "orders-٣",
        "orders-+1",
        ".-0",
        "..-0",
        "x-2147483648",
        "x-99999999999",
        "x" * 250 + "-0",
        "lost+found",
        "kafka-data.bak",
        "remote-log-index-cache",
        "segmentlog.unfinished.x",
        f"orders-0.{HEX}",
        "orders-0.-delete",
        "orders-0.a.b-delete",
        "orders-0.a b-delete",
        "orders-b.abc-stray",
        f"orders-0.{HEX}-deleted",
        f"orders-0{HEX}-delete",
        "orders-0-delete",
        f"orders.{HEX}-delete",
    ],
)
def test_a_name_of_another_form_is_no_partition(name: str) -> None:
    """A name that no broker would give is ignored."""
    assert parse_partition_directory(name) is None


@pytest.mark.parametrize("kind", list(FileKind))
@pytest.mark.parametrize(
    ("suffix", "state"),
    [
        ("", FileState.LIVE),
        (".deleted", FileState.DELETED),
        (".cleaned", FileState.CLEANED),
        (".swap", FileState.SWAP),
    ],
)
def test_a_file_name_holds_offset_kind_and_state(
    kind: FileKind, suffix: str, state: FileState
) -> None:
    """Every kind of file can be in every state, and the name has both."""
    expected = SegmentFileName(42, kind, state)

    assert expected == parse_segment_file(f"00000000000000000042.{kind}{suffix}")


@pytest.mark.parametrize(
    ("name", "offset"),
    [("00000000000000000000.log", 0), ("09223372036854775807.log", 2**63 - 1)],
)
def test_the_digits_are_the_base_offset(name: str, offset: int) -> None:
    """Offsets up to the largest long are read."""
    assert SegmentFileName(offset, FileKind.LOG, FileState.LIVE) == parse_segment_file(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        "42",
        "42.",
        "42.log",  # a broker makes an empty segment with twenty digits beside it
        "x.log",
        "-1.log",
        "42.log.tmp",
        "42.log.deleted.swap",
        "42.log ",
        "42.log\n",
        "42.LOG",
        "4 2.log",
        "٤٢.log",
        "42.logs",
        "42log",
        "09223372036854775808.log",
        "000000000000000000042.log",
        "partition.metadata",
        "leader-epoch-checkpoint",
        "server.log",
        "00000000000000000042.log.2024-01-01",
    ],
)
def test_a_file_of_another_form_is_no_segment_file(name: str) -> None:
    """The whole name distinguishes segment files from other files."""
    assert parse_segment_file(name) is None


@pytest.mark.parametrize("offset", [0, 42, 2**63 - 1])
def test_a_written_name_parses_to_what_it_was_written_from(offset: int) -> None:
    """Names have 20 digits, and parsing returns the values that were written."""
    name = segment_file_name(offset, FileKind.TIME_INDEX)

    assert f"{offset:020d}.timeindex" == name
    assert SegmentFileName(offset, FileKind.TIME_INDEX, FileState.LIVE) == parse_segment_file(name)


def test_the_line_of_a_topic_for_kafkas_command() -> None:
    """A name with a dash in front is no option of it."""
    assert "kafka-topics.sh --bootstrap-server BOOTSTRAP --delete --topic t" == (
        topics_command("t", "--delete", "")
    )
    assert topics_command("-t", "--create", "", "--partitions 3").endswith(
        " --create --topic=-t --partitions 3"
    )
