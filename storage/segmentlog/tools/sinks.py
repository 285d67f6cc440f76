"""Formats of a dump: lines of JSON, an Arrow stream, a Parquet file; `tables` has the fourth.

All of them take a dump as it comes and hold no more than the next piece of it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from json.encoder import encode_basestring as quoted
from typing import IO, Any, Protocol

import pyarrow as pa

from segmentlog.errors import OptionError
from segmentlog.format.records.header import BatchHeader
from segmentlog.tools.rows import (
    BATCH_SCHEMA,
    Place,
    RecordText,
    batch_row,
    record_rows,
    sequence_after,
    timestamp_type,
)
from segmentlog.tools.tables import TableSink
from segmentlog.tools.text import as_text, escape_json, to_json
from segmentlog.tools.walk import Found

_LINE_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_PIECE_ROWS = 1 << 16
_PIECE_BYTES = 16 << 20

#: Columns of a scan, in its order, and then the columns that only a dump has.
_RECORD_SCHEMA: pa.Schema = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("isControl", pa.bool_()),
        ("controlType", pa.string()),
        ("producerId", pa.int64()),
        ("batchOffset", pa.int64()),
    ]
)


class Format(StrEnum):
    """The format of a dump."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"  #: another name for it: each object is a line
    ARROW = "arrow"
    PARQUET = "parquet"


class Sink(Protocol):
    """Takes a dump piece by piece, in the order of the files."""

    def batch(self, place: Place, found: Found) -> None:
        """A batch, or a place without a batch."""

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        """Records of the batch that came before."""

    def entry(self, file: str, row: Mapping[str, object]) -> None:
        """An entry of an index file or a snapshot."""

    def close(self) -> None:
        """Write the rest that is held back."""


class EnoughError(Exception):
    """The wanted number of lines is written."""


class LimitedSink:
    """Passes on batches, or records if these are counted, until there are enough.

    `sink`: takes the batches and records.  `most`: their number, over all files.  `with_records`:
    whether records are counted, and not batches.
    """

    def __init__(self, sink: Sink, most: int, *, with_records: bool) -> None:
        self._sink = sink
        self._left = most
        self._with_records = with_records

    def batch(self, place: Place, found: Found) -> None:
        """One batch; with records, its records come next."""
        self._need_more()
        self._sink.batch(place, found)
        self._left -= not self._with_records

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        """Pass on records, up to the number that is still wanted."""
        self._need_more()
        self._sink.records(place, header, records.slice(0, self._left))
        self._left -= min(records.num_rows, self._left)

    def entry(self, file: str, row: Mapping[str, object]) -> None:
        """One entry."""
        self._need_more()
        self._sink.entry(file, row)
        self._left -= 1

    def close(self) -> None:
        """Close the wrapped sink."""
        self._sink.close()

    def _need_more(self) -> None:
        if self._left <= 0:
            raise EnoughError


class CountingSink:
    """Hands on everything, and counts it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.batches = self.n_records = self.entries = 0

    def batch(self, place: Place, found: Found) -> None:
        self._sink.batch(place, found)
        self.batches += found.header is not None

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        self._sink.records(place, header, records)
        self.n_records += records.num_rows

    def entry(self, file: str, row: Mapping[str, object]) -> None:
        self._sink.entry(file, row)
        self.entries += 1

    def close(self) -> None:
        """Close the wrapped sink."""
        self._sink.close()


class JsonSink:
    """One object a line; its field ``kind`` names its kind.

    `write`: takes lines, with their ends.  `text`: how keys and values become text.
    """

    def __init__(self, write: Callable[[str], object], text: RecordText) -> None:
        self._write = write
        self._text = text

    def batch(self, place: Place, found: Found) -> None:
        kind = "batch" if found.header else "damage" if found.problem else "padding"
        self._write(to_json({"kind": kind} | batch_row(place, found)) + "\n")

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        if header.is_control:
            for row in record_rows(place, header, records, self._text):
                self._write(to_json({"kind": "record"} | row) + "\n")
            return
        self._write("".join(record_lines(place, header, records, self._text)))

    def entry(self, file: str, row: Mapping[str, object]) -> None:
        self._write(to_json({"kind": "entry", "file": file} | dict(row)) + "\n")

    def close(self) -> None:
        pass


def record_lines(
    place: Place, header: BatchHeader, records: pa.RecordBatch, text: RecordText
) -> Iterator[str]:
    """A line, with its end, for each record of one batch, which is not a control batch.

    The fields are those of `record_rows`, as `to_json` writes them.  A line is joined from its
    parts, and `json` quotes the texts.  A dictionary for each record and `to_json` take four times
    as long for usual records of 110 bytes.
    """
    begin = to_json({"kind": "record", "topic": place.topic, "partition": place.partition})[:-1]
    kind = timestamp_type(header)
    base_offset, base_sequence = header.base_offset, header.base_sequence
    text_of = text.of(place)
    columns = (records.column(name).to_pylist() for name in _LINE_COLUMNS)
    for offset, timestamp, key, value, headers in zip(*columns, strict=True):
        as_key, as_value = text_of(key, value)
        line = (
            f'{begin}, "offset": {offset}, "timestampType": "{kind}", "timestamp": {timestamp}, '
            f'"keySize": {-1 if key is None else len(key)}, '
            f'"valueSize": {-1 if value is None else len(value)}, '
            f'"sequence": {sequence_after(base_sequence, offset - base_offset)}, '
            f'"key": {"null" if as_key is None else quoted(as_key)}, '
            f'"value": {"null" if as_value is None else quoted(as_value)}, '
            f'"headers": [{_header_pairs(headers, text) if headers else ""}]}}'
        )
        yield escape_json(line) + "\n"


def _header_pairs(headers: list[dict[str, Any]], text: RecordText) -> str:
    return ", ".join(
        f'{{"key": {quoted(as_text(key))}, "value": '
        f"{'null' if value is None else quoted(text.value(value))}}}"
        for key, value in map(dict.values, headers)
    )


class ColumnSink:
    """An Arrow stream or a Parquet file: of batches, or of records instead.

    `file`: binary, open for writing.  `with_records`: whether the table is of records.
    """

    def __init__(self, file: IO[bytes], output_format: Format, *, with_records: bool) -> None:
        self._with_records = with_records
        self._schema = _RECORD_SCHEMA if with_records else BATCH_SCHEMA
        self._writer: Any
        if output_format == Format.ARROW:
            self._writer = pa.ipc.new_stream(file, self._schema)
        else:
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[Mapping[str, object]] = []
        self._pieces: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0

    def batch(self, place: Place, found: Found) -> None:
        if not self._with_records:
            self._rows.append(batch_row(place, found))
            if len(self._rows) >= _PIECE_ROWS // 8:
                self._flush()
        elif found.problem:  # a table of records has no row for a bad batch
            where = f"{place.file}: batch at byte {found.position}"
            sys.stderr.write(f"{where} is not valid: {found.problem}\n")

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        from segmentlog.format.records.columns import (
            headers_as_java,  # the compiled kernels load here
        )

        n_rows = records.num_rows
        controls: list[str | None] = [None] * n_rows
        if header.is_control:
            from segmentlog.format.records.one_batch import (
                parse_control,  # the compiled kernels load here
            )

            rows = records.select(["key", "value"]).to_pylist()
            controls = [parse_control(row["key"], row["value"]).type for row in rows]
        kind = header.timestamp_type if header.magic > 0 else -1
        columns = {name: records.column(name) for name in records.schema.names}
        columns |= {
            "topic": pa.repeat(pa.scalar(place.topic), n_rows),
            "partition": pa.repeat(pa.scalar(place.partition, pa.int32()), n_rows),
            "timestamp": records.column("timestamp").cast(pa.timestamp("ms", tz="UTC")),
            "timestampType": pa.repeat(pa.scalar(int(kind), pa.int32()), n_rows),
            "headers": headers_as_java(
                records.column("headers"), _RECORD_SCHEMA.field("headers").type
            ),
            "isControl": pa.repeat(pa.scalar(header.is_control), n_rows),
            "controlType": pa.array(controls, pa.string()),
            "producerId": pa.repeat(pa.scalar(header.producer_id, pa.int64()), n_rows),
            "batchOffset": pa.repeat(pa.scalar(header.base_offset, pa.int64()), n_rows),
        }
        arrays = [columns[name] for name in self._schema.names]
        self._pieces.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._held_rows += n_rows
        self._held_bytes += records.get_total_buffer_size()  # the memory it keeps alive
        if self._held_rows >= _PIECE_ROWS or self._held_bytes >= _PIECE_BYTES:
            self._flush()

    def entry(self, file: str, row: Mapping[str, object]) -> None:
        accepted = "entries of indexes, snapshots and checkpoints are written as table or json"
        raise OptionError("--format", "arrow or parquet", accepted)

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        if self._pieces:
            table = pa.Table.from_batches(self._pieces, schema=self._schema)
            self._writer.write_table(table.combine_chunks())
        self._rows, self._pieces = [], []
        self._held_rows = self._held_bytes = 0

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Give up while the file is open; the caller removes the file."""
        # A Parquet writer that is garbage-collected writes its footer, to a file that is closed by
        # then.
        with suppress(Exception):
            self._writer.close()


@contextmanager
def open_sink(
    output_format: Format, output: str | None, text: RecordText, *, with_records: bool
) -> Iterator[Sink]:
    """Open the sink of a dump; a file appears under its name when it is complete.

    `output`: a file that does not exist yet, or None for standard output.  `text`: how keys and
    values become text.
    """
    is_text = output_format in {Format.TABLE, Format.JSON, Format.JSONL}
    if output is None:
        if not is_text and (output_format == Format.PARQUET or sys.stdout.isatty()):
            raise OptionError(
                "--format", str(output_format), "this format is not text: name a file with -o"
            )
        file: Any = sys.stdout if is_text else sys.stdout.buffer
        yield from _closing(_sink(file, output_format, text, with_records=with_records))
        return
    if os.path.lexists(output):
        raise OptionError(
            "--output", output, "the file already exists; name a file that does not exist"
        )
    partial = f"{output}.partial"
    try:
        with open(
            partial, "xt" if is_text else "xb", encoding="utf-8" if is_text else None
        ) as file:
            yield from _closing(_sink(file, output_format, text, with_records=with_records))
        os.rename(partial, output)
    except FileExistsError:
        raise
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise


def _closing(sink: Sink) -> Iterator[Sink]:
    try:
        yield sink
        sink.close()
    except BaseException:
        if isinstance(sink, ColumnSink):
            sink.abandon()
        raise


def _sink(file: IO[Any], output_format: Format, text: RecordText, *, with_records: bool) -> Sink:
    match output_format:
        case Format.TABLE:
            return TableSink(file.write, text)
        case Format.JSON | Format.JSONL:
            return JsonSink(file.write, text)
        case _:
            return ColumnSink(file, output_format, with_records=with_records)
