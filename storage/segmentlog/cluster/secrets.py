"""Secrets in the records of a cluster's metadata, hidden where records are shown as bytes."""

from collections.abc import Iterable

from segmentlog.cluster.image import MASK, is_sensitive
from segmentlog.messages.records import framed_schemas, read_frame
from segmentlog.model import METADATA_TOPIC

__all__ = ["hide_secrets"]

#: Records whose values are secrets as a whole.
_CREDENTIALS = frozenset({"UserScramCredentialRecord", "DelegationTokenRecord"})


def hide_secrets(values: Iterable[bytes | None]) -> list[bytes | None]:
    """The values of metadata records, with `MASK` in place of those that contain a secret.

    A value that is not a metadata record stays as it is.
    """
    return [MASK.encode() if value and _is_secret(value) else value for value in values]


def _is_secret(value: bytes) -> bool:
    try:
        message = read_frame(value, framed_schemas(METADATA_TOPIC))
    except ValueError:
        return False
    if message is None:
        return False
    is_setting = message.name == "ConfigRecord"
    return message.name in _CREDENTIALS or (is_setting and is_sensitive(message.fields["name"]))
