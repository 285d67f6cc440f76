"""Stored directories of brokers: copied, listed, and read with their expected contents."""

import base64
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kafka_here.java import KafkaRecord


class Expected(NamedTuple):
    """A broker's answers about one partition, before it was stopped.

    `committed` are the offsets of the `records` that a read_committed consumer returned, and
    `last_stable_offset` is where such a consumer ends.
    """

    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    records: Sequence[KafkaRecord]
    committed: Sequence[int]


def copy_log_dir(source: Path, target: Path, leave_out: Iterable[str]) -> None:
    """Copy a log directory, without files that are put aside and files of `leave_out`."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.deleted", *leave_out))


def checksums(directory: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of each file, by its path in the directory."""
    return {
        str(path.relative_to(directory)): (
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def write_expected(path: Path, expected: Mapping[str, Mapping[int, Expected]]) -> None:
    """Write JSON, a line for each record: offset, time, its type, key, value, headers."""
    topics = [
        f" {json.dumps(topic)}: {{\n"
        + ",\n".join(f'  "{number}": {_dump(each)}' for number, each in partitions.items())
        + "\n }"
        for topic, partitions in expected.items()
    ]
    path.write_text("{\n" + ",\n".join(topics) + "\n}\n")


def _dump(expected: Expected) -> str:
    numbers = {
        "logStartOffset": expected.log_start_offset,
        "logEndOffset": expected.log_end_offset,
        "lastStableOffset": expected.last_stable_offset,
        "committed": list(expected.committed),
    }
    lines = []
    for row in expected.records:
        headers = row.headers and [[key, _text(value)] for key, value in row.headers]
        lines.append(json.dumps([*row[2:5], _text(row.key), _text(row.value), headers]))
    records = ",".join(f"\n    {line}" for line in lines)
    return json.dumps(numbers)[:-1] + f', "records": [{records}]}}'


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def read_expected(path: Path) -> dict[str, dict[int, Expected]]:
    """The answers that `write_expected` wrote."""
    return {
        topic: {int(number): _load(topic, int(number), each) for number, each in found.items()}
        for topic, found in json.loads(path.read_text()).items()
    }


def _load(topic: str, partition: int, found: Mapping[str, Any]) -> Expected:
    records = [
        KafkaRecord(
            topic,
            partition,
            offset,
            timestamp,
            kind,
            _bytes(key),
            _bytes(value),
            None
            if headers is None
            else tuple((name, _bytes(content)) for name, content in headers),
        )
        for offset, timestamp, kind, key, value, headers in found["records"]
    ]
    return Expected(
        found["logStartOffset"],
        found["logEndOffset"],
        found["lastStableOffset"],
        records,
        found["committed"],
    )
