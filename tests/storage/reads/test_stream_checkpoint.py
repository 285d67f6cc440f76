"""Checkpoints of Spark's streaming queries: their offsets, and files that cannot be read."""

import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import write_checkpoint
from stores_here import serve, store_of

import segmentlog
from segmentlog.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    OptionError,
    StreamOffsetError,
)
from segmentlog.model import TopicPartition
from segmentlog.reads.stream_checkpoint import (
    offsets_as_json,
    offsets_of_json,
    read_stream_checkpoint,
)

EXAMPLE = Path(__file__).parents[3] / "examples" / "checkpoint"
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
FIVE, SIX = '{"a":{"0":5}}', '{"a":{"0":6}}'


def test_a_query_of_kafka_stands_after_its_last_committed_batch() -> None:
    """Spark has written the checkpoint of the examples."""
    found = read_stream_checkpoint(EXAMPLE)

    assert (1, None, ["0"]) == (found.batch, found.planned_batch, list(found.sources))
    assert '{"orders":{"0":222,"1":210,"2":164}}' == offsets_as_json(found.offsets())


def test_the_rest_of_a_query_is_read_in_python(example_data: str) -> None:
    """The offsets are those that a dataset begins at, and may end at."""
    read = segmentlog.checkpoint_offsets(EXAMPLE)
    rest = segmentlog.read(example_data, "orders", starting_offsets=read)
    earlier = segmentlog.read(example_data, "orders", ending_offsets=read)

    assert (900 - 596, 596) == (rest.num_rows, earlier.num_rows)


def test_a_batch_that_is_only_planned_is_named(tmp_path: Path) -> None:
    """The offsets are those before the batch."""
    path = write_checkpoint(tmp_path / "c", {2: FIVE, 3: SIX}, committed=2)
    found = read_stream_checkpoint(path)

    assert (2, 3, {A0: 5}) == (found.batch, found.planned_batch, found.offsets())


def test_before_the_first_commit_a_query_stands_where_it_began(tmp_path: Path) -> None:
    """The file of the source has a zero byte before its version, and in Spark 2.1.0 a length."""
    files = {"new": b"\0v1\n" + FIVE.encode(), "old": bytes([len(FIVE)]) + FIVE.encode()}
    for name, data in files.items():
        path = write_checkpoint(tmp_path / name, {0: SIX}, initial={"0": data})
        found = read_stream_checkpoint(path)

        assert (-1, 0, {A0: 5}) == (found.batch, found.planned_batch, found.offsets())
    (path / "offsets" / "0").unlink()
    assert (-1, None, {A0: 5}) == (
        (found := read_stream_checkpoint(path)).batch,
        found.planned_batch,
        found.offsets(),
    )


def test_a_source_without_an_offset_stands_where_it_began(tmp_path: Path) -> None:
    """A query of two sources may have committed a batch of the other one."""
    initial = {"1": b"\0v1\n" + FIVE.encode(), "0": b'v1\n{"path":"file:///x"}'}
    path = write_checkpoint(
        tmp_path / "c", {0: '{"logOffset":0}\n-'}, committed=0, initial=initial
    )

    assert {"0": None, "1": {A0: 5}} == read_stream_checkpoint(path).sources


def test_sources_have_names_in_the_second_version(tmp_path: Path) -> None:
    """A name stands before each offset; a colon separates them."""
    sources = f"orders_1:{FIVE}\norders_2:{SIX}\nrate:17\n4:-"
    path = write_checkpoint(tmp_path / "c", {0: sources}, committed=0, version=2)
    found = read_stream_checkpoint(path)

    assert {A0: 6} == found.offsets("orders_2")
    assert [True, True, False, False] == [each is not None for each in found.sources.values()]
    with pytest.raises(OptionError, match=r"name one source: .* are orders_1, orders_2"):
        found.offsets()
    for source in ("rate", "4", "nothing"):
        with pytest.raises(OptionError, match=f"is '{source}'; the sources of"):
            found.offsets(source)


def test_a_query_without_kafka_has_no_offsets_of_partitions(tmp_path: Path) -> None:
    """A stream of files has offsets of another form."""
    path = write_checkpoint(tmp_path / "c", {0: '{"logOffset":0}'}, committed=0)

    with pytest.raises(OptionError, match="none of its sources is kafka or segmentlog"):
        segmentlog.checkpoint_offsets(path)


def test_earliest_is_left_out_in_python(tmp_path: Path) -> None:
    """A read begins there by itself."""
    path = write_checkpoint(tmp_path / "c", {0: '{"a":{"0":-2,"1":3}}'}, committed=0)

    assert {A1: 3} == segmentlog.checkpoint_offsets(path)
    assert {A0: -2, A1: 3} == read_stream_checkpoint(path).offsets()


def test_offsets_of_a_topic_that_was_created_again_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The ids of a checkpoint stay with its offsets; they pass in a topic that is the same."""
    with segmentlog.open_writer(tmp_path / "logs", "a", num_partitions=2) as writer:
        writer.append(pa.table({"value": ["x"] * 9, "partition": pa.array([0] * 9, pa.int32())}))
    now = segmentlog.open_log_dir(tmp_path / "logs").log("a", 0).topic_id
    for then, is_same in ((now, True), ("AAAAAAAAAAAAAAAAAAAAAQ", False)):
        sources = f'{{"a":{{"0":5}},"a@{then}":{{}}}}'
        path = write_checkpoint(tmp_path / then, {0: sources}, committed=0)
        offsets = pickle.loads(pickle.dumps(segmentlog.checkpoint_offsets(path)))
        for option, n_rows in (("starting_offsets", 4), ("ending_offsets", 5)):
            given = {option: offsets}
            if not is_same:
                with pytest.raises(StreamOffsetError, match=rf"\(id {now}, not {then}\): give"):
                    segmentlog.read(tmp_path / "logs", **given)
            caplog.clear()
            read = segmentlog.read(tmp_path / "logs", fail_on_data_loss=is_same, **given)
            assert n_rows == read.num_rows
            assert is_same == (not caplog.messages)


@pytest.mark.parametrize(
    "text",
    [
        "3",
        "[]",
        '{"offset":3}',
        '{"a":[0]}',
        '{"a":{"x":1}}',
        '{"a":{"0":"1"}}',
        '{"a":{"0":true}}',
        '{"a":{"0":-3}}',
        f'{{"a":{{"0":{2**63}}}}}',
        '{"a"',
        "[" * 100_000,
    ],
    ids=range(11),
)
def test_other_forms_are_not_offsets_of_partitions(text: str) -> None:
    """Each partition is a number, and so is its offset."""
    assert offsets_of_json(text) is None


def test_partitions_are_sorted_as_numbers() -> None:
    """JSON has them as texts."""
    text = '{"b":{"10":1,"9":2},"a":{"1":3}}'

    assert '{"a":{"1":3},"b":{"9":2,"10":1}}' == offsets_as_json(offsets_of_json(text))


def test_a_checkpoint_may_lie_in_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages do not have the credentials of its URL."""
    shutil.copytree(EXAMPLE, tmp_path / "c")
    url = serve(monkeypatch, store_of(tmp_path), "bucket")

    assert 222 == segmentlog.checkpoint_offsets(f"{url}/c")["orders", 0]
    with pytest.raises(LogDirectoryError, match="no such file") as missing:
        segmentlog.checkpoint_offsets(f"{url}/d?token=secret")
    assert "secret" not in str(missing.value)


def test_a_path_may_be_a_url_of_this_machine() -> None:
    """Spark's own paths have this form."""
    assert 222 == segmentlog.checkpoint_offsets(EXAMPLE.as_uri())["orders", 0]


def test_other_directories_are_no_checkpoints(example_data: str, tmp_path: Path) -> None:
    """The error names what a checkpoint has."""
    with pytest.raises(LogDirectoryError, match="no such file or directory; name the checkpoint"):
        read_stream_checkpoint(tmp_path / "nothing")
    for path in (example_data, tmp_path, EXAMPLE / "offsets"):
        with pytest.raises(LogDirectoryError, match="not a checkpoint of a streaming query"):
            read_stream_checkpoint(path)
    with pytest.raises(LogDirectoryError, match="it is a file"):
        read_stream_checkpoint(EXAMPLE / "metadata")


DAMAGED = {
    "empty": ("offsets/0", b"", "line 1: expected a version such as v1, found ''"),
    "without offsets": ("offsets/0", b"v1\n{}", "line 2: the file ends before the offset"),
    "cut in the settings": ("offsets/0", b'v1\n{"batch', "line 2: the file ends"),
    "cut in an offset": ("offsets/0", b'v1\n{}\n{"a":{"0":', "line 3: expected JSON"),
    "settings": ("offsets/0", b"v1\n{\n" + FIVE.encode(), "line 2: expected JSON"),
    "a new version": ("offsets/0", b"v3\n{}\n{}", "v3, and segmentlog knows v1 and v2"),
    "no name": ("offsets/0", b"v2\n{}\n-", "line 3: expected a source and its offset"),
    "not text": ("offsets/0", b"v1\n\xff\n{}", "line 2: it is not UTF-8"),
    "an empty commit": ("commits/0", b"", "commits/0, line 1: expected a version"),
    "a torn commit": ("commits/0", b"v1\n{", "commits/0, line 2: expected JSON"),
    "a planned batch": ("offsets/1", b'v1\n{}\n{"a":', "offsets/1, line 3: expected JSON"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_torn_file_is_an_error_with_its_line(tmp_path: Path, case: str) -> None:
    """A copy of a running query may have such files; Spark writes each in one step."""
    name, data, said = DAMAGED[case]
    path = write_checkpoint(tmp_path / "c", {0: FIVE}, committed=0)
    (path / name).write_bytes(data)

    with pytest.raises(CorruptCheckpointError) as raised:
        read_stream_checkpoint(path)
    assert said in str(raised.value)
    assert str(path / name) in str(raised.value)


def test_a_commit_without_offsets_is_an_error(tmp_path: Path) -> None:
    """The file of the offsets was lost in a copy."""
    path = write_checkpoint(tmp_path / "c", {0: FIVE}, committed=0)
    (path / "offsets" / "0").unlink()

    with pytest.raises(CorruptCheckpointError, match="the file with the offsets of the batch"):
        read_stream_checkpoint(path)


def test_settings_may_be_missing(tmp_path: Path) -> None:
    """Early versions of Spark 2 left the line empty."""
    path = write_checkpoint(tmp_path / "c", {0: FIVE}, committed=0)
    (path / "offsets" / "0").write_text(f"v1\n\n{FIVE}")

    assert {A0: 5} == read_stream_checkpoint(path).offsets()
