"""``segmentlog analyze``: a table, JSON, and a page that shows nothing that it should not."""

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from registered import readings
from typer.testing import Result

import segmentlog
from segmentlog.analysis.report import Analysis, AnalysisFinding, FindingCode, Urgency
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools.analyze import _table
from segmentlog.tools.analyze_page import page
from segmentlog.tools.output import byte_text, count_text, duration_text, percent

Run = Callable[..., Result]
CLUSTER = Path(__file__).parents[3] / "examples" / "cluster"
HOSTILE = "<script>alert(1)</script>\"'&\u202e\x1b[2J"


class Page(HTMLParser):
    """Elements of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attributes}

    def handle_data(self, data: str) -> None:
        self.text += data


class Terminal(io.StringIO):
    """Standard output of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 80, 120, 1000])
def test_no_line_of_a_table_is_wider_than_the_terminal(
    example_data: str, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Each part of the table begins with the name of the topic, and none has a cell twice."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", Terminal())
    found = segmentlog.analyze(example_data).topics
    narrow = _table(found)
    monkeypatch.undo()
    heads = [each.splitlines()[0].split("  ") for each in narrow.split("\n\n")]
    wide = _table(found).splitlines()[0].split("  ")

    assert max(map(len, narrow.splitlines())) <= max(columns, len("customers") + 22)
    assert all(each[0].strip() == "topic" for each in heads)
    names = [name.strip() for each in heads for name in each[1:] if name.strip()]
    assert [each.strip() for each in wide[1:] if each.strip()] == names
    assert (columns >= 200) == (1 == len(heads))


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A topic whose keys, values and names of headers are HTML and control characters."""
    text = HOSTILE.encode()
    rows = [Record(i, 10**12, b"key " + text, text, ((text, text),)) for i in range(9)]
    (tmp_path / "logs" / "t-0").mkdir(parents=True)
    (tmp_path / "logs" / "t-0" / f"{0:020d}.log").write_bytes(encode_batch(rows))
    return tmp_path / "logs"


def test_a_line_for_each_topic_and_its_partitions(run: Run, example_data: str) -> None:
    """The arguments after the directory are topics; partitions are listed when asked for."""
    found = run("analyze", example_data, "payments", "orders", "--partitions").stdout
    topics, orders, payments, finding, total = found.split("\n\n")

    assert ["orders", "payments"] == [line.split()[0] for line in topics.splitlines()[1:]]
    assert ["0", "1", "2"] == [line.split()[0] for line in orders.splitlines()[2:]]
    assert "payments" == payments.splitlines()[0]
    assert "aborted" in finding
    assert "2 topics, 4 partitions" == total.strip()


def test_json_is_what_python_returns(run: Run, example_data: str) -> None:
    """One object, with the path as it was given."""
    found = json.loads(run("analyze", example_data, "--topic", "orders", "--json").stdout)
    expected = segmentlog.analyze(example_data, topics="orders").to_json()

    assert [example_data] == found["paths"]
    assert expected["topics"] == found["topics"]


def test_damage_is_in_the_report_and_in_the_status(
    run: Run, example_data: str, tmp_path: Path
) -> None:
    """The page is written all the same."""
    copy = Path(shutil.copytree(example_data, tmp_path / "data"))
    (log,) = (copy / "orders-1").glob("*0000.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    found = run("analyze", copy, "-o", tmp_path / "report.html", status=1)

    assert re.search(r"^problem orders-1: .*checksum", found.stdout, re.MULTILINE)
    assert "checksum" in Page((tmp_path / "report.html").read_text()).text


def test_a_lost_partition_is_named(run: Run, example_data: str, tmp_path: Path) -> None:
    """The others are analyzed."""
    copy = Path(shutil.copytree(example_data, tmp_path / "data"))
    shutil.rmtree(copy / "orders-1")
    found = run("analyze", copy, "-o", tmp_path / "report.html", status=1)

    assert "orders-1: " in found.stderr
    assert "orders-1: " in Page((tmp_path / "report.html").read_text()).text
    assert "orders" in found.stdout


def test_the_page_loads_nothing_and_runs_nothing(run: Run, hostile: Path, tmp_path: Path) -> None:
    """Text of a log has no meaning in it, and no byte of a value or a key is there."""
    file = tmp_path / "report.html"
    run("analyze", hostile, "-o", file)
    text = file.read_text()
    found = Page(text)
    escaped = "<script>alert(1)</script>\"'&\\u202e\\x1b[2J"

    assert "default-src 'none'" in text
    assert found.tags.isdisjoint({"script", "img", "link", "iframe", "object", "form", "base"})
    assert not [name for name in found.names if name.startswith("on") or name == "src"]
    assert not re.search(r"https?:|url\(|@import", text)
    assert f"header {escaped}" in found.text
    assert "key <script>" not in found.text
    assert not re.search(r"[^\n\x20-\x7e\u2013\u2026\u2212\u00b1]", text)
    run("analyze", hostile, "-o", file, "--show-keys")
    assert f"key {escaped}" in Page(file.read_text()).text


def test_names_of_topics_and_problems_are_escaped() -> None:
    """Any text of a report is."""
    finding = AnalysisFinding(Urgency.PROBLEM, FindingCode.PROBLEM, HOSTILE, 1, HOSTILE, 7)
    empty = Analysis(1, (HOSTILE,), 0, (), (HOSTILE,))
    made = page(empty, [HOSTILE])

    assert {"script"}.isdisjoint(Page(made).tags)
    assert 3 == Page(made).text.count("<script>alert(1)")
    from segmentlog.tools import analyze_page

    assert "<script" not in analyze_page._finding(finding)


def test_a_directory_without_topics(run: Run, tmp_path: Path) -> None:
    """The page says so, and nothing fails."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "meta.properties").write_text("version=1\n")
    found = run("analyze", tmp_path / "logs", "-o", tmp_path / "report.html")

    assert "0 topics, 0 partitions" in found.stdout
    assert "Nothing stands out" in (tmp_path / "report.html").read_text()


def test_thousands_of_partitions_stay_readable(run: Run, tmp_path: Path) -> None:
    """The table and the page list some of them, and say how many more there are."""
    logs = tmp_path / "logs"
    data = encode_batch([Record(0, 10**12, b"k", b"v")])
    for number in range(400):
        (logs / f"t-{number}").mkdir(parents=True)
        (logs / f"t-{number}" / f"{0:020d}.log").write_bytes(data)
    found = run("analyze", logs, "--partitions", "-o", tmp_path / "report.html")

    assert "… and 380 more" in found.stdout
    text = (tmp_path / "report.html").read_text()
    assert "… and 200 more" in text
    assert len(text) < 200_000
    assert "<details" in text


def test_a_wrong_option_is_named(run: Run, example_data: str) -> None:
    """Nothing is read then."""
    assert "retention.ms" in run("analyze", example_data, "-s", "retention.ms=x", status=2).stderr
    assert "nowhere" in run("analyze", example_data, "nowhere", status=2).stderr


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.00 kB"),
        (1234, "1.23 kB"),
        (83_119_580, "83.1 MB"),
        (446e6, "446 MB"),
        (5e18, "5,000 PB"),
    ],
)
def test_bytes_have_three_digits(n_bytes: float, shown: str) -> None:
    """And a unit of 1000 of the one before."""
    assert shown == byte_text(n_bytes)


def test_other_numbers_for_people() -> None:
    """Parts never look as if they were nothing, or all; estimates have few digits."""
    assert ["0 %", "<0.1 %", "4.9 %", "25 %", ">99.9 %", "100 %"] == [
        percent(each) for each in (0, 1e-9, 0.049, 0.25, 0.99999, 1)
    ]
    assert ["123,456", "~123,000", "~99"] == [
        count_text(123_456, 0),
        count_text(123_456, 0.01),
        count_text(99, 0.01),
    ]
    assert ["7 d", "1.5 h", "20 s", "3 ms", "0 ms"] == [
        duration_text(each) for each in (604_800_000, 5_400_000, 20_000, 3, 0)
    ]


def test_fields_of_decoded_values(run: Run, tmp_path: Path) -> None:
    """Their ranges are shown, and those of texts only if they are asked for."""
    pytest.importorskip("fastavro")
    readings(tmp_path / "logs", b"no schema")
    file = tmp_path / "report.html"
    found = run("analyze", tmp_path / "logs", "--decode", "-o", file).stdout
    assert "readings: value of 4 records, 1 that cannot be decoded (it names no schema)" in found
    assert re.search(r"^value\.city +string +0 % +3 +- +- +4 B$", found, re.MULTILINE)
    assert re.search(r"^value\.degrees +int32 +67 % +1 +30 +30 +-$", found, re.MULTILINE)
    assert "no schema has the subject: _schemas-value\n" in found
    text = Page(file.read_text()).text
    assert "Fields of values" in text
    assert "value.city" in text
    assert "Rome" not in text
    shown = run("analyze", tmp_path / "logs", "--decode", "--show-values", "-o", file).stdout
    assert re.search(r"^value\.city +string +0 % +3 +Bern +Rome +4 B$", shown, re.MULTILINE)
    assert "Rome" in Page(file.read_text()).text


def test_the_page_has_what_other_commands_say(run: Run, tmp_path: Path) -> None:
    """Consumers, settings, the start of a broker, and records over time."""
    file = tmp_path / "report.html"
    run("analyze", CLUSTER, "-o", file)
    text = Page(file.read_text()).text
    groups = text[text.index("How far consumers are behind") : text.index("Settings that")]
    settings = text[text.index("Settings that") : text.index("Topics")]
    assert "fraudorders353" in groups
    assert "invoices" not in groups
    assert "ordersretention.ms86400000604800000topic" in settings
    assert "Nothing here keeps a broker from its start" in text
    assert "All records could be read, and none is missing." in text
    assert re.search(r"invoices4 records.*Records over time.*18 ms a bar", text)


def test_the_page_says_what_is_not_known(run: Run, tmp_path: Path) -> None:
    """Of logs that no broker has, and of a broker that would not start."""
    readings(tmp_path / "logs")
    file = tmp_path / "report.html"
    run("analyze", tmp_path / "logs", "-o", file)
    text = Page(file.read_text()).text
    assert "holds no partition of __consumer_offsets" in text
    assert "None is known here." in text
    copy = Path(shutil.copytree(CLUSTER, tmp_path / "cluster"))
    (copy / "meta.properties").write_text("version=9\n")
    run("analyze", copy, "-o", file)
    assert "The broker would not start" in Page(file.read_text()).text
