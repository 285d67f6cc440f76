"""``segmentlog produce``: lines become records of a topic, with the options of kcat's producer."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

from segmentlog.errors import OptionError
from segmentlog.format.records.columns import where
from segmentlog.model import Codec
from segmentlog.tools import arguments
from segmentlog.tools.arguments import Directory, command
from segmentlog.tools.message_format import unescaped
from segmentlog.tools.output import counted, escape, write_json
from segmentlog.tools.progress import progress
from segmentlog.writes.config import ProducerConfig
from segmentlog.writes.writer import open_writer

_PIECE_BYTES = 1 << 20
_MOST_BYTES = 128 << 20  #: of one record: a file without delimiters would fill the memory
_BYTES = pa.large_binary()
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Compression(StrEnum):
    """A codec, by its name in Kafka's settings."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


@command(
    "segmentlog produce build/log orders < orders.txt",
    "segmentlog produce build/log orders -K : -z zstd < lines-with-keys.txt",
    "segmentlog produce build/log images -H source=web photo.jpg",
    "zstdcat orders.zst | segmentlog produce build/log orders --num-partitions 3 -K '\\t'",
)
@arguments.flags(open_writer, "num_partitions")
def produce(
    directory: Directory,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic; it is created if it is missing.")
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Each file is one record. With -l, each line of a file is one record.",
            show_default="the lines of standard input",
        ),
    ] = None,
    partition: Annotated[
        int,
        typer.Option(
            "--partition",
            "-p",
            help="The partition; -1 chooses it by the key, as Kafka's Java client does.",
            min=-1,
        ),
    ] = -1,
    key_delimiter: Annotated[
        str | None,
        typer.Option("--key-delimiter", "-K", help="The text between the key and the value."),
    ] = None,
    fixed_key: Annotated[
        str | None, typer.Option("--key", "-k", help="The key of records that have none.")
    ] = None,
    delimiter: Annotated[
        str, typer.Option("--delimiter", "-D", help="The text between two records.")
    ] = r"\n",
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="A header of all records; may be repeated.",
        ),
    ] = None,
    empty_is_null: Annotated[
        bool, typer.Option("--null", "-Z", help="Take empty keys and values as null.")
    ] = False,
    codec: Annotated[
        Compression, typer.Option("--codec", "-z", help="The codec of the record batches.")
    ] = Compression.NONE,
    by_line: Annotated[
        bool, typer.Option("--lines", "-l", help="Each line of a file is a record.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-c", help="Stop after N records.", min=1)
    ] = None,
    *,
    given: dict[str, Any],
    as_json: Annotated[
        bool, arguments.json_option("Print the number of records as one JSON object.")
    ] = False,
) -> None:
    """Append lines to a topic, with the options of kcat's producer.

    All records become visible together, when the input ends. If the command fails or is
    interrupted, no record becomes visible. Only a few lines are in memory at a time. Empty lines
    are left out.
    """
    split = unescaped(delimiter)
    if not split:
        raise OptionError("--delimiter", delimiter, "it must not be empty")
    made = _RowMaker(
        None if key_delimiter is None else unescaped(key_delimiter),
        None if fixed_key is None else fixed_key.encode("utf-8", "surrogateescape"),
        _parsed(header or ()),
        partition,
        empty_is_null=empty_is_null,
    )
    config = ProducerConfig(codec=Codec[codec.name])
    n_records = 0
    with (
        ExitStack() as stack,
        open_writer(directory, topic, config=config, **given) as writer,
    ):
        bar = None
        if files or not sys.stdin.isatty():  # a person who types lines sees them
            bar = stack.enter_context(progress("produce", None, is_bytes=False))
        for values in _values(files or (), split, stack, by_line=by_line):
            left = values if count is None else values.slice(0, count - n_records)
            n_records += len(left)
            writer.append(made.of(left, has_keys=by_line or not files))
            if bar:
                bar.advance(len(left))
            if n_records == count:
                break
    if as_json:
        write_json({"topic": topic, "records": n_records})
    else:
        sys.stdout.write(f"{escape(topic)}: {counted(records=n_records)}\n")


def _parsed(headers: Sequence[str]) -> list[tuple[str, bytes | None]]:
    """Names and values; a header without ``=`` has no value."""
    found: list[tuple[str, bytes | None]] = []
    for each in headers:
        name, sign, value = each.partition("=")
        if not name:
            raise OptionError("--header", each, "give a name and a value: source=web")
        if any("\udc80" <= char <= "\udcff" for char in name):  # bytes that are not UTF-8
            raise OptionError("--header", escape(each), "the name of a header has to be UTF-8")
        found.append((name, value.encode("utf-8", "surrogateescape") if sign else None))
    return found


def _values(
    files: Sequence[Path], delimiter: bytes, stack: ExitStack, *, by_line: bool
) -> Iterator[pa.Array]:
    """Records without their keys split off: some lines at a time, or one file."""
    if not files:
        yield from records_of(sys.stdin.buffer, delimiter)
    for path in files:
        file = stack.enter_context(path.open("rb"))
        if by_line:
            yield from records_of(file, delimiter)
        elif data := file.read(_MOST_BYTES + 1):
            _check_size(len(data), str(path))
            yield pa.array([data], _BYTES)


def records_of(file: IO[bytes], delimiter: bytes) -> Iterator[pa.Array]:
    """The texts between delimiters that are not empty, some at a time.

    `file`: open for reading, in binary.
    """
    pieces: list[bytes] = []  # the text after the last delimiter
    n_bytes = 0
    while piece := file.read(_PIECE_BYTES):
        if delimiter not in b"".join([*pieces[-1:], piece]):  # it may begin in the piece before
            pieces.append(piece)
            n_bytes += len(piece)
            _check_size(n_bytes, "a record")
            continue
        texts = _split(b"".join([*pieces, piece]), delimiter)
        rest = texts[-1].as_py()
        pieces, n_bytes = [rest], len(rest)
        yield from _not_empty(texts[:-1])
    yield from _not_empty(_split(b"".join(pieces), delimiter))


def _check_size(n_bytes: int, what: str) -> None:
    if n_bytes > _MOST_BYTES:
        size = f"{what} has more than {_MOST_BYTES >> 20} MiB"
        raise OptionError("--delimiter", "", f"{size}: give the delimiter of its records")


def _split(text: bytes, delimiter: bytes) -> pa.Array:
    (texts,) = pc.split_pattern(pa.array([text], _BYTES), pattern=delimiter)
    return texts.values


def _not_empty(texts: pa.Array) -> Iterator[pa.Array]:
    found = texts.filter(pc.greater(pc.binary_length(texts), 0))
    if len(found):
        yield found


class _RowMaker:
    """Makes rows of texts.

    `key_delimiter`: after the key of a text; None if texts have no keys.  `partition`: of all
    rows; -1 to choose it by key.  `empty_is_null`: whether keys and values without bytes are null,
    if they are split.
    """

    def __init__(
        self,
        key_delimiter: bytes | None,
        fixed_key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        partition: int,
        *,
        empty_is_null: bool,
    ) -> None:
        self._key_delimiter = key_delimiter
        self._fixed_key = pa.scalar(fixed_key, _BYTES)
        self._headers = headers
        self._partition = partition
        self._empty_is_null = empty_is_null

    def of(self, values: pa.Array, *, has_keys: bool) -> pa.RecordBatch:
        keys = pa.nulls(len(values), _BYTES)
        if self._key_delimiter and has_keys:
            keys, values = self._keys_and_values(values, self._key_delimiter)
        columns: dict[str, Any] = {"key": pc.coalesce(keys, self._fixed_key), "value": values}
        if self._headers:
            pairs = [{"key": name, "value": value} for name, value in self._headers]
            columns["headers"] = pa.array([pairs], _HEADERS).take(np.zeros(len(values), np.int64))
        if self._partition >= 0:
            columns["partition"] = pa.repeat(pa.scalar(self._partition, pa.int32()), len(values))
        return pa.RecordBatch.from_pydict(columns)

    def _keys_and_values(self, texts: pa.Array, delimiter: bytes) -> tuple[pa.Array, pa.Array]:
        """The parts before and after the first delimiter; a text without one is a value."""
        split = pc.split_pattern(texts, pattern=delimiter, max_splits=1)
        lengths = pc.list_value_length(split).to_numpy()
        ends = np.cumsum(lengths)
        parts = split.flatten()
        has_key = lengths == 2
        keys = parts.take(pa.array(np.where(has_key, ends - 2, 0), mask=~has_key))
        values = parts.take(pa.array(ends - 1))
        if self._empty_is_null:
            keys = _empty_as_null(keys)
            values = pc.if_else(pa.array(has_key), _empty_as_null(values), values)
        return keys, values


def _empty_as_null(column: pa.Array) -> pa.Array:
    return where(pc.not_equal(pc.binary_length(column), 0), column, pa.scalar(None, _BYTES))
