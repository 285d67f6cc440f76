"""Values that Apicurio's Java serializer has written, with a resolver in place of its registry."""

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_here import ArtifactsError, apicurio_jars
from kafka_here.artifacts import java

import segmentlog

pytest.importorskip("fastavro")
pytestmark = [pytest.mark.slow, pytest.mark.interop]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
GLOBAL_ID = 5_000_000_000

#: Prints a value, and the names and values of its headers, for each place of an id.
PROGRAM = """
import io.apicurio.registry.resolver.*;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import java.lang.reflect.Proxy;
import java.util.*;
import org.apache.avro.Schema;
import org.apache.avro.generic.*;
import org.apache.kafka.common.header.internals.RecordHeaders;

public class Write {
    public static void main(String[] given) {
        Schema schema = new Schema.Parser().parse(given[0]);
        GenericRecord order = new GenericData.Record(schema);
        order.put("id", 1L << 40);
        order.put("note", "caf\\u00e9");
        ParsedSchema<Schema> parsed = new ParsedSchemaImpl<Schema>().setParsedSchema(schema);
        var found = SchemaLookupResult.<Schema>builder().globalId(Long.parseLong(given[1]))
            .contentId(7).parsedSchema(parsed).build();
        var resolver = (SchemaResolver) Proxy.newProxyInstance(
            Write.class.getClassLoader(), new Class<?>[] {SchemaResolver.class},
            (proxy, method, arguments) -> method.getName().startsWith("resolve") ? found : null);
        for (boolean inHeaders : new boolean[] {false, true}) {
            var serializer = new AvroKafkaSerializer<GenericRecord>(resolver);
            Map<String, Object> settings = new HashMap<>();
            settings.put("apicurio.registry.headers.enabled", inHeaders);
            settings.put("apicurio.registry.url", "http://127.0.0.1:1");
            serializer.configure(settings, false);
            var headers = new RecordHeaders();
            byte[] value = serializer.serialize("orders", headers, order);
            StringBuilder line = new StringBuilder(HexFormat.of().formatHex(value));
            for (var header : headers) {
                line.append(" ").append(header.key()).append(" ");
                line.append(HexFormat.of().formatHex(header.value()));
            }
            System.out.println(line);
        }
    }
}
"""


def test_values_of_apicurio_are_decoded(tmp_path: Path) -> None:
    """With the id in front of the bytes, and in a header."""
    try:
        jars = apicurio_jars()
    except ArtifactsError as error:
        pytest.skip(str(error))
    (tmp_path / "Write.java").write_text(PROGRAM)
    command = [java(), "-cp", str(jars / "*"), str(tmp_path / "Write.java")]
    done = subprocess.run(
        [*command, json.dumps(ORDER), str(GLOBAL_ID)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [each.split() for each in done.stdout.splitlines()]
    assert "apicurio.value.globalId" in lines[1]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = [
        [
            {"key": name, "value": bytes.fromhex(value)}
            for name, value in zip(line[1::2], line[2::2], strict=True)
        ]
        for line in lines
    ]
    rows = pa.table(
        {
            "value": pa.array([bytes.fromhex(line[0]) for line in lines], pa.binary()),
            "headers": pa.array(headers, kind),
        }
    )
    known = pa.table(
        {
            "subject": ["orders"],
            "version": [1],
            "id": [GLOBAL_ID],
            "guid": pa.array([None], pa.string()),
            "schema_type": ["AVRO"],
            "schema": [json.dumps(ORDER)],
            "references": pa.array([[]], pa.list_(pa.null())),
            "deleted": [False],
        }
    )
    found = segmentlog.decode(rows, known, frame="apicurio")["value"].to_pylist()
    assert [{"id": 1 << 40, "note": "café"}] * 2 == found
