"""``segmentlog grep`` finds records in every partition, past damage, with the status of grep."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import Result

import segmentlog
from segmentlog.errors import OptionError
from segmentlog.format.records.columns import record_schema
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools.grep import Pattern, _Search

Run = Callable[..., Result]

EXAMPLE = "payments-0:58 2025-10-10T08:54:18.000Z key='order-58' value='{\"paid\":58}'\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("order-58",), [58, 119]),
        (("ORDER-58", "-i"), [58, 119]),
        (("ORDER-58",), []),
        (("^order-5$", "--key"), [5, 66]),
        (("order", "--value"), []),
        (("order-58", "--until", "2025-10-11"), [58, 119]),
        (("order-5", "--since", "2025-10-10T08:54:18Z", "-m", 2), [58, 59]),
        (
            ("order-", "--since", "2025-10-10T08:54:18Z", "--until", "2025-10-10T08:54:19Z"),
            [58, 119],
        ),
        (("order-.8", "-F"), []),
        (("paid", "--partition", 0, "-m", 3), [0, 1, 2]),
        (("p.*:58}",), [58, 119]),
    ],
)
def test_records_are_chosen(run: Run, example_data: str, options: tuple, expected: list) -> None:
    """Each option chooses the offsets that it names; the status shows whether any is found."""
    pattern, *others = options
    where = [example_data, "--topic", "payments"]
    done = run("grep", pattern, *where, *others, status=0 if expected else 1)

    assert expected == [int(re.search(r":(\d+) ", line)[1]) for line in done.stdout.splitlines()]
    count = run("grep", pattern, *where, *others, "-c", status=0 if expected else 1).stdout
    assert f"{len(expected)}\n" == count


def test_a_record_is_one_line(run: Run, example_data: str) -> None:
    """The line has the place, the time, the key and the value. Brokers' topics are left out."""
    lines = run("grep", "order-58", example_data).stdout

    assert lines.startswith(EXAMPLE)
    assert "" == run("grep", "sink|pay-", example_data, status=1).stdout
    assert run("grep", ".", example_data, "--topic", "__transaction_state").stdout


def test_matches_have_colours(run: Run, example_data: str) -> None:
    """A match is red, as that of grep; other text is as it is without colours."""
    plain = run("grep", "order-5|8}", example_data, "--topic", "payments", "-m", 60).stdout
    colored = run(
        "grep", "order-5|8}", example_data, "--topic", "payments", "-m", 60, "--color", "always"
    ).stdout

    assert plain == re.sub(r"\x1b\[[\d;]*m", "", colored)
    assert "key='\x1b[1;31morder-5\x1b[0m8' value='{\"paid\":5\x1b[1;31m8}\x1b[0m'" in colored


def test_matches_in_headers_have_colours(run: Run, tmp_path: Path) -> None:
    """Names and values are searched; a header without a value, and no headers, stay."""
    path = tmp_path / "t-0"
    path.mkdir()
    headers = [((b"source", b"web"), (b"web", None)), (), ((b"to", b"a web b"),)]
    records = [Record(i, 0, b"k", b"web", each) for i, each in enumerate(headers)]
    (path / f"{0:020d}.log").write_bytes(encode_batch(records))
    lines = run("grep", "web", path, "--header", "--color", "always").stdout.splitlines()
    red = "\x1b[1;31mweb\x1b[0m"

    assert 2 == len(lines)
    assert lines[0].endswith(f"headers={{'source'='{red}', '{red}'=null}}")
    assert lines[1].endswith(f"value='web' headers={{'to'='a {red} b'}}")


def test_json_has_an_object_a_record(run: Run, example_data: str) -> None:
    """Headers are in the object if they are searched."""
    found = run("grep", "web", example_data, "--topic", "orders", "--header", "--json", "-m", 1)
    row = json.loads(found.stdout)

    assert {"key": "source", "value": "web"} in row["headers"]
    assert ("orders", 0, 0, 1760000288000) == (
        row["topic"],
        row["partition"],
        row["offset"],
        row["timestamp"],
    )
    counted = run("grep", "web", example_data, "--header", "--json", "-c").stdout
    assert 600 == json.loads(counted)["count"]


def test_hostile_bytes_are_escaped(run: Run, tmp_path: Path) -> None:
    """A record stays one line, and moves no cursor."""
    path = tmp_path / "t-0"
    path.mkdir()
    record = Record(0, 0, b"k'", b"a\x1b[2J\nx\xff", ((b"h\n\xfe", None),))
    (path / f"{0:020d}.log").write_bytes(encode_batch([record]))
    line = r"t-0:0 1970-01-01T00:00:00.000Z key='k\'' value='a\x1b[2J\nx\xff'"

    assert f"{line}\n" == run("grep", "x\udcff", path).stdout
    line += r" headers={'h\n\xfe'=null}"
    assert f"{line}\n" == run("grep", "\n\udcfe", path, "--header").stdout
    (found,) = run("grep", "h", path, "--header", "--json").stdout.splitlines()
    assert [{"key": "h\n\\xfe", "value": None}] == json.loads(found)["headers"]


def test_damage_and_lost_partitions_are_told(run: Run, example_data: str, tmp_path: Path) -> None:
    """The other records are found, and the status is 2, as if a file could not be read."""
    copy = shutil.copytree(example_data, tmp_path / "data")
    shutil.rmtree(copy / "orders-1")
    (log,) = (copy / "orders-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    done = run("grep", "customer", copy, "--topic", "orders", "-c", status=2)

    assert f"{335 - 79 + 248}\n" == done.stdout  # the batch that is damaged has 79 offsets


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "(?<=a)b", "a\\"])
def test_wrong_patterns_are_refused(run: Run, example_data: str, pattern: str) -> None:
    """The error names the pattern, and text is taken as it is."""
    done = run("grep", pattern, example_data, status=2)

    assert "PATTERN" in done.stderr
    assert "-F" in done.stderr
    run("grep", pattern, "-F", example_data, status=1)


PIECES = ["a", "ab", "b", "A", "x", ".", "é", "\0", "\n", ""]
EXPRESSIONS = ["ab", "^a", "b$", "a.b", "a|x", r"\bx", "[^a]", "é", "", "ba"]
some_bytes = st.none() | st.lists(st.sampled_from(PIECES), max_size=4).map(
    lambda pieces: "".join(pieces).encode()
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "key": some_bytes,
                "value": some_bytes,
                "headers": st.none()
                | st.lists(
                    st.fixed_dictionaries({"key": some_bytes.filter(bool), "value": some_bytes}),
                    max_size=2,
                ),
            }
        ),
        max_size=8,
    ),
    st.sampled_from(EXPRESSIONS),
    st.booleans(),
    st.booleans(),
    st.sampled_from([["key"], ["value"], ["key", "value"], ["headers"], ["value", "headers"]]),
    st.integers(0, 2),
)
def test_rows_are_those_that_pythons_re_finds(
    found: list[dict], text: str, is_text: bool, ignores_case: bool, columns: list, start: int
) -> None:
    """Values side by side are not one value to the pattern; null matches nothing."""
    schema = record_schema(["key", "value", "headers"], header_names_as_bytes=True)
    rows = pa.RecordBatch.from_pylist(found, schema=schema).slice(start)
    expression = re.escape(text.encode()) if is_text else text.encode()
    plain = re.compile(expression.replace(b"$", rb"\Z"), re.IGNORECASE if ignores_case else 0)

    def values(row: dict) -> list[bytes | None]:
        pairs = row["headers"] or () if "headers" in columns else ()
        flat = [row[name] for name in columns if name != "headers"]
        return flat + [each["key"] for each in pairs] + [each["value"] for each in pairs]

    expected = [
        row
        for row in rows.to_pylist()
        if any(each is not None and plain.search(each) for each in values(row))
    ]
    search = Pattern(text, columns, is_text=is_text, ignores_case=ignores_case)

    assert expected == search.rows(rows).to_pylist()
    with mock.patch("segmentlog.tools.grep._PIECE_ROWS", 2):
        assert expected == search.rows(rows).to_pylist()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("^a", ["b", "ab"]),
        ("b$", ["ab", "x"]),
        (r"\bx", ["a", "x"]),
        (r"\Aa", ["b", "a"]),
        (r"b\z", ["b", "a"]),
        (r"a\B", ["x", "ab", "."]),
        ("(?i)^A", ["b", "a"]),
    ],
)
def test_the_ends_of_a_value_are_its_own(text: str, values: list) -> None:
    """A value that stands between two others matches as if it stood alone."""
    rows = pa.RecordBatch.from_pydict({"key": pa.array([each.encode() for each in values])})
    found = Pattern(text, ["key"]).rows(rows).column("key").to_pylist()
    expected = [each.encode() for each in values if re.search(text.replace(r"\z", r"\Z"), each)]

    assert 1 == len(expected)
    assert expected == found


def test_slices_are_searched_on_several_threads(run: Run, tmp_path: Path) -> None:
    """Records of a large log are found in the order of their offsets, compressed or not."""
    rows = pa.table({"value": [b"%07d" % i + bytes(200) for i in range(200_000)]})
    for codec in (segmentlog.Codec.NONE, segmentlog.Codec.ZSTD):
        config = segmentlog.ProducerConfig(codec=codec)
        with segmentlog.open_writer(tmp_path, codec.name, config=config) as writer:
            writer.append(rows)
        done = run("grep", "0001", tmp_path, "--topic", codec.name)
        found = [int(re.search(r":(\d+) ", each)[1]) for each in done.stdout.splitlines()]

        assert [i for i in range(200_000) if "0001" in f"{i:07d}"] == found


def test_an_expression_is_refused_in_python() -> None:
    """The error is typed."""
    with pytest.raises(OptionError, match="RE2"):
        Pattern("(", ["key"])


@pytest.mark.parametrize(
    "command",
    [
        "grep paid {}",
        "grep paid {} --json",
        "grep paid {} --count",
        "dump {} --topic t --records",
        "dump {} --topic t --records -f json",
        "cat {} t -J --isolation-level read_uncommitted",
    ],
)
def test_records_of_aborted_transactions_are_marked(
    run: Run, tmp_path: Path, command: str
) -> None:
    """An open transaction may still be committed, so its records are not."""
    base, found = 0, b""
    for producer, end in ((7, 0), (8, 1), (9, None)):  # aborts, commits, stays open
        records = [
            Record(base + i, 1_760_000_000_000, b"k", b"paid %d" % producer) for i in (0, 1)
        ]
        found += encode_batch(records, attributes=16, producer=(producer, 0, 0))
        base += 2
        if end is not None:
            marker = Record(base, 1_760_000_000_000, bytes((0, 0, 0, end)), bytes(6))
            found += encode_batch([marker], attributes=48, producer=(producer, 0, -1))
            base += 1
    (tmp_path / "t-0").mkdir()
    (tmp_path / f"t-0/{0:020d}.log").write_bytes(found)
    done = run(*(each.format(tmp_path) for each in command.split()))
    if "--count" in command:
        assert "6\n" == done.stdout
        return
    lines = [line for line in done.stdout.splitlines() if "paid" in line]
    marked = [("aborted" in line, "paid 7" in line) for line in lines]
    assert marked == [(True, True)] * 2 + [(False, False)] * 4
    if "{" in lines[0][:1]:
        assert [json.loads(line).get("aborted") for line in lines] == [True] * 2 + [None] * 4


_PIECES = [
    "a", "b", "ab", "cents", '":', "é", "1", ".", "\\.", "\\d", "[ab]", "[^a]", "[[:alpha:]]",
    "[]a]", "*", "?", "+", "{2}", "{0,1}", "{1,}", "{", "}", "^", "$", "(", ")", "|", "(?i)",
    "\\Q", "\\x61", "(?:ab)?", "\\\\", "-", "\\bab",
]  # fmt: skip
_TEXTS = [
    "",
    "a",
    "ab",
    "aab",
    "abab",
    "cents",
    '"cents":12',
    "é",
    "éa",
    "A1",
    "a.b",
    "a]",
    "{2}",
    "b{",
]


@pytest.mark.parametrize("seed", range(20))
def test_each_match_has_the_text_that_batches_are_searched_for(seed: int) -> None:
    """Of random patterns, over texts that some of them match."""
    rng = random.Random(seed)
    n_matches = 0
    for _ in range(400):
        text = "".join(rng.choices(_PIECES, k=rng.randint(1, 6)))
        try:
            pattern = Pattern(text, ["value"])
        except segmentlog.OptionError:
            continue
        values = ["".join(rng.choices(_TEXTS, k=rng.randint(1, 4))).encode() for _ in range(30)]
        rows = pa.record_batch({"value": pa.array(values, pa.binary())})
        found = pattern.rows(rows)["value"].to_pylist()
        n_matches += len(found)
        assert all(pattern.needle in each for each in found), (text, pattern.needle)
    assert n_matches > 500


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ('cents":99999[0-9]', b'cents":99999'),
        ("order-58", b"order-58"),
        ("ab{2}cde", b"cde"),
        ("a?bc", b"bc"),
        ("x|yyy", b""),
        ("(ab)c", b""),
        (r"a\.b", b"a.b"),
        (r"\d+abc", b""),
        ("[[:digit:]]abc", b"abc"),
    ],
)
def test_the_text_that_a_pattern_needs(text: str, needle: bytes) -> None:
    """The longest that each match has; nothing where that is not easily seen."""
    assert needle == Pattern(text, ["value"]).needle


@pytest.mark.parametrize("codec", segmentlog.Codec)
def test_only_batches_with_the_text_are_decoded(
    run: Run, tmp_path: Path, codec: segmentlog.Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same records are found, in keys and values, and at the bounds of batches."""
    rows = [{"key": f"k{i}", "value": f"order-{i}-" + "x" * (i % 7)} for i in range(500)]
    config = segmentlog.ProducerConfig(codec=codec, batch_size=300)
    with segmentlog.open_writer(tmp_path, "t", num_partitions=1, config=config) as writer:
        writer.append(pa.Table.from_pylist(rows))
    n_decoded = []
    matches = _Search._matches

    def noted(self: _Search, batch: pa.RecordBatch) -> pa.RecordBatch:
        n_decoded.append(batch.num_rows)
        return matches(self, batch)

    monkeypatch.setattr(_Search, "_matches", noted)
    for pattern, n_found in (("order-499-", 1), ("k49[0-9]$", 10), ("r-7", 11), ("nothing", 0)):
        n_decoded.clear()
        done = run("grep", "-c", pattern, tmp_path, status=int(not n_found))
        assert f"{n_found}\n" == done.stdout
        is_quick = codec not in {segmentlog.Codec.GZIP, segmentlog.Codec.SNAPPY}
        assert n_found <= sum(n_decoded) <= (60 if is_quick else 500)
