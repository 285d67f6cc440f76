"""Values that the Java serializers of AWS Glue have written, without a registry that answers."""

import json
import subprocess
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_here import ArtifactsError, glue_jars
from kafka_here.artifacts import java

import segmentlog

pytest.importorskip("fastavro")
pytestmark = [pytest.mark.slow, pytest.mark.interop]  # more than a hundred jars are fetched

AVRO, JSON = uuid.UUID(int=7), uuid.UUID(int=9)
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "status", "type": {"type": "enum", "name": "S", "symbols": ["NEW", "PAID"]}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ],
}
SHAPE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
}

#: Prints a value in hexadecimal for each format, plain and compressed.
PROGRAM = """
import com.amazonaws.services.schemaregistry.common.configs.GlueSchemaRegistryConfiguration;
import com.amazonaws.services.schemaregistry.serializers.SerializationDataEncoder;
import com.amazonaws.services.schemaregistry.serializers.avro.AvroSerializer;
import com.amazonaws.services.schemaregistry.serializers.json.JsonDataWithSchema;
import com.amazonaws.services.schemaregistry.serializers.json.JsonSerializer;
import java.util.*;
import org.apache.avro.Schema;
import org.apache.avro.generic.*;

public class Write {
    public static void main(String[] given) throws Exception {
        Schema schema = new Schema.Parser().parse(given[0]);
        GenericRecord order = new GenericData.Record(schema);
        order.put("id", 1L << 40);
        Schema status = schema.getField("status").schema();
        order.put("status", new GenericData.EnumSymbol(status, "PAID"));
        order.put("note", "caf\\u00e9");
        order.put("tags", Map.of("a", 1));
        byte[] avro = new AvroSerializer().serialize(order);
        for (String compression : new String[] {"NONE", "ZLIB"}) {
            Map<String, Object> settings = new HashMap<>();
            settings.put("region", "eu-west-1");
            settings.put("compression", compression);
            var configuration = new GlueSchemaRegistryConfiguration(settings);
            var encoder = new SerializationDataEncoder(configuration);
            print(encoder.write(avro, UUID.fromString(given[2])));
            var text = "{\\"id\\": 5, \\"note\\": \\"x\\"}";
            var data = JsonDataWithSchema.builder(given[1], text).build();
            byte[] json = new JsonSerializer(configuration).serialize(data);
            print(encoder.write(json, UUID.fromString(given[3])));
        }
    }

    static void print(byte[] data) {
        System.out.println(HexFormat.of().formatHex(data));
    }
}
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    try:
        jars = glue_jars()
    except ArtifactsError as error:
        pytest.skip(str(error))
    program = tmp_path_factory.mktemp("java") / "Write.java"
    program.write_text(PROGRAM)
    given = [json.dumps(ORDER), json.dumps(SHAPE), str(AVRO), str(JSON)]
    command = [java(), "-cp", str(Path(jars) / "*"), str(program), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [bytes.fromhex(each) for each in done.stdout.split()]


WRITTEN = {"id": 1 << 40, "status": "PAID", "note": "café", "tags": [("a", 1)]}


@pytest.mark.parametrize(
    ("kind", "guid", "text", "at", "expected"),
    [("AVRO", AVRO, ORDER, 0, WRITTEN), ("JSON", JSON, SHAPE, 1, {"id": 5, "note": "x"})],
)
def test_values_of_glue_are_decoded(
    written: list[bytes], kind: str, guid: uuid.UUID, text: object, at: int, expected: object
) -> None:
    """Both frames: the one without compression, and that of zlib."""
    known = pa.table(
        {
            "subject": ["orders"],
            "version": [1],
            "id": pa.array([None], pa.int32()),
            "guid": [str(guid)],
            "schema_type": [kind],
            "schema": [json.dumps(text)],
            "references": pa.array([[]], pa.list_(pa.null())),
            "deleted": [False],
        }
    )
    values = [written[at], written[at + 2]]
    assert [0, 5] == [each[1] for each in values]
    rows = pa.table({"value": pa.array(values, pa.binary())})
    assert [expected] * 2 == segmentlog.decode(rows, known, frame="glue")["value"].to_pylist()
