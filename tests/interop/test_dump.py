"""Each field of our dump equals that of Kafka's own dump tool, for every shape of records."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

Row = Mapping[str, object]
Dump = Mapping[str, Sequence[Row]]

NUMBERS = {
    "baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId",
    "producerEpoch", "partitionLeaderEpoch", "position", "timestamp", "size", "magic", "crc",
    "offset", "keySize", "valueSize", "sequence", "coordinatorEpoch",
}  # fmt: skip
NAMES = {"compresscodec": "codec", "isvalid": "isValid"}
BATCH_FIELDS = (
    "baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId",
    "producerEpoch", "partitionLeaderEpoch", "isTransactional", "isControl", "deleteHorizonMs",
    "position", "timestampType", "timestamp", "size", "magic", "codec", "crc", "isValid",
)  # fmt: skip
RECORD_FIELDS = (
    "offset",
    "timestampType",
    "timestamp",
    "keySize",
    "valueSize",
    "sequence",
    "headerKeys",
    "controlType",
    "coordinatorEpoch",
)
#: Fields of a message of magic 0 or 1 in the tool of Kafka 2; a compressed one is a wrapper.
MESSAGE_FIELDS = (
    "lastOffset",
    "position",
    "timestampType",
    "timestamp",
    "size",
    "magic",
    "codec",
    "crc",
    "isValid",
)
#: Records that 4.3 prints by name and as JSON; 3.9 prints the leader's change by its type.
KRAFT_CONTROLS = {
    "LeaderChange": "LEADER_CHANGE",
    "SnapshotHeader": "SNAPSHOT_HEADER",
    "SnapshotFooter": "SNAPSHOT_FOOTER",
    "KRaftVersion": "KRAFT_VERSION",
    "KRaftVoters": "KRAFT_VOTERS",
}


def kafkas_fields(line: str) -> Row:
    """The fields of a line of Kafka's tool, with our names and types."""
    row: dict[str, object] = {}
    for name, value in re.findall(r"(\w+): (\[[^]]*\]|\S+)", line):
        if name in {"CreateTime", "LogAppendTime", "NoTimestampType"}:
            row |= {"timestampType": name, "timestamp": int(value)}
        elif name == "deleteHorizonMs":
            number = re.search(r"\d+", value)
            row[name] = int(number[0]) if number else None
        elif name == "headerKeys":
            row[name] = value[1:-1]
        elif name == "endTxnMarker":
            row["controlType"] = value
        elif name == "controlType":
            row["controlType"] = value.partition("(")[0]
        elif name in NUMBERS:
            row[name] = None if value == "null" else int(value)
        else:
            is_flag = value in {"true", "false"}
            row[NAMES.get(name, name)] = value == "true" if is_flag else value.lower()
    for kind, ours in KRAFT_CONTROLS.items():
        if re.search(rf" {kind}:? \{{", line):
            row["controlType"] = ours
    return row


def kafkas_dump(text: str) -> Dump:
    """Batches and records by file, in the order of the tool's lines."""
    found: dict[str, list[Row]] = {}
    for line in text.splitlines():
        if line.startswith("Dumping "):
            rows = found.setdefault(line.removeprefix("Dumping "), [])
        elif line.startswith("baseOffset:"):
            fields = kafkas_fields(line)
            rows.append({name: fields[name] for name in BATCH_FIELDS})
        elif line.startswith("| offset:"):
            fields = kafkas_fields(line)
            rows.append({name: fields.get(name) for name in RECORD_FIELDS})
    return found


def our_rows(lines: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """The file and the fields of each of our lines."""
    file = ""
    for row in map(json.loads, lines):
        if row["kind"] == "batch":
            file = row["file"]
            row["timestamp"] = row["maxTimestamp"]
            yield file, {name: row[name] for name in BATCH_FIELDS}
        else:
            row["headerKeys"] = ",".join(header["key"] for header in row["headers"])
            yield file, {name: row.get(name) for name in RECORD_FIELDS}


def our_dump(*arguments: str) -> Dump:
    """The output of our command as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "segmentlog", "dump", "--format", "json", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    found: dict[str, list[Row]] = {}
    for file, row in our_rows(done.stdout.splitlines()):
        found.setdefault(file, []).append(row)
    return found


@pytest.fixture(scope="module")
def dumps(filled: tuple) -> tuple[Dump, Path]:
    """The output of Kafka's tool for every segment file, and the files' paths."""
    broker, made = filled
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LC_ALL", "C.UTF-8")  # or Java prints question marks for header keys
        text = broker.dump(sorted(made.log_dir.glob("*/*.log")))
    return kafkas_dump(text), made.log_dir


def legacy_dump(text: str) -> Dump:
    """Messages, batches and records that the tool of Kafka 2 prints, by file.

    Messages of magic 0 and 1 have neither sequences nor headers, and the tool prints none.
    """
    found: dict[str, list[Row]] = {}
    for line in text.splitlines():
        if line.startswith("Dumping "):
            rows = found.setdefault(line.removeprefix("Dumping "), [])
        elif line.startswith("baseOffset:"):
            fields = kafkas_fields(line)
            rows.append({name: fields.get(name) for name in BATCH_FIELDS})
        elif line.startswith("offset:"):
            fields = kafkas_fields(line.replace("offset:", "lastOffset:", 1))
            rows.append({name: fields[name] for name in MESSAGE_FIELDS})
        elif line.startswith("| offset:"):
            fields = {"sequence": -1, "headerKeys": "", **kafkas_fields(line)}
            rows.append({name: fields.get(name) for name in RECORD_FIELDS})
    return found


def of_messages(rows: Sequence[Row]) -> list[Row]:
    """Our rows, without the fields that the tool does not print for magic 0 and 1."""
    return [
        {name: row[name] for name in MESSAGE_FIELDS} if row.get("magic") in {0, 1} else row
        for row in rows
    ]


def without_empty(dump: Dump) -> Dump:
    """Files with at least one line."""
    return {file: rows for file, rows in dump.items() if rows}


def test_batches_and_records_are_what_kafkas_tool_says(dumps: tuple[Dump, Path]) -> None:
    """Every field of every batch and record is compared, in the order of the tool."""
    expected, log_dir = dumps
    metadata = log_dir / "__cluster_metadata-0"
    found = our_dump("--records", str(log_dir), str(metadata))
    kinds = {row.get("controlType") for rows in found.values() for row in rows}

    assert {"COMMIT", "ABORT", "LEADER_CHANGE"} <= kinds
    assert without_empty(expected).keys() == found.keys()
    for file, rows in found.items():
        assert expected[file] == rows, file


def test_batches_alone_are_the_same(dumps: tuple[Dump, Path]) -> None:
    """Without records, the lines of batches do not change."""
    expected, log_dir = dumps
    found = our_dump(str(log_dir))

    assert len(found) > 20
    for file, rows in found.items():
        assert [row for row in expected[file] if "magic" in row] == rows, file


@pytest.mark.slow
def test_messages_of_old_formats_are_what_the_old_tool_says(legacy: tuple) -> None:
    """The messages are single or in wrappers of every codec, compacted, and beside magic 2."""
    log_dir, _, text, _ = legacy
    expected, found = legacy_dump(text), our_dump("--records", str(log_dir))
    magics = {row.get("magic") for rows in found.values() for row in rows}

    assert {0, 1, 2} <= magics
    assert without_empty(expected).keys() == found.keys()
    for file, rows in found.items():
        assert expected[file] == of_messages(rows), file
