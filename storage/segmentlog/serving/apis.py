"""The APIs of Kafka's protocol that are announced, and what answers each."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from segmentlog.serving import asking, reading
from segmentlog.serving.groups import Coordinator
from segmentlog.serving.refusing import refused
from segmentlog.serving.wire import API_VERSIONS, Body, Request


class Caller(NamedTuple):
    """Who asks: the client's own name, its host, and the server with its groups."""

    client_id: str
    host: str
    broker: reading.Broker
    coordinator: Coordinator


Values = Mapping[str, Any]
_Run = Callable[[Caller, Request], Awaitable[Values | None]]


class Api(NamedTuple):
    """An API: its versions, and what answers it; None closes the connection."""

    least: int
    most: int
    run: _Run


def _reads(answer: Callable[[reading.Broker, Any, int], Awaitable[Values]]) -> _Run:
    async def run(caller: Caller, request: Request) -> Values:
        return await answer(caller.broker, request.body, request.version)

    return run


async def _refuse(_: Caller, request: Request) -> Values | None:
    return refused(request.key, request.version, request.body)


async def _join(caller: Caller, request: Request) -> Values:
    return await caller.coordinator.join(
        request.body, request.version, caller.client_id, caller.host
    )


def _of_group(answer: Callable[[Coordinator, Body], Any]) -> _Run:
    async def run(caller: Caller, request: Request) -> Values:
        found = answer(caller.coordinator, request.body)
        answered: Values = await found if inspect.isawaitable(found) else found
        return answered

    return run


async def _versions(_: Caller, __: Request) -> Values:
    return {
        "api_keys": [
            {"api_key": key, "min_version": each.least, "max_version": each.most}
            for key, each in sorted(APIS.items())
        ]
    }


def _asks(answer: Callable[[reading.Broker, Coordinator, Any], Values]) -> _Run:
    async def run(caller: Caller, request: Request) -> Values:
        # It may read all directories: if one hangs, other APIs are still answered.
        place = f"API {request.key}"
        found: Values = await caller.broker.look_up(
            answer, caller.broker, caller.coordinator, request.body, place=place
        )
        return found

    return run


#: By key.  A version of Produce that `kio` lacks is announced, as clients look for it before they
#: fetch at all; such a request closes its connection.
APIS: dict[int, Api] = {
    1: Api(4, 17, _reads(reading.fetch)),
    2: Api(1, 9, _reads(reading.list_offsets)),
    3: Api(0, 13, _reads(reading.metadata)),
    8: Api(2, 9, _of_group(Coordinator.commit)),
    11: Api(0, 9, _join),
    12: Api(0, 4, _of_group(Coordinator.heartbeat)),
    13: Api(0, 5, _of_group(Coordinator.leave)),
    14: Api(0, 5, _of_group(Coordinator.sync)),
    API_VERSIONS: Api(0, 4, _versions),
    23: Api(2, 4, _reads(reading.offset_for_leader_epoch)),
    60: Api(0, 2, _reads(reading.describe_cluster)),
    75: Api(0, 0, _reads(reading.describe_topic_partitions)),
}

APIS |= {
    key: Api(least, most, _refuse)
    for key, least, most in (
        (0, 0, 12), (19, 2, 7), (20, 1, 6), (21, 0, 2), (22, 0, 5), (24, 0, 5), (25, 0, 4),
        (26, 0, 5), (28, 0, 5), (30, 1, 3), (31, 1, 3), (33, 0, 2), (37, 0, 3), (42, 0, 2),
        (43, 0, 2), (44, 0, 1), (45, 0, 0), (47, 0, 0), (49, 0, 1), (51, 0, 0),
    )
}  # fmt: skip

APIS |= {
    key: Api(least, most, _asks(answer)) for key, (least, most, answer) in asking.ANSWERS.items()
}
