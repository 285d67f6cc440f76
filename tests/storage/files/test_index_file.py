"""Names, paths, checkpoints and metadata, by the rules of the broker that writes them."""

from pathlib import Path

import pytest

from segmentlog.errors import CorruptCheckpointError, LogDirectoryError
from segmentlog.files.checkpoint import read_leader_epochs, read_offsets
from segmentlog.files.index_file import IndexFile
from segmentlog.files.metadata import read_meta_properties, read_topic_id
from segmentlog.files.names import (
    DirectoryState,
    FileKind,
    FileState,
    parse_partition_directory,
    parse_segment_file,
    segment_file_name,
)
from segmentlog.files.paths import local_path

ID = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0, DirectoryState.CURRENT)),
        ("a-b-3", ("a-b", 3, DirectoryState.CURRENT)),
        ("foo--1", ("foo-", 1, DirectoryState.CURRENT)),
        ("topic.with.dots-007", ("topic.with.dots", 7, DirectoryState.CURRENT)),
        (f"orders-1.{ID}-delete", ("orders", 1, DirectoryState.DELETE)),
        (f"a.b-c-12.{ID}-future", ("a.b-c", 12, DirectoryState.FUTURE)),
        (f"orders-1.{ID}-stray", ("orders", 1, DirectoryState.STRAY)),
    ],
)
def test_partition_directories_are_told_apart(
    name: str, expected: tuple[str, int, DirectoryState]
) -> None:
    """The last dash divides; a suffix says what the broker is doing."""
    topic_partition, state = parse_partition_directory(name)

    assert expected == (*topic_partition, state)


@pytest.mark.parametrize(
    "name",
    ["lost+found", "orders", "orders-", "-1", "x-1-delete", "a b-0", "..-0", "t-99999999999",
     "segmentlog.unfinished.x", "remote-log-index-cache", "t" * 250 + "-0"],
)  # fmt: skip
def test_foreign_directories_are_not_partitions(name: str) -> None:
    """What a broker would not have named is left alone."""
    assert parse_partition_directory(name) is None


def test_segment_files_have_offset_kind_and_state() -> None:
    """Twenty digits, a kind, and perhaps a state."""
    name = segment_file_name(42, FileKind.LOG)

    assert name == "00000000000000000042.log"
    assert parse_segment_file(name) == (42, FileKind.LOG, FileState.LIVE)
    assert parse_segment_file(name + ".swap") == (42, FileKind.LOG, FileState.SWAP)
    assert parse_segment_file("00000000000000000001.timeindex.deleted") == (
        1, FileKind.TIME_INDEX, FileState.DELETED,
    )  # fmt: skip
    for foreign in ("leader-epoch-checkpoint", "x.log", "1.log.bak", "9" * 20 + ".log"):
        assert parse_segment_file(foreign) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/a/b/", "/a/b"),
        ("file:///a%20b/c", "/a b/c"),
        ("file:/a", "/a"),
        ("file://localhost/a", "/a"),
        ("/a/../b", "/b"),
    ],
)
def test_paths_are_local_and_absolute(given: str, expected: str) -> None:
    """URIs lose their escapes, relative parts are resolved."""
    assert expected == local_path(given)


def test_home_and_working_directory_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the user's home, and a relative path starts where the process does."""
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.chdir("/")

    assert local_path("~/kafka") == "/somewhere/kafka"
    assert local_path("kafka") == "/kafka"


@pytest.mark.parametrize("given", ["s3://bucket/kafka", "file://host/a", "", "hdfs://x/y"])
def test_other_places_are_refused(given: str) -> None:
    """A scheme that is not supported is named."""
    with pytest.raises(LogDirectoryError):
        local_path(given)


def test_a_checkpoint_is_read(tmp_path: Path) -> None:
    """Version, count, entries in any order, any white space between fields."""
    (tmp_path / "c").write_text("0\n2\nb 0 7\nmy-topic  3\t42\n")

    assert read_offsets(str(tmp_path), "c") == {("b", 0): 7, ("my-topic", 3): 42}
    assert read_offsets(str(tmp_path), "missing") == {}


@pytest.mark.parametrize("text", ["", "0\n", "0\n0\n"])
def test_a_checkpoint_may_be_empty(tmp_path: Path, text: str) -> None:
    """A file that was created and not written has no entries."""
    (tmp_path / "c").write_text(text)

    assert read_offsets(str(tmp_path), "c") == {}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1\n0\n", 1), ("x\n0\n", 1), ("0\nmany\n", 2), ("0\n2\na 0 1\n", 2),
        ("0\n1\na 0 1\nb 0 1\n", 2), ("0\n1\na 0\n", 3), ("0\n1\na x 1\n", 3),
        ("0\n2\na 0 1\n\n", 4), ("\x00\x00", 1), ("0\n99999999999999999999999\na 0 1\n", 2),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_names_its_line(tmp_path: Path, text: str, line: int) -> None:
    """File, line, and for high watermarks the option that does without."""
    name = "replication-offset-checkpoint"
    (tmp_path / name).write_text(text)

    with pytest.raises(CorruptCheckpointError, match="readUpTo=logEnd") as caught:
        read_offsets(str(tmp_path), name)
    assert (str(tmp_path / name), line) == (caught.value.path, caught.value.line)


def test_leader_epochs_are_read(tmp_path: Path) -> None:
    """Epoch and start offset."""
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 17\n")

    assert read_leader_epochs(str(tmp_path / "leader-epoch-checkpoint")) == ((0, 0), (3, 17))


def test_metadata_is_read(tmp_path: Path) -> None:
    """Topic ids, and properties with their escapes."""
    (tmp_path / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAEAAAAAAAAAAg")
    (tmp_path / "meta.properties").write_text(
        "#\n#Mon\ncluster.id=a\\=b\\:c\nnode.id=1\nx : y z\n"
    )

    assert read_topic_id(str(tmp_path)) == "AAAAAAAAAAEAAAAAAAAAAg"
    assert read_meta_properties(str(tmp_path)) == {
        "cluster.id": "a=b:c", "node.id": "1", "x": "y z",
    }  # fmt: skip
    (tmp_path / "partition.metadata").write_text("version: 0\n")
    with pytest.raises(CorruptCheckpointError, match="topic_id"):
        read_topic_id(str(tmp_path))


@pytest.mark.parametrize("mapped", [True, False])
def test_an_index_file_answers_zeros_where_it_ends(tmp_path: Path, mapped: bool) -> None:
    """Missing, empty and short files read as if they were preallocated."""
    path = tmp_path / "i"
    with IndexFile(str(path), mapped=mapped) as missing:
        assert missing.read(0, 8) == bytes(8)
    path.write_bytes(b"")
    with IndexFile(str(path), mapped=mapped) as empty:
        assert (0, bytes(8)) == (empty.size, empty.read(0, 8))
    path.write_bytes(b"abcdefghij")
    with IndexFile(str(path), mapped=mapped) as file:
        assert (mapped, b"ij\0\0") == (file.is_mapped, file.read(8, 4))
