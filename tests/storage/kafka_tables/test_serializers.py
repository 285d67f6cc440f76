"""Ids, paths and messages are those that Confluent's own serializer of protobuf has written."""

from typing import Any

import pyarrow as pa
import pytest

import segmentlog

registry = pytest.importorskip("confluent_kafka.schema_registry")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize("is_key", [False, True])
@pytest.mark.parametrize("in_header", [False, True])
def test_messages_of_the_serializer(is_key: bool, in_header: bool) -> None:
    """The first message of a file has the short path, and a message inside another a long one."""
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet

    client = registry.SchemaRegistryClient.new_client({"url": "mock://registry"})
    settings: dict[str, Any] = {"use.deprecated.format": False}
    if in_header:
        settings["schema.id.serializer"] = registry.header_schema_id_serializer
    field = MessageField.KEY if is_key else MessageField.VALUE
    values, headers = [], []
    messages = [FileDescriptorSet(), DescriptorProto.ExtensionRange(start=5)]
    for n, each in enumerate(messages):
        found: list[tuple[str, Any]] = []
        write = ProtobufSerializer(type(each), client, settings)
        values.append(write(each, SerializationContext(f"t{n}", field, found)))
        headers.append([{"key": name, "value": value} for name, value in found])
    columns = pa.array(values, pa.binary()), pa.array(headers, HEADERS)
    suffix = "key" if is_key else "value"
    registered = [client.get_latest_version(f"t{n}-{suffix}") for n in range(2)]

    ids = segmentlog.schema_id(*columns, is_key=is_key).to_pylist()
    guids = segmentlog.schema_guid(columns[1], is_key=is_key).to_pylist()
    assert ids == [None if in_header else each.schema_id for each in registered]
    assert guids == [each.guid if in_header else None for each in registered]
    paths = segmentlog.message_indexes(*columns, is_key=is_key)
    assert [[0], [2, 0]] == paths.to_pylist()
    rest = segmentlog.payload(*columns, is_key=is_key, is_protobuf=True).to_pylist()
    assert [each.SerializeToString() for each in messages] == rest
