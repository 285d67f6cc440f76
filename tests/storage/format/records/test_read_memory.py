"""Working memory that goes from one slice to the next."""

import numpy as np
import pytest

from segmentlog.format.records.read_memory import ReadMemory


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
