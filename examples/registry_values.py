"""Decode a topic whose values have several schemas with nothing in common: a table for each.

The option ``decode`` of a read makes one column of one schema, to which values of other versions
are resolved.  Here each schema of a topic makes a table of its own, whatever its format is.

Run with ``pip install '.[schemas]' && python examples/registry_values.py [DIRECTORY TOPIC]``.
Without arguments, the recipe makes a small directory.
"""

import json
import sys
import tempfile

import pyarrow as pa
import pyarrow.compute as pc

import segmentlog

PROTO = 'syntax = "proto3"; message Reading { string city = 1; }'
SHAPE = '{"type": "object", "properties": {"city": {"type": "string"}}}'


def example(directory: str) -> None:
    """A topic with values of two formats, and one whose schema is not there."""
    registered = [
        {"version": 1, "id": 1, "schemaType": "JSON", "schema": SHAPE},
        {"version": 2, "id": 2, "schemaType": "PROTOBUF", "schema": PROTO},
    ]
    key = '{{"keytype":"SCHEMA","subject":"readings-value","version":{},"magic":1}}'
    with segmentlog.open_writer(directory, "_schemas") as writer:
        keys = [key.format(each["version"]).encode() for each in registered]
        values = [json.dumps({"subject": "readings-value"} | each) for each in registered]
        writer.append(pa.table({"key": keys, "value": [each.encode() for each in values]}))
    framed = [b'\0\0\0\0\1{"city": "Oslo"}', b"\0\0\0\0\2\0\x0a\4Rome", b"\0\0\0\0\7?"]
    with segmentlog.open_writer(directory, "readings") as writer:
        writer.append(pa.table({"value": framed}))


def main(directory: str, topic: str = "readings") -> None:
    """Values whose schema is not known are counted, and are not decoded."""
    records = segmentlog.read(directory, topic, include_headers=True)
    ids = segmentlog.schema_id(records["value"], records["headers"])
    guids = segmentlog.schema_guid(records["headers"])
    for used in segmentlog.schema_use(directory, topic).to_pylist():
        if used["column"] != "value" or not used["records"]:
            continue
        if used["subject"] is None:
            print(used["records"], "values without a schema that is here, id", used["id"])
            continue
        names = (
            pc.equal(ids, used["id"]) if used["guid"] is None else pc.equal(guids, used["guid"])
        )
        rows = segmentlog.decode(
            records.filter(names),
            directory,
            used["subject"],
            version=used["version"],
            on_undecodable="null",
        )
        print(f"{used['subject']} version {used['version']}: {rows['value'].type}")
        print(*rows.select(["offset", "value", "undecodable"]).to_pylist(), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as made:
            example(made)
            main(made)
