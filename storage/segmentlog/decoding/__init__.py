"""Keys and values as the columns of their schemas.  Formats: Avro, JSON, protobuf.

Packages of the extra ``schemas`` decode, and are imported at the first use.  The names below are
the door for a connector.
"""

from typing import TYPE_CHECKING

from segmentlog.exports import exported

if TYPE_CHECKING:
    from segmentlog.decoding.rows import CAUSE, Decoding, Skipped
    from segmentlog.decoding.schema import UnusableSchemaError

__all__ = ["CAUSE", "Decoding", "Skipped", "UnusableSchemaError"]

__getattr__, __dir__ = exported(
    __name__,
    {
        "decoding.rows": "CAUSE Decoding Skipped",
        "decoding.schema": "UnusableSchemaError",
    },
)
