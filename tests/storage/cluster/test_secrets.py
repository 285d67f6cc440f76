"""Records that may contain secrets, hidden where records are shown as bytes."""

import pytest
from coordinator_logs import framed

from segmentlog.format.messages.records import framed_schemas
from segmentlog.kafka_tables.cluster_metadata import hide_secrets
from segmentlog.masking import MASK
from segmentlog.model import METADATA_TOPIC

KINDS = {each.name: kind for kind, each in framed_schemas(METADATA_TOPIC).items()}
SECRET = ["UserScramCredentialRecord", "DelegationTokenRecord", "ConfigRecord"]


def value(name: str) -> bytes:
    """The value of a record in the newest version that is known."""
    return framed(METADATA_TOPIC, KINDS[name], {})[1]


@pytest.mark.parametrize("name", SECRET)
def test_a_record_that_cannot_be_read_is_hidden(name: str) -> None:
    """It has a newer version, or is too long or too short."""
    whole = value(name)
    newer = whole[:2] + b"\x7f" + whole[3:]
    for each in (newer, whole + b"\0", whole[:-1], whole[:3]):
        assert [MASK.encode()] == hide_secrets([each])


def test_other_records_stay() -> None:
    """They may be of another type, of an unknown type, or no records of the metadata at all."""
    whole = value("TopicRecord")
    shown = [whole, whole + b"\0", b"\x01\x7f\x00", b"\x02", b"", None, value("ConfigRecord")]
    assert shown == hide_secrets(shown)
