"""Answers of the protocol about groups, settings and transactions, from Kafka's own tables."""

from collections.abc import Callable, Mapping
from typing import Any

from segmentlog.serving.groups import Coordinator
from segmentlog.serving.reading import Broker
from segmentlog.serving.wire import Body

_GROUP, _TRANSACTION = 0, 1
_NO_TRANSACTION, _INVALID_REQUEST = 53, 42

Answer = Callable[[Broker, Coordinator, Any], Mapping[str, Any]]


def find_coordinator(broker: Broker, _: Coordinator, body: Body) -> Mapping[str, Any]:
    """The server, for groups; there are no transactions to coordinate."""
    kind = getattr(body, "key_type", _GROUP)
    codes = {_GROUP: 0, _TRANSACTION: _NO_TRANSACTION}
    found: dict[str, Any] = {"error_code": codes.get(kind, _INVALID_REQUEST), "node_id": -1}
    if not found["error_code"]:
        found |= {"node_id": broker.node_id, "host": broker.host, "port": broker.port}
    keys = getattr(body, "coordinator_keys", ())
    return {**found, "coordinators": [{"key": each, **found} for each in keys]}


#: Least and largest version, and the answer, by key.
ANSWERS: dict[int, tuple[int, int, Answer]] = {}
