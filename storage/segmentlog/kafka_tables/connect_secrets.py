"""Secrets in the settings of Kafka Connect, hidden where records are shown as bytes.

The topic of the settings has any name, so the key of a record and the members of its value show
that it is one of them.
"""

import json
from typing import Any

import pyarrow as pa

from segmentlog.masking import MASK, masked

#: Key of the record with the secret with which workers sign their requests.
SESSION_KEY = "session-key"


def payload_of(parsed: Any) -> Any:  # noqa: ANN401 (JSON)
    """A value without the schema that ``schemas.enable`` puts around it."""
    if isinstance(parsed, dict) and parsed.keys() == {"schema", "payload"}:
        return parsed["payload"]
    return parsed


def hide_connect_secrets(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records with `MASK` as the value of those that are settings of Connect with a secret.

    These are the session key, and connectors and tasks with a setting that is or has a secret.

    `records`: with columns ``key`` and ``value``, binary.
    """
    import pyarrow.compute as pc

    keys = records["key"]
    is_config = pc.equal(keys, pa.scalar(SESSION_KEY.encode(), pa.binary()))
    for prefix in (b"connector-", b"task-"):
        is_config = pc.or_(is_config, pc.starts_with(keys, prefix))
    rows = pc.indices_nonzero(pc.fill_null(is_config, False)).to_pylist()
    if not any(_has_secret(records["value"][row].as_py()) for row in rows):
        return records
    values = records["value"].to_pylist()
    for row in rows:
        if _has_secret(values[row]):
            values[row] = MASK.encode()
    at = records.schema.get_field_index("value")
    return records.set_column(at, records.schema.field(at), pa.array(values, pa.binary()))


def _has_secret(value: bytes | None) -> bool:
    """Whether a value is a session key, or has a setting that is or has a secret."""
    try:
        parsed = payload_of(json.loads(value or b""))
    except (ValueError, RecursionError):
        return False
    if not isinstance(parsed, dict):
        return False
    if parsed.keys() >= {"key", "algorithm", "creation-timestamp"}:
        return True
    properties = parsed.get("properties")
    return isinstance(properties, dict) and any(
        each is not None and masked(name, str(each)) != str(each)
        for name, each in properties.items()
    )
