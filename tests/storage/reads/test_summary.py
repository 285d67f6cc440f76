"""Summaries of logs at a prompt and in a notebook."""

import html.parser
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import segmentlog
from segmentlog.model import TopicPartition


class Table(html.parser.HTMLParser):
    """The cells of a table, row by row; refuses tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        assert [] == self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_log_and_a_directory_say_what_they_hold(example_data: str) -> None:
    """Each representation is one line."""
    directory = segmentlog.open_log_dir(example_data)
    log = directory.log("orders", 0)

    assert f"LogDirectory({example_data!r}, topics=4, partitions=8)" == repr(directory)
    path = f"{example_data}/orders-0"
    expected = f"Log('orders-0', offsets [0, 335), 6,381 bytes in 1 segment, {path!r})"
    assert expected == repr(log)


def test_a_notebook_shows_a_table(example_data: str) -> None:
    """The table leaves out the brokers' internal topics."""
    directory = segmentlog.open_log_dir(example_data)
    heading, *rows = Table(directory._repr_html_()).rows

    assert ["topic", "partition", "start", "end", "segments", "bytes", "first", "last"] == heading
    assert ["customers", "orders", "orders", "orders", "payments"] == [row[0] for row in rows]
    expected = [
        "orders",
        "0",
        "0",
        "335",
        "1",
        "6,381",
        "2025-10-09 08:58:08",
        "2025-10-12 08:34:08",
    ]
    assert expected == rows[1]
    assert [expected] == Table(directory.log("orders", 0)._repr_html_()).rows[1:]


def test_a_table_is_short_and_escaped(write_log: Callable[..., Path], tmp_path: Path) -> None:
    """The table has at most twenty partitions, and names in it are escaped."""
    for partition in range(23):
        write_log([[(0, 10**18)]], f"t-{partition}")
    text = segmentlog.open_log_dir(tmp_path)._repr_html_()
    rows = Table(text).rows[1:]

    assert 20 == len(rows)
    named = segmentlog.Log(TopicPartition("<b>&", 0), str(tmp_path / "t-0"))._repr_html_()
    assert "<b>" not in named
    assert "<b>&" == Table(named).rows[1][0]
    assert {str(10**18)} == {row[-1] for row in rows}  # no calendar has that time
    assert "and 3 more partitions" in text


def test_a_log_that_cannot_be_read_is_shown_with_the_reason(
    write_log: Callable[..., Path], tmp_path: Path
) -> None:
    """A representation never raises an error."""
    partition = write_log([[(0, 5)], [(1, 6)]])
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    first = partition / f"{0:020d}.log"
    first.write_bytes(b"\0" * 11 + b"\1" + first.read_bytes()[12:])  # a length of 1
    first.with_suffix(".index").unlink()

    assert "cannot be read: " in log._repr_html_()
    for path in partition.iterdir():
        path.unlink()
    partition.rmdir()
    assert repr(segmentlog.Log(log.topic_partition, log.path)).startswith("Log('t-0', ")


def test_the_heading_of_a_table_counts_its_rows(tmp_path: Path) -> None:
    """The heading counts the internal topics of brokers, which the table leaves out."""
    for name in ("a-0", "a-1", "b-0", "__consumer_offsets-0"):
        (tmp_path / name).mkdir()
    html = segmentlog.open_log_dir(tmp_path)._repr_html_()

    assert 3 == html.count("<tr><td")
    assert "topics=2, partitions=3" in html
    assert "not shown: 1 in brokers" in html


def test_names_of_files_that_are_no_text_can_be_shown(tmp_path: Path) -> None:
    """A notebook could not encode them, and a terminal would carry out what they say."""
    directory = tmp_path / os.fsdecode(b"\xff\x1b[31m\n<i>")
    directory.mkdir()
    with segmentlog.open_writer(directory, "t") as writer:
        writer.append(pa.table({"value": ["a"]}))
    opened = segmentlog.open_log_dir(directory)
    log = opened.log("t", 0)
    shutil.rmtree(directory)
    shown = [opened._repr_html_(), log._repr_html_(), repr(opened), repr(log)]
    shown.append(repr(segmentlog.Log(log.topic_partition, log.path)))
    for text in shown:
        text.encode()
        assert "\x1b" not in text
        assert "\n" not in text
    assert not any("<i>" in each for each in shown[:2])


def test_a_log_in_a_store_is_shown_by_its_url(tmp_path: Path) -> None:
    url = f"bucket+file://{tmp_path}/b"
    with segmentlog.open_writer(url, "t") as writer:
        writer.append(pa.table({"value": ["a"]}))
    assert f"<div>{url}/t-0</div>" in segmentlog.open_log_dir(url).log("t", 0)._repr_html_()


def test_a_dataset_of_many_topics_is_shown_in_a_line(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"t{number:02d}-0").mkdir()
    shown = repr(segmentlog.dataset(tmp_path))
    assert shown.endswith("'t19'] and 10 more)")
