"""Memory for rows that one thread allocates and another fills."""

import threading
from collections.abc import Callable
from functools import partial

from segmentlog.records.columns import Output, SpareOutputs
from segmentlog.records.schema import record_schema

SCHEMA = record_schema(["value"])


def elsewhere(call: Callable[[], Output]) -> Output:
    """The result of a call by another thread."""
    found: list[Output] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def n_spare(outputs: SpareOutputs) -> int:
    """How many outputs are held."""
    return len(outputs._spare)


def test_another_thread_takes_what_the_consumer_has_allocated() -> None:
    """The shape is that of the largest request; a smaller tail fits it, too."""
    outputs = SpareOutputs(2)
    outputs.refill()
    assert 0 == n_spare(outputs)
    elsewhere(lambda: outputs.take(SCHEMA, 10, 100))
    elsewhere(lambda: outputs.take(SCHEMA, 50, 1000))
    outputs.refill()
    assert 2 == n_spare(outputs)

    found = elsewhere(lambda: outputs.take(SCHEMA, 50, 900))

    assert 1 == n_spare(outputs)
    assert (50, 1000, 0) == found._limits


def test_requests_of_another_shape_allocate() -> None:
    """Fewer rows are asked for on purpose, and more bytes would not fit."""
    outputs = SpareOutputs(2)
    elsewhere(lambda: outputs.take(SCHEMA, 50, 1000))
    outputs.refill()
    for shape in ((10, 1000), (50, 1001), (60, 1000)):
        found = elsewhere(partial(outputs.take, SCHEMA, *shape))
        assert (*shape, 0) == found._limits
    other = record_schema(["key"])
    assert elsewhere(lambda: outputs.take(other, 60, 1000))._schema is other
    assert 2 == n_spare(outputs)

    taken = elsewhere(lambda: outputs.take(SCHEMA, 60, 1000))  # the spare ones have 50 rows

    assert (60, 1000, 0) == taken._limits


def test_the_consumer_allocates_for_itself() -> None:
    """Its own memory comes back to it without a detour."""
    outputs = SpareOutputs(2)
    elsewhere(lambda: outputs.take(SCHEMA, 50, 1000))
    outputs.refill()
    outputs.take(SCHEMA, 50, 1000)

    assert 2 == n_spare(outputs)
