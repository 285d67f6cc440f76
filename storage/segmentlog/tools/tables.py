"""A dump as lines to read: a heading for each file, a line for each batch, record and entry."""

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from segmentlog.format.records.header import BatchHeader
from segmentlog.tools.rows import Place, RecordText, batch_row, record_rows
from segmentlog.tools.text import escape, escape_in_quotes, iso_time
from segmentlog.tools.walk import Found

_COLUMNS = (
    ("position", 10), ("size", 9), ("offsets", 15), ("count", 6), ("magic", 5), ("codec", 6),
    ("crc", 8), ("valid", 5), ("epoch", 5), ("producer", 8), ("sequence", 9),
)  # fmt: skip
_HEADING = " ".join(name.rjust(width) for name, width in _COLUMNS) + "  timestamps, flags"


class TableSink:
    """Writes a dump as text, a line at a time.

    `write`: takes lines, with their ends.  `text`: how keys and values become text.
    """

    def __init__(self, write: Callable[[str], object], text: RecordText) -> None:
        self._write = write
        self._text = text
        self._file = ""

    def _begin(self, file: str, heading: str) -> None:
        if file != self._file:
            self._write(f"{chr(10) if self._file else ''}{escape(file)}\n{heading}")
            self._file = file

    def batch(self, place: Place, found: Found) -> None:
        """One line, and another line with the problem."""
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
        """A line for each record, further to the right than its batch."""
        for row in record_rows(place, header, records, self._text):
            self._write(_record_line(row))

    def entry(self, file: str, row: Mapping[str, object]) -> None:
        """A line of an index or a snapshot."""
        self._begin(file, "")
        shown = (f"{name}={_plain(value)}" for name, value in row.items())
        self._write(f"  {' '.join(shown)}\n")

    def close(self) -> None:
        """Nothing is held back."""


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


def _record_line(row: Mapping[str, object]) -> str:
    time = row["timestamp"]
    shown = [f"{'':>10} | {row['offset']:>8}", iso_time(time) if isinstance(time, int) else ""]
    if row["sequence"] != -1:
        shown.append(f"sequence={row['sequence']}")
    if "controlType" in row:
        shown.append(f"control={row['controlType']}")
        if row["coordinatorEpoch"] is not None:
            shown.append(f"coordinatorEpoch={row['coordinatorEpoch']}")
    else:
        shown += [f"{name}={_quoted(row[name])}" for name in ("key", "value")]
    headers = row["headers"]
    if isinstance(headers, list) and headers:
        pairs = (f"{_quoted(each['key'])}={_quoted(each['value'])}" for each in headers)
        shown.append(f"headers={{{', '.join(pairs)}}}")
    return " ".join(shown) + "\n"


def _quoted(value: object) -> str:
    """Text in quotes, so that it cannot be mistaken for something else; or null."""
    return "null" if value is None else f"'{escape_in_quotes(str(value))}'"


def _plain(value: object) -> str:
    return "-" if value is None else escape(str(value))


def aligned(heading: Iterable[str], rows: Iterable[Iterable[str]], right: Iterable[bool]) -> str:
    """Columns as wide as their widest cell, with two blanks between them; for pipes.

    `right`: for each column, whether it is aligned to the right, as numbers are.
    """
    lines = [list(heading), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = list(right)
    return "".join(
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, sides, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )
