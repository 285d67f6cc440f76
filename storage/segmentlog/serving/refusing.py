"""Answers to everything that writes: an error at once, which no client tries again.

The answer names what the request names, with the code in place of a result, so one function
answers all of these APIs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kio.index import load_response_schema

from segmentlog.serving.claimed import parts_of
from segmentlog.serving.wire import Body

_TOPIC_AUTHORIZATION_FAILED, _CLUSTER_AUTHORIZATION_FAILED, _NO_TRANSACTION = 29, 31, 53
_REASON = "segmentlog serve only reads: nothing is written through it"

_PRODUCE, _INIT_PRODUCER_ID = 0, 22

#: Java's producer fails its records at this error, and asks again until it is closed.
_RETRY_MS = 300

#: Lists of an answer that have nothing of the request.
_OWN_LISTS = {"configs", "node_endpoints", "record_errors"}


def refused(key: int, version: int, body: Body) -> Mapping[str, Any] | None:
    """The answer to a request that would write; None closes the connection instead."""
    if key == _PRODUCE:
        if body.acks == 0:  # the client waits for no answer, and sees only this
            return None
        code = _TOPIC_AUTHORIZATION_FAILED
    elif getattr(body, "transactional_id", None) is not None:
        code = _NO_TRANSACTION
    else:
        code = _CLUSTER_AUTHORIZATION_FAILED
    found = _mirrored(load_response_schema(key, version), body, code)
    if key == _INIT_PRODUCER_ID:
        found["throttle_time"] = _RETRY_MS
    return found


def _mirrored(kind: type, asked: Body, code: int) -> dict[str, Any]:
    """The fields of an answer that its request has, and the error."""
    if isinstance(asked, str):  # a list of names
        asked = dict.fromkeys(
            (
                each.name
                for each in dataclasses.fields(kind)
                if each.metadata.get("kafka_type") == "string"
            ),
            asked,
        )
    found: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        inner, _, _ = parts_of(each.type)
        if each.metadata.get("kafka_type") == "error_code":
            found[each.name] = code
        elif each.name.endswith("error_message"):
            found[each.name] = _REASON
        elif inner is not None:
            lists = [] if each.name in _OWN_LISTS else _lists_of(asked)
            found[each.name] = [_mirrored(inner, item, code) for item in lists]
        elif isinstance(asked, dict):
            found |= {each.name: asked[each.name]} if each.name in asked else {}
        elif each.name != "throttle_time" and hasattr(asked, each.name):
            found[each.name] = getattr(asked, each.name)
    return found


def _lists_of(asked: Body) -> tuple[Body, ...]:
    """The items of the first list of a request: what it is about."""
    if dataclasses.is_dataclass(asked):
        for each in dataclasses.fields(asked):
            value = getattr(asked, each.name)
            if isinstance(value, tuple) and each.name not in _OWN_LISTS:
                return value
    return ()
