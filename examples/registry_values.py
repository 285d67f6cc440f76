"""Decode JSON and protobuf with the schemas that a registry has left in its topic, without Spark.

Run with ``pip install . grpcio-tools && python examples/registry_values.py [DIRECTORY TOPIC]``.
Without arguments, the recipe makes a small directory.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

import segmentlog

PROTO = 'syntax = "proto3"; message Reading { string city = 1; message At { int64 ms = 1; } }'
Row = Mapping[str, Any]


def example(directory: str) -> None:
    """A topic with values of two schemas, by id and by GUID, and of one that is not there."""
    registered = [
        {"version": 1, "id": 1, "schemaType": "JSON", "schema": '{"type": "object"}'},
        {"version": 2, "id": 2, "schemaType": "PROTOBUF", "schema": PROTO},
    ]
    key = '{{"keytype":"SCHEMA","subject":"readings-value","version":{},"magic":1}}'
    with segmentlog.open_writer(directory, "_schemas") as writer:
        keys = [key.format(each["version"]).encode() for each in registered]
        values = [json.dumps({"subject": "readings-value"} | each) for each in registered]
        writer.append(pa.table({"key": keys, "value": [each.encode() for each in values]}))
    guid = segmentlog.table(directory, "schemas")["guid"].to_pylist()[1]
    frame = b"\1" + bytes.fromhex(guid.replace("-", ""))
    frame += b"\4\0\0"  # the path of the first message inside the first one
    framed = [
        b'\0\0\0\0\1{"city": "Oslo"}',
        b"\0\0\0\0\2\0\x0a\4Rome",
        b"\x08\x05",
        b"\0\0\0\0\7?",
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[], [], [{"key": "__value_schema_id", "value": frame}], []], kind)
    with segmentlog.open_writer(directory, "readings") as writer:
        writer.append(pa.table({"value": framed, "headers": headers}))


def parser(schema: Row, registered: Mapping[tuple[str, int], Row]) -> Callable[..., Any]:
    """The function that decodes the bytes of a schema; of protobuf, at a path in the schema."""
    if schema["schema_type"] == "JSON":
        return lambda _, data: json.loads(data)
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory), "schema.proto", schema, registered)
        made = Path(directory, "descriptors")
        arguments = [
            "",
            f"-I{directory}",
            f"-I{files('grpc_tools') / '_proto'}",
            "--include_imports",
            f"-o{made}",
            "schema.proto",
        ]
        if protoc.main(arguments):
            raise ValueError(f"protoc cannot compile the schema {schema['id']}")
        descriptors = FileDescriptorSet.FromString(made.read_bytes()).file
    pool, file = DescriptorPool(), descriptors[-1]
    for each in descriptors:
        pool.Add(each)

    def decode(path: list[int], data: bytes) -> object:
        found = file.message_type[path[0]]
        names = [file.package] if file.package else []
        names.append(found.name)
        for index in path[1:]:
            found = found.nested_type[index]
            names.append(found.name)
        kind = GetMessageClass(pool.FindMessageTypeByName(".".join(names)))
        return MessageToDict(kind.FromString(data))

    return decode


def write(
    directory: Path, name: str, schema: Row, registered: Mapping[tuple[str, int], Row]
) -> None:
    """Write a schema, and the schemas that it imports."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(schema["schema"])
    for each in schema["references"]:
        write(directory, each["name"], registered[each["subject"], each["version"]], registered)


def main(directory: str, topic: str = "readings") -> None:
    """Values whose schema is not known are counted, and are not decoded."""
    schemas = segmentlog.table(directory, "schemas").to_pylist()
    registered = {(each["subject"], each["version"]): each for each in schemas}
    parsers = {
        name: parser(each, registered)
        for each in schemas
        if each["schema_type"] != "AVRO"
        for name in (each["id"], each["guid"])
    }
    records = segmentlog.read(directory, topic, include_headers=True)
    values, headers = records["value"], records["headers"]
    ids = segmentlog.schema_id(values, headers).to_pylist()
    guids = segmentlog.schema_guid(headers).to_pylist()
    paths = segmentlog.message_indexes(values, headers).to_pylist()
    texts = segmentlog.payload(values, headers).to_pylist()
    messages = segmentlog.payload(values, headers, is_protobuf=True).to_pylist()
    kinds = {each["id"]: each["schema_type"] for each in schemas}
    kinds |= {each["guid"]: each["schema_type"] for each in schemas}

    unknown = Counter[object]()
    for number, guid, path, text, message in zip(ids, guids, paths, texts, messages, strict=True):
        name = guid if number is None else number
        if name not in parsers:
            unknown[name] += 1
        else:
            print(name, parsers[name](path, text if kinds[name] == "JSON" else message))
    print("values whose schema is not here:", dict(unknown))


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as made:
            example(made)
            main(made)
