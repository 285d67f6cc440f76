"""Commands that write decoded keys and values."""

import json
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from registered import CITY, framed, readings, record, register, write
from typer.testing import Result

from segmentlog.tools.decoded import json_of

pytest.importorskip("fastavro")

Run = Callable[..., Result]
LINES = [
    '{"city": "Oslo", "degrees": null}',
    '{"city": "Rome", "degrees": 30}',
    '{"city": "Bern", "degrees": null}',
]
MARKED = "(undecodable: it names no schema) no schema"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoded") / "logs"
    readings(path, b"no schema", None)
    register(path, "keyed-key", 1, 7, "long")
    register(path, "keyed-value", 1, 8, "string")
    write(path, "keyed", [framed(8, b"\4a\n")], key=[framed(7, b"\x02")])
    return path


def test_cat_writes_values_as_json_and_others_as_their_bytes(run: Run, logs: Path) -> None:
    """The flag needs no word for values, wherever it stands."""
    done = run("cat", logs, "readings", "--decode")
    assert [*LINES, MARKED, ""] == done.stdout.splitlines()
    assert "1 record cannot be decoded" in done.stderr
    assert done.stdout == run("cat", "--decode", logs, "readings", "-q").stdout
    first = run("cat", logs, "readings", "--decode", "--decode-version", 1, "-c", 1, "-f", "%o %s")
    assert '0 {"city": "Oslo"}' == first.stdout
    objects = [
        *map(json.loads, run("cat", logs, "readings", "-J", "--decode").stdout.splitlines())
    ]
    assert {"city": "Rome", "degrees": 30} == objects[1]["payload"]
    assert ("no schema", "it names no schema") == (
        objects[3]["payload"],
        objects[3]["payload_undecodable"],
    )
    assert objects[4]["payload"] is None
    assert "payload_undecodable" not in objects[1] | objects[4]


def test_cat_writes_keys_and_values(run: Run, logs: Path) -> None:
    both = run("cat", logs, "keyed", "--decode", "key,value", "-K", ":")
    assert '1:"a\\n"\n' == both.stdout
    assert (
        '1:"a\\n"\n'
        == run("cat", logs, "keyed", "--decode", "key", "--decode", "value", "-K", ":").stdout
    )
    for flags, said in (
        (["--decode", "--decode-subject", "x"], "option '--decode-subject' is 'x'; subjects are"),
        (["--decode-version", 2], "option '--decode-version' is '2'; it belongs to"),
        (["--decode", "-s", "q"], "not both"),
    ):
        assert said in run("cat", logs, "keyed", *flags, status=2).stderr


def test_grep_searches_and_writes_json(run: Run, logs: Path) -> None:
    """What cannot be decoded is searched as it is."""
    found = run("grep", '"degrees": 30', logs, "--topic", "readings", "--decode")
    assert 'value=\'{"city": "Rome", "degrees": 30}\'\n' in found.stdout
    assert 1 == found.stdout.count("\n")
    lines = run("grep", "o", logs, "--topic", "readings", "--decode", "--json").stdout
    first, rome, bad = map(json.loads, lines.splitlines())
    assert {"city": "Oslo", "degrees": None} == first["value"]
    assert 30 == rome["value"]["degrees"]
    assert ("no schema", "it names no schema") == (bad["value"], bad["valueUndecodable"])
    assert (
        "(undecodable value: it names no schema)"
        in run("grep", "no sch", logs / "readings-0", "--decode").stdout
    )
    assert "topics are" in run("grep", "x", logs, "--decode", status=2).stderr


def test_schemas_shows_those_that_records_have(run: Run, logs: Path) -> None:
    lines = run("schemas", logs, "--used-by", "readings", "--json").stdout.splitlines()
    rows = [*map(json.loads, lines)]
    assert [(None, 1), (1, 1), (2, 2)] == [(row["version"], row["records"]) for row in rows]
    assert 3 == rows[0]["first_offset"]
    shown = run("schemas", logs, "--used-by", "readings", "--used-by", "keyed").stdout
    assert "readings-value        2   2        2" in shown
    assert "keyed-key             1   7        1" in shown
    assert "no topic 'nope'" in run("schemas", logs, "--used-by", "nope", status=2).stderr


def test_schemas_of_a_file_and_frames(run: Run, logs: Path, tmp_path: Path) -> None:
    """The same flags on each command; headers that serializers may write to are not shown."""
    file = tmp_path / "reading.avsc"
    file.write_text(json.dumps(record(CITY)))
    flags = ("--decode", "--decode-schemas", file)
    expected = ['{"city": "Oslo"}', '{"city": "Rome"}', '{"city": "Bern"}']
    assert expected == run("cat", logs, "readings", *flags).stdout.splitlines()[:3]
    found = run("grep", "Rome", logs, "--topic", "readings", *flags, "--json").stdout
    assert {"city": "Rome"} == json.loads(found)["value"]
    assert "headers" not in json.loads(found)
    dumped = run("dump", logs / "readings-0", "--records", *flags).stdout
    assert 'value=\'{"city": "Bern"}\'' in dumped
    glue = run("cat", logs, "readings", *flags, "--decode-frame", "glue").stdout
    assert 4 == glue.count("it names no schema")
    said = "option '--decode-frame' is 'glue'; it belongs to --decode"
    assert said in run("cat", logs, "readings", "--decode-frame", "glue", status=2).stderr


@pytest.mark.parametrize(
    ("condition", "offsets"),
    [
        ('value.city = "Rome" and value.degrees > 20', [1]),
        ("value.city in ('Oslo', 'Bern') and \"value\".degrees is null", [0, 2]),
        ("offset >= 3", [3, 4]),
        ("OFFSET = 1 or value.city ilike 'o%'", [0, 1]),
        ("undecodable = 'it names no schema'", [3]),
        ("value is null", [3, 4]),
        ("timestamp > '2020-01-01' and value.degrees", [1]),
        ("current_setting('TimeZone') = 'UTC' and offset >= 3", [3, 4]),
        ('topic = "readings-1"', []),
        ("len([x for x in [value.city, \"it's\"] if x = \"it's\" or x = 'Bern']) = 2", [2]),
    ],
)
def test_grep_takes_conditions(run: Run, logs: Path, condition: str, offsets: list) -> None:
    """Texts may have the quotes that a shell leaves; fields need no other flag."""
    pytest.importorskip("duckdb")
    flags = () if "value." in condition else ("--decode",)
    where = (logs, "--topic", "readings", "--where", condition, "--json", *flags)
    done = run("grep", *where, status=0 if offsets else 1)
    assert offsets == [json.loads(line)["offset"] for line in done.stdout.splitlines()]
    is_told = "1 record cannot be decoded" in done.stderr
    assert is_told == ("value" in condition)


def test_grep_takes_a_condition_beside_a_pattern(run: Run, logs: Path) -> None:
    pytest.importorskip("duckdb")
    where = (logs, "--topic", "readings", "--where", "value.degrees is null")
    colored = run("grep", *where, "-e", "Os", "--color", "always").stdout
    assert "\x1b[1;31mOs\x1b[0mlo" in colored
    assert "1\n" == run("grep", *where, "-e", "Os", "-c").stdout
    assert "3\n" == run("grep", *where[:3], "--where", "value like 'z%' or offset<3", "-c").stdout
    said = "beside --where or -e, give it as -e PATTERN"
    assert said in run("grep", "Os", *where, status=2).stderr
    assert "give a pattern, or a condition" in run("grep", status=2).stderr


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("value.city = Rome", '"Rome" not found in FROM clause; columns are topic, partition'),
        ("value.zip = 1", '"zip" in struct; columns are topic, partition, offset, timestamp'),
        ("status = 'failed'", "it names no column: columns are topic, partition, offset"),
        ("((offset", "syntax error"),
        ("offset = 1) or (offset = 2", "syntax error"),
        ("offset = 1; select 1", "syntax error"),
        ("count(offset) > 1", "aggregates"),
        ("offset in (select 1)", "without a query within it"),
        ("*COLUMNS(*) = 1", "it"),
        (
            "timestamp >= 1760000000000",
            ": compare a time with a text in UTC, such as timestamp >= ",
        ),
        ("timestamp in (1, 2)", "or its milliseconds with a number: epoch_ms(timestamp) >= "),
        ("exists(from read_text('/etc/passwd')) and offset = 1", "without a query within it"),
        ("value.city::int > offset", "Could not convert string 'Oslo' to INT32"),
        ("len(Range(4000000000)) > offset", "makes values of any size"),
        ("offset in ([x for x in main.\"repeat\"('x', 9)])", "makes values of any size"),
        ("undecodable is null", "give --decode for the column undecodable"),
        ("offset = 1 or \udcff", "it is not UTF-8"),
        ("offset = 1" + " " * 10_000, "characters"),
        ("(" * 4_000 + "offset" + ")" * 4_000 + " = 1", "it"),
    ],
)
def test_bad_conditions_are_refused(run: Run, logs: Path, condition: str, said: str) -> None:
    """In a sentence; no condition reads files."""
    pytest.importorskip("duckdb")
    lines = run("grep", logs, "--topic", "readings", "--where", condition, status=2).stderr
    assert lines.startswith("segmentlog: option '--where' is ")
    assert said in lines
    assert 1 == lines.count("\n")


def test_dump_writes_json_and_columns(run: Run, logs: Path, tmp_path: Path) -> None:
    """Of a file, the schemas are those of its log directory."""
    file, out = logs / "readings-0" / f"{0:020d}.log", tmp_path / "out.parquet"
    lines = run("dump", file, "--records", "--decode", "--format", "json").stdout.splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "record"]
    assert {"city": "Rome", "degrees": 30} == rows[1]["value"]
    assert 12 == rows[1]["valueSize"]
    assert "it names no schema" == rows[3]["valueUndecodable"]
    assert rows[4]["value"] is None
    assert 'value=\'{"city": "Oslo"' in run("dump", file, "--records", "--decode").stdout
    run("dump", file, "--records", "--decode", "--format", "parquet", "-o", out)
    table = parquet.read_table(out)
    assert [30] == [each["degrees"] for each in table["value"].to_pylist()[1:2]]
    assert [None, "it names no schema", None] == table["undecodable"].to_pylist()[2:]
    assert "give --records too" in run("dump", file, "--decode", status=2).stderr


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (pa.timestamp("ms", "UTC"), 1_500, "1970-01-01T00:00:01.500Z"),
        (pa.timestamp("us"), -1, "1969-12-31T23:59:59.999999"),
        (pa.timestamp("ns", "UTC"), 1, "1970-01-01T00:00:00.000000001Z"),
        (pa.timestamp("ms", "UTC"), 2**62, 2**62),
        (pa.date32(), 2**31 - 1, 2**31 - 1),
        (pa.date32(), date(2026, 1, 2), "2026-01-02"),
        (pa.time32("ms"), time(1), "01:00:00.000"),
        (pa.duration("us"), -1_500_000, "-1.5s"),
        (pa.duration("us"), 0, "0s"),
        (pa.decimal128(9, 2), Decimal("-1.20"), "-1.20"),
        (pa.float64(), float("nan"), "nan"),
        (pa.binary(2), b"a\xff", "a\\xff"),
        (pa.string(), "\u202e", "\u202e"),
        (
            pa.map_(pa.string(), pa.date32()),
            [("a", 1), ("b", None)],
            {"a": "1970-01-02", "b": None},
        ),
        (pa.list_(pa.struct([("n", pa.int32())])), [{"n": 1}, None], [{"n": 1}, None]),
    ],
)
def test_each_type_as_json(kind: pa.DataType, given: Any, expected: Any) -> None:
    """Within a record, as most are."""
    record = pa.struct([("it", kind), ("more", pa.null())])
    texts = json_of(pa.array([{"it": given}, None], record))
    assert texts[1] is None
    assert {"it": expected, "more": None} == json.loads(texts[0] or b"")
    assert (texts[0] or b"").decode().isprintable()
