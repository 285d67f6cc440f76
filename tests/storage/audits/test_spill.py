"""The temporary file of an audit, and lists of ranges that it takes."""

import os
from typing import Any

import numpy as np
import pytest

from segmentlog.audits import spill
from segmentlog.audits.spill import RangeList, SpillFile


def test_arrays_come_back_however_the_system_cuts_their_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A write may take fewer bytes than it got; the next array begins after the last byte."""
    written = os.pwrite

    def some(descriptor: int, data: Any, at: int) -> int:
        return written(descriptor, memoryview(data)[:5], at)

    monkeypatch.setattr(os, "pwrite", some)
    file = SpillFile()
    arrays = [np.arange(n, dtype=np.int64) * 77 - 5 for n in (1, 9, 3)]
    places = [file.write(each) for each in arrays]

    assert [0, 8, 80] == places
    for at, each in zip(places, arrays, strict=True):
        assert each.tolist() == file.read(at, len(each)).tolist()
        assert each.tolist() == file.mapped(at, len(each)).tolist()


def test_a_list_goes_to_the_file_when_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all lists there are not more ranges in memory, except a few of each; none is lost."""
    monkeypatch.setattr(spill, "_MOST_IN_MEMORY", 512)
    file = SpillFile()
    first, second = RangeList(file), RangeList(file)
    for number in range(300):
        at = np.array([10 * number, 10 * number + 4], np.int64)
        first.add(at, at + 2)
        assert file.n_in_memory <= 512 + 2
    second.add(np.array([7], np.int64), np.array([8], np.int64))
    bounds = np.concatenate([*first])

    assert [[10 * n + i, 10 * n + i + 2] for n in range(300) for i in (0, 4)] == bounds.tolist()
    assert 1 < len([*first])
    assert [[[7, 8]]] == [each.tolist() for each in second]
    first.clear()
    assert not [*first]
    assert 1 == file.n_in_memory
