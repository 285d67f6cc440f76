"""Formats of a dump: lines to read, lines of JSON, an Arrow stream, a Parquet file.

All of them take a dump as it comes and hold no more than the next piece of it.  The fields of
batches and records are those of Kafka's own dump tool, in its order.  A value that this tool
prints as one word (``OptionalLong.empty``) is null here.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.errors import OptionError
from segmentlog.format.kernels import layout
from segmentlog.format.records.columns import headers_as_java, where
from segmentlog.format.records.header import BatchHeader
from segmentlog.model import Codec
from segmentlog.times import iso_time
from segmentlog.tools.output import escape, to_json
from segmentlog.tools.records import (
    Place,
    RecordText,
    json_lines,
    sequence_after,
    text_lines,
    timestamp_type,
)
from segmentlog.tools.walk import FoundBytes, last_offset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segmentlog.decoding.rows import Decoding
    from segmentlog.format.kernels.memory import Int64s

_PIECE_ROWS = 1 << 16
_PIECE_BYTES = 16 << 20

#: The columns of a table of batches; what only a header of magic 2 has, by its attribute.
_BATCH_COLUMNS = (
    ("topic", pa.string(), ""),
    ("partition", pa.int32(), ""),
    ("file", pa.string(), ""),
    ("baseOffset", pa.int64(), "base_offset"),
    ("lastOffset", pa.int64(), "last_offset"),
    ("count", pa.int32(), "records_count"),
    ("baseSequence", pa.int32(), "base_sequence"),
    ("lastSequence", pa.int32(), ""),
    ("producerId", pa.int64(), "producer_id"),
    ("producerEpoch", pa.int16(), "producer_epoch"),
    ("partitionLeaderEpoch", pa.int32(), "leader_epoch"),
    ("isTransactional", pa.bool_(), "is_transactional"),
    ("isControl", pa.bool_(), "is_control"),
    ("deleteHorizonMs", pa.int64(), "delete_horizon_ms"),
    ("position", pa.int64(), ""),
    ("timestampType", pa.string(), ""),
    ("baseTimestamp", pa.int64(), "base_timestamp"),
    ("maxTimestamp", pa.int64(), ""),
    ("size", pa.int64(), ""),
    ("magic", pa.int8(), ""),
    ("codec", pa.string(), ""),
    ("attributes", pa.int16(), ""),
    ("crc", pa.uint32(), ""),
    ("isValid", pa.bool_(), ""),
    ("problem", pa.string(), ""),
)
BATCH_SCHEMA: pa.Schema = pa.schema([(name, kind) for name, kind, _ in _BATCH_COLUMNS])

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


def codec_name(codec: int) -> str:
    """Kafka's name of a codec; the number itself if Kafka has no name."""
    return Codec(codec).name.lower() if codec in set(Codec) else str(codec)


def batch_row(place: Place, found: FoundBytes) -> dict[str, object]:
    """One batch, or a place without a batch, which has few fields."""
    row: dict[str, object] = dict.fromkeys(BATCH_SCHEMA.names)
    row |= place._asdict()
    header = found.header
    if header is not None:
        if header.magic >= layout.FIRST_BATCH_MAGIC:
            row |= {name: getattr(header, has) for name, _, has in _BATCH_COLUMNS if has}
            delta = header.last_offset_delta
            row["lastSequence"] = sequence_after(header.base_sequence, delta)
        else:  # the first offset of messages depends on their compressed content
            row["lastOffset"] = last_offset(header)
            if header.codec == 0:
                row["baseOffset"], row["count"] = header.base_offset, 1
        row["timestampType"] = timestamp_type(header)
        row["maxTimestamp"] = header.max_timestamp
        row["codec"] = codec_name(header.codec)
        row["magic"], row["attributes"] = header.magic, header.attributes
        row["crc"] = header.crc
    row["position"], row["problem"] = found.position, found.problem or None
    row["size"] = found.n_bytes if header is None else header.size_in_bytes
    row["isValid"] = not found.problem
    return row


_COLUMNS = (
    ("position", 10),
    ("size", 9),
    ("offsets", 15),
    ("count", 6),
    ("magic", 5),
    ("codec", 6),
    ("crc", 8),
    ("valid", 5),
    ("epoch", 5),
    ("producer", 8),
    ("sequence", 9),
)
_HEADING = " ".join(name.rjust(width) for name, width in _COLUMNS) + "  timestamps, flags"


#: Gets a place, a table of headers, and records of these batches.
TakeRun: TypeAlias = Callable[[Place, "Int64s", pa.RecordBatch], None]


class Sink(Protocol):
    """Takes a dump piece by piece, in the order of the files."""

    def batch(self, place: Place, found: FoundBytes) -> None:
        """A batch, or a place without a batch."""

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        """Records of the batch that came before."""

    @property
    def run(self) -> "TakeRun | None":
        """Takes records of many good batches of magic 2 at once; None if they come one by one."""

    def entry(self, file: str, row: Mapping[str, object]) -> None:
        """An entry of an index file or a snapshot."""

    def close(self) -> None:
        """Write the rest that is held back."""


class EnoughError(Exception):
    """The wanted number of lines is written."""


class CountingSink:
    """Hands on everything and counts it, until there is enough.

    `most`: the number of entries and batches, or of records, that are handed on; None for all.
    `is_damaged`: whether one of them has a fault.
    """

    def __init__(self, sink: Sink, most: int | None, *, with_records: bool) -> None:
        self._sink = sink
        self._left = float("inf") if most is None else most
        self._with_records = with_records
        self.batches = self.n_records = self.entries = 0
        self.is_damaged = False

    def batch(self, place: Place, found: FoundBytes) -> None:
        """One batch; with records, its records come next."""
        self._take(not self._with_records)
        self._sink.batch(place, found)
        self.batches += found.header is not None
        self.is_damaged |= bool(found.problem)

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        """Hand on records, up to the number that is still wanted."""
        self._sink.records(place, header, self._first(records))

    @property
    def run(self) -> TakeRun | None:
        """As `records`, for records of many batches."""
        run = self._sink.run
        if run is None:
            return None
        return lambda place, headers, records: run(place, headers, self._first(records))

    def _first(self, records: pa.RecordBatch) -> pa.RecordBatch:
        n_records = int(min(records.num_rows, self._left))
        self._take(n_records)
        self.n_records += n_records
        return records.slice(0, n_records)

    def entry(self, file: str, row: Mapping[str, object]) -> None:
        self._take(1)
        self._sink.entry(file, row)
        self.entries += 1
        self.is_damaged |= "problem" in row

    def close(self) -> None:
        self._sink.close()

    def _take(self, n: int) -> None:
        if self._left <= 0:
            raise EnoughError
        self._left -= n


class _LineSink:
    """Writes lines with `write`; keys and values become text by `text`."""

    run: TakeRun | None = None

    def __init__(self, write: Callable[[str], object], text: RecordText) -> None:
        self._write = write
        self._text = text
        self._file = ""

    def close(self) -> None:
        pass


class JsonSink(_LineSink):
    """One object a line; its field ``kind`` names its kind."""

    def batch(self, place: Place, found: FoundBytes) -> None:
        kind = "batch" if found.header else "damage" if found.problem else "padding"
        self._write(to_json({"kind": kind} | batch_row(place, found)) + "\n")

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        self._write("".join(json_lines(place, header, records, self._text)))

    def entry(self, file: str, row: Mapping[str, object]) -> None:
        self._write(to_json({"kind": "entry", "file": file} | dict(row)) + "\n")


class TableSink(_LineSink):
    """Text to read, a line at a time."""

    def _begin(self, file: str, heading: str) -> None:
        if file != self._file:
            self._write(f"{chr(10) if self._file else ''}{escape(file)}\n{heading}")
            self._file = file

    def batch(self, place: Place, found: FoundBytes) -> None:
        self._begin(place.file, _HEADING + "\n")
        row = batch_row(place, found)
        if found.header is None:
            what = (
                "bytes that are not a batch" if found.problem else "bytes of zeros: preallocated"
            )
            self._write(f"{found.position:>10} {found.n_bytes:>9} {what}\n")
        else:
            cells = zip(_cells(row), _COLUMNS, strict=True)
            line = " ".join(cell.rjust(width) for cell, (_, width) in cells)
            self._write(f"{line}  {_times_and_flags(row)}\n")
        if found.problem:
            self._write(f"{'':>10} not valid: {escape(found.problem)}\n")

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        self._write("".join(text_lines(place, header, records, self._text)))

    def entry(self, file: str, row: Mapping[str, object]) -> None:
        self._begin(file, "")
        shown = (f"{name}={_plain(value)}" for name, value in row.items())
        self._write(f"  {' '.join(shown)}\n")


def _cells(row: Mapping[str, object]) -> list[str]:
    """The columns of a batch, in their order."""
    base, last = row["baseOffset"], row["lastOffset"]
    has_producer = row["producerId"] not in {None, -1}
    has_sequence = row["baseSequence"] not in {None, -1}
    return [
        _plain(row["position"]),
        _plain(row["size"]),
        f"{'…' if base is None else base}-{last}",
        _plain(row["count"]),
        _plain(row["magic"]),
        _plain(row["codec"]),
        f"{row['crc']:08x}",
        "yes" if row["isValid"] else "NO",
        _plain(row["partitionLeaderEpoch"]),
        f"{row['producerId']}/{row['producerEpoch']}" if has_producer else "-",
        f"{row['baseSequence']}-{row['lastSequence']}" if has_sequence else "-",
    ]


def _times_and_flags(row: Mapping[str, object]) -> str:
    base, newest, horizon = row["baseTimestamp"], row["maxTimestamp"], row["deleteHorizonMs"]
    shown = [str(row["timestampType"])]
    if isinstance(base, int) and horizon is None and base != newest:
        shown.append(f"{iso_time(base)} to")
    if isinstance(newest, int):
        shown.append(iso_time(newest))
    shown += [name for name in ("isTransactional", "isControl") if row[name]]
    if isinstance(horizon, int):
        shown.append(f"deleteHorizon={iso_time(horizon)}")
    return " ".join(shown)


def _plain(value: object) -> str:
    return "-" if value is None else escape(str(value))


class ColumnSink:
    """An Arrow stream or a Parquet file: of batches, or of records instead.

    `file`: binary, open for writing.  `with_records`: whether the table is of records.
    `decoding`: of keys or values, which are columns of their schemas then.
    """

    def __init__(
        self,
        file: IO[bytes],
        output_format: Format,
        decoding: "Decoding | None" = None,
        *,
        with_records: bool,
    ) -> None:
        self._with_records, self._decoding = with_records, decoding
        self._schema = _RECORD_SCHEMA if with_records else BATCH_SCHEMA
        written = self._schema if decoding is None else decoding.schema_of(self._schema)
        self._writer: Any
        if output_format == Format.ARROW:
            self._writer = pa.ipc.new_stream(file, written)
        else:
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(file, written, compression="zstd")
        self._columns = written.names
        self._rows: list[Mapping[str, object]] = []
        self._pieces: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0

    def batch(self, place: Place, found: FoundBytes) -> None:
        if not self._with_records:
            self._rows.append(batch_row(place, found))
            if len(self._rows) >= _PIECE_ROWS // 8:
                self._flush()
        elif found.problem:  # a table of records has no row for a bad batch
            where = f"{place.file}: batch at byte {found.position}"
            sys.stderr.write(f"{where} is not valid: {found.problem}\n")

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        kind = header.timestamp_type if header.magic > 0 else -1
        of_batch = (int(kind), header.is_control, header.producer_id, header.base_offset)
        self._add(place, records, *(np.repeat(each, records.num_rows) for each in of_batch))

    def run(self, place: Place, headers: "Int64s", records: pa.RecordBatch) -> None:
        offsets = records.column("offset").to_numpy()
        batches = headers[:, layout.BASE_OFFSET].searchsorted(offsets, "right") - 1
        attributes = headers[:, layout.ATTRIBUTES]
        has_append_time = attributes & layout.TIMESTAMP_TYPE_MASK != 0
        of_batches = (
            has_append_time.astype(np.int32),
            attributes & layout.CONTROL_MASK != 0,
            headers[:, layout.PRODUCER_ID],
            headers[:, layout.BASE_OFFSET],
        )
        self._add(place, records, *(each[batches] for each in of_batches))

    def _add(
        self,
        place: Place,
        records: pa.RecordBatch,
        timestamp_types: "NDArray[np.int_]",
        are_control: "NDArray[np.bool_]",
        producer_ids: "NDArray[np.int_]",
        batch_offsets: "NDArray[np.int_]",
    ) -> None:
        """Take records; the arrays have what the headers of their batches say, for each row."""
        n_rows = records.num_rows
        controls = pa.nulls(n_rows, pa.string())
        if are_control.any():
            # The compiled kernels load here.
            from segmentlog.format.records.decoder import parse_control

            controls = pa.array(
                [
                    parse_control(row["key"], row["value"]).type if is_control else None
                    for row, is_control in zip(
                        records.select(["key", "value"]).to_pylist(), are_control, strict=True
                    )
                ],
                pa.string(),
            )
        columns = {name: records.column(name) for name in records.schema.names}
        columns |= {
            "topic": pa.repeat(pa.scalar(place.topic), n_rows),
            "partition": pa.repeat(pa.scalar(place.partition, pa.int32()), n_rows),
            "timestamp": records.column("timestamp").cast(pa.timestamp("ms", tz="UTC")),
            "timestampType": pa.array(timestamp_types, pa.int32()),
            "headers": headers_as_java(
                records.column("headers"), _RECORD_SCHEMA.field("headers").type
            ),
            "isControl": pa.array(are_control),
            "controlType": controls,
            "producerId": pa.array(producer_ids, pa.int64()),
            "batchOffset": pa.array(batch_offsets, pa.int64()),
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
            table = pa.Table.from_batches(self._pieces, schema=self._schema).combine_chunks()
            for rows in table.to_batches():
                self._writer.write_table(pa.Table.from_batches([self._as_written(rows)]))
        self._rows, self._pieces = [], []
        self._held_rows = self._held_bytes = 0

    def _as_written(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with decoded columns; control records have no key and no value then."""
        if self._decoding is None:
            return rows
        is_record, nothing = pc.invert(rows.column("isControl")), pa.scalar(None, pa.binary())
        for name in self._decoding.columns if is_record.false_count else ():
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, name, where(is_record, rows.column(at), nothing))
        return self._decoding.decoded(rows, self._columns, None)

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
    with new_file(output, is_text=is_text) as file:
        yield from _closing(_sink(file, output_format, text, with_records=with_records))


@contextmanager
def new_file(path: str, *, is_text: bool = False) -> Iterator[IO[Any]]:
    """Open a file that appears under its name when it is complete."""
    partial = f"{path}.partial"
    try:
        with open(
            partial, "xt" if is_text else "xb", encoding="utf-8" if is_text else None
        ) as file:
            yield file
        os.rename(partial, path)
    except FileExistsError as error:  # it may be somebody else's, and stays
        reason = (
            "another run writes this file, or one that was killed has left it: remove it, or name "
            "another file"
        )
        raise FileExistsError(errno.EEXIST, reason, partial) from error
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        # Arrow does not know which file it writes to.
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, path) from error
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
    if output_format in {Format.ARROW, Format.PARQUET}:
        return ColumnSink(file, output_format, text.decoding, with_records=with_records)
    return (TableSink if output_format == Format.TABLE else JsonSink)(file.write, text)
