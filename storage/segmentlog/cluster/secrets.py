"""Secrets in the records of a cluster's metadata, hidden where records are shown as bytes."""

from collections.abc import Iterable

from segmentlog.format.messages.records import frame_key, framed_schemas, read_frame
from segmentlog.masking import MASK, masked
from segmentlog.model import METADATA_TOPIC

#: Records whose values are secrets as a whole.
_CREDENTIALS = frozenset({"UserScramCredentialRecord", "DelegationTokenRecord"})
_SETTING = "ConfigRecord"
_NEWEST = 0  #: version of these records


def hide_secrets(values: Iterable[bytes | None]) -> list[bytes | None]:
    """The values of metadata records, with `MASK` in place of those that contain a secret.

    A value that is not a metadata record stays as it is.  A record of a type that may contain a
    secret is hidden if it cannot be read: a newer Kafka may have written it, or it is damaged.
    """
    return [MASK.encode() if value and _is_secret(value) else value for value in values]


def _is_secret(value: bytes) -> bool:
    try:
        message = read_frame(value, framed_schemas(METADATA_TOPIC))
    except ValueError:
        return _may_be_secret(value)
    if message is None or message.version > _NEWEST:  # what is new in it is not known
        return _may_be_secret(value)
    if message.name != _SETTING:
        return message.name in _CREDENTIALS
    setting: str | None = message.fields["value"]
    return masked(message.fields["name"], setting) != setting


def _may_be_secret(value: bytes) -> bool:
    """Whether the type of a record that cannot be read is that of one that may be a secret."""
    try:
        schema = framed_schemas(METADATA_TOPIC).get(frame_key(value))
    except ValueError:
        return False
    return schema is not None and (schema.name in _CREDENTIALS or schema.name == _SETTING)
