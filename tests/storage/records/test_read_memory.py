"""Memory that goes from one thread to another, and from one slice to the next."""

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from segmentlog.records.columns import Output
from segmentlog.records.read_memory import ReadMemory
from segmentlog.records.schema import record_schema

SCHEMA = record_schema(["value"])


def elsewhere(call: Callable[[], Output]) -> Output:
    """The result of a call by another thread."""
    found: list[Output] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def n_spare(memory: ReadMemory) -> int:
    """How many outputs are held."""
    return len(memory._spare)


def test_another_thread_takes_what_the_consumer_has_allocated() -> None:
    """The shape is that of the largest request; a smaller tail fits it, too."""
    memory = ReadMemory(2)
    memory.refill()
    assert 0 == n_spare(memory)
    elsewhere(lambda: memory.take(SCHEMA, 10, 100))
    elsewhere(lambda: memory.take(SCHEMA, 50, 1000))
    memory.refill()
    assert 2 == n_spare(memory)

    found = elsewhere(lambda: memory.take(SCHEMA, 50, 900))

    assert 1 == n_spare(memory)
    assert (50, 1000, 0) == found._limits


def test_requests_of_another_shape_allocate() -> None:
    """Fewer rows are asked for on purpose, and more bytes would not fit."""
    memory = ReadMemory(2)
    elsewhere(lambda: memory.take(SCHEMA, 50, 1000))
    memory.refill()
    for shape in ((10, 1000), (50, 1001), (60, 1000)):
        found = elsewhere(partial(memory.take, SCHEMA, *shape))
        assert (*shape, 0) == found._limits
    other = record_schema(["key"])
    assert elsewhere(lambda: memory.take(other, 60, 1000))._schema is other
    assert 2 == n_spare(memory)

    taken = elsewhere(lambda: memory.take(SCHEMA, 60, 1000))  # the spare ones have 50 rows

    assert (60, 1000, 0) == taken._limits


def test_the_consumer_allocates_for_itself() -> None:
    """Its own memory comes back to it without a detour."""
    memory = ReadMemory(2)
    elsewhere(lambda: memory.take(SCHEMA, 50, 1000))
    memory.refill()
    memory.take(SCHEMA, 50, 1000)

    assert 2 == n_spare(memory)


def test_slices_side_by_side_do_not_share_a_workspace() -> None:
    """The slice that ends last leaves its workspace to the next one: it is in the cache."""
    memory = ReadMemory()
    with memory.workspace() as first, memory.workspace() as second:
        assert first is not second
    with memory.workspace() as third:
        assert third is first


def test_a_slice_that_fails_or_is_given_up_leaves_no_workspace() -> None:
    """Nothing is known of the state in which its codecs are."""
    memory = ReadMemory()
    with pytest.raises(ValueError, match="bad"), memory.workspace() as failed:
        raise ValueError("bad")
    with memory.workspace() as after:
        assert after is not failed


def test_a_workspace_that_grew_for_unusual_batches_is_given_back_to_the_system() -> None:
    """A log of one huge batch would otherwise hold its memory until the read ends."""
    memory = ReadMemory()
    with memory.workspace() as grown:
        grown.window = np.empty(9 << 20, np.uint8)
    with memory.workspace() as after:
        assert after is not grown
        assert 0 == after.window.size
